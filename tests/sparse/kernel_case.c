#include "sparse/kernel_case.h"
#include "ringattn/block_mask.h"
#include "support/poison_memory.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A tensor of a run: rows in the run's own numbering, with gaps where the case wants them. */
typedef struct run_tensor {
    void *memory;
    int64_t bytes;
    ra_view view;
} run_tensor;

typedef struct run {
    const kernel_problem *problem;
    kernel_memory memory; /* what the kernel reads and writes */
    ra_ledger *ledger;
    ra_pool *pool, *kernel_pool; /* one where both are the host's */
    ra_pattern *pattern;
    ra_kernel kernel;
    ra_kernel_shape shape;
    ra_rowset queries, *keys;                      /* [steps] */
    ra_tilemap *maps;                              /* [steps] */
    run_tensor q, dout, out, dq, *k, *v, *dk, *dv; /* [steps] */
    run_tensor dk_all, dv_all;
    float *lse, *delta;
    ra_block chunks;
    ra_softmax_state state;
} run;

/* Zeros in device memory, */
static void *take_zeros(run *r, int64_t bytes)
{
    return kernel_take(&r->memory, NULL, bytes);
}

/* or NaN, which a pass has to write; zeros where it is to leave some rows as they are. */
static void *take_output(run *r, int64_t bytes)
{
    void *const unwritten = kernel_zeros(bytes);
    memset(unwritten, r->problem->c.ends_only ? 0 : 0xff, (size_t)bytes);
    void *const data = kernel_take(&r->memory, unwritten, bytes);
    free(unwritten);
    return data;
}

static run_tensor tensor_of(run *r, ra_dtype dtype, int64_t rows, int64_t heads,
                            void *take(run *r, int64_t bytes))
{
    const kernel_case *c = &r->problem->c;
    /* Of each tensor another one, but odd. */
    int64_t const head_gap = c->padded ? 3 : 0;
    int64_t const row_gap = c->padded ? 5 + r->memory.count % 8 * 2 : 0;
    int64_t const head = c->shape.dim + head_gap, row = heads * head + row_gap;
    run_tensor t;
    t.bytes = c->shape.batch * rows * row * (int64_t)ra_dtype_bytes(dtype);
    t.memory = take(r, t.bytes);
    t.view = (ra_view){.data = t.memory,
                       .dtype = dtype,
                       .batch_stride = rows * row,
                       .row_stride = row,
                       .head_stride = head};
    if (c->backwards && rows > 0) {
        t.view.data = (char *)t.memory + (rows - 1) * row * (int64_t)ra_dtype_bytes(dtype);
        t.view.row_stride = -row;
    }
    return t;
}

static run_tensor make_tensor(run *r, ra_dtype dtype, int64_t rows, int64_t heads)
{
    return tensor_of(r, dtype, rows, heads, take_zeros);
}

static ra_view dense(const run *r, void *data, ra_dtype dtype, int64_t heads)
{
    const oracle_shape *s = &r->problem->c.shape;
    return ra_view_dense(data, dtype, s->n, heads, s->dim, 0);
}

/* Gradients that the only step stores in the case's dtype. */
static ra_stored_grads stored_grads(const run *r)
{
    const kernel_case *c = &r->problem->c;
    return c->steps == 1 && !c->summed ? r->kernel.stores : (ra_stored_grads){0};
}

/* gather moves kv_heads heads: this many. */
static ra_kernel_shape with_heads(const run *r, int32_t heads)
{
    ra_kernel_shape shape = r->shape;
    shape.kv_heads = heads;
    return shape;
}

static void gather(run *r, const ra_rowset *rows, int32_t heads, const void *from,
                   const run_tensor *to)
{
    const oracle_shape *s = &r->problem->c.shape;
    int64_t const bytes =
        s->batch * s->n * heads * s->dim * (int64_t)ra_dtype_bytes(to->view.dtype);
    ra_kernel_shape const shape = with_heads(r, heads);
    ra_view const view = dense(r, kernel_take(&r->memory, from, bytes), to->view.dtype, heads);
    cr_assert_eq(r->kernel.ops->gather(&r->kernel, &shape, rows, &view, &to->view), RA_OK);
}

