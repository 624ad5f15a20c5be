/*
 * Linear attention against the float64 oracle: kinds, methods, dtypes, shapes and ranks; lengths
 * at which a single chain of additions would fail; what NaN may touch; and failures.
 */
#include "ring/ring_job_cuda.h"
#include "ring/ring_tensors.h"
#include "support/captured_log.h"
#include "support/oracle_linear.h"
#include "support/random_pattern.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Emulated kernels take their time: of what has many cases there are fewer. */
#ifdef RA_RING_JOBS_CUDA
enum { RANDOM_JOBS = 14, WIDTHS_STEP = 3, LONG_METHODS = RA_LINEAR_CHUNKED, LONG_RANKS = 1 };
TestSuite(linear, .init = ring_job_begin_cuda, .timeout = 1200);
#else
enum { RANDOM_JOBS = 60, WIDTHS_STEP = 1, LONG_METHODS = RA_LINEAR_CUMSUM, LONG_RANKS = 4 };
TestSuite(linear, .timeout = 600);
#endif

static ring_job linear_job(tensors *t, const ra_ring_config *c, int ranks, int threads)
{
    ring_job job = job_for(t, c, NULL, ranks);
    job.threads = threads;
#ifdef RA_RING_JOBS_CUDA
    ring_job_on_cuda(&job);
#endif
    return job;
}

/* One head; layout and schedule auto. */
static ra_ring_config linear_config(ra_linear_kind kind, ra_linear_method method, int64_t seq,
                                    int32_t dim, ra_dtype dtype)
{
    return (ra_ring_config){.batch = 1,
                            .seq = seq,
                            .heads = 1,
                            .kv_heads = 1,
                            .dim = dim,
                            .dtype = dtype,
                            .layout = RA_LAYOUT_AUTO,
                            .schedule = RA_SCHEDULE_AUTO,
                            .linear = kind,
                            .linear_method = method};
}

static void run_case(const ra_ring_config *c, int ranks, int threads, uint64_t seed)
{
    tensors t;
    char about[200];
    tensors_init(&t, c, seed, 1);
    oracle_shape const shape = {c->batch, c->seq, c->heads, c->kv_heads, c->dim, 0};
    oracle_inputs const in = {t.in[0], t.in[1], t.in[2], c->backward ? t.in[3] : NULL};
    oracle_outputs const out = {t.want[0], NULL, t.want[1], t.want[2], t.want[3]};
    snprintf(about, sizeof(about),
             "seed %llu: kind %d %s, batch %lld, seq %lld, heads %d/%d of %d, %s, %d ranks, %d "
             "groups, %d threads",
             (unsigned long long)seed, (int)c->linear, ra_linear_method_name(c->linear_method),
             (long long)c->batch, (long long)c->seq, c->heads, c->kv_heads, c->dim,
             ra_dtype_name(c->dtype), ranks, c->head_groups, threads);
    oracle_linear(&shape, c->linear == RA_LINEAR_CAUSAL, &in, &out);
    ring_job job = linear_job(&t, c, ranks, threads);
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK, "%s: %s", about, ra_status_name(job.status));
    cr_assert_eq(job.leaked_bytes, 0, "%s leaks", about);
    /* The terms of dq and dk cancel, in short sequences down to nothing. */
    expect_wanted(&t, c, c->dtype == RA_F32 ? 0.05 : 0.01, 0, about);
    tensors_fini(&t);
}

static ra_ring_config draw_config(test_rng *rng)
{
    bool const causal = test_rng_chance(rng, 0.7);
    ra_linear_method const method =
        causal ? (ra_linear_method)test_rng_between(rng, 0, 2) : RA_LINEAR_CHUNKED;
    int64_t const seq = test_rng_between(rng, 1, test_rng_chance(rng, 0.2) ? 9 : 330);
    int32_t const kv = (int32_t)test_rng_between(rng, 1, 3);
    ra_ring_config c = linear_config(causal ? RA_LINEAR_CAUSAL : RA_LINEAR_BIDIRECTIONAL, method,
                                     seq, (int32_t)test_rng_between(rng, 1, 80), RA_F32);
    c.batch = test_rng_between(rng, 1, 2);
    c.kv_heads = kv;
    c.heads = kv * (int32_t)test_rng_between(rng, 1, 3);
    c.dtype = seq < 16 ? RA_F32 : (ra_dtype)test_rng_between(rng, 0, 2);
    c.head_groups = (int32_t)test_rng_between(rng, 0, kv);
    c.backward = method == RA_LINEAR_CHUNKED;
    c.layout = test_rng_chance(rng, 0.5) ? RA_LAYOUT_AUTO : RA_LAYOUT_CONTIGUOUS;
    return c;
}

