#include "sparse/check_side.h"

#include "internal.h"
#include "sparse/cpu/dtype_bits.h"

#include <math.h>

enum { ALIGN_BYTES = 256 };

/* ---- tensors --------------------------------------------------------------------------------- */

int64_t ra_check_elements(const ra_check_problem *p, ra_check_tensor t)
{
    int64_t const lines = p->rows * p->heads;
    if (t == CHECK_K || t == CHECK_V || t == CHECK_DK || t == CHECK_DV)
        return p->rows * p->kv_heads * p->dim;
    return t == CHECK_LSE || t == CHECK_DELTA || t == CHECK_TOP || t == CHECK_SUM ? lines
                                                                                  : lines * p->dim;
}

static bool is_wanted(const ra_check_side *s, ra_check_tensor t)
{
    bool const of_backward = t == CHECK_DOUT || t == CHECK_DELTA || t >= CHECK_DQ;
    bool const of_state = t == CHECK_ACC || t == CHECK_TOP || t == CHECK_SUM;
    if (s->p->linear != RA_LINEAR_NONE && t > CHECK_OUT && t < CHECK_DQ)
        return false;
    return of_backward ? s->p->backward : !of_state || s->steps > 1;
}

/* Gradients of one step may be stored as outputs are; the others are summed up. */
ra_dtype ra_check_dtype(const ra_check_side *s, ra_check_tensor t)
{
    ra_stored_grads const stores = s->kernel->stores;
    bool const stored = (t == CHECK_DQ && stores.dq) || (t > CHECK_DQ && stores.dkv);
    return t <= CHECK_OUT || (stored && s->steps == 1) ? s->dtype : RA_F32;
}

static size_t bytes_of(const ra_check_side *s, ra_check_tensor t)
{
    size_t const element = ra_dtype_bytes(ra_check_dtype(s, t));
    return is_wanted(s, t) ? (size_t)ra_check_elements(s->p, t) * element : 0;
}

/* Take one block for all tensors, and its mirror. */
static ra_status tensors_take(ra_check_side *s)
{
    size_t at[CHECK_TENSORS], total = 0;
    for (ra_check_tensor t = CHECK_Q; t < CHECK_TENSORS; ++t) {
        at[t] = total;
        total += ra_round_up(bytes_of(s, t), ALIGN_BYTES);
    }
    const ra_check_place *where = s->where;
    bool const on_host = ra_memory_is_host(&where->memory);
    ra_status status =
        ra_pool_alloc(where->pool, RA_MEM_WORKSPACE, total, s->kernel->stream, &s->block);
    if (status == RA_OK && !on_host)
        status = ra_pool_alloc(where->host_pool, RA_MEM_WORKSPACE, total, NULL, &s->mirror);
    char *const data = s->block.data, *const seen = on_host ? data : s->mirror.data;
    for (ra_check_tensor t = CHECK_Q; t < CHECK_TENSORS && status == RA_OK; ++t) {
        s->data[t] = is_wanted(s, t) ? data + at[t] : NULL;
        s->seen[t] = is_wanted(s, t) ? seen + at[t] : NULL;
    }
    s->input_bytes = at[CHECK_OUT];
    return status;
}

/* Copy inputs to the kernel's memory, or all of its results back. */
static ra_status inputs_bring(const ra_check_side *s)
{
    return s->mirror.data == NULL ? RA_OK
                                  : ra_memory_write(&s->where->memory, s->kernel->stream,
                                                    s->block.data, s->mirror.data, s->input_bytes);
}

static ra_status results_bring(const ra_check_side *s)
{
    ra_status const status = ra_kernel_finish(s->kernel);
    return status != RA_OK || s->mirror.data == NULL
               ? status
               : ra_memory_read(&s->where->memory, s->kernel->stream, s->mirror.data, s->block.data,
                                s->block.bytes);
}

/* Uniform in (-1.75, 1.75), about as wide as a standard normal; rounded like the job's inputs. */
static float draw(uint64_t *state, ra_dtype dtype)
{
    uint64_t const bits = ra_mix64(*state) >> 40; /* 24 of them: exact in float32 */
    *state += RA_MIX64_STEP;
    float value = 3.5f * ((float)bits / (float)(1 << 24) - 0.5f);
    uint32_t stored[1];
    dtype_store(dtype, stored, 0, value);
    return dtype_load(dtype, stored, 0);
}

