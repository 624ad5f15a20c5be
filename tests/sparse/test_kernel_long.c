/* Sums over 65,536 keys or queries: their error must not grow with the sequence. */
#include "sparse/kernel_case.h"
#include "sparse/mapped.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 65536, DIM = 64, HEADS = 2 };

typedef struct long_job {
    mapped m;
    ra_kernel kernel;
} long_job;

static long_job long_job_make(const ra_kernel_ops *ops, mapped_config config, int32_t dim)
{
    config.rows = N;
    config.tile_rows = ops->tile_rows(RA_F32, dim);
    config.by_keys = ops->maps_by_keys;
    long_job j = {.m = mapped_make(&config)};
    ra_kernel_use const use = {.dim = dim, .threads = 2};
    cr_assert_eq(ra_kernel_init(ops, &use, j.m.pool, &j.kernel), RA_OK);
    return j;
}

static void long_job_free(long_job *j)
{
    ra_kernel_fini(&j->kernel);
    mapped_free(&j->m);
}

/* Queries at the beginning, in the middle and at the end, against all keys. */
static long_job sampled_make(const ra_kernel_ops *ops, const ra_pattern_config *pattern)
{
    static const ra_range queries[] = {{0, 1, 12}, {N / 2 - 8, 1, 20}, {N - 24, 1, 24}};
    mapped_config const config = {
        .pattern = pattern, .heads = HEADS, .queries = queries, .query_ranges = 3};
    return long_job_make(ops, config, DIM);
}

typedef struct long_tensors {
    ra_dtype dtype;
    void *q, *k, *v; /* [N][HEADS][DIM]; one kv head */
    double *q64, *k64, *v64;
} long_tensors;

static void *take(size_t bytes)
{
    void *memory = malloc(bytes);
    cr_assert_not_null(memory);
    return memory;
}

static long_tensors long_tensors_make(ra_dtype dtype)
{
    long_tensors t = {.dtype = dtype};
    size_t const q = (size_t)N * HEADS * DIM, k = (size_t)N * DIM;
    t.q = take(q * 4), t.k = take(k * 4), t.v = take(k * 4);
    t.q64 = take(q * 8), t.k64 = take(k * 8), t.v64 = take(k * 8);
    uint64_t random = 77;
    oracle_fill(&random, dtype, 1, (int64_t)q, t.q, t.q64);
    oracle_fill(&random, dtype, 1, (int64_t)k, t.k, t.k64);
    oracle_fill(&random, dtype, 1, (int64_t)k, t.v, t.v64);
    return t;
}

static void long_tensors_free(long_tensors *t)
{
    void *const memory[] = {t->q, t->k, t->v, t->q64, t->k64, t->v64};
    for (int i = 0; i < 6; ++i)
        free(memory[i]);
}

/* want, want_lse of the sampled rows: [row][HEADS][DIM], [HEADS][row]. */
static void ask_oracle(const long_tensors *t, const ra_pattern_config *config,
                       const ra_rowset *queries, double *want, double *want_lse)
{
    oracle_shape const shape = {.batch = 1, .n = N, .heads = HEADS, .kv_heads = 1, .dim = DIM};
    oracle_inputs const in = {.q = t->q64, .k = t->k64, .v = t->v64};
    for (int64_t x = 0; x < queries->row_count; ++x) {
        for (int32_t h = 0; h < HEADS; ++h)
            oracle_attend_row(&shape, config, &in, 0, h, ra_rowset_global(queries, x),
                              want + (x * HEADS + h) * DIM, want_lse + h * queries->row_count + x);
    }
}

