#include "support/oracle_linear.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIM_MAX = 256 };

static double feature(double x)
{
    return x > 0 ? x + 1 : exp(x);
}

static double slope(double x)
{
    return x > 0 ? 1 : exp(x);
}

static double dot(const double *a, const double *b, int32_t dim)
{
    double sum = 0;
    for (int32_t d = 0; d < dim; ++d)
        sum += a[d] * b[d];
    return sum;
}

/* Features of a whole tensor. */
static double *features_of(const double *x, int64_t count)
{
    double *const phi = malloc((size_t)count * sizeof(double));
    for (int64_t i = 0; i < count; ++i)
        phi[i] = feature(x[i]);
    return phi;
}

/* Where a row of a [batch][n][heads][dim] tensor begins. */
static int64_t at(const oracle_shape *s, int32_t heads, int64_t batch, int64_t row, int32_t head)
{
    return ((batch * s->n + row) * heads + head) * s->dim;
}

/* o of a row; returns the denominator. */
static double attend(const oracle_shape *s, bool causal, const double *query, const double *keys,
                     const double *v, int64_t batch, int32_t kv_head, int64_t row, double *o)
{
    double weight_sum = 1e-6;
    memset(o, 0, (size_t)s->dim * sizeof(double));
    for (int64_t j = 0; j < (causal ? row + 1 : s->n); ++j) {
        int64_t const key = at(s, s->kv_heads, batch, j, kv_head);
        double const weight = dot(query, keys + key, s->dim);
        weight_sum += weight;
        for (int32_t d = 0; d < s->dim; ++d)
            o[d] += weight * v[key + d];
    }
    for (int32_t d = 0; d < s->dim; ++d)
        o[d] /= weight_sum;
    return weight_sum;
}

/* What one query row adds to the gradients. */
static void add_gradients(const oracle_shape *s, bool causal, const oracle_inputs *in,
                          const double *queries, const double *keys, int64_t batch, int32_t head,
                          int64_t row, const oracle_outputs *out)
{
    double o[DIM_MAX];
    int32_t const kv_head = head / (s->heads / s->kv_heads);
    int64_t const query = at(s, s->heads, batch, row, head);
    const double *const dout = in->dout + query;
    double const sum = attend(s, causal, queries + query, keys, in->v, batch, kv_head, row, o);
    for (int64_t j = 0; j < (causal ? row + 1 : s->n); ++j) {
        int64_t const key = at(s, s->kv_heads, batch, j, kv_head);
        double const weight = dot(queries + query, keys + key, s->dim) / sum;
        double const dweight = (dot(dout, in->v + key, s->dim) - dot(dout, o, s->dim)) / sum;
        for (int32_t d = 0; d < s->dim; ++d) {
            out->dq[query + d] += dweight * keys[key + d] * slope(in->q[query + d]);
            out->dk[key + d] += dweight * queries[query + d] * slope(in->k[key + d]);
            out->dv[key + d] += weight * dout[d];
        }
    }
}

void oracle_linear(const oracle_shape *s, bool causal, const oracle_inputs *in,
                   const oracle_outputs *out)
{
    int64_t const wide = s->batch * s->n * s->heads * s->dim;
    int64_t const narrow = s->batch * s->n * s->kv_heads * s->dim;
    double *const queries = features_of(in->q, wide), *const keys = features_of(in->k, narrow);
    if (in->dout != NULL) {
        memset(out->dq, 0, (size_t)wide * sizeof(double));
        memset(out->dk, 0, (size_t)narrow * sizeof(double));
        memset(out->dv, 0, (size_t)narrow * sizeof(double));
    }
    for (int64_t b = 0; b < s->batch; ++b)
        for (int32_t h = 0; h < s->heads; ++h)
            for (int64_t i = 0; i < s->n; ++i) {
                int64_t const query = at(s, s->heads, b, i, h);
                attend(s, causal, queries + query, keys, in->v, b, h / (s->heads / s->kv_heads), i,
                       out->o + query);
                if (in->dout != NULL)
                    add_gradients(s, causal, in, queries, keys, b, h, i, out);
            }
    free(queries);
    free(keys);
}

void oracle_linear_row(const oracle_shape *s, bool causal, const oracle_inputs *in, int64_t batch,
                       int32_t head, int64_t row, double *o)
{
    double query[DIM_MAX], weight_sum = 1e-6;
    int32_t const kv_head = head / (s->heads / s->kv_heads);
    memset(o, 0, (size_t)s->dim * sizeof(double));
    for (int32_t d = 0; d < s->dim; ++d)
        query[d] = feature(in->q[at(s, s->heads, batch, row, head) + d]);
    for (int64_t j = 0; j < (causal ? row + 1 : s->n); ++j) {
        int64_t const key = at(s, s->kv_heads, batch, j, kv_head);
        double weight = 0;
        for (int32_t d = 0; d < s->dim; ++d)
            weight += query[d] * feature(in->k[key + d]);
        weight_sum += weight;
        for (int32_t d = 0; d < s->dim; ++d)
            o[d] += weight * in->v[key + d];
    }
    for (int32_t d = 0; d < s->dim; ++d)
        o[d] /= weight_sum;
}
