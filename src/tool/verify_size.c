/*
 * How large the terms of a row of a result are: what error right arithmetic leaves in it. Kernels
 * round some of the terms to 16 bits, each by itself, so these errors add up as squares do; float32
 * rounds all of them, and what it subtracts.
 */
#include "verify_reference.h"

#include <math.h>
#include <string.h>

double ra_reference_product_size(double product, double x_norm, double y_norm, int32_t dim)
{
    return fmax(fabs(product), x_norm * y_norm / sqrt((double)dim));
}

static double cosine(double product, double x_norm, double y_norm)
{
    return product != 0 ? fabs(product) / (x_norm * y_norm) : 0;
}

/* A sum of n like terms is off by up to some n / 3 units of float32, of which a quarter of its
   bound is 8 (SHARE in verify.c). */
double ra_reference_product_lean(double product, double x_norm, double y_norm, int32_t dim)
{
    double const size = ra_reference_product_size(product, x_norm, y_norm, dim);
    double const alike = cosine(product, x_norm, y_norm) * (double)dim / 24;
    return copysign(size * fmax(1, alike), product);
}

/* Likewise, with a bound: kernels sum up to some 300 terms at a time, as BLAS does. */
double ra_reference_sum_lean(double sum_norm, double sum_of_norms, double terms)
{
    return sum_of_norms > 0 ? sum_norm / sum_of_norms * fmin(16, terms / 24) : 0;
}

/* The whole bound of lse is some 20 of these units, at RA_VERIFY_SCORE. */
double ra_reference_score_size(double score, double q_norm, double k_norm, int32_t dim)
{
    double const like = cosine(score, q_norm, k_norm) * (double)dim / 48;
    return ra_reference_product_size(score, q_norm, k_norm, dim) * fmax(1, like);
}

double ra_reference_score_square(double score_size, int32_t dim)
{
    double const by = score_size / RA_VERIFY_SCORE;
    return by * by * fmax(1, (double)dim / RA_VERIFY_DIM);
}

void ra_reference_begin_row(ra_reference_row *row, int32_t dim)
{
    memset(row->out, 0, (size_t)dim * sizeof(double));
    memset(row->dq, 0, (size_t)dim * sizeof(double));
    memset(row->kept, 0, (size_t)dim * sizeof(double));
    memset(row->lean, 0, (size_t)dim * sizeof(double));
    row->top = -INFINITY;
    row->sum = row->sum_v = row->sum_score = 0;
    row->weighed = row->seen = (ra_reference_squares){0};
}

void ra_reference_add_out(ra_reference_row *row, double weight, double v_norm)
{
    row->sum_v += weight * v_norm;
    row->weighed.one += weight * weight;
    row->weighed.v += weight * weight * v_norm * v_norm;
    row->seen.v += v_norm * v_norm;
}

void ra_reference_add_gradient(ra_reference_row *row, double weight, double k_norm, double dp,
                               double v_norm, int32_t dim)
{
    double const size = ra_reference_product_size(dp, row->dout_norm, v_norm, dim);
    double const seen = k_norm * k_norm, weighed = weight * weight * seen;
    row->weighed.k += weighed;
    row->weighed.k_dp += weighed * dp;
    row->weighed.k_dp2 += weighed * dp * dp;
    row->weighed.k_dp_size += weighed * size * size;
    row->seen.k += seen;
    row->seen.k_dp_size += seen * size * size;
}

void ra_reference_end_out(ra_reference_row *row, double inverse, double least, double score_size,
                          int32_t dim)
{
    double const terms = inverse * inverse * row->weighed.v;
    double const out = ra_reference_dot(row->out, row->out, dim);
    double const keys = row->sum > 0 ? row->sum * row->sum / row->weighed.one : 0;
    double const several = fmax(0, fmin(1, keys - 1)); /* a weight that is alone is 1 */
    double const few = several > 0 ? several / keys : 0;
    row->out_lean = ra_reference_sum_lean(sqrt(out), inverse * row->sum_v, keys);
    row->score_square = ra_reference_score_square(score_size, dim);
    row->of_out = (ra_verify_size){.terms = terms,
                                   .coherent = row->out_lean * row->out_lean * out,
                                   .rounded = terms,
                                   .least = inverse * inverse * least * least * row->seen.v,
                                   .growth = fmax(1, row->score_square) +
                                             RA_REFERENCE_FEW * few * row->score_square};
}

void ra_reference_size_delta(ra_reference_row *row, double out_norm, int32_t dim)
{
    row->delta_size = ra_reference_product_size(row->delta, row->dout_norm, out_norm, dim);
    row->delta_lean = ra_reference_product_lean(row->delta, row->dout_norm, out_norm, dim) +
                      copysign(row->delta_size, row->delta) * row->out_lean;
}

/*
 * delta is do . o = sum p dp: if each p is rounded, it is off by a share of the root of the sum of
 * (p dp)^2. What is known of that sum is dp's usual size, or, if all dp are alike, delta.
 */
void ra_reference_end_delta(ra_reference_row *row, double inverse, int32_t dim)
{
    row->delta = ra_reference_dot(row->dout, row->out, dim);
    ra_reference_size_delta(row, sqrt(ra_reference_dot(row->out, row->out, dim)), dim);
    row->delta_noise = fmax(row->dout_norm * sqrt(row->of_out.terms / dim),
                            fabs(row->delta) * inverse * sqrt(row->weighed.one));
}

/* A wrong delta moves every term of dq in the same direction, that of the sum of p k. */
void ra_reference_end_gradient(ra_reference_row *row, double factor, double least, int32_t dim)
{
    const ra_reference_squares *const w = &row->weighed;
    double const size = row->delta_size * row->delta_size, square = factor * factor;
    double const noise = row->delta_noise * row->delta_noise;
    double const kept = ra_reference_dot(row->kept, row->kept, dim);
    double const lean =
        sqrt(ra_reference_dot(row->lean, row->lean, dim)) + fabs(row->delta_lean) * sqrt(kept);
    double const differences = w->k_dp2 - 2 * row->delta * w->k_dp + row->delta * row->delta * w->k;
    row->of_dq = (ra_verify_size){.terms = square * 2 * (w->k_dp_size + size * w->k),
                                  .coherent = square * (size * kept + lean * lean),
                                  .rounded = square * (fmax(differences, 0) + noise * kept),
                                  .least = square * least * least * 2 *
                                           (row->seen.k_dp_size + size * row->seen.k),
                                  .growth = row->of_out.growth};
}
