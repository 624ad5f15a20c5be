/* The figures of `bench`, each computed anew from those that docs/reports.md makes it of. */
#include "tool/bench_runner.h"

#include <math.h>
#include <string.h>

TestSuite(bench_figures, .init = command_folder_make, .fini = command_folder_remove,
          .timeout = 300);

/* The first variant has no room at 512 tokens: then the others have nothing to compare with. */
static const char job[] = "shape: {heads: 2, head_dim: 16, dtype: f32}\n"
                          "job: {repeat: 3, warmup: 0, backward: true}\n"
                          "sweep: {shape.seq: [64, 512, 96]}\n"
                          "variants:\n"
                          "  standard: {attention.kind: standard, memory.limit: 4MiB}\n"
                          "  causal: {pattern.causal: true}\n"
                          "  linear: {attention.kind: linear, shape.kv_heads: 1}\n";

/* Reports have nine digits. */
static void expect_near(double found, double wanted, const char *what)
{
    cr_expect(fabs(found - wanted) <= 1e-6 * fabs(wanted), "%s: %.9g, not %.9g", what, found,
              wanted);
}

static double figure(const json_t *point, const char *kind, const char *pass)
{
    char name[64];
    snprintf(name, sizeof(name), "%s_%s", kind, pass);
    return real(point, name);
}

static double time_of(const json_t *point, const char *pass, const char *which)
{
    char name[64];
    snprintf(name, sizeof(name), "%s_ms", pass);
    return real(member(point, name), which);
}

/* Of two heads of 16 elements. */
static double flop_of(const json_t *point, long long seq, bool backward)
{
    bool const linear = strcmp(text(point, "variant"), "linear") == 0;
    bool const causal = strcmp(text(point, "variant"), "causal") == 0;
    double const pairs = 2.0 * (double)(causal ? seq * (seq + 1) / 2 : seq * seq);
    if (linear)
        return (backward ? 2 : 1) * 2.0 * 16 * 16 * (double)seq * (2 + 1);
    expect_near(real(point, "live_pairs"), pairs, "live_pairs");
    return (backward ? 10 : 4) * 16 * pairs;
}

static void check_pass(const json_t *point, const json_t *first, long long seq, bool backward)
{
    const char *pass = backward ? "backward" : "forward";
    double const median = time_of(point, pass, "median"), rate = figure(point, "tflops", pass);
    double const apart = (time_of(point, pass, "max") - time_of(point, pass, "min")) / median;
    char spread[32];
    snprintf(spread, sizeof(spread), "%s_spread", pass);
    expect_near(rate, flop_of(point, seq, backward) / (median * 1e9), "tflops");
    expect_near(figure(point, "share", pass), rate / real(point, "limit_tflops"), "share");
    /* Of equal times little is left but their last digits. */
    cr_expect_float_eq(real(point, spread), apart, 1e-7 + 1e-6 * apart, "%s", spread);
    if (first == NULL) {
        cr_expect_null(json_object_get(point, "time_ratio_forward"));
        cr_expect_null(json_object_get(point, "rate_ratio_backward"));
        return;
    }
    expect_near(figure(point, "time_ratio", pass), median / time_of(first, pass, "median"),
                "time_ratio");
    expect_near(figure(point, "rate_ratio", pass), rate / figure(first, "tflops", pass),
                "rate_ratio");
}

Test(bench_figures, follow_from_times_and_work)
{
    if (!command_has_openblas())
        cr_skip_test("OpenBLAS is not installed");
    write_config(job);
    json_t *root = bench(0, "--config job.yaml", 0), *points = member(root, "points");
    cr_assert_eq(json_array_size(points), 9);
    for (size_t i = 0; i < 9; i++) {
        static const long long seqs[] = {64, 512, 96};
        const json_t *point = json_array_get(points, i);
        const json_t *first = i / 3 == 1 ? NULL : json_array_get(points, i / 3 * 3);
        cr_assert_str_eq(text(point, "status"), i == 3 ? "oom" : "ok");
        for (int backward = 0; backward < 2 && i != 3; backward++)
            check_pass(point, first, seqs[i / 3], backward);
    }
    json_decref(root);
}

/* In the point's passes the limits become old, which are told to be 0.1, 0.2, and so on. */
Test(bench_figures, a_limit_is_the_mean_of_those_before_and_after_the_point)
{
    command_shell(&result, "RA_STANDIN_LIMITS_GROW=1 \"$RINGATTN\" bench --json --quiet "
                           "--set shape.seq=32 --set shape.dtype=f32 --set job.repeat=1");
    cr_assert_eq(result.code, 0, "%s", result.err);
    json_t *root = parse_json(result.out), *limits = member(root, "limits");
    cr_assert_eq(json_array_size(limits), 3); /* before, after, and at the end */
    expect_near(real(json_array_get(limits, 0), "sgemm_tflops"), 0.1, "before");
    expect_near(real(json_array_get(limits, 1), "sgemm_tflops"), 0.2, "after");
    expect_near(real(first_point(root), "limit_tflops"), 0.15, "limit_tflops");
    cr_expect_str_eq(text(first_point(root), "limit"), "sgemm");
    json_decref(root);
}
