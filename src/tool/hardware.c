/* Hardware files: one table of keys, read as configurations are, and written. */
#include "hardware.h"

#include "config_table.h"
#include "output_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(member)       .offset = offsetof(ra_hardware, member)
#define RANGE(low, high) .min = (low), .max = (high)
#define REALS(low, high) .real_min = (low), .real_max = (high)
#define REAL(path, member, most)                                                                   \
    {                                                                                              \
        path, RA_KEY_REAL, NULL, NULL, AT(member), REALS(0, most)                                  \
    }
#define SPEED_OF(path, speed)                                                                      \
    REAL(path ".efficiency", speed.efficiency, 1), REAL(path ".start_us", speed.start_us, 1e9),    \
        REAL(path ".pair_ns", speed.pair_ns, 1e9),                                                 \
        REAL(path ".row_element_ns", speed.row_element_ns, 1e9),                                   \
        REAL(path ".key_element_ns", speed.key_element_ns, 1e9)
#define SPEEDS(path, work, backward)                                                               \
    SPEED_OF(path ".f32", speeds[work][backward][RA_F32]),                                         \
        SPEED_OF(path ".f16", speeds[work][backward][RA_F16]),                                     \
        SPEED_OF(path ".bf16", speeds[work][backward][RA_BF16])

/* clang-format off */
static const ra_config_key keys[] = {
    {"name", RA_KEY_TEXT, NULL, NULL, AT(name)},
    {"ranks", RA_KEY_INT32, NULL, NULL, AT(ranks), RANGE(1, RA_PREDICT_RANKS_MAX)},
    {"ranks_per_node", RA_KEY_INT32, NULL, NULL, AT(ranks_per_node),
     RANGE(1, RA_PREDICT_RANKS_MAX)},
    {"shares_memory", RA_KEY_BOOL, NULL, NULL, AT(shares_memory)},
    {"memory", RA_KEY_BYTES, NULL, NULL, AT(memory_bytes), RANGE(1, INT64_MAX / 4)},
    REAL("memory_gb_per_s", memory_gb_per_s, 1e9),
    {"cache", RA_KEY_BYTES, NULL, NULL, AT(cache_bytes), RANGE(1, INT64_MAX / 4)},
    {"threads", RA_KEY_INT32, NULL, NULL, AT(threads), RANGE(1, 4096)},
    {"multiprocessors", RA_KEY_INT32, NULL, NULL, AT(multiprocessors), RANGE(1, 1 << 16)},
    REAL("compute_capability", compute_capability, 100),
    {"context", RA_KEY_BYTES, NULL, NULL, AT(context_bytes), RANGE(0, INT64_MAX / 4)},
    REAL("peak_tflops.f32", peak_tflops[RA_F32], 1e9),
    REAL("peak_tflops.f16", peak_tflops[RA_F16], 1e9),
    REAL("peak_tflops.bf16", peak_tflops[RA_BF16], 1e9),
    SPEEDS("forward", RA_WORK_FLASH, 0), SPEEDS("backward", RA_WORK_FLASH, 1),
    SPEEDS("standard.forward", RA_WORK_STANDARD, 0),
    SPEEDS("standard.backward", RA_WORK_STANDARD, 1),
    SPEEDS("linear.forward", RA_WORK_LINEAR, 0), SPEEDS("linear.backward", RA_WORK_LINEAR, 1),
    SPEEDS("chunked.forward", RA_WORK_CHUNKED, 0), SPEEDS("chunked.backward", RA_WORK_CHUNKED, 1),
    SPEEDS("recurrent.forward", RA_WORK_RECURRENT, 0),
    SPEEDS("cumsum.forward", RA_WORK_CUMSUM, 0),
    REAL("node.gb_per_s", node.gb_per_s, 1e9),
    REAL("node.latency_us", node.latency_us, 1e9),
    REAL("network.gb_per_s", network.gb_per_s, 1e9),
    REAL("network.latency_us", network.latency_us, 1e9),
};
/* clang-format on */

enum { KEY_COUNT = sizeof(keys) / sizeof(keys[0]), PATH_MAX_BYTES = 160 };

/* What a file says that has none of the keys. */
static const ra_hardware unknown = {0};

/* What is being read; a key may be given once, with dots or in sections. */
typedef struct reading {
    ra_yaml yaml;
    ra_hardware hardware;
    bool given[KEY_COUNT];
} reading;

static ra_status refuse_key(const ra_yaml *yaml, const ra_yaml_node *node, const char *path)
{
    char shown[48];
    ra_nearest nearest = ra_nearest_begin(path);
    ra_keys_offer(keys, KEY_COUNT, &nearest);
    bool const is_near = nearest.name[0] != '\0';
    return ra_yaml_refuse(yaml, node->key_line, node->key_column,
                          "%s: unknown key of a hardware file%s%s%s", ra_text_shown(path, shown),
                          is_near ? "; did you mean '" : "", nearest.name, is_near ? "'?" : "");
}

static ra_status read_key(reading *r, const ra_yaml_node *node, const char *path)
{
    char problem[RA_VALUE_PROBLEM_MAX];
    const ra_yaml_node *at;
    ra_config_value value;
    int const i = ra_keys_find(keys, KEY_COUNT, path);
    if (i < 0)
        return refuse_key(&r->yaml, node, path);
    if (r->given[i])
        return ra_yaml_refuse(&r->yaml, node->key_line, node->key_column, "%s: duplicate key",
                              path);
    r->given[i] = true;
    ra_status const status = ra_config_value_read(&keys[i], node, &value, &at, problem);
    if (status != RA_OK) {
        (void)ra_yaml_refuse(&r->yaml, at->line, at->column, "%s: %s", path, problem);
    } else if (keys[i].type == RA_KEY_TEXT) { /* the name, which is an array */
        snprintf(r->hardware.name, sizeof(r->hardware.name), "%s",
                 value.text != NULL ? value.text : "");
        ra_text_mend(r->hardware.name);
        free(value.text);
    } else {
        ra_config_value_store(&keys[i], &value, &r->hardware);
    }
    return status;
}

