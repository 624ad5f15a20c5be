/* The command `bench` as users meet it: its points, their statuses, its files. Times decide
 * nothing.
 */
#include "tool/bench_runner.h"
#include "tool/config_points.h"
#include "tool/plan_points.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

TestSuite(bench, .init = command_folder_make, .fini = command_folder_remove, .timeout = 300);

static void expect_positive(const json_t *object, const char *name)
{
    json_t *value = member(object, name);
    cr_expect(json_is_number(value) && isfinite(json_number_value(value)) &&
                  json_number_value(value) > 0,
              "%s is not a positive number", name);
}

static const char mixed[] = "shape: {seq: 64, heads: 2, head_dim: 16, dtype: f32}\n"
                            "job: {repeat: 2, warmup: 0, backward: true}\n"
                            "sweep: {shape.seq: [64, 96], shape.kv_heads: [2, 3]}\n"
                            "variants:\n"
                            "  dense: {}\n"
                            "  causal: {pattern.causal: true}\n"
                            "  tiny: {memory.limit: 1K}\n";

/* The command itself, which measures the machine: for other tests limits are constants. */
static void bench_measuring(int ranks, const char *arguments)
{
    char line[512], start[64] = "";
    if (ranks > 0)
        snprintf(start, sizeof(start), "\"$MPIEXEC\" -n %d ", ranks);
    snprintf(line, sizeof(line), "exec %s'%s' bench --config job.yaml %s", start, RA_TEST_MEASURING,
             arguments);
    command_shell(&result, line);
    cr_assert_eq(result.code, 0, "%s", result.err);
}

/* Sweep-major, variants within; what cannot be done is a point, and the next one comes. */
static void check_mixed(json_t *root, int ranks)
{
    static const char *const variants[] = {"dense", "causal", "tiny"};
    json_t *points = member(root, "points");
    cr_assert_eq(json_array_size(points), 12);
    for (size_t i = 0; i < 12; i++) {
        json_t *point = json_array_get(points, i), *sweep = member(point, "sweep");
        long long const kv_heads = json_integer_value(member(sweep, "shape.kv_heads"));
        bool const tiny = i % 3 == 2;
        cr_expect_str_eq(text(point, "variant"), variants[i % 3]);
        cr_expect_eq(json_integer_value(member(sweep, "shape.seq")), i < 6 ? 64 : 96);
        cr_expect_eq(kv_heads, i / 3 % 2 == 0 ? 2 : 3);
        cr_expect_eq(json_integer_value(member(point, "ranks")), ranks);
        cr_expect(json_is_object(member(point, "config")));
        if (kv_heads == 3 || tiny) {
            cr_expect_str_eq(text(point, "status"), kv_heads == 3 ? "config" : "oom");
            cr_expect_not_null(
                strstr(text(point, "message"), kv_heads == 3 ? "multiple of shape.kv" : "limit"));
            continue;
        }
        cr_expect_str_eq(text(point, "status"), "ok");
        cr_expect_eq(json_integer_value(member(point, "repetitions")), 2);
        expect_positive(member(point, "forward_ms"), "median");
        expect_positive(member(point, "backward_ms"), "median");
        expect_positive(point, "limit_tflops");
        expect_positive(point, "share_forward");
        expect_positive(point, "share_backward");
        expect_positive(point, "time_ratio_forward");
        expect_positive(point, "rate_ratio_backward");
    }
}

Test(bench, ranks_go_on_together_after_a_point_that_fails)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    write_config(mixed);
    bench_measuring(3, "--json --quiet");
    json_t *root = parse_json(result.out);
    check_mixed(root, 3);
    json_decref(root);
}

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

/* Before and after the points, in the time that the command took. Each takes 0.1 s at least. */
static void check_limits(const json_t *root, double took_ms)
{
    json_t *limits = member(root, "limits");
    double least_ms = 0;
    cr_expect_geq(json_array_size(limits), 2);
    for (size_t i = 0; i < json_array_size(limits); i++) {
        json_t *entry = json_array_get(limits, i);
        expect_positive(entry, "fma_tflops");
        expect_positive(entry, "read_gb_per_s");
        expect_positive(entry, "copy_gb_per_s");
        expect_positive(entry, "threads");
        double const begin_ms = json_number_value(member(entry, "begin_ms"));
        cr_expect(begin_ms >= least_ms && begin_ms <= took_ms, "%g of %g ms", begin_ms, took_ms);
        least_ms = begin_ms + 100;
        if (json_is_string(member(root, "blas")))
            expect_positive(entry, "sgemm_tflops");
        else
            cr_expect(json_is_null(member(entry, "sgemm_tflops")));
    }
}

