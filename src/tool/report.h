/* What a run has measured, as a table for people and as JSON for programs. */
#ifndef RINGATTN_TOOL_REPORT_H
#define RINGATTN_TOOL_REPORT_H

#include "backend.h"
#include "verify.h"

/* Times of a pass: of each repetition, the slowest rank's. */
typedef struct ra_times {
    double min_ms, median_ms, max_ms;
    int count;
    double spread; /* (max - min) / median of the last ones, as many as should be steady; NAN: of
                      one only */
} ra_times;

typedef struct ra_report {
    const ra_config *config;             /* borrowed */
    int ranks, threads;                  /* threads: multiprocessors, if a GPU computes */
    const char *comm_name, *kernel_name; /* static text */
    const char *backend_note;            /* why no GPU computes, or NULL; borrowed */
    ra_ring_info ring;                   /* what was chosen, and full_ring_bytes */
    ra_times forward, backward;          /* backward: if config->backward */
    double waiting_ms; /* for messages and for slower ranks: the most of any rank, per repetition */
    /* Sums over ranks, per repetition. */
    int64_t live_pairs, sent_bytes;
    ra_nonfinite nonfinite; /* in the inputs */
    /* Of all ranks: requests to the pattern cache while the job was prepared, and what it kept. */
    ra_cache_counts pattern_cache;
    int64_t peak_bytes_sum; /* over ranks, each at its own peak */
    /* Of the rank with the highest peak; tilemap_bytes: of the largest rank. */
    int64_t peak_bytes, rss_peak_bytes, memory_bytes[RA_MEM_CATEGORY_COUNT];
    int64_t floor_bytes; /* ra_floor_row_bytes of its rows */
    int64_t tilemap_bytes;
    int64_t category_peak_bytes[RA_MEM_CATEGORY_COUNT]; /* each category's own, same rank */
    int64_t alloc_count;     /* of that rank, up to the end of its first repetition, or warm-up */
    int64_t limit_bytes_sum; /* over ranks */
    /* If a GPU computes, all bytes above are of its memory, and those below of the host's beside
       it: of the same rank, at the host's own peak. */
    ra_backend_gpu gpu; /* rank 0's */
    int64_t host_peak_bytes, host_memory_bytes[RA_MEM_CATEGORY_COUNT];
    ra_pool_stats pool; /* of that rank, up to here */
    /* With --phases: those of the rank with the highest peak. */
    const ra_ledger_mark *phases; /* [phase_count]; the job's */
    int phase_count;
    int64_t phases_left_out;
    bool verified;    /* whether errors and bounds are set */
    ra_errors errors; /* -1: not checked */
    ra_errors bounds;
} ra_report;

/** Whether every error that was checked is within its bound; NaN is not. */
bool ra_report_passes(const ra_report *report);
/**
 * Live pairs' own operations over the median time: 4 D per pair forward, 10 D backward. Linear
 * attention: the states' own, 2 D^2 for each row of q and of k forward, twice that backward.
 */
double ra_report_tflops_forward(const ra_report *report);
double ra_report_tflops_backward(const ra_report *report);

/** The table, to standard output. */
void ra_report_print(const ra_report *report);
/** A row of such a table, to standard output; the label takes `width` columns. */
void ra_report_row(int width, const char *label, const char *format, ...) RA_PRINTF(3, 4);
/** The rows `tokens` and `pattern`. */
void ra_report_shape(int width, const ra_config *config);
enum { RA_GROUPS_TEXT_MAX = 64 };
/** "2 head groups", and in how many parts of the queries, if there are more groups than heads. */
const char *ra_report_groups(int32_t heads, int32_t groups, char text[RA_GROUPS_TEXT_MAX]);
/** The rows `plan` and `balance`. Of `ring` only what was chosen, and the imbalance, are read. */
void ra_report_plan(int width, const ra_config *config, const ra_ring_info *ring);
/** One row for each category that has bytes. */
void ra_report_categories(int width, const int64_t bytes[RA_MEM_CATEGORY_COUNT]);
/**
 * Write all that was measured to `path` (temporary file, rename); NULL: to standard output.
 * @return RA_ERR_IO, RA_ERR_NO_MEMORY; one line was logged
 */
RA_CHECKED ra_status ra_report_write_json(const ra_report *report, const char *variant,
                                          const char *path);
/** The "points" entry of a run; NULL: no memory. */
json_t *ra_report_to_json(const ra_report *report);
/** Bytes by the names of their categories. NULL: no memory. */
json_t *ra_json_memory(const int64_t bytes[RA_MEM_CATEGORY_COUNT]);

/** A pattern in words: "causal, window of 1,024, 4 sinks"; "every token sees every token". */
void ra_pattern_describe(const ra_pattern_config *pattern, char *text, size_t bytes);
/** Three digits of a percentage, but all before the point: "0.0123", "2000". */
const char *ra_percent_text(double percent, char text[32]);
/** "1,048,576". */
const char *ra_count_text(int64_t count, char text[32]);

#endif
