/*
 * Moves rows between tensors and scratch. Rows are converted to float32, dims padded with zeros to
 * DIM_PAD. Panels are transposed rows, [dim][PANEL]: a lane is a query, and lanes never mix.
 */
#ifndef RINGATTN_CPU_PACK_H
#define RINGATTN_CPU_PACK_H

#include "sparse/cpu/product.h"
#include "sparse/view_at.h"

/* Dims in scratch, and rows of a chunk, come in multiples of this: of LANES and of PRODUCT_ROWS,
   for every set. */
enum { DIM_PAD = 16 };

static inline int32_t padded(int32_t n)
{
    return (n + DIM_PAD - 1) / DIM_PAD * DIM_PAD;
}

static inline void *view_row(const ra_view *view, int64_t batch, int64_t row, int64_t head)
{
    int64_t const at = ra_view_at(view, batch, row, head);
    return (char *)view->data + at * (int64_t)ra_dtype_bytes(view->dtype);
}

/* One head of one batch of a view. */
typedef struct head_view {
    char *data;
    int64_t row_bytes;
    ra_dtype dtype;
} head_view;

static inline head_view view_head(const ra_view *view, int64_t batch, int64_t head)
{
    return (head_view){.data = view_row(view, batch, 0, head),
                       .row_bytes = view->row_stride * (int64_t)ra_dtype_bytes(view->dtype),
                       .dtype = view->dtype};
}

static inline void *head_row(head_view view, int64_t row)
{
    return view.data + row * view.row_bytes;
}

/* The number of query a of a tile. */
static inline int64_t tile_row(const ra_tile *tile, int32_t a)
{
    return tile->q_begin + (int64_t)tile->q_stride * a;
}

/* The row of key b of a run. */
static inline void *run_row(head_view view, const ra_run *run, int64_t b)
{
    return head_row(view, run->k_begin + run->k_stride * b);
}

/* Convert one row to float32; to[dim] up to to[padded(dim)] become zero. */
static inline void load_row(ra_dtype dtype, const void *from, int32_t dim, float *restrict to)
{
    int32_t d = 0;
    switch (dtype) {
    case RA_F32:
        for (; d + LANES <= dim; d += LANES)
            vec_store(to + d, vec_load((const float *)from + d));
        break;
    case RA_F16:
        for (; d + LANES <= dim; d += LANES)
            vec_store(to + d, vec_load_f16((const uint16_t *)from + d));
        break;
    case RA_BF16:
        for (; d + LANES <= dim; d += LANES)
            vec_store(to + d, vec_load_bf16((const uint16_t *)from + d));
        break;
    }
    for (; d < dim; ++d)
        to[d] = dtype_load(dtype, from, d);
    for (int32_t const end = padded(dim); d < end; ++d)
        to[d] = 0;
}

/* Round one float32 row to the dtype. */
static inline void store_row(ra_dtype dtype, const float *restrict from, int32_t dim, void *to)
{
    int32_t d = 0;
    switch (dtype) {
    case RA_F32:
        for (; d + LANES <= dim; d += LANES)
            vec_store((float *)to + d, vec_load(from + d));
        break;
    case RA_F16:
        for (; d + LANES <= dim; d += LANES)
            vec_store_f16((uint16_t *)to + d, vec_load(from + d));
        break;
    case RA_BF16:
        for (; d + LANES <= dim; d += LANES)
            vec_store_bf16((uint16_t *)to + d, vec_load(from + d));
        break;
    }
    for (; d < dim; ++d)
        dtype_store(dtype, to, d, from[d]);
}

/* Sum of products of two padded rows. */
static inline float dot_padded(const float *a, const float *b, int32_t dim_pad)
{
    vec sums = {0};
    for (int32_t d = 0; d < dim_pad; d += LANES)
        sums += vec_load(a + d) * vec_load(b + d);
    float sum = 0;
    for (int i = 0; i < LANES; ++i)
        sum += sums[i];
    return sum;
}

/* The same of rows of tensors; scratch: two padded rows. */
static inline float dot_row(ra_dtype a_dtype, const void *a, ra_dtype b_dtype, const void *b,
                            int32_t dim, float *restrict scratch)
{
    int32_t const dim_pad = padded(dim);
    load_row(a_dtype, a, dim, scratch);
    load_row(b_dtype, b, dim, scratch + dim_pad);
    return dot_padded(scratch, scratch + dim_pad, dim_pad);
}

static inline void add_row(const float *restrict from, int32_t dim, float *restrict to)
{
    int32_t d = 0;
    for (; d + LANES <= dim; d += LANES)
        vec_store(to + d, vec_load(to + d) + vec_load(from + d));
    for (; d < dim; ++d)
        to[d] += from[d];
}

/* Collects the bits of 0 times each value of padded float32 rows: those of 0, -0 or NaN. ORs of
   bits have shorter latency than sums. */
static inline veci check_row(veci check, const float *row, int32_t dim_pad)
{
    for (int32_t d = 0; d < dim_pad; d += LANES)
        check |= (veci)(vec_load(row + d) * 0.0f);
    return check;
}

static inline bool check_is_finite(veci check)
{
    int32_t bits = 0;
    for (int i = 0; i < LANES; ++i)
        bits |= check[i];
    return (bits & 0x7fffffff) == 0;
}

/* Columns [0, LANES) of a panel from LANES padded rows, times `factor`. */
static inline void rows_to_panel(const float *restrict rows, int32_t dim_pad, float factor,
                                 float *restrict panel)
{
    for (int32_t d = 0; d < dim_pad; d += LANES) {
        vec block[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i)
            block[i] = vec_load(rows + (int64_t)i * dim_pad + d) * factor;
        vec_transpose(block);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i)
            vec_store(panel + (int64_t)(d + i) * PANEL, block[i]);
    }
}

/* LANES padded rows from columns [0, LANES) of a panel, lane by lane times `factors`. */
static inline void panel_to_rows(const float *restrict panel, int32_t dim_pad, vec factors,
                                 float *restrict rows)
{
    for (int32_t d = 0; d < dim_pad; d += LANES) {
        vec block[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i)
            block[i] = vec_load(panel + (int64_t)(d + i) * PANEL) * factors;
        vec_transpose(block);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i)
            vec_store(rows + (int64_t)i * dim_pad + d, block[i]);
    }
}

/* Where the lanes of query `a` of a tile begin in a buffer of its panels. */
static inline int64_t panel_offset(int32_t a, int32_t dim_pad)
{
    return (int64_t)(a / PANEL) * PANEL * dim_pad + a % PANEL;
}

/* Rows of the panels for a tile of so many queries: nothing reads the rows behind. */
static inline int32_t panel_rows(int32_t q_count)
{
    return (q_count + PANEL - 1) / PANEL * PANEL;
}

#endif
