/*
 * Blocks of the materialised matrices. Values that are not finite reach only rows that see them: a
 * pair without weight is skipped, as 0 times an infinity would be NaN.
 */
#define RA_VEC_LANES 4 /* for any machine, as in kernels_portable.c */

#include "sparse/cpu/standard_rows.h"
#include "internal.h"
#include "ringattn/blas.h"
#include "sparse/cpu/exp2.h"
#include "sparse/run_band.h"

#include <math.h>
#include <string.h>

/* Further apart, OpenBLAS 0.3.21's products of small matrices by AVX-512 write elsewhere: offsets
   of 16 rows are 32 bits there. */
enum { BLAS_STRIDE_MAX = 1 << 24 };

static bool blas_takes(int64_t stride, int32_t dim)
{
    return stride >= dim && stride <= BLAS_STRIDE_MAX;
}

ra_operand ra_standard_operand(const ra_view *view, int64_t batch, int64_t head, int64_t row,
                               int32_t count, int32_t dim, float *scratch)
{
    int64_t const begin = ra_view_at(view, batch, row, head);
    if (view->dtype == RA_F32 && blas_takes(view->row_stride, dim))
        return (ra_operand){(const float *)view->data + begin, (int32_t)view->row_stride, count,
                            dim};
    for (int32_t i = 0; i < count; ++i) {
        int64_t const at = begin + i * view->row_stride;
        const uint16_t *from = (const uint16_t *)view->data + at;
        float *to = scratch + (int64_t)i * dim;
        if (view->dtype == RA_F32) {
            memcpy(to, (const float *)view->data + at, (size_t)dim * sizeof(float));
        } else if (view->dtype == RA_BF16) {
            for (int32_t d = 0; d < dim; ++d)
                to[d] = f32_of_bf16(from[d]);
        } else {
            for (int32_t d = 0; d < dim; ++d)
                to[d] = f32_of_f16(from[d]);
        }
    }
    return (ra_operand){scratch, dim, count, dim};
}

void ra_standard_multiply(const ra_score_block *block, float factor, const ra_operand *queries,
                          const ra_operand *keys)
{
    ra_blas_multiply(&(ra_blas_product){.m = queries->count,
                                        .n = keys->count,
                                        .k = queries->dim,
                                        .b_transposed = true,
                                        .factor = factor,
                                        .a = queries->rows,
                                        .b = keys->rows,
                                        .c = block->data,
                                        .a_stride = queries->stride,
                                        .b_stride = keys->stride,
                                        .c_stride = (int32_t)block->stride});
}

/* Whether all values x are finite: 0 times x is then 0, else NaN. ORs bits: the compiler must keep
   the order of a sum. */
static bool is_finite(const ra_operand *rows)
{
    for (int32_t i = 0; i < rows->count; ++i) {
        const float *row = rows->rows + (int64_t)i * rows->stride;
        uint32_t bits = 0;
        for (int32_t d = 0; d < rows->dim; ++d)
            bits |= bits_of_f32(0.0f * row[d]);
        if ((bits & 0x7fffffff) != 0) /* all but signs of zeros */
            return false;
    }
    return true;
}

/* As ra_standard_fold, pair by pair. */
static void fold_live(const ra_score_block *block, bool transposed, float factor,
                      const ra_operand *rows, float *to, int64_t to_stride)
{
    for (int32_t q = 0; q < block->queries; ++q) {
        for (int32_t k = 0; k < block->keys; ++k) {
            float const weight = block->data[q * block->stride + k];
            const float *row = rows->rows + (int64_t)(transposed ? q : k) * rows->stride;
            float *sum = to + (transposed ? k : q) * to_stride;
            for (int32_t d = 0; d < rows->dim && weight != 0; ++d)
                sum[d] += factor * weight * row[d];
        }
    }
}

void ra_standard_fold(const ra_score_block *block, bool transposed, float factor,
                      const ra_operand *rows, float *to, int64_t to_stride, float *scratch)
{
    int32_t const count = transposed ? block->keys : block->queries, dim = rows->dim;
    bool const in_place = blas_takes(to_stride, dim);
    if (!is_finite(rows)) {
        fold_live(block, transposed, factor, rows, to, to_stride);
        return;
    }
    ra_blas_multiply(&(ra_blas_product){.m = count,
                                        .n = dim,
                                        .k = rows->count,
                                        .a_transposed = transposed,
                                        .factor = factor,
                                        .keep = in_place ? 1 : 0,
                                        .a = block->data,
                                        .b = rows->rows,
                                        .c = in_place ? to : scratch,
                                        .a_stride = (int32_t)block->stride,
                                        .b_stride = rows->stride,
                                        .c_stride = in_place ? (int32_t)to_stride : dim});
    for (int32_t i = 0; i < count && !in_place; ++i)
        for (int32_t d = 0; d < dim; ++d)
            to[i * to_stride + d] += scratch[(int64_t)i * dim + d];
}

/* ---- masks ----------------------------------------------------------------------------------- */

