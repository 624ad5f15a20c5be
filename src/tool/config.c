#include "config.h"

#include "config_layer.h"
#include "internal.h"
#include "nearest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES_MAX = 128, SET_SHOWN_MAX = 120 };

/* Sections that contain other keys: --set, variants and sweeps cannot name them. */
static bool is_of_file(const char *name)
{
    return strcmp(name, "variants") == 0 || strcmp(name, "sweep") == 0;
}

static ra_status refuse_unknown(const ra_config_layer *layer, const ra_yaml_node *node,
                                const char *path)
{
    char shown[48];
    ra_nearest near = ra_nearest_begin(path);
    if (is_of_file(path))
        return ra_yaml_refuse(layer->yaml, node->key_line, node->key_column,
                              "%s: belongs at the top of a configuration file only", path);
    ra_keys_offer(ra_config_keys, ra_config_key_count, &near);
    ra_nearest_offer(&near, "variants");
    ra_nearest_offer(&near, "sweep");
    if (near.name[0] != '\0')
        return ra_yaml_refuse(layer->yaml, node->key_line, node->key_column,
                              "%s: unknown key; did you mean '%s'?", ra_text_shown(path, shown),
                              near.name);
    return ra_yaml_refuse(layer->yaml, node->key_line, node->key_column,
                          "%s: unknown key; 'ringattn run --help-config' lists them",
                          ra_text_shown(path, shown));
}

ra_status ra_config_default_apply(ra_config *config, int index, const char *text)
{
    const ra_config_key *key = &ra_config_keys[index];
    ra_config_value value = {0};
    char problem[RA_VALUE_PROBLEM_MAX];
    const ra_yaml_node *at = NULL;
    if (text != NULL) {
        ra_yaml_node const node = {.kind = RA_YAML_SCALAR, .text = text};
        ra_status const status = ra_config_value_read(key, &node, &value, &at, problem);
        if (status != RA_OK) {
            ra_log(RA_LOG_ERROR, "default of %s: %s", key->path, problem);
            return RA_ERR_INTERNAL;
        }
    }
    ra_config_value_store(key, &value, config);
    free(config->places[index]);
    config->places[index] = NULL;
    return RA_OK;
}

/* Give a key its default, as if nobody had named it. */
static ra_status key_reset(ra_config *config, int index)
{
    return ra_config_default_apply(config, index, ra_config_keys[index].default_text);
}

static ra_status place_set(ra_config *config, int index, const char *place)
{
    char *copy = strdup(place);
    if (copy == NULL)
        return ra_refuse_memory(place);
    free(config->places[index]);
    config->places[index] = copy;
    return RA_OK;
}

static ra_status value_read(const ra_config_layer *layer, const ra_config_key *key,
                            const ra_yaml_node *node, ra_config_value *value_out)
{
    char problem[RA_VALUE_PROBLEM_MAX];
    const ra_yaml_node *at = NULL;
    ra_status const status = ra_config_value_read(key, node, value_out, &at, problem);
    /* Several values of a key that has one: perhaps a sweep was meant. */
    bool const several = node->kind == RA_YAML_SEQUENCE && key->type != RA_KEY_LIST;
    const char *hint = "; lists of values belong in the file's section sweep";
    if (status != RA_OK)
        (void)ra_yaml_refuse(layer->yaml, at->line, at->column, "%s: %s%s", key->path, problem,
                             several && !layer->sweeps ? hint : "");
    return status;
}

/* Check every value of a sweep's list; which one applies is decided later. */
static ra_status sweep_check(ra_config_layer *layer, int index, const ra_yaml_node *node)
{
    const ra_config_key *key = &ra_config_keys[index];
    if (node->kind != RA_YAML_SEQUENCE || node->first == NULL)
        return ra_yaml_refuse(layer->yaml, node->line, node->column,
                              "sweep: %s: expected a list of values, one per point", key->path);
    for (const ra_yaml_node *item = node->first; item != NULL; item = item->next) {
        ra_config_value value = {0};
        if (item->kind == RA_YAML_NULL)
            continue;
        ra_status const status = value_read(layer, key, item, &value);
        if (status != RA_OK)
            return status;
        ra_config_value_free(key, &value);
    }
    layer->lists[layer->config->sweep_key_count] = node;
    layer->config->sweep_keys[layer->config->sweep_key_count++] = index;
    return RA_OK;
}

