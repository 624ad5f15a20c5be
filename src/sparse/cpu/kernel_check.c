/* A kernel against the plain one: the same small problem given to both. */
#include "ringattn/kernel_check.h"

#include "internal.h"

#include <math.h>
#include <string.h>

/* Queries beyond the first tile, so that a short one follows; no tile asks for more than this. */
enum { MORE_ROWS = 9, TILE_ROWS_MAX = 128, STEPS_MAX = 2, ALIGN_BYTES = 256 };

/* Of what the documentation allows against float64: both sides have errors. */
static const double slack = 2, element_slack = 32;

typedef enum tensor { Q, K, V, DOUT, OUT, LSE, DELTA, ACC, TOP, SUM, DQ, DK, DV, TENSORS } tensor;

typedef struct problem {
    int64_t rows;
    int32_t heads, kv_heads, dim;
    ra_dtype dtype; /* whose values the inputs have */
    bool backward;
    const ra_pattern *pattern;
} problem;

/* One kernel at work on it. */
typedef struct side {
    const problem *p;
    ra_dtype dtype; /* of inputs and o */
    struct place *where;
    ra_kernel *kernel;
    ra_rowset queries, keys[STEPS_MAX];
    ra_tilemap maps[STEPS_MAX];
    int steps;
    ra_block block, mirror; /* mirror: of host memory, where the host does not reach the block */
    size_t input_bytes;     /* of the block: those are in front */
    char *data[TENSORS];    /* where the kernel has them, */
    char *seen[TENSORS];    /* and where the host has them */
} side;

/* Where a kernel finds its memory, and what counts it. Maps are the host's, as anywhere. */
typedef struct place {
    ra_memory memory;
    ra_ledger *ledger;
    ra_pool *pool, *host_pool; /* the same where the host reaches the kernel's memory */
    ra_kernel kernel;
} place;

/* ---- tensors --------------------------------------------------------------------------------- */

static int64_t elements(const problem *p, tensor t)
{
    int64_t const lines = p->rows * p->heads;
    if (t == K || t == V || t == DK || t == DV)
        return p->rows * p->kv_heads * p->dim;
    return t == LSE || t == DELTA || t == TOP || t == SUM ? lines : lines * p->dim;
}

static bool is_wanted(const side *s, tensor t)
{
    bool const of_backward = t == DOUT || t == DELTA || t >= DQ;
    bool const of_state = t == ACC || t == TOP || t == SUM;
    return of_backward ? s->p->backward : !of_state || s->steps > 1;
}

static size_t bytes_of(const side *s, tensor t)
{
    size_t const element = ra_dtype_bytes(t <= OUT ? s->dtype : RA_F32);
    return is_wanted(s, t) ? (size_t)elements(s->p, t) * element : 0;
}

