/* The table of keys as people and programs read it: help, documentation, JSON. */
#include "config_table.h"
#include "internal.h"
#include "json_build.h"

#include <stdio.h>
#include <string.h>

/* 0 by its name, where it has one. */
static json_t *integer_to_json(const ra_config_key *key, int64_t integer)
{
    return integer == 0 && key->zero_name != NULL ? json_string(key->zero_name)
                                                  : json_integer(integer);
}

static json_t *list_to_json(const ra_config_value *value)
{
    if (value->list == NULL)
        return json_null();
    json_t *array = json_array();
    for (int64_t i = 0; array != NULL && i < value->list_count; i++)
        array = ra_json_append(array, json_integer(value->list[i]));
    return array;
}

/* Every value is written so that the YAML reader gives the same one back; reals to nine digits. */
static json_t *value_to_json(const ra_config_key *key, const ra_config *config)
{
    ra_config_value const value = ra_config_value_get(key, config);
    switch (key->type) {
    case RA_KEY_BOOL:
        return json_boolean(value.flag);
    case RA_KEY_INT32:
        return integer_to_json(key, value.narrow);
    case RA_KEY_INT64:
    case RA_KEY_BYTES:
        return integer_to_json(key, value.integer);
    case RA_KEY_UINT64: /* JSON integers are signed: what passes them goes as text */
        return value.bits <= INT64_MAX ? json_integer((json_int_t)value.bits)
                                       : json_sprintf("%llu", (unsigned long long)value.bits);
    case RA_KEY_TIME:
        return json_sprintf("%lldms", (long long)value.integer);
    case RA_KEY_REAL:
        return value.real == 0 && key->zero_name != NULL ? json_string(key->zero_name)
                                                         : json_real(value.real);
    case RA_KEY_CHOICE:
        return json_string(ra_config_choice_name(key, value.choice));
    case RA_KEY_TEXT:
        return json_string(value.text != NULL ? value.text : "none");
    case RA_KEY_LIST:
        break;
    }
    return list_to_json(&value);
}

/* The object that holds a key, made if it is missing; *leaf_out is the key's own name. */
static json_t *section_open(json_t *root, const char *path, const char **leaf_out)
{
    json_t *at = root;
    for (const char *dot; (dot = strchr(path, '.')) != NULL; path = dot + 1) {
        char name[64];
        snprintf(name, sizeof(name), "%.*s", (int)(dot - path), path);
        json_t *next = json_object_get(at, name);
        if (next == NULL) {
            next = json_object();
            if (json_object_set_new(at, name, next) != 0)
                return NULL;
        }
        at = next;
    }
    *leaf_out = path;
    return at;
}

json_t *ra_config_to_json(const ra_config *config)
{
    json_t *root = json_object();
    for (int i = 0; root != NULL && i < ra_config_key_count; i++) {
        const char *leaf = NULL;
        json_t *section = section_open(root, ra_config_keys[i].path, &leaf);
        if (section == NULL ||
            json_object_set_new(section, leaf, value_to_json(&ra_config_keys[i], config)) != 0) {
            json_decref(root);
            return NULL;
        }
    }
    return root;
}

const char *ra_config_swept_path(const ra_config *config, int index)
{
    RA_ASSERT(index >= 0 && index < config->sweep_key_count);
    return ra_config_keys[config->sweep_keys[index]].path;
}

json_t *ra_config_swept_to_json(const ra_config *config, int index)
{
    RA_ASSERT(index >= 0 && index < config->sweep_key_count);
    return value_to_json(&ra_config_keys[config->sweep_keys[index]], config);
}

static const char *default_shown(const ra_config_key *key)
{
    if (key->default_text != NULL)
        return key->default_text;
    return key->type == RA_KEY_TEXT ? "none" : "absent";
}

