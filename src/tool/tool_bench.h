/* `ringattn bench`, inside: points one after the other, and their report. */
#ifndef RINGATTN_TOOL_TOOL_BENCH_H
#define RINGATTN_TOOL_TOOL_BENCH_H

#include "job_series.h"
#include "limits.h"

#include <stdio.h>

/* Medians of one pass by halves, and how much of the shorter half is hidden. */
typedef struct ra_overlap {
    double wall_ms, compute_ms, comm_ms;
    double spread_ms; /* max - min over rounds, of wall or computing, whichever is more; infinite
                         for one round, which tells nothing */
} ra_overlap;

/**
 * (compute + communication - wall) / min(compute, communication). NAN if that minimum is below 1 %
 * of wall, or below the spread: the quotient would be noise.
 */
double ra_overlap_share(const ra_overlap *overlap);
/** Wall time that computing does not explain; at least 0. */
double ra_overlap_exposed_ms(const ra_overlap *overlap);
/** "12.300 ms exposed, 87 % overlap", or why there is none to be told. */
void ra_overlap_text(const ra_overlap *overlap, char *text, size_t bytes);

/* One point while it is at hand. */
typedef struct ra_bench_point {
    ra_config_pick pick;    /* variant NULL: the file has none */
    ra_job_outcome outcome; /* after a failure nothing else is filled */
    ra_report report;       /* report.config: of the job at hand */
    int64_t theory_bytes;   /* predicted peak_bytes, also if out of memory; 0: none */
    int64_t floor_bytes;    /* after a failure: that of the prediction; 0: none */
    const char *limit_name; /* NULL, and limit_tflops 0: a GPU's that is not known */
    double limit_tflops;
    bool has_overlap;
    ra_overlap forward, backward;
    bool has_reference;                  /* the file's first variant at the same combination */
    double time_ratio[2], rate_ratio[2]; /* against it, forward and backward */
} ra_bench_point;

/* Of all ranks' GPUs together, each counted once: told by clocks and multiprocessors. */
typedef struct ra_gpu_limits {
    double count;                     /* of GPUs */
    double fma_tflops, tensor_tflops; /* 0: not known */
} ra_gpu_limits;

typedef struct ra_bench {
    ra_series series;
    int64_t job_count;
    int variant_count; /* to be run; 0: none, once */
    int64_t begin_ns;
    ra_pool *pool;      /* of what limits are measured with: apart from the points' */
    ra_job_cache cache; /* of all points */
    ra_limits limits;   /* the latest */
    int limits_threads; /* of this rank; 0: not measured yet */
    int64_t limits_end_ns;
    ra_gpu_limits gpu_limits; /* of the latest point on GPUs */
    double reference_ms[2], reference_tflops[2];
    int64_t reference_point; /* the combination that it is of; 0: none yet */
    bool has_header;         /* the table has begun */
    int point_count;         /* begun so far */
    bool lacked_memory;      /* for limits_list */
    json_t *limits_list;     /* rank 0's */
} ra_bench;

/**
 * Collective. Measure one point and report it. RA_OK also if the point failed in a way that leaves
 * the next one a chance.
 */
RA_CHECKED ra_status ra_bench_point_run(ra_bench *bench, const ra_config_pick *pick);
/** Collective. Computing alone and communication alone, after the results have been looked at. */
RA_CHECKED ra_status ra_bench_overlap_measure(ra_job *job, ra_bench_point *point);
/**
 * Collective. Measure the CPU's limits again for this rank's threads, unless that was a moment ago.
 * Keeps all cores busy, and the memory too, so it is not for points that a GPU computes.
 */
RA_CHECKED ra_status ra_bench_limits_refresh(ra_bench *bench, int threads, bool always);

/* Rank 0 only. A failure in between is reported at the end: measuring goes on with all ranks. */
RA_CHECKED ra_status ra_bench_report_begin(ra_bench *bench);
void ra_bench_report_limits(ra_bench *bench, bool shown);
/** Show the GPUs' limits unless the last that were shown are these. */
void ra_bench_report_gpu_limits(ra_bench *bench, const ra_gpu_limits *limits);
void ra_bench_report_point(ra_bench *bench, const ra_bench_point *point, const ra_config *config,
                           const char *label);
/** For a ra_bench: end the table, and write comma-separated values. */
RA_CHECKED ra_status ra_bench_report_end(void *command);
/** For a ra_bench: what stands beside its points; NULL: no memory. */
json_t *ra_bench_to_json(const void *command);
void ra_bench_report_fini(ra_bench *bench);

/** The "points" entry; NULL: no memory. */
json_t *ra_bench_point_to_json(const ra_bench_point *point, const ra_config *config, int ranks);
/** "causal, shape.seq=4096"; cut to `bytes`. */
void ra_bench_point_label(const ra_bench_point *point, const ra_config *config, char *text,
                          size_t bytes);
/**
 * Comma-separated values of what is in a point's JSON; NULL: the header. What cannot be written
 * stays with the stream.
 * @return RA_ERR_NO_MEMORY; one line was logged
 */
RA_CHECKED ra_status ra_bench_csv_line(FILE *file, const ra_config *config, const json_t *point);

#endif
