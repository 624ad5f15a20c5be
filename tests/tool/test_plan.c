/* The command `plan` as users meet it: what it says is what `run` takes, to the byte. */
#include "tool/command_runner.h"
#include "tool/plan_points.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(plan, .init = command_folder_make, .fini = command_folder_remove, .timeout = 300);

static command_result result;

static const char *const jobs[] = {
    "--set shape.seq=3001 --set pattern.causal=true --backward",
    "--set shape.seq=3001 --set pattern.causal=true --set shape.dtype=f32 --set job.repeat=3",
    "--set shape.seq=2500 --set pattern.window.left=300 --set pattern.sinks=4 --set shape.batch=2",
    "--set shape.seq=4000 --set pattern.blocks.kind=dilated_sparse --set pattern.blocks.size=100 "
    "--set ring.comm_buffers=0 --backward",
    "--set shape.seq=4096 --set pattern.blocks.kind=random --set pattern.blocks.size=64 "
    "--set ring.layout=balanced --set ring.schedule=direct --backward",
    "--set shape.seq=3000 --set 'pattern.dilated.segments=[512,2048]' "
    "--set 'pattern.dilated.rates=[1,4]' --set ring.head_groups=2 --set ring.schedule=ring "
    "--set ring.comm_buffers=1",
    "--set shape.seq=2000 --set 'pattern.documents=[700,1300]' --set ring.layout=striped "
    "--set ring.schedule=direct --set ring.comm_buffers=0 --set shape.dtype=f16 --backward",
    "--set shape.seq=33 --set ring.schedule=direct",
};

#define SHAPE                                                                                      \
    "--set shape.heads=4 --set shape.kv_heads=2 --set shape.head_dim=16 --set compute.threads=1 "  \
    "--set memory.pool.mode=off --set memory.pattern_cache.mode=off "

static void compare(int ranks, const char *job)
{
    static const char *const sums[] = {"peak_bytes", "tilemap_bytes", "head_groups",
                                       "layout_chunk"};
    static const char *const figures[] = {"live_pairs", "sent_bytes", "full_ring_bytes",
                                          "imbalance"};
    static const char *const names[] = {"layout", "schedule"};
    char line[1500];
    snprintf(line, sizeof(line), "run " SHAPE "%s", job);
    json_t *run = plan_point_of(ranks, line);
    snprintf(line, sizeof(line), "plan --ranks %d " SHAPE "%s", ranks > 0 ? ranks : 1, job);
    json_t *plan = plan_point_of(0, line);
    const char *category;
    json_t *bytes;
    cr_expect(json_is_true(plan_member(plan, "exact")));
    json_object_foreach(plan_member(run, "memory_bytes"), category, bytes)
    {
        cr_expect_eq(plan_integer(plan_member(plan, "memory_bytes"), category),
                     json_integer_value(bytes), "%d ranks, %s: %s", ranks, job, category);
    }
    for (size_t i = 0; i < sizeof(sums) / sizeof(sums[0]); i++)
        cr_expect_eq(plan_integer(plan, sums[i]), plan_integer(run, sums[i]), "%s: %s", job,
                     sums[i]);
    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++)
        cr_expect_eq(json_number_value(plan_member(plan, figures[i])),
                     json_number_value(plan_member(run, figures[i])), "%s: %s", job, figures[i]);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        cr_expect_str_eq(json_string_value(plan_member(plan, names[i])),
                         json_string_value(plan_member(run, names[i])), "%s", job);
    json_decref(run);
    json_decref(plan);
}

Test(plan, says_to_the_byte_what_a_run_takes_on_one_rank)
{
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++)
        compare(0, jobs[i]);
}

Test(plan, says_to_the_byte_what_the_fullest_of_several_ranks_takes)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++)
        compare(2 + (int)i % 3, jobs[i]);
}

