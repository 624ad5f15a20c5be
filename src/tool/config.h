/*
 * The configuration of a job: one table of keys declares every key with its type, range, default
 * and help; YAML files, --set, --variant, --help-config and the documentation are all served by it.
 */
#ifndef RINGATTN_TOOL_CONFIG_H
#define RINGATTN_TOOL_CONFIG_H

#include "ringattn/ring.h"

#include <jansson.h>

typedef enum ra_variant { RA_VARIANT_RING, RA_VARIANT_BASE } ra_variant;
typedef enum ra_comm_kind { RA_COMM_AUTO, RA_COMM_SELF, RA_COMM_MPI } ra_comm_kind;

/* The effective configuration. Arrays and strings are owned by it. 0 means auto where offered. */
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
} ra_config;

/* What the command line adds to the file; all borrowed. */
typedef struct ra_config_source {
    const char *file;        /* NULL: defaults only */
    const char *const *sets; /* "a.b=c", in order; win over everything */
    int set_count;
    const char *variant; /* named set of keys in the file's `variants`, or NULL */
} ra_config_source;

/**
 * Read, check and complete a configuration. What was wrong is one logged line that names file,
 * line, column where there is one, key path, what is allowed, and the nearest valid name.
 *
 * @return RA_ERR_CONFIG     the contents, or a key that is understood but not in this build
 *         RA_ERR_IO         the file cannot be read
 *         RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_config_load(const ra_config_source *source, ra_config *config_out);
/** Parse from memory, as for a file of that name; for fuzzing and for ranks other than 0. */
RA_CHECKED ra_status ra_config_parse(const char *name, const char *text, size_t bytes,
                                     const ra_config_source *source, ra_config *config_out);
void ra_config_fini(ra_config *config); /* a zeroed one is fine */

/** Whether the file or --set gave this key path ("shape.seq") rather than its default. */
bool ra_config_was_given(const ra_config *config, const char *key);
/** The full effective configuration as a JSON object, nested as the YAML is; NULL: no memory. */
json_t *ra_config_to_json(const ra_config *config);
/** Print all keys with type, range, default and help; `markdown` for the documentation. */
void ra_config_print_help(bool markdown);

#endif
