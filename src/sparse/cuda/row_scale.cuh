/*
 * Gradients of scores as 16-bit factors of products. bfloat16 has the exponents of float32; in
 * float16 they would become 0 or infinite, so each row of a tile is multiplied by a power of two
 * that fits its largest gradient so far, with room for more. If a row's gradients outgrow it, its
 * sums are rescaled, as in an online softmax.
 *
 * Includers bring the primitives first: lanes.cuh on a GPU, an emulation of it in tests.
 */
#ifndef RINGATTN_CUDA_ROW_SCALE_CUH
#define RINGATTN_CUDA_ROW_SCALE_CUH

#include "sparse/cuda/heads.cuh"

#include <math.h>
#include <string.h>

template <class Element, int ROW_TILES> struct row_scale {
    LANE_CODE void begin() {}

    template <int TILES, int SUMS>
    LANE_CODE void fit(float (&)[ROW_TILES][TILES][4], float (&)[ROW_TILES][SUMS][4])
    {
    }

    LANE_CODE float inverse(int, int) const
    {
        return 1;
    }
};

template <int ROW_TILES> struct row_scale<element_f16, ROW_TILES> {
    float up[ROW_TILES][2]; /* for rows lane / 4 and lane / 4 + 8 of each row tile */

    LANE_CODE void begin()
    {
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m)
            up[m][0] = up[m][1] = 0x1p100f;
    }

    /* The power of two that scales x (above 2^-87) to [2^8, 2^9), with a quarter of float16's
       exponents above. */
    static LANE_CODE float scale_of(float x)
    {
        uint32_t bits;
        float scale;
        memcpy(&bits, &x, sizeof(bits));
        bits = (262 - (bits >> 23 & 255)) << 23;
        memcpy(&scale, &bits, sizeof(scale));
        return scale;
    }

    /* Scale the gradients w of a tile, and what they are about to be added to. */
    template <int TILES, int SUMS>
    LANE_CODE void fit(float (&w)[ROW_TILES][TILES][4], float (&acc)[ROW_TILES][SUMS][4])
    {
        float less[ROW_TILES][2];
        bool outgrown = false;
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float most = 0;
#pragma unroll
                for (int n = 0; n < TILES; ++n)
                    most =
                        fmaxf(most, fmaxf(fabsf(w[m][n][2 * half]), fabsf(w[m][n][2 * half + 1])));
                most = quad_max(most);
                bool const fits = most * up[m][half] <= 0x1p14f;
                float const next = fits ? up[m][half] : scale_of(most);
                less[m][half] = fits ? 1.0f : next / up[m][half];
                up[m][half] = next;
                outgrown = outgrown || !fits;
#pragma unroll
                for (int n = 0; n < TILES; ++n) {
                    w[m][n][2 * half] *= next;
                    w[m][n][2 * half + 1] *= next;
                }
            }
        }
        if (warp_vote(outgrown) == 0)
            return;
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
            for (int n = 0; n < SUMS; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    acc[m][n][i] *= less[m][i >> 1];
    }

    LANE_CODE float inverse(int m, int half) const
    {
        return 1 / up[m][half];
    }
};

#endif