static void make_rows(run *r)
{
    const kernel_case *c = &r->problem->c;
    int64_t const n = c->shape.n;
    ra_range const halves[] = {{0, 2, (n + 1) / 2}, {1, 2, n / 2}}, all = {0, 1, n};
    cr_assert_eq(
        ra_rowset_init(r->pool, c->striped ? halves : &all, c->striped ? 2 : 1, &r->queries),
        RA_OK);
    r->keys = kernel_zeros(c->steps * (int64_t)sizeof(ra_rowset));
    r->maps = kernel_zeros(c->steps * (int64_t)sizeof(ra_tilemap));
    for (int i = 0; i < c->steps; ++i) {
        int64_t const begin = n * i / c->steps, end = n * (i + 1) / c->steps;
        ra_range const part = c->striped
                                  ? (ra_range){i, c->steps, (n - i + c->steps - 1) / c->steps}
                                  : (ra_range){begin, 1, end - begin};
        cr_assert_eq(ra_rowset_init(r->pool, &part, 1, &r->keys[i]), RA_OK);
        ra_map_request const request = {r->pattern,
                                        {0, 1, c->shape.heads},
                                        &r->queries,
                                        &r->keys[i],
                                        r->kernel.ops->tile_rows(c->dtype, c->shape.dim),
                                        r->kernel.ops->maps_by_keys};
        cr_assert_eq(c->dense_mask ? ra_tilemap_init_dense(&request, r->pool, &r->maps[i])
                                   : ra_tilemap_init(&request, r->pool, &r->maps[i]),
                     RA_OK);
    }
}

static void make_tensors(run *r)
{
    const kernel_problem *p = r->problem;
    const kernel_case *c = &p->c;
    const oracle_shape *s = &c->shape;
    int64_t const rows = s->batch * s->heads * s->n;
    int64_t const tensors = c->steps * (int64_t)sizeof(run_tensor);
    ra_stored_grads const stored = stored_grads(r);
    ra_dtype const dkv = stored.dkv ? c->dtype : RA_F32;
    r->q = make_tensor(r, c->dtype, s->n, s->heads);
    r->dout = make_tensor(r, c->dtype, s->n, s->heads);
    r->out = tensor_of(r, c->dtype, s->n, s->heads, take_output);
    r->dq = make_tensor(r, stored.dq ? c->dtype : RA_F32, s->n, s->heads);
    r->dk_all = make_tensor(r, RA_F32, s->n, s->kv_heads);
    r->dv_all = make_tensor(r, RA_F32, s->n, s->kv_heads);
    gather(r, &r->queries, s->heads, p->q, &r->q);
    gather(r, &r->queries, s->heads, p->dout, &r->dout);
    r->k = kernel_zeros(tensors), r->v = kernel_zeros(tensors), r->dk = kernel_zeros(tensors),
    r->dv = kernel_zeros(tensors);
    for (int i = 0; i < c->steps; ++i) {
        int64_t const count = r->keys[i].row_count;
        r->k[i] = make_tensor(r, c->dtype, count, s->kv_heads);
        r->v[i] = make_tensor(r, c->dtype, count, s->kv_heads);
        r->dk[i] = make_tensor(r, dkv, count, s->kv_heads);
        r->dv[i] = make_tensor(r, dkv, count, s->kv_heads);
        gather(r, &r->keys[i], s->kv_heads, p->k, &r->k[i]);
        gather(r, &r->keys[i], s->kv_heads, p->v, &r->v[i]);
    }
    r->lse = take_output(r, rows * (int64_t)sizeof(float));
    r->delta = take_output(r, rows * (int64_t)sizeof(float));
}

/* The steps of chunks, where the table takes them and the maps' chunks are the same. */
static void make_chunks(run *r)
{
    const kernel_case *c = &r->problem->c;
    const ra_tilemap **const maps = kernel_zeros(c->steps * (int64_t)sizeof(void *));
    for (int i = 0; i < c->steps; ++i)
        maps[i] = &r->maps[i];
    if (!c->all_rows)
        cr_assert_eq(ra_kernel_take_chunk_steps(&r->kernel, maps, c->steps, r->pool, &r->chunks,
                                                &r->state.rows),
                     RA_OK);
    r->state.chunks = r->chunks.data;
    free(maps);
}

