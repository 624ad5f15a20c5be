/* How large an error verification lets pass, against sums over the keys, one after the other. */
#include "tool/verify_reference.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

enum { KEYS = 40, DIM_MAX = 256 };

static uint64_t state;

/* In [-1, 1), and around `mean`. */
static double draw(double mean)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return mean + (double)(state >> 11) * 0x1p-52 - 1;
}

static double norm(const double *x, int32_t dim)
{
    return sqrt(ra_reference_dot(x, x, dim));
}

static void expect_near(double found, double expected, const char *what, int32_t dim, double mean)
{
    cr_expect_float_eq(found, expected, 1e-9 * fabs(expected), "%s of %d around %g: %g for %g",
                       what, (int)dim, mean, found, expected);
}

/* One row: its probabilities, keys and values. */
typedef struct problem {
    double p[KEYS], k[KEYS][DIM_MAX], v[KEYS][DIM_MAX], score_size;
} problem;

/* As kernels of float32 sum up: weights are p times `sum`. */
static void row_make(const problem *of, double sum, double scale, int32_t dim,
                     ra_reference_row *row)
{
    ra_reference_begin_row(row, dim);
    for (int i = 0; i < KEYS; ++i) {
        const double *k = of->k[i], *v = of->v[i];
        double const weight = of->p[i] * sum, dp = ra_reference_dot(row->dout, v, dim);
        double const lean = ra_reference_product_lean(dp, row->dout_norm, norm(v, dim), dim);
        row->sum += weight;
        ra_reference_add(weight / sum, v, row->out, dim);
        ra_reference_add_out(row, weight, norm(v, dim));
        ra_reference_add(weight, k, row->kept, dim);
        ra_reference_add(weight * lean, k, row->lean, dim);
        ra_reference_add_gradient(row, weight, norm(k, dim), dp, norm(v, dim), dim);
    }
    ra_reference_end_out(row, 1 / sum, 0x1p-14, of->score_size, dim);
    ra_reference_end_delta(row, 1 / sum, dim);
    ra_reference_end_gradient(row, scale / sum, 0x1p-14, dim);
}

static void expect_out(const problem *of, const ra_reference_row *row, int32_t dim, double mean)
{
    double terms = 0, squares = 0, norms = 0, values = 0;
    for (int i = 0; i < KEYS; ++i) {
        double const v = norm(of->v[i], dim);
        terms += of->p[i] * of->p[i] * v * v;
        squares += of->p[i] * of->p[i];
        norms += of->p[i] * v;
        values += v * v;
    }
    double const by = of->score_size / RA_VERIFY_SCORE;
    double const lean = norm(row->out, dim) / norms * fmin(16, 1 / squares / 24);
    expect_near(row->of_out.terms, terms, "terms of out", dim, mean);
    expect_near(row->of_out.rounded, terms, "what is rounded of out", dim, mean);
    expect_near(row->of_out.least, 0x1p-28 * values / row->sum / row->sum, "least", dim, mean);
    expect_near(row->of_out.coherent, pow(lean * norm(row->out, dim), 2), "lean", dim, mean);
    double const square = by * by * fmax(1, (double)dim / RA_VERIFY_DIM);
    expect_near(row->score_square, square, "square of scores", dim, mean);
    expect_near(row->of_out.growth,
                fmax(1, square) + 10 * square * squares * fmin(1, 1 / squares - 1), "growth", dim,
                mean);
}

static void expect_gradient(const problem *of, const ra_reference_row *row, double scale,
                            int32_t dim, double mean)
{
    double kept[DIM_MAX] = {0}, lean[DIM_MAX] = {0};
    double rounded = 0, both = 0, squares = 0, norms = 0;
    double const delta = ra_reference_dot(row->dout, row->out, dim), out = norm(row->out, dim);
    double const size = ra_reference_product_size(delta, row->dout_norm, out, dim);
    for (int i = 0; i < KEYS; ++i) {
        double const k = of->p[i] * norm(of->k[i], dim), v = norm(of->v[i], dim);
        double const dp = ra_reference_dot(row->dout, of->v[i], dim);
        double const dp_size = ra_reference_product_size(dp, row->dout_norm, v, dim);
        double const dp_lean = ra_reference_product_lean(dp, row->dout_norm, v, dim);
        rounded += k * k * (dp - delta) * (dp - delta);
        both += k * k * (dp_size * dp_size + size * size);
        squares += of->p[i] * of->p[i];
        norms += of->p[i] * v;
        ra_reference_add(of->p[i], of->k[i], kept, dim);
        ra_reference_add(of->p[i] * dp_lean, of->k[i], lean, dim);
    }
    double const by_out = row->dout_norm * sqrt(row->of_out.terms / dim);
    double const noise = fmax(by_out, fabs(delta) * sqrt(squares));
    double const sum_lean = out / norms * fmin(16, 1 / squares / 24);
    double const delta_lean = ra_reference_product_lean(delta, row->dout_norm, out, dim) +
                              copysign(size, delta) * sum_lean;
    double const leans = norm(lean, dim) + fabs(delta_lean) * norm(kept, dim);
    double const square = scale * scale;
    expect_near(row->delta, delta, "delta", dim, mean);
    expect_near(row->of_dq.rounded,
                square * (rounded + noise * noise * ra_reference_dot(kept, kept, dim)),
                "what is rounded of dq", dim, mean);
    expect_near(row->of_dq.terms, square * 2 * both, "terms of dq", dim, mean);
    expect_near(row->of_dq.coherent,
                square * (size * size * ra_reference_dot(kept, kept, dim) + leans * leans),
                "what adds up in dq", dim, mean);
}

