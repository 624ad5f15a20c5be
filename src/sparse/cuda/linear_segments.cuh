/* States of segments: added up, or spread to what each segment sees. Bound by memory. */
#ifndef RINGATTN_CUDA_LINEAR_SEGMENTS_CUH
#define RINGATTN_CUDA_LINEAR_SEGMENTS_CUH

#include "sparse/cuda/linear_args.h"

/* `sum` and every segment's. */
LANE_CODE float segments_total(const ra_cuda_segments &f, float sum, const float *at)
{
    for (int32_t x = 0; x < f.segments; ++x)
        sum += at[x * f.floats];
    return sum;
}

/* Each segment's own sum becomes the sum of those before it, in scan order. */
LANE_CODE void segments_prefix(const ra_cuda_segments &f, float before, float *at)
{
    int64_t const step = f.reach == RA_LINEAR_BEFORE ? f.floats : -f.floats;
    float *to = at + (f.reach == RA_LINEAR_BEFORE ? 0 : (f.segments - 1) * f.floats);
    for (int32_t x = 0; x < f.segments; ++x, to += step) {
        float const own = *to;
        *to = before;
        before += own;
    }
}

/* A thread per float of a state; those of a warp lie next to each other. */
LANE_CODE void segments_all(const ra_cuda_segments &f)
{
    int64_t const step = block_count() * thread_count(), count = f.lanes * f.floats;
    for (int64_t i = block_index() * thread_count() + thread_index(); i < count; i += step) {
        int64_t const lane = i / f.floats;
        float *const at = f.states + lane * f.segments * f.floats + (i - lane * f.floats);
        float const before = f.before != NULL ? f.before[i] : 0;
        if (f.totals != NULL) {
            f.totals[i] = segments_total(f, 0, at);
        } else if (f.reach == RA_LINEAR_ALL) {
            float const after = f.after != NULL ? f.after[i] : 0;
            float const sum = segments_total(f, before, at) + after;
            for (int32_t x = 0; x < f.segments; ++x)
                at[x * f.floats] = sum;
        } else {
            segments_prefix(f, before, at);
        }
    }
}

#endif