/* Inputs: another side's, which are float32, or drawn. */
static void tensors_fill(const ra_check_side *s, const ra_check_side *like)
{
    for (ra_check_tensor t = CHECK_Q; t <= CHECK_DOUT; ++t) {
        int64_t const count = is_wanted(s, t) ? ra_check_elements(s->p, t) : 0;
        uint64_t state = (uint64_t)t;
        for (int64_t i = 0; i < count; ++i)
            dtype_store(s->dtype, s->seen[t], i,
                        like != NULL ? dtype_load(RA_F32, like->seen[t], i)
                                     : draw(&state, s->p->dtype));
    }
}

ra_view ra_check_view(const ra_check_side *s, ra_check_tensor t, int64_t row)
{
    const ra_check_problem *p = s->p;
    bool const of_keys = t == CHECK_K || t == CHECK_V || t == CHECK_DK || t == CHECK_DV;
    int32_t const heads = of_keys ? p->kv_heads : p->heads;
    ra_dtype const dtype = ra_check_dtype(s, t);
    char *const data = s->data[t];
    size_t const skip = (size_t)(row * heads * p->dim) * ra_dtype_bytes(dtype);
    return ra_view_dense(data != NULL ? data + skip : NULL, dtype, p->rows, heads, p->dim, 0);
}

/* ---- passes ---------------------------------------------------------------------------------- */

/* Of two steps the second has the last few keys: with a causal mask the first alone computes the
   first chunk of queries, and both the last. */
static int64_t first_key(const ra_check_side *s, int step)
{
    enum { LAST_KEYS = 4 };
    return step == 0 ? 0 : step < s->steps ? s->p->rows - LAST_KEYS : s->p->rows;
}

static ra_status rows_make(ra_check_side *s)
{
    const ra_check_problem *p = s->p;
    ra_range const all = {0, 1, p->rows};
    ra_heads const heads = {0, 1, p->heads};
    int32_t const most = s->kernel->ops->tile_rows(s->dtype, p->dim);
    int32_t const tile_rows = most < p->chunk_rows ? most : p->chunk_rows;
    ra_pool *const pool = s->where->host_pool;
    ra_status status = ra_rowset_init(pool, &all, 1, &s->queries);
    for (int i = 0; i < s->steps && status == RA_OK; ++i) {
        int64_t const begin = first_key(s, i);
        ra_range const part = {begin, 1, first_key(s, i + 1) - begin};
        status = ra_rowset_init(pool, &part, 1, &s->keys[i]);
        if (status == RA_OK)
            status = ra_tilemap_init(&(ra_map_request){p->pattern, heads, &s->queries, &s->keys[i],
                                                       tile_rows, s->kernel->ops->maps_by_keys},
                                     pool, &s->maps[i]);
    }
    return status;
}

static ra_kernel_shape shape_of(const ra_check_side *s)
{
    const ra_check_problem *p = s->p;
    return (ra_kernel_shape){.batch = 1,
                             .q_heads = p->heads,
                             .kv_heads = p->kv_heads,
                             .dim = p->dim,
                             .scale = (float)(1 / sqrt((double)p->dim))};
}

/* As in a ring; the tensors of the state have room for all rows. */
static ra_status chunks_take(ra_check_side *s)
{
    const ra_tilemap *maps[CHECK_STEPS_MAX];
    if (s->steps == 1)
        return RA_OK;
    for (int i = 0; i < s->steps; ++i)
        maps[i] = &s->maps[i];
    return ra_kernel_take_chunk_steps(s->kernel, maps, s->steps, s->where->host_pool, &s->chunks,
                                      &s->state_rows);
}

