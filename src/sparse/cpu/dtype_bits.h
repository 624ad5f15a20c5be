/* Bit patterns of the 16-bit dtypes, one value at a time; exact for subnormals, Inf and NaN. */
#ifndef RINGATTN_DTYPE_BITS_H
#define RINGATTN_DTYPE_BITS_H

#include "ringattn/kernel.h"

#include <string.h>

static inline uint32_t bits_of_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float f32_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline float f32_of_bf16(uint16_t half)
{
    return f32_of_bits((uint32_t)half << 16);
}

/* Nearest even; a NaN keeps its sign and leading payload and becomes quiet. */
static inline uint16_t bf16_of_f32(float value)
{
    uint32_t const bits = bits_of_f32(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float f32_of_f16(uint16_t half)
{
    uint32_t const sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t const magnitude = half & 0x7fffu;
    if (magnitude >= 0x7c00u) { /* Inf, NaN (made quiet, as the hardware does) */
        uint32_t const quiet = magnitude > 0x7c00u ? 0x400000u : 0;
        return f32_of_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13 | quiet);
    }
    /* Read as float32, the exponent is 112 too small; the product is exact, also for subnormals. */
    return f32_of_bits(sign | bits_of_f32(f32_of_bits(magnitude << 13) * 0x1p112f));
}

/* Nearest even; from 65520 on infinity; a NaN keeps its leading payload and becomes quiet. */
static inline uint16_t f16_of_f32(float value)
{
    uint32_t const bits = bits_of_f32(value);
    uint16_t const sign = (uint16_t)(bits >> 16 & 0x8000u);
    uint32_t const magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* 65520 */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { /* below 2^-14: adding 0.5 leaves the multiple of 2^-24 */
        uint32_t const shifted = bits_of_f32(f32_of_bits(magnitude) + 0.5f);
        return (uint16_t)(sign | (shifted - 0x3f000000u));
    }
    uint32_t const rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

/* ra_dtype_load and ra_dtype_store, for loops over many values. */
static inline float dtype_load(ra_dtype dtype, const void *data, int64_t index)
{
    if (dtype == RA_F32)
        return ((const float *)data)[index];
    uint16_t const half = ((const uint16_t *)data)[index];
    return dtype == RA_F16 ? f32_of_f16(half) : f32_of_bf16(half);
}

static inline void dtype_store(ra_dtype dtype, void *data, int64_t index, float value)
{
    if (dtype == RA_F32)
        ((float *)data)[index] = value;
    else
        ((uint16_t *)data)[index] = dtype == RA_F16 ? f16_of_f32(value) : bf16_of_f32(value);
}

#endif
