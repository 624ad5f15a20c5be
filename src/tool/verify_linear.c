/*
 * Linear attention of single rows in float64: weights phi(q) . phi(k) pair by pair, without states,
 * so that nothing is shared with the code under test.
 */
#include "internal.h"
#include "verify_reference.h"

#include <math.h>
#include <string.h>

static const double epsilon = 1e-6;

void ra_reference_features(double *x, int32_t dim)
{
    for (int32_t d = 0; d < dim; ++d)
        x[d] = x[d] > 0 ? x[d] + 1 : exp(x[d]);
}

/* Add to the sums of p dp phi(k), p phi(k) and the like, with p before the division. */
static void see_key(const ra_reference *reference, ra_reference_depth depth, int64_t key,
                    ra_reference_row *row)
{
    int32_t const dim = reference->dim;
    const double *const phi = reference->k + key * dim, *const v = reference->v + key * dim;
    if (reference->key_nonfinite[key]) {
        row->nonfinite = true;
        return;
    }
    double const weight = ra_reference_dot(row->q, phi, dim);
    row->sum += weight;
    ra_reference_add(weight, v, row->out, dim);
    ra_reference_add_out(row, weight, reference->v_norm[key]);
    if (depth != RA_REFERENCE_GRADIENT)
        return;
    double const dp = ra_reference_dot(row->dout, v, dim);
    double size = 0;
    for (int32_t d = 0; d < dim; ++d) {
        double const slope = fmin(row->q[d], 1) * phi[d];
        row->dq[d] += dp * slope;
        row->kept[d] += slope;
        size += slope * slope;
    }
    ra_reference_add_gradient(row, 1, sqrt(size), dp, reference->v_norm[key], dim);
}

/*
 * dq = slope(q) sum (dp - delta) phi(k) / sum, delta = do . o. No weight is an exponential of a
 * score, so that least and growth do not apply.
 */
static void end_row(const ra_reference *reference, ra_reference_depth depth, ra_reference_row *row)
{
    int32_t const dim = reference->dim;
    row->sum += epsilon;
    row->lse = log(row->sum);
    double const inverse = 1 / row->sum;
    for (int32_t d = 0; d < dim; ++d)
        row->out[d] *= inverse;
    ra_reference_end_out(row, inverse, 0, 0, dim);
    if (depth == RA_REFERENCE_OUT)
        return;
    ra_reference_end_delta(row, inverse, dim);
    if (depth == RA_REFERENCE_DELTA)
        return;
    ra_reference_end_gradient(row, inverse, 0, dim);
    row->of_dq.coherent += inverse * inverse * ra_reference_dot(row->dq, row->dq, dim);
    for (int32_t d = 0; d < dim; ++d)
        row->dq[d] = (row->dq[d] - row->delta * row->kept[d]) * inverse;
}

/* Keys [begin, begin + count), as features. */
static ra_status load_features(ra_reference *reference, int64_t batch, int32_t head, int64_t begin,
                               int64_t count)
{
    const ra_config *config = reference->config;
    int32_t const kv_head = head / (config->heads / config->kv_heads);
    ra_status const status = ra_reference_load_keys(reference, batch, kv_head, begin, count);
    for (int64_t j = 0; j < count && status == RA_OK; ++j)
        ra_reference_features(reference->k + j * reference->dim, reference->dim);
    return status;
}

/* One past the last key that a row sees. */
static int64_t keys_end(const ra_reference *reference, const ra_reference_row *row)
{
    bool const causal = ra_config_linear(reference->config) == RA_LINEAR_CAUSAL;
    return causal ? row->row + 1 : reference->config->seq;
}

ra_status ra_reference_attend_linear(ra_reference *reference, int64_t batch, int32_t head,
                                     ra_reference_depth depth, ra_reference_row *rows, int count)
{
    int64_t end = 0;
    for (int i = 0; i < count; ++i) {
        ra_reference_begin_row(&rows[i], reference->dim);
        ra_reference_features(rows[i].q, reference->dim);
        end = ra_max_i64(end, keys_end(reference, &rows[i]));
    }
    for (int64_t begin = 0; begin < end; begin += RA_REFERENCE_KEYS) {
        int64_t const keys = ra_min_i64(RA_REFERENCE_KEYS, end - begin);
        ra_status const status = load_features(reference, batch, head, begin, keys);
        if (status != RA_OK)
            return status;
        for (int i = 0; i < count; ++i) {
            int64_t const seen = ra_min_i64(keys, keys_end(reference, &rows[i]) - begin);
            for (int64_t j = 0; j < seen && !rows[i].nonfinite; ++j)
                see_key(reference, depth, j, &rows[i]);
        }
    }
    for (int i = 0; i < count; ++i)
        end_row(reference, depth, &rows[i]);
    return RA_OK;
}

/* reference->line: phi(k) summed over the keys before `end`, from where the last call ended. */
static ra_status advance_line(ra_reference *reference, int64_t batch, int32_t head, int64_t end)
{
    if (reference->line_head != head || reference->line_batch != batch ||
        reference->line_end > end) {
        memset(reference->line, 0, sizeof(reference->line));
        reference->line_batch = batch;
        reference->line_head = head;
        reference->line_end = 0;
    }
    while (reference->line_end < end) {
        int64_t const keys = ra_min_i64(RA_REFERENCE_KEYS, end - reference->line_end);
        ra_status const status = load_features(reference, batch, head, reference->line_end, keys);
        if (status != RA_OK)
            return status;
        for (int64_t j = 0; j < keys; ++j)
            ra_reference_add(1, reference->k + j * reference->dim, reference->line, reference->dim);
        reference->line_end += keys;
    }
    return RA_OK;
}

ra_status ra_reference_sum_linear(ra_reference *reference, int64_t batch, int32_t head,
                                  ra_reference_row *rows, int count)
{
    for (int i = 0; i < count; ++i) {
        ra_status const status =
            advance_line(reference, batch, head, keys_end(reference, &rows[i]));
        if (status != RA_OK)
            return status;
        ra_reference_features(rows[i].q, reference->dim);
        rows[i].sum = ra_reference_dot(rows[i].q, reference->line, reference->dim) + epsilon;
        rows[i].lse = log(rows[i].sum);
    }
    return RA_OK;
}