Test(bench, a_named_variant_is_run_alone)
{
    write_config(mixed);
    json_t *root = bench(0, "--config job.yaml --variant causal --set shape.kv_heads=1", 0);
    json_t *points = member(root, "points");
    cr_assert_eq(json_array_size(points), 2);
    for (size_t i = 0; i < 2; i++) {
        json_t *point = json_array_get(points, i);
        cr_expect_str_eq(text(point, "variant"), "causal");
        cr_expect_eq(json_object_size(member(point, "sweep")), 1);
        cr_expect_null(json_object_get(point, "time_ratio_forward"), "there is no reference");
        cr_expect(json_is_true(member(member(member(point, "config"), "pattern"), "causal")));
    }
    json_decref(root);
}

/* Number of fields of a line of comma-separated values without quotes. */
static int field_count(const char *line)
{
    int count = 1;
    bool quoted = false;
    for (; *line != '\0' && *line != '\n'; line++) {
        quoted = quoted != (*line == '"');
        count += *line == ',' && !quoted;
    }
    return count;
}

static void text_of_file(const char *name, char *data, size_t bytes)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", command_folder, name);
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file);
    data[fread(data, 1, bytes - 1, file)] = '\0';
    fclose(file);
}

/* The end of a word of the first line that begins with `row`; -1: there is no such word. */
static long end_in_row(const char *text, const char *row, const char *word)
{
    const char *line = text;
    while (line != NULL && strncmp(line, row, strlen(row)) != 0)
        line = (line = strchr(line, '\n')) != NULL ? line + 1 : NULL;
    const char *at = line != NULL ? strstr(line, word) : NULL;
    return at != NULL ? at - line + (long)strlen(word) : -1;
}

Test(bench, times_have_units_and_end_below_their_names)
{
    command_run(&result, 0, "bench --quiet --set shape.seq=16 --set job.repeat=2");
    cr_assert_eq(result.code, 0, "%s", result.err);
    long const name = end_in_row(result.out, "pass ", " min");
    cr_expect_gt(name, 0, "%s", result.out);
    cr_expect_eq(end_in_row(result.out, "forward ", " ms"), name, "%s", result.out);
    cr_expect_eq(end_in_row(result.out, "pass ", " spread"),
                 end_in_row(result.out, "forward ", "%"), "%s", result.out);
}

/* All kinds but flash multiply in float32, whatever the tensors are. */
Test(bench, limits_are_of_the_type_that_a_kind_multiplies_in)
{
    static const char *const jobs[] = {"--set shape.dtype=f32",
                                       "--set shape.dtype=bf16 --set attention.kind=linear"};
    json_t *roots[2];
    for (int i = 0; i < 2; i++) {
        char line[200];
        snprintf(line, sizeof(line), "--set shape.seq=16 --set job.repeat=1 %s", jobs[i]);
        roots[i] = bench(0, line, 0);
    }
    cr_expect_str_eq(json_string_value(member(first_point(roots[0]), "limit")),
                     json_string_value(member(first_point(roots[1]), "limit")));
    json_decref(roots[0]);
    json_decref(roots[1]);
}

Test(bench, one_repetition_has_no_spread)
{
    json_t *root = bench(0, "--set shape.seq=16 --set job.repeat=1", 0);
    cr_expect(json_is_null(member(first_point(root), "forward_spread")));
    json_decref(root);
    command_run(&result, 0, "bench --quiet --set shape.seq=16 --set job.repeat=1");
    cr_expect_eq(end_in_row(result.out, "pass ", " spread"),
                 end_in_row(result.out, "forward ", " -"), "%s", result.out);
}

