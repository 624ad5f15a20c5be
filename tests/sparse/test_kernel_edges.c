/* Kernel tables at the edges: values that are not finite, refusals, memory, polling, long sums. */
#include "sparse/kernel_case.h"
#include "sparse/mapped.h"
#include "support/captured_log.h"

#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

static kernel_case edge_case(void)
{
    kernel_case c = {.shape = {.batch = 1, .n = 200, .heads = 1, .kv_heads = 1, .dim = 20},
                     .pattern = ra_pattern_config_dense(),
                     .dtype = RA_F32,
                     .seed = 3,
                     .dout_factor = 1,
                     .threads = 2,
                     .steps = 1};
    c.pattern.causal = true;
    return c;
}

/* Finite where the oracle is, and there within bounds. Tells how many values were finite. */
static int64_t check_finite(const ra_kernel_ops *ops, ra_dtype dtype, const char *name,
                            const void *got, const double *want, int64_t count, int poisoned)
{
    double const bound = dtype == RA_F32 ? 1e-5 : 0.02;
    int64_t finite = 0, wrong = 0;
    for (int64_t i = 0; i < count; ++i) {
        double const w = want[i], g = (double)ra_dtype_load(dtype, got, i);
        finite += isfinite(w) != 0;
        if ((isfinite(g) != 0) != (isfinite(w) != 0))
            ++wrong;
        else if (isfinite(w))
            wrong += !(fabs(g - w) <= bound * (1 + fabs(w)));
    }
    cr_assert_eq(wrong, 0, "%s %s tensor %d poisoned: %lld values of %s are wrong", ops->name,
                 ra_dtype_name(dtype), poisoned, (long long)wrong, name);
    return finite;
}

static void check_poisoned(const kernel_problem *p, int poisoned)
{
    const kernel_case *c = &p->c;
    int64_t const count = c->shape.n * c->shape.dim;
    for (int i = 0; i < KERNEL_TABLE_COUNT; ++i) {
        const ra_kernel_ops *ops = kernel_table(i);
        if (ops == NULL)
            continue;
        kernel_result r = kernel_run(ops, p);
        int64_t const o = check_finite(ops, c->dtype, "o", r.o, p->want.o, count, poisoned);
        int64_t const dq = check_finite(ops, c->dtype, "dq", r.dq, p->want.dq, count, poisoned);
        check_finite(ops, c->dtype, "dk", r.dk, p->want.dk, count, poisoned);
        check_finite(ops, c->dtype, "dv", r.dv, p->want.dv, count, poisoned);
        /* Rows before 100 do not see it. */
        cr_assert(o >= 100 * c->shape.dim && dq >= 100 * c->shape.dim);
        kernel_result_free(&r);
    }
}

/* A NaN in row 100 of q, k, v or dout reaches whom that row meets, and nobody else: of the whole
   sequence, of the second of three documents, beyond which blocks stay as they were, and of a
   window, whose keys are also seen by queries that do not see that row. */
Test(kernel_edges, what_is_not_finite_reaches_only_rows_that_see_it)
{
    static const int64_t documents[] = {90, 60, 50};
    for (int poisoned = 0; poisoned < 4; ++poisoned) {
        for (int variant = 0; variant < 12; ++variant) {
            bool const has_documents = variant / 4 == 1;
            kernel_case c = edge_case();
            c.steps = 1 + variant % 2;
            c.dtype = variant / 2 % 2 == 0 ? RA_F32 : RA_BF16;
            c.pattern.documents = has_documents ? documents : NULL;
            c.pattern.document_count = has_documents ? 3 : 0;
            c.pattern.window_left = variant / 4 == 2 ? 9 : -1;
            kernel_problem p = kernel_problem_draw(&c);
            void *const tensors[] = {p.q, p.k, p.v, p.dout};
            ra_dtype_store(c.dtype, tensors[poisoned], 100 * c.shape.dim + 7, NAN);
            kernel_problem_solve(&p);
            check_poisoned(&p, poisoned);
            kernel_problem_free(&p);
        }
    }
}

