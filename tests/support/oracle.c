#include "support/oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *take(int64_t count)
{
    void *memory = calloc((size_t)(count > 0 ? count : 1), sizeof(double));
    if (memory == NULL) {
        fprintf(stderr, "oracle: no memory for %lld doubles\n", (long long)count);
        abort();
    }
    return memory;
}

/* ---- the definition ---------------------------------------------------------------------------
 */

static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static bool dilated_rate_kept(const ra_pattern_config *p, int64_t blocks, int64_t distance)
{
    if (p->block_rates != NULL) {
        for (int64_t r = 0; r < p->block_rate_count; ++r) {
            if (p->block_rates[r] == distance)
                return true;
        }
        return false;
    }
    int64_t count = 0;
    for (int64_t rate = 1;
         (double)(1 + 2 * count) / (double)blocks < p->block_density && rate < blocks;
         rate *= 2, ++count) {
        if (rate == distance)
            return true;
    }
    return false;
}

static bool random_kept(const ra_pattern_config *p, int64_t bi, int64_t bj)
{
    double const limit = p->block_density * 0x1p64;
    if (limit >= 0x1p64)
        return true;
    return mix(p->block_seed ^ ((uint64_t)bi << 32 | (uint64_t)bj)) < (uint64_t)limit;
}

static bool block_kept(const ra_pattern_config *p, int64_t n, int64_t i, int64_t j)
{
    int64_t const size = p->block_size;
    if (p->blocks_kind == RA_BLOCKS_NONE)
        return true;
    int64_t const blocks = (n + size - 1) / size, bi = i / size, bj = j / size;
    int64_t const distance = bi > bj ? bi - bj : bj - bi;
    switch (p->blocks_kind) {
    case RA_BLOCKS_NONE:
        return true;
    case RA_BLOCKS_LOCAL_WINDOW:
        return distance <= p->block_width;
    case RA_BLOCKS_DILATED_SPARSE:
        return distance == 0 || dilated_rate_kept(p, blocks, distance);
    case RA_BLOCKS_GLOBAL_LOCAL:
        return bi < p->block_globals || bj < p->block_globals || distance <= p->block_width;
    case RA_BLOCKS_RANDOM:
        return distance == 0 || random_kept(p, bi, bj);
    case RA_BLOCKS_LIST:
        for (int64_t x = 0; x < p->block_pair_count; ++x) {
            if (p->block_pairs[x][0] == bi && p->block_pairs[x][1] == bj)
                return true;
        }
        return false;
    }
    return false;
}

/* The document of token i: its number and first token. */
static int64_t document_of(const ra_pattern_config *p, int64_t i, int64_t *start)
{
    *start = 0;
    if (p->documents == NULL)
        return 0;
    int64_t d = 0;
    while (d < p->document_count && i >= *start + p->documents[d])
        *start += p->documents[d++];
    return d;
}

static bool pair_kept(const ra_pattern_config *p, int64_t n, int64_t i, int64_t j)
{
    int64_t i_start, j_start;
    if (document_of(p, i, &i_start) != document_of(p, j, &j_start))
        return false;
    bool inside = true;
    if (p->window_left >= 0)
        inside = inside && j >= i - p->window_left;
    if (p->window_right >= 0)
        inside = inside && j <= i + p->window_right;
    if (!inside && j - i_start >= p->sinks)
        return false;
    if (p->causal && j > i)
        return false;
    return block_kept(p, n, i, j);
}

int64_t oracle_multiplicity(const ra_pattern_config *p, int64_t n, int32_t heads, int32_t head,
                            int64_t i, int64_t j)
{
    if (!pair_kept(p, n, i, j))
        return 0;
    if (p->segments == NULL)
        return 1;
    int64_t count = 0;
    for (int64_t branch = 0; branch < p->branch_count; ++branch) {
        if (p->dilated_heads == RA_HEADS_GROUPED && branch != head * p->branch_count / heads)
            continue;
        int64_t const w = p->segments[branch], r = p->rates[branch], offset = head % r;
        count += i / w == j / w && i % w % r == offset && j % w % r == offset;
    }
    return count;
}

/* ---- attention --------------------------------------------------------------------------------
 */

static double dot(const double *a, const double *b, int32_t dim)
{
    double sum = 0;
    for (int32_t d = 0; d < dim; ++d)
        sum += a[d] * b[d];
    return sum;
}

static double scale_of(const oracle_shape *s)
{
    return s->scale != 0 ? s->scale : 1 / sqrt((double)s->dim);
}

