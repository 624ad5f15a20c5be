/*
 * Linear attention over one rank's rows. A task is a segment of one (batch, kv head): it goes
 * through its chunks in order (gradients of keys: backwards), carries the state in scratch, and
 * serves the query heads of its kv head chunk by chunk. Tasks share nothing that is written.
 *
 * A chunk with a NaN or Inf that only later rows may see is taken row by row, as chunks of one row:
 * a weight of zero would not keep it from the rows before.
 */
#ifndef RINGATTN_CPU_LINEAR_H
#define RINGATTN_CPU_LINEAR_H

#include "sparse/cpu/linear_chunk.h"

#include "internal.h"
#include "sparse/linear_segment.h"

/* A task, as its thread sees it. */
typedef struct linear_task {
    ra_kernel *kernel;
    const ra_linear_pass *pass;
    linear_scratch s;
    int32_t dim, dim_pad, ratio; /* ratio: query heads per kv head */
    int64_t batch, kv_head, begin, end;
    float *state, *grad; /* of the segment, in the pass */
    float *prefixes;     /* of the (batch, kv head) */
    head_view k, v;
    int64_t chunk_step; /* rows from a chunk to the next: CHUNK, or -CHUNK backwards */
} linear_task;

static const float ones[CHUNK] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                  1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                  1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

static linear_task task_begin(ra_kernel *kernel, const ra_linear_pass *pass, int64_t index)
{
    const ra_kernel_shape *shape = &pass->shape;
    int32_t const segment = (int32_t)(index % pass->segments);
    int64_t const lane = index / pass->segments, floats = ra_linear_state_floats(shape->dim);
    linear_task t = {.kernel = kernel,
                     .pass = pass,
                     .dim = shape->dim,
                     .dim_pad = padded(shape->dim),
                     .ratio = shape->q_heads / shape->kv_heads,
                     .batch = lane / shape->kv_heads,
                     .kv_head = lane % shape->kv_heads,
                     .begin = ra_linear_segment_begin(pass->rows, pass->segments, segment),
                     .end = ra_linear_segment_begin(pass->rows, pass->segments, segment + 1)};
    t.state = pass->states + index * floats;
    t.grad = pass->grads == NULL ? NULL : pass->grads + index * floats;
    t.prefixes = pass->prefixes == NULL ? NULL : pass->prefixes + lane * pass->rows * floats;
    t.k = view_head(&pass->k, t.batch, t.kv_head);
    t.v = view_head(&pass->v, t.batch, t.kv_head);
    t.chunk_step = CHUNK;
    return t;
}

static int64_t query_head(const linear_task *t, int32_t member)
{
    return t->kv_head * t->ratio + member;
}

static head_view query_view(const linear_task *t, const ra_view *view, int32_t member)
{
    return view_head(view, t->batch, query_head(t, member));
}

/* 1 / d and c of a row, in pairs. */
static float *query_lines(const linear_task *t, int32_t member, int64_t row)
{
    const ra_linear_pass *p = t->pass;
    return p->lines + 2 * ((t->batch * p->shape.q_heads + query_head(t, member)) * p->rows + row);
}

/* ---- rows of a chunk ------------------------------------------------------------------------- */

/* Ask for rows [row, row + n) of a head, those that the rank has. */
static void prefetch_chunk(const linear_task *t, head_view view, int64_t row, int32_t n)
{
    int64_t const end = ra_min_i64(row + n, t->pass->rows);
    for (row = ra_max_i64(row, 0); row < end; ++row)
        prefetch_row(t->kernel, head_row(view, row), view.dtype, 0, t->dim);
}

/* Load rows [row, row + n) of a head as float32, the rest zero, and ask for those of the next
   chunk; returns whether all are finite. */
static bool load_chunk(const linear_task *t, head_view view, int64_t row, int32_t n,
                       float *restrict to)
{
    int32_t const dim_pad = t->dim_pad;
    veci check = {0};
    prefetch_chunk(t, view, row + t->chunk_step, n);
    for (int32_t i = 0; i < n; ++i) {
        load_row(view.dtype, head_row(view, row + i), t->dim, to + (int64_t)i * dim_pad);
        check = check_row(check, to + (int64_t)i * dim_pad, dim_pad);
    }
    memset(to + (int64_t)n * dim_pad, 0, sizeof(float) * (size_t)((padded(n) - n) * dim_pad));
    return check_is_finite(check);
}

/* The same as features. */
static bool load_features(const linear_task *t, head_view view, int64_t row, int32_t n,
                          float *restrict to)
{
    int32_t const dim_pad = t->dim_pad;
    bool const finite = load_chunk(t, view, row, n, to);
    for (int32_t i = 0; i < n; ++i) {
        float *const at = to + (int64_t)i * dim_pad;
        for (int32_t d = 0; d < dim_pad; d += LANES)
            vec_store(at + d, vec_feature(vec_load(at + d)));
        for (int32_t d = t->dim; d < dim_pad; ++d)
            at[d] = 0;
    }
    return finite;
}

