/* What must hold between keys, once the shape is known. */
#include "bytes_text.h"
#include "config_layer.h"
#include "documents.h"
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>

ra_status ra_config_refuse(const ra_config *config, const char *path, const char *format, ...)
{
    char what[400];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    int const index = ra_config_key_find(path);
    RA_ASSERT(index >= 0);
    const char *place = config->places[index];
    ra_log(RA_LOG_ERROR, "%s%s%s: %s", place != NULL ? place : "", place != NULL ? ": " : "", path,
           what);
    return RA_ERR_CONFIG;
}

/* What a combination of keys must not be, and the key that is to blame. */
typedef struct rule {
    bool broken;
    const char *path, *text;
} rule;

/* Refuse by the first broken rule. */
static ra_status rules_check(const ra_config *config, const rule *rules, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (rules[i].broken)
            return ra_config_refuse(config, rules[i].path, "%s", rules[i].text);
    }
    return RA_OK;
}

#define RULES_CHECK(config, rules) rules_check(config, rules, sizeof(rules) / sizeof((rules)[0]))

/* Those of linear attention are linear_check's. */
static ra_status groups_check(const ra_config *config)
{
    int32_t const groups = config->head_groups, heads = config->heads, keys = config->kv_heads;
    bool const standard = config->attention_kind == RA_ATTENTION_STANDARD;
    int32_t const most = standard ? heads : heads * RA_QUERY_PARTS_MAX;
    int32_t const unit = groups <= heads ? keys : heads;
    char to_heads[64] = "", beyond[96] = "; standard attention takes no more";
    if (ra_config_linear(config) != RA_LINEAR_NONE || groups <= keys ||
        (groups % unit == 0 && groups <= most))
        return RA_OK;
    int32_t const plain = keys == 1 ? heads : keys; /* all up to it are multiples */
    if (plain != heads)
        snprintf(to_heads, sizeof(to_heads), ", or a multiple of that up to %d", heads);
    if (!standard)
        snprintf(beyond, sizeof(beyond), ", or a multiple of %d up to %d", heads, most);
    return ra_config_refuse(config, "ring.head_groups",
                            "%d groups of %d head%s, %d for keys and values: must be 1 to %d%s%s",
                            groups, heads, ra_plural(heads), keys, plain, to_heads, beyond);
}

static ra_status heads_check(const ra_config *config)
{
    if (config->heads % config->kv_heads != 0)
        return ra_config_refuse(config,
                                ra_config_was_given(config, "shape.kv_heads") ? "shape.kv_heads"
                                                                              : "shape.heads",
                                "shape.heads (%d) must be a multiple of shape.kv_heads (%d)",
                                config->heads, config->kv_heads);
    if (config->rounds > 1 && config->schedule == RA_SCHEDULE_RING)
        return ra_config_refuse(config, "ring.rounds",
                                "does not go with ring.schedule: ring, which has one: take auto");
    return groups_check(config);
}

/*
 * Byte counts and pairs are int64: a job that overflows them is refused here, once. Pairs are those
 * of all queries with all keys: standard attention has these.
 */
static ra_status size_check(const ra_config *config, bool counts_pairs)
{
    const int64_t branches = ra_max_i64(config->pattern.branch_count, 1);
    bool const over_pairs = !ra_pairs_fit(config->batch, config->seq, config->heads, branches);
    bool const over_bytes =
        !ra_elements_fit(config->batch, config->seq, config->heads, config->head_dim);
    if (over_bytes)
        return ra_config_refuse(config, "shape.seq",
                                "too large to count: batch %lld * seq %lld * heads %d * head_dim "
                                "%d must be below 2^57",
                                (long long)config->batch, (long long)config->seq, config->heads,
                                config->head_dim);
    if (over_pairs && counts_pairs)
        return ra_config_refuse(config, "shape.seq",
                                "too large to count: batch %lld * seq %lld^2 * heads %d * branches "
                                "%lld must be below 2^61, however few pairs the pattern keeps",
                                (long long)config->batch, (long long)config->seq, config->heads,
                                (long long)branches);
    return RA_OK;
}

static ra_status documents_check(const ra_config *config)
{
    const ra_pattern_config *pattern = &config->pattern;
    int64_t const sum = ra_documents_tokens(pattern);
    if (pattern->documents != NULL && sum != config->seq)
        return ra_config_refuse(config, "pattern.documents",
                                "lengths sum to %lld, but shape.seq is %lld", (long long)sum,
                                (long long)config->seq);
    return RA_OK;
}

ra_linear_kind ra_config_linear(const ra_config *config)
{
    return config->attention_kind == RA_ATTENTION_LINEAR          ? RA_LINEAR_BIDIRECTIONAL
           : config->attention_kind == RA_ATTENTION_LINEAR_CAUSAL ? RA_LINEAR_CAUSAL
                                                                  : RA_LINEAR_NONE;
}

