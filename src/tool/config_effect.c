/*
 * Options of features that are off. The user expects an option to have an effect, so one without is
 * refused, not ignored. If what switches it off was given over the option (a variant's, a sweep's
 * or --set's key over the file's), the option was meant for what that replaces: it gets its
 * default.
 *
 * Options of a feature are allowed at their defaults, since a report's configuration lists every
 * key, and where only some points of a sweep switch the feature off. Switches say whether a job has
 * a feature at all: where it cannot, one that asks for it is refused, and a default is dropped.
 */
#include "config_layer.h"

/* By which key a feature is off, and how a message says so; key NULL: it is on. */
typedef struct cause {
    const char *key, *text;
} cause;

static const cause on = {NULL, NULL};

static cause keys_stay(const ra_config *config)
{
    if (config->variant == RA_VARIANT_BASE)
        return (cause){"ring.variant", "with ring.variant: base, which sends no keys"};
    if (ra_config_linear(config) != RA_LINEAR_NONE)
        return (cause){"attention.kind", "with linear attention, which sends no keys"};
    return on;
}

static cause pool_none(const ra_config *config)
{
    return config->variant == RA_VARIANT_BASE
               ? (cause){"ring.variant", "with ring.variant: base, which keeps no freed memory"}
               : on;
}

static cause pool_off(const ra_config *config)
{
    if (config->variant != RA_VARIANT_BASE && config->pool_mode == RA_POOL_OFF)
        return (cause){"memory.pool.mode", "with memory.pool.mode: off, which keeps nothing"};
    return pool_none(config);
}

static cause cache_none(const ra_config *config)
{
    if (config->variant == RA_VARIANT_BASE)
        return (cause){"ring.variant", "with ring.variant: base, which has no pattern cache"};
    if (ra_config_linear(config) != RA_LINEAR_NONE)
        return (cause){"attention.kind", "with linear attention, which has no tile maps"};
    if (config->mask == RA_MASK_DENSE_BLOCKS)
        return (cause){"attention.mask", "with attention.mask: dense_blocks, which is never kept"};
    return on;
}

static cause cache_off(const ra_config *config)
{
    cause const none = cache_none(config);
    if (none.key == NULL && config->cache_mode == RA_CACHE_OFF)
        return (cause){"memory.pattern_cache.mode", "with memory.pattern_cache.mode: off"};
    return none;
}

static cause density_off(const ra_config *config)
{
    return config->pattern.blocks_kind == RA_BLOCKS_DILATED_SPARSE &&
                   config->pattern.block_rates != NULL
               ? (cause){"pattern.blocks.rates", "with pattern.blocks.rates"}
               : on;
}

static cause dilated_off(const ra_config *config)
{
    return config->pattern.segments == NULL
               ? (cause){"pattern.dilated.segments", "without pattern.dilated.segments and rates"}
               : on;
}

static cause method_off(const ra_config *config)
{
    return ra_config_linear(config) != RA_LINEAR_CAUSAL
               ? (cause){"attention.kind", "without attention.kind: linear_causal"}
               : on;
}

static cause isa_off(const ra_config *config)
{
    return config->attention_kind == RA_ATTENTION_STANDARD
               ? (cause){"attention.kind",
                         "with attention.kind: standard, which computes with OpenBLAS or cuBLAS"}
               : on;
}

enum {
    LOCAL = 1 << RA_BLOCKS_LOCAL_WINDOW,
    DILATED = 1 << RA_BLOCKS_DILATED_SPARSE,
    GLOBAL = 1 << RA_BLOCKS_GLOBAL_LOCAL,
    RANDOM = 1 << RA_BLOCKS_RANDOM,
    BLOCKS = LOCAL | DILATED | GLOBAL | RANDOM | 1 << RA_BLOCKS_LIST,
    ANY = BLOCKS | 1 << RA_BLOCKS_NONE
};

