/*
 * Products of bf16 pairs by AMX: a tile register holds 16 rows of 16 dwords, and one instruction
 * multiplies two of them, 8,192 products, into 16 x 16 float32 sums. What vdpbf16ps does with
 * subnormals and what is not finite, it does too.
 *
 * All products here are of one shape, a block of AMX_SIDE x AMX_SIDE sums:
 *
 *     sums[row][lane] += sum over x in [0, AMX_PAIRS) of a[row][x] . b[x][lane]
 *
 * a's rows lie as in pairs.h: keys along dim; dims along pairs of keys; keys along pairs of
 * queries.
 */
#ifndef RINGATTN_CPU_AMX_H
#define RINGATTN_CPU_AMX_H

#include "sparse/cpu/product.h"

enum { AMX_SIDE = 32, AMX_ROWS = 16, AMX_PAIRS = 16, AMX_ROW_BYTES = 64 };

_Static_assert((int)AMX_SIDE == (int)PANEL, "a block of sums is as wide as a panel");

/*
 * Tiles 0 to 3 are the sums, 4 and 5 rows of a, 6 and 7 lanes of b, all of full size. Whatever runs
 * between two blocks of keys, such as a poll of transfers, may configure tiles for itself.
 */
static inline void amx_configure(void)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int tile = 0; tile < 8; ++tile) {
        config.row_bytes[tile] = AMX_ROW_BYTES;
        config.rows[tile] = AMX_ROWS;
    }
    _tile_loadconfig(&config);
}

/* Once done: tiles that hold nothing need not be saved when threads take turns. */
static inline void amx_release(void)
{
    _tile_release();
}

RA_INLINE void amx_clear(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* One step of AMX_PAIRS pairs; `a_row` and `b_step` in dwords. */
RA_INLINE void amx_add(const void *a, int64_t a_row, const void *b, int64_t b_step)
{
    const char *const rows = a, *const lanes = b;
    /* gcc's loads do not say that they read memory. */
    __asm__ volatile("" ::: "memory");
    _tile_loadd(4, rows, 4 * a_row);
    _tile_loadd(6, lanes, 4 * b_step);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, lanes + AMX_ROW_BYTES, 4 * b_step);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, rows + 4 * a_row * AMX_ROWS, 4 * a_row);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}

/* AMX_SIDE rows of PANEL floats. */
RA_INLINE void amx_store(float *sums)
{
    enum { ROW = 4 * PANEL };
    _tile_stored(0, sums, ROW);
    _tile_stored(1, sums + LANES, ROW);
    _tile_stored(2, sums + AMX_ROWS * PANEL, ROW);
    _tile_stored(3, sums + AMX_ROWS * PANEL + LANES, ROW);
    __asm__ volatile("" ::: "memory");
}

#endif