/* The first step must not read it. */
static void make_state(run *r)
{
    const oracle_shape *s = &r->problem->c.shape;
    if (r->problem->c.steps == 1)
        return;
    r->state.rows = s->n;
    make_chunks(r);
    int64_t const lines = s->batch * s->heads * r->state.rows;
    void *const nan = kernel_zeros(lines * s->dim * (int64_t)sizeof(float));
    memset(nan, 0xff, (size_t)(lines * s->dim) * sizeof(float));
    r->state.acc = kernel_take(&r->memory, nan, lines * s->dim * (int64_t)sizeof(float));
    r->state.top = kernel_take(&r->memory, nan, lines * (int64_t)sizeof(float));
    r->state.sum = kernel_take(&r->memory, nan, lines * (int64_t)sizeof(float));
    free(nan);
}

/* No sum becomes the NaN that take_output leaves. */
static void check_deltas(run *r)
{
    const oracle_shape *s = &r->problem->c.shape;
    int64_t const rows = s->batch * s->heads * s->n;
    uint32_t *const delta =
        kernel_read(&r->kernel, &r->memory, r->delta, rows * (int64_t)sizeof(float));
    for (int64_t i = 0; i < rows; ++i)
        cr_assert_neq(delta[i], UINT32_MAX, "row %lld of all heads has no delta", (long long)i);
    free(delta);
}

static void run_forward(run *r)
{
    const kernel_case *c = &r->problem->c;
    ra_kernel_pass const pass = {
        .keeps = c->dout_factor != 0, .groups = 1, .steps = c->steps, .parts = 1};
    cr_assert_eq(ra_kernel_begin(&r->kernel, &pass), RA_OK);
    for (int i = 0; i < c->steps; ++i) {
        if (r->chunks.data != NULL && r->maps[i].tile_count == 0)
            continue;
        ra_forward_step const step = {.map = &r->maps[i],
                                      .shape = r->shape,
                                      .pair = {.step = i},
                                      .q = r->q.view,
                                      .k = r->k[i].view,
                                      .v = r->v[i].view,
                                      .out = r->out.view,
                                      .lse = r->lse,
                                      .lse_batch_stride = c->shape.heads * c->shape.n,
                                      .dout = pass.keeps ? r->dout.view : (ra_view){0},
                                      .delta = pass.keeps ? r->delta : NULL,
                                      .state = r->state,
                                      .first = i == 0,
                                      .last = i == c->steps - 1,
                                      .ends_only = c->ends_only,
                                      .yields = c->yields};
        if (i % 2 == 0) /* those that are not taken are brought for the step */
            cr_assert_eq(ra_kernel_take_map(&r->kernel, &r->maps[i]), RA_OK);
        cr_assert_eq(r->kernel.ops->forward(&r->kernel, &step), RA_OK);
    }
    cr_assert_eq(ra_kernel_finish(&r->kernel), RA_OK);
    ra_kernel_end(&r->kernel, &pass, false);
    if (pass.keeps && !c->ends_only)
        check_deltas(r);
}

static void run_backward(run *r)
{
    const kernel_case *c = &r->problem->c;
    const ra_kernel_ops *ops = r->kernel.ops;
    ra_kernel_pass const pass = {.backward = true, .groups = 1, .steps = c->steps, .parts = 1};
    cr_assert_eq(ra_kernel_begin(&r->kernel, &pass), RA_OK);
    for (int i = 0; i < c->steps; ++i) {
        ra_backward_step const step = {.map = &r->maps[i],
                                       .shape = r->shape,
                                       .pair = {.step = i},
                                       .q = r->q.view,
                                       .k = r->k[i].view,
                                       .v = r->v[i].view,
                                       .dout = r->dout.view,
                                       .lse = r->lse,
                                       .lse_batch_stride = c->shape.heads * c->shape.n,
                                       .delta = r->delta,
                                       .dq = r->dq.view,
                                       .dk = r->dk[i].view,
                                       .dv = r->dv[i].view,
                                       .ends_only = c->ends_only,
                                       .yields = c->yields};
        cr_assert_eq(ops->backward(&r->kernel, &step), RA_OK);
        if (stored_grads(r).dkv)
            break;
        cr_assert_eq(ops->add(&r->kernel, &r->shape, &r->keys[i], &r->dk[i].view, &r->dk_all.view),
                     RA_OK);
        cr_assert_eq(ops->add(&r->kernel, &r->shape, &r->keys[i], &r->dv[i].view, &r->dv_all.view),
                     RA_OK);
    }
    cr_assert_eq(ra_kernel_finish(&r->kernel), RA_OK);
    ra_kernel_end(&r->kernel, &pass, false);
}