Test(linear, any_job_matches_the_oracle)
{
    const char *given = getenv("RA_TEST_SEED"); /* others than the usual cases */
    uint64_t const seed = given != NULL ? strtoull(given, NULL, 10) : 20261121;
    for (uint64_t i = 0; i < RANDOM_JOBS; ++i) {
        test_rng rng = {seed + i};
        ra_ring_config const c = draw_config(&rng);
        run_case(&c, (int)test_rng_between(&rng, 1, 8), (int)test_rng_between(&rng, 1, 3),
                 seed + i);
    }
}

/* Two threads share one head in four segments, and take a head each of two: fewer states. */
Test(linear, a_group_of_fewer_heads_may_have_more_states)
{
    ra_ring_config c = linear_config(RA_LINEAR_CAUSAL, RA_LINEAR_CHUNKED, 1024, 8, RA_F32);
    c.heads = c.kv_heads = 3;
    c.head_groups = 2;
    c.backward = true;
    run_case(&c, 1, 2, 5);
}

Test(linear, every_width_of_a_head_matches_the_oracle)
{
    static const int32_t dims[] = {1, 2, 3, 15, 16, 17, 31, 33, 64, 100, 128, 255, 256};
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i += WIDTHS_STEP) {
        for (int method = 0; method <= RA_LINEAR_CUMSUM; ++method) {
            ra_ring_config c =
                linear_config(RA_LINEAR_CAUSAL, (ra_linear_method)method, 130, dims[i], RA_F32);
            c.backward = method == RA_LINEAR_CHUNKED;
            run_case(&c, 2, 1, 77 + i);
        }
        ra_ring_config c =
            linear_config(RA_LINEAR_BIDIRECTIONAL, RA_LINEAR_CHUNKED, 130, dims[i], RA_F32);
        c.backward = true;
        run_case(&c, 2, 1, 177 + i);
    }
}

/* Fewer rows than ranks leave some ranks with none. */
Test(linear, ranks_without_rows_do_no_harm)
{
    for (int64_t seq = 1; seq < 8; ++seq) {
        ra_ring_config c = linear_config(RA_LINEAR_CAUSAL, RA_LINEAR_CHUNKED, seq, 8, RA_F32);
        c.backward = true;
        run_case(&c, 8, 1, (uint64_t)seq);
        c.linear = RA_LINEAR_BIDIRECTIONAL;
        run_case(&c, 8, 1, (uint64_t)seq);
    }
}

/* One chain of 64K float32 additions would be off by 1e-5. */
static void run_long(ra_linear_kind kind, ra_linear_method method, int ranks)
{
    enum { SEQ = 65536, DIM = 16, ROWS = 24 };
    ra_ring_config const c = linear_config(kind, method, SEQ, DIM, RA_F32);
    tensors t;
    double error = 0, norm = 0;
    tensors_init(&t, &c, 5, 1);
    oracle_shape const shape = {1, SEQ, 1, 1, DIM, 0};
    oracle_inputs const in = {t.in[0], t.in[1], t.in[2], NULL};
    ring_job job = linear_job(&t, &c, ranks, 2);
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK);
    for (int64_t i = 0; i < ROWS; ++i) {
        int64_t const row = SEQ - 1 - i * (SEQ / ROWS / 4); /* the later half: the longest sums */
        double o[DIM];
        oracle_linear_row(&shape, kind == RA_LINEAR_CAUSAL, &in, 0, 0, row, o);
        for (int32_t d = 0; d < DIM; ++d) {
            double const off = (double)((float *)t.data[4])[row * DIM + d] - o[d];
            error += off * off;
            norm += o[d] * o[d];
        }
    }
    error = sqrt(error / norm);
    cr_assert(error <= 2e-6, "kind %d %s, %d ranks: o is off by %g", (int)kind,
              ra_linear_method_name(method), ranks, error);
    tensors_fini(&t);
}

Test(linear, errors_do_not_grow_with_the_length)
{
    for (int ranks = 1; ranks <= LONG_RANKS; ranks *= 4) {
        run_long(RA_LINEAR_BIDIRECTIONAL, RA_LINEAR_CHUNKED, ranks);
        for (int method = 0; method <= LONG_METHODS; ++method)
            run_long(RA_LINEAR_CAUSAL, (ra_linear_method)method, ranks);
    }
}