static void count_run(const ra_run *run, int32_t q_count, int32_t a, float *row)
{
    ra_run_band const band = ra_run_band_of(run, q_count);
    ra_run_keys const seen = ra_run_band_seen(band, a, a + 1, 0, run->k_count);
    float *at = row + run->k_begin + (int64_t)seen.begin * run->k_stride;
    if (run->k_stride == 1) {
        for (int32_t i = 0; i < seen.end - seen.begin; ++i)
            at[i] += 1;
        return;
    }
    for (int32_t b = seen.begin; b < seen.end; ++b, at += run->k_stride)
        *at += 1;
}

/* The tile's queries that lie in the block's rows. */
static void count_tile(const ra_tilemap *map, uint32_t index, int64_t row,
                       const ra_score_block *block)
{
    const ra_tile *tile = &map->tiles[index];
    int64_t const first = ra_max_i64(0, ra_div_ceil(row - tile->q_begin, tile->q_stride));
    int64_t const last = ra_min_i64(
        tile->q_count - 1, ra_div_floor(row + block->queries - 1 - tile->q_begin, tile->q_stride));
    for (int64_t a = first; a <= last; ++a) {
        float *weights = block->data + (tile->q_begin + a * tile->q_stride - row) * block->stride;
        for (uint32_t r = tile->run_begin; r < map->tiles[index + 1].run_begin; ++r)
            count_run(&map->runs[r], tile->q_count, (int32_t)a, weights);
    }
}

void ra_standard_count_pairs(const ra_tilemap *map, int32_t head, int64_t row,
                             const ra_score_block *block)
{
    int64_t const last = (row + block->queries - 1) / map->chunk_rows;
    for (int32_t i = 0; i < map->layer_count; ++i) {
        const ra_tile_layer *layer = &map->layers[i];
        if (!ra_heads_contain(layer->heads, head))
            continue;
        for (int64_t chunk = row / map->chunk_rows; chunk <= last; ++chunk)
            for (uint32_t t = layer->chunk_tile[chunk]; t < layer->chunk_tile[chunk + 1]; ++t)
                count_tile(map, t, row, block);
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

float ra_standard_mask_row(float *scores, const float *weights, int64_t keys)
{
    float top = -INFINITY, most = 0;
    vec tops = vec_splat(top), mosts = {0};
    int64_t k = 0;
    for (; k + LANES <= keys; k += LANES) {
        vec const weight = vec_load(weights + k);
        vec const score = vec_select(weight != 0.0f, vec_load(scores + k), vec_splat(-INFINITY));
        vec_store(scores + k, score);
        tops = vec_max(score, tops); /* a NaN is no top, and stays NaN */
        mosts = vec_max(weight, mosts);
    }
    for (int i = 0; i < LANES; ++i) {
        top = tops[i] > top ? tops[i] : top;
        most = mosts[i] > most ? mosts[i] : most;
    }
    for (; k < keys; ++k) {
        scores[k] = weights[k] != 0 ? scores[k] : -INFINITY;
        top = scores[k] > top ? scores[k] : top;
        most = weights[k] > most ? weights[k] : most;
    }
    if (most <= 1)
        return top;
    for (k = 0; k < keys; ++k) {
        if (weights[k] > 1)
            scores[k] += logf(weights[k]);
        top = scores[k] > top ? scores[k] : top;
    }
    return top;
}

/* Sums of 128 weights first, then of these. */
float ra_standard_weigh_row(const float *scores, float *weights, int64_t keys, float top)
{
    enum { PIECE = 128 };
    float const log2_e = 1.44269504f;
    /* If nothing is live, or all is -INFINITY or NaN, any finite top will do. The NaN top of a row
       that sees a NaN must not reach pairs that are not live. */
    float const base = top == -INFINITY ? 0 : top;
    double sum = 0;
    for (int64_t begin = 0; begin < keys; begin += PIECE) {
        int64_t const end = ra_min_i64(begin + PIECE, keys);
        vec sums = {0};
        int64_t k = begin;
        for (; k + LANES <= end; k += LANES) {
            vec const score = vec_load(scores + k);
            vec const weight = vec_select(score == vec_splat(-INFINITY), (vec){0},
                                          vec_exp2((score - base) * log2_e));
            vec_store(weights + k, weight);
            sums += weight;
        }
        float piece = 0;
        for (int i = 0; i < LANES; ++i)
            piece += sums[i];
        for (; k < end; ++k) {
            weights[k] = scores[k] == -INFINITY ? 0 : expf(scores[k] - base);
            piece += weights[k];
        }
        sum += (double)piece;
    }
    return (float)sum;
}

void ra_standard_scale_row(float *weights, int64_t keys, float factor)
{
    int64_t k = 0;
    for (; k + LANES <= keys; k += LANES) {
        vec const weight = vec_load(weights + k);
        vec_store(weights + k, vec_select(weight != 0.0f, weight * factor, (vec){0}));
    }
    for (; k < keys; ++k)
        weights[k] = weights[k] != 0 ? weights[k] * factor : 0;
}

void ra_standard_grad_row(const float *weights, const float *dweights, float delta, float *dscores,
                          int64_t keys)
{
    int64_t k = 0;
    for (; k + LANES <= keys; k += LANES) {
        vec const weight = vec_load(weights + k), dweight = vec_load(dweights + k);
        vec_store(dscores + k, vec_select(weight != 0.0f, weight * (dweight - delta), (vec){0}));
    }
    for (; k < keys; ++k)
        dscores[k] = weights[k] != 0 ? weights[k] * (dweights[k] - delta) : 0;
}
