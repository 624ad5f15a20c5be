/* What every kernel table must not depend on: company, threads, and which chunks are computed. */
#include "sparse/kernel_case.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* A GPU's threads are its own affair. */
#ifdef RA_KERNEL_CASES_CUDA
enum { ENDS_CASES = 4, THREADS_MAX = 1, BITS_REPEAT = false };
#else
enum { ENDS_CASES = 12, THREADS_MAX = 6, BITS_REPEAT = true };
#endif

/* The emulator takes its time: three chunks are enough, and two runs after the first. */
#if defined(RA_KERNEL_CASES_CUDA) && !defined(RA_KERNEL_CASES_DEVICE)
enum { ENDS_ROWS = 300, ENDS_ROWS_STRIDED = 2100, REPEATS = 2, REPEATED_ROWS = 300 };
#else
enum { ENDS_ROWS = 1000, ENDS_ROWS_STRIDED = 3500, REPEATS = 4, REPEATED_ROWS = 700 };
#endif

/* Warpgroups compute some dims in 16 bits; other dims of their table are another's. */
#ifdef RA_KERNEL_CASES_SM90A
enum { DIM = 64, REPEATED_DIM = 64 };
static const ra_dtype dtypes[] = {RA_BF16, RA_F16, RA_BF16};
#else
enum { DIM = 8, REPEATED_DIM = 16 };
static const ra_dtype dtypes[] = {RA_F32, RA_F16, RA_BF16};
#endif

/* Every second one of two dilated branches, whose tiles share rows. */
static kernel_case causal_case(int i)
{
    static const int64_t segments[] = {64, 128}, rates[] = {1, 4};
    kernel_case c = kernel_base_case();
    c.shape.dim = DIM;
    c.dtype = dtypes[i % 3];
    c.deterministic = true;
    c.pattern.causal = true;
    if (i % 2 == 1) {
        c.pattern.segments = segments;
        c.pattern.rates = rates;
        c.pattern.branch_count = 2;
    }
    return c;
}

static bool same_bits(const kernel_case *c, const kernel_result *a, const kernel_result *b)
{
    const oracle_shape *s = &c->shape;
    size_t const rows = (size_t)(s->batch * s->n * s->heads);
    size_t const q = rows * (size_t)s->dim * ra_dtype_bytes(c->dtype);
    size_t const k = q / (size_t)s->heads * (size_t)s->kv_heads;
    return memcmp(a->o, b->o, q) == 0 && memcmp(a->lse, b->lse, rows * sizeof(float)) == 0 &&
           memcmp(a->dq, b->dq, q) == 0 && memcmp(a->dk, b->dk, k) == 0 &&
           memcmp(a->dv, b->dv, k) == 0;
}

/* Rows of the ends as in the whole, bit for bit; rows between as they were. */
static void check_ends(const kernel_case *c, const kernel_result *whole, const kernel_result *ends,
                       int64_t chunk_rows)
{
    const oracle_shape *s = &c->shape;
    int64_t const last = (s->n - 1) / chunk_rows * chunk_rows;
    size_t const row_bytes = (size_t)(s->heads * s->dim) * ra_dtype_bytes(c->dtype);
    const char *const zeros = calloc(row_bytes, 1);
    cr_assert_not_null(zeros);
    cr_assert_gt(last, chunk_rows);
    for (int64_t i = 0; i < s->n; ++i) {
        bool const at_end = i < chunk_rows || i >= last;
        size_t const at = (size_t)i * row_bytes;
        cr_assert_eq(
            memcmp((char *)ends->o + at, at_end ? (char *)whole->o + at : zeros, row_bytes), 0,
            "out of row %lld", (long long)i);
        cr_assert_eq(
            memcmp((char *)ends->dq + at, at_end ? (char *)whole->dq + at : zeros, row_bytes), 0,
            "dq of row %lld", (long long)i);
        for (int64_t h = 0; h < s->heads; ++h)
            cr_assert_eq(ends->lse[h * s->n + i], at_end ? whole->lse[h * s->n + i] : 0);
    }
    free((void *)zeros);
}

Test(kernel, ends_only_computes_the_first_and_last_chunk_and_nothing_between)
{
    for (int i = 0; i < ENDS_CASES; ++i) {
        kernel_case c = causal_case(i);
        c.shape.n = i % 2 == 1 ? ENDS_ROWS_STRIDED : ENDS_ROWS;
        c.threads = 1 + i % 4;
        kernel_problem p = kernel_problem_make(&c);
        for (int t = 0; t < KERNEL_TABLE_COUNT; ++t) {
            const ra_kernel_ops *ops = kernel_table(t);
            if (ops == NULL)
                continue;
            p.c.ends_only = false;
            kernel_result whole = kernel_run(ops, &p);
            p.c.ends_only = true;
            kernel_result ends = kernel_run(ops, &p);
            check_ends(&c, &whole, &ends, whole.chunk_rows);
            kernel_result_free(&whole);
            kernel_result_free(&ends);
        }
        kernel_problem_free(&p);
    }
}

