/* Private to verify*.c: attention of single rows in float64, from the definition. */
#ifndef RINGATTN_VERIFY_REFERENCE_H
#define RINGATTN_VERIFY_REFERENCE_H

#include "verify.h"

enum { RA_REFERENCE_ROWS = 32, RA_REFERENCE_KEYS = 512 };

/* One query row of one batch and head. */
typedef struct ra_reference_row {
    int64_t row;
    double q[RA_HEAD_DIM_MAX], dout[RA_HEAD_DIM_MAX];
    double out[RA_HEAD_DIM_MAX], dq[RA_HEAD_DIM_MAX];
    double kept[RA_HEAD_DIM_MAX]; /* sum of p k: the factor of delta in dq */
    double lse, delta;
    double out_terms; /* sum of (p |v|)^2 */
    double
        out_weight; /* the same with p^2 + l^2 for p^2, where l is ra_verify_least of the top's p */
    double dq_terms;  /* sum of (scale p (|dp| + |delta|) |k|)^2 */
    double dq_weight; /* so, too: sum of (scale p |k| |do|)^2 (|v|^2 + |out|^2): dp and delta may be
                         small by chance */
    double out_size;  /* |out|^2; with depth DELTA, too */
    bool nonfinite;   /* NaN or Inf in the row or in what it sees; the rest is undefined */
    double top, sum;  /* online softmax */
    double terms_2, terms_1, terms_0; /* of dq_terms, by the power of |dp| */
    double terms_v;                   /* sum of (p |k| |v|)^2 */
    double seen_k, seen_v, seen_kv;   /* sums of |k|^2, |v|^2, |k|^2 |v|^2 */
} ra_reference_row;

typedef enum ra_reference_depth {
    RA_REFERENCE_OUT,     /* out, lse, out_terms, out_weight */
    RA_REFERENCE_DELTA,   /* and delta, out_size */
    RA_REFERENCE_GRADIENT /* and dq, dq_terms, dq_weight */
} ra_reference_depth;

typedef struct ra_reference {
    const ra_config *config;
    const ra_pattern *pattern;
    const ra_tensor_source *source;
    double scale;
    int32_t dim;
    ra_tensor_staging staging;
    ra_reference_row *rows; /* [RA_REFERENCE_ROWS], for the caller */
    /* The current keys: RA_REFERENCE_KEYS rows of one batch and kv head. */
    double *k, *v, *k_norm, *v_norm;
    bool *key_nonfinite;
    int32_t *multiplicity;
    /* Linear attention: phi(k) summed over the keys before `line_end` of a batch and kv head. */
    double line[RA_HEAD_DIM_MAX];
    int64_t line_batch, line_end;
    int32_t line_head; /* query head; -1: none */
} ra_reference;

/** Bytes that a reference works in, whole lines of 64. */
int64_t ra_reference_bytes(const ra_config *config);
/** `work`: ra_reference_bytes of memory, borrowed. */
void ra_reference_init(const ra_config *config, const ra_pattern *pattern,
                       const ra_tensor_source *source, void *work, ra_reference *reference_out);

/** Fill in q, and dout if requested, of rows[].row: one read per run of consecutive rows. */
RA_CHECKED ra_status ra_reference_load(const ra_reference *reference, int64_t batch, int32_t head,
                                       bool with_dout, ra_reference_row *rows, int count);
/** Attention of loaded rows over all keys. Keys that no row sees are not read. */
RA_CHECKED ra_status ra_reference_attend(ra_reference *reference, int64_t batch, int32_t head,
                                         ra_reference_depth depth, ra_reference_row *rows,
                                         int count);
/** Read keys and values [begin, begin + count) into k and v; count <= RA_REFERENCE_KEYS. */
RA_CHECKED ra_status ra_reference_load_keys(ra_reference *reference, int64_t batch, int32_t kv_head,
                                            int64_t begin, int64_t count);

/*
 * The same for linear attention: loaded rows' q become features. `sum` is the outputs' denominator,
 * lse its logarithm; terms are those of sum (dp - delta) / sum phi(k).
 */
RA_CHECKED ra_status ra_reference_attend_linear(ra_reference *reference, int64_t batch,
                                                int32_t head, ra_reference_depth depth,
                                                ra_reference_row *rows, int count);
/** Features, sum and lse alone, which cost much less: rows ascend, and so do calls of one head. */
RA_CHECKED ra_status ra_reference_sum_linear(ra_reference *reference, int64_t batch, int32_t head,
                                             ra_reference_row *rows, int count);
/** phi(x) = elu(x) + 1, in place. Its derivative is min(phi(x), 1). */
void ra_reference_features(double *x, int32_t dim);

/* ---- sampling and comparing ------------------------------------------------------------------ */

