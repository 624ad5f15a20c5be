/*
 * Loops that never leave the registers. Chains of dependent operations run side by side, more of
 * them than latency times ports of any processor there is; each value settles at 1, so nothing
 * overflows or becomes subnormal.
 */
#include "limits.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define RA_LIMITS_X86
#endif

enum { CHAINS = 16, PORTABLE_VALUES = 32 };

static const float decay = 1 - 0x1p-10f, gain = 0x1p-10f;

/* What every machine has; the compiler makes vectors of it. */
static float fma_portable(int64_t rounds)
{
    float value[PORTABLE_VALUES], sum = 0;
    for (int k = 0; k < PORTABLE_VALUES; k++)
        value[k] = (float)k;
    for (int64_t i = 0; i < rounds; i++) {
        for (int k = 0; k < PORTABLE_VALUES; k++)
            value[k] = value[k] * decay + gain;
    }
    for (int k = 0; k < PORTABLE_VALUES; k++)
        sum += value[k];
    return sum;
}

static const ra_limit_loop loop_portable = {"portable", 2.0 * PORTABLE_VALUES, fma_portable};

#ifdef RA_LIMITS_X86
__attribute__((target("avx2,fma"))) static float fma_avx2(int64_t rounds)
{
    __m256 const a = _mm256_set1_ps(decay), b = _mm256_set1_ps(gain);
    __m256 value[CHAINS - 4], sum = _mm256_setzero_ps(); /* 16 registers, two of them for a, b */
    for (int k = 0; k < CHAINS - 4; k++)
        value[k] = _mm256_set1_ps((float)k);
    for (int64_t i = 0; i < rounds; i++) {
#pragma GCC unroll 16
        for (int k = 0; k < CHAINS - 4; k++)
            value[k] = _mm256_fmadd_ps(value[k], a, b);
    }
    for (int k = 0; k < CHAINS - 4; k++)
        sum = _mm256_add_ps(sum, value[k]);
    return _mm256_cvtss_f32(sum);
}

__attribute__((target("avx512f"))) static float fma_avx512(int64_t rounds)
{
    __m512 const a = _mm512_set1_ps(decay), b = _mm512_set1_ps(gain);
    __m512 value[CHAINS], sum = _mm512_setzero_ps();
    for (int k = 0; k < CHAINS; k++)
        value[k] = _mm512_set1_ps((float)k);
    for (int64_t i = 0; i < rounds; i++) {
#pragma GCC unroll 16
        for (int k = 0; k < CHAINS; k++)
            value[k] = _mm512_fmadd_ps(value[k], a, b);
    }
    for (int k = 0; k < CHAINS; k++)
        sum = _mm512_add_ps(sum, value[k]);
    return _mm512_cvtss_f32(sum);
}

__attribute__((target("avx512f,avx512bf16"))) static float dpbf16_avx512(int64_t rounds)
{
    /* Pairs (1, 1) and (2^-10, -2^-10): products that cancel. */
    __m512bh const a = (__m512bh)_mm512_set1_epi32(0x3f803f80);
    __m512bh const b = (__m512bh)_mm512_set1_epi32((int)0xba803a80);
    __m512 value[CHAINS], sum = _mm512_setzero_ps();
    for (int k = 0; k < CHAINS; k++)
        value[k] = _mm512_set1_ps((float)k);
    for (int64_t i = 0; i < rounds; i++) {
#pragma GCC unroll 16
        for (int k = 0; k < CHAINS; k++)
            value[k] = _mm512_dpbf16_ps(value[k], a, b);
    }
    for (int k = 0; k < CHAINS; k++)
        sum = _mm512_add_ps(sum, value[k]);
    return _mm512_cvtss_f32(sum);
}

/* Four tiles of sums that begin with 30 in one place, and pairs of the same products. */
__attribute__((target("amx-tile,amx-bf16"))) static float dpbf16_amx(int64_t rounds)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    uint32_t pairs[16][16];
    float sums[16][16] = {{30}}, sum = 0;
    for (int i = 0; i < 16; i++) {
        config.row_bytes[i] = i < 6 ? sizeof(sums[0]) : 0;
        config.rows[i] = i < 6 ? 16 : 0;
    }
    _tile_loadconfig(&config);
    for (int i = 0; i < 16 * 16; i++)
        pairs[i / 16][i % 16] = 0x3f803f80;
    /* gcc's loads do not say that they read memory. */
    __asm__ volatile("" ::: "memory");
    _tile_loadd(4, pairs, sizeof(pairs[0]));
    for (int i = 0; i < 16 * 16; i++)
        pairs[i / 16][i % 16] = 0xba803a80;
    __asm__ volatile("" ::: "memory");
    _tile_loadd(5, pairs, sizeof(pairs[0]));
    _tile_loadd(0, sums, sizeof(sums[0]));
    _tile_loadd(1, sums, sizeof(sums[0]));
    _tile_loadd(2, sums, sizeof(sums[0]));
    _tile_loadd(3, sums, sizeof(sums[0]));
    for (int64_t i = 0; i < rounds; i++) {
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 5);
        _tile_dpbf16ps(2, 4, 5);
        _tile_dpbf16ps(3, 4, 5);
    }
    _tile_stored(0, sums, sizeof(sums[0]));
    sum += sums[0][0];
    _tile_stored(1, sums, sizeof(sums[0]));
    sum += sums[0][0];
    _tile_stored(2, sums, sizeof(sums[0]));
    sum += sums[0][0];
    _tile_stored(3, sums, sizeof(sums[0]));
    sum += sums[0][0];
    _tile_release();
    return sum;
}

static const ra_limit_loop loop_avx2 = {"avx2", 2.0 * 8 * (CHAINS - 4), fma_avx2};
static const ra_limit_loop loop_avx512 = {"avx512", 2.0 * 16 * CHAINS, fma_avx512};
static const ra_limit_loop loop_dpbf16 = {"avx512bf16", 4.0 * 16 * CHAINS, dpbf16_avx512};
static const ra_limit_loop loop_amx = {"amx", 4.0 * 16 * 16 * 32 * 2, dpbf16_amx};
#endif

const ra_limit_loop *ra_limit_fma(void)
{
#ifdef RA_LIMITS_X86
    if (__builtin_cpu_supports("avx512f"))
        return &loop_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &loop_avx2;
#endif
    return &loop_portable;
}

const ra_limit_loop *ra_limit_dpbf16(void)
{
#ifdef RA_LIMITS_X86
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16"))
        return &loop_dpbf16;
#endif
    return NULL;
}

const ra_limit_loop *ra_limit_amx(void)
{
#ifdef RA_LIMITS_X86
    if (ra_kernel_cpu(RA_ISA_AMX) != NULL) /* which has asked the system for its tiles */
        return &loop_amx;
#endif
    return NULL;
}