static void check_company(const kernel_case *c, const char *what)
{
    kernel_case alone = *c;
    alone.caches = (ra_caches){1, 1}; /* one tile at a time */
    kernel_problem p = kernel_problem_make(c);
    for (int i = 0; i < KERNEL_ISA_COUNT; ++i) {
        const ra_kernel_ops *ops = kernel_table(i);
        if (ops == NULL)
            continue;
        kernel_result many = kernel_run(ops, &p);
        kernel_check(ops, &p, &many, what);
        p.c = alone;
        kernel_result one = kernel_run(ops, &p);
        p.c = *c;
        cr_assert(same_bits(c, &many, &one), "%s, %s", ops->name, what);
        kernel_result_free(&many);
        kernel_result_free(&one);
    }
    kernel_problem_free(&p);
}

/* Tiles that go over the keys side by side share what is packed, and nothing else. */
Test(kernel, a_tile_computes_the_same_in_any_company, .timeout = 6000)
{
    kernel_case c = kernel_base_case();
    c.caches = (ra_caches){1 << 20, 1 << 30};
    c.threads = 1;                  /* which cuts no task */
    c.deterministic = !BITS_REPEAT; /* else a GPU sums dq in whichever order blocks come */
    c.dtype = RA_BF16;
    c.shape.n = 1100;
    c.shape.heads = 6;
    c.shape.kv_heads = 2;
    c.shape.dim = 24;
    check_company(&c, "dense");
    c.pattern.causal = true;
    check_company(&c, "causal");
    c.pattern.window_left = 333;
    c.steps = 3;
    c.striped = true;
    check_company(&c, "window");
    int64_t const documents[] = {411, 689};
    c.steps = 1;
    c.dtype = RA_F32;
    c.pattern.documents = documents;
    c.pattern.document_count = 2;
    check_company(&c, "documents");
    c.shape.heads = 2; /* so that tiles of four chunks go side by side */
    check_company(&c, "neighbouring chunks");
}

/* Also where rows are shared, and a GPU's thread blocks have scratch that lets none leave. */
Test(kernel, steps_that_yield_compute_the_same, .timeout = 6000)
{
    for (int i = 0; i < 6; ++i) {
        kernel_case c = causal_case(i);
        c.shape.n = 300;
        c.steps = 1 + i / 3;
        kernel_problem p = kernel_problem_make(&c);
        for (int t = 0; t < KERNEL_TABLE_COUNT; ++t) {
            const ra_kernel_ops *ops = kernel_table(t);
            if (ops == NULL)
                continue;
            p.c.yields = false;
            kernel_result stays = kernel_run(ops, &p);
            p.c.yields = true;
            kernel_result yields = kernel_run(ops, &p);
            cr_assert(same_bits(&c, &stays, &yields), "%s, case %d", ops->name, i);
            kernel_result_free(&stays);
            kernel_result_free(&yields);
        }
        kernel_problem_free(&p);
    }
}

/* Whichever thread comes first. More threads than kv heads: teams work on one head together. */
Test(kernel, repeated_runs_agree_bit_for_bit, .timeout = 6000)
{
    for (int threads = 1; threads <= THREADS_MAX; ++threads) {
        kernel_case c = kernel_base_case();
        c.shape.n = REPEATED_ROWS;
        c.shape.heads = 2;
        c.shape.kv_heads = 1 + threads % 2;
        c.shape.dim = REPEATED_DIM;
        c.dtype = dtypes[0];
        c.pattern.causal = true;
        c.deterministic = true;
        c.threads = threads;
        kernel_problem p = kernel_problem_make(&c);
        for (int i = 0; i < KERNEL_TABLE_COUNT; ++i) {
            const ra_kernel_ops *ops = kernel_table(i);
            if (ops == NULL)
                continue;
            kernel_result first = kernel_run(ops, &p);
            kernel_check(ops, &p, &first, "threads");
            for (int again = 0; again < REPEATS; ++again) {
                kernel_result next = kernel_run(ops, &p);
                cr_assert(same_bits(&c, &first, &next), "%s, %d threads", ops->name, threads);
                kernel_result_free(&next);
            }
            kernel_result_free(&first);
        }
        kernel_problem_free(&p);
    }
}