/* Access to rows of a head of a run's result, wherever it lies. */
typedef struct ra_verify_tensor {
    ra_shard_window window; /* of an empty tensor if the run has no such result */
    ra_dtype dtype;
} ra_verify_tensor;

typedef struct ra_verify_tensors {
    ra_verify_tensor o, lse, dq, dk, dv;
} ra_verify_tensors;

/* What ra_verify was given. */
typedef struct ra_verify_job {
    const ra_config *config;
    const ra_pattern *pattern;
    ra_comm *comm;
    const ra_tensor_source *source;
    const ra_rowset *rows;
    ra_verify_tensors *results;
    bool has_lse, has_gradients; /* of the job; a rank without rows has none itself */
} ra_verify_job;

/* How much is sampled: groups are (batch, head) or (batch, kv head); the same on every rank. */
typedef struct ra_verify_plan {
    int64_t query_groups, query_rows; /* rows per group */
    int64_t key_groups, key_rows;     /* 0 groups: no dk, dv */
    bool lse_from_run;
} ra_verify_plan;

enum { RA_VERIFY_MAX_GROUPS = 4, RA_VERIFY_MAX_QUERIES = 64, RA_VERIFY_MAX_KEYS = 16 };

/*
 * Sums over sampled rows of one result: of the squares of errors, of the row itself, and of the
 * terms that the row is a sum of. Each row's squares are divided by a weight, the square of what
 * its terms' norms would give, so that all rows count alike: under a causal mask the first has a
 * norm some hundred times the last one's.
 */
typedef struct ra_verify_sum {
    double diff, ref, terms;
} ra_verify_sum;

/* Added up over ranks: doubles only, reduced as an array. */
typedef struct ra_verify_sums {
    ra_verify_sum o, dq, dk, dv;
    double queries, keys; /* rows that see a key, and keys that are seen */
    double skipped;
} ra_verify_sums;

/* The largest over all rows: doubles only, reduced as an array. */
typedef struct ra_verify_worst {
    double lse;   /* error */
    double score; /* of a row's highest score, |score| */
} ra_verify_worst;

/**
 * Number `index` of `count` samples of [0, total), one from each of `count` equal parts; if count
 * >= 2, the first is 0 and the last is total - 1. 1 <= count <= total.
 */
int64_t ra_verify_sample(uint64_t seed, int64_t index, int64_t count, int64_t total);
/**
 * The same for rows of a head. Three of four of the others are the next of their part that sees
 * itself, if there is one nearby: where few rows see anything, they are worth more than the rest.
 */
int64_t ra_verify_sample_row(const ra_verify_job *job, int32_t head, uint64_t seed, int64_t index,
                             int64_t count);

/** `count` elements, `first` and on, as float64. */
RA_CHECKED ra_status ra_verify_load(ra_verify_tensor *tensor, int64_t first, int32_t count,
                                    double *values);
/**
 * Add squares of (tensor[first + d] - reference[d]), of reference[d], and `terms`, all divided by
 * `weight`: what this row's terms count as, 0 only if the row must be 0. NaN, and anything else
 * than 0 there, adds INFINITY. What the dtype cannot hold is not counted: half of float16's
 * smallest step, and numbers below the least normal one of the others.
 */
RA_CHECKED ra_status ra_verify_compare(ra_verify_tensor *tensor, int64_t first,
                                       const double *reference, int32_t dim, double terms,
                                       double weight, ra_verify_sum *sum);

/**
 * A share of the row's largest p, or for keys a p, below which rows count less. float32 leaves such
 * a p an error in proportion to how far its score lies below the top, and at last nothing of it;
 * float16 rounds it to few bits.
 */
double ra_verify_least(ra_dtype dtype);

/** Collective: the worst status of all ranks, for all. Who failed has logged it. */
RA_CHECKED ra_status ra_verify_agree(ra_comm *comm, ra_status own);

/** Bytes that ra_verify_keys works in at most, whole lines of 64. */
int64_t ra_verify_keys_bytes(const ra_config *config);
/**
 * Collective: the most queries of a rank that see sampled keys of one group, over ranks and groups.
 * `work`: as of ra_verify_keys.
 */
RA_CHECKED ra_status ra_verify_count_seeing(const ra_verify_job *job, const ra_verify_plan *plan,
                                            void *work, int64_t *rows_out);
/**
 * Collective: recompute and compare sampled rows of dk and dv. Adds to *sums of this rank. `work`:
 * that many bytes, borrowed.
 */
RA_CHECKED ra_status ra_verify_keys(const ra_verify_job *job, const ra_verify_plan *plan,
                                    ra_reference *reference, void *work, ra_verify_sums *sums);

double ra_reference_dot(const double *x, const double *y, int32_t dim);
/** y += a x. */
void ra_reference_add(double a, const double *x, double *y, int32_t dim);
bool ra_reference_finite(const double *x, int32_t dim);

#endif
