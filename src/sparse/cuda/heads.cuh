/*
 * What passes and dtypes have in common: where a head lies, which layers it is in, sums over the
 * lanes that share a row, four or all of a warp, and long sums.
 *
 * Includers bring the primitives first: lanes.cuh on a GPU, an emulation of it in tests.
 */
#ifndef RINGATTN_CUDA_HEADS_CUH
#define RINGATTN_CUDA_HEADS_CUH

#include "ringattn/kernel.h"

LANE_CODE char *head_data(const ra_view &view, int element_bytes, int64_t batch, int64_t head)
{
    return (char *)view.data +
           (batch * view.batch_stride + head * view.head_stride) * element_bytes;
}

/* Rows of float32 that lie a stride apart, to shared memory; rows and dims that are not there
   become 0. A row there has one float more than the pass has dims. */
template <int THREADS, int ROWS, int PITCH>
LANE_CODE void copy_floats(const char *data, int64_t row_stride, int64_t begin, int64_t stride,
                           int count, int dim, float (&to)[ROWS][PITCH])
{
    constexpr int DIM = PITCH - 1;
    for (int i = thread_index(); i < ROWS * DIM; i += THREADS) {
        int const r = i / DIM, d = i % DIM;
        to[r][d] = r < count && d < dim
                       ? element_f32::load(data, (begin + stride * r) * row_stride + d)
                       : 0;
    }
}

LANE_CODE bool layer_has(const ra_tile_layer &layer, int32_t head)
{
    int32_t const at = head - layer.heads.begin, stride = layer.heads.stride;
    if (stride == 1) /* a GPU divides by some 35 instructions */
        return at >= 0 && at < layer.heads.count;
    return at >= 0 && at % stride == 0 && at / stride < layer.heads.count;
}

LANE_CODE float quad_sum(float x)
{
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}

LANE_CODE float quad_max(float x)
{
    x = fmaxf(x, shuffle_xor(x, 1));
    return fmaxf(x, shuffle_xor(x, 2));
}

LANE_CODE float warp_sum(float x)
{
    for (int mask = 16; mask > 0; mask /= 2)
        x += shuffle_xor(x, mask);
    return x;
}

/* sum + rest += more, where rest is what sum cannot hold (TwoSum, Knuth). */
LANE_CODE void carry_sum(float &sum, float &rest, float more)
{
    float const old = sum, with_rest = more + rest;
    sum = old + with_rest;
    float const added = sum - old;
    rest = (old - (sum - added)) + (with_rest - added);
}

LANE_CODE float warp_max(float x)
{
    for (int mask = 16; mask > 0; mask /= 2)
        x = fmaxf(x, shuffle_xor(x, mask));
    return x;
}

#endif
