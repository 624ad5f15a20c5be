/*
 * Attention of single rows in float64: the pattern's definition decides every pair, and one online
 * softmax goes over all keys. Written to be read; it shares no code with slices, tile maps or
 * kernels.
 */
#include "verify_reference.h"
#include "tensors.h"

#include "internal.h"

#include <math.h>
#include <string.h>

double ra_reference_dot(const double *x, const double *y, int32_t dim)
{
    double part[8] = {0}; /* independent sums, so that compilers may use vectors */
    int32_t d = 0;
    for (; d + 8 <= dim; d += 8)
        for (int i = 0; i < 8; ++i)
            part[i] += x[d + i] * y[d + i];
    double sum = 0;
    for (; d < dim; ++d)
        sum += x[d] * y[d];
    for (int i = 0; i < 8; ++i)
        sum += part[i];
    return sum;
}

void ra_reference_add(double a, const double *restrict x, double *restrict y, int32_t dim)
{
    for (int32_t d = 0; d < dim; ++d)
        y[d] += a * x[d];
}

bool ra_reference_finite(const double *x, int32_t dim)
{
    bool finite = true;
    for (int32_t d = 0; d < dim; ++d)
        finite = finite && isfinite(x[d]);
    return finite;
}

static void scale_values(double a, double *x, int32_t dim)
{
    for (int32_t d = 0; d < dim; ++d)
        x[d] *= a;
}

/* ---- memory ---------------------------------------------------------------------------------- */

int64_t ra_reference_bytes(const ra_config *config)
{
    size_t const keys_bytes = RA_REFERENCE_KEYS * (size_t)config->head_dim * sizeof(double);
    size_t const bytes = RA_REFERENCE_ROWS * sizeof(ra_reference_row) + 2 * keys_bytes +
                         RA_REFERENCE_KEYS * (2 * sizeof(double) + sizeof(int32_t) + sizeof(bool));
    return (int64_t)ra_round_up(bytes, 64);
}

void ra_reference_init(const ra_config *config, const ra_pattern *pattern,
                       const ra_tensor_source *source, void *work, ra_reference *reference_out)
{
    int32_t const dim = config->head_dim;
    ra_reference reference = {
        .config = config, .pattern = pattern, .source = source, .dim = dim, .line_head = -1};
    reference.scale = config->scale != 0 ? config->scale : 1 / sqrt((double)dim);
    reference.rows = work;
    reference.k = (double *)(reference.rows + RA_REFERENCE_ROWS);
    reference.v = reference.k + RA_REFERENCE_KEYS * dim;
    reference.k_norm = reference.v + RA_REFERENCE_KEYS * dim;
    reference.v_norm = reference.k_norm + RA_REFERENCE_KEYS;
    reference.multiplicity = (int32_t *)(reference.v_norm + RA_REFERENCE_KEYS);
    reference.key_nonfinite = (bool *)(reference.multiplicity + RA_REFERENCE_KEYS);
    *reference_out = reference;
}

/* ---- rows ------------------------------------------------------------------------------------ */

ra_status ra_reference_load(const ra_reference *reference, int64_t batch, int32_t head,
                            bool with_dout, ra_reference_row *rows, int count)
{
    const ra_config *config = reference->config;
    int32_t const dim = reference->dim;
    double values[RA_REFERENCE_ROWS * RA_HEAD_DIM_MAX];
    RA_ASSERT(count <= RA_REFERENCE_ROWS);
    for (int begin = 0, end; begin < count; begin = end) {
        for (end = begin + 1; end < count && rows[end].row == rows[end - 1].row + 1;)
            ++end;
        for (int pass = 0; pass < (with_dout ? 2 : 1); ++pass) {
            ra_status const status = ra_tensor_source_rows(
                reference->source, config, pass == 0 ? RA_TENSOR_Q : RA_TENSOR_DO, batch, head,
                rows[begin].row, end - begin, reference->staging, values);
            if (status != RA_OK)
                return status;
            for (int i = begin; i < end; ++i)
                memcpy(pass == 0 ? rows[i].q : rows[i].dout, values + (i - begin) * dim,
                       (size_t)dim * sizeof(double));
        }
    }
    for (int i = 0; i < count; ++i) {
        ra_reference_row *const row = &rows[i];
        row->nonfinite = !ra_reference_finite(row->q, dim) ||
                         (with_dout && !ra_reference_finite(row->dout, dim));
        row->q_norm = sqrt(ra_reference_dot(row->q, row->q, dim));
        row->dout_norm = with_dout ? sqrt(ra_reference_dot(row->dout, row->dout, dim)) : 0;
    }
    return RA_OK;
}

/* A higher score than any before: everything summed so far shrinks. */
static void raise_top(ra_reference_row *row, double score, ra_reference_depth depth, int32_t dim)
{
    double const shrink = exp(row->top - score);
    ra_reference_squares *const s = &row->weighed;
    row->top = score;
    row->sum *= shrink;
    row->sum_v *= shrink;
    row->sum_score *= shrink;
    scale_values(shrink * shrink, &s->one, sizeof(*s) / sizeof(double));
    scale_values(shrink, row->out, dim);
    if (depth == RA_REFERENCE_GRADIENT) {
        scale_values(shrink, row->dq, dim);
        scale_values(shrink, row->kept, dim);
        scale_values(shrink, row->lean, dim);
    }
}

