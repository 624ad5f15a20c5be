/*
 * Moving, adding and rounding rows, and delta: all bound by memory, and written for it. Includers
 * bring the primitives first: lanes.cuh on a GPU, an emulation of it in tests.
 */
#ifndef RINGATTN_CUDA_ROWS_CUH
#define RINGATTN_CUDA_ROWS_CUH

#include "sparse/cuda/heads.cuh"
#include "sparse/cuda/rows_args.h"

template <int BYTES> struct rows_copy {
    static constexpr int from_bytes = BYTES, to_bytes = BYTES;

    static LANE_CODE void wide(char *to, const char *from)
    {
        copy_piece(to, from);
    }

    static LANE_CODE void one(char *to, const char *from)
    {
#pragma unroll
        for (int i = 0; i < BYTES / 2; ++i)
            ((uint16_t *)to)[i] = ((const uint16_t *)from)[i];
    }
};

struct rows_add {
    static constexpr int from_bytes = 4, to_bytes = 4;

    static LANE_CODE void wide(char *to, const char *from)
    {
        float sum[4], more[4];
        load_floats(to, sum);
        load_floats(from, more);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            sum[i] += more[i];
        store_floats(to, sum);
    }

    static LANE_CODE void one(char *to, const char *from)
    {
        *(float *)to += *(const float *)from;
    }
};

template <class Element> struct rows_store {
    static constexpr int from_bytes = 4, to_bytes = Element::bytes;

    static LANE_CODE void wide(char *to, const char *from)
    {
        float values[4];
        load_floats(from, values);
        Element::store_four(to, values);
    }

    static LANE_CODE void one(char *to, const char *from)
    {
        Element::store(to, 0, *(const float *)from);
    }
};

template <class Move> LANE_CODE void rows_all(const ra_cuda_rows &r)
{
    int64_t const step = block_count() * thread_count();
    for (int64_t i = block_index() * thread_count() + thread_index(); i < r.units; i += step) {
        ra_cuda_unit const unit = ra_cuda_unit_of(&r, i);
        const char *const from = (const char *)r.from.data + unit.from * Move::from_bytes;
        char *const to = (char *)r.to.data + unit.to * Move::to_bytes;
        if (r.wide)
            Move::wide(to, from);
        else
            Move::one(to, from);
    }
}

template <class Element> LANE_CODE void delta_all(const ra_cuda_delta &d)
{
    int64_t const warps = thread_count() / 32, step = block_count() * warps;
    for (int64_t line = block_index() * warps + warp_index(); line < d.lines; line += step) {
        int64_t const lane = line / d.rows, row = line - lane * d.rows;
        int32_t const batch = (int32_t)(lane / d.heads), head = (int32_t)(lane - batch * d.heads);
        int64_t const out = ra_view_at(&d.out, batch, row, head);
        int64_t const dout = ra_view_at(&d.dout, batch, row, head);
        float sum = 0;
        for (int i = lane_index(); i < d.dim; i += 32)
            sum = fmaf(Element::load((const char *)d.out.data, out + i),
                       Element::load((const char *)d.dout.data, dout + i), sum);
        sum = warp_sum(sum);
        if (lane_index() == 0)
            d.delta[line] = sum;
    }
}

#endif