static bool load_key_chunk(const linear_task *t, int64_t row, int32_t n)
{
    bool const keys = load_features(t, t->k, row, n, t->s.key);
    bool const values = load_chunk(t, t->v, row, n, t->s.value);
    return keys && values;
}

/* s.line_rows: z as each of the n rows sees it. */
static void make_line_rows(const linear_task *t, int32_t n)
{
    int32_t const dim_pad = t->dim_pad;
    for (int32_t d = 0; d < dim_pad; d += LANES) {
        vec own = {0};
        vec const before = vec_load(t->s.state.line + d);
        for (int32_t i = 0; i < n; ++i) {
            if (t->pass->causal)
                own += vec_load(t->s.key + (int64_t)i * dim_pad + d);
            vec_store(t->s.line_rows + (int64_t)i * dim_pad + d, before + own);
        }
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

static void sum_task(linear_task *t)
{
    carried_load(&t->s.state, t->dim, NULL);
    for (int64_t row = t->begin; row < t->end; row += CHUNK) {
        int32_t const n = (int32_t)ra_min_i64(CHUNK, t->end - row);
        load_key_chunk(t, row, n);
        carried_add_product(&t->s.state, n, t->dim_pad, t->s.key, t->s.value);
        carried_add_rows(&t->s.state, n, t->dim_pad, t->s.key, ones, 1);
        poll_now(t->kernel);
    }
    carried_save(&t->s.state, t->dim, t->state);
}

/* ---- forward, chunked ------------------------------------------------------------------------ */

static void store_scaled(const linear_task *t, head_view to, int64_t row, float *values,
                         float factor)
{
    for (int32_t d = 0; d < t->dim_pad; d += LANES)
        vec_store(values + d, vec_load(values + d) * factor);
    store_row(to.dtype, values, t->dim, head_row(to, row));
}

static void forward_member(const linear_task *t, int32_t member, int64_t row, int32_t n)
{
    const linear_scratch *s = &t->s;
    int32_t const dim_pad = t->dim_pad, rows = padded(n);
    head_view const out = query_view(t, &t->pass->out, member);
    prefetch_chunk(t, out, row, n);
    load_features(t, query_view(t, &t->pass->q, member), row, n, s->query);
    multiply(PRODUCT_SET, rows, dim_pad, dim_pad, s->query, dim_pad, 1, s->state.matrix, dim_pad,
             s->first, s->first, dim_pad);
    if (t->pass->causal) {
        multiply(PRODUCT_SET, rows, rows, dim_pad, s->query, dim_pad, 1, s->key_columns, CHUNK,
                 s->weights, s->weights, CHUNK);
        mask_later_keys(s->weights, n);
        multiply(PRODUCT_ADD, rows, dim_pad, n, s->weights, CHUNK, 1, s->value, dim_pad, s->first,
                 s->first, dim_pad);
    }
    for (int32_t i = 0; i < n; ++i) {
        int64_t const at = (int64_t)i * dim_pad;
        float const d = dot_padded(s->query + at, s->line_rows + at, dim_pad) + RA_LINEAR_EPSILON;
        store_scaled(t, out, row + i, s->first + at, 1 / d);
    }
}

/* Keys, if any, are loaded. */
static void forward_chunked(linear_task *t, int64_t row, int32_t n)
{
    const linear_scratch *s = &t->s;
    if (t->pass->causal)
        transpose(s->key, padded(n), t->dim_pad, t->dim_pad, s->key_columns, CHUNK);
    make_line_rows(t, n);
    for (int32_t member = 0; member < t->ratio; ++member)
        forward_member(t, member, row, n);
    if (t->pass->causal) {
        carried_add_product(&s->state, n, t->dim_pad, s->key, s->value);
        carried_add_rows(&s->state, n, t->dim_pad, s->key, ones, 1);
    }
    poll_now(t->kernel);
}

static void forward_task_chunked(linear_task *t)
{
    bool const causal = t->pass->causal;
    carried_load(&t->s.state, t->dim, t->state);
    for (int64_t row = t->begin; row < t->end; row += CHUNK) {
        int32_t const n = (int32_t)ra_min_i64(CHUNK, t->end - row);
        if (!causal || load_key_chunk(t, row, n)) {
            forward_chunked(t, row, n);
            continue;
        }
        for (int32_t i = 0; i < n; ++i) {
            load_key_chunk(t, row + i, 1);
            forward_chunked(t, row + i, 1);
        }
    }
}

/* ---- forward, row by row --------------------------------------------------------------------- */

/* Add a key to s.grad, which holds what the chunk has added so far. */
static void add_key(const linear_task *t, int32_t i)
{
    const linear_scratch *s = &t->s;
    const float *const key = s->key + (int64_t)i * t->dim_pad;
    const float *const value = s->value + (int64_t)i * t->dim_pad;
    for (int32_t d = 0; d < t->dim; ++d) {
        float *const row = s->grad.matrix + (int64_t)d * t->dim_pad;
        for (int32_t e = 0; e < t->dim_pad; e += LANES)
            vec_store(row + e, vec_load(row + e) + vec_load(value + e) * key[d]);
    }
    for (int32_t d = 0; d < t->dim_pad; d += LANES)
        vec_store(s->grad.line + d, vec_load(s->grad.line + d) + vec_load(key + d));
}

/* Add the chunk's own sums to the longer ones, and begin anew. */
static void fold_chunk(const linear_task *t)
{
    const linear_scratch *s = &t->s;
    for (int32_t x = 0; x < t->dim_pad * t->dim_pad; x += LANES)
        carry(s->state.matrix + x, s->state.matrix_rest + x, vec_load(s->grad.matrix + x));
    for (int32_t d = 0; d < t->dim_pad; d += LANES)
        carry(s->state.line + d, s->state.line_rest + d, vec_load(s->grad.line + d));
    carried_load(&s->grad, t->dim, NULL);
}

/* out = query (before + own) / (query . line + eps), from matrices with rows of dim_pad. */
static void forward_row(const linear_task *t, int32_t member, int64_t row)
{
    const linear_scratch *s = &t->s;
    head_view const out = query_view(t, &t->pass->out, member);
    load_features(t, query_view(t, &t->pass->q, member), row, 1, s->query);
    memset(s->first, 0, sizeof(float) * (size_t)t->dim_pad);
    float d = RA_LINEAR_EPSILON;
    for (int32_t x = 0; x < t->dim; ++x) {
        const float *const before = s->state.matrix + (int64_t)x * t->dim_pad;
        const float *const own = s->grad.matrix + (int64_t)x * t->dim_pad;
        for (int32_t e = 0; e < t->dim_pad; e += LANES)
            vec_store(s->first + e, vec_load(s->first + e) +
                                        (vec_load(before + e) + vec_load(own + e)) * s->query[x]);
        d += s->query[x] * (s->state.line[x] + s->grad.line[x]);
    }
    store_scaled(t, out, row, s->first, 1 / d);
}

/* The state that row `row` sees, in the pass's layout. */
static void store_prefix(const linear_task *t, int64_t row)
{
    const linear_scratch *s = &t->s;
    float *const to = t->prefixes + row * ra_linear_state_floats(t->dim);
    for (int32_t d = 0; d < t->dim; ++d) {
        int64_t const from = (int64_t)d * t->dim_pad;
        for (int32_t e = 0; e < t->dim; ++e)
            to[(int64_t)d * t->dim + e] = s->state.matrix[from + e] + s->grad.matrix[from + e];
        to[(int64_t)t->dim * t->dim + d] = s->state.line[d] + s->grad.line[d];
    }
}

static void forward_from_prefix(const linear_task *t, int32_t member, int64_t row)
{
    const linear_scratch *s = &t->s;
    const float *const state = t->prefixes + row * ra_linear_state_floats(t->dim);
    const float *const line = state + (int64_t)t->dim * t->dim;
    float *restrict const sum = s->first;
    load_features(t, query_view(t, &t->pass->q, member), row, 1, s->query);
    memset(sum, 0, sizeof(float) * (size_t)t->dim_pad);
    float d = RA_LINEAR_EPSILON;
    for (int32_t x = 0; x < t->dim; ++x) {
        float const q = s->query[x];
        for (int32_t e = 0; e < t->dim; ++e)
            sum[e] += q * state[(int64_t)x * t->dim + e];
        d += q * line[x];
    }
    store_scaled(t, query_view(t, &t->pass->out, member), row, sum, 1 / d);
}

/* Recurrent; or cumsum, which stores every row's state before it reads any. */
static void forward_task_rows(linear_task *t)
{
    bool const stores = t->pass->method == RA_LINEAR_CUMSUM;
    carried_load(&t->s.state, t->dim, t->state);
    carried_load(&t->s.grad, t->dim, NULL);
    for (int64_t row = t->begin; row < t->end; row += CHUNK) {
        int32_t const n = (int32_t)ra_min_i64(CHUNK, t->end - row);
        load_key_chunk(t, row, n);
        for (int32_t i = 0; i < n; ++i) {
            add_key(t, i);
            if (stores)
                store_prefix(t, row + i);
            for (int32_t member = 0; member < t->ratio && !stores; ++member)
                forward_row(t, member, row + i);
        }
        fold_chunk(t);
        poll_now(t->kernel);
    }
    for (int64_t row = t->begin; row < t->end && stores; ++row) {
        for (int32_t member = 0; member < t->ratio; ++member)
            forward_from_prefix(t, member, row);
        if (row % CHUNK == 0)
            poll_now(t->kernel);
    }
}

static void forward_task(linear_task *t)
{
    if (t->pass->causal && t->pass->method != RA_LINEAR_CHUNKED)
        forward_task_rows(t);
    else
        forward_task_chunked(t);
}

#endif