ra_status ra_config_value_apply(const ra_config_layer *layer, int index, const ra_yaml_node *node,
                                int line, int column)
{
    const ra_config_key *key = &ra_config_keys[index];
    ra_config_value value = {0};
    char place[RA_YAML_PLACE_MAX];
    layer->config->layers[index] = layer->config->layer;
    if (node->kind == RA_YAML_NULL)
        return key_reset(layer->config, index);
    ra_status const status = value_read(layer, key, node, &value);
    if (status != RA_OK)
        return status;
    ra_config_value_store(key, &value, layer->config);
    ra_yaml_place(layer->yaml, line, column, place);
    return place_set(layer->config, index, place);
}

static ra_status key_apply(ra_config_layer *layer, int index, const ra_yaml_node *node)
{
    if (layer->given[index])
        return ra_yaml_refuse(layer->yaml, node->key_line, node->key_column, "%s: duplicate key",
                              ra_config_keys[index].path);
    layer->given[index] = true;
    return layer->sweeps
               ? sweep_check(layer, index, node)
               : ra_config_value_apply(layer, index, node, node->key_line, node->key_column);
}

/* A key that the same layer has given before would be lost: an empty section may be an oversight.
 */
static ra_status section_reset(const ra_config_layer *layer, const char *path,
                               const ra_yaml_node *node)
{
    ra_status status = RA_OK;
    for (int i = 0; i < ra_config_key_count && status == RA_OK; i++) {
        const char *key = ra_config_keys[i].path;
        if (!ra_key_is_in(&ra_config_keys[i], path))
            continue;
        if (layer->given[i])
            return ra_yaml_refuse(layer->yaml, node->key_line, node->key_column,
                                  "%s: null would undo %s, given before it", path, key);
        status = ra_config_value_apply(layer, i, node, node->line, node->column);
    }
    return status;
}

/* One key path and its value: a key, or a section with keys below it. */
static ra_status path_apply(ra_config_layer *layer, const char *path, const ra_yaml_node *node)
{
    int const index = ra_config_key_find(path);
    if (index >= 0)
        return key_apply(layer, index, node);
    if (!ra_keys_have_section(ra_config_keys, ra_config_key_count, path))
        return refuse_unknown(layer, node, path);
    if (node->kind == RA_YAML_MAPPING)
        return ra_config_members_apply(layer, node, path);
    if (node->kind == RA_YAML_NULL)
        return layer->sweeps ? RA_OK : section_reset(layer, path, node);
    return ra_keys_refuse_section(layer->yaml, node, path);
}

/* Recursion is bounded: it ends at paths that are no section. */
ra_status ra_config_members_apply(ra_config_layer *layer, const ra_yaml_node *mapping,
                                  const char *prefix)
{
    ra_status status = RA_OK;
    for (const ra_yaml_node *node = mapping->first; node != NULL && status == RA_OK;
         node = node->next) {
        char path[PATH_BYTES_MAX];
        bool const top = prefix[0] == '\0';
        if (top && mapping == layer->yaml->root && is_of_file(node->key))
            continue; /* other functions read these */
        /* No key or section is so long that one that is cut here would be another. */
        snprintf(path, sizeof(path), "%s%s%s", prefix, top ? "" : ".", node->key);
        status = path_apply(layer, path, node);
    }
    return status;
}

static ra_status mapping_apply(const ra_yaml *yaml, ra_config *config, const ra_yaml_node *node,
                               const char *what)
{
    ra_config_layer layer = {.yaml = yaml, .config = config};
    if (node->kind == RA_YAML_NULL)
        return RA_OK;
    if (node->kind != RA_YAML_MAPPING)
        return ra_yaml_refuse(layer.yaml, node->line, node->column, "%s: expected keys and values",
                              what);
    return ra_config_members_apply(&layer, node, "");
}