static int64_t q_at(const oracle_shape *s, int64_t b, int64_t i, int32_t h)
{
    return ((b * s->n + i) * s->heads + h) * s->dim;
}

static int64_t k_at(const oracle_shape *s, int64_t b, int64_t j, int32_t h)
{
    int32_t const g = h / (s->heads / s->kv_heads);
    return ((b * s->n + j) * s->kv_heads + g) * s->dim;
}

/* p[j] = softmax weight of key j (times multiplicity); returns the row's lse. */
static double row_weights(const oracle_shape *s, const ra_pattern_config *pattern,
                          const oracle_inputs *in, int64_t b, int32_t h, int64_t i, double *p)
{
    double const scale = scale_of(s);
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < s->n; ++j) {
        p[j] = -INFINITY;
        if (oracle_multiplicity(pattern, s->n, s->heads, h, i, j) == 0)
            continue;
        p[j] = scale * dot(in->q + q_at(s, b, i, h), in->k + k_at(s, b, j, h), s->dim);
        if (p[j] > top)
            top = p[j];
    }
    if (!isfinite(top))
        top = 0;
    for (int64_t j = 0; j < s->n; ++j) {
        int64_t const m =
            p[j] == -INFINITY ? 0 : oracle_multiplicity(pattern, s->n, s->heads, h, i, j);
        p[j] = m == 0 ? 0 : (double)m * exp(p[j] - top);
        sum += p[j];
    }
    for (int64_t j = 0; j < s->n && sum != 0; ++j)
        p[j] = p[j] == 0 ? 0 : p[j] / sum; /* also where the sum is NaN */
    return top + log(sum);
}

void oracle_attend_row(const oracle_shape *s, const ra_pattern_config *pattern,
                       const oracle_inputs *in, int64_t b, int32_t h, int64_t i, double *o,
                       double *lse)
{
    double *p = take(s->n);
    *lse = row_weights(s, pattern, in, b, h, i, p);
    for (int32_t d = 0; d < s->dim; ++d)
        o[d] = 0;
    for (int64_t j = 0; j < s->n; ++j) {
        for (int32_t d = 0; d < s->dim && p[j] != 0; ++d)
            o[d] += p[j] * in->v[k_at(s, b, j, h) + d];
    }
    free(p);
}

static void row_gradients(const oracle_shape *s, const oracle_inputs *in, const oracle_outputs *out,
                          int64_t b, int32_t h, int64_t i, const double *p, const double *o)
{
    double const scale = scale_of(s);
    const double *q = in->q + q_at(s, b, i, h), *dout = in->dout + q_at(s, b, i, h);
    double const delta = dot(dout, o, s->dim);
    for (int64_t j = 0; j < s->n; ++j) {
        if (p[j] == 0)
            continue;
        int64_t const at = k_at(s, b, j, h);
        double const ds = scale * p[j] * (dot(dout, in->v + at, s->dim) - delta);
        for (int32_t d = 0; d < s->dim; ++d) {
            out->dq[q_at(s, b, i, h) + d] += ds * in->k[at + d];
            out->dk[at + d] += ds * q[d];
            out->dv[at + d] += p[j] * dout[d];
        }
    }
}

void oracle_attend(const oracle_shape *s, const ra_pattern_config *pattern, const oracle_inputs *in,
                   const oracle_outputs *out)
{
    int64_t const q_count = s->batch * s->n * s->heads * s->dim;
    int64_t const k_count = s->batch * s->n * s->kv_heads * s->dim;
    double *p = take(s->n), *o = take(s->dim);
    if (in->dout != NULL) {
        memset(out->dq, 0, sizeof(double) * (size_t)q_count);
        memset(out->dk, 0, sizeof(double) * (size_t)k_count);
        memset(out->dv, 0, sizeof(double) * (size_t)k_count);
    }
    for (int64_t b = 0; b < s->batch; ++b) {
        for (int32_t h = 0; h < s->heads; ++h) {
            for (int64_t i = 0; i < s->n; ++i) {
                double const lse = row_weights(s, pattern, in, b, h, i, p);
                memset(o, 0, sizeof(double) * (size_t)s->dim);
                for (int64_t j = 0; j < s->n; ++j) {
                    for (int32_t d = 0; d < s->dim && p[j] != 0; ++d)
                        o[d] += p[j] * in->v[k_at(s, b, j, h) + d];
                }
                memcpy(out->o + q_at(s, b, i, h), o, sizeof(double) * (size_t)s->dim);
                if (out->lse != NULL)
                    out->lse[(b * s->heads + h) * s->n + i] = lse;
                if (in->dout != NULL)
                    row_gradients(s, in, out, b, h, i, p, o);
            }
        }
    }
    free(p);
    free(o);
}