Test(kernel_edges, an_infinite_value_reaches_only_its_dim_of_rows_that_see_it)
{
    kernel_case c = edge_case();
    c.dout_factor = 0;
    kernel_problem p = kernel_problem_draw(&c);
    ((float *)p.v)[70 * c.shape.dim + 3] = -INFINITY;
    kernel_problem_solve(&p);
    for (int i = 0; i < KERNEL_TABLE_COUNT; ++i) {
        if (kernel_table(i) == NULL)
            continue;
        kernel_result r = kernel_run(kernel_table(i), &p);
        kernel_check(kernel_table(i), &p, &r, "infinite value");
        cr_assert(((float *)r.o)[70 * c.shape.dim + 3] == -INFINITY);
        cr_assert(isfinite(((float *)r.o)[69 * c.shape.dim + 3]));
        kernel_result_free(&r);
    }
    kernel_problem_free(&p);
}

/* Key 0 is -Inf where all queries are positive: query 0, which sees nothing else, has no weight. */
Test(kernel_edges, a_row_whose_scores_are_all_minus_infinity_adds_nothing)
{
    kernel_case c = edge_case();
    int32_t const dim = c.shape.dim;
    kernel_problem p = kernel_problem_draw(&c);
    for (int64_t i = 0; i < c.shape.n; ++i)
        ((float *)p.q)[i * dim + 7] = 0.5f;
    ((float *)p.k)[7] = -INFINITY;
    kernel_problem_solve(&p);
    for (int i = 0; i < KERNEL_TABLE_COUNT; ++i) {
        if (kernel_table(i) == NULL)
            continue;
        kernel_result r = kernel_run(kernel_table(i), &p);
        int64_t const count = c.shape.n * dim;
        cr_assert(oracle_relative_error(RA_F32, r.o, p.want.o, count) <= 2e-6);
        cr_assert(oracle_relative_error(RA_F32, r.dk, p.want.dk, count) <= 2e-6);
        cr_assert(oracle_relative_error(RA_F32, r.dv, p.want.dv, count) <= 2e-6);
        cr_assert(r.lse[0] == -INFINITY);
        for (int32_t d = 0; d < dim; ++d)
            cr_assert(((float *)r.o)[d] == 0 && ((float *)r.dq)[d] == 0 &&
                      ((float *)r.dk)[d] == 0 && ((float *)r.dv)[d] == 0);
        kernel_result_free(&r);
    }
    kernel_problem_free(&p);
}

/* Each query sees its own key only, so that outputs are values: every one of 16 bits survives. */
Test(kernel_edges, every_16_bit_value_survives_attention_to_itself)
{
    for (int t = 1; t < 3; ++t) {
        kernel_case c = edge_case();
        c.dtype = (ra_dtype)t;
        c.dout_factor = 0;
        c.shape.dim = 64;
        c.shape.n = 1024;
        c.pattern.window_left = c.pattern.window_right = 0;
        kernel_problem p = kernel_problem_make(&c);
        for (uint32_t i = 0; i < 65536; ++i)
            ((uint16_t *)p.v)[i] = (uint16_t)i;
        for (int i = 0; i < KERNEL_TABLE_COUNT; ++i) {
            if (kernel_table(i) == NULL)
                continue;
            kernel_result r = kernel_run(kernel_table(i), &p);
            for (int64_t x = 0; x < 65536; ++x) {
                double const v = (double)ra_dtype_load(c.dtype, p.v, x);
                double const o = (double)ra_dtype_load(c.dtype, r.o, x);
                cr_assert(o == v || (isnan(o) && isnan(v)), "%s %04llx", kernel_table(i)->name,
                          (unsigned long long)x);
            }
            kernel_result_free(&r);
        }
        kernel_problem_free(&p);
    }
}

/* Weights are relative to the largest, which is 1, however large the scores: a query that sees one
   key has its value as output. Scores grow from row to row, to 1e12 and -1e12. */
