/*
 * Gradients of linear attention, in two sweeps over the chunks of a segment. The first carries the
 * states forwards and computes dq; on the way it sums G and w over the segment's queries. The
 * second carries G and w backwards and computes dk and dv. They share two floats per row and query
 * head, 1 / d and c, so neither states nor outputs need be kept.
 */
#ifndef RINGATTN_CPU_LINEAR_BACKWARD_H
#define RINGATTN_CPU_LINEAR_BACKWARD_H

#include "sparse/cpu/linear_cpu.h"

/* ---- queries --------------------------------------------------------------------------------- */

/*
 * s.first holds S do of each row. dphi(q) = S do / d + c z, with c = -(phi(q) . S do) / d^2, which
 * is -(g . o): the output is not needed, let alone a rounded one. do becomes g.
 */
static void finish_queries(const linear_task *t, int32_t member, int64_t row, int32_t n)
{
    const linear_scratch *s = &t->s;
    int32_t const dim_pad = t->dim_pad;
    head_view const dq = query_view(t, &t->pass->dq, member);
    float *const lines = query_lines(t, member, row);
    for (int32_t i = 0; i < n; ++i) {
        int64_t const at = (int64_t)i * dim_pad;
        const float *const query = s->query + at, *const line = s->line_rows + at;
        float *const slope = s->first + at;
        float const inverse = 1 / (dot_padded(query, line, dim_pad) + RA_LINEAR_EPSILON);
        float const c = -dot_padded(query, slope, dim_pad) * inverse * inverse;
        for (int32_t d = 0; d < dim_pad; d += LANES) {
            vec const dphi = vec_load(slope + d) * inverse + vec_load(line + d) * c;
            vec_store(slope + d, dphi * vec_feature_slope(vec_load(query + d)));
            vec_store(s->dout + at + d, vec_load(s->dout + at + d) * inverse);
        }
        store_row(dq.dtype, slope, t->dim, head_row(dq, row + i));
        lines[2 * (int64_t)i] = inverse;
        lines[2 * (int64_t)i + 1] = c;
    }
}

/* s.state.matrix is transposed here: the right operand of the product with do. */
static void query_member(const linear_task *t, int32_t member, int64_t row, int32_t n)
{
    const linear_scratch *s = &t->s;
    int32_t const dim_pad = t->dim_pad, rows = padded(n);
    prefetch_chunk(t, query_view(t, &t->pass->dq, member), row, n);
    load_features(t, query_view(t, &t->pass->q, member), row, n, s->query);
    load_chunk(t, query_view(t, &t->pass->dout, member), row, n, s->dout);
    multiply(PRODUCT_SET, rows, dim_pad, dim_pad, s->dout, dim_pad, 1, s->state.matrix, dim_pad,
             s->first, s->first, dim_pad);
    if (t->pass->causal) {
        multiply(PRODUCT_SET, rows, rows, dim_pad, s->dout, dim_pad, 1, s->value_columns, CHUNK,
                 s->weights, s->weights, CHUNK);
        mask_later_keys(s->weights, n);
        multiply(PRODUCT_ADD, rows, dim_pad, n, s->weights, CHUNK, 1, s->key, dim_pad, s->first,
                 s->first, dim_pad);
    }
    finish_queries(t, member, row, n);
    carried_add_product(&s->grad, n, dim_pad, s->query, s->dout);
    carried_add_rows(&s->grad, n, dim_pad, s->query, query_lines(t, member, row) + 1, 2);
}

/* Keys, if any, are loaded. */
static void query_chunk(linear_task *t, int64_t row, int32_t n)
{
    const linear_scratch *s = &t->s;
    if (t->pass->causal)
        transpose(s->value, padded(n), t->dim_pad, t->dim_pad, s->value_columns, CHUNK);
    make_line_rows(t, n);
    for (int32_t member = 0; member < t->ratio; ++member)
        query_member(t, member, row, n);
    if (t->pass->causal) {
        carried_add_product(&s->state, n, t->dim_pad, s->value, s->key);
        carried_add_rows(&s->state, n, t->dim_pad, s->key, ones, 1);
    }
    poll_now(t->kernel);
}