static void see_key(const ra_reference *reference, ra_reference_depth depth, int64_t key,
                    int32_t multiplicity, ra_reference_row *row)
{
    int32_t const dim = reference->dim;
    const double *k = reference->k + key * dim, *v = reference->v + key * dim;
    double const k_norm = reference->k_norm[key], v_norm = reference->v_norm[key];
    if (reference->key_nonfinite[key]) {
        row->nonfinite = true;
        return;
    }
    double const score = reference->scale * ra_reference_dot(row->q, k, dim);
    if (score > row->top)
        raise_top(row, score, depth, dim);
    double const weight = multiplicity * exp(score - row->top);
    double const size = ra_reference_score_size(score, reference->scale * row->q_norm, k_norm, dim);
    row->sum += weight;
    row->sum_score += weight * size * size;
    ra_reference_add(weight, v, row->out, dim);
    ra_reference_add_out(row, weight, v_norm);
    if (depth == RA_REFERENCE_GRADIENT) {
        double const dp = ra_reference_dot(row->dout, v, dim);
        ra_reference_add(weight * dp, k, row->dq, dim);
        ra_reference_add(weight, k, row->kept, dim);
        if (reference->config->dtype == RA_F32) /* in 16 bits it would count next to nothing */
            ra_reference_add(weight * ra_reference_product_lean(dp, row->dout_norm, v_norm, dim), k,
                             row->lean, dim);
        ra_reference_add_gradient(row, weight, k_norm, dp, v_norm, dim);
    }
}

/* dq = scale sum p (dp - delta) k, delta = do . o; the sums over p dp k and p k are at hand. */
static void end_row(const ra_reference *reference, ra_reference_depth depth, ra_reference_row *row)
{
    int32_t const dim = reference->dim;
    double const inverse = row->sum > 0 ? 1 / row->sum : 0;
    double const factor = reference->scale * inverse;
    /* The top's weight is 1 before the division. */
    double const least = ra_verify_least(reference->config->dtype);
    row->lse = row->sum > 0 ? row->top + log(row->sum) : -INFINITY;
    scale_values(inverse, row->out, dim);
    ra_reference_end_out(row, inverse, least, sqrt(row->sum_score * inverse), dim);
    if (depth == RA_REFERENCE_OUT)
        return;
    ra_reference_end_delta(row, inverse, dim);
    if (depth == RA_REFERENCE_DELTA)
        return;
    ra_reference_end_gradient(row, factor, least, dim);
    ra_reference_add(-row->delta, row->kept, row->dq, dim);
    scale_values(factor, row->dq, dim);
}

/* ---- keys ------------------------------------------------------------------------------------ */

ra_status ra_reference_load_keys(ra_reference *reference, int64_t batch, int32_t kv_head,
                                 int64_t begin, int64_t count)
{
    int32_t const dim = reference->dim;
    ra_status status =
        ra_tensor_source_rows(reference->source, reference->config, RA_TENSOR_K, batch, kv_head,
                              begin, count, reference->staging, reference->k);
    if (status == RA_OK)
        status = ra_tensor_source_rows(reference->source, reference->config, RA_TENSOR_V, batch,
                                       kv_head, begin, count, reference->staging, reference->v);
    for (int64_t i = 0; i < count && status == RA_OK; ++i) {
        const double *k = reference->k + i * dim, *v = reference->v + i * dim;
        reference->k_norm[i] = sqrt(ra_reference_dot(k, k, dim));
        reference->v_norm[i] = sqrt(ra_reference_dot(v, v, dim));
        reference->key_nonfinite[i] = !ra_reference_finite(k, dim) || !ra_reference_finite(v, dim);
    }
    return status;
}

ra_status ra_reference_attend(ra_reference *reference, int64_t batch, int32_t head,
                              ra_reference_depth depth, ra_reference_row *rows, int count)
{
    const ra_config *config = reference->config;
    int32_t const kv_head = head / (config->heads / config->kv_heads);
    int32_t *multiplicity = reference->multiplicity;
    if (ra_config_linear(config) != RA_LINEAR_NONE)
        return ra_reference_attend_linear(reference, batch, head, depth, rows, count);
    for (int i = 0; i < count; ++i)
        ra_reference_begin_row(&rows[i], reference->dim);
    for (int64_t begin = 0; begin < config->seq; begin += RA_REFERENCE_KEYS) {
        int64_t const keys = ra_min_i64(RA_REFERENCE_KEYS, config->seq - begin);
        bool loaded = false;
        for (int i = 0; i < count; ++i) {
            bool live = false;
            for (int64_t j = 0; j < keys; ++j) {
                multiplicity[j] =
                    ra_pattern_multiplicity(reference->pattern, head, rows[i].row, begin + j);
                live = live || multiplicity[j] != 0;
            }
            if (!live || rows[i].nonfinite)
                continue;
            if (!loaded) {
                ra_status const status =
                    ra_reference_load_keys(reference, batch, kv_head, begin, keys);
                if (status != RA_OK)
                    return status;
                loaded = true;
            }
            for (int64_t j = 0; j < keys; ++j)
                if (multiplicity[j] != 0)
                    see_key(reference, depth, j, multiplicity[j], &rows[i]);
        }
    }
    for (int i = 0; i < count; ++i)
        end_row(reference, depth, &rows[i]);
    return RA_OK;
}
