/* The command `probe` as users meet it: the length it finds is the longest that `run` takes. */
#include "tool/command_runner.h"
#include "tool/json_reader.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(probe, .init = command_folder_make, .fini = command_folder_remove, .timeout = 6000);

static command_result result;

static void write_config(const char *yaml)
{
    command_file_write("job.yaml", yaml, strlen(yaml));
}

/* The exit code is that of its rows: 4 where no variant has a length. */
static json_t *probe(int ranks, const char *arguments)
{
    char line[1024];
    snprintf(line, sizeof(line), "probe --quiet --json --config job.yaml %s", arguments);
    command_run(&result, ranks, line);
    json_t *root = parse_json(result.out), *point;
    cr_expect_str_eq(text(root, "command"), "probe");
    size_t i;
    bool any = false;
    json_array_foreach(member(root, "points"), i, point)
    {
        any = any || strcmp(text(point, "status"), "ok") == 0;
    }
    cr_assert_eq(result.code, any ? 0 : 4, "%s: exit code %d\n%s", arguments, result.code,
                 result.err);
    cr_expect_eq(command_count_lines(result.err, ""), any ? 0 : 1, "%s", result.err);
    return root;
}

static json_t *point_of(const json_t *root, const char *variant)
{
    size_t i;
    json_t *point;
    json_array_foreach(member(root, "points"), i, point)
    {
        if (strcmp(text(point, "variant"), variant) == 0)
            return point;
    }
    cr_assert_fail("no point %s", variant);
    return NULL;
}

static int run_at(int ranks, long long tokens, const char *arguments)
{
    char line[512];
    snprintf(line, sizeof(line), "run --quiet --config job.yaml --set shape.seq=%lld %s", tokens,
             arguments);
    command_run(&result, ranks, line);
    return result.code;
}

/* The length that was found runs; the next that the search tells apart does not. */
static void check_edge(int ranks, const json_t *point, const char *arguments)
{
    long long const tokens = integer(point, "tokens"), refused = integer(point, "refused_tokens");
    long long const gap = tokens / 256 > 1 ? tokens / 256 : 1;
    cr_expect_str_eq(text(point, "status"), "ok");
    cr_expect(tokens < refused && refused <= tokens + gap, "%lld and %lld", tokens, refused);
    cr_expect_not_null(strstr(text(point, "held_back"), "the memory limit refused"));
    cr_expect_not_null(strstr(text(point, "held_back"), "qkv="), "no composition");
    cr_expect_eq(run_at(ranks, tokens, arguments), 0, "%lld tokens: %s", tokens, result.err);
    cr_expect_eq(run_at(ranks, tokens + gap, arguments), 4, "%lld tokens: %s", tokens + gap,
                 result.err);
}

static void check_numbers(const json_t *point, int ranks, long long floor_bytes)
{
    double const per_token = json_number_value(member(point, "bytes_per_token"));
    double const floor_ratio = json_number_value(member(point, "floor_ratio"));
    double const tokens = (double)integer(point, "tokens");
    long long sum = 0;
    const char *name;
    json_t *bytes;
    json_object_foreach(member(point, "memory_bytes"), name, bytes)
    {
        sum += json_integer_value(bytes);
    }
    cr_expect_eq(sum, integer(point, "peak_bytes"));
    cr_expect_eq(integer(point, "floor_bytes_per_token"), floor_bytes);
    cr_expect(per_token >= (double)floor_bytes, "less than the floor");
    cr_expect_float_eq(per_token * tokens, (double)integer(point, "peak_bytes_sum"), 1);
    cr_expect_float_eq(floor_ratio,
                       tokens * (double)floor_bytes / (double)integer(point, "limit_bytes_sum"),
                       1e-9);
    cr_expect(floor_ratio > 0 && floor_ratio <= 1);
    cr_expect_eq(integer(point, "ranks"), ranks);
    cr_expect(integer(point, "tries") > 8);
    cr_expect(json_is_object(member(point, "error")), "not verified");
    /* Every try gave back what it took: what stays is the C library's, or the sanitizer's. */
    cr_expect(RA_TEST_SANITIZED || integer(point, "rss_growth_bytes") < 8 << 20, "%lld more",
              integer(point, "rss_growth_bytes"));
}

static const char windowed[] = "shape: {heads: 2, head_dim: 16, dtype: f32}\n"
                               "pattern: {causal: true, window: {left: 63}}\n"
                               "compute: {threads: 1}\n"
                               "memory: {limit: 4MiB}\n";