static const struct {
    const char *path;
    int kinds;                             /* of blocks that it is for, a bit each */
    cause (*off)(const ra_config *config); /* NULL: kinds of blocks alone decide */
    const char *none;                      /* of a switch: asks for nothing */
    bool default_asks;                     /* of a switch: for the feature */
} options[] = {{"ring.schedule", ANY, keys_stay, "auto", false},
               {"ring.rounds", ANY, keys_stay, "1", false},
               {"ring.comm_buffers", ANY, keys_stay, "0", true},
               {"memory.pool.mode", ANY, pool_none, "off", true},
               {"memory.pool.trim", ANY, pool_off, NULL, false},
               {"memory.pattern_cache.mode", ANY, cache_none, "off", true},
               {"memory.pattern_cache.entries", ANY, cache_off, NULL, false},
               {"memory.pattern_cache.bytes", ANY, cache_off, NULL, false},
               {"pattern.blocks.size", BLOCKS, NULL, NULL, false},
               {"pattern.blocks.width", LOCAL | GLOBAL, NULL, NULL, false},
               {"pattern.blocks.rates", DILATED, NULL, NULL, false},
               {"pattern.blocks.density", DILATED | RANDOM, density_off, NULL, false},
               {"pattern.blocks.globals", GLOBAL, NULL, NULL, false},
               {"pattern.blocks.seed", RANDOM, NULL, NULL, false},
               {"pattern.dilated.heads", ANY, dilated_off, NULL, false},
               {"attention.linear_method", ANY, method_off, NULL, false},
               {"compute.isa", ANY, isa_off, NULL, false}};

/* By what option number `i` is off. */
static cause cause_of(const ra_config *config, size_t i)
{
    static const char *const with[] = {
        [RA_BLOCKS_NONE] = "without pattern.blocks.kind",
        [RA_BLOCKS_LOCAL_WINDOW] = "with pattern.blocks.kind: local_window",
        [RA_BLOCKS_DILATED_SPARSE] = "with pattern.blocks.kind: dilated_sparse",
        [RA_BLOCKS_GLOBAL_LOCAL] = "with pattern.blocks.kind: global_local",
        [RA_BLOCKS_RANDOM] = "with pattern.blocks.kind: random",
        [RA_BLOCKS_LIST] = "with pattern.blocks.kind: list"};
    ra_blocks_kind const kind = config->pattern.blocks_kind;
    if ((options[i].kinds & 1 << kind) == 0)
        return (cause){"pattern.blocks.kind", with[kind]};
    return options[i].off != NULL ? options[i].off(config) : on;
}

bool ra_config_holds(const ra_config *config, const ra_config_key *key, const char *text)
{
    ra_yaml_node const node = {.kind = RA_YAML_SCALAR, .text = text};
    char problem[RA_VALUE_PROBLEM_MAX];
    const ra_yaml_node *at;
    ra_config_value const held = ra_config_value_get(key, config);
    ra_config_value value = {0};
    if (text != NULL && ra_config_value_read(key, &node, &value, &at, problem) != RA_OK)
        return false;
    return ra_config_value_equals(key, &held, &value);
}

bool ra_config_is_default(const ra_config *config, const ra_config_key *key)
{
    return ra_config_holds(config, key, key->default_text);
}

static bool is_swept(const ra_config *config, const char *path)
{
    int const index = ra_config_key_find(path);
    bool found = false;
    for (int i = 0; i < config->sweep_key_count; i++)
        found = found || config->sweep_keys[i] == index;
    return found;
}

static bool asks(const ra_config *config, size_t i)
{
    const ra_config_key *key = &ra_config_keys[ra_config_key_find(options[i].path)];
    if (options[i].none != NULL && ra_config_holds(config, key, options[i].none))
        return false;
    return options[i].default_asks ? ra_config_was_given(config, key->path)
                                   : !ra_config_is_default(config, key);
}

/* Why option number `i` has no effect; `on` where it has, or asks for none. */
static cause without_effect(const ra_config *config, size_t i)
{
    return asks(config, i) ? cause_of(config, i) : on;
}

ra_status ra_config_reset_replaced(ra_config *config)
{
    ra_status status = RA_OK;
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]) && status == RA_OK; i++) {
        int const index = ra_config_key_find(options[i].path);
        cause const why = without_effect(config, i);
        if (why.key != NULL && config->layers[index] < config->layers[ra_config_key_find(why.key)])
            status = ra_config_default_apply(config, index, ra_config_keys[index].default_text);
    }
    return status;
}

static ra_status refuse(const ra_config *config, size_t i, cause why)
{
    return ra_config_refuse(config, options[i].path, "has no effect %s", why.text);
}

ra_status ra_config_check_effects(const ra_config *config)
{
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        cause const why = without_effect(config, i);
        if (options[i].none == NULL && why.key != NULL && !is_swept(config, why.key))
            return refuse(config, i, why);
    }
    return RA_OK;
}

ra_status ra_config_settle_switches(ra_config *config)
{
    ra_status status = RA_OK;
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]) && status == RA_OK; i++) {
        cause const why = options[i].none != NULL ? cause_of(config, i) : on;
        if (why.key != NULL && asks(config, i))
            status = refuse(config, i, why);
        else if (why.key != NULL && options[i].default_asks)
            status = ra_config_default_apply(config, ra_config_key_find(options[i].path),
                                             options[i].none);
    }
    return status;
}