Test(kernel_edges, a_key_alone_has_weight_one_whatever_its_score)
{
    for (int t = 0; t < 3; ++t) {
        kernel_case c = edge_case();
        int32_t const dim = c.shape.dim;
        c.dtype = (ra_dtype)t;
        c.dout_factor = 0;
        c.shape.scale = 1e8;
        c.pattern.window_left = c.pattern.window_right = 0;
        kernel_problem p = kernel_problem_draw(&c);
        for (int64_t i = 0; i < c.shape.n; ++i) {
            double const size = pow(10, 4 * (double)i / (double)c.shape.n - 8);
            for (int32_t d = 0; d < dim; ++d)
                ra_dtype_store(c.dtype, p.q, i * dim + d,
                               (float)size * ra_dtype_load(c.dtype, p.q, i * dim + d));
        }
        kernel_problem_solve(&p);
        for (int i = 0; i < KERNEL_TABLE_COUNT; ++i) {
            if (kernel_table(i) == NULL)
                continue;
            kernel_result r = kernel_run(kernel_table(i), &p);
            for (int64_t x = 0; x < c.shape.n * dim; ++x)
                cr_assert_eq(ra_dtype_load(c.dtype, r.o, x), ra_dtype_load(c.dtype, p.v, x),
                             "%s %s row %lld", kernel_table(i)->name, ra_dtype_name(c.dtype),
                             (long long)(x / dim));
            for (int64_t row = 0; row < c.shape.n; ++row)
                cr_assert(fabs(r.lse[row] - p.want.lse[row]) <= 1e-5 + 1e-5 * fabs(p.want.lse[row]),
                          "%s %s row %lld: lse %g, not %g", kernel_table(i)->name,
                          ra_dtype_name(c.dtype), (long long)row, (double)r.lse[row],
                          p.want.lse[row]);
            kernel_result_free(&r);
        }
        kernel_problem_free(&p);
    }
}

/* ---- a kernel by itself ------------------------------------------------------------------------
 */

Test(kernel_edges, workspace_is_counted_and_refused_by_the_limit)
{
    captured_log said;
    captured_log_begin(&said);
    for (int i = 0; i < KERNEL_TABLE_COUNT; ++i) {
        const ra_kernel_ops *ops = kernel_table(i);
        if (ops == NULL)
            continue;
        ra_ledger *ledger;
        ra_pool *pool;
        ra_kernel kernel;
        poison_pool_begin(&ledger, &pool);
        ra_kernel_use const use = {.dim = 64, .threads = 1};
        cr_assert_eq(ra_kernel_init(ops, &use, pool, &kernel), RA_OK);
        ra_ledger_snapshot snapshot;
        ra_ledger_read(ledger, &snapshot);
        cr_assert_geq(snapshot.current_bytes[RA_MEM_WORKSPACE],
                      (int64_t)ops->workspace_bytes(&use));
        cr_assert_eq(snapshot.current_bytes[RA_MEM_WORKSPACE], snapshot.reserved_bytes);
        ra_kernel_fini(&kernel);
        ra_kernel_fini(&kernel);
        poison_pool_end(ledger, pool);
        poison_pool_begin_within(1000, &ledger, &pool);
        cr_assert_eq(ra_kernel_init(ops, &use, pool, &kernel), RA_ERR_NO_MEMORY);
        poison_pool_end(ledger, pool);
    }
    cr_assert_gt(said.count, 0);
}

/* A dense step of one head; changed by the tests below. */
typedef struct small_step {
    mapped m;
    ra_kernel kernel;
    float *data;
    ra_forward_step step;
} small_step;

enum { SMALL_ROWS = 2048, SMALL_DIM = 16 };

static small_step small_step_make(const ra_kernel_ops *ops, int threads)
{
    ra_pattern_config const dense = ra_pattern_config_dense();
    small_step s = {0};
    s.m = mapped_make(&(mapped_config){.pattern = &dense,
                                       .rows = SMALL_ROWS,
                                       .heads = 1,
                                       .tile_rows = ops->tile_rows(RA_F32, SMALL_DIM),
                                       .by_keys = ops->maps_by_keys});
    ra_kernel_use const use = {.dim = SMALL_DIM, .threads = threads};
    cr_assert_eq(ra_kernel_init(ops, &use, s.m.pool, &s.kernel), RA_OK);
    s.data = calloc(2 * SMALL_ROWS * SMALL_DIM, sizeof(float));
    ra_view const in = ra_view_dense(s.data, RA_F32, SMALL_ROWS, 1, SMALL_DIM, 0);
    ra_view const out =
        ra_view_dense(s.data + SMALL_ROWS * SMALL_DIM, RA_F32, SMALL_ROWS, 1, SMALL_DIM, 0);
    s.step = (ra_forward_step){
        .shape = {.batch = 1, .q_heads = 1, .kv_heads = 1, .dim = SMALL_DIM, .scale = 0.25f},
        .q = in,
        .k = in,
        .v = in,
        .out = out,
        .first = true,
        .last = true};
    return s;
}