/* Head groups are fixed and the pool is off: then the limit is exact. */
static void limit_is_exact(int ranks, const char *job)
{
    char line[1500];
    snprintf(line, sizeof(line), "plan --ranks %d " SHAPE "%s", ranks > 0 ? ranks : 1, job);
    json_t *plan = plan_point_of(0, line);
    long long const peak = plan_integer(plan, "peak_bytes");
    json_decref(plan);
    snprintf(line, sizeof(line), "run --quiet " SHAPE "%s --set memory.limit=%lld", job, peak);
    command_run(&result, ranks, line);
    cr_expect_eq(result.code, 0, "%s: %d\n%s", line, result.code, result.err);
    snprintf(line, sizeof(line), "run --quiet " SHAPE "%s --set memory.limit=%lld", job,
             peak - peak / 100);
    command_run(&result, ranks, line);
    cr_expect_eq(result.code, 4, "%s: %d\n%s", line, result.code, result.err);
    cr_expect_not_null(strstr(result.err, "out of memory"), "%s", result.err);
}

Test(plan, gives_a_limit_that_a_run_keeps_and_one_percent_less_refuses)
{
    static const char causal[] = "--set shape.seq=3001 --set pattern.causal=true "
                                 "--set ring.head_groups=1 --backward";
    limit_is_exact(0, causal);
    limit_is_exact(0, "--set shape.seq=4000 --set pattern.blocks.kind=dilated_sparse "
                      "--set pattern.blocks.size=100 --set ring.head_groups=2");
    if (command_has_mpi()) {
        limit_is_exact(2, causal);
        limit_is_exact(3, "--set shape.seq=3000 --set pattern.window.left=500 --backward "
                          "--set ring.schedule=direct --set ring.head_groups=2");
    }
}

Test(plan, follows_a_thousand_million_tokens_on_4096_ranks)
{
    static const char *const patterns[] = {
        "--set pattern.causal=true", "--set pattern.window.left=4095 --set pattern.causal=true",
        "--set 'pattern.dilated.segments=[65536,1048576]' --set 'pattern.dilated.rates=[1,16]'",
        "--set pattern.blocks.kind=dilated_sparse --set pattern.blocks.size=256"};
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        char line[1024];
        snprintf(line, sizeof(line),
                 "plan --ranks 4096 --hardware %s/configs/hardware/h200-nvlink-ib.yaml "
                 "--set shape.seq=1000000000 --set shape.heads=8 --set shape.head_dim=128 %s",
                 RA_TEST_SOURCE, patterns[i]);
        json_t *plan = plan_point_of(0, line);
        long long const floor_bytes = plan_integer(plan, "floor_bytes");
        cr_expect(json_is_false(plan_member(plan, "exact")));
        cr_expect_eq(json_array_size(plan_member(plan, "steps")), 4096);
        cr_expect_geq(plan_integer(plan, "peak_bytes"), floor_bytes);
        cr_expect_leq(plan_integer(plan, "peak_bytes"), 8 * floor_bytes);
        cr_expect_gt(json_number_value(json_object_get(plan_member(plan, "forward_ms"), "median")),
                     0);
        if (i == 0) /* n (n + 1) / 2 pairs per head */
            cr_expect_float_eq(json_number_value(plan_member(plan, "live_pairs")), 8 * 5e17,
                               8 * 5e14);
        if (i == 1)
            cr_expect_float_eq(json_number_value(plan_member(plan, "live_pairs")), 8 * 4.096e12,
                               8 * 4.096e9);
        json_decref(plan);
    }
}

Test(plan, finds_the_longest_sequence_for_a_memory)
{
    static const char job[] = "--set pattern.causal=true --set memory.limit=8M";
    char line[512];
    snprintf(line, sizeof(line), "plan --longest " SHAPE "%s", job);
    json_t *plan = plan_point_of(0, line);
    long long const longest = plan_integer(plan, "longest_seq"), limit = 8 << 20;
    json_decref(plan);
    cr_assert_gt(longest, 1000);
    for (int more = 0; more < 2; more++) {
        snprintf(line, sizeof(line), "plan " SHAPE "%s --set shape.seq=%lld", job,
                 longest + more * (longest / 500));
        plan = plan_point_of(0, line);
        cr_expect_eq(plan_integer(plan, "peak_bytes") <= limit, more == 0, "%lld tokens", longest);
        cr_expect_str_eq(json_string_value(plan_member(plan, "status")), more == 0 ? "ok" : "oom");
        json_decref(plan);
    }
}

