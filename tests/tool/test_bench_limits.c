/* The machine's own limits: loops that compute what they should, rates that are rates. */
#include "tool/limits.h"

#include "ringattn/blas.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

static ra_ledger *ledger;
static ra_pool *pool;
static ra_comm *comm;

static void pool_make(int64_t limit_bytes)
{
    cr_assert_eq(ra_ledger_create(limit_bytes, &ledger), RA_OK);
    ra_pool_config const config = {
        .mode = RA_POOL_OFF, .memory = ra_memory_host(), .ledger = ledger};
    cr_assert_eq(ra_pool_create(&config, &pool), RA_OK);
    cr_assert_eq(ra_comm_create_self(1000, &comm), RA_OK);
}

static void end(void)
{
    ra_comm_destroy(comm);
    ra_pool_destroy(pool);
    ra_ledger_destroy(ledger);
}

TestSuite(bench_limits, .fini = end, .timeout = 120);

/* Read from the environment when the library is loaded, and only then. */
Test(bench_limits, loading_openblas_leaves_its_number_of_threads_as_the_user_has_set_it)
{
    pool_make(1 << 20);
    setenv("OPENBLAS_NUM_THREADS", "3", 1);
    if (ra_blas_name() == NULL)
        cr_skip_test("OpenBLAS is not installed");
    cr_expect_str_eq(getenv("OPENBLAS_NUM_THREADS"), "3");
}

Test(bench_limits, loading_openblas_leaves_nothing_in_the_environment)
{
    pool_make(1 << 20);
    unsetenv("OPENBLAS_NUM_THREADS");
    if (ra_blas_name() == NULL)
        cr_skip_test("OpenBLAS is not installed");
    cr_expect_null(getenv("OPENBLAS_NUM_THREADS"));
}

static int64_t in_use(void)
{
    ra_ledger_snapshot snapshot;
    ra_ledger_read(ledger, &snapshot);
    return snapshot.reserved_bytes;
}

static void expect_rate(double rate, bool wanted, const char *name)
{
    cr_expect(wanted ? isfinite(rate) && rate > 0 : rate == 0, "%s: %g", name, rate);
}

Test(bench_limits, every_limit_of_this_machine_is_positive_and_finite)
{
    pool_make(INT64_MAX);
    for (int threads = 1; threads <= 2; threads++) {
        ra_limits limits = {0};
        cr_assert_eq(ra_limits_measure(comm, threads, pool, &limits), RA_OK);
        cr_expect_eq(limits.ranks, 1);
        cr_expect(limits.threads >= 1 && limits.threads <= threads);
        expect_rate(limits.fma_tflops, true, "fma");
        expect_rate(limits.dpbf16_tflops, ra_limit_dpbf16() != NULL, "dpbf16");
        expect_rate(limits.amx_tflops, ra_limit_amx() != NULL, "amx");
        expect_rate(limits.sgemm_tflops, ra_blas_name() != NULL, "sgemm");
        expect_rate(limits.read_gb_per_s, true, "read");
        expect_rate(limits.copy_gb_per_s, true, "copy");
        cr_expect_eq(in_use(), 0, "memory was kept");
    }
}

Test(bench_limits, too_little_memory_is_said_and_nothing_is_kept)
{
    ra_limits limits = {.ranks = 77};
    pool_make(1 << 20);
    ra_status const status = ra_limits_measure(comm, 1, pool, &limits);
    /* Arrays are left out where there is no room; the matrices of sgemm need it. */
    cr_expect_eq(status, ra_blas_name() != NULL ? RA_ERR_NO_MEMORY : RA_OK);
    cr_expect(status == RA_OK || limits.ranks == 77, "written in spite of failure");
    cr_expect_eq(in_use(), 0);
}

Test(bench_limits, values_of_the_loops_settle_at_one)
{
    pool_make(INT64_MAX);
    /* Each round takes a 1,024th of the way to 1; what is given back is a sum of whole chains. */
    float const settled = ra_limit_fma()->run(100000);
    cr_expect(settled > 1.5f && fabsf(settled - roundf(settled)) < 0.01f, "%g", (double)settled);
    /* Products of pairs cancel, so the chains keep their starts: 0 + 1 + ... + 15, or 4 x 30. */
    const ra_limit_loop *const pairs[] = {ra_limit_dpbf16(), ra_limit_amx()};
    for (int i = 0; i < 2; i++) {
        if (pairs[i] != NULL)
            cr_expect(fabsf(pairs[i]->run(1000) - 120) < 0.5f, "%s", pairs[i]->name);
    }
}