static ra_status forward(ra_check_side *s)
{
    const ra_check_problem *p = s->p;
    ra_kernel_pass const pass = {.keeps = p->backward, .groups = 1, .steps = s->steps, .parts = 1};
    ra_status status = ra_kernel_begin(s->kernel, &pass);
    for (int i = 0; i < s->steps && status == RA_OK; ++i) {
        ra_forward_step const step = {.map = &s->maps[i],
                                      .shape = shape_of(s),
                                      .pair = {.step = i},
                                      .q = ra_check_view(s, CHECK_Q, 0),
                                      .k = ra_check_view(s, CHECK_K, first_key(s, i)),
                                      .v = ra_check_view(s, CHECK_V, first_key(s, i)),
                                      .out = ra_check_view(s, CHECK_OUT, 0),
                                      .lse = (float *)s->data[CHECK_LSE],
                                      .lse_batch_stride = p->heads * p->rows,
                                      .dout = ra_check_view(s, CHECK_DOUT, 0),
                                      .delta = (float *)s->data[CHECK_DELTA],
                                      .state = {.acc = (float *)s->data[CHECK_ACC],
                                                .top = (float *)s->data[CHECK_TOP],
                                                .sum = (float *)s->data[CHECK_SUM],
                                                .rows = s->state_rows,
                                                .chunks = s->chunks.data},
                                      .first = i == 0,
                                      .last = i == s->steps - 1,
                                      .yields = i < s->steps - 1}; /* as while more keys come */
        status = s->kernel->ops->forward(s->kernel, &step);
    }
    ra_kernel_end(s->kernel, &pass, status != RA_OK);
    return status;
}

static ra_status backward(ra_check_side *s)
{
    const ra_check_problem *p = s->p;
    const ra_kernel_ops *ops = s->kernel->ops;
    ra_kernel_pass const pass = {.backward = true, .groups = 1, .steps = s->steps, .parts = 1};
    ra_kernel_shape const shape = shape_of(s);
    ra_view const out = ra_check_view(s, CHECK_OUT, 0), dout = ra_check_view(s, CHECK_DOUT, 0);
    ra_status status = ra_kernel_begin(s->kernel, &pass);
    if (status == RA_OK && s->steps > 1) /* with one step the forward pass has made it */
        status = ops->delta(s->kernel, &shape, p->rows, &out, &dout, (float *)s->data[CHECK_DELTA]);
    for (ra_check_tensor t = CHECK_DQ; t <= CHECK_DV && status == RA_OK; ++t)
        status = ops->zero(s->kernel, s->data[t], bytes_of(s, t));
    for (int i = 0; i < s->steps && status == RA_OK; ++i) {
        int64_t const row = first_key(s, i);
        ra_backward_step const step = {.map = &s->maps[i],
                                       .shape = shape,
                                       .pair = {.step = i},
                                       .q = ra_check_view(s, CHECK_Q, 0),
                                       .k = ra_check_view(s, CHECK_K, row),
                                       .v = ra_check_view(s, CHECK_V, row),
                                       .dout = dout,
                                       .lse = (const float *)s->data[CHECK_LSE],
                                       .lse_batch_stride = p->heads * p->rows,
                                       .delta = (const float *)s->data[CHECK_DELTA],
                                       .dq = ra_check_view(s, CHECK_DQ, 0),
                                       .dk = ra_check_view(s, CHECK_DK, row),
                                       .dv = ra_check_view(s, CHECK_DV, row),
                                       .yields = i < s->steps - 1};
        status = ops->backward(s->kernel, &step);
    }
    ra_kernel_end(s->kernel, &pass, status != RA_OK);
    return status;
}

/*
 * Row moves that steps of several ranks need: gather o to where q was, add dq to zeros, and store
 * it where dout was. So no kernel is used for the first time while messages are in flight: before
 * it loads a kernel, a GPU may wait for all enqueued work.
 */
static ra_status move_rows(ra_check_side *s)
{
    const ra_check_problem *p = s->p;
    const ra_kernel_ops *ops = s->kernel->ops;
    ra_view const out = ra_check_view(s, CHECK_OUT, 0), q = ra_check_view(s, CHECK_Q, 0);
    ra_view const dq = ra_check_view(s, CHECK_DQ, 0), dout = ra_check_view(s, CHECK_DOUT, 0);
    ra_view const sum = ra_check_view(s, CHECK_ACC, 0);
    ra_kernel_shape shape = shape_of(s);
    shape.kv_heads = shape.q_heads;
    ra_status status = ops->gather(s->kernel, &shape, &s->queries, &out, &q);
    if (status != RA_OK || !p->backward)
        return status;
    status = ops->zero(s->kernel, sum.data, bytes_of(s, CHECK_ACC));
    if (status == RA_OK)
        status = ops->add(s->kernel, &shape, &s->queries, &dq, &sum);
    return status == RA_OK ? ops->store(s->kernel, &shape, p->rows, &sum, &dout) : status;
}

