#include "tool/random.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 8192, DIM = 128, COUNT = ROWS * DIM };

static float *draw(uint64_t seed)
{
    float *values = malloc(COUNT * sizeof(*values));
    uint64_t const stream = ra_random_stream(seed, 1, 2);
    for (int row = 0; row < ROWS; ++row)
        ra_random_row(stream, row, row % 7, DIM, values + row * DIM);
    return values;
}

static int compare(const void *a, const void *b)
{
    float const x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Kolmogorov's distance of a million draws: above 1.95 / sqrt(n) has a probability of 1e-3. */
Test(random, is_distributed_as_the_standard_normal)
{
    float *values = draw(3);
    qsort(values, COUNT, sizeof(*values), compare);
    double furthest = 0;
    for (int i = 0; i < COUNT; ++i) {
        double const below = erfc(-(double)values[i] * 0.70710678118654752440) / 2;
        furthest = fmax(furthest, fabs(below - (i + 0.5) / COUNT));
    }
    cr_assert(furthest < 1.95 / sqrt(COUNT), "distance %g", furthest);
    cr_assert(values[0] < -4 && values[0] > -6.4f, "least %g", (double)values[0]);
    cr_assert(values[COUNT - 1] > 4 && values[COUNT - 1] < 6.4f);
    free(values);
}

/* Neighbours in each direction that a kernel sums over: |correlation| < 5 / sqrt(n). */
Test(random, neighbours_are_uncorrelated)
{
    float *values = draw(4);
    static const int distances[] = {1, 2, 64, DIM, 7 * DIM};
    for (size_t k = 0; k < sizeof(distances) / sizeof(distances[0]); ++k) {
        double sum = 0;
        for (int i = 0; i + distances[k] < COUNT; ++i)
            sum += (double)values[i] * (double)values[i + distances[k]];
        cr_assert(fabs(sum / COUNT) < 5 / sqrt(COUNT), "distance %d: %g", distances[k],
                  sum / COUNT);
    }
    free(values);
}

Test(random, a_value_depends_on_its_place_alone)
{
    float whole[DIM], part[DIM], again[DIM];
    uint64_t const stream = ra_random_stream(7, 0, 0);
    ra_random_row(stream, 1000000007, 5, DIM, whole);
    for (int dim = 1; dim <= DIM; ++dim) {
        ra_random_row(stream, 3, 4, DIM, again); /* drawing other rows changes nothing */
        ra_random_row(stream, 1000000007, 5, dim, part);
        cr_assert_eq(memcmp(whole, part, (size_t)dim * sizeof(float)), 0, "dim %d", dim);
    }
}

Test(random, every_coordinate_matters)
{
    float first[4], other[4];
    ra_random_row(ra_random_stream(7, 1, 1), 1, 1, 4, first);
    uint64_t const streams[] = {ra_random_stream(8, 1, 1), ra_random_stream(7, 2, 1),
                                ra_random_stream(7, 1, 2), ra_random_stream(7, 1, 1),
                                ra_random_stream(7, 1, 1)};
    int64_t const rows[] = {1, 1, 1, 2, 1};
    int32_t const heads[] = {1, 1, 1, 1, 2};
    for (int i = 0; i < 5; ++i) {
        ra_random_row(streams[i], rows[i], heads[i], 4, other);
        for (int d = 0; d < 4; ++d)
            cr_assert_neq(first[d], other[d], "case %d", i);
    }
}