Test(probe, finds_the_longest_sequence_that_run_takes)
{
    write_config(windowed);
    json_t *root = probe(0, "");
    cr_assert_eq(json_array_size(member(root, "points")), 2);
    check_edge(0, point_of(root, "base"), "--set ring.variant=base");
    check_edge(0, point_of(root, "ring"), "");
    check_numbers(point_of(root, "base"), 1, 4LL * 2 * 16 * 4);
    check_numbers(point_of(root, "ring"), 1, 4LL * 2 * 16 * 4);
    json_decref(root);
}

Test(probe, counts_gradients_where_they_are_asked_for)
{
    write_config(windowed);
    json_t *root = probe(0, "--backward --set shape.dtype=bf16");
    check_edge(0, point_of(root, "ring"), "--backward --set shape.dtype=bf16");
    /* q, k, v, o, do, dq, dk, dv, and a float of lse per head. */
    check_numbers(point_of(root, "ring"), 1, 8LL * 2 * 16 * 2 + 2 * 4);
    json_decref(root);
}

Test(probe, finds_it_on_several_ranks_and_refuses_base_as_a_row)
{
    static const char *const settings[] = {"", "--set ring.schedule=direct",
                                           "--set ring.schedule=ring --backward"};
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    write_config(windowed);
    for (int i = 0; i < 3; i++) {
        json_t *root = probe(3, settings[i]);
        json_t *base = point_of(root, "base");
        if (i == 0) {
            cr_expect_str_eq(text(base, "status"), "config");
            cr_expect_not_null(strstr(text(base, "message"), "one rank, not on 3"));
            cr_expect_eq(integer(base, "tokens"), 0);
            cr_expect(json_is_null(member(base, "refused_tokens")), "no length is at fault");
            cr_expect(json_is_null(member(point_of(root, "ring"), "first_ratio")));
        }
        check_edge(3, point_of(root, "ring"), settings[i]);
        check_numbers(point_of(root, "ring"), 3, i == 2 ? 8LL * 2 * 16 * 4 + 8 : 4LL * 2 * 16 * 4);
        json_decref(root);
    }
}

Test(probe, variants_of_the_file_are_its_points_in_order)
{
    write_config("shape: {heads: 2, head_dim: 16, dtype: f32}\n"
                 "pattern: {window: {left: 31, right: 31}}\n"
                 "compute: {threads: 1}\n"
                 "memory: {limit: 4MiB}\n"
                 "variants:\n"
                 "  wide: {shape.head_dim: 32}\n"
                 "  half: {memory.limit: 2MiB}\n"
                 "  wrong: {shape.kv_heads: 3}\n"
                 "  none: {memory.limit: 1K}\n");
    json_t *root = probe(0, ""), *points = member(root, "points");
    cr_assert_eq(json_array_size(points), 4);
    check_edge(0, json_array_get(points, 0), "--variant wide");
    check_edge(0, json_array_get(points, 1), "--variant half");
    cr_expect_float_eq(json_real_value(member(json_array_get(points, 0), "first_ratio")), 1, 0);
    cr_expect_str_eq(text(json_array_get(points, 2), "status"), "config");
    cr_expect(json_is_integer(member(json_array_get(points, 1), "refused_tokens")));
    cr_expect_not_null(strstr(text(json_array_get(points, 2), "message"), "shape.kv_heads"));
    cr_expect_str_eq(text(json_array_get(points, 3), "status"), "oom");
    json_decref(root);
    root = probe(0, "--variant half");
    cr_expect_eq(json_array_size(member(root, "points")), 1);
    check_edge(0, point_of(root, "half"), "--variant half");
    json_decref(root);
}

/* Near the limit auto takes as many groups as it needs, and one less, or a group for each head
   where these have parts of the queries, would not fit. */
static void check_groups(int ranks, const char *settings)
{
    enum { HEADS = 6 };
    char line[256];
    json_t *root = probe(ranks, settings);
    const json_t *ring = point_of(root, "ring");
    long long const tokens = integer(ring, "tokens"), groups = integer(ring, "head_groups");
    check_edge(ranks, ring, settings);
    long long const less = groups > HEADS ? HEADS : groups - 1;
    cr_expect_gt(groups, 1, "%s", settings);
    snprintf(line, sizeof(line), "%s --set ring.head_groups=%lld", settings, groups);
    cr_expect_eq(run_at(ranks, tokens, line), 0, "%s: %s", line, result.err);
    snprintf(line, sizeof(line), "%s --set ring.head_groups=%lld", settings, less);
    cr_expect_eq(run_at(ranks, tokens, line), 4, "%s: %s", line, result.err);
    json_decref(root);
}

