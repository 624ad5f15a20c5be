/* Times that `plan` says, against times worked out by hand. */
#include "tool/command_runner.h"
#include "tool/json_reader.h"
#include "tool/plan_points.h"

#include <stdio.h>
#include <string.h>

TestSuite(plan_times, .init = command_folder_make, .fini = command_folder_remove, .timeout = 300);

static double forward_ms(const json_t *plan)
{
    return real(member(plan, "forward_ms"), "median");
}

/* Numbers with which times are easily worked out by hand. */
static void write_kinds(void)
{
    static const char kinds[] =
        "name: round numbers\nranks: 4\ncache: 2M\npeak_tflops: {f32: 1, bf16: 100}\n"
        "forward: {f32: {efficiency: 1, row_element_ns: 1}}\n"
        "standard:\n  forward: {bf16: {efficiency: 0.5, pair_ns: 1}}\n"
        "  backward: {bf16: {efficiency: 0.5}}\n"
        "linear: {forward: {f32: {efficiency: 1}}}\n"
        "chunked: {forward: {f32: {efficiency: 1}}, backward: {f32: {efficiency: 1}}}\n"
        "recurrent: {forward: {f32: {efficiency: 1, key_element_ns: 1}}}\n"
        "cumsum: {forward: {f32: {efficiency: 1, pair_ns: 1}}}\n"
        "node: {gb_per_s: 1, latency_us: 10}\n";
    command_file_write("kinds.yaml", kinds, strlen(kinds));
}

#define KIND_JOB                                                                                   \
    "plan --hardware kinds.yaml --set compute.threads=1 --set shape.seq=1000 --set shape.heads=2 " \
    "--set shape.head_dim=64 "

static void takes(const char *arguments, double forward, double backward)
{
    char line[512];
    snprintf(line, sizeof(line), KIND_JOB "%s", arguments);
    json_t *plan = plan_point_of(0, line);
    cr_expect_float_eq(forward_ms(plan), forward, 1e-6 * forward, "%s: %.9g ms", arguments,
                       forward_ms(plan));
    if (backward > 0)
        cr_expect_float_eq(real(member(plan, "backward_ms"), "median"), backward, 1e-6 * backward,
                           "%s: %.9g ms", arguments, real(member(plan, "backward_ms"), "median"));
    json_decref(plan);
}

/* With a window, a step on another rank's keys computes the first chunk of 256 rows alone. */
Test(plan_times, times_a_step_by_the_rows_that_it_computes)
{
    write_kinds();
    double const d = 64, rows = 2 * (1024 + 256), pairs = 2 * 1024 * 100;
    takes("--ranks 2 --set shape.dtype=f32 --set shape.seq=2048 --set pattern.causal=true "
          "--set pattern.window.left=99 --set ring.schedule=direct --set ring.layout=contiguous",
          1e-6 * d * rows + 4 * d * pairs / 1e9, 0);
}

/* Of 1,000 queries of 2 heads and keys of one; what materialises does much else with memory. */
Test(plan_times, takes_no_less_than_its_tensors_are_on_their_way)
{
    static const char slow[] =
        "name: slow memory\nranks: 1\nmemory_gb_per_s: 1\npeak_tflops: {f32: 1}\n"
        "forward: {f32: {efficiency: 1}}\nbackward: {f32: {efficiency: 1}}\n"
        "standard: {forward: {f32: {efficiency: 1}}}\n";
    double const forward = 2 * (2000 + 1000) * 64 * 4 / 1e6;
    command_file_write("kinds.yaml", slow, strlen(slow));
    takes("--ranks 1 --set shape.kv_heads=1 --set shape.dtype=f32 --backward", forward,
          2 * forward);
    if (command_has_openblas())
        takes("--ranks 1 --set shape.dtype=f32 --set attention.kind=standard", 4 * 64 * 2e6 / 1e9,
              0);
}

/* Every pair is there, whatever the mask; products are those of float32. */
Test(plan_times, times_materialised_attention_by_all_its_pairs)
{
    if (!command_has_openblas())
        cr_skip_test("there is no OpenBLAS");
    write_kinds();
    double const pairs = 2e6;
    takes("--ranks 1 --set attention.kind=standard --set shape.dtype=bf16 --backward "
          "--set pattern.causal=true",
          1e-6 * pairs + 4 * 64 * pairs / 0.5e9, 8 * 64 * pairs / 0.5e9);
    takes("--ranks 2 --set attention.kind=standard --set shape.dtype=bf16 "
          "--set ring.schedule=shared",
          (1e-6 * pairs + 4 * 64 * pairs / 0.5e9) / 2, 0);
}

