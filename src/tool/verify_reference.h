/* Private to verify*.c: attention of single rows in float64, from the definition. */
#ifndef RINGATTN_VERIFY_REFERENCE_H
#define RINGATTN_VERIFY_REFERENCE_H

#include "verify.h"

enum { RA_REFERENCE_ROWS = 32, RA_REFERENCE_KEYS = 512, RA_REFERENCE_FEW = 10 };

/*
 * What the terms of a row of a result say of the error that right arithmetic leaves in it: squares
 * of norms, and a factor. Only doubles, so that sums of them are reduced as they lie.
 */
typedef struct ra_verify_size {
    double terms;    /* of the terms; of a difference, both sides by themselves */
    double coherent; /* of sums of them that cancel as a whole: by delta, or between states; and of
                        errors that add up in one direction */
    double rounded;  /* of what kernels of 16 bits round before they add it */
    double least;    /* as `terms`, as if every weight were ra_verify_least */
    /* How float32's own error grows, squared: (score / RA_VERIFY_SCORE)^2, above RA_VERIFY_DIM
       times dim / RA_VERIFY_DIM, and at least 1. A weight of a key has its row's, or its own if
       that is more. Where few weights make up the row, more: see RA_REFERENCE_FEW. */
    double growth;
} ra_verify_size;

/* Sums over a row's keys of the weight's square times: */
typedef struct ra_reference_squares {
    double one, v, k;   /* 1, |v|^2, |k|^2 */
    double k_dp, k_dp2; /* |k|^2 dp, |k|^2 dp^2 */
    double k_dp_size;   /* |k|^2 and the square of dp's size */
} ra_reference_squares;

/* One query row of one batch and head. */
typedef struct ra_reference_row {
    int64_t row;
    double q[RA_HEAD_DIM_MAX], dout[RA_HEAD_DIM_MAX];
    double out[RA_HEAD_DIM_MAX], dq[RA_HEAD_DIM_MAX];
    double kept[RA_HEAD_DIM_MAX]; /* sum of p k: the factor of delta in dq */
    double lean[RA_HEAD_DIM_MAX]; /* sum of p k times what dp's errors come to */
    double lse, delta;
    double q_norm, dout_norm;       /* as loaded; dout_norm: if that is */
    double delta_size, delta_noise; /* noise: what rounding of each p leaves in delta */
    double out_lean, delta_lean;    /* see ra_reference_sum_lean; its factor on out */
    double score_square;            /* of its scores: see ra_reference_score_square */
    ra_verify_size of_out, of_dq;
    bool nonfinite;   /* NaN or Inf in the row or in what it sees; the rest is undefined */
    double top, sum;  /* online softmax */
    double sum_v;     /* sum of p |v| */
    double sum_score; /* sum of p times the square of the score's size */
    ra_reference_squares weighed, seen; /* seen: every weight 1 */
} ra_reference_row;

typedef enum ra_reference_depth {
    RA_REFERENCE_OUT,     /* out, lse, of_out */
    RA_REFERENCE_DELTA,   /* and delta, its size and noise */
    RA_REFERENCE_GRADIENT /* and dq, of_dq */
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
 * lse its logarithm; terms are those of sum (dp - delta) / sum phi(k), and both sides summed up, as
 * these come from states.
 */
RA_CHECKED ra_status ra_reference_attend_linear(ra_reference *reference, int64_t batch,
                                                int32_t head, ra_reference_depth depth,
                                                ra_reference_row *rows, int count);
/** Features, sum and lse alone, which cost much less: rows ascend, and so do calls of one head. */
RA_CHECKED ra_status ra_reference_sum_linear(ra_reference *reference, int64_t batch, int32_t head,
                                             ra_reference_row *rows, int count);
/** phi(x) = elu(x) + 1, in place. Its derivative is min(phi(x), 1). */
void ra_reference_features(double *x, int32_t dim);

/* ---- sizes ----------------------------------------------------------------------------------- */

/**
 * The size of a scalar product, as errors go that were made in its products: |x . y|, or, where
 * these cancel, what is usual of vectors of these norms.
 */
double ra_reference_product_size(double product, double x_norm, double y_norm, int32_t dim);
/**
 * Float32 rounds a sum of like terms in one direction, and products that are alike in the same one,
 * so that such errors do not cancel. A quarter of the bound is allowed for what these come to: for
 * a scalar product, with its sign, at least its size.
 */
double ra_reference_product_lean(double product, double x_norm, double y_norm, int32_t dim);
/** For a sum of so many vectors, as a factor on it: next to nothing where these are random. */
double ra_reference_sum_lean(double sum_norm, double sum_of_norms, double terms);
/** A score's size, for its growth: more where its products are alike, too. */
double ra_reference_score_size(double score, double q_norm, double k_norm, int32_t dim);
/**
 * What the square of float32's bound is multiplied by for a score of that size, if that is more
 * than 1: a row's growth, but for what few weights add. Scores are usually off by three quarters of
 * that, and single ones often by more than all of it: where n weights make up a row, its growth is
 * RA_REFERENCE_FEW / n times this larger, and one row in 10^4 to 10^5 is beyond.
 */
double ra_reference_score_square(double score_size, int32_t dim);
void ra_reference_begin_row(ra_reference_row *row, int32_t dim);
/** A key's share of weighed and seen, for of_out. */
void ra_reference_add_out(ra_reference_row *row, double weight, double v_norm);
/** And for of_dq. */
void ra_reference_add_gradient(ra_reference_row *row, double weight, double k_norm, double dp,
                               double v_norm, int32_t dim);
/** of_out, from sums of weights that are `inverse` times as large as p. */
void ra_reference_end_out(ra_reference_row *row, double inverse, double least, double score_size,
                          int32_t dim);
/** delta_size and delta_lean, from delta, out_lean and the norm of out. */
void ra_reference_size_delta(ra_reference_row *row, double out_norm, int32_t dim);
/** delta and its sizes, after out and of_out. */
void ra_reference_end_delta(ra_reference_row *row, double inverse, int32_t dim);
/** of_dq, after delta; `factor`: what dq is multiplied by in the end. */
void ra_reference_end_gradient(ra_reference_row *row, double factor, double least, int32_t dim);

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
    ra_errors bounds;
    bool inputs_finite; /* on all ranks */
    bool has_lse;       /* of this rank's rows */
} ra_verify_job;

