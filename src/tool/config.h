/*
 * The configuration of a job: one table of keys declares every key with its type, range, default
 * and help; YAML files, --set, --variant, --help-config and the documentation are all served by it.
 */
#ifndef RINGATTN_TOOL_CONFIG_H
#define RINGATTN_TOOL_CONFIG_H

#include "feature_sets.h"

#include "ringattn/ring.h"

#include <jansson.h>

typedef enum ra_variant { RA_VARIANT_RING, RA_VARIANT_BASE } ra_variant;
typedef enum ra_attention_kind {
    RA_ATTENTION_FLASH,
    RA_ATTENTION_STANDARD,
    RA_ATTENTION_LINEAR,
    RA_ATTENTION_LINEAR_CAUSAL
} ra_attention_kind;
typedef enum ra_mask_form { RA_MASK_ANALYTIC, RA_MASK_DENSE_BLOCKS } ra_mask_form;
typedef enum ra_backend { RA_BACKEND_AUTO, RA_BACKEND_CPU, RA_BACKEND_CUDA } ra_backend;
typedef enum ra_comm_kind { RA_COMM_AUTO, RA_COMM_SELF, RA_COMM_MPI, RA_COMM_NCCL } ra_comm_kind;

enum { RA_CONFIG_KEY_MAX = 64 };

/*
 * The effective configuration. Arrays and strings are owned by it, except pattern.block_pairs.
 * 0 means auto where offered.
 */
typedef struct ra_config {
    int64_t batch, seq;
    int32_t heads, kv_heads, head_dim;
    ra_dtype dtype;
    double scale;              /* 0: auto */
    ra_pattern_config pattern; /* block_pairs is not a key: the input file brings it */
    ra_variant variant;
    ra_layout_kind layout;
    ra_schedule schedule;
    int comm_buffers;
    int32_t head_groups; /* 0: auto */
    int32_t rounds;      /* 0: auto */
    int64_t limit_bytes; /* 0: none */
    int threads;         /* 0: auto */
    ra_isa isa;
    bool deterministic;
    ra_comm_kind comm;
    int64_t timeout_ms;
    char *input, *output; /* NULL: none */
    bool backward, verify;
    int repeat, warmup;
    uint64_t seed;
    ra_attention_kind attention_kind;
    ra_linear_method linear_method;
    ra_mask_form mask;
    ra_backend backend;
    ra_cache_mode cache_mode;
    int64_t cache_entries, cache_bytes;
    ra_pool_mode pool_mode;
    int64_t pool_trim_bytes; /* 0: auto */
    char *pool_log;          /* NULL: none */
    int64_t rate_count;      /* of pattern.rates; ra_config_check holds it to branch_count */
    char *places[RA_CONFIG_KEY_MAX]; /* "FILE:LINE:COL" per key; NULL: the default holds */
    /* The layer at hand, from 1: file, variant, sweep, set of features, --set, options; and the
       last one that gave a key, or its section, a value or null. 0: none did. */
    int layer, layers[RA_CONFIG_KEY_MAX];
    /* The file's sweep and variants, which `bench` runs through. */
    bool has_sweep;
    int sweep_keys[RA_CONFIG_KEY_MAX]; /* indices of keys, in the file's order */
    int sweep_key_count;               /* without keys that the command line gives */
    int64_t sweep_points;              /* every combination; 1 without a sweep */
    char **variants;                   /* names, in the file's order */
    int variant_count;
} ra_config;

/* Which of a file's jobs is meant; all borrowed. */
typedef struct ra_config_pick {
    const char *variant; /* named set of keys in the file's `variants`, or NULL */
    /* Combination of the sweep, from 1; the last key varies fastest. 0: the sweep is checked but
       not used. With a combination, ra_config_check checks what must hold between keys. */
    int64_t sweep_point;
    /* Applied after the file, before --set; NULL: none. RA_ERR_CONFIG if --set changes what the
       set is about. */
    const ra_feature_set *features;
} ra_config_pick;

