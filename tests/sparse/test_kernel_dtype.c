/* Conversions of the dtypes, against arithmetic in float64. */
#include "ringattn/kernel.h"

#include <criterion/criterion.h>
#include <fenv.h>
#include <math.h>
#include <string.h>

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* sign, exponent and fraction read off one by one. */
static double decoded(uint16_t half, int exponent_bits)
{
    int const fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int const exponent = half >> fraction_bits & ((1 << exponent_bits) - 1);
    int const fraction = half & ((1 << fraction_bits) - 1);
    double const sign = half & 0x8000 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1)
        return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

/* Nearest even in float64, where every quotient here is exact. */
static double rounded(double value, int exponent_bits)
{
    int const fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    if (value == 0 || !isfinite(value))
        return value;
    int exponent = ilogb(value);
    if (exponent < 1 - bias)
        exponent = 1 - bias;
    double const quantum = ldexp(1, exponent - fraction_bits);
    double const result = nearbyint(value / quantum) * quantum;
    double const largest = ldexp(2 - ldexp(1, -fraction_bits), bias);
    return fabs(result) > largest ? copysign((double)INFINITY, value) : result;
}

static bool same(double a, double b)
{
    return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b));
}

Test(dtype, every_16_bit_pattern_loads_as_its_value)
{
    for (uint32_t i = 0; i < 65536; ++i) {
        uint16_t const half = (uint16_t)i;
        cr_assert(same((double)ra_dtype_load(RA_F16, &half, 0), decoded(half, 5)), "f16 %04x", i);
        cr_assert(same((double)ra_dtype_load(RA_BF16, &half, 0), decoded(half, 8)), "bf16 %04x", i);
    }
}

Test(dtype, every_16_bit_value_stores_as_itself)
{
    for (uint32_t i = 0; i < 65536; ++i) {
        uint16_t const half = (uint16_t)i;
        uint16_t back[2];
        ra_dtype_store(RA_F16, back, 0, ra_dtype_load(RA_F16, &half, 0));
        ra_dtype_store(RA_BF16, back, 1, ra_dtype_load(RA_BF16, &half, 0));
        if (isnan(decoded(half, 5)))
            cr_assert(isnan(decoded(back[0], 5)));
        else
            cr_assert_eq(back[0], half);
        if (isnan(decoded(half, 8)))
            cr_assert(isnan(decoded(back[1], 8)));
        else
            cr_assert_eq(back[1], half);
    }
}

static void check_store(uint32_t bits)
{
    float const value = float_of(bits);
    uint16_t half[2];
    ra_dtype_store(RA_F16, half, 0, value);
    ra_dtype_store(RA_BF16, half, 1, value);
    cr_assert(same(decoded(half[0], 5), rounded((double)value, 5)), "f16 of %08x", bits);
    cr_assert(same(decoded(half[1], 8), rounded((double)value, 8)), "bf16 of %08x", bits);
}

Test(dtype, stores_round_to_nearest_even)
{
    cr_assert_eq(fegetround(), FE_TONEAREST);
    /* Every 16-bit value of either dtype, the midpoint after it, and the neighbours of both. */
    for (uint32_t i = 0; i < 65536; ++i) {
        for (uint32_t near = 0; near < 3; ++near) {
            check_store((i << 16) + near - 1);
            check_store((i << 16) + 0x8000u + near - 1);
            uint16_t const half = (uint16_t)i;
            uint32_t const at = bits_of(ra_dtype_load(RA_F16, &half, 0));
            check_store(at + near - 1);
            check_store(at + 0x1000u + near - 1);
        }
    }
    /* Among subnormal float16s the midpoints lie elsewhere. */
    for (uint32_t i = 0; i < 2050; ++i) {
        uint32_t const middle = bits_of((float)ldexp(2.0 * i + 1, -25));
        for (uint32_t near = 0; near < 3; ++near)
            check_store(middle + near - 1);
    }
}

Test(dtype, names_and_sizes)
{
    cr_assert_eq(ra_dtype_bytes(RA_F32), 4);
    cr_assert_eq(ra_dtype_bytes(RA_F16), 2);
    cr_assert_eq(ra_dtype_bytes(RA_BF16), 2);
    cr_assert_str_eq(ra_dtype_name(RA_BF16), "bf16");
    char data[64];
    ra_view const view = ra_view_dense(data, RA_F16, 10, 6, 8, 2);
    cr_assert_eq((char *)view.data - data, 2 * 2 * 8);
    cr_assert(view.batch_stride == 480 && view.row_stride == 48 && view.head_stride == 8);
}