static void query_task(linear_task *t)
{
    const linear_scratch *s = &t->s;
    carried_load(&s->grad, t->dim, t->state); /* on its way to being transposed */
    carried_load(&s->state, t->dim, t->state);
    transpose(s->grad.matrix, t->dim_pad, t->dim_pad, t->dim_pad, s->state.matrix, t->dim_pad);
    carried_load(&s->grad, t->dim, NULL);
    for (int64_t row = t->begin; row < t->end; row += CHUNK) {
        int32_t const n = (int32_t)ra_min_i64(CHUNK, t->end - row);
        if (!t->pass->causal || load_key_chunk(t, row, n)) {
            query_chunk(t, row, n);
            continue;
        }
        for (int32_t i = 0; i < n; ++i) {
            load_key_chunk(t, row + i, 1);
            query_chunk(t, row + i, 1);
        }
    }
    carried_save(&s->grad, t->dim, t->grad);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* The later queries' part for the chunk's keys: s.first = V G^T + w, s.second = phi(k) G. */
static void begin_keys(const linear_task *t, int32_t n)
{
    const linear_scratch *s = &t->s;
    int32_t const dim_pad = t->dim_pad, rows = padded(n);
    multiply(PRODUCT_SET, rows, dim_pad, dim_pad, s->value, dim_pad, 1, s->state.matrix, dim_pad,
             s->first, s->first, dim_pad);
    multiply(PRODUCT_SET, rows, dim_pad, dim_pad, s->key, dim_pad, 1, s->grad.matrix, dim_pad,
             s->second, s->second, dim_pad);
    for (int32_t i = 0; i < n; ++i)
        for (int32_t d = 0; d < dim_pad; d += LANES) {
            float *const at = s->first + (int64_t)i * dim_pad + d;
            vec_store(at, vec_load(at) + vec_load(s->grad.line + d));
        }
}

/* Add the chunk's own queries of one head, then add them to G and w. */
static void key_member(const linear_task *t, int32_t member, int64_t row, int32_t n)
{
    const linear_scratch *s = &t->s;
    int32_t const dim_pad = t->dim_pad, rows = padded(n);
    const float *const lines = query_lines(t, member, row);
    load_features(t, query_view(t, &t->pass->q, member), row, n, s->query);
    load_chunk(t, query_view(t, &t->pass->dout, member), row, n, s->dout);
    for (int32_t i = 0; i < n; ++i)
        for (int32_t d = 0; d < dim_pad; d += LANES) {
            float *const at = s->dout + (int64_t)i * dim_pad + d;
            vec_store(at, vec_load(at) * lines[2 * (int64_t)i]);
        }
    multiply(PRODUCT_SET, rows, rows, dim_pad, s->dout, dim_pad, 1, s->value_columns, CHUNK,
             s->weights, s->weights, CHUNK);
    for (int32_t i = 0; i < n; ++i)
        for (int32_t j = 0; j < rows; j += LANES) {
            float *const at = s->weights + i * CHUNK + j;
            vec_store(at, vec_load(at) + lines[2 * (int64_t)i + 1]);
        }
    mask_later_keys(s->weights, n);
    multiply(PRODUCT_ADD, rows, dim_pad, n, s->weights, 1, CHUNK, s->query, dim_pad, s->first,
             s->first, dim_pad);
    multiply(PRODUCT_SET, rows, rows, dim_pad, s->query, dim_pad, 1, s->key_columns, CHUNK,
             s->weights, s->weights, CHUNK);
    mask_later_keys(s->weights, n);
    multiply(PRODUCT_ADD, rows, dim_pad, n, s->weights, 1, CHUNK, s->dout, dim_pad, s->second,
             s->second, dim_pad);
    carried_add_product(&s->grad, n, dim_pad, s->query, s->dout);
    carried_add_rows(&s->grad, n, dim_pad, s->query, lines + 1, 2);
}

static void store_keys(const linear_task *t, int64_t row, int32_t n)
{
    const linear_scratch *s = &t->s;
    head_view const dk = view_head(&t->pass->dk, t->batch, t->kv_head);
    head_view const dv = view_head(&t->pass->dv, t->batch, t->kv_head);
    for (int32_t i = 0; i < n; ++i) {
        int64_t const at = (int64_t)i * t->dim_pad;
        for (int32_t d = 0; d < t->dim_pad; d += LANES)
            vec_store(s->first + at + d,
                      vec_load(s->first + at + d) * vec_feature_slope(vec_load(s->key + at + d)));
        store_row(dk.dtype, s->first + at, t->dim, head_row(dk, row + i));
        store_row(dv.dtype, s->second + at, t->dim, head_row(dv, row + i));
    }
}

static void key_chunk(linear_task *t, int64_t row, int32_t n)
{
    const linear_scratch *s = &t->s;
    prefetch_chunk(t, view_head(&t->pass->dk, t->batch, t->kv_head), row, n);
    prefetch_chunk(t, view_head(&t->pass->dv, t->batch, t->kv_head), row, n);
    load_key_chunk(t, row, n);
    if (t->pass->causal) {
        int32_t const rows = padded(n), dim_pad = t->dim_pad;
        transpose(s->grad.matrix, dim_pad, dim_pad, dim_pad, s->state.matrix, dim_pad);
        transpose(s->key, rows, dim_pad, dim_pad, s->key_columns, CHUNK);
        transpose(s->value, rows, dim_pad, dim_pad, s->value_columns, CHUNK);
    }
    begin_keys(t, n);
    for (int32_t member = 0; member < t->ratio && t->pass->causal; ++member)
        key_member(t, member, row, n);
    store_keys(t, row, n);
    poll_now(t->kernel);
}

/* A NaN or Inf in a query, its do, or what it sees shows in its c. */
static bool queries_are_finite(const linear_task *t, int64_t row, int32_t n)
{
    float check = 0;
    for (int32_t member = 0; member < t->ratio; ++member) {
        const float *const lines = query_lines(t, member, row);
        for (int64_t i = 0; i < n; ++i)
            check += 0.0f * lines[2 * i + 1];
    }
    return check == 0;
}

static void key_task(linear_task *t)
{
    const linear_scratch *s = &t->s;
    t->chunk_step = -CHUNK;
    carried_load(&s->grad, t->dim, t->grad);
    transpose(s->grad.matrix, t->dim_pad, t->dim_pad, t->dim_pad, s->state.matrix, t->dim_pad);
    int64_t const chunks = ra_div_ceil(t->end - t->begin, CHUNK);
    for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
        int64_t const row = t->begin + chunk * CHUNK;
        int32_t const n = (int32_t)ra_min_i64(CHUNK, t->end - row);
        if (!t->pass->causal || queries_are_finite(t, row, n)) {
            key_chunk(t, row, n);
            continue;
        }
        for (int32_t i = n - 1; i >= 0; --i)
            key_chunk(t, row + i, 1);
    }
}

#endif
