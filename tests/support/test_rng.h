/* Random numbers for tests: the same for the same seed, everywhere. */
#ifndef RINGATTN_TESTS_TEST_RNG_H
#define RINGATTN_TESTS_TEST_RNG_H

#include <stdbool.h>
#include <stdint.h>

/* splitmix64, from a seed. */
typedef struct test_rng {
    uint64_t state;
} test_rng;

static inline uint64_t test_rng_next(test_rng *rng)
{
    uint64_t x = rng->state += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* Uniform in [low, high]. */
static inline int64_t test_rng_between(test_rng *rng, int64_t low, int64_t high)
{
    return low + (int64_t)(test_rng_next(rng) % (uint64_t)(high - low + 1));
}

static inline bool test_rng_chance(test_rng *rng, double probability)
{
    return (double)(test_rng_next(rng) >> 11) * 0x1p-53 < probability;
}

#endif
