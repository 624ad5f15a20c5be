/*
 * How a block of keys visits the queries that see some of them.
 *
 * A map lists runs of keys by tiles of queries. The pass for dk and dv goes the other way: a thread
 * block owns key rows, finds the runs that meet them, and visits, of each such run's tile, the
 * queries that see a key of the block. Keys of a block are numbered by slots:
 *
 *     slot i   row + stride * i, 0 <= i < count,   which is key b = i + shift of a run that has the
 *                                                  block's stride and phase
 *
 * Runs of another stride are visited too, at a division per key and step; the mask finds the keys
 * that they share with the block. So a block's stride affects speed only.
 */
#ifndef RINGATTN_CUDA_QUERY_CURSOR_H
#define RINGATTN_CUDA_QUERY_CURSOR_H

#include "sparse/cuda/key_cursor.h"

#include <stdalign.h>

enum {
    RA_CUDA_KEY_STRIDE_MAX = 64, /* a block has more slots than keys of runs further apart */
    RA_KEY_NONE = INT32_MIN / 2, /* the key of a slot that no query of the run sees */
    RA_SHIFT_NONE = INT32_MIN    /* the run has another stride or phase than the block */
};

typedef struct ra_key_block {
    int32_t row, stride, count;
} ra_key_block;

/* ---- which keys are dealt to a block --------------------------------------------------------- */

/* A key stride for runs [begin, end): that of the first with two keys, among the first few. */
RA_HD int32_t ra_cuda_key_stride(const ra_run *runs, uint32_t begin, uint32_t end)
{
    enum { LOOK = 32 };
    uint32_t const last = end - begin < LOOK ? end : begin + LOOK;
    for (uint32_t r = begin; r < last; ++r)
        if (runs[r].k_count > 1)
            return ra_hd_min(runs[r].k_stride, RA_CUDA_KEY_STRIDE_MAX);
    return 1;
}

/* How many blocks of at most `keys` keys rows [begin, end) make at a stride; some may be empty. */
RA_HD int32_t ra_key_block_count(int64_t begin, int64_t end, int32_t stride, int32_t keys)
{
    int64_t const rows = (int64_t)keys * stride;
    return (int32_t)((end - begin + rows - 1) / rows) * stride;
}

RA_HD ra_key_block ra_key_block_of(int64_t begin, int64_t end, int32_t stride, int32_t keys,
                                   int32_t index)
{
    int64_t const rows = (int64_t)keys * stride, section = begin + index / stride * rows;
    int64_t const row = section + index % stride;
    int64_t const last = section + rows < end ? section + rows : end;
    ra_key_block block = {0, 0, 0};
    block.row = (int32_t)(row < last ? row : begin);
    block.stride = stride;
    block.count = row < last ? (int32_t)((last - row + stride - 1) / stride) : 0;
    return block;
}

/* The last key row of a block that is not empty. */
RA_HD int64_t ra_key_block_last(const ra_key_block *block)
{
    return block->row + (int64_t)block->stride * (block->count - 1);
}

/* Whether a run may have a key in common with a block that is not empty; exact if the run has its
   stride, or one key. */
RA_HD bool ra_key_block_meets(const ra_key_block *block, const ra_run *run)
{
    int64_t const run_last = run->k_begin + (int64_t)run->k_stride * (run->k_count - 1);
    if (run->k_begin > ra_key_block_last(block) || run_last < block->row)
        return false;
    if (run->k_stride != block->stride && run->k_count > 1)
        return true;
    return (run->k_begin - block->row) % block->stride == 0;
}

/* Whether a run of a span may meet a block that is not empty. */
RA_HD bool ra_key_block_reaches(const ra_key_block *block, const ra_key_span *span)
{
    return span->last >= block->row && span->first <= ra_key_block_last(block);
}

/* Whether no run after a span's in the index meets a block that is not empty. */
RA_HD bool ra_key_block_precedes(const ra_key_block *block, const ra_key_span *span)
{
    return span->first / RA_SECTION_KEYS * (int64_t)RA_SECTION_KEYS > ra_key_block_last(block);
}

/* ---- which queries see them ------------------------------------------------------------------ */