Test(plan_times, times_linear_attention_by_its_states_and_their_way_over_ranks)
{
    write_kinds();
    double const rows = 2000, d = 64, state = d * d;
    double const hop = 0.010 + 2 * 4 * d * (d + 1) / 1e6;
    takes("--ranks 1 --set attention.kind=linear --set shape.dtype=f32", 4 * state * rows / 1e9, 0);
    takes("--ranks 4 --set attention.kind=linear --set shape.dtype=f32",
          state * rows / 1e9 + 2 * 3 * hop, 0);
    takes("--ranks 1 --set attention.kind=linear_causal --set shape.dtype=f32 --backward",
          (4 * state + 256 * d) * rows / 1e9, (12 * state + 768 * d) * rows / 1e9);
    takes("--ranks 1 --set attention.kind=linear_causal --set shape.dtype=f32 "
          "--set attention.linear_method=recurrent",
          5 * state * rows / 1e9 + 1e-6 * d * rows, 0);
    takes("--ranks 2 --set attention.kind=linear_causal --set shape.dtype=f32 "
          "--set attention.linear_method=recurrent",
          (7 * state * rows / 1e9 + 2e-6 * d * rows) / 2 + hop, 0);
}

/* Of the three hops of four ranks on two nodes, one is between the nodes, in both directions. */
Test(plan_times, counts_the_states_that_pass_between_nodes)
{
    static const char pairs[] = "name: pairs of ranks\nranks: 4\nranks_per_node: 2\n";
    command_file_write("pairs.yaml", pairs, strlen(pairs));
    json_t *plan = plan_point_of(0, "plan --hardware pairs.yaml --ranks 4 --set shape.heads=2 "
                                    "--set shape.head_dim=64 --set attention.kind=linear");
    double const hop = 2 * 2 * 4 * 64 * 65;
    cr_expect_float_eq(real(plan, "sent_bytes"), 3 * hop, 0.5);
    cr_expect_float_eq(real(plan, "sent_network_bytes"), hop, 0.5);
    json_decref(plan);
}

/* States of 1.9 MB stay in a cache of 2 MiB; those of 2.2 MB do not. */
Test(plan_times, times_stored_states_by_whether_they_stay_in_the_cache)
{
    write_kinds();
    double const state = 16 * 16, floats = 16 * 17;
    takes("--ranks 1 --set attention.kind=linear_causal --set attention.linear_method=cumsum "
          "--set shape.dtype=f32 --set shape.head_dim=16 --set shape.seq=1750",
          4 * state * 3500 / 1e9, 0);
    takes("--ranks 1 --set attention.kind=linear_causal --set attention.linear_method=cumsum "
          "--set shape.dtype=f32 --set shape.head_dim=16 --set shape.seq=2000",
          4 * state * 4000 / 1e9 + 1e-6 * floats * 8000, 0);
}

/* On each of 4 ranks 5e11 pairs of 1 ns, and 4 x 64 operations each at 0.5 TFLOP/s: 756 s. */
Test(plan_times, the_table_gives_each_time_a_unit_that_suits_it)
{
    static command_result result;
    write_kinds();
    command_run(&result, 0,
                KIND_JOB "--quiet --set attention.kind=standard --set shape.dtype=bf16 "
                         "--set shape.seq=1000000");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_not_null(
        strstr(result.out, "forward      12.60 min     12.60 min    384.030 ms      0.000 ms"),
        "%s", result.out);
}

/* A link so slow that no integer counts the rows which would hide it. */
Test(plan_times, of_rows_that_cover_a_transfer_there_are_not_less_than_none)
{
    static const char slow[] =
        "ranks: 2\npeak_tflops: {f32: 1e9}\nforward: {f32: {efficiency: 1}}\n"
        "node: {gb_per_s: 1e-20}\n";
    static command_result result;
    command_file_write("slow.yaml", slow, strlen(slow));
    command_run(&result, 0,
                "plan --hardware slow.yaml --quiet --set shape.seq=1000 --set shape.dtype=f32 "
                "--set ring.schedule=direct");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_not_null(strstr(result.out, "from 9,223,372,036,854,775,807 rows per rank on: it "
                                          "does not here"),
                       "%s", result.out);
}

#define MEASURED(shape, kind, ms)                                                                  \
    "{\"ranks\": 1, \"limit_tflops\": 1, \"config\": {\"shape\": {\"heads\": 1, " shape            \
    "}, \"attention\": {\"kind\": \"" kind "\"}, \"pattern\": {\"causal\": false}}, "              \
    "\"forward_ms\": {\"median\": " ms "}}"
#define STANDARD_POINT(seq, ms) MEASURED("\"dtype\": \"bf16\", \"seq\": " seq, "standard", ms)
#define LINEAR_POINT(seq, ms)   MEASURED("\"dtype\": \"f32\", \"seq\": " seq, "linear", ms)