/* Recursion is bounded: it ends at paths that are no section. */
static ra_status read_mapping(reading *r, const ra_yaml_node *mapping, const char *prefix)
{
    ra_status status = RA_OK;
    for (const ra_yaml_node *node = mapping->first; node != NULL && status == RA_OK;
         node = node->next) {
        char path[PATH_MAX_BYTES];
        snprintf(path, sizeof(path), "%s%s%s", prefix, prefix[0] != '\0' ? "." : "", node->key);
        if (!ra_keys_have_section(keys, KEY_COUNT, path))
            status = read_key(r, node, path);
        else if (node->kind == RA_YAML_MAPPING)
            status = read_mapping(r, node, path);
        else
            status = ra_keys_refuse_section(&r->yaml, node, path);
    }
    return status;
}

static ra_status parse(const char *name, const char *text, size_t bytes, ra_hardware *hardware_out)
{
    reading r = {.hardware = unknown};
    ra_status status = ra_yaml_init(name, true, text, bytes, &r.yaml);
    if (status != RA_OK)
        return status;
    if (r.yaml.root->kind == RA_YAML_MAPPING) {
        status = read_mapping(&r, r.yaml.root, "");
    } else {
        ra_log(RA_LOG_ERROR, "%s: a hardware file is a mapping of keys to values", name);
        status = RA_ERR_CONFIG;
    }
    ra_yaml_fini(&r.yaml);
    if (r.hardware.ranks_per_node == 0)
        r.hardware.ranks_per_node = r.hardware.ranks;
    if (status == RA_OK)
        *hardware_out = r.hardware;
    return status;
}

ra_status ra_hardware_load(const char *path, ra_hardware *hardware_out)
{
    char *text;
    size_t bytes;
    ra_status status = ra_config_read_file("hardware file", path, &text, &bytes);
    if (status != RA_OK)
        return status;
    status = parse(path, text, bytes, hardware_out);
    free(text);
    return status;
}

ra_status ra_hardware_check(const char *path, const ra_hardware *hardware)
{
    for (int i = 0; i < KEY_COUNT; i++) {
        const ra_config_key *key = &keys[i];
        ra_config_value const value = ra_config_value_get(key, hardware);
        if ((key->type == RA_KEY_REAL && !(value.real <= key->real_max)) ||
            (key->type == RA_KEY_BYTES && value.integer > key->max)) {
            ra_log(RA_LOG_ERROR, "%s: by what it has measured, %s is more than a machine has", path,
                   key->path);
            return RA_ERR_IO;
        }
    }
    return RA_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* A name may hold anything: in double quotes, with what would end them escaped. */
static void write_name(ra_output *out, const char *name)
{
    ra_output_put(out, "name: \"");
    for (const char *c = name; *c != '\0'; c++) {
        ra_output_put(out, "%s%c", *c == '"' || *c == '\\' ? "\\" : "",
                      (unsigned char)*c < ' ' ? ' ' : *c);
    }
    ra_output_put(out, "\"\n");
}

static void write_value(ra_output *out, const ra_config_key *key, ra_config_value value)
{
    if (key->type == RA_KEY_BOOL)
        ra_output_put(out, "%s", value.flag ? "true" : "false");
    else if (key->type == RA_KEY_REAL)
        ra_output_put(out, "%.4g", value.real);
    else
        ra_output_put(out, "%lld",
                      key->type == RA_KEY_INT32 ? value.narrow : (long long)value.integer);
}

/* The bytes of a key's section, as "node" of "node.gb_per_s"; 0: it has none. */
static size_t section_bytes(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot != NULL ? (size_t)(dot - path) : 0;
}

/* A section is one line. What is as in a file that is silent about it is not written. */
static void write_keys(ra_output *out, const ra_hardware *hardware)
{
    const char *section = "";
    size_t open = 0; /* bytes of the section that is open; 0: none is */
    for (int i = 0; i < KEY_COUNT; i++) {
        const char *path = keys[i].path;
        size_t const bytes = section_bytes(path);
        bool const goes_on = open > 0 && bytes == open && memcmp(path, section, bytes) == 0;
        ra_config_value const value = ra_config_value_get(&keys[i], hardware);
        ra_config_value const silent = ra_config_value_get(&keys[i], &unknown);
        if (keys[i].type == RA_KEY_TEXT || ra_config_value_equals(&keys[i], &value, &silent))
            continue;
        if (open > 0)
            ra_output_put(out, "%s", goes_on ? ", " : "}\n");
        if (bytes > 0 && !goes_on)
            ra_output_put(out, "%.*s: {", (int)bytes, path);
        ra_output_put(out, "%s: ", path + bytes + (bytes > 0));
        write_value(out, &keys[i], value);
        if (bytes == 0)
            ra_output_put(out, "\n");
        section = path;
        open = bytes;
    }
    if (open > 0)
        ra_output_put(out, "}\n");
}

ra_status ra_hardware_save(const char *path, const char *comment, const ra_hardware *hardware)
{
    ra_output output;
    ra_status const status = ra_output_open(&output, path, "--save: ", "cannot be written");
    if (status != RA_OK)
        return status;
    ra_output_put(&output, "# %s\n", comment);
    if (hardware->name[0] != '\0')
        write_name(&output, hardware->name);
    write_keys(&output, hardware);
    return ra_output_close(&output, true);
}
