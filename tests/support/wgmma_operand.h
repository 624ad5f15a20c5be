/* Where a wgmma operand's elements lie in shared memory, for emulations of it. */
#ifndef RINGATTN_TESTS_WGMMA_OPERAND_H
#define RINGATTN_TESTS_WGMMA_OPERAND_H

#include <stdbool.h>
#include <stdint.h>

/*
 * PTX ISA, "Matrix Descriptor Format" and "Shared Memory Matrix Layout", of 16-bit elements with
 * 128-byte swizzling; as CUTLASS has it (mma_traits_sm90_gmma.hpp), in 16 bytes: along the depth
 * ((8, n), 2) : ((8, stride), 1), across it ((8, n), (8, k)) : ((1, leading), (8, stride)). Bits 4
 * to 6 of an address are XORed with its bits 7 to 9.
 */
enum { WGMMA_SWIZZLE_128 = 1, WGMMA_DEPTH = 16, WGMMA_PIECE = 8 };

/* What makes a descriptor one that is not understood here; NULL: nothing. */
static inline const char *wgmma_misfit(uint64_t descriptor)
{
    if (descriptor >> 62 != WGMMA_SWIZZLE_128)
        return "an operand is not swizzled by 128 bytes";
    if ((descriptor >> 49 & 7) != 0 || (descriptor >> 3 & 7) != 0)
        return "an operand does not begin at a multiple of 1,024 bytes, but for a step along a row";
    if ((descriptor & ~(UINT64_C(3) << 62 | UINT64_C(0x3fff) << 32 | UINT64_C(0x3fff) << 16 |
                        UINT64_C(7) << 49 | UINT64_C(0x3fff))) != 0)
        return "a descriptor has bits that mean nothing";
    return 0;
}

/* Of row or column r of the product, at depth k; `across`: neighbours in memory are rows. */
static inline uint32_t wgmma_element(uint64_t descriptor, bool across, uint32_t r, uint32_t k)
{
    uint32_t const start = (uint32_t)(descriptor & 0x3fff) << 4;
    uint32_t const leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
    uint32_t const stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
    uint32_t const offset = across ? r / 64 * leading + r % 64 * 2 + k / 8 * stride + k % 8 * 128
                                   : r / 8 * stride + r % 8 * 128 + k * 2;
    uint32_t const at = start + offset;
    return at ^ (at >> 7 & 7) << 4;
}

#endif