/* Points that fail are rows among the others, in the table, in JSON and as values. */
Test(bench, table_json_and_csv_can_be_had_at_once)
{
    static char csv[1 << 16];
    write_config(mixed);
    double const begin_ms = now_ms();
    bench_measuring(0, "--csv=p.csv --json=p.json");
    double const took_ms = now_ms() - begin_ms;
    cr_expect_eq(command_folder_entries(), 3, "a temporary file was left");
    cr_expect_eq(command_count_lines(result.out, "limits of "), 2, "%s", result.out);
    cr_expect_eq(command_count_lines(result.out, "sgemm: "), 1);
    cr_expect_eq(command_count_lines(result.out, "forward "), 4);
    cr_expect_eq(command_count_lines(result.out, "backward "), 4);
    cr_expect_eq(command_count_lines(result.out, "oom "), 2);
    cr_expect_eq(command_count_lines(result.out, "config "), 6);
    cr_expect_eq(command_count_lines(result.err, "warning: tiny, shape.seq=64"), 2, "%s",
                 result.err);
    cr_expect_eq(command_count_lines(result.err, "ringattn: error"), 0, "%s", result.err);

    json_t *root = load_json(command_folder, "p.json");
    cr_expect(json_is_true(member(root, "complete")));
    check_mixed(root, 1);
    check_limits(root, took_ms);
    json_t *first = first_point(root);
    cr_expect_eq(json_real_value(member(first, "time_ratio_forward")), 1.0, "its own reference");
    json_decref(root);

    text_of_file("p.csv", csv, sizeof(csv));
    cr_expect_eq(command_count_lines(csv, ""), 13);
    cr_expect_eq(command_count_lines(csv, "variant,status,shape.seq,shape.kv_heads,"), 1);
    cr_expect_eq(command_count_lines(csv, "dense,ok,64,2,"), 1, "%s", csv);
    cr_expect_eq(command_count_lines(csv, "tiny,oom,96,2,"), 1);
    cr_expect_eq(command_count_lines(csv, "causal,config,96,3,"), 1);
    int const fields = field_count(csv);
    cr_expect_gt(fields, 20);
    for (const char *line = csv; *line != '\0'; line = strchr(line, '\n') + 1)
        cr_expect_eq(field_count(line), fields, "%.*s", (int)strcspn(line, "\n"), line);
}

/* The exit code is that of the rows where none ran: 4 where memory was short for any of them. */
Test(bench, says_with_its_exit_code_that_nothing_ran)
{
    static const struct {
        const char *sets, *said;
        int code;
    } jobs[] = {{"memory.limit=1K", "nothing ran: 2 of 2 out of memory: see", 4},
                {"shape.kv_heads=3", "nothing ran: 2 of 2 refused: see", 2},
                {"memory.limit=1K --set shape.kv_heads=null",
                 "nothing ran: 1 of 2 out of memory, 1 refused: see", 4}};
    write_config("shape: {heads: 2, kv_heads: 2}\nsweep: {ring.head_groups: [1, 2]}\n");
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        char line[256];
        if (i == 2)
            write_config("shape: {heads: 2}\nsweep: {ring.head_groups: [1, 3]}\n");
        snprintf(line, sizeof(line), "bench --quiet --config job.yaml --set %s", jobs[i].sets);
        command_run(&result, 0, line);
        cr_expect_eq(result.code, jobs[i].code, "%s: %d", line, result.code);
        cr_expect_not_null(strstr(result.err, jobs[i].said), "%s", result.err);
        cr_expect_eq(command_count_lines(result.err, "ringattn: error"), 1, "%s", result.err);
    }
    if (!command_has_mpi())
        return;
    command_run(&result, 2, "bench --quiet --config job.yaml --set memory.limit=1K");
    cr_expect_eq(result.code, 4, "%d", result.code);
    cr_expect_not_null(strstr(result.err, "1 refused: see what is said of each\n"),
                       "it is said of all ranks: %s", result.err);
}

/* The number under a column's name in the first row; nothing quoted may come before it. */
static double csv_number(const char *csv, const char *name)
{
    const char *value = strchr(csv, '\n') + 1;
    size_t const length = strlen(name);
    for (const char *column = csv; strncmp(column, name, length) != 0 || column[length] != ',';) {
        column = strchr(column, ',');
        value = strchr(value, ',');
        cr_assert(column != NULL && value != NULL, "no column %s", name);
        column++;
        value++;
    }
    char *end = NULL;
    double const number = strtod(value, &end);
    cr_expect(end > value && *end == ',', "%s has no number", name);
    return number;
}

/*
 * Without a file's name values take the table's place. Whether a row says anything shows in its
 * spread, which is not in min, median and max of all.
 */
Test(bench, csv_alone_on_standard_output_says_how_far_apart_repetitions_were)
{
    command_run(&result, 0, "bench --quiet --backward --set shape.seq=32 --set job.repeat=3 --csv");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_eq(command_count_lines(result.out, ""), 2, "%s", result.out);
    cr_expect_eq(command_count_lines(result.out, "limits of "), 0);
    const char *const passes[] = {"forward", "backward"};
    for (int p = 0; p < 2; p++) {
        char name[32];
        const char *const ends[] = {"min_ms", "median_ms", "max_ms", "spread"};
        double values[4];
        for (int i = 0; i < 4; i++) {
            snprintf(name, sizeof(name), "%s_%s", passes[p], ends[i]);
            values[i] = csv_number(result.out, name);
        }
        cr_expect_float_eq(values[3], (values[2] - values[0]) / values[1], 1e-5 + 1e-6 * values[3],
                           "%s", result.out);
    }
}