/* ---- tensors ----------------------------------------------------------------------------------
 */

uint64_t oracle_random(uint64_t *state)
{
    uint64_t const value = mix(*state);
    *state += 0x9E3779B97F4A7C15u;
    return value;
}

double oracle_uniform(uint64_t *state)
{
    return (double)(oracle_random(state) >> 11) * 0x1p-53;
}

void oracle_load(ra_dtype dtype, const void *stored, int64_t count, double *values)
{
    for (int64_t i = 0; i < count; ++i)
        values[i] = (double)ra_dtype_load(dtype, stored, i);
}

void oracle_fill(uint64_t *state, ra_dtype dtype, double factor, int64_t count, void *stored,
                 double *values)
{
    for (int64_t i = 0; i < count; ++i) {
        double const radius = sqrt(-2 * log(1 - oracle_uniform(state)));
        double const value = factor * radius * cos(6.283185307179586 * oracle_uniform(state));
        float rounded[1]; /* one element of any dtype */
        ra_dtype_store(dtype, rounded, 0, (float)value);
        if (stored != NULL)
            memcpy((char *)stored + (size_t)i * ra_dtype_bytes(dtype), rounded,
                   ra_dtype_bytes(dtype));
        if (values != NULL)
            values[i] = (double)ra_dtype_load(dtype, rounded, 0);
    }
}

/* ---- errors -----------------------------------------------------------------------------------
 */

/* |got - want|; 0 where both are the same infinity or both NaN, Inf where one alone is not finite.
 */
static double difference(double got, double want)
{
    if (isnan(got) && isnan(want))
        return 0;
    if (isinf(want) || isinf(got))
        return got == want ? 0 : INFINITY;
    double const distance = fabs(got - want);
    return isnan(distance) ? INFINITY : distance;
}

static double norm_of(const double *values, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; ++i)
        sum += isfinite(values[i]) ? values[i] * values[i] : 0;
    return sqrt(sum);
}

/* ||got - want||, after every difference has been made smaller by `quantum`. */
static double distance_above(ra_dtype dtype, const void *got, const double *want, int64_t count,
                             double quantum)
{
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) {
        double const e = difference((double)ra_dtype_load(dtype, got, i), want[i]) - quantum;
        sum += e > 0 ? e * e : 0;
    }
    return sqrt(sum);
}

static double ratio(double error, double norm)
{
    if (error == 0)
        return 0;
    return norm == 0 ? INFINITY : error / norm;
}

double oracle_relative_error(ra_dtype dtype, const void *got, const double *want, int64_t count)
{
    return ratio(distance_above(dtype, got, want, count, 0), norm_of(want, count));
}

double oracle_stored_error(ra_dtype dtype, const void *got, const double *want, int64_t count,
                           const double *dout, int64_t dout_count)
{
    double const error = distance_above(dtype, got, want, count, dtype == RA_F16 ? 0x1p-25 : 0);
    double norm = norm_of(want, count);
    double const scale = dout != NULL ? norm_of(dout, dout_count) : 0;
    if (norm < 1e-3 * scale)
        norm = scale;
    return ratio(error, norm);
}

double oracle_floored_error(ra_dtype dtype, const void *got, const double *want, int64_t count,
                            double floor)
{
    double const error = distance_above(dtype, got, want, count, dtype == RA_F16 ? 0x1p-25 : 0);
    return ratio(error, fmax(norm_of(want, count), floor * sqrt((double)count)));
}

double oracle_max_error(ra_dtype dtype, const void *got, const double *want, int64_t count)
{
    double worst = 0;
    for (int64_t i = 0; i < count; ++i) {
        double const e = difference((double)ra_dtype_load(dtype, got, i), want[i]);
        worst = e > worst ? e : worst;
    }
    return worst;
}

double oracle_output_bound(ra_dtype dtype)
{
    return dtype == RA_F32 ? 2e-6 : dtype == RA_F16 ? 1e-3 : 8e-3;
}

double oracle_gradient_bound(ra_dtype dtype, int32_t dim)
{
    return oracle_output_bound(dtype) * (dtype != RA_F32 && dim < 16 ? 2 : 1);
}

double oracle_lse_bound(ra_dtype dtype)
{
    return dtype == RA_F32 ? 1e-5 : 1e-3;
}
