/* The command `ablate` as users meet it: what is switched off leaves no trace in the ledger. Times
 * decide nothing.
 */
#include "tool/command_runner.h"
#include "tool/json_reader.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(ablate, .init = command_folder_make, .fini = command_folder_remove, .timeout = 300);

static command_result result;

static const char *const names[] = {"base",      "ring",    "no_pool",    "no_cache",  "no_buffers",
                                    "no_groups", "all_off", "base_dense", "ring_dense"};
enum { SETS = sizeof(names) / sizeof(names[0]) };

static json_t *ablate_ending(int ranks, const char *arguments, int code)
{
    static const char yaml[] = "shape: {seq: 700, heads: 2, head_dim: 16, dtype: f32}\n"
                               "pattern: {causal: true}\n"
                               "ring: {comm_buffers: 1, schedule: direct, head_groups: 2}\n"
                               "job: {repeat: 2, warmup: 0, backward: true, verify: true}\n";
    char line[1024];
    command_file_write("job.yaml", yaml, strlen(yaml));
    snprintf(line, sizeof(line), "ablate --quiet --json --config job.yaml %s", arguments);
    command_run(&result, ranks, line);
    cr_assert_eq(result.code, code, "%s: exit code %d\n%s", arguments, result.code, result.err);
    cr_expect_eq(command_count_lines(result.err, ""), code != 0 ? 1 : 0, "%s", result.err);
    json_t *root = parse_json(result.out);
    cr_expect_str_eq(text(root, "command"), "ablate");
    json_t *points = member(root, "points");
    cr_assert_eq(json_array_size(points), SETS);
    for (size_t i = 0; i < SETS; i++)
        cr_expect_str_eq(text(json_array_get(points, i), "variant"), names[i]);
    return root;
}

static json_t *ablate(int ranks, const char *arguments)
{
    return ablate_ending(ranks, arguments, 0);
}

static json_t *point_of(const json_t *root, const char *variant)
{
    for (size_t i = 0; i < SETS; i++) {
        if (strcmp(names[i], variant) == 0)
            return json_array_get(member(root, "points"), i);
    }
    cr_assert_fail("no set %s", variant);
    return NULL;
}

/* At no moment was there a byte of the category. */
static void expect_no_trace(const json_t *root, const char *variant, const char *category)
{
    const json_t *point = point_of(root, variant);
    cr_expect_eq(integer(member(point, "category_peak_bytes"), category), 0, "%s has %s", variant,
                 category);
}

static double medians_of(const json_t *point)
{
    return real(member(point, "forward_ms"), "median") +
           real(member(point, "backward_ms"), "median");
}

static void check_sums(const json_t *point, const json_t *reference)
{
    long long sum = 0;
    const char *name;
    json_t *bytes;
    json_object_foreach(member(point, "memory_bytes"), name, bytes)
    {
        sum += json_integer_value(bytes);
        cr_expect_leq(json_integer_value(bytes),
                      integer(member(point, "category_peak_bytes"), name), "%s", name);
        cr_expect_eq(integer(member(point, "difference_bytes"), name),
                     json_integer_value(bytes) - integer(member(reference, "memory_bytes"), name));
    }
    cr_expect_eq(sum, integer(point, "peak_bytes"));
    cr_expect_gt(integer(point, "alloc_count"), 0);
    cr_expect_gt(real(member(point, "forward_ms"), "median"), 0);
    cr_expect_gt(real(member(point, "backward_ms"), "median"), 0);
    double const ratio = medians_of(point) / medians_of(reference);
    cr_expect_float_eq(real(point, "time_ratio"), ratio, 1e-6 * ratio); /* of nine digits */
    cr_expect(json_is_object(member(point, "error")), "not verified");
}

/* A set that this build cannot have is a row that says so; all others are measured. */
static void check_points(const json_t *root, const char *reference, int ranks)
{
    for (size_t i = 0; i < SETS; i++) {
        const json_t *point = point_of(root, names[i]);
        bool const base = strncmp(names[i], "base", 4) == 0;
        cr_expect_eq(integer(point, "ranks"), ranks);
        if (base && ranks > 1) {
            cr_expect_str_eq(text(point, "status"), "config");
            cr_expect_null(strstr(text(point, "message"), "--set"), "nobody gave that");
            continue;
        }
        cr_expect_str_eq(text(point, "status"), "ok", "%s", names[i]);
        cr_expect_str_eq(text(point, "reference"), reference);
        check_sums(point, point_of(root, reference));
    }
}

/* What lists of blocks take: 16 bytes for each of them and 8 for each row and column of blocks. */
static void check_mask(const json_t *root, const char *variant, const char *reference, int blocks)
{
    const json_t *dense = member(point_of(root, variant), "memory_bytes");
    const json_t *plain = member(point_of(root, reference), "memory_bytes");
    cr_expect_geq(integer(dense, "tilemap") - integer(plain, "tilemap"),
                  16 * blocks * blocks + 16 * blocks, "%s", variant);
    expect_no_trace(root, variant, "pattern_cache");
}

