/*
 * Vectors of RA_VEC_LANES floats in the compilers' own vector extensions. The few operations that
 * these cannot express, or that compilers translate badly, use intrinsics if the translation unit
 * is compiled for them, else plain loops.
 */
#ifndef RINGATTN_CPU_VEC_H
#define RINGATTN_CPU_VEC_H

#include "sparse/cpu/dtype_bits.h"

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define RA_INLINE static inline __attribute__((always_inline))

enum { LANES = RA_VEC_LANES };

typedef float vec __attribute__((vector_size(4 * RA_VEC_LANES)));
typedef int32_t veci __attribute__((vector_size(4 * RA_VEC_LANES)));
typedef uint32_t vecu __attribute__((vector_size(4 * RA_VEC_LANES)));
typedef uint16_t vech __attribute__((vector_size(2 * RA_VEC_LANES)));
/* In memory, at any address. */
typedef float vec_mem __attribute__((vector_size(4 * RA_VEC_LANES), aligned(4), may_alias));
typedef uint16_t vech_mem __attribute__((vector_size(2 * RA_VEC_LANES), aligned(2), may_alias));

RA_INLINE vec vec_load(const float *from)
{
    return *(const vec_mem *)from;
}

RA_INLINE void vec_store(float *to, vec value)
{
    *(vec_mem *)to = value;
}

RA_INLINE vec vec_splat(float value)
{
    return value - (vec){0}; /* x - 0 is x for every x, -0 too */
}

RA_INLINE vec vec_select(veci mask, vec yes, vec no)
{
    return (vec)((mask & (veci)yes) | (~mask & (veci)no));
}

/* The larger one; b if either is NaN. */
RA_INLINE vec vec_max(vec a, vec b)
{
#if RA_VEC_LANES == 16
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif RA_VEC_LANES == 8
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (vec)_mm_max_ps((__m128)a, (__m128)b);
#else
    return vec_select(a > b, a, b);
#endif
}

/* The smaller one; b if either is NaN. */
RA_INLINE vec vec_min(vec a, vec b)
{
#if RA_VEC_LANES == 16
    return (vec)_mm512_min_ps((__m512)a, (__m512)b);
#elif RA_VEC_LANES == 8
    return (vec)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (vec)_mm_min_ps((__m128)a, (__m128)b);
#else
    return vec_select(a < b, a, b);
#endif
}

/* {0, 1, 2, …} + begin */
RA_INLINE veci vec_iota(int32_t begin)
{
    veci value = {0};
    for (int32_t i = 0; i < LANES; ++i)
        value[i] = begin + i;
    return value;
}

/* Of all lanes of a and b, those with these numbers. GCC has clang's name for it from 12 on. */
#if defined(__clang__) || __GNUC__ >= 12
#define VEC_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define VEC_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (veci){__VA_ARGS__})
#endif

/* Lane by lane {a0, b0, a1, b1, …}: the lower and the upper half of it. */
RA_INLINE vec vec_zip_low(vec a, vec b)
{
#if RA_VEC_LANES == 16
    return VEC_SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
#elif RA_VEC_LANES == 8
    return VEC_SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
#else
    return VEC_SHUFFLE(a, b, 0, 4, 1, 5);
#endif
}

RA_INLINE vec vec_zip_high(vec a, vec b)
{
#if RA_VEC_LANES == 16
    return VEC_SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif RA_VEC_LANES == 8
    return VEC_SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
    return VEC_SHUFFLE(a, b, 2, 6, 3, 7);
#endif
}

/* rows[i][j] becomes rows[j][i]: a perfect shuffle of all lanes, log2(LANES) times. */
RA_INLINE void vec_transpose(vec rows[LANES])
{
#pragma GCC unroll 4
    for (int stride = 1; stride < LANES; stride *= 2) {
        vec next[LANES];
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; ++i) {
            next[2 * i] = vec_zip_low(rows[i], rows[i + LANES / 2]);
            next[2 * i + 1] = vec_zip_high(rows[i], rows[i + LANES / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i)
            rows[i] = next[i];
    }
}

RA_INLINE vec vec_load_bf16(const uint16_t *from)
{
    return (vec)(__builtin_convertvector((vech) * (const vech_mem *)from, vecu) << 16);
}

RA_INLINE vec vec_load_f16(const uint16_t *from)
{
#if RA_VEC_LANES == 16
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i_u *)from));
#elif RA_VEC_LANES == 8
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)from));
#elif defined(__aarch64__)
    return (vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
#else
    vec value = {0};
    for (int i = 0; i < LANES; ++i)
        value[i] = f32_of_f16(from[i]);
    return value;
#endif
}

RA_INLINE void vec_store_bf16(uint16_t *to, vec value)
{
    vecu const bits = (vecu)value;
    vecu const rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    vecu const is_nan = (vecu)(value != value);
    vecu const chosen = (is_nan & (bits >> 16 | 0x40u)) | (~is_nan & rounded);
    *(vech_mem *)to = __builtin_convertvector(chosen, vech);
}

RA_INLINE void vec_store_f16(uint16_t *to, vec value)
{
#if RA_VEC_LANES == 16
    _mm256_storeu_si256((__m256i_u *)to, _mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT));
#elif RA_VEC_LANES == 8
    _mm_storeu_si128((__m128i_u *)to, _mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
    vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)value)));
#else
    for (int i = 0; i < LANES; ++i)
        to[i] = f16_of_f32(value[i]);
#endif
}

#endif