/* Around 0 products cancel, around 3 they are alike. */
Test(verify_size, is_what_terms_come_to)
{
    static const int32_t dims[] = {8, 128, 256};
    static const double means[] = {0, 3};
    static problem of;
    static ra_reference_row row;
    for (int n = 0; n < 24; ++n) {
        int32_t const dim = dims[n % 3];
        double const mean = means[n / 3 % 2];
        double total = 0;
        state = (uint64_t)n;
        of.score_size = 4 + 4 * (n / 6);
        for (int i = 0; i < KEYS; ++i)
            total += of.p[i] = exp(n % 4 * draw(0));
        for (int i = 0; i < KEYS; ++i) {
            of.p[i] /= total;
            for (int32_t d = 0; d < dim; ++d) {
                of.k[i][d] = draw(mean);
                of.v[i][d] = draw(mean);
            }
        }
        for (int32_t d = 0; d < dim; ++d)
            row.dout[d] = draw(mean);
        row.dout_norm = norm(row.dout, dim);
        row_make(&of, 3, 0.25, dim, &row);
        expect_out(&of, &row, dim, mean);
        expect_gradient(&of, &row, 0.25, dim, mean);
    }
}

/* Each of these in turn is what an error is relative to. */
Test(verify_size, is_the_largest_of_what_the_header_says)
{
    double const u = ra_error_bounds(RA_F32, 64).o, reference[2] = {3, 4};
    static const ra_verify_size sizes[] = {
        {.terms = 9, .coherent = 9, .rounded = 9, .least = 9, .growth = 1},
        {.terms = 9, .coherent = 9, .rounded = 6400, .least = 9, .growth = 1},
        {.terms = 9, .coherent = 9, .rounded = 9, .least = 100, .growth = 1},
        {.terms = 9e9, .coherent = 1, .rounded = 9, .least = 9, .growth = 1},
        {.terms = 1, .coherent = 9e9, .rounded = 9, .least = 9, .growth = 1},
        {.terms = 9, .coherent = 9, .rounded = 9, .least = 9, .growth = 1e8},
    };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i)
        for (int b = 0; b < 2; ++b) {
            const ra_verify_size *s = &sizes[i];
            double const bound = b == 0 ? u : 1e-3;
            float const found[2] = {3.5f, 4};
            ra_verify_sum sum = {0};
            ra_verify_tensor tensor = {
                ra_shard_window_open(NULL, found, sizeof(found), sizeof(found)), RA_F32};
            cr_assert_eq(ra_verify_compare(&tensor, 0, reference, 2, s, bound, &sum), RA_OK);
            double const of_dtype = fmax(fmax(5, 0.25 * sqrt(s->rounded)), sqrt(s->least));
            double const of_float32 =
                u / bound * sqrt(s->growth) * fmax(5, 0.25 * sqrt(s->terms + s->coherent));
            cr_expect_float_eq(sqrt(sum.diff / sum.size), 0.5 / fmax(of_dtype, of_float32), 1e-9,
                               "size %zu, bound %g", i, bound);
        }
}

/* Half of float16's smallest step is no error, and of more what is beyond it. */
Test(verify_size, counts_errors_beyond_what_float16_can_hold)
{
    static const double offs[] = {0.9, 1.1, 1.9, 4};
    static const ra_verify_size none = {.growth = 1};
    uint16_t found;
    ra_dtype_store(RA_F16, &found, 0, 0x1p-20f);
    for (int i = 0; i < 4; ++i) {
        double const reference = 0x1p-20 + offs[i] * 0x1p-25;
        ra_verify_sum sum = {0};
        ra_verify_tensor tensor = {ra_shard_window_open(NULL, &found, 2, 2), RA_F16};
        cr_assert_eq(ra_verify_compare(&tensor, 0, &reference, 1, &none, 1e-3, &sum), RA_OK);
        cr_expect_float_eq(sqrt(sum.diff / sum.size) * reference, fmax(offs[i] - 1, 0) * 0x1p-25,
                           0x1p-45, "%g", offs[i]);
    }
}

/* The ends are always samples, and with some seed every other row is the one of its part. */
Test(verify_size, of_samples_is_one_row_of_each_equal_part)
{
    for (int64_t total = 1; total <= 23; ++total)
        for (int64_t count = 1; count <= total; ++count) {
            int64_t part_of[23], least = total, most = 0;
            for (int64_t row = 0; row < total; ++row)
                part_of[row] = -1;
            for (uint64_t seed = 0; seed < 300; ++seed)
                for (int64_t i = 0; i < count; ++i) {
                    int64_t const row = ra_verify_sample(seed, i, count, total);
                    cr_assert(row >= 0 && row < total);
                    cr_assert(part_of[row] < 0 || part_of[row] == i, "%d of %d: row %d", (int)count,
                              (int)total, (int)row);
                    part_of[row] = i;
                }
            int64_t reached = 0;
            for (int64_t i = 0; i < count; ++i) {
                int64_t rows = 0;
                for (int64_t row = 0; row < total; ++row)
                    rows += part_of[row] == i;
                reached += rows;
                if (count >= 3 && (i == 0 || i == count - 1)) {
                    cr_assert_eq(rows, 1, "the ends are the first and the last row");
                    continue;
                }
                least = rows < least ? rows : least;
                most = rows > most ? rows : most;
            }
            cr_assert(most - least <= 1, "%d of %d", (int)count, (int)total);
            cr_assert_eq(reached, total, "%d of %d", (int)count, (int)total);
        }
}