const ra_yaml_node *ra_config_member_find(const ra_yaml_node *mapping, const char *key)
{
    if (mapping->kind != RA_YAML_MAPPING)
        return NULL;
    for (const ra_yaml_node *node = mapping->first; node != NULL; node = node->next) {
        if (strcmp(node->key, key) == 0)
            return node;
    }
    return NULL;
}

static ra_status defaults_set(ra_config *config)
{
    ra_status status = RA_OK;
    for (int i = 0; i < ra_config_key_count && status == RA_OK; i++)
        status = key_reset(config, i);
    return status;
}

static ra_status variant_add(ra_config *config, const char *name)
{
    size_t const count = (size_t)config->variant_count + 1;
    char **names = realloc(config->variants, count * sizeof(*names));
    char *copy = strdup(name);
    if (names != NULL)
        config->variants = names;
    if (names == NULL || copy == NULL) {
        free(copy);
        return ra_refuse_memory("the variants");
    }
    names[config->variant_count++] = copy;
    return RA_OK;
}

static ra_status variant_refuse(const ra_config *config, const char *file, const char *wanted,
                                const char *nearest)
{
    char shown[48], name[48], hint[300] = "variants are a section of the --config file";
    if (nearest[0] != '\0')
        snprintf(hint, sizeof(hint), "did you mean '%s'?", ra_text_shown(nearest, name));
    else if (strcmp(wanted, "base") == 0 || strcmp(wanted, "ring") == 0)
        snprintf(hint, sizeof(hint), "for %s itself give --set ring.variant=%s", wanted, wanted);
    else if (config->variant_count > 0)
        snprintf(hint, sizeof(hint), "its first is '%s'", ra_text_shown(config->variants[0], name));
    ra_log(RA_LOG_ERROR, "--variant %s: %.600s has no such variant; %s",
           ra_text_shown(wanted, shown), file, hint);
    return RA_ERR_CONFIG;
}

/* Check every variant on a scratch configuration; apply the requested one. */
static ra_status variants_apply(const ra_yaml *yaml, ra_config *config, const char *wanted)
{
    const ra_yaml_node *variants = ra_config_member_find(yaml->root, "variants");
    const ra_yaml_node *chosen = NULL;
    ra_nearest nearest = ra_nearest_begin(wanted != NULL ? wanted : "");
    if (variants != NULL && variants->kind != RA_YAML_MAPPING && variants->kind != RA_YAML_NULL)
        return ra_yaml_refuse(yaml, variants->line, variants->column,
                              "variants: expected names, each with keys and values");
    for (const ra_yaml_node *node = variants != NULL ? variants->first : NULL; node != NULL;
         node = node->next) {
        ra_config scratch = {0};
        ra_status status = mapping_apply(yaml, &scratch, node, "variants");
        ra_config_fini(&scratch);
        if (status != RA_OK)
            return status;
        status = variant_add(config, node->key);
        if (status != RA_OK)
            return status;
        ra_nearest_offer(&nearest, node->key);
        if (wanted != NULL && strcmp(wanted, node->key) == 0)
            chosen = node;
    }
    if (wanted == NULL)
        return RA_OK;
    if (chosen != NULL)
        return mapping_apply(yaml, config, chosen, "variants");
    return variant_refuse(config, yaml->name, wanted, nearest.name);
}

/* "a.b=c": the value is YAML, as it would stand in the file. */
ra_status ra_config_set_apply(ra_config *config, const char *giver, const char *set)
{
    char name[SET_SHOWN_MAX], path[PATH_BYTES_MAX];
    const char *equals = strchr(set, '=');
    snprintf(name, sizeof(name), "%s %s", giver, set);
    ra_yaml yaml = {.name = name};
    ra_config_layer layer = {.yaml = &yaml, .config = config};
    if (equals == NULL || equals == set)
        return ra_yaml_refuse(layer.yaml, 0, 0, "expected KEY=VALUE, as in shape.seq=64K");
    char const first = equals[1 + strspn(equals + 1, " \t\r\n")];
    if (first == '\0' || first == '#') /* nothing but a comment */
        return ra_yaml_refuse(layer.yaml, 0, 0, "no value; null gives a key its default");
    snprintf(path, sizeof(path), "%.*s", (int)(equals - set), set);
    ra_status status = ra_yaml_init(name, false, equals + 1, strlen(equals + 1), &yaml);
    if (status != RA_OK)
        return status;
    status = path_apply(&layer, path, yaml.root);
    ra_yaml_fini(&yaml);
    return status;
}