static void check_overlap(const json_t *overlap)
{
    expect_positive(overlap, "both_ms");
    expect_positive(overlap, "compute_ms");
    expect_positive(overlap, "comm_ms");
    double const both = real(overlap, "both_ms"), compute = real(overlap, "compute_ms");
    double const comm = real(overlap, "comm_ms"), least = compute < comm ? compute : comm;
    json_t *share = member(overlap, "overlap");
    if (json_is_null(share))
        cr_expect(least < 0.011 * both || least <= 1.001 * real(overlap, "spread_ms"));
    else
        cr_expect_float_eq(json_number_value(share), (compute + comm - both) / least,
                           1e-4 * (1 + fabs(json_number_value(share))));
}

Test(bench, overlap_comes_from_three_measured_runs)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    write_config("shape: {seq: 512}\njob: {repeat: 2, backward: true}\n"
                 "sweep: {ring.schedule: [ring, direct, shared]}\n");
    json_t *root = bench(2, "--overlap --config job.yaml", 0);
    json_t *points = member(root, "points");
    cr_assert_eq(json_array_size(points), 3);
    for (size_t i = 0; i < 3; i++) {
        json_t *point = json_array_get(points, i);
        json_t *forward = member(point, "overlap_forward");
        json_t *backward = member(point, "overlap_backward");
        check_overlap(forward);
        check_overlap(backward);
        cr_expect(real(point, "waiting_ms") >= 0);
    }
    json_decref(root);
}

/* As of several ranks: that communication takes no time is measured, too. */
Test(bench, one_rank_has_nothing_to_overlap)
{
    json_t *root = bench(0, "--overlap --set shape.seq=64 --set job.repeat=9", 0);
    json_t *forward = member(first_point(root), "overlap_forward");
    expect_positive(forward, "both_ms");
    expect_positive(forward, "compute_ms");
    cr_expect(real(forward, "comm_ms") < real(forward, "both_ms")); /* most of nine did not stall */
    json_decref(root);
}

Test(bench, verification_is_part_of_a_point)
{
    json_t *root = bench(0, "--verify --backward --set shape.seq=65 --set job.repeat=1", 0);
    json_t *point = first_point(root);
    cr_expect_str_eq(text(point, "status"), "ok");
    cr_expect_eq(json_object_size(member(point, "error")), 5);
    cr_expect(json_is_null(member(point, "message")));
    json_decref(root);
}

/* Files in configs/bench/ are what the tables of docs/performance.md come from. */
Test(bench, every_example_is_a_sweep_whose_points_can_be_run)
{
    static const char *const names[] = {
        "cpu-kernels", "causal-vs-dense",  "window-vs-dense", "blocks-vs-dense", "gqa-vs-mha",
        "ranks",       "dilated-vs-dense", "calibrate",       "ring-vs-base",    "rounds"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[512];
        snprintf(path, sizeof(path), "%s/configs/bench/%s.yaml", RA_TEST_SOURCE, names[i]);
        cr_expect_geq(check_points(path, 0), 2, "%s", path);
    }
}

Test(bench, without_bounds_of_its_own_a_point_ends_by_itself)
{
    json_t *root = bench(0, "--set shape.seq=16 --set shape.heads=1", 0);
    json_t *point = first_point(root);
    long long const count = json_integer_value(member(point, "repetitions"));
    cr_expect(count >= 1 && count <= 50, "%lld", count);
    cr_expect(json_number_value(member(point, "forward_spread")) >= 0);
    json_decref(root);
}

/* Variants and values of a sweep are refused as the file itself is. */
Test(bench, no_point_writes_tensors)
{
    static const char *const kinds[] = {"variants: {plain: {}, writer: {job.output: o.st}}\n",
                                        "sweep: {job.output: [none, o.st]}\n"};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        write_config(kinds[i]);
        command_run(&result, 0, "bench --config job.yaml --set shape.seq=16 --set job.repeat=1");
        cr_expect_eq(result.code, 0, "%d\n%s", result.code, result.err);
        cr_expect_eq(command_count_lines(result.out, "forward "), 1, "%s", result.out);
        cr_expect_eq(command_count_lines(result.err, "job.output: 'bench' writes no tensors"), 1,
                     "%s", result.err);
        cr_expect_not(command_file_exists("o.st"));
    }
}