static void check_traces(const json_t *root)
{
    expect_no_trace(root, "no_pool", "pool_idle");
    expect_no_trace(root, "no_cache", "pattern_cache");
    expect_no_trace(root, "no_buffers", "comm_buffer");
    expect_no_trace(root, "all_off", "pool_idle");
    expect_no_trace(root, "all_off", "pattern_cache");
    expect_no_trace(root, "all_off", "comm_buffer");
}

Test(ablate, what_is_off_leaves_no_trace)
{
    json_t *root = ablate(0, "");
    check_points(root, "base", 1);
    check_traces(root);
    expect_no_trace(root, "base", "pool_idle");
    expect_no_trace(root, "base", "pattern_cache");
    expect_no_trace(root, "base", "comm_buffer");
    expect_no_trace(root, "ring", "comm_buffer");
    const json_t *ring = member(point_of(root, "ring"), "category_peak_bytes");
    cr_expect_gt(integer(ring, "pool_idle"), 0, "what is on must leave a trace");
    cr_expect_gt(integer(ring, "pattern_cache"), 0);
    cr_expect_eq(integer(point_of(root, "base"), "peak_difference_bytes"), 0);
    check_mask(root, "base_dense", "base", 6);
    check_mask(root, "ring_dense", "ring", 6);
    json_decref(root);
}

Test(ablate, several_ranks_compare_with_the_ring)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    json_t *root = ablate(3, "");
    check_points(root, "ring", 3);
    check_traces(root);
    const json_t *ring = member(point_of(root, "ring"), "category_peak_bytes");
    cr_expect_gt(integer(ring, "comm_buffer"), 0, "what is on must leave a trace");
    cr_expect_gt(integer(ring, "pattern_cache"), 0);
    check_mask(root, "ring_dense", "ring", 2);
    json_decref(root);
    /* Keys that are read in place need no buffer at all. */
    root = ablate(2, "--set ring.schedule=shared");
    expect_no_trace(root, "ring", "comm_buffer");
    expect_no_trace(root, "no_buffers", "comm_buffer");
    json_decref(root);
}

/* All sets take the place of the file's, so that they differ in what their names say alone. */
Test(ablate, head_groups_of_the_file_are_those_of_no_set)
{
    json_t *root = ablate(0, "--set job.verify=false");
    for (size_t i = 0; i < SETS; i++)
        cr_expect_eq(integer(point_of(root, names[i]), "head_groups"), 1, "%s", names[i]);
    json_decref(root);
}

/* Sets that have buffers have one; that without them is contradicted, and says so. */
Test(ablate, set_wins_over_sets)
{
    json_t *root = ablate(0, "--set ring.comm_buffers=1");
    for (size_t i = 0; i < SETS; i++) {
        const json_t *point = point_of(root, names[i]);
        bool const without =
            strcmp(names[i], "no_buffers") == 0 || strcmp(names[i], "all_off") == 0;
        bool const base = strncmp(names[i], "base", 4) == 0;
        cr_expect_str_eq(text(point, "status"), without ? "config" : "ok", "%s", names[i]);
        if (without)
            cr_expect_not_null(strstr(text(point, "message"), "--set ring.comm_buffers=1"), "%s",
                               text(point, "message"));
        else
            cr_expect_eq(integer(member(member(point, "config"), "ring"), "comm_buffers"), !base);
    }
    json_decref(root);
}

/* Their cache is eager where nobody says otherwise, which is no contradiction. */
Test(ablate, a_lazy_cache_keeps_nothing_of_a_job)
{
    json_t *root = ablate(0, "--set memory.pattern_cache.mode=lazy");
    for (size_t i = 0; i < SETS; i++) {
        bool const without = strcmp(names[i], "no_cache") == 0 || strcmp(names[i], "all_off") == 0;
        cr_expect_str_eq(text(point_of(root, names[i]), "status"), without ? "config" : "ok");
    }
    expect_no_trace(root, "ring", "pattern_cache");
    json_decref(root);
    root = ablate(0, "--set attention.kind=linear --set pattern.causal=null "
                     "--set ring.schedule=null");
    for (size_t i = 0; i < SETS; i++) {
        bool const dense = strstr(names[i], "_dense") != NULL;
        cr_expect_str_eq(text(point_of(root, names[i]), "status"), dense ? "config" : "ok", "%s",
                         names[i]);
    }
    expect_no_trace(root, "ring", "pattern_cache");
    json_decref(root);
}

