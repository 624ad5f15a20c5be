/*
 * Row work: delta, and moving, adding and rounding rows. Parallel over rows; each is written once.
 */
#ifndef RINGATTN_CPU_ROWS_H
#define RINGATTN_CPU_ROWS_H

#include "sparse/cpu/pack.h"

/* Rows [begin, end) that thread `index` of `count` takes. */
typedef struct row_share {
    int64_t begin, end;
} row_share;

static inline row_share share_of(int64_t rows, int index, int count)
{
    return (row_share){ra_share_begin(rows, index, count), ra_share_begin(rows, index + 1, count)};
}

static void delta_thread(const ra_kernel_shape *shape, int64_t q_rows, const ra_view *out,
                         const ra_view *dout, float *delta, float *scratch)
{
    row_share const share = share_of(q_rows, thread_index(), thread_count());
    for (int64_t lane = 0; lane < shape->batch * shape->q_heads; ++lane) {
        int64_t const batch = lane / shape->q_heads, head = lane % shape->q_heads;
        for (int64_t row = share.begin; row < share.end; ++row)
            delta[lane * q_rows + row] =
                dot_row(out->dtype, view_row(out, batch, row, head), dout->dtype,
                        view_row(dout, batch, row, head), shape->dim, scratch);
    }
}

/* Move all kv heads of a row to the packed row that stands for it, or from there. */
typedef void row_mover(const ra_kernel_shape *shape, const ra_view *from, const ra_view *to,
                       int64_t batch, int64_t row, int64_t packed);

static void gather_heads(const ra_kernel_shape *shape, const ra_view *from, const ra_view *to,
                         int64_t batch, int64_t row, int64_t packed)
{
    size_t const bytes = (size_t)shape->dim * ra_dtype_bytes(from->dtype);
    if (from->head_stride == shape->dim && to->head_stride == shape->dim) {
        memcpy(view_row(to, batch, packed, 0), view_row(from, batch, row, 0),
               bytes * (size_t)shape->kv_heads);
        return;
    }
    for (int32_t head = 0; head < shape->kv_heads; ++head)
        memcpy(view_row(to, batch, packed, head), view_row(from, batch, row, head), bytes);
}

static void add_heads(const ra_kernel_shape *shape, const ra_view *from, const ra_view *to,
                      int64_t batch, int64_t row, int64_t packed)
{
    for (int32_t head = 0; head < shape->kv_heads; ++head)
        add_row(view_row(from, batch, packed, head), shape->dim, view_row(to, batch, row, head));
}

/* Move this thread's share of the packed rows. */
static void move_thread(const ra_kernel_shape *shape, const ra_rowset *rows, const ra_view *from,
                        const ra_view *to, row_mover *move)
{
    row_share const share = share_of(rows->row_count, thread_index(), thread_count());
    for (int64_t batch = 0; batch < shape->batch; ++batch) {
        for (int64_t i = 0; i < rows->piece_count; ++i) {
            ra_row_piece const cut = ra_row_piece_cut(&rows->pieces[i], share.begin, share.end);
            for (int64_t x = 0; x < cut.rows.count; ++x)
                move(shape, from, to, batch, cut.rows.begin + cut.rows.stride * x, cut.first + x);
        }
    }
}

static void store_thread(const ra_kernel_shape *shape, int64_t count, const ra_view *from,
                         const ra_view *to)
{
    row_share const share = share_of(count, thread_index(), thread_count());
    for (int64_t batch = 0; batch < shape->batch; ++batch) {
        for (int64_t row = share.begin; row < share.end; ++row) {
            for (int32_t head = 0; head < shape->kv_heads; ++head)
                store_row(to->dtype, view_row(from, batch, row, head), shape->dim,
                          view_row(to, batch, row, head));
        }
    }
}

#endif
