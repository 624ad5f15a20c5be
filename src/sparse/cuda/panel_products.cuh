/*
 * What a warpgroup multiplies: tiles in panels (wgmma_layout.h), or weights in registers with such
 * tiles. All of these begin products, which are to be waited for.
 *
 * Includers bring the primitives first: warpgroup.cuh on a GPU, an emulation of it in tests.
 */
#ifndef RINGATTN_CUDA_PANEL_PRODUCTS_CUH
#define RINGATTN_CUDA_PANEL_PRODUCTS_CUH

#include "sparse/cuda/wgmma_layout.h"

template <class Element> struct panel_products {
    typedef warpgroup<Element> group;

    /* Where a tile lies, from one of its rows on, a multiple of 8. */
    static LANE_CODE uint32_t place_of(const char *tile, int row = 0)
    {
        return ra_wgmma_at(shared_address(tile) + row * RA_PANEL_ROW_BYTES);
    }

    /* c = left * right^T over DIM columns: 64 rows of a tile of LEFT_ROWS with as many of another,
       of RIGHT_ROWS, as c has columns. */
    template <int DIM, int LEFT_ROWS, int RIGHT_ROWS, int TILES>
    static LANE_CODE void begin_scores(uint32_t left, uint32_t right, float (&c)[TILES][4])
    {
        warpgroup_begin();
#pragma unroll
        for (int step = 0; step < DIM / 16; ++step) {
            int const panel = 16 * step / RA_PANEL, along = 16 * step % RA_PANEL * 2;
            uint32_t const a = left + ra_wgmma_at(panel * LEFT_ROWS * RA_PANEL_ROW_BYTES + along);
            uint32_t const b = right + ra_wgmma_at(panel * RIGHT_ROWS * RA_PANEL_ROW_BYTES + along);
            if (step == 0)
                group::product(c, ra_wgmma_descriptor(a, 0), ra_wgmma_descriptor(b, 0));
            else
                group::add_product(c, ra_wgmma_descriptor(a, 0), ra_wgmma_descriptor(b, 0));
        }
        warpgroup_commit();
    }

    /* c += w * right: as many rows of a tile of RIGHT_ROWS as there are weights. */
    template <int RIGHT_ROWS, int STEPS, int TILES>
    static LANE_CODE void begin_weighted(uint32_t (&w)[STEPS][4], uint32_t right,
                                         float (&c)[TILES][4])
    {
        warpgroup_pin(w);
        warpgroup_pin(c);
        warpgroup_begin();
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
            group::add_product(
                c, w[step],
                ra_wgmma_descriptor(right + ra_wgmma_at(16 * step * RA_PANEL_ROW_BYTES),
                                    RIGHT_ROWS));
        warpgroup_commit();
    }

    /* c = left^T * right over ROWS rows: a panel of each. */
    template <int ROWS>
    static LANE_CODE void begin_turned(uint32_t left, uint32_t right, float (&c)[RA_PANEL / 8][4])
    {
        warpgroup_begin();
#pragma unroll
        for (int step = 0; step < ROWS / 16; ++step) {
            uint32_t const down = ra_wgmma_at(16 * step * RA_PANEL_ROW_BYTES);
            uint64_t const a = ra_wgmma_descriptor(left + down, 0);
            uint64_t const b = ra_wgmma_descriptor(right + down, 0);
            if (step == 0)
                group::template product<true>(c, a, b);
            else
                group::template add_product<true>(c, a, b);
        }
        warpgroup_commit();
    }
};

#endif
