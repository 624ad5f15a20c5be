/* The figures of `bench`, each computed anew from those that docs/reports.md makes it of. */
#include "tool/bench_runner.h"

#include <math.h>
#include <stdlib.h>
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

/* ---- the same in the table and as values ----------------------------------------------------- */

/* One field of a line, without quotes; the next one, or NULL. */
static const char *field_read(const char *at, char *field, size_t bytes)
{
    size_t length = 0;
    bool quoted = false;
    for (; *at != '\n' && *at != '\0' && (quoted || *at != ','); at++) {
        quoted = quoted != (*at == '"');
        if (*at != '"' && length + 1 < bytes)
            field[length++] = *at;
    }
    field[length] = '\0';
    return *at == ',' ? at + 1 : NULL;
}

/* forward_min_ms is min of forward_ms, and overlap_forward is overlap of overlap_forward. */
static const json_t *value_of(const json_t *point, const char *column)
{
    static const char *const passes[] = {"forward", "backward"}, *const kinds[] = {"min", "median",
                                                                                   "max"};
    char name[64], holder[64];
    const json_t *swept = json_object_get(member(point, "sweep"), column);
    for (int p = 0; p < 2; p++) {
        snprintf(holder, sizeof(holder), "%s_ms", passes[p]);
        for (int k = 0; k < 3; k++) {
            snprintf(name, sizeof(name), "%s_%s_ms", passes[p], kinds[k]);
            if (strcmp(column, name) == 0)
                return json_object_get(json_object_get(point, holder), kinds[k]);
        }
        snprintf(holder, sizeof(holder), "overlap_%s", passes[p]);
        snprintf(name, sizeof(name), "exposed_%s_ms", passes[p]);
        if (strcmp(column, holder) == 0)
            return json_object_get(json_object_get(point, holder), "overlap");
        if (strcmp(column, name) == 0)
            return json_object_get(json_object_get(point, holder), "exposed_comm_ms");
    }
    return swept != NULL ? swept : json_object_get(point, column);
}

static void expect_field(const char *field, const json_t *value, const char *column)
{
    if (json_is_number(value))
        expect_near(strtod(field, NULL), json_number_value(value), column);
    else
        cr_expect_str_eq(field, json_is_string(value) ? json_string_value(value) : "", "%s",
                         column);
}

/* A line of comma-separated values, by the header's. */
static void check_line(const char *header, const char *line, const json_t *point)
{
    char column[128], field[512];
    int count = 0;
    for (; header != NULL && line != NULL; count++) {
        header = field_read(header, column, sizeof(column));
        line = field_read(line, field, sizeof(field));
        expect_field(field, value_of(point, column), column);
    }
    cr_expect(header == NULL && line == NULL && count > 30, "%d columns", count);
}

/* "1.234 ms" or "1.23 s". */
static void check_time(double shown, const char *unit, double ms, const char *what)
{
    bool const seconds = strcmp(unit, "s") == 0;
    cr_expect(seconds || strcmp(unit, "ms") == 0, "%s: in %s", what, unit);
    cr_expect_float_eq(seconds ? 1e3 * shown : shown, ms, seconds ? 10 : 1e-3, "%s: %g %s, not %g",
                       what, shown, unit, ms);
}

/* A row of the table. */
static void check_row(const char *row, const json_t *point, const char *pass)
{
    char name[16], units[3][4];
    double shown[3];
    int count = 0;
    cr_assert_eq(sscanf(row, "%15s %lf %3s %lf %3s %lf %3s %d", name, &shown[0], units[0],
                        &shown[1], units[1], &shown[2], units[2], &count),
                 8, "%s", row);
    cr_expect_str_eq(name, pass);
    check_time(shown[0], units[0], time_of(point, pass, "min"), "min");
    check_time(shown[1], units[1], time_of(point, pass, "median"), "median");
    check_time(shown[2], units[2], time_of(point, pass, "max"), "max");
    cr_expect_eq(count, integer(point, "repetitions"));
}

static const char *next_line(const char *text)
{
    const char *end = strchr(text, '\n');
    cr_assert_not_null(end);
    return end + 1;
}

/* The next row that is of a point: those of an overlap are indented. */
static const char *next_row(const char *row)
{
    do {
        row = next_line(row);
    } while (*row == ' ');
    return row;
}

static void check_table(const char *table, const json_t *points)
{
    const char *row = strstr(table, "\npass ");
    cr_assert_not_null(row);
    row++;
    for (size_t i = 0; i < 9; i++) {
        const json_t *point = json_array_get(points, i);
        row = next_row(row);
        if (i == 3)
            continue; /* it has no times */
        check_row(row, point, "forward");
        row = next_row(row);
        check_row(row, point, "backward");
    }
}

Test(bench_figures, are_the_same_in_the_table_and_as_values)
{
    static char values[1 << 16];
    if (!command_has_openblas())
        cr_skip_test("OpenBLAS is not installed");
    write_config(job);
    command_run(&result, 0, "bench --quiet --overlap --config job.yaml --json=b.json --csv=b.csv");
    cr_assert_eq(result.code, 0, "%s", result.err);
    json_t *root = load_json(command_folder, "b.json"), *points = member(root, "points");
    cr_assert_eq(json_array_size(points), 9);
    check_table(result.out, points);
    command_shell(&result, "cat b.csv");
    snprintf(values, sizeof(values), "%s", result.out);
    const char *line = values;
    for (size_t i = 0; i < 9; i++) {
        line = next_line(line);
        check_line(values, line, json_array_get(points, i));
    }
    json_decref(root);
}