/* Rows in the order of the sequence, dense. */
static void *in_sequence(const run *r, const ra_rowset *rows, const run_tensor *from, int64_t heads)
{
    const oracle_shape *s = &r->problem->c.shape;
    size_t const element = ra_dtype_bytes(from->view.dtype), bytes = element * (size_t)s->dim;
    char *to = kernel_zeros(s->batch * s->n * heads * s->dim * (int64_t)element);
    char *const data = kernel_read(&r->kernel, &r->memory, from->memory, from->bytes);
    const char *const first = data + ((char *)from->view.data - (char *)from->memory);
    for (int64_t b = 0; b < s->batch; ++b) {
        for (int64_t x = 0; x < s->n; ++x) {
            int64_t const row = ra_rowset_global(rows, x);
            for (int64_t h = 0; h < heads; ++h) {
                int64_t const at = b * from->view.batch_stride + x * from->view.row_stride +
                                   h * from->view.head_stride;
                memcpy(to + (size_t)((b * s->n + row) * heads + h) * bytes,
                       first + at * (int64_t)element, bytes);
            }
        }
    }
    free(data);
    return to;
}

static run_tensor rounded(run *r, const run_tensor *from, int32_t heads)
{
    const kernel_case *c = &r->problem->c;
    int64_t const count = c->shape.batch * c->shape.n * heads * c->shape.dim;
    run_tensor to = {.bytes = count * (int64_t)ra_dtype_bytes(c->dtype)};
    to.memory = kernel_take(&r->memory, NULL, to.bytes);
    to.view = dense(r, to.memory, c->dtype, heads);
    ra_kernel_shape const shape = with_heads(r, heads);
    cr_assert_eq(r->kernel.ops->store(&r->kernel, &shape, c->shape.n, &from->view, &to.view),
                 RA_OK);
    return to;
}

/* Sums of all steps are in the order of the sequence. */
static void *rounded_back(run *r, const run_tensor *from, int32_t heads)
{
    run_tensor const tensor = rounded(r, from, heads);
    return kernel_read(&r->kernel, &r->memory, tensor.memory, tensor.bytes);
}

static kernel_result collect(run *r)
{
    const kernel_case *c = &r->problem->c;
    const oracle_shape *s = &c->shape;
    kernel_result result = {.o = in_sequence(r, &r->queries, &r->out, s->heads),
                            .chunk_rows = r->maps[0].chunk_rows};
    int64_t const lse_bytes = s->batch * s->heads * s->n * (int64_t)sizeof(float);
    float *const lse = kernel_read(&r->kernel, &r->memory, r->lse, lse_bytes);
    result.lse = kernel_zeros(lse_bytes);
    for (int64_t lane = 0; lane < s->batch * s->heads; ++lane) {
        for (int64_t x = 0; x < s->n; ++x)
            result.lse[lane * s->n + ra_rowset_global(&r->queries, x)] = lse[lane * s->n + x];
    }
    free(lse);
    if (c->dout_factor == 0)
        return result;
    ra_stored_grads const stored = stored_grads(r);
    run_tensor const dq = stored.dq ? r->dq : rounded(r, &r->dq, s->heads);
    result.dq = in_sequence(r, &r->queries, &dq, s->heads);
    result.dk = stored.dkv ? in_sequence(r, r->keys, r->dk, s->kv_heads)
                           : rounded_back(r, &r->dk_all, s->kv_heads);
    result.dv = stored.dkv ? in_sequence(r, r->keys, r->dv, s->kv_heads)
                           : rounded_back(r, &r->dv_all, s->kv_heads);
    return result;
}