static void check_sampled(const ra_kernel_ops *ops, const long_tensors *t,
                          const ra_pattern_config *config, const double *want,
                          const double *want_lse)
{
    long_job s = sampled_make(ops, config);
    int64_t const rows = s.m.queries.row_count;
    size_t const element = ra_dtype_bytes(t->dtype);
    char *q = take((size_t)rows * HEADS * DIM * element), *o = take((size_t)rows * HEADS * DIM * 4);
    float *lse = take((size_t)rows * HEADS * sizeof(float));
    ra_kernel_shape const shape = {.batch = 1,
                                   .q_heads = HEADS,
                                   .kv_heads = 1,
                                   .dim = DIM,
                                   .scale = (float)(1 / sqrt((double)DIM))};
    for (int64_t x = 0; x < rows; ++x)
        memcpy(q + (size_t)x * HEADS * DIM * element,
               (const char *)t->q +
                   (size_t)ra_rowset_global(&s.m.queries, x) * HEADS * DIM * element,
               HEADS * DIM * element);
    ra_forward_step const step = {.map = &s.m.map,
                                  .shape = shape,
                                  .q = ra_view_dense(q, t->dtype, rows, HEADS, DIM, 0),
                                  .k = ra_view_dense(t->k, t->dtype, N, 1, DIM, 0),
                                  .v = ra_view_dense(t->v, t->dtype, N, 1, DIM, 0),
                                  .out = ra_view_dense(o, t->dtype, rows, HEADS, DIM, 0),
                                  .lse = lse,
                                  .lse_batch_stride = HEADS * rows,
                                  .first = true,
                                  .last = true};
    cr_assert_eq(ops->forward(&s.kernel, &step), RA_OK);
    double const error = oracle_relative_error(t->dtype, o, want, rows * HEADS * DIM);
    double const lse_error = oracle_max_error(RA_F32, lse, want_lse, rows * HEADS);
    cr_assert(error <= oracle_output_bound(t->dtype), "%s: o is off by %g", ops->name, error);
    cr_assert(lse_error <= oracle_lse_bound(t->dtype), "%s: lse is off by %g", ops->name,
              lse_error);
    free(q);
    free(o);
    free(lse);
    long_job_free(&s);
}

static void check_long(ra_dtype dtype, bool causal)
{
    ra_pattern_config config = ra_pattern_config_dense();
    config.causal = causal;
    long_tensors t = long_tensors_make(dtype);
    long_job s = sampled_make(kernel_table(0), &config);
    int64_t const rows = s.m.queries.row_count;
    double *want = take((size_t)rows * HEADS * DIM * sizeof(double));
    double *want_lse = take((size_t)rows * HEADS * sizeof(double));
    ask_oracle(&t, &config, &s.m.queries, want, want_lse);
    long_job_free(&s);
    for (int i = 0; i < KERNEL_ISA_COUNT; ++i) {
        if (kernel_table(i) != NULL)
            check_sampled(kernel_table(i), &t, &config, want, want_lse);
    }
    free(want);
    free(want_lse);
    long_tensors_free(&t);
}

Test(kernel_long, dense_rows_over_65536_keys_stay_within_bounds, .timeout = 6000)
{
    check_long(RA_F32, false);
}

Test(kernel_long, causal_rows_over_65536_keys_stay_within_bounds, .timeout = 6000)
{
    check_long(RA_F32, true);
    check_long(RA_BF16, true);
}

/* In a GPU's tensor cores, which cut each sum, a row is one chain of them. */
Test(kernel_long, causal_rows_of_float16_stay_within_bounds, .timeout = 6000)
{
    check_long(RA_F16, true);
}

/*
 * Gradients of the first SINKS keys, each a sum over all 65,536 queries. A window of one token and
 * sinks keep the oracle short: query i sees the sinks and itself.
 */
enum { SINKS = 8, SHORT_DIM = 16 };

typedef struct sink_job {
    float *q, *k, *v, *dout; /* [N][SHORT_DIM] */
    double *q64, *k64, *v64, *dout64;
    float *out, *lse, *delta, *dq, *dk, *dv;
    double *want_dk, *want_dv; /* [SINKS][SHORT_DIM] */
} sink_job;

static void sink_oracle(const sink_job *j, double scale)
{
    for (int64_t i = 0; i < N; ++i) {
        int64_t const own = i < SINKS ? 0 : 1, count = SINKS + own;
        double p[SINKS + 1], dp[SINKS + 1], sum = 0, delta = 0;
        for (int64_t x = 0; x < count; ++x) {
            int64_t const key = x < SINKS ? x : i;
            double s = 0;
            dp[x] = 0;
            for (int d = 0; d < SHORT_DIM; ++d) {
                s += scale * j->q64[i * SHORT_DIM + d] * j->k64[key * SHORT_DIM + d];
                dp[x] += j->dout64[i * SHORT_DIM + d] * j->v64[key * SHORT_DIM + d];
            }
            p[x] = exp(s);
            sum += p[x];
        }
        for (int64_t x = 0; x < count; ++x) {
            p[x] /= sum;
            delta += p[x] * dp[x];
        }
        for (int64_t x = 0; x < SINKS; ++x) {
            for (int d = 0; d < SHORT_DIM; ++d) {
                j->want_dk[x * SHORT_DIM + d] +=
                    scale * p[x] * (dp[x] - delta) * j->q64[i * SHORT_DIM + d];
                j->want_dv[x * SHORT_DIM + d] += p[x] * j->dout64[i * SHORT_DIM + d];
            }
        }
    }
}