bool ra_config_wants_cpu(const ra_config *config)
{
    return config->backend == RA_BACKEND_CPU ||
           (config->backend == RA_BACKEND_AUTO && config->isa != RA_ISA_AUTO &&
            !ra_isa_is_gpus(config->isa));
}

/* Its own kinds decide which tokens are seen; rows are consecutive, and only states travel. */
static ra_status linear_check(const ra_config *config)
{
    if (ra_config_linear(config) == RA_LINEAR_NONE)
        return RA_OK;
    for (int i = 0; i < ra_config_key_count; i++) {
        const ra_config_key *key = &ra_config_keys[i];
        if (ra_key_is_in(key, "pattern") && !ra_config_is_default(config, key))
            return ra_config_refuse(config, key->path,
                                    "does not go with linear attention, which takes no pattern "
                                    "but that of its kind: linear or linear_causal");
    }
    bool const is_causal = ra_config_linear(config) == RA_LINEAR_CAUSAL;
    rule const rules[] = {
        {config->scale != 0, "shape.scale", "does not go with linear attention, which has none"},
        {config->mask != RA_MASK_ANALYTIC, "attention.mask",
         "does not go with linear attention, which has none"},
        {config->layout != RA_LAYOUT_CONTIGUOUS && config->layout != RA_LAYOUT_AUTO, "ring.layout",
         "linear attention takes contiguous or auto: its rows must follow one another"},
        {config->head_groups > config->kv_heads, "ring.head_groups",
         "linear attention takes at most shape.kv_heads, one for each state"},
        {config->backward && is_causal && config->linear_method != RA_LINEAR_CHUNKED,
         "attention.linear_method",
         "backward takes chunked: recurrent and cumsum are forward only"},
    };
    return RULES_CHECK(config, rules);
}

static ra_status ranks_check(const ra_config *config, int ranks)
{
    if (config->variant == RA_VARIANT_BASE && ranks > 1)
        return ra_config_refuse(config, "ring.variant", "base runs on one rank, not on %d", ranks);
    if (config->comm == RA_COMM_SELF && ranks > 1)
        return ra_config_refuse(config, "comm.backend", "self is for one rank, not for %d", ranks);
    return RA_OK;
}

ra_status ra_config_check_keys(const ra_config *config)
{
    const ra_pattern_config *pattern = &config->pattern;
    bool const has_segments = pattern->segments != NULL;
    rule const patterns[] = {
        {pattern->blocks_kind == RA_BLOCKS_LIST && config->input == NULL, "pattern.blocks.kind",
         "list takes its pairs from tensor 'blocks' of an input file: give job.input (--input)"},
        {has_segments != (pattern->rates != NULL),
         has_segments ? "pattern.dilated.segments" : "pattern.dilated.rates",
         "segments and rates go together: one rate per segment length"},
    };
    rule const machines[] = {
        {config->pool_mode == RA_POOL_DRIVER && config->backend != RA_BACKEND_CUDA,
         "memory.pool.mode",
         "driver is the pool of a CUDA device: set compute.backend: cuda, or use size_class or "
         "off"},
        {config->backend != RA_BACKEND_CUDA && ra_isa_is_gpus(config->isa), "compute.isa",
         "is a GPU's: set compute.backend: cuda, or compute.isa: auto"},
        /* NCCL moves only what lies on GPUs. */
        {config->comm == RA_COMM_NCCL && ra_config_wants_cpu(config), "comm.backend",
         "nccl is for GPUs, and the CPU was asked for: use auto or mpi"},
        {config->backend == RA_BACKEND_CUDA && config->isa != RA_ISA_AUTO &&
             !ra_isa_is_gpus(config->isa),
         "compute.isa", "is the CPU's, and contradicts compute.backend: cuda"},
    };
    ra_status status = RULES_CHECK(config, patterns);
    if (status == RA_OK && has_segments && pattern->branch_count != config->rate_count)
        return ra_config_refuse(config, "pattern.dilated.rates",
                                "%lld rates for %lld segment lengths: there must be one for each",
                                (long long)config->rate_count, (long long)pattern->branch_count);
    if (status == RA_OK)
        status = RULES_CHECK(config, machines);
    return status == RA_OK ? ra_config_check_effects(config) : status;
}

static ra_status check(ra_config *config, int ranks, bool counts_pairs)
{
    if (config->kv_heads == 0)
        config->kv_heads = config->heads;
    ra_status status = ra_config_check_keys(config);
    if (status == RA_OK)
        status = heads_check(config);
    if (status == RA_OK)
        status = size_check(config, counts_pairs);
    if (status == RA_OK)
        status = documents_check(config);
    if (status == RA_OK)
        status = linear_check(config);
    if (status == RA_OK)
        status = ranks_check(config, ranks);
    return status == RA_OK ? ra_config_settle_switches(config) : status;
}

ra_status ra_config_check(ra_config *config, int ranks)
{
    return check(config, ranks, true);
}

ra_status ra_config_check_plan(ra_config *config, int ranks)
{
    return check(config, ranks, false);
}