/* Aligned, so that it is copied by 16 bytes: all warps wait for the thread that does. */
typedef struct ra_query_cursor {
    alignas(16) int32_t q_begin;
    int32_t q_stride, q_count; /* of the tile */
    int32_t k_begin, k_stride; /* of the run */
    ra_run_band band;          /* its own */
    int32_t b_first, b_last;   /* its keys that may be in the block */
    int32_t shift;             /* or RA_SHIFT_NONE */
    int32_t a_begin, a_end;    /* queries that see some of them */
    int32_t a;                 /* the step begins at this query */
    int32_t head, entry;       /* among those that the visitor goes through */
} ra_query_cursor;

/* floor(x / stride); a division takes long on a GPU, and most strides are 1. */
RA_HD int32_t ra_key_of_row(int32_t x, int32_t stride)
{
    return stride == 1 ? x : ra_hd_div_floor(x, stride);
}

/* Enter a tile's run; false: none of its queries sees a key of the block. Tile and run are read at
   once: as far as the compiler knows, writes to the cursor may alias them. */
RA_HD bool ra_query_cursor_enter(const ra_key_block *block, ra_tile tile, ra_run run,
                                 ra_query_cursor *c)
{
    /* A single key has any stride. */
    int32_t const stride = block->stride;
    int32_t const k_stride = run.k_count == 1 ? stride : run.k_stride;
    int32_t const first = block->row - run.k_begin;
    int32_t const last = first + stride * (block->count - 1);
    int32_t const b_first = -ra_key_of_row(-first, k_stride),
                  b_last = ra_key_of_row(last, k_stride);
    if (b_last < 0 || b_first >= run.k_count)
        return false;
    c->q_begin = tile.q_begin;
    c->q_stride = tile.q_stride;
    c->q_count = tile.q_count;
    c->k_begin = run.k_begin;
    c->k_stride = k_stride;
    c->band = ra_run_band_of(&run, tile.q_count);
    c->b_first = ra_hd_max(b_first, 0);
    c->b_last = ra_hd_min(b_last, run.k_count - 1);
    c->shift = k_stride == stride && b_first * k_stride == first ? b_first : (int32_t)RA_SHIFT_NONE;
    c->a_begin = ra_hd_max(0, c->b_first - c->band.hi);
    c->a_end = ra_hd_min(tile.q_count, c->b_last - c->band.lo + 1);
    c->a = c->a_begin;
    return c->b_first <= c->b_last && c->a_begin < c->a_end;
}

/* Row of query a in the tensors. */
RA_HD int64_t ra_query_cursor_row(const ra_query_cursor *c, int32_t a)
{
    return c->q_begin + (int64_t)c->q_stride * a;
}

/* The run's key in a slot, or RA_KEY_NONE. */
RA_HD int32_t ra_query_cursor_key(const ra_query_cursor *c, const ra_key_block *block, int32_t slot)
{
    int32_t b = slot + c->shift;
    if (slot >= block->count)
        return RA_KEY_NONE;
    if (c->shift == RA_SHIFT_NONE) {
        int32_t const rows = block->row - c->k_begin + block->stride * slot;
        b = rows % c->k_stride == 0 ? rows / c->k_stride : (int32_t)RA_KEY_NONE;
    }
    return b < c->b_first || b > c->b_last ? (int32_t)RA_KEY_NONE : b;
}

/* Whether query a of the tile sees key b of the run, which may be none. */
RA_HD bool ra_query_cursor_live(const ra_query_cursor *c, int32_t a, int32_t b)
{
    return ra_run_band_has(c->band, a, b);
}

/* The queries that see key b, which may be none, as offsets from query a. */
RA_HD ra_live_span ra_query_cursor_span(const ra_query_cursor *c, int32_t a, int32_t b)
{
    ra_live_span span = {0, 0};
    if (b == RA_KEY_NONE)
        return span;
    span.first = b - c->band.hi - a;
    span.count = ra_hd_max(0, c->band.hi - c->band.lo + 1);
    return span;
}

/* Whether some pair of the block's keys and the step's `q_rows` queries (those within the tile) is
   not live. Slots beyond the block's are ignored. No branches: all warps wait for the answer. */
RA_HD bool ra_query_cursor_masked(const ra_query_cursor *c, const ra_key_block *block,
                                  int32_t q_rows)
{
    int32_t const a_last = ra_hd_min(c->a + q_rows, c->q_count) - 1;
    return (c->shift == RA_SHIFT_NONE) | (c->shift != c->b_first) |
           (c->shift + block->count - 1 != c->b_last) | (c->b_first - a_last < c->band.lo) |
           (c->b_last - c->a > c->band.hi);
}

#endif