/* ---- NaN ------------------------------------------------------------------------------------- */

/* Elements of a row [count] that are finite. */
static int64_t finite_of(const void *data, int64_t row, int64_t count)
{
    int64_t finite = 0;
    for (int64_t i = 0; i < count; ++i)
        finite += isfinite(((const float *)data)[row * count + i]);
    return finite;
}

/* NaN in tensor `which` of row 100, amid a chunk: outputs before it, and gradients after it, stay.
 */
static void check_nan(int which, ra_linear_method method, int ranks)
{
    enum { SEQ = 192, DIM = 8, ROW = 100 };
    ra_ring_config c = linear_config(RA_LINEAR_CAUSAL, method, SEQ, DIM, RA_F32);
    c.backward = method == RA_LINEAR_CHUNKED;
    tensors t;
    tensors_init(&t, &c, 9, 1);
    ((float *)t.data[which])[ROW * DIM + 3] = NAN;
    ring_job job = linear_job(&t, &c, ranks, 1);
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK);
    bool const is_key = which == 1 || which == 2;
    for (int64_t row = 0; row < SEQ; ++row) {
        bool const o_sees = which == 3 ? false : is_key ? row >= ROW : row == ROW;
        bool const dq_sees = which == 3 ? row == ROW : o_sees;
        cr_expect(o_sees ? finite_of(t.data[4], row, DIM) < DIM
                         : finite_of(t.data[4], row, DIM) == DIM,
                  "o of row %lld, NaN in %d", (long long)row, which);
        if (!c.backward)
            continue;
        cr_expect(dq_sees ? finite_of(t.data[5], row, DIM) < DIM
                          : finite_of(t.data[5], row, DIM) == DIM,
                  "dq of row %lld, NaN in %d", (long long)row, which);
        /* A key's gradients come from the queries after it: NaN in row 100 is behind later keys,
           unless it was a key and is in what those queries see. */
        if (!is_key && row > ROW) {
            cr_expect_eq(finite_of(t.data[6], row, DIM), DIM, "dk of %lld", (long long)row);
            cr_expect_eq(finite_of(t.data[7], row, DIM), DIM, "dv of %lld", (long long)row);
        } else {
            cr_expect_lt(finite_of(t.data[6], row, DIM), DIM, "dk of %lld", (long long)row);
        }
    }
    tensors_fini(&t);
}

Test(linear, nan_touches_only_rows_that_see_it)
{
    for (int which = 0; which < 4; ++which) {
        check_nan(which, RA_LINEAR_CHUNKED, 1);
        check_nan(which, RA_LINEAR_CHUNKED, 3);
    }
    for (int which = 0; which < 3; ++which) {
        check_nan(which, RA_LINEAR_RECURRENT, 2);
        check_nan(which, RA_LINEAR_CUMSUM, 2);
    }
}

/* ---- what is promised of runs ---------------------------------------------------------------- */

Test(linear, repeats_agree_bit_for_bit)
{
    ra_ring_config c = linear_config(RA_LINEAR_CAUSAL, RA_LINEAR_CHUNKED, 3000, 24, RA_F32);
    c.backward = true;
    tensors t, again;
    tensors_init(&t, &c, 3, 1);
    tensors_init(&again, &c, 3, 1);
    ring_job first = linear_job(&t, &c, 3, 2), second = linear_job(&again, &c, 3, 2);
    ring_job_run(&first);
    ring_job_run(&second);
    cr_assert(first.status == RA_OK && second.status == RA_OK);
    expect_same(&t, &again, c.dtype);
    tensors_fini(&t);
    tensors_fini(&again);
}

/* Closed forms of linear.h, as bytes that ranks send and hold. */
Test(linear, only_states_travel)
{
    enum { SEQ = 512, DIM = 16, RANKS = 4, STATE = 4 * DIM * (DIM + 1) };
    ra_ring_config c = linear_config(RA_LINEAR_CAUSAL, RA_LINEAR_CHUNKED, SEQ, DIM, RA_F32);
    tensors t;
    tensors_init(&t, &c, 1, 1);
    ring_job job = linear_job(&t, &c, RANKS, 1);
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK);
    cr_expect_eq(job.sent_bytes, (RANKS - 1) * STATE);
    cr_expect_eq(job.info.schedule, RA_SCHEDULE_SCAN);
    cr_expect_eq(job.info.layout, RA_LAYOUT_CONTIGUOUS);
    cr_expect_eq(job.info.live_pairs, 0);
    job.config.backward = true;
    ring_job_run(&job);
    cr_expect_eq(job.sent_bytes, 2 * (RANKS - 1) * STATE, "the states, and G back");
    job.config.linear = RA_LINEAR_BIDIRECTIONAL;
    ring_job_run(&job);
    cr_expect_eq(job.sent_bytes, 4 * (RANKS - 1) * STATE, "both up and down");
    tensors_fini(&t);
}

