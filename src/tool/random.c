#include "random.h"

#include "internal.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

/*
 * Normal values come from 31 uniform bits and a sign by the quantile function, interpolated
 * linearly between grid points that are the numbers with 5 mantissa bits: 32 cells per octave of
 * the tail's probability, so that a float's own exponent and mantissa are the index. The
 * interpolation is off by less than 1.5e-4.
 */
enum {
    CELL_BITS = 18,                       /* float mantissa bits below the grid */
    GRID_BEGIN = 0x3f000000 >> CELL_BITS, /* 0.5 */
    GRID_END = 0x4f000000 >> CELL_BITS,   /* 2^31 */
    GRID_COUNT = GRID_END - GRID_BEGIN + 1
};

typedef struct cell {
    float value, slope; /* slope per unit of the mantissa bits below the grid */
} cell;

static cell cells[GRID_COUNT];
static pthread_once_t cells_once = PTHREAD_ONCE_INIT;

/* x with P(normal > x) = p, 0 < p <= 0.5; bisection needs no luck. */
static double upper_quantile(double p)
{
    double low = 0, high = 8;
    for (int i = 0; i < 60; ++i) {
        double const middle = (low + high) / 2;
        if (erfc(middle * 0.70710678118654752440) / 2 > p)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static double grid_value(int at)
{
    uint32_t const bits = (uint32_t)(GRID_BEGIN + at) << CELL_BITS;
    float number;
    memcpy(&number, &bits, sizeof(number));
    return upper_quantile((double)number / 4294967296.0);
}

static void fill_cells(void)
{
    double value = grid_value(0);
    for (int at = 0; at < GRID_COUNT; ++at) {
        double const next = at + 1 < GRID_COUNT ? grid_value(at + 1) : value;
        cells[at].value = (float)value;
        cells[at].slope = (float)((next - value) / (1 << CELL_BITS));
        value = next;
    }
}

uint64_t ra_random_stream(uint64_t seed, uint32_t tensor, int64_t batch)
{
    return ra_mix64(ra_mix64(ra_mix64(seed) ^ tensor) ^ (uint64_t)batch);
}

/* Bits to a normal value; the lowest 31 choose the size, the highest the sign. */
static inline float normal_from_bits(uint32_t bits)
{
    float const number = (float)(int32_t)(bits & 0x7fffffffu) + 0.5f;
    uint32_t place;
    memcpy(&place, &number, sizeof(place));
    cell const at = cells[(place >> CELL_BITS) - GRID_BEGIN];
    float const size = at.value + at.slope * (float)(int32_t)(place & ((1u << CELL_BITS) - 1));
    uint32_t size_bits;
    memcpy(&size_bits, &size, sizeof(size_bits));
    size_bits |= bits & 0x80000000u;
    float value;
    memcpy(&value, &size_bits, sizeof(value));
    return value;
}

void ra_random_row(uint64_t stream, int64_t row, int32_t head, int32_t dim, float *values)
{
    RA_DASSERT(dim >= 1);
    pthread_once(&cells_once, fill_cells);
    uint64_t state = ra_mix64(ra_mix64(stream ^ (uint64_t)row) ^ (uint64_t)head);
    for (int32_t d = 0; d < dim; d += 2) {
        uint64_t const bits = ra_mix64(state);
        state += RA_MIX64_STEP;
        values[d] = normal_from_bits((uint32_t)bits);
        if (d + 1 < dim)
            values[d + 1] = normal_from_bits((uint32_t)(bits >> 32));
    }
}
