/*
 * The oracle: attention and its gradients in plain float64, pair by pair from the definition of
 * the patterns. It shares no code with the library: not its multiplicities, slices or kernels.
 * Only the configuration struct and the dtype conversions are the library's; these have tests of
 * their own.
 *
 * Tensors are dense: q, o, dout, dq [batch][n][heads][dim]; k, v, dk, dv [batch][n][kv_heads][dim];
 * lse [batch][heads][n]. All index products are int64.
 */
#ifndef RINGATTN_TESTS_ORACLE_H
#define RINGATTN_TESTS_ORACLE_H

#include "ringattn/kernel.h"

typedef struct oracle_shape {
    int64_t batch, n;
    int32_t heads, kv_heads, dim;
    double scale; /* 0: 1 / sqrt(dim) */
} oracle_shape;

/** How often query i of `head` attends to key j, by the definition; heads: of the whole job. */
int64_t oracle_multiplicity(const ra_pattern_config *pattern, int64_t n, int32_t heads,
                            int32_t head, int64_t i, int64_t j);

/* Inputs are the stored values, in float64. */
typedef struct oracle_inputs {
    const double *q, *k, *v;
    const double *dout; /* NULL: no gradients */
} oracle_inputs;

/* Outputs are written, in float64; any but o may be NULL where it is not wanted. */
typedef struct oracle_outputs {
    double *o, *lse, *dq, *dk, *dv;
} oracle_outputs;

/** Everything, O(n^2 dim). */
void oracle_attend(const oracle_shape *shape, const ra_pattern_config *pattern,
                   const oracle_inputs *in, const oracle_outputs *out);

/** One query row for long sequences, O(n dim): o[dim] and lse. */
void oracle_attend_row(const oracle_shape *shape, const ra_pattern_config *pattern,
                       const oracle_inputs *in, int64_t batch, int32_t head, int64_t row, double *o,
                       double *lse);

/* ---- tensors --------------------------------------------------------------------------------- */

/** splitmix64; the state moves on. */
uint64_t oracle_random(uint64_t *state);
/** Uniform in [0, 1). */
double oracle_uniform(uint64_t *state);

/**
 * `count` standard normal values times `factor`, rounded to the dtype: `stored` holds them in the
 * dtype, `values` exactly those as float64. Either may be NULL.
 */
void oracle_fill(uint64_t *state, ra_dtype dtype, double factor, int64_t count, void *stored,
                 double *values);
/** Read stored values as float64. */
void oracle_load(ra_dtype dtype, const void *stored, int64_t count, double *values);

/* ---- errors: NaN on either side where the other has none gives Inf, and fails every bound ---- */

/** ||got - want|| / ||want||, Frobenius; where want is all zero: 0 if got is, else Inf. */
double oracle_relative_error(ra_dtype dtype, const void *got, const double *want, int64_t count);
/**
 * The same for what is stored after a pass: a float16 below the smallest normal one may be off by
 * half its quantum, 2^-25. And where gradients cancel (a row with one key has none), what is left
 * is rounding: where ||want|| is under 1e-3 of ||dout||, the error is relative to ||dout||.
 *
 * @param dout  as the oracle was given it; NULL: got is the output o
 */
double oracle_stored_error(ra_dtype dtype, const void *got, const double *want, int64_t count,
                           const double *dout, int64_t dout_count);
/**
 * The same with that allowance for float16, relative to the wanted norm or to an rms of `floor`
 * where that is larger: what float32 arithmetic leaves of a gradient that cancels is relative to
 * its terms, whose size the caller knows.
 */
double oracle_floored_error(ra_dtype dtype, const void *got, const double *want, int64_t count,
                            double floor);
/** max |got - want|; infinities must be equal. */
double oracle_max_error(ra_dtype dtype, const void *got, const double *want, int64_t count);

/** Bounds of the documentation. */
double oracle_output_bound(ra_dtype dtype);
double oracle_gradient_bound(ra_dtype dtype, int32_t dim);
double oracle_lse_bound(ra_dtype dtype);

#endif