/* How much is sampled: groups are (batch, head) or (batch, kv head); the same on every rank. */
typedef struct ra_verify_plan {
    int64_t query_groups, query_rows; /* rows per group */
    int64_t key_groups, key_rows;     /* 0 groups: no dk, dv */
    int64_t lse_groups; /* of so many of them lse and delta come from inputs, else from the run */
} ra_verify_plan;

/* Where there are more groups, they share the rows of so many. */
enum { RA_VERIFY_MAX_GROUPS = 4, RA_VERIFY_MAX_QUERIES = 64, RA_VERIFY_MAX_KEYS = 16 };

/*
 * Sums over sampled rows of one result: of the squares of errors, and of sizes to which errors are
 * relative. A row's two are divided by its terms, or its size if that is more, so that rows count
 * about alike: under a causal mask the first has a norm some hundred times the last one's.
 */
typedef struct ra_verify_sum {
    double diff, size;
} ra_verify_sum;

/* Added up over ranks: doubles only, reduced as an array. */
typedef struct ra_verify_sums {
    ra_verify_sum o, dq, dk, dv;
    double queries, keys; /* rows that see a key, and keys that are seen */
    double skipped, blurred;
} ra_verify_sums;

/**
 * Number `index` of `count` samples of [0, total): if count >= 3, the first is 0 and the last is
 * total - 1; the others are one from each of as many equal parts of the rest. With some seed any
 * number is a sample. 1 <= count <= total.
 */
int64_t ra_verify_sample(uint64_t seed, int64_t index, int64_t count, int64_t total);

/* A sampled (batch, head) or (batch, kv head). */
typedef struct ra_verify_group {
    uint64_t seed;        /* of all groups */
    int64_t at;           /* its number among all */
    int64_t index, count; /* among those that are sampled */
} ra_verify_group;

/** Number `index` of `count` groups out of `total`. */
ra_verify_group ra_verify_group_at(uint64_t seed, int64_t index, int64_t count, int64_t total);

/**
 * The same for rows of a head; each group has its own share of every part, so that together they
 * sample where one with all the rows would. Three of four of the others are the next of their part
 * that sees itself, if there is one nearby: where few rows see anything, they are worth more than
 * the rest.
 */
int64_t ra_verify_sample_row(const ra_verify_job *job, int32_t head, const ra_verify_group *group,
                             int64_t index, int64_t count);

/** `count` elements, `first` and on, as float64. */
RA_CHECKED ra_status ra_verify_load(ra_verify_tensor *tensor, int64_t first, int32_t count,
                                    double *values);
/* A row in which float32's error may be as large as the row: it is not compared. */
bool ra_verify_blurred(const ra_verify_size *size);
/**
 * Compare a row with its reference. Its size, to which the error is relative, is the largest of
 *
 *   |reference|,  SHARE sqrt(rounded),  sqrt(least),
 *   u / bound sqrt(growth) max(|reference|, SHARE sqrt(terms + coherent)),
 *
 * u: float32's bound. NaN, and anything else than 0 in a row of size 0, adds INFINITY. What the
 * dtype cannot hold is not counted: half of float16's smallest step, numbers below the least normal
 * one of the others, and infinity where a number within the bound rounds to it.
 */
RA_CHECKED ra_status ra_verify_compare(ra_verify_tensor *tensor, int64_t first,
                                       const double *reference, int32_t dim,
                                       const ra_verify_size *size, double bound,
                                       ra_verify_sum *sum);

/**
 * Kernels may err as much on a smaller weight as on one of this size: a share of the row's largest,
 * or, where keys are verified, the weight itself. In float32 a weight's relative error grows with
 * the distance of its score from the row's top, until nothing of the weight is left; in float16
 * this is the least normal number, and smaller ones have fewer bits.
 */
double ra_verify_least(ra_dtype dtype);

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
