/*
 * Arguments of launches that move rows: packed rows on one side, rows of a row set on the other, of
 * which a launch gets some pieces by value. Pointers are the device's.
 *
 * A unit is some consecutive elements of one row, head and batch, moved by one thread. Successive
 * units are adjacent in memory, so that warps read and write whole lines.
 */
#ifndef RINGATTN_CUDA_ROWS_ARGS_H
#define RINGATTN_CUDA_ROWS_ARGS_H

#include "sparse/view_at.h"

enum { RA_CUDA_ROW_PIECES = 96, RA_CUDA_ROW_THREADS = 256 };

typedef enum ra_cuda_move {
    RA_CUDA_COPY, /* to = from, of one dtype */
    RA_CUDA_ADD,  /* to += from, float32 */
    RA_CUDA_STORE /* to = from, float32 rounded to any dtype */
} ra_cuda_move;

typedef struct ra_cuda_piece {
    int64_t begin, stride; /* of the rows it lists */
    int64_t first;         /* packed row of the first */
} ra_cuda_piece;

typedef struct ra_cuda_rows {
    ra_cuda_piece pieces[RA_CUDA_ROW_PIECES];
    int32_t piece_count;
    ra_cuda_move move;
    bool lists_from; /* the row set's rows are read; else they are written */
    bool wide;       /* units of 4 float32, or of 16 bytes to copy; else of one element */
    ra_view from, to;
    int64_t row_begin; /* the first packed row of this launch */
    int64_t units;     /* of this launch */
    int32_t batch, heads;
    int32_t elements, row_units; /* of a unit; units of a row of one head */
} ra_cuda_rows;

RA_STATIC_ASSERT(sizeof(ra_cuda_rows) <= 4096, "kernel parameters are at most 4 KiB");

/* Where a unit begins on either side, in elements. */
typedef struct ra_cuda_unit {
    int64_t from, to;
} ra_cuda_unit;

/* The set's row for a packed row, from the last piece that begins no later. */
RA_HD int64_t ra_cuda_listed_row(const ra_cuda_rows *r, int64_t packed)
{
    int32_t low = 0, high = r->piece_count;
    while (high - low > 1) {
        int32_t const middle = (low + high) / 2;
        if (r->pieces[middle].first <= packed)
            low = middle;
        else
            high = middle;
    }
    const ra_cuda_piece *piece = &r->pieces[low];
    return piece->begin + piece->stride * (packed - piece->first);
}

/* Row after row, then batches, heads, and units along the dim. Large batches make 2^31 units of a
   row. */
RA_HD ra_cuda_unit ra_cuda_unit_of(const ra_cuda_rows *r, int64_t index)
{
    int64_t const each = (int64_t)r->batch * r->heads * r->row_units;
    int64_t const row = index / each, packed = r->row_begin + row;
    int64_t const rest = index - row * each, line = rest / r->row_units;
    int64_t const element = (rest - line * r->row_units) * r->elements;
    int32_t const batch = (int32_t)(line / r->heads);
    int32_t const head = (int32_t)(line - (int64_t)batch * r->heads);
    int64_t const listed = ra_cuda_listed_row(r, packed);
    ra_cuda_unit unit = {0, 0};
    unit.from = ra_view_at(&r->from, batch, r->lists_from ? listed : packed, head) + element;
    unit.to = ra_view_at(&r->to, batch, r->lists_from ? packed : listed, head) + element;
    return unit;
}

/* delta[batch][head][row] = sum over dim of out * dout: a warp per row. */
typedef struct ra_cuda_delta {
    ra_view out, dout;
    float *delta;
    int64_t rows, lines; /* lines: batch * heads * rows */
    int32_t heads, dim;
} ra_cuda_delta;

#endif