/* Of bf16 the fastest loop, whichever that is; what a machine lacks has rate 0. */
Test(bench_limits, the_limit_of_bf16_is_that_of_the_fastest_loop)
{
    static const struct {
        ra_limits limits;
        const char *name;
    } cases[] = {{{.fma_tflops = 3}, "fma"},
                 {{.fma_tflops = 3, .dpbf16_tflops = 2}, "fma"},
                 {{.fma_tflops = 3, .dpbf16_tflops = 5}, "dpbf16"},
                 {{.fma_tflops = 3, .dpbf16_tflops = 2, .amx_tflops = 5}, "amx"},
                 {{.fma_tflops = 3, .dpbf16_tflops = 5, .amx_tflops = 4}, "dpbf16"}};
    pool_make(INT64_MAX);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *name = "";
        double const limit = ra_limits_of_dtype(&cases[i].limits, RA_BF16, &name);
        cr_expect_str_eq(name, cases[i].name, "%zu", i);
        cr_expect_eq(limit, strcmp(name, "fma") == 0 ? 3 : 5, "%zu", i);
        cr_expect_eq(ra_limits_of_dtype(&cases[i].limits, RA_F16, &name), 3);
        cr_expect_str_eq(name, "fma", "%zu", i);
    }
}

Test(bench_limits, sgemm_multiplies)
{
    enum { N = 37 };
    static float a[N * N], b[N * N], c[N * N];
    pool_make(INT64_MAX);
    if (ra_blas_name() == NULL)
        cr_skip_test("OpenBLAS is not installed");
    for (int i = 0; i < N * N; i++) {
        a[i] = (float)(i % 7 - 3);
        b[i] = (float)(i % 5 - 2);
    }
    ra_blas_multiply_square(1, N, a, b, c);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int k = 0; k < N; k++)
                sum += a[i * N + k] * b[k * N + j];
            cr_assert_float_eq(c[i * N + j], sum, 1e-3f);
        }
    }
}

Test(bench_limits, json_says_null_where_nothing_was_measured)
{
    pool_make(INT64_MAX);
    ra_limits const limits = {.ranks = 2, .threads = 3, .fma_tflops = 0.5};
    json_t *json = ra_limits_to_json(&limits);
    cr_assert_not_null(json);
    cr_expect_eq(json_integer_value(json_object_get(json, "ranks")), 2);
    cr_expect_eq(json_integer_value(json_object_get(json, "threads")), 3);
    cr_expect_eq(json_real_value(json_object_get(json, "fma_tflops")), 0.5);
    cr_expect(json_is_null(json_object_get(json, "sgemm_tflops")));
    json_decref(json);
}

/* What data sheets say, at the clocks that they say it of. */
Test(bench_limits, gpus_have_the_rates_of_their_data_sheets)
{
    static const struct {
        ra_device device;
        ra_dtype dtype;
        double tflops; /* NAN: not known */
        const char *name;
    } cases[] = {
        {{.major = 8, .multiprocessors = 108, .clock_khz = 1410000}, RA_BF16, 312, "tensor"},
        {{.major = 8, .multiprocessors = 108, .clock_khz = 1410000}, RA_F32, 19.5, "fma"},
        {{.major = 9, .multiprocessors = 132, .clock_khz = 1830000}, RA_F16, 989.4, "tensor"},
        {{.major = 9, .multiprocessors = 132, .clock_khz = 1980000}, RA_F32, 66.9, "fma"},
        {{.major = 8, .minor = 9, .multiprocessors = 128, .clock_khz = 2520000},
         RA_F32,
         82.6,
         "fma"},
        {{.major = 8, .minor = 9, .multiprocessors = 128, .clock_khz = 2520000},
         RA_BF16,
         NAN,
         "tensor"},
        {{.major = 11, .multiprocessors = 100, .clock_khz = 2000000}, RA_F32, NAN, "fma"},
        {{.major = 9, .multiprocessors = 132}, RA_BF16, NAN, "tensor"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *name = "";
        double const tflops = ra_limits_of_gpu(&cases[i].device, cases[i].dtype, &name);
        cr_expect_str_eq(name, cases[i].name, "case %zu", i);
        cr_expect_eq(isnan(tflops) != 0, isnan(cases[i].tflops) != 0, "case %zu: %g", i, tflops);
        if (!isnan(cases[i].tflops))
            cr_expect_float_eq(tflops, cases[i].tflops, 2e-3 * cases[i].tflops, "case %zu: %g", i,
                               tflops);
    }
}