static void run_free(run *r)
{
    for (int i = 0; i < r->problem->c.steps; ++i) {
        ra_kernel_drop_map(&r->kernel, &r->maps[i]);
        ra_tilemap_fini(r->pool, &r->maps[i]);
        ra_rowset_fini(r->pool, &r->keys[i]);
    }
    void *const memory[] = {r->k, r->v, r->dk, r->dv, r->keys, r->maps};
    for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); ++i)
        free(memory[i]);
    ra_rowset_fini(r->pool, &r->queries);
    ra_pool_free(r->kernel_pool, r->kernel.stream, &r->chunks);
    ra_kernel_fini(&r->kernel);
    kernel_give_all(&r->memory);
    ra_pattern_destroy(r->pattern);
    if (r->kernel_pool != r->pool)
        ra_pool_destroy(r->kernel_pool);
    ra_pool_destroy(r->pool);
    ra_ledger_destroy(r->ledger);
}

/* Pools on memory full of NaN, and on the table's own where the host does not reach it. */
static void make_pools(run *r, const ra_kernel_ops *ops)
{
    r->memory.memory = ops->memory();
    cr_assert_not_null(r->memory.memory.ops);
    cr_assert_eq(ra_ledger_create(INT64_MAX, &r->ledger), RA_OK);
    ra_pool_config const config = {.memory = ra_memory_poison(), .ledger = r->ledger};
    cr_assert_eq(ra_pool_create(&config, &r->pool), RA_OK);
    r->kernel_pool = r->pool;
    if (ra_memory_is_host(&r->memory.memory))
        return;
    ra_pool_config const there = {.memory = r->memory.memory, .ledger = r->ledger};
    cr_assert_eq(ra_pool_create(&there, &r->kernel_pool), RA_OK);
}

/* Scratch may hold anything. What comes before the last of it is a library's, and large. */
static void spoil_workspace(run *r)
{
    const ra_block *const block = &r->kernel.workspace;
    size_t const most = (size_t)16 << 20, bytes = block->bytes < most ? block->bytes : most;
    void *const nan = kernel_zeros((int64_t)bytes);
    memset(nan, 0xff, bytes);
    cr_assert_eq(ra_memory_write(&r->memory.memory, r->kernel.stream,
                                 (char *)block->data + (block->bytes - bytes), nan, bytes),
                 RA_OK);
    free(nan);
}

kernel_result kernel_run(const ra_kernel_ops *ops, const kernel_problem *problem)
{
    const kernel_case *c = &problem->c;
    const oracle_shape *s = &c->shape;
    run r = {.problem = problem};
    double const scale = s->scale != 0 ? s->scale : 1 / sqrt((double)s->dim);
    r.shape = (ra_kernel_shape){.batch = s->batch,
                                .q_heads = s->heads,
                                .kv_heads = s->kv_heads,
                                .dim = s->dim,
                                .scale = (float)scale};
    make_pools(&r, ops);
    cr_assert_eq(ra_pattern_create(&c->pattern, s->n, s->heads, r.pool, &r.pattern), RA_OK);
    ra_kernel_use const use = {
        .dtype = c->dtype,
        .dim = s->dim,
        .deterministic = c->deterministic,
        .long_rows = ra_pattern_has_long_rows(&c->pattern),
        .shares_rows = c->striped || ra_pattern_shares_rows(&c->pattern, 1, c->dense_mask),
        .shares_keys = ra_pattern_shares_keys(&c->pattern, s->heads, s->kv_heads),
        .threads = c->threads};
    cr_assert_eq(ra_kernel_init(ops, &use, r.kernel_pool, &r.kernel), RA_OK);
    r.kernel.caches = c->caches;
    spoil_workspace(&r);
    make_rows(&r);
    make_tensors(&r);
    make_state(&r);
    run_forward(&r);
    if (c->dout_factor != 0)
        run_backward(&r);
    kernel_result const result = collect(&r);
    run_free(&r);
    return result;
}

void kernel_result_free(kernel_result *result)
{
    free(result->o);
    free(result->lse);
    free(result->dq);
    free(result->dk);
    free(result->dv);
}