Test(probe, head_groups_are_the_fewest_that_fit_beside_the_tensors)
{
    write_config("shape: {heads: 6, head_dim: 16, dtype: bf16}\n"
                 "pattern: {causal: true, window: {left: 63}}\n"
                 "compute: {threads: 1}\n"
                 "memory: {limit: 6MiB}\n");
    check_groups(0, "--backward");
    if (!command_has_mpi())
        return;
    check_groups(2, "--backward --set ring.schedule=direct");
    check_groups(3, "--backward --set ring.schedule=shared");
    check_groups(2, "--set ring.schedule=ring --set ring.comm_buffers=1");
}

/* Lengths are repeated to any number of tokens. */
Test(probe, documents_go_on_as_they_begin)
{
    write_config("shape: {heads: 1, head_dim: 8, dtype: f32, seq: 300}\n"
                 "pattern: {causal: true, documents: [100, 0, 200]}\n"
                 "compute: {threads: 1}\n"
                 "memory: {limit: 2MiB}\n");
    json_t *root = probe(0, "");
    json_t *documents =
        json_object_get(member(member(point_of(root, "ring"), "config"), "pattern"), "documents");
    long long const tokens = integer(point_of(root, "ring"), "tokens");
    long long sum = 0;
    size_t i;
    json_t *length;
    json_array_foreach(documents, i, length)
    {
        sum += json_integer_value(length);
        if (i + 1 < json_array_size(documents))
            cr_expect_eq(json_integer_value(length), i % 2 == 0 ? 100 : 200);
    }
    cr_expect_eq(sum, tokens);
    cr_expect_gt(tokens, 1024);
    json_decref(root);
}

/* Pool and cache off: then there is nothing that plan does not know. */
static void agrees(int ranks, const char *arguments)
{
    char line[256];
    snprintf(line, sizeof(line), "--predict --variant bare %s", arguments);
    json_t *root = probe(ranks, line);
    const json_t *point = point_of(root, "bare");
    long long const tokens = integer(point, "tokens");
    long long const predicted = integer(point, "predicted_tokens");
    cr_expect(tokens <= predicted + predicted / 1024 + 1 && predicted <= tokens + tokens / 200,
              "found %lld tokens, predicted %lld", tokens, predicted);
    cr_expect_eq(integer(point, "predicted_peak_bytes"), integer(point, "peak_bytes"));
    json_decref(root);
}

Test(probe, comes_to_what_plan_says_of_it)
{
    write_config("shape: {heads: 2, head_dim: 32}\npattern: {causal: true}\n"
                 "compute: {threads: 1}\nmemory: {limit: 8MiB}\n"
                 "variants:\n  bare: {memory.pool.mode: off, "
                 "memory.pattern_cache.mode: off, ring.head_groups: 1}\n");
    agrees(0, "");
    agrees(0, "--backward --set 'pattern.documents=[300,77]'");
    agrees(0, "--backward --set job.repeat=100000"); /* tries are not repeated */
    agrees(0, "--set job.verify=true");              /* nor verified in the job's memory */
    if (command_has_mpi())
        agrees(3, "--backward");
}

Test(probe, says_what_cannot_be_predicted)
{
    write_config("shape: {heads: 1, head_dim: 8}\ncompute: {threads: 1}\n"
                 "memory: {limit: 2MiB}\nring: {variant: base}\n");
    command_run(&result, 0, "probe --quiet --config job.yaml --predict --variant none");
    cr_expect_eq(result.code, 2, "%s", result.err);
    command_run(&result, 0, "probe --quiet --config job.yaml --predict");
    cr_expect_eq(command_count_lines(result.out, "predicted: "), 2, "%s", result.out);
    command_run(&result, 0, "run --predict");
    cr_expect_not_null(strstr(result.err, "--predict is an option of 'probe'"), "%s", result.err);
}

Test(probe, the_table_names_what_held_each_variant_back)
{
    write_config(windowed);
    command_run(&result, 0, "probe --quiet --config job.yaml");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_eq(command_count_lines(result.out, "held back at"), 2, "%s", result.out);
    cr_expect_eq(command_count_lines(result.out, "qkv "), 1, "%s", result.out);
    cr_expect_eq(command_count_lines(result.out, "peak "), 1, "%s", result.out);
}

Test(probe, what_it_cannot_take_is_said_before_it_starts)
{
    write_config(windowed);
    command_run(&result, 0, "probe --config job.yaml --json=/nonexistent/r.json");
    cr_expect_eq(result.code, 3, "%s", result.err);
    command_run(&result, 0, "probe --config job.yaml --variant nobody");
    cr_expect_eq(result.code, 2, "%s", result.err);
    command_run(&result, 0, "probe --config job.yaml --set job.output=o.safetensors");
    cr_expect_eq(result.code, 2, "%s", result.err);
    cr_expect_eq(command_count_lines(result.err, "job.output"), 1, "%s", result.err);
    command_run(&result, 0, "probe --config job.yaml --input in.safetensors");
    cr_expect_eq(result.code, 2, "%s", result.err);
    cr_expect_eq(command_count_lines(result.err, "ringattn: error"), 1, "%s", result.err);
}