#ifndef RA_RING_JOBS_CUDA /* whose pool has the tensors, too */
static int64_t peak_of(ra_linear_method method, int64_t seq)
{
    ra_ring_config const c = linear_config(RA_LINEAR_CAUSAL, method, seq, 32, RA_F32);
    tensors t;
    tensors_init(&t, &c, 1, 1);
    ring_job job = linear_job(&t, &c, 1, 1);
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK);
    tensors_fini(&t);
    return job.peak_bytes;
}

Test(linear, only_cumsum_grows_with_the_length)
{
    cr_expect_eq(peak_of(RA_LINEAR_CHUNKED, 128), peak_of(RA_LINEAR_CHUNKED, 2048));
    cr_expect_eq(peak_of(RA_LINEAR_RECURRENT, 128), peak_of(RA_LINEAR_RECURRENT, 2048));
    int64_t const grown = peak_of(RA_LINEAR_CUMSUM, 2048) - peak_of(RA_LINEAR_CUMSUM, 1024);
    cr_expect_eq(grown, INT64_C(1024) * 4 * 32 * 33);
}
#endif

Test(linear, refuses_what_does_not_go_with_it)
{
    ra_ring_config const good = linear_config(RA_LINEAR_CAUSAL, RA_LINEAR_CHUNKED, 32, 8, RA_F32);
    enum { CASES = 9 };
    ra_ring_config bad[CASES];
    captured_log said;
    tensors t;
    for (int i = 0; i < CASES; ++i)
        bad[i] = good;
    bad[0].layout = RA_LAYOUT_STRIPED;
    bad[1].schedule = RA_SCHEDULE_RING;
    bad[2].scale = 0.5f;
    bad[3].backward = true;
    bad[3].linear_method = RA_LINEAR_CUMSUM;
    bad[4].linear = (ra_linear_kind)7;
    bad[5].linear_method = (ra_linear_method)7;
    bad[6].rounds = 2;
    bad[7].dim = 64; /* tensors can be counted, states of 65 columns cannot */
    bad[7].batch = INT64_MAX / 64 / good.seq / good.heads / 64;
    bad[8].linear = RA_LINEAR_NONE; /* of which the method is no part, but none of its kind */
    bad[8].linear_method = (ra_linear_method)7;
    tensors_init(&t, &good, 1, 1);
    for (int i = 0; i < CASES; ++i) {
        ring_job job = linear_job(&t, &bad[i], 1, 1);
        captured_log_begin(&said);
        ring_job_run(&job);
        cr_expect_eq(job.status, RA_ERR_INVALID, "case %d", i);
        cr_expect_eq(said.errors, 1, "case %d", i);
    }
    tensors_fini(&t);
}

/* Work goes by rows: 1,001 over four ranks are 251 on the last, and 250.25 in the mean. */
Test(linear, is_as_uneven_as_its_rows_are)
{
    ra_ring_config const c = linear_config(RA_LINEAR_CAUSAL, RA_LINEAR_CHUNKED, 1001, 8, RA_F32);
    tensors t;
    tensors_init(&t, &c, 1, 1);
    ring_job job = linear_job(&t, &c, 4, 1);
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK);
    cr_expect_float_eq(job.info.imbalance, 251 / 250.25, 1e-12, "%g", job.info.imbalance);
    tensors_fini(&t);
}

Test(linear, takes_more_groups_where_memory_is_short)
{
    ra_ring_config c = linear_config(RA_LINEAR_CAUSAL, RA_LINEAR_CUMSUM, 256, 16, RA_F32);
    c.heads = c.kv_heads = 4;
    c.head_groups = 1;
    captured_log said;
    tensors t;
    tensors_init(&t, &c, 1, 1);
    captured_log_begin(&said);
    ring_job job = linear_job(&t, &c, 2, 1);
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK);
    job.limit_bytes = job.peak_bytes;
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK, "succeeds at exactly its peak");
    job.limit_bytes -= 1;
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_ERR_NO_MEMORY);
    cr_assert_eq(job.leaked_bytes, 0);
    job.config.head_groups = 0;
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK, "auto takes more groups instead");
    cr_assert_eq(job.info.head_groups, 2);
    tensors_fini(&t);
}
