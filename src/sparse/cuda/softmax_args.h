/*
 * Arguments of the launches of the table `standard`: materialised scores become weights, weights
 * and their gradients become gradients of scores, and finished rows are rounded. Matrices are
 * float32, [lane][query row][key], a lane a query head of a batch; pointers are the device's.
 */
#ifndef RINGATTN_CUDA_SOFTMAX_ARGS_H
#define RINGATTN_CUDA_SOFTMAX_ARGS_H

#include "sparse/cuda/forward_args.h"
#include "sparse/cuda/rows_args.h"

/* Threads of a block, blocks of a multiprocessor: 64 registers for each thread. */
enum { RA_CUDA_SOFTMAX_THREADS = 256, RA_CUDA_SOFTMAX_BLOCKS = 4 };

/* Query rows that are computed: [0, head_end) and [tail_begin, rows). */
typedef struct ra_cuda_span {
    int64_t rows, head_end, tail_begin;
} ra_cuda_span;

/* All of them, or of the first and the last chunk only. */
RA_HD ra_cuda_span ra_cuda_span_of(int64_t rows, int64_t chunk_rows, int64_t chunk_count,
                                   bool ends_only)
{
    ra_cuda_span span = {0, 0, 0};
    bool const gap = ends_only && chunk_count > 2;
    span.rows = rows;
    span.head_end = gap ? chunk_rows : rows;
    span.tail_begin = gap ? (chunk_count - 1) * chunk_rows : rows;
    return span;
}

RA_HD int64_t ra_cuda_span_count(const ra_cuda_span *span)
{
    return span->head_end + (span->rows - span->tail_begin);
}

RA_HD int64_t ra_cuda_span_row(const ra_cuda_span *span, int64_t index)
{
    return index < span->head_end ? index : index - span->head_end + span->tail_begin;
}

/* A line of a matrix, and where its row's values lie. */
typedef struct ra_cuda_line {
    int64_t lane, row;
    int32_t batch, head;
} ra_cuda_line;

RA_HD ra_cuda_line ra_cuda_line_of(const ra_cuda_span *span, int32_t heads, int64_t index)
{
    ra_cuda_line line = {0, 0, 0, 0};
    int64_t const count = ra_cuda_span_count(span);
    line.lane = index / count;
    line.row = ra_cuda_span_row(span, index - line.lane * count);
    line.batch = (int32_t)(line.lane / heads);
    line.head = (int32_t)(line.lane - (int64_t)line.batch * heads);
    return line;
}

/* Forward: scores become s + ln(multiplicity), or -INFINITY if a pair is not live; weights are
   written: exp(s - top). */
typedef struct ra_cuda_softmax {
    ra_cuda_map map;
    ra_cuda_span span;
    float *scores, *weights;
    int64_t keys, lines; /* of a row; rows to compute in all lanes */
    float *lse;          /* of one step only, or NULL */
    int64_t lse_batch_stride;
    float *acc, *top, *sum; /* the state of several steps: weights are relative to the top so far;
                               NULL: one step, weights are the softmax's */
    int32_t q_heads, q_head_begin, dim;
    bool first; /* the state is begun */
} ra_cuda_softmax;

/* Backward: dS = P (dP - delta), 0 if the weight is 0; P is computed from S if it is not yet that
   of the whole softmax. */
typedef struct ra_cuda_softgrad {
    ra_cuda_span span;
    const float *scores, *dweights;
    float *weights, *dscores;
    const float *lse, *delta;
    int64_t lse_batch_stride;
    int64_t keys, stride, lines; /* stride: from row to row of scores and weights */
    int32_t q_heads;
    bool makes_weights;
} ra_cuda_softgrad;

/* Finished rows of some heads of one batch, those of head_begin + head_step * i: sums are divided
   and rounded; delta is computed before rounding. */
typedef struct ra_cuda_outputs {
    const float *sums;       /* of row_begin of the first head, [row][dim] */
    int64_t head_floats;     /* from one of the heads to the next */
    const float *top, *sum;  /* state of row 0 of head 0 of the batch, or NULL: rows are finished */
    ra_view out, dout;       /* dout: read for delta */
    float *lse, *delta;      /* of row 0 of head 0 of the batch, or NULL */
    int64_t row_begin, rows; /* of each head */
    int64_t q_rows, lines;   /* lines: heads * rows */
    int32_t batch, head_begin, head_step, dim;
} ra_cuda_outputs;

/* 16-bit rows of some heads of one batch as float32, [head][row][dim]. */
typedef struct ra_cuda_widen {
    ra_view from;
    float *to;
    int64_t row_begin, rows, units; /* units: heads * rows * row_units */
    int32_t batch, head_begin, head_step;
    int32_t elements, row_units; /* of a unit, 4 or 1; units of a row */
} ra_cuda_widen;

RA_STATIC_ASSERT(sizeof(ra_cuda_softmax) <= 4096, "kernel parameters are at most 4 KiB");

#endif
