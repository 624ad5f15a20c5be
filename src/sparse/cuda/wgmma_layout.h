/*
 * How tiles lie in shared memory for wgmma, and how its operands name them (PTX ISA, "Matrix
 * Descriptor Format"): in panels of 64 columns, whose rows of 128 bytes have their eight pieces
 * swizzled (fragments.h), so that eight rows are a block of 1,024 bytes, aligned to as many.
 *
 * An operand of 16 columns of rows is a step along a row (its rows are those of scores); one of 16
 * rows of 64 columns is two blocks (its rows are what sums go over), and of 128 columns as many of
 * the next panel.
 */
#ifndef RINGATTN_CUDA_WGMMA_LAYOUT_H
#define RINGATTN_CUDA_WGMMA_LAYOUT_H

#include "sparse/cuda/fragments.h"

enum {
    RA_PANEL = 64, /* columns */
    RA_PANEL_ROW_BYTES = 128,
    RA_PANEL_BLOCK_BYTES = 1024 /* eight rows */
};

/* The part of a descriptor that says where: a panel that begins at an address in shared memory, a
   multiple of 1,024. What is further is reached by adding ra_wgmma_at of the bytes between: 32 per
   step of 16 columns, 128 per row, of multiples of 8 rows. */
RA_HD uint32_t ra_wgmma_at(uint32_t address)
{
    return (address & 0x3ffff) >> 4;
}

/* panel_rows: of each panel, if the operand has rows of two; else any number. */
RA_HD uint64_t ra_wgmma_descriptor(uint32_t at, int panel_rows)
{
    uint64_t const swizzle_128 = 1, rows_apart = RA_PANEL_BLOCK_BYTES >> 4;
    uint32_t const panels_apart = (uint32_t)(panel_rows * RA_PANEL_ROW_BYTES) >> 4;
    return (swizzle_128 << 30 | rows_apart) << 32 | panels_apart << 16 | at;
}

#endif