/* Refusals at every stage: pattern, kernel, plan, buffers, tensors. Each is an answer. */
Test(probe, any_limit_gives_a_length_or_a_reason_and_more_memory_no_less)
{
    static const char *const settings[] = {"", "--backward --set shape.dtype=bf16"};
    for (int i = 0; i < 2; i++) {
        long long before = 0;
        write_config(windowed);
        for (int kib = 1; kib <= 4096; kib *= 4) {
            char line[128];
            snprintf(line, sizeof(line), "--set memory.limit=%dK %s", kib, settings[i]);
            json_t *root = probe(0, line);
            const json_t *point = point_of(root, "ring");
            bool const found = integer(point, "tokens") > 0;
            cr_expect_str_eq(text(point, "status"), found ? "ok" : "oom");
            cr_expect_not_null(strstr(text(point, "held_back"), "the memory limit refused"));
            cr_expect_geq(integer(point, "tokens"), before);
            cr_expect(kib > 1 || !found, "1 KiB cannot be enough");
            before = integer(point, "tokens");
            json_decref(root);
        }
        cr_expect_gt(before, 1024);
    }
}

Test(probe, a_report_that_cannot_be_written_is_an_error)
{
    static const char *const outputs[] = {"--json=/dev/full", "--json >/dev/full", ">/dev/full"};
    write_config(windowed);
    for (size_t i = 0; i < sizeof(outputs) / sizeof(outputs[0]); i++) {
        char line[256];
        snprintf(line, sizeof(line),
                 "exec \"$RINGATTN\" probe --quiet --config job.yaml --set memory.limit=1M %s",
                 outputs[i]);
        command_shell(&result, line);
        cr_expect_eq(result.code, 3, "%s: %d\n%s", outputs[i], result.code, result.err);
        cr_expect_eq(command_count_lines(result.err, "ringattn: error"), 1, "%s", result.err);
    }
}

Test(probe, that_is_killed_leaves_the_variants_it_has_found)
{
    write_config("shape: {heads: 1, head_dim: 16}\ncompute: {threads: 1}\n"
                 "variants: {small: {memory.limit: 1MiB}, large: {memory.limit: 64MiB}}\n");
    command_kill_after(&result, "probe --quiet --config job.yaml --json=p.json", "p.json");
    json_t *root = load_json(command_folder, "p.json");
    cr_expect(json_is_false(member(root, "complete")));
    cr_expect_eq(json_array_size(member(root, "points")), 1);
    cr_expect_gt(integer(point_of(root, "small"), "tokens"), 0);
    json_decref(root);
}

/* A whole pass over a million tokens, of which tries compute 512: minutes on any one core. */
Test(probe, says_how_long_the_whole_run_will_take)
{
    if (RA_TEST_SANITIZED)
        cr_skip_test("tries take too long");
    command_shell(&result,
                  "\"$RINGATTN\" probe --set ring.variant=ring --set shape.heads=1 "
                  "--set shape.head_dim=16 --set compute.threads=1 --set memory.limit=256MiB "
                  "2>said >table & pid=$!\n"
                  "while kill -0 $pid && ! grep -q 'whole, about [0-9.]* [minh]*:' said; "
                  "do sleep 0.1; done\n"
                  "kill -KILL $pid; wait $pid");
    cr_expect_eq(result.code, 128 + 9, "it ended without: %d", result.code);
}

/* The machine's own refusal rather than the ledger's: memory that mmap does not give. */
Test(probe, outlives_allocations_that_the_machine_refuses)
{
    if (RA_TEST_SANITIZED)
        cr_skip_test("sanitizers reserve address space of their own");
    write_config("shape: {heads: 2, head_dim: 16, dtype: f32}\n"
                 "pattern: {causal: true, window: {left: 63}}\n"
                 "compute: {threads: 1}\n"
                 "memory: {limit: 1GiB}\n");
    command_shell(&result, "ulimit -v 300000; exec \"$RINGATTN\" probe --quiet --json --config "
                           "job.yaml");
    cr_assert_eq(result.code, 0, "%s", result.err);
    json_t *root = parse_json(result.out);
    cr_expect_str_eq(text(point_of(root, "ring"), "status"), "ok");
    cr_expect_not_null(strstr(text(point_of(root, "ring"), "held_back"), "the machine refused"),
                       "%s", text(point_of(root, "ring"), "held_back"));
    json_decref(root);
}
