/* Row work on the device: from row sets to launches. */
#include "internal.h"
#include "sparse/cuda/cuda_internal.h"
#include "sparse/cuda/rows_launch.h"

/* Launches of one move that are enqueued without waiting for any; see RA_CUDA_QUEUE. */
enum { LAUNCHES_AHEAD = RA_CUDA_QUEUE / 4 };

/* All arguments but pieces and units, which differ from launch to launch. */
static ra_cuda_rows begin_rows(ra_cuda_move move, const ra_kernel_shape *shape, const ra_view *from,
                               const ra_view *to)
{
    /* A wide unit is 16 bytes of what is read. */
    int32_t const elements = (int32_t)(16 / ra_dtype_bytes(from->dtype));
    bool const wide = shape->dim % elements == 0 && ra_view_is_aligned(from, elements) &&
                      ra_view_is_aligned(to, elements);
    ra_cuda_rows r = {.move = move,
                      .lists_from = move == RA_CUDA_COPY,
                      .wide = wide,
                      .from = *from,
                      .to = *to,
                      .batch = (int32_t)shape->batch,
                      .heads = shape->kv_heads,
                      .elements = wide ? elements : 1};
    r.row_units = shape->dim / r.elements;
    return r;
}

static ra_status launch(ra_kernel *kernel, ra_cuda_rows *r, int64_t row_end)
{
    r->units = (row_end - r->row_begin) * r->batch * r->heads * r->row_units;
    cudaError_t const error =
        ra_cuda_rows_launch(r, ra_cuda_block_count(kernel, r->units, RA_CUDA_ROW_THREADS),
                            ra_cuda_self(kernel)->stream);
    r->piece_count = 0;
    r->row_begin = row_end;
    return ra_cuda_kernel_status(kernel, error, "kernel cuda: moving rows");
}

/* One launch after the other, each with as many pieces as it holds. */
static ra_status move_rows(ra_kernel *kernel, const ra_rowset *rows, ra_cuda_rows *r)
{
    int ahead = 0;
    ra_status status = ra_cuda_enter(kernel);
    if (r->batch == 0 || r->heads == 0)
        return status;
    for (int64_t i = 0; i < rows->piece_count && status == RA_OK; ++i) {
        const ra_row_piece *const piece = &rows->pieces[i];
        r->pieces[r->piece_count++] =
            (ra_cuda_piece){piece->rows.begin, piece->rows.stride, piece->first};
        if (r->piece_count < RA_CUDA_ROW_PIECES && i + 1 < rows->piece_count)
            continue;
        status = launch(kernel, r, piece->first + piece->rows.count);
        if (status == RA_OK && ++ahead % LAUNCHES_AHEAD == 0)
            status = ra_cuda_finish(kernel);
    }
    return status;
}

ra_status ra_cuda_gather(ra_kernel *kernel, const ra_kernel_shape *shape, const ra_rowset *rows,
                         const ra_view *from, const ra_view *to)
{
    RA_ASSERT(from->dtype == to->dtype);
    ra_cuda_rows r = begin_rows(RA_CUDA_COPY, shape, from, to);
    return move_rows(kernel, rows, &r);
}

ra_status ra_cuda_add(ra_kernel *kernel, const ra_kernel_shape *shape, const ra_rowset *rows,
                      const ra_view *from, const ra_view *to)
{
    RA_ASSERT(from->dtype == RA_F32 && to->dtype == RA_F32);
    ra_cuda_rows r = begin_rows(RA_CUDA_ADD, shape, from, to);
    return move_rows(kernel, rows, &r);
}

ra_status ra_cuda_store(ra_kernel *kernel, const ra_kernel_shape *shape, int64_t count,
                        const ra_view *from, const ra_view *to)
{
    RA_ASSERT(from->dtype == RA_F32);
    ra_row_piece whole = {{0, 1, count}, 0};
    ra_rowset const rows = {.pieces = &whole, .piece_count = count > 0, .row_count = count};
    ra_cuda_rows r = begin_rows(RA_CUDA_STORE, shape, from, to);
    return move_rows(kernel, &rows, &r);
}

ra_status ra_cuda_delta_rows(ra_kernel *kernel, const ra_kernel_shape *shape, int64_t q_rows,
                             const ra_view *out, const ra_view *dout, float *delta_out)
{
    RA_ASSERT(out->dtype == dout->dtype);
    ra_cuda_delta const d = {.out = *out,
                             .dout = *dout,
                             .delta = delta_out,
                             .rows = q_rows,
                             .lines = shape->batch * shape->q_heads * q_rows,
                             .heads = shape->q_heads,
                             .dim = shape->dim};
    ra_status const status = ra_cuda_enter(kernel);
    if (status != RA_OK || d.lines == 0)
        return status;
    int const blocks = ra_cuda_block_count(kernel, 32 * d.lines, RA_CUDA_ROW_THREADS);
    return ra_cuda_kernel_status(kernel,
                                 ra_cuda_delta_launch(&d, blocks, ra_cuda_self(kernel)->stream),
                                 "kernel cuda: delta");
}

ra_status ra_cuda_zero(ra_kernel *kernel, void *data, size_t bytes)
{
    ra_status const status = ra_cuda_enter(kernel);
    if (status != RA_OK || bytes == 0)
        return status;
    return ra_cuda_kernel_status(kernel,
                                 cudaMemsetAsync(data, 0, bytes, ra_cuda_self(kernel)->stream),
                                 "kernel cuda: zeros");
}