/* What the command line adds to the file; all borrowed. */
typedef struct ra_config_source {
    const char *file;        /* NULL: defaults only */
    const char *const *sets; /* "a.b=c", in order; win over the file, not over what follows */
    int set_count;
    ra_config_pick pick;
    const char *input, *output; /* NULL, or job.input and job.output as given, not as YAML */
    bool backward, verify;      /* true: job.backward, job.verify */
} ra_config_source;

/**
 * Make a configuration of a file's text, and check it. What was wrong is one logged line that names
 * file, line, column where there is one, key path, what is allowed, and the nearest valid name.
 * Checks that need the shape are left to ra_config_check: an input file may bring it.
 *
 * @param name       of the file, for errors
 * @param has_lines  whether its lines and columns mean something to the reader
 * @param source     NULL: the text alone; its own `file` is not looked at
 * @return RA_ERR_CONFIG     the contents
 *         RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_config_parse(const char *name, bool has_lines, const char *text,
                                     size_t bytes, const ra_config_source *source,
                                     ra_config *config_out);
/**
 * Read a whole file, at most RA_CONFIG_BYTES_MAX. *text_out is ended by a NUL that *bytes_out does
 * not count; the caller frees it.
 *
 * @param what  what the file should be, for errors: "configuration"
 * @return RA_ERR_CONFIG     larger, or no file that ends
 *         RA_ERR_IO         it cannot be read
 *         RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_config_read_file(const char *what, const char *path, char **text_out,
                                         size_t *bytes_out);
/**
 * Complete what depends on the shape (kv_heads) and on the base variant (comm_buffers, the pool's
 * and the pattern cache's mode), and check what holds between keys, for a job of `ranks` ranks. One
 * logged line and RA_ERR_CONFIG, or RA_OK.
 */
RA_CHECKED ra_status ra_config_check(ra_config *config, int ranks);
/**
 * The same for a job that is only planned: live pairs need not fit an integer.
 */
RA_CHECKED ra_status ra_config_check_plan(ra_config *config, int ranks);
void ra_config_fini(ra_config *config); /* a zeroed one is fine */

/**
 * How many jobs a file has: every combination of its sweep with every variant, or with the one that
 * is named (NULL: none is). RA_ERR_CONFIG, logged: more than RA_SWEEP_POINTS_MAX.
 */
RA_CHECKED ra_status ra_config_count_jobs(const ra_config *base, const char *named,
                                          int64_t *count_out);
/** Job number `index` of these, from 0: all variants of a combination before the next, because they
    are compared and so should be near. Its variant is borrowed from `base`, or is `named`. */
ra_config_pick ra_config_pick_job(const ra_config *base, const char *named, int64_t index);

enum { RA_CONFIG_BYTES_MAX = 16 << 20, RA_SWEEP_POINTS_MAX = 10000 };

/** Which linear attention the configuration asks for; RA_LINEAR_NONE: none. */
ra_linear_kind ra_config_linear(const ra_config *config);
/** Whether the CPU was requested, by name or by an instruction set, which is the CPU's. */
bool ra_config_wants_cpu(const ra_config *config);
/** Whether the file or --set gave this key path ("shape.seq") rather than its default. */
bool ra_config_was_given(const ra_config *config, const char *key);
/** Log what is wrong with a key, and where it was given; always RA_ERR_CONFIG. */
ra_status ra_config_refuse(const ra_config *config, const char *path, const char *format, ...)
    RA_PRINTF(3, 4);
/** The full effective configuration as a JSON object, nested as the YAML is; NULL: no memory. */
json_t *ra_config_to_json(const ra_config *config);
/** Path of a swept key, ra_config.sweep_keys[index], and its value; NULL: no memory. */
const char *ra_config_swept_path(const ra_config *config, int index);
json_t *ra_config_swept_to_json(const ra_config *config, int index);
/** Print all keys with type, range, default and help; `markdown` for the documentation. */
void ra_config_print_help(bool markdown);

#endif