/* Have o and dq compared as moved that way. */
static void show_moved(ra_check_side *s)
{
    s->seen[CHECK_OUT] = s->seen[CHECK_Q];
    int64_t const count = s->p->backward ? ra_check_elements(s->p, CHECK_DQ) : 0;
    for (int64_t i = 0; i < count; ++i)
        ((float *)(void *)s->seen[CHECK_DQ])[i] = dtype_load(s->dtype, s->seen[CHECK_DOUT], i);
}

void ra_check_side_free(ra_check_side *s)
{
    ra_pool *const pool = s->where->host_pool;
    for (int i = 0; i < CHECK_STEPS_MAX; ++i) {
        ra_kernel_drop_map(s->kernel, &s->maps[i]);
        ra_tilemap_fini(pool, &s->maps[i]);
        ra_rowset_fini(pool, &s->keys[i]);
    }
    ra_rowset_fini(pool, &s->queries);
    ra_pool_free(s->where->pool, s->kernel->stream, &s->chunks);
    ra_pool_free(pool, NULL, &s->mirror);
    ra_pool_free(s->where->pool, s->kernel->stream, &s->block);
}

ra_status ra_check_side_run(const ra_check_problem *p, ra_check_place *where, ra_dtype dtype,
                            int steps, const ra_check_side *like, ra_check_side *s)
{
    *s = (ra_check_side){
        .p = p, .dtype = dtype, .where = where, .kernel = &where->kernel, .steps = steps};
    bool const linear = p->linear != RA_LINEAR_NONE;
    ra_status status = linear ? RA_OK : rows_make(s);
    if (status == RA_OK)
        status = tensors_take(s);
    if (status != RA_OK)
        return status;
    tensors_fill(s, like);
    status = inputs_bring(s);
    for (int i = 0; i < steps && !linear && status == RA_OK; ++i)
        status = ra_kernel_take_map(s->kernel, &s->maps[i]);
    if (!linear && status == RA_OK)
        status = chunks_take(s);
    if (status == RA_OK)
        status = linear ? ra_check_linear_run(s) : forward(s);
    if (status == RA_OK && p->backward && !linear)
        status = backward(s);
    if (status == RA_OK && steps > 1 && !linear)
        status = move_rows(s);
    if (status == RA_OK)
        status = results_bring(s);
    if (status == RA_OK && steps > 1 && !linear)
        show_moved(s);
    return status;
}

/* ---- places ---------------------------------------------------------------------------------- */

ra_status ra_check_place_make(const ra_kernel_ops *ops, const ra_kernel_use *use,
                              ra_check_place *where)
{
    where->memory = ops->memory();
    if (where->memory.ops == NULL)
        return RA_ERR_CUDA; /* it was said why */
    ra_status status = ra_ledger_create(INT64_MAX, &where->ledger);
    if (status != RA_OK)
        return status;
    ra_pool_config config = {.mode = RA_POOL_OFF, .memory = where->memory, .ledger = where->ledger};
    status = ra_pool_create(&config, &where->pool);
    where->host_pool = where->pool;
    config.memory = ra_memory_host();
    if (status == RA_OK && !ra_memory_is_host(&where->memory))
        status = ra_pool_create(&config, &where->host_pool);
    if (status == RA_OK)
        status = ra_kernel_init(ops, use, where->pool, &where->kernel);
    return status;
}

void ra_check_place_free(ra_check_place *where)
{
    ra_kernel_fini(&where->kernel);
    if (where->host_pool != where->pool)
        ra_pool_destroy(where->host_pool);
    ra_pool_destroy(where->pool);
    ra_ledger_destroy(where->ledger);
}