static void sink_run(const ra_kernel_ops *ops, sink_job *j, float scale)
{
    ra_pattern_config config = ra_pattern_config_dense();
    config.window_left = config.window_right = 0;
    config.sinks = SINKS;
    long_job s = long_job_make(ops, (mapped_config){.pattern = &config, .heads = 1}, SHORT_DIM);
    ra_kernel_shape const shape = {
        .batch = 1, .q_heads = 1, .kv_heads = 1, .dim = SHORT_DIM, .scale = scale};
    size_t const bytes = sizeof(float) * N * SHORT_DIM;
    memset(j->dq, 0, bytes), memset(j->dk, 0, bytes), memset(j->dv, 0, bytes);
    ra_view views[8];
    float *const data[8] = {j->q, j->k, j->v, j->dout, j->out, j->dq, j->dk, j->dv};
    for (int i = 0; i < 8; ++i)
        views[i] = ra_view_dense(data[i], RA_F32, N, 1, SHORT_DIM, 0);
    ra_forward_step const forward = {.map = &s.m.map,
                                     .shape = shape,
                                     .q = views[0],
                                     .k = views[1],
                                     .v = views[2],
                                     .out = views[4],
                                     .lse = j->lse,
                                     .lse_batch_stride = N,
                                     .first = true,
                                     .last = true};
    ra_backward_step const backward = {.map = &s.m.map,
                                       .shape = shape,
                                       .q = views[0],
                                       .k = views[1],
                                       .v = views[2],
                                       .dout = views[3],
                                       .lse = j->lse,
                                       .lse_batch_stride = N,
                                       .delta = j->delta,
                                       .dq = views[5],
                                       .dk = views[6],
                                       .dv = views[7]};
    cr_assert_eq(ops->forward(&s.kernel, &forward), RA_OK);
    cr_assert_eq(ops->delta(&s.kernel, &shape, N, &views[4], &views[3], j->delta), RA_OK);
    cr_assert_eq(ops->backward(&s.kernel, &backward), RA_OK);
    long_job_free(&s);
}

Test(kernel_long, gradients_of_keys_that_all_queries_see_stay_within_bounds, .timeout = 6000)
{
    size_t const count = (size_t)N * SHORT_DIM;
    sink_job j = {0};
    float **const tensors[] = {&j.q, &j.k, &j.v, &j.dout, &j.out, &j.dq, &j.dk, &j.dv};
    double **const wide[] = {&j.q64, &j.k64, &j.v64, &j.dout64};
    uint64_t random = 13;
    for (int i = 0; i < 8; ++i)
        *tensors[i] = take(count * sizeof(float));
    for (int i = 0; i < 4; ++i) {
        *wide[i] = take(count * sizeof(double));
        oracle_fill(&random, RA_F32, 1, (int64_t)count, *tensors[i], *wide[i]);
    }
    /* A mean, so that the sums grow with the queries rather than cancel. */
    for (size_t i = 0; i < count; ++i) {
        j.dout[i] = fabsf(j.dout[i]);
        j.dout64[i] = (double)j.dout[i];
    }
    j.lse = take(N * sizeof(float)), j.delta = take(N * sizeof(float));
    j.want_dk = calloc(SINKS * SHORT_DIM, sizeof(double));
    j.want_dv = calloc(SINKS * SHORT_DIM, sizeof(double));
    sink_oracle(&j, 0.25);
    for (int i = 0; i < KERNEL_ISA_COUNT; ++i) {
        if (kernel_table(i) == NULL)
            continue;
        sink_run(kernel_table(i), &j, 0.25f);
        double const bound = oracle_gradient_bound(RA_F32, SHORT_DIM);
        double const dk = oracle_relative_error(RA_F32, j.dk, j.want_dk, SINKS * SHORT_DIM);
        double const dv = oracle_relative_error(RA_F32, j.dv, j.want_dv, SINKS * SHORT_DIM);
        cr_assert(dk <= bound, "%s: dk is off by %g", kernel_table(i)->name, dk);
        cr_assert(dv <= bound, "%s: dv is off by %g", kernel_table(i)->name, dv);
    }
    for (int i = 0; i < 8; ++i)
        free(*tensors[i]);
    for (int i = 0; i < 4; ++i)
        free(*wide[i]);
    free(j.lse), free(j.delta), free(j.want_dk), free(j.want_dv);
}
