/*
 * Linear attention over a chunk of at most CHUNK rows: features, products of small matrices, and
 * sums that are carried from chunk to chunk. Matrices in scratch have rows of dim_pad floats, zero
 * from `dim` on, and rows up to a multiple of DIM_PAD, zero from `n` on.
 *
 * Products use product.h, not OpenBLAS: they are 16 to 256 on a side, run inside our threads, and
 * share operands in cache.
 */
#ifndef RINGATTN_CPU_LINEAR_CHUNK_H
#define RINGATTN_CPU_LINEAR_CHUNK_H

#include "sparse/cpu/exp2.h"
#include "sparse/cpu/panel_cpu.h"

#include "ringattn/linear.h"

enum { CHUNK = RA_LINEAR_CHUNK };

/* A carried state: sums in two parts, so that thousands of chunks err like one addition. */
typedef struct carried {
    float *matrix, *matrix_rest; /* [dim_pad][dim_pad] */
    float *line, *line_rest;     /* [dim_pad] */
} carried;

typedef struct linear_scratch {
    carried state, grad;
    float *query, *key, *value, *dout;  /* [CHUNK][dim_pad]; query and key as features */
    float *first, *second;              /* [CHUNK][dim_pad]: results */
    float *key_columns, *value_columns; /* [dim_pad][CHUNK] */
    float *line_rows;                   /* [CHUNK][dim_pad]: z up to each row */
    float *weights;                     /* [CHUNK][CHUNK] */
} linear_scratch;

static carried carried_take(scratch_cursor *cursor, int64_t dim_pad)
{
    return (carried){.matrix = scratch_take(cursor, dim_pad * dim_pad),
                     .matrix_rest = scratch_take(cursor, dim_pad * dim_pad),
                     .line = scratch_take(cursor, dim_pad),
                     .line_rest = scratch_take(cursor, dim_pad)};
}

static size_t linear_scratch_carve(float *base, int32_t dim, linear_scratch *scratch)
{
    scratch_cursor cursor = {.base = base};
    int64_t const dim_pad = padded(dim), rows = CHUNK * dim_pad;
    float **const pieces[] = {&scratch->query,       &scratch->key,           &scratch->value,
                              &scratch->dout,        &scratch->first,         &scratch->second,
                              &scratch->key_columns, &scratch->value_columns, &scratch->line_rows};
    scratch->state = carried_take(&cursor, dim_pad);
    scratch->grad = carried_take(&cursor, dim_pad);
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); ++i)
        *pieces[i] = scratch_take(&cursor, rows);
    scratch->weights = scratch_take(&cursor, CHUNK * CHUNK);
    return cursor.used;
}

/* ---- features -------------------------------------------------------------------------------- */

/* x + 1 where x > 0, else exp(x); the error of x * log2(e) is carried into the result. */
RA_INLINE vec vec_feature(vec x)
{
    float const log2_e = 0x1.715476p+0f, log2_e_rest = 0x1.4ae0c0p-26f, ln_2 = 0x1.62e430p-1f;
    vec const low = vec_min(vec_splat(0), x); /* NaN stays */
    vec const power = low * log2_e;
    vec const rest = (low * log2_e - power) + low * log2_e_rest;
    vec const tail = vec_exp2(power);
    /* Far below 0, where the result is 0, the rest may be -Inf less -Inf. */
    vec const corrected = vec_select(low > -1e4f, tail + tail * (rest * ln_2), tail);
    return vec_select(x > 0.0f, x + 1.0f, vec_select(x == x, corrected, x));
}

/* The derivative of a feature, which is the feature itself up to 1. */
RA_INLINE vec vec_feature_slope(vec feature)
{
    return vec_min(vec_splat(1), feature);
}

/* ---- products -------------------------------------------------------------------------------- */

typedef enum product_use { PRODUCT_SET, PRODUCT_ADD, PRODUCT_CARRY } product_use;

/* to + rest += more, where rest is what to cannot hold (TwoSum, Knuth). */
RA_INLINE void carry(float *to, float *rest, vec more)
{
    vec const old = vec_load(to), with_rest = more + vec_load(rest);
    vec const sum = old + with_rest, added = sum - old;
    vec_store(rest, (old - (sum - added)) + (with_rest - added));
    vec_store(to, sum);
}