static void refused(const char *arguments, int code, const char *wanted)
{
    command_run(&result, 0, arguments);
    cr_expect_eq(result.code, code, "%s: exit code %d", arguments, result.code);
    cr_expect_eq(command_count_lines(result.err, "ringattn: error: "), 1, "%s: %s", arguments,
                 result.err);
    cr_expect_not_null(strstr(result.err, wanted), "%s: '%s' does not say '%s'", arguments,
                       result.err, wanted);
    cr_expect_str_eq(result.out, "");
}

Test(plan, refuses_what_is_wrong_in_one_line)
{
    static const char slip[] = "name: x\nranks: 4\nnode: {gb_per_sec: 3}\n";
    static const char range[] = "forward:\n  bf16: {efficiency: 1.5}\n";
    command_file_write("slip.yaml", slip, strlen(slip));
    command_file_write("range.yaml", range, strlen(range));
    command_file_write("list.yaml", "[1]\n", 4);
    command_file_write("empty.json", "{}\n", 3);
    refused("plan --hardware slip.yaml", 2, "slip.yaml:3:");
    refused("plan --hardware slip.yaml", 2, "did you mean 'node.gb_per_s'?");
    refused("plan --hardware range.yaml", 2, "range.yaml:2:");
    refused("plan --hardware range.yaml", 2, "forward.bf16.efficiency");
    refused("plan --hardware list.yaml", 2, "a mapping");
    refused("plan --hardware missing.yaml", 3, "missing.yaml");
    refused("plan --ranks 0", 2, "--ranks: '0' is not an integer from 1 to 4096");
    refused("plan --ranks 4x", 2, "'4x'");
    refused("plan --longest", 2, "memory.limit");
    refused("plan --calibrate empty.json", 3, "no point that was measured on one rank");
    refused("plan --calibrate slip.yaml", 3, "JSON");
    refused("plan --ranks 2 --set ring.variant=base", 2, "base runs on one rank");
    refused("plan --set ring.layout=balanced --ranks 100", 2, "balanced");
    refused("run --ranks 2", 2, "--ranks is an option of 'plan'");
}

Test(plan, learns_the_speed_of_a_machine_from_a_bench)
{
    /* Times that one nanosecond per live pair explains, and one per row. */
    static const char bench[] = "{\"points\": ["
                                "{\"ranks\": 1, \"limit_tflops\": 0.1, \"config\": {\"shape\": "
                                "{\"seq\": 1000, \"heads\": 1, "
                                "\"dtype\": \"f32\"}}, \"forward_ms\": {\"median\": 1.001}},"
                                "{\"ranks\": 1, \"limit_tflops\": 0.1, \"config\": {\"shape\": "
                                "{\"seq\": 2000, \"heads\": 1, "
                                "\"dtype\": \"f32\"}}, \"forward_ms\": {\"median\": 4.002}},"
                                "{\"ranks\": 1, \"limit_tflops\": 0.1, \"config\": {\"shape\": "
                                "{\"seq\": 4000, \"heads\": 1, "
                                "\"dtype\": \"f32\"}}, \"forward_ms\": {\"median\": 16.004}}]}\n";
    command_file_write("bench.json", bench, strlen(bench));
    json_t *plan = plan_point_of(0, "plan --calibrate bench.json --set shape.dtype=f32 "
                                    "--set shape.heads=1 --set shape.seq=3000");
    double const ms = json_number_value(json_object_get(plan_member(plan, "forward_ms"), "median"));
    cr_expect_float_eq(ms, 9.003, 0.05, "%g ms", ms);
    json_decref(plan);
    plan = plan_point_of(0, "plan --calibrate bench.json --set shape.dtype=bf16");
    cr_expect_null(json_object_get(plan, "forward_ms"), "nothing was measured of bf16");
    json_decref(plan);
}