Test(bench, what_is_wrong_with_the_whole_is_one_line_and_the_end)
{
    static const struct {
        const char *arguments, *says;
        int code;
    } cases[] = {
        {"bench --config none.yaml", "none.yaml", 3},
        {"bench --config list.yaml", "sweep: shape.seq: expected a list", 2},
        {"bench --config job.yaml --variant dnse", "dense", 2},
        {"bench --set job.output=o.st", "job.output", 2},
        {"bench --csv=nowhere/p.csv", "nowhere/p.csv", 3},
        {"bench --json=nowhere/p.json", "nowhere/p.json", 3},
        {"bench --config many.yaml", "more than 10000", 2},
        {"plan --config many.yaml", "more than 10000", 2},
        {"plan --config pairs.yaml", "pairs.yaml:1:20: pattern.blocks.kind", 2},
    };
    static const char pairs[] = "pattern: {blocks: {kind: list}}\n";
    static char many[1 << 16];
    int used = snprintf(many, sizeof(many), "variants: {a: {}, b: {}}\nsweep: {job.repeat: [1");
    for (int i = 2; i <= 5001; i++)
        used += snprintf(many + used, sizeof(many) - (size_t)used, ",%d", i);
    snprintf(many + used, sizeof(many) - (size_t)used, "]}\n");
    command_file_write("many.yaml", many, strlen(many));
    command_file_write("list.yaml", "sweep: {shape.seq: 5}", 21);
    command_file_write("pairs.yaml", pairs, strlen(pairs));
    write_config(mixed);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int ranks = 0; ranks <= (command_has_mpi() && i % 3 == 0 ? 2 : 0); ranks += 2) {
            command_run(&result, ranks, cases[i].arguments);
            cr_expect_eq(result.code, cases[i].code, "%s: %d\n%s", cases[i].arguments, result.code,
                         result.err);
            cr_expect_eq(command_count_lines(result.err, "ringattn: error:"), 1, "%s:\n%s",
                         cases[i].arguments, result.err);
            cr_expect_not_null(strstr(result.err, cases[i].says), "%s", result.err);
            cr_expect_eq(result.out[0], '\0', "%s", result.out);
        }
    }
    cr_expect_eq(command_folder_entries(), 4, "something was left");
}

/* Names of an object's members, and of theirs, but for those that are explained elsewhere: keys of
   configurations, categories, and what `info` says of the machine. */
static void expect_explained(const char *page, const json_t *object, int depth)
{
    static const char *const elsewhere[] = {"config",
                                            "sweep",
                                            "memory_bytes",
                                            "machine",
                                            "limits",
                                            "phases",
                                            "error",
                                            "error_bound",
                                            "forward_ms",
                                            "overlap_forward",
                                            "backward_ms",
                                            "overlap_backward",
                                            "category_peak_bytes"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        char name[64];
        snprintf(name, sizeof(name), "`%s`", key);
        cr_expect_not_null(strstr(page, name), "docs/reports.md has no %s", name);
        for (size_t i = 0; i < sizeof(elsewhere) / sizeof(elsewhere[0]); i++)
            if (strcmp(key, elsewhere[i]) == 0)
                value = NULL;
        if (json_is_object(value) && depth < 1)
            expect_explained(page, value, depth + 1);
    }
}

static const char *page_of_reports(void)
{
    static char page[1 << 15];
    FILE *file = fopen(RA_TEST_SOURCE "/docs/reports.md", "rb");
    cr_assert_not_null(file);
    page[fread(page, 1, sizeof(page) - 1, file)] = '\0';
    fclose(file);
    return page;
}

Test(bench, the_page_of_reports_has_every_name)
{
    const char *const page = page_of_reports();
    write_config("shape: {seq: 64, heads: 2, head_dim: 16}\njob: {repeat: 2, backward: true}\n"
                 "variants: {dense: {}, causal: {pattern.causal: true}}\n");
    json_t *root = bench(0, "--config job.yaml --verify --phases", 0);
    expect_explained(page, root, 1);
    json_t *points = member(root, "points");
    cr_assert_eq(json_array_size(points), 2);
    for (size_t i = 0; i < 2; i++)
        expect_explained(page, json_array_get(points, i), 0);
    json_decref(root);
}

Test(bench, the_page_of_reports_has_every_name_of_plans)
{
    const char *const page = page_of_reports();
    json_t *const plan =
        plan_point_of(0, "plan --ranks 2 --longest --backward --set shape.seq=64 "
                         "--hardware '" RA_TEST_SOURCE "/configs/hardware/h200-nvlink-ib.yaml'");
    expect_explained(page, plan, 0);
    expect_explained(page, json_array_get(member(plan, "steps"), 0), 1);
    json_decref(plan);
}