static void text_print(void)
{
    for (int i = 0; i < ra_config_key_count; i++) {
        const ra_config_key *key = &ra_config_keys[i];
        char expects[200];
        ra_config_key_expects(key, expects, sizeof(expects));
        printf("%s (default %s)\n    %s\n    %s\n", key->path, default_shown(key), key->help,
               expects);
    }
}

static const char markdown_head[] =
    "# Configuration\n"
    "\n"
    "A job is described by a YAML file (`--config FILE`). Every key has a default, so a file "
    "holds\n"
    "only what differs. This page is printed by `ringattn run --help-config=markdown`.\n"
    "\n"
    "- `--set KEY=VALUE` overrides a key; VALUE is read as it would be in the file\n"
    "  (`--set pattern.documents=[1000,3096]`). `null` gives a key, or a whole section, its\n"
    "  defaults: `--set pattern=null` is dense attention. `--set` wins over the file, its variants "
    "and\n"
    "  sweep, and the sets of `probe` and `ablate`; of two for a key, the later one. Options of "
    "their\n"
    "  own (`--input`, `--output`, `--backward`, `--verify`) win over `--set`.\n"
    "- Integers and sizes take `K`, `M`, `G` or `KiB`, `MiB`, `GiB`, all powers of 1024; times "
    "take\n"
    "  `ms`, `s` or `m`.\n"
    "- A key may be written as a path (`shape.seq: 4096`) or below its section\n"
    "  (`shape: {seq: 4096}`). A key given twice is an error; so is a section left empty "
    "(`shape:`)\n"
    "  after keys of it, which it would undo, an unknown key, a value that is out of range, a\n"
    "  combination that cannot be run, and an option of a feature that another key turns off, "
    "unless\n"
    "  that key is given over it, as a variant is over the file: then the option gets its "
    "default.\n"
    "  The message is one line with file, line, column and the nearest valid name, the exit code "
    "is\n"
    "  2, and nothing is started or written.\n"
    "  What this machine or build lacks may be said with the key alone.\n"
    "- YAML anchors, aliases and tags are not used: aliases and tags are refused.\n"
    "- With an input file, shape and dtype come from the file; keys that are given must match it.\n"
    "\n"
    "Two sections hold other keys, at the top of a file only:\n"
    "\n"
    "- `variants` has named sets of keys; `--variant NAME` applies one of them over the file:\n"
    "  `variants: {lean: {ring.variant: base}, wide: {pattern.window.left: 8191}}`.\n"
    "- `sweep` has a list of values for each key: `sweep: {shape.seq: [4096, 8192]}`. `bench` and\n"
    "  `plan` take every combination, the last key varying fastest, for each variant. `run` "
    "checks\n"
    "  it and does not use it.\n"
    "\n"
    "`bench`, `ablate` and `probe` refuse a file with `job.output`. `job.input` is not for "
    "`probe`,\n"
    "which tries many lengths, and `memory.pool.log` for `run` and `bench` alone (`plan` ignores "
    "it).\n";

/* A bar would end the cell. */
static void cell_print(const char *text)
{
    for (; *text != '\0'; text++)
        printf(*text == '|' ? "\\|" : "%c", *text);
}

static void markdown_print(void)
{
    char section[64] = "";
    fputs(markdown_head, stdout);
    for (int i = 0; i < ra_config_key_count; i++) {
        const ra_config_key *key = &ra_config_keys[i];
        char expects[200];
        size_t const length = strcspn(key->path, ".");
        if (strlen(section) != length || strncmp(section, key->path, length) != 0) {
            snprintf(section, sizeof(section), "%.*s", (int)length, key->path);
            printf("\n## %s\n\n| key | value | default | meaning |\n|---|---|---|---|\n", section);
        }
        ra_config_key_expects(key, expects, sizeof(expects));
        printf("| `%s` | %s | `%s` | ", key->path, expects, default_shown(key));
        cell_print(key->help);
        printf(" |\n");
    }
}

void ra_config_print_help(bool markdown)
{
    if (markdown)
        markdown_print();
    else
        text_print();
}