/* What a bench of these kinds has measured, and no more. */
Test(plan_times, learns_the_speed_of_each_kind_for_itself)
{
    static const char bench[] =
        "{\"machine\": {\"processor\": {\"caches\": {\"l2_bytes\": 1048576, \"l3_bytes\": null}}}, "
        "\"limits\": [{\"fma_tflops\": 1}], \"points\": [" STANDARD_POINT(
            "1000",
            "3.256") ", " STANDARD_POINT("3000",
                                         "29.304") ", " LINEAR_POINT("2000",
                                                                     "1") ", " LINEAR_POINT("6000",
                                                                                            "3") "]"
                                                                                                 "}"
                                                                                                 "\n";
    if (!command_has_openblas())
        cr_skip_test("there is no OpenBLAS");
    command_file_write("kinds.json", bench, strlen(bench));
#define LEARNT "plan --calibrate kinds.json --save learnt.yaml --set shape.heads=1 --set shape.seq="
    json_t *plan = plan_point_of(0, LEARNT "2000 --set attention.kind=standard "
                                           "--set shape.dtype=bf16");
    cr_expect_float_eq(forward_ms(plan), 13.024, 0.13, "%g ms", forward_ms(plan));
    json_decref(plan);
    plan = plan_point_of(0, LEARNT "4000 --set attention.kind=linear --set shape.dtype=f32");
    cr_expect_float_eq(forward_ms(plan), 2, 0.02, "%g ms", forward_ms(plan));
    json_decref(plan);
    plan = plan_point_of(0, "plan --hardware learnt.yaml --set attention.kind=linear "
                            "--set shape.dtype=f32 --set shape.heads=1 --set shape.seq=4000");
    cr_expect_float_eq(forward_ms(plan), 2, 0.02, "%g ms", forward_ms(plan));
    json_decref(plan);
    plan = plan_point_of(0, LEARNT "2000 --set shape.dtype=bf16");
    cr_expect_null(json_object_get(plan, "forward_ms"), "nothing was measured of flash");
    json_decref(plan);
    plan = plan_point_of(0, LEARNT "2000 --set attention.kind=linear_causal --set shape.dtype=f32");
    cr_expect_null(json_object_get(plan, "forward_ms"), "nor of the causal kind");
    json_decref(plan);
}

/* What is unknown is not 0. */
Test(plan_times, of_steps_are_left_out_without_a_machine)
{
    static command_result result;
    command_run(&result, 0, "plan --ranks 4 --backward --set ring.schedule=direct");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_eq(command_count_lines(result.out, "unknown: give --hardware"), 1, "%s", result.out);
    cr_expect_eq(command_count_lines(result.out, "          -           -           -           -"),
                 4, "%s", result.out);
    cr_expect_eq(command_count_lines(result.out, " ms"), 0, "%s", result.out);
}

/* Rank 20 is followed besides, for its long document. The last rank, which is behind it, waits for
   a quarter of another's rows, and computes 3 documents and the second half of one of twice that.
 */
Test(plan_times, steps_of_the_slowest_rank_are_its_own_though_a_busier_one_is_followed)
{
    enum { RANKS = 65, SHARD = 1 << 17, PART = SHARD / 4, HEADS = 4 };
    static const char slow[] = "name: slow network\nranks: 65\nranks_per_node: 1\n"
                               "peak_tflops: {bf16: 100}\nforward: {bf16: {efficiency: 1}}\n"
                               "network: {gb_per_s: 0.001}\n";
    static char job[4096] = "pattern: {causal: true, documents: [";
    for (int i = 0; i < 4 * RANKS; i++) {
        bool const is_long = i == 4 * 20, is_across = i == 4 * (RANKS - 1) - 1;
        snprintf(job + strlen(job), sizeof(job) - strlen(job), "%s%d", i > 0 ? ", " : "",
                 is_long     ? SHARD
                 : is_across ? 2 * PART
                             : PART);
        i += is_long ? 3 : is_across;
    }
    strcat(job, "]}\n");
    command_file_write("slow.yaml", slow, strlen(slow));
    command_file_write("job.yaml", job, strlen(job));
    char line[400];
    snprintf(line, sizeof(line),
             "plan --config job.yaml --hardware slow.yaml --ranks %d --set compute.threads=1 "
             "--set shape.seq=%d --set shape.heads=%d --set shape.head_dim=16 "
             "--set ring.layout=contiguous --set ring.schedule=direct",
             RANKS, RANKS * SHARD, HEADS);
    json_t *const plan = plan_point_of(0, line);
    double const part = PART,
                 pairs = 3 * part * (part + 1) / 2 + part * part + part * (part + 1) / 2;
    double sum = 0;
    json_t *step;
    size_t i;
    json_array_foreach(member(plan, "steps"), i, step) sum += real(step, "live_pairs");
    cr_expect_eq(integer(plan, "slowest_rank"), RANKS - 1);
    cr_expect_eq(integer(plan, "ranks_followed"), 9);
    cr_expect_float_eq(sum / (HEADS * pairs), 1, 1e-6, "%.9g pairs, not %.9g", sum, HEADS * pairs);
    json_decref(plan);
}