/* To the key the word is no file; to an option it is one like others. */
static const char *file_named(const char *given)
{
    return given != NULL && strcmp(given, "none") == 0 ? "./none" : given;
}

ra_status ra_config_options_apply(ra_config *config, const ra_config_source *source)
{
    struct {
        const char *path, *option, *text;
    } const given[] = {
        {"job.input", "--input", file_named(source->input)},
        {"job.output", "--output", file_named(source->output)},
        {"job.backward", "--backward", source->backward ? "true" : NULL},
        {"job.verify", "--verify", source->verify ? "true" : NULL},
    };
    ra_status status = RA_OK;
    for (size_t i = 0; i < sizeof(given) / sizeof(given[0]) && status == RA_OK; i++) {
        ra_yaml const yaml = {.name = given[i].option};
        ra_config_layer layer = {.yaml = &yaml, .config = config};
        ra_yaml_node const node = {.kind = RA_YAML_SCALAR, .text = given[i].text};
        if (given[i].text != NULL)
            status = key_apply(&layer, ra_config_key_find(given[i].path), &node);
    }
    return status;
}

static ra_status layers_apply(const ra_yaml *yaml, const ra_config_source *source,
                              ra_config *config)
{
    const ra_feature_set *features = source->pick.features;
    ra_status status = defaults_set(config);
    config->layer = 1;
    if (status == RA_OK)
        status = mapping_apply(yaml, config, yaml->root, "configuration");
    config->layer++;
    if (status == RA_OK)
        status = variants_apply(yaml, config, source->pick.variant);
    config->layer++;
    if (status == RA_OK)
        status = ra_config_sweep_apply(yaml, source, config);
    config->layer++;
    if (status == RA_OK && features != NULL)
        status = ra_config_features_apply(features, config);
    config->layer++;
    for (int i = 0; i < source->set_count && status == RA_OK; i++)
        status = ra_config_set_apply(config, "--set", source->sets[i]);
    if (status == RA_OK && features != NULL)
        status = ra_config_features_hold(features, config);
    config->layer++;
    if (status == RA_OK)
        status = ra_config_options_apply(config, source);
    if (status == RA_OK)
        status = ra_config_reset_replaced(config);
    if (status == RA_OK && config->kv_heads == 0 && config->input == NULL)
        config->kv_heads = config->heads;
    return status == RA_OK && source->pick.sweep_point == 0 ? ra_config_check_keys(config) : status;
}

ra_status ra_config_parse(const char *name, bool has_lines, const char *text, size_t bytes,
                          const ra_config_source *source, ra_config *config_out)
{
    ra_config_source const nothing = {0};
    ra_config config = {0};
    ra_yaml yaml = {0};
    ra_status status = ra_yaml_init(name, has_lines, text, bytes, &yaml);
    if (status != RA_OK)
        return status;
    status = layers_apply(&yaml, source != NULL ? source : &nothing, &config);
    ra_yaml_fini(&yaml);
    if (status != RA_OK) {
        ra_config_fini(&config);
        return status;
    }
    *config_out = config;
    return RA_OK;
}

void ra_config_fini(ra_config *config)
{
    for (int i = 0; i < ra_config_key_count; i++) {
        ra_config_value value = ra_config_value_get(&ra_config_keys[i], config);
        ra_config_value_free(&ra_config_keys[i], &value);
        free(config->places[i]);
    }
    for (int i = 0; i < config->variant_count; i++)
        free(config->variants[i]);
    free(config->variants);
    *config = (ra_config){0};
}

bool ra_config_was_given(const ra_config *config, const char *key)
{
    int const index = ra_config_key_find(key);
    RA_ASSERT(index >= 0);
    return config->places[index] != NULL;
}