/* One block for all of them, and its mirror. */
static ra_status tensors_take(side *s)
{
    size_t at[TENSORS], total = 0;
    for (int t = 0; t < TENSORS; ++t) {
        at[t] = total;
        total += (bytes_of(s, (tensor)t) + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    }
    const place *where = s->where;
    bool const on_host = ra_memory_is_host(&where->memory);
    ra_status status =
        ra_pool_alloc(where->pool, RA_MEM_WORKSPACE, total, s->kernel->stream, &s->block);
    if (status == RA_OK && !on_host)
        status = ra_pool_alloc(where->host_pool, RA_MEM_WORKSPACE, total, NULL, &s->mirror);
    char *const data = s->block.data, *const seen = on_host ? data : s->mirror.data;
    for (int t = 0; t < TENSORS && status == RA_OK; ++t) {
        s->data[t] = is_wanted(s, (tensor)t) ? data + at[t] : NULL;
        s->seen[t] = is_wanted(s, (tensor)t) ? seen + at[t] : NULL;
    }
    s->input_bytes = at[OUT];
    return status;
}

/* Inputs to the kernel, and all that it has made back from there. */
static ra_status inputs_bring(const side *s)
{
    return s->mirror.data == NULL ? RA_OK
                                  : ra_memory_write(&s->where->memory, s->kernel->stream,
                                                    s->block.data, s->mirror.data, s->input_bytes);
}

static ra_status results_bring(const side *s)
{
    ra_status const status = ra_kernel_finish(s->kernel);
    return status != RA_OK || s->mirror.data == NULL
               ? status
               : ra_memory_read(&s->where->memory, s->kernel->stream, s->mirror.data, s->block.data,
                                s->block.bytes);
}

/* One step of Steele, Lea and Flood's SplitMix64 (doi:10.1145/2660193.2660195). */
static uint64_t next_random(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Uniform in (-1.75, 1.75), about as wide as a standard normal; rounded as the job's inputs are. */
static float draw(uint64_t *state, ra_dtype dtype)
{
    uint64_t const bits = next_random(state) >> 40; /* 24 of them: exact in float32 */
    float value = 3.5f * ((float)bits / (float)(1 << 24) - 0.5f);
    uint32_t stored[1];
    ra_dtype_store(dtype, stored, 0, value);
    return ra_dtype_load(dtype, stored, 0);
}

static void tensors_draw(const side *s)
{
    for (int t = Q; t <= DOUT; ++t) {
        uint64_t state = (uint64_t)t;
        for (int64_t i = 0; s->seen[t] != NULL && i < elements(s->p, (tensor)t); ++i)
            ra_dtype_store(s->dtype, s->seen[t], i, draw(&state, s->p->dtype));
    }
}

static ra_view view(const side *s, tensor t, int64_t row)
{
    const problem *p = s->p;
    bool const of_keys = t == K || t == V || t == DK || t == DV;
    int32_t const heads = of_keys ? p->kv_heads : p->heads;
    ra_dtype const dtype = t <= OUT ? s->dtype : RA_F32;
    char *const data = s->data[t];
    size_t const skip = (size_t)(row * heads * p->dim) * ra_dtype_bytes(dtype);
    return ra_view_dense(data != NULL ? data + skip : NULL, dtype, p->rows, heads, p->dim, 0);
}

/* ---- passes ---------------------------------------------------------------------------------- */

static int64_t first_key(const side *s, int step)
{
    return s->p->rows * step / s->steps;
}

static ra_status rows_make(side *s)
{
    const problem *p = s->p;
    ra_range const all = {0, 1, p->rows};
    ra_heads const heads = {0, 1, p->heads};
    int32_t const tile_rows = s->kernel->ops->tile_rows(s->dtype, p->dim);
    ra_pool *const pool = s->where->host_pool;
    ra_status status = ra_rowset_init(pool, &all, 1, &s->queries);
    for (int i = 0; i < s->steps && status == RA_OK; ++i) {
        int64_t const begin = first_key(s, i);
        ra_range const part = {begin, 1, first_key(s, i + 1) - begin};
        status = ra_rowset_init(pool, &part, 1, &s->keys[i]);
        if (status == RA_OK)
            status = ra_tilemap_init(p->pattern, heads, &s->queries, &s->keys[i], tile_rows, pool,
                                     &s->maps[i]);
    }
    return status;
}

static ra_kernel_shape shape_of(const side *s)
{
    const problem *p = s->p;
    return (ra_kernel_shape){.batch = 1,
                             .q_heads = p->heads,
                             .kv_heads = p->kv_heads,
                             .dim = p->dim,
                             .scale = (float)(1 / sqrt((double)p->dim))};
}

static ra_status forward(side *s)
{
    const problem *p = s->p;
    ra_kernel_pass const pass = {.keeps = p->backward, .groups = 1, .steps = s->steps, .parts = 1};
    ra_status status = ra_kernel_begin(s->kernel, &pass);
    for (int i = 0; i < s->steps && status == RA_OK; ++i) {
        ra_forward_step const step = {
            .map = &s->maps[i],
            .shape = shape_of(s),
            .pair = {.step = i},
            .q = view(s, Q, 0),
            .k = view(s, K, first_key(s, i)),
            .v = view(s, V, first_key(s, i)),
            .out = view(s, OUT, 0),
            .lse = (float *)s->data[LSE],
            .lse_batch_stride = p->heads * p->rows,
            .dout = view(s, DOUT, 0),
            .delta = (float *)s->data[DELTA],
            .state = {(float *)s->data[ACC], (float *)s->data[TOP], (float *)s->data[SUM]},
            .first = i == 0,
            .last = i == s->steps - 1};
        status = s->kernel->ops->forward(s->kernel, &step);
    }
    ra_kernel_end(s->kernel, &pass, status != RA_OK);
    return status;
}

static ra_status backward(side *s)
{
    const problem *p = s->p;
    const ra_kernel_ops *ops = s->kernel->ops;
    ra_kernel_pass const pass = {.backward = true, .groups = 1, .steps = s->steps, .parts = 1};
    ra_status status = ra_kernel_begin(s->kernel, &pass);
    for (int t = DQ; t <= DV && status == RA_OK; ++t)
        status = ops->zero(s->kernel, s->data[t], bytes_of(s, (tensor)t));
    for (int i = 0; i < s->steps && status == RA_OK; ++i) {
        int64_t const row = first_key(s, i);
        ra_backward_step const step = {.map = &s->maps[i],
                                       .shape = shape_of(s),
                                       .pair = {.step = i},
                                       .q = view(s, Q, 0),
                                       .k = view(s, K, row),
                                       .v = view(s, V, row),
                                       .dout = view(s, DOUT, 0),
                                       .lse = (const float *)s->data[LSE],
                                       .lse_batch_stride = p->heads * p->rows,
                                       .delta = (const float *)s->data[DELTA],
                                       .dq = view(s, DQ, 0),
                                       .dk = view(s, DK, row),
                                       .dv = view(s, DV, row)};
        status = ops->backward(s->kernel, &step);
    }
    ra_kernel_end(s->kernel, &pass, status != RA_OK);
    return status;
}

static void side_free(side *s)
{
    ra_pool *const pool = s->where->host_pool;
    for (int i = 0; i < STEPS_MAX; ++i) {
        ra_kernel_drop_map(s->kernel, &s->maps[i]);
        ra_tilemap_fini(pool, &s->maps[i]);
        ra_rowset_fini(pool, &s->keys[i]);
    }
    ra_rowset_fini(pool, &s->queries);
    ra_pool_free(pool, NULL, &s->mirror);
    ra_pool_free(s->where->pool, s->kernel->stream, &s->block);
}

/* Inputs drawn and passes computed; the caller frees it, whatever is returned. */
static ra_status side_run(const problem *p, place *where, ra_dtype dtype, int steps, side *s)
{
    *s = (side){.p = p, .dtype = dtype, .where = where, .kernel = &where->kernel, .steps = steps};
    ra_status status = rows_make(s);
    if (status == RA_OK)
        status = tensors_take(s);
    if (status != RA_OK)
        return status;
    tensors_draw(s);
    status = inputs_bring(s);
    for (int i = 0; i < steps && status == RA_OK; ++i)
        status = ra_kernel_take_map(s->kernel, &s->maps[i]);
    if (status == RA_OK)
        status = forward(s);
    if (status == RA_OK && p->backward)
        status = backward(s);
    return status == RA_OK ? results_bring(s) : status;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static void judge(const char *name, double error, double allowed, ra_kernel_verdict *worst)
{
    double const found = isnan(error) ? INFINITY : error;
    if (worst->tensor != NULL && found / allowed <= worst->error / worst->allowed)
        return;
    *worst = (ra_kernel_verdict){
        .agrees = found <= allowed, .tensor = name, .error = found, .allowed = allowed};
}

/* Relative to the mean of the plain one's squares: all elements together, and the furthest. */
static void compare_tensor(const char *name, const side *tried, const side *plain, tensor t,
                           double bound, ra_kernel_verdict *worst)
{
    int64_t const count = elements(plain->p, t);
    double off = 0, base = 0, furthest = 0;
    for (int64_t i = 0; i < count; ++i) {
        double const want = (double)ra_dtype_load(RA_F32, plain->seen[t], i);
        double const got =
            (double)ra_dtype_load(t <= OUT ? tried->dtype : RA_F32, tried->seen[t], i);
        double const far = fabs(got - want);
        off += far * far;
        base += want * want;
        furthest = far > furthest ? far : furthest; /* NaN is found by the sum */
    }
    judge(name, sqrt(off / base), slack * bound, worst);
    judge(name, furthest / sqrt(base / (double)count), element_slack * slack * bound, worst);
}

static void compare_lse(const side *tried, const side *plain, double bound,
                        ra_kernel_verdict *worst)
{
    const float *got = (const float *)tried->seen[LSE], *want = (const float *)plain->seen[LSE];
    double furthest = 0;
    for (int64_t i = 0; i < elements(plain->p, LSE); ++i) {
        double const far = fabs((double)got[i] - (double)want[i]);
        furthest = isnan(far) || far > furthest ? far : furthest;
    }
    judge("lse", furthest, slack * bound, worst);
}

static void compare(const side *tried, const side *plain, ra_kernel_verdict *worst)
{
    static const double bounds[] = {[RA_F32] = 2e-6, [RA_F16] = 1e-3, [RA_BF16] = 8e-3};
    static const char *const names[] = {[DQ] = "dq", [DK] = "dk", [DV] = "dv"};
    const problem *p = plain->p;
    double const bound = bounds[p->dtype];
    bool const narrow = p->dim < 16; /* few terms: gradients may be twice as far */
    compare_tensor("o", tried, plain, OUT, bound, worst);
    compare_lse(tried, plain, p->dtype == RA_F32 ? 1e-5 : 1e-3, worst);
    for (int t = DQ; t <= DV && p->backward; ++t)
        compare_tensor(names[t], tried, plain, (tensor)t, narrow ? 2 * bound : bound, worst);
}

/* ---- all together ---------------------------------------------------------------------------- */

static ra_status place_make(const ra_kernel_ops *ops, const ra_kernel_use *use, place *where)
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
        status = ra_kernel_init(ops, use->threads, use->dim, where->pool, &where->kernel);
    return status;
}

static void place_free(place *where)
{
    ra_kernel_fini(&where->kernel);
    if (where->host_pool != where->pool)
        ra_pool_destroy(where->host_pool);
    ra_pool_destroy(where->pool);
    ra_ledger_destroy(where->ledger);
}

/* One problem: the plain kernel in one step, the other in one and in two. */
static ra_status problem_compare(const problem *p, place *tried, place *plain,
                                 ra_kernel_verdict *worst)
{
    side want, got;
    ra_status status = side_run(p, plain, RA_F32, 1, &want);
    for (int steps = 1; steps <= STEPS_MAX && status == RA_OK; ++steps) {
        status = side_run(p, tried, p->dtype, steps, &got);
        if (status == RA_OK)
            compare(&got, &want, worst);
        side_free(&got);
    }
    side_free(&want);
    return status;
}

/* All keys seen, which is runs without a mask; and bands with sinks, by heads that share keys. */
static ra_status problems_compare(const ra_kernel_use *use, place *tried, place *plain,
                                  ra_kernel_verdict *worst)
{
    ra_pattern_config configs[] = {ra_pattern_config_dense(), ra_pattern_config_dense()};
    int32_t const tile_rows = tried->kernel.ops->tile_rows(use->dtype, use->dim);
    problem p = {.rows = ra_min_i64(tile_rows, TILE_ROWS_MAX) + MORE_ROWS,
                 .kv_heads = 1,
                 .dim = use->dim,
                 .dtype = use->dtype,
                 .backward = use->backward};
    configs[1].causal = true;
    configs[1].window_left = p.rows / 2;
    configs[1].sinks = 3;
    ra_status status = RA_OK;
    for (int i = 0; i < 2 && status == RA_OK; ++i) {
        ra_pattern *pattern = NULL;
        p.heads = 1 + i;
        status = ra_pattern_create(&configs[i], p.rows, p.heads, plain->pool, &pattern);
        p.pattern = pattern;
        if (status == RA_OK)
            status = problem_compare(&p, tried, plain, worst);
        ra_pattern_destroy(pattern);
    }
    return status;
}

ra_status ra_kernel_check(const ra_kernel_ops *ops, const ra_kernel_ops *plain,
                          const ra_kernel_use *use, ra_kernel_verdict *verdict_out)
{
    RA_ASSERT(use->dim >= 1 && use->dim <= 256 && use->threads >= 1);
    place mine = {0}, theirs = {0};
    ra_kernel_verdict worst = {0};
    ra_status status = place_make(plain, use, &theirs);
    if (status == RA_OK)
        status = place_make(ops, use, &mine);
    if (status == RA_OK)
        status = problems_compare(use, &mine, &theirs, &worst);
    place_free(&mine);
    place_free(&theirs);
    if (status == RA_OK)
        *verdict_out = worst;
    return status;
}