/* Repetitions end when times are steady: a count of all of them would compare times. */
Test(ablate, counts_allocations_of_one_repetition)
{
    if (!command_has_openblas())
        cr_skip_test("OpenBLAS is not installed");
    json_t *once = ablate(0, "--set attention.kind=standard --set job.repeat=1");
    json_t *often = ablate(0, "--set attention.kind=standard --set job.repeat=3");
    for (size_t i = 0; i < SETS; i++)
        cr_expect_eq(integer(point_of(once, names[i]), "alloc_count"),
                     integer(point_of(often, names[i]), "alloc_count"), "%s", names[i]);
    json_decref(once);
    json_decref(often);
}

Test(ablate, out_of_memory_is_a_row_and_the_exit_code_where_nothing_else_is)
{
    json_t *root = ablate_ending(0, "--set memory.limit=1K", 4);
    cr_expect_not_null(strstr(result.err, "nothing ran: 9 of 9 out of memory: see"), "%s",
                       result.err);
    for (size_t i = 0; i < SETS; i++) {
        cr_expect_str_eq(text(point_of(root, names[i]), "status"), "oom");
        cr_expect_not_null(strstr(text(point_of(root, names[i]), "message"), "refused"));
    }
    json_decref(root);
}

Test(ablate, what_all_sets_refuse_is_the_exit_code)
{
    json_t *root = ablate_ending(0, "--set shape.kv_heads=3", 2);
    for (size_t i = 0; i < SETS; i++)
        cr_expect_str_eq(text(point_of(root, names[i]), "status"), "config");
    cr_expect_not_null(strstr(result.err, "nothing ran: 9 of 9 refused: see"), "%s", result.err);
    json_decref(root);
}

/* Tensors fit, and buffers that a step takes do not: a row of its own, and the others go on. */
Test(ablate, buffers_refused_within_a_pass_are_a_row)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    json_t *root = ablate(3, "--set job.verify=false");
    long long const peak = integer(point_of(root, "all_off"), "peak_bytes");
    json_decref(root);
    char line[96];
    snprintf(line, sizeof(line), "--set job.verify=false --set memory.limit=%lld", peak - 1);
    root = ablate(3, line);
    const json_t *point = point_of(root, "all_off");
    cr_expect_str_eq(text(point, "status"), "oom");
    cr_expect_not_null(strstr(text(point, "message"), "workspace"), "%s", text(point, "message"));
    json_decref(root);
}

Test(ablate, that_is_killed_leaves_the_sets_it_has_run)
{
    command_kill_after(
        &result, "ablate --quiet --json=a.json --set shape.seq=6000 --set job.repeat=1", "a.json");
    json_t *root = load_json(command_folder, "a.json");
    size_t const count = json_array_size(member(root, "points"));
    cr_expect(json_is_false(member(root, "complete")));
    cr_expect(count >= 1 && count < SETS, "%zu sets", count);
    cr_expect_str_eq(text(first_point(root), "reference"), "base");
    json_decref(root);
}

Test(ablate, a_report_that_cannot_be_written_is_an_error)
{
    static const char *const outputs[] = {"--json=/dev/full", "--json >/dev/full", ">/dev/full"};
    for (size_t i = 0; i < sizeof(outputs) / sizeof(outputs[0]); i++) {
        char line[256];
        snprintf(line, sizeof(line),
                 "exec \"$RINGATTN\" ablate --quiet --set shape.seq=64 --set job.repeat=1 %s",
                 outputs[i]);
        command_shell(&result, line);
        cr_expect_eq(result.code, 3, "%s: %d\n%s", outputs[i], result.code, result.err);
        cr_expect_eq(command_count_lines(result.err, "ringattn: error"), 1, "%s", result.err);
    }
}

Test(ablate, the_table_has_a_column_per_set_and_a_row_per_category)
{
    command_run(&result, 0,
                "ablate --quiet --backward --set shape.seq=300 --set shape.heads=1 "
                "--set job.repeat=1");
    cr_assert_eq(result.code, 0, "%s", result.err);
    for (size_t i = 0; i < SETS; i++)
        cr_expect_not_null(strstr(result.out, names[i]));
    static const char *const rows[] = {"qkv ",       "output ",     "grads ",       "peak ",
                                       "less base ", "forward ms ", "backward ms ", "time / base ",
                                       "spread ",    "allocations "};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        cr_expect_eq(command_count_lines(result.out, rows[i]), 1, "%s\n%s", rows[i], result.out);
}

Test(ablate, what_it_cannot_take_is_said_before_it_starts)
{
    command_run(&result, 0, "ablate --json=/nonexistent/r.json");
    cr_expect_eq(result.code, 3, "%s", result.err);
    command_run(&result, 0, "ablate --set job.output=o.safetensors");
    cr_expect_eq(result.code, 2, "%s", result.err);
    cr_expect_eq(command_count_lines(result.err, "ringattn: error"), 1, "%s", result.err);
}