static void small_step_free(small_step *s)
{
    free(s->data);
    ra_kernel_fini(&s->kernel);
    mapped_free(&s->m);
}

typedef struct poll_count {
    pthread_t caller;
    int calls, strangers;
} poll_count;

static void count_poll(void *context)
{
    poll_count *count = context;
    ++count->calls;
    count->strangers += !pthread_equal(pthread_self(), count->caller);
}

/* MPI may be initialised for the calling thread only. */
Test(kernel_edges, polls_from_the_calling_thread_while_it_works)
{
    for (int i = 0; i < KERNEL_TABLE_COUNT; ++i) {
        if (kernel_table(i) == NULL)
            continue;
        small_step s = small_step_make(kernel_table(i), 1);
        poll_count count = {.caller = pthread_self()};
        s.kernel.poll = count_poll;
        s.kernel.poll_context = &count;
        s.step.map = &s.m.map;
        cr_assert_eq(s.kernel.ops->forward(&s.kernel, &s.step), RA_OK);
        cr_assert_geq(count.calls, 16);
        small_step_free(&s);

        s = small_step_make(kernel_table(i), 4);
        s.kernel.poll = count_poll;
        s.kernel.poll_context = &count;
        s.step.map = &s.m.map;
        for (int again = 0; again < 5; ++again)
            cr_assert_eq(s.kernel.ops->forward(&s.kernel, &s.step), RA_OK);
        cr_assert_eq(count.strangers, 0);
        small_step_free(&s);
    }
}

Test(kernel_edges, refuses_steps_that_it_cannot_compute)
{
    captured_log said;
    captured_log_begin(&said);
    for (int i = 0; i < KERNEL_ISA_COUNT; ++i) {
        if (kernel_table(i) == NULL)
            continue;
        small_step s = small_step_make(kernel_table(i), 1);
        s.step.map = &s.m.map;
        s.step.shape.dim = 257;
        cr_assert_eq(s.kernel.ops->forward(&s.kernel, &s.step), RA_ERR_INVALID);
        s.step.shape.dim = 64; /* the workspace was made for 16 */
        cr_assert_eq(s.kernel.ops->forward(&s.kernel, &s.step), RA_ERR_INVALID);
        s.step.shape.dim = SMALL_DIM;
        s.step.shape.q_heads = 3;
        s.step.shape.kv_heads = 2;
        cr_assert_eq(s.kernel.ops->forward(&s.kernel, &s.step), RA_ERR_INVALID);
        s.step.shape.q_heads = s.step.shape.kv_heads = 1;
        int32_t const tile_rows = s.m.map.tile_rows;
        s.m.map.tile_rows = 257;
        cr_assert_eq(s.kernel.ops->forward(&s.kernel, &s.step), RA_ERR_INVALID);
        ra_backward_step const backward = {.map = &s.m.map, .shape = s.step.shape};
        cr_assert_eq(s.kernel.ops->backward(&s.kernel, &backward), RA_ERR_INVALID);
        s.m.map.tile_rows = tile_rows;
        cr_assert_eq(s.kernel.ops->forward(&s.kernel, &s.step), RA_OK);
        small_step_free(&s);
    }
    cr_assert_gt(said.count, 0);
}

/* Pairs of bf16 are faster on some machines that have them, slower than FMA on others; tiles
   always. */
Test(kernel_edges, auto_is_the_best_table_of_the_machine)
{
    const ra_kernel_ops *best = NULL, *automatic = ra_kernel_cpu(RA_ISA_AUTO);
    for (ra_isa isa = RA_ISA_PORTABLE; isa <= RA_ISA_AVX512; ++isa) {
        if (ra_kernel_cpu(isa) != NULL)
            best = ra_kernel_cpu(isa);
    }
    if (ra_kernel_cpu(RA_ISA_NEON) != NULL)
        best = ra_kernel_cpu(RA_ISA_NEON);
    const ra_kernel_ops *pairs = ra_kernel_cpu(RA_ISA_AVX512BF16);
    const ra_kernel_ops *tiles = ra_kernel_cpu(RA_ISA_AMX);
    if (tiles != NULL)
        cr_assert_eq(automatic, tiles);
    else
        cr_assert(automatic == best || (pairs != NULL && automatic == pairs));
    cr_assert_not_null(kernel_table(0));
    cr_assert_str_eq(kernel_table(0)->name, "cpu-portable");
}