RA_INLINE void product_tile(int vecs, product_use use, int32_t k, const float *a, int64_t a_row,
                            int64_t a_step, const float *b, int64_t b_step, float *to, float *rest,
                            int64_t to_step)
{
    vec sums[PRODUCT_ROWS][PRODUCT_VECS] = {{{0}}};
    product(vecs, k, a, a_row, a_step, b, b_step, sums);
    for (int r = 0; r < PRODUCT_ROWS; ++r) {
        for (int x = 0; x < vecs; ++x) {
            int64_t const at = r * to_step + x * LANES;
            if (use == PRODUCT_CARRY)
                carry(to + at, rest + at, sums[r][x]);
            else if (use == PRODUCT_ADD)
                vec_store(to + at, vec_load(to + at) + sums[r][x]);
            else
                vec_store(to + at, sums[r][x]);
        }
    }
}

/*
 * to[m][n] = (or +=) sum over x < k of a[row * a_row + x * a_step] * b[x * b_step + column].
 * m and n are multiples of DIM_PAD; `rest` is read for PRODUCT_CARRY only, laid out as `to`.
 */
static void multiply(product_use use, int32_t m, int32_t n, int32_t k, const float *a,
                     int64_t a_row, int64_t a_step, const float *b, int64_t b_step, float *to,
                     float *rest, int64_t to_step)
{
    for (int32_t row = 0; row < m; row += PRODUCT_ROWS) {
        const float *const from = a + row * a_row;
        int64_t const line = row * to_step;
        int32_t column = 0;
        for (; column + PANEL <= n; column += PANEL)
            product_tile(PRODUCT_VECS, use, k, from, a_row, a_step, b + column, b_step,
                         to + line + column, rest + line + column, to_step);
        for (; column < n; column += LANES)
            product_tile(1, use, k, from, a_row, a_step, b + column, b_step, to + line + column,
                         rest + line + column, to_step);
    }
}

/* to[column][row] = from[row][column]; both counts are multiples of DIM_PAD. */
static void transpose(const float *restrict from, int32_t rows, int32_t columns, int64_t from_step,
                      float *restrict to, int64_t to_step)
{
    for (int32_t row = 0; row < rows; row += LANES) {
        for (int32_t column = 0; column < columns; column += LANES) {
            vec block[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; ++i)
                block[i] = vec_load(from + (row + i) * from_step + column);
            vec_transpose(block);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; ++i)
                vec_store(to + (column + i) * to_step + row, block[i]);
        }
    }
}

/* Pairs whose key comes after their query get weight 0, whatever they hold. */
static void mask_later_keys(float *weights, int32_t n)
{
    for (int32_t i = 0; i < n; ++i)
        memset(weights + i * CHUNK + i + 1, 0, sizeof(float) * (size_t)(padded(n) - i - 1));
}

/* ---- carried sums ---------------------------------------------------------------------------- */

/* Load and store a state in the pass's layout: [dim][dim], then [dim]. */
static void carried_load(const carried *c, int32_t dim, const float *state)
{
    size_t const dim_pad = (size_t)padded(dim), row = sizeof(float) * (size_t)dim;
    memset(c->matrix, 0, sizeof(float) * dim_pad * dim_pad);
    memset(c->matrix_rest, 0, sizeof(float) * dim_pad * dim_pad);
    memset(c->line, 0, sizeof(float) * dim_pad);
    memset(c->line_rest, 0, sizeof(float) * dim_pad);
    if (state == NULL)
        return;
    for (int32_t d = 0; d < dim; ++d)
        memcpy(c->matrix + (size_t)d * dim_pad, state + (int64_t)d * dim, row);
    memcpy(c->line, state + (int64_t)dim * dim, row);
}

static void carried_save(const carried *c, int32_t dim, float *state)
{
    size_t const dim_pad = (size_t)padded(dim), row = sizeof(float) * (size_t)dim;
    for (int32_t d = 0; d < dim; ++d)
        memcpy(state + (int64_t)d * dim, c->matrix + (size_t)d * dim_pad, row);
    memcpy(state + (int64_t)dim * dim, c->line, row);
}

/* matrix += a^T b, over n rows of each. */
static void carried_add_product(const carried *c, int32_t n, int32_t dim_pad, const float *a,
                                const float *b)
{
    multiply(PRODUCT_CARRY, dim_pad, dim_pad, n, a, 1, dim_pad, b, dim_pad, c->matrix,
             c->matrix_rest, dim_pad);
}

/* line += sum over n rows of factors[i * step] times the row. */
static void carried_add_rows(const carried *c, int32_t n, int32_t dim_pad, const float *rows,
                             const float *factors, int64_t step)
{
    for (int32_t d = 0; d < dim_pad; d += LANES) {
        vec sum = {0};
        for (int32_t i = 0; i < n; ++i)
            sum += vec_load(rows + (int64_t)i * dim_pad + d) * factors[i * step];
        carry(c->line + d, c->line_rest + d, sum);
    }
}

#endif
