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

/* Two nodes of two ranks; keys and values of a shard are 64,000 bytes, gradients 128,000. */
static json_t *plan_of_nodes(const char *arguments)
{
    static const char nodes[] =
        "name: two nodes\nranks: 4\nranks_per_node: 2\nshares_memory: true\n"
        "peak_tflops: {f32: 1, bf16: 1}\n"
        "forward: {bf16: {efficiency: 1}}\nbackward: {bf16: {efficiency: 1}}\n"
        "standard: {forward: {bf16: {efficiency: 1}}}\n"
        "node: {gb_per_s: 1, latency_us: 10}\nnetwork: {gb_per_s: 0.1, latency_us: 100}\n";
    char line[600];
    command_file_write("nodes.yaml", nodes, strlen(nodes));
    snprintf(line, sizeof(line),
             "plan --hardware nodes.yaml --set compute.threads=1 --set shape.seq=1000 "
             "--set shape.heads=2 --set shape.kv_heads=1 --set shape.head_dim=64 "
             "--set shape.dtype=bf16 --set ring.layout=contiguous %s",
             arguments);
    return plan_point_of(0, line);
}

typedef struct pass_times {
    double total, compute, comm, exposed;
} pass_times;

static void expect_pass(const json_t *plan, const char *name, pass_times want)
{
    const json_t *const pass = member(plan, name);
    cr_expect_float_eq(real(pass, "total_ms"), want.total, 1e-9, "%s", name);
    cr_expect_float_eq(real(pass, "compute_ms"), want.compute, 1e-9, "%s", name);
    cr_expect_float_eq(real(pass, "comm_ms"), want.comm, 1e-9, "%s", name);
    cr_expect_float_eq(real(pass, "exposed_comm_ms"), want.exposed, 1e-9, "%s", name);
}

static double const near_hop = 0.010 + 0.064, far_hop = 0.100 + 0.640;
static double const near_grads = 0.010 + 0.128, far_grads = 0.100 + 1.280;

/* Rank 0 fetches from both ranks of the other node, and then from its neighbour. */
Test(plan_times, times_what_steps_wait_for_where_they_wait)
{
    double const step = 4 * 64 * 250 * 500 / 1e9, moved = 2 * far_hop + near_hop;
    double const moved_back = moved + 2 * far_grads + near_grads;
    json_t *plan = plan_of_nodes("--ranks 4 --set ring.schedule=direct --backward");
    expect_pass(plan, "forward", (pass_times){moved + step, 4 * step, moved, moved - 3 * step});
    expect_pass(plan, "backward",
                (pass_times){moved_back, 10 * step, moved_back, moved_back - 10 * step});
    cr_expect_eq(real(plan, "sent_network_bytes"), 4 * 2 * (2 * 64000 + 128000));
    cr_expect_float_eq(real(plan, "overlap_from_rows"), 5000, 1e-6); /* in 12.8 ms */
    cr_expect_eq(integer(plan, "slowest_rank"), 0);
    json_decref(plan);
    plan = plan_of_nodes("--ranks 4 --set ring.schedule=direct --set ring.comm_buffers=1");
    expect_pass(plan, "forward", (pass_times){moved + 4 * step, 4 * step, moved, moved});
    json_decref(plan);
    plan = plan_of_nodes("--ranks 4 --set ring.schedule=shared");
    expect_pass(plan, "forward",
                (pass_times){far_hop + 2 * step, 4 * step, far_hop, far_hop - 2 * step});
    json_decref(plan);
}

/* Rank 1 fetches from its neighbour first. Of the own step's two key heads one is computed while
   those keys come, and one while the last gradients go to the other node. */
Test(plan_times, times_part_of_the_own_step_beside_the_last_gradients)
{
    double const step = 2.5 * 4 * 64 * 32 * 250 * 500 / 1e9, far_back = 0.100 + 2.560;
    double const total = step / 2 + step + step + far_back + far_back;
    double const moved = 2 * (0.100 + 1.280) + 0.010 + 0.128, moved_back = 2 * far_back + 0.266;
    json_t *const plan = plan_of_nodes("--ranks 4 --set ring.schedule=direct --backward "
                                       "--set shape.heads=64 --set shape.kv_heads=2");
    cr_expect_eq(integer(plan, "slowest_rank"), 1);
    expect_pass(plan, "backward",
                (pass_times){total, 4 * step, moved + moved_back, total - 4 * step});
    json_decref(plan);
}

/* Of ranks 0 to 3 only 0 and 2 have their neighbour behind on the other node. */
Test(plan_times, times_hops_by_where_the_rank_behind_is)
{
    double const step = 4 * 64 * 250 * 500 / 1e9;
    json_t *const plan = plan_of_nodes("--ranks 4 --set ring.schedule=ring");
    expect_pass(plan, "forward",
                (pass_times){3 * far_hop + step, 4 * step, 3 * far_hop, 3 * far_hop - 3 * step});
    cr_expect_eq(integer(plan, "slowest_rank"), 0);
    json_decref(plan);
}

/* The second of two ranks sends nothing but gradients, and gets none. */
Test(plan_times, times_gradients_that_go_one_way)
{
    double const square = 64 * 2 * 500 * 500 / 1e9, triangle = 64 * 500 * 501 / 1e9;
    double const moved = 0.010 + 0.128, moved_back = moved + 0.010 + 0.256;
    json_t *const plan = plan_of_nodes("--ranks 2 --set ring.schedule=direct --backward "
                                       "--set pattern.causal=true --set ring.comm_buffers=1");
    cr_expect_eq(integer(plan, "slowest_rank"), 1);
    double const compute = square + triangle;
    expect_pass(plan, "forward", (pass_times){4 * compute + moved, 4 * compute, moved, moved});
    expect_pass(plan, "backward",
                (pass_times){10 * compute + moved_back, 10 * compute, moved_back, moved_back});
    json_decref(plan);
}

/* Materialised attention computes all pairs, so as few rows cover a transfer as if all lived. */
Test(plan_times, of_materialised_attention_all_pairs_cover_a_transfer)
{
    if (!command_has_openblas())
        cr_skip_test("there is no OpenBLAS");
    json_t *const plan = plan_of_nodes("--ranks 4 --set ring.schedule=direct "
                                       "--set attention.kind=standard --set pattern.causal=true");
    cr_expect_float_eq(real(plan, "overlap_from_rows"), 5000, 1e-6);
    json_decref(plan);
}

/* Keys that two query heads share travel once, unless these are in two groups. */
Test(plan_times, more_rows_cover_a_transfer_where_keys_travel_for_each_group)
{
    static const double rows[] = {5000, 10000};
    for (int groups = 1; groups <= 2; groups++) {
        char line[160];
        snprintf(line, sizeof(line),
                 "--ranks 4 --set ring.schedule=direct --set ring.head_groups=%d", groups);
        json_t *const plan = plan_of_nodes(line);
        cr_expect_float_eq(real(plan, "overlap_from_rows"), rows[groups - 1], 1e-6);
        json_decref(plan);
    }
}

/* What is known of one pass alone is no time of a job that has both. */
Test(plan_times, of_a_job_are_those_of_both_passes_or_none)
{
    write_kinds();
    json_t *plan = plan_point_of(0, KIND_JOB "--set shape.dtype=f32");
    cr_expect_not_null(json_object_get(plan, "forward_ms"));
    json_decref(plan);
    plan = plan_point_of(0, KIND_JOB "--set shape.dtype=f32 --backward");
    cr_expect_null(json_object_get(plan, "forward_ms"));
    json_decref(plan);
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

/* Each of two head groups has its start and its sums, which backward makes for the first again. */
Test(plan_times, times_groups_of_linear_attention_and_what_they_do_again)
{
    static const char nodes[] =
        "name: round numbers\nranks: 4\nranks_per_node: 2\npeak_tflops: {f32: 1}\n"
        "chunked:\n  forward: {f32: {efficiency: 1, start_us: 5}}\n"
        "  backward: {f32: {efficiency: 1, start_us: 7}}\n"
        "linear: {forward: {f32: {efficiency: 1}}}\n"
        "node: {gb_per_s: 1, latency_us: 10}\nnetwork: {gb_per_s: 0.1, latency_us: 100}\n";
    double const rows = 2 * 250, d = 64, state = d * d, bytes = 4 * d * (d + 1);
    double const scans = 2 * (0.100 + bytes / 1e5 + 2 * (0.010 + bytes / 1e6));
    command_file_write("kinds.yaml", nodes, strlen(nodes));
    takes("--ranks 4 --set attention.kind=linear_causal --set shape.dtype=f32 "
          "--set ring.head_groups=2 --backward",
          2 * 0.005 + (6 * state + 256 * d) * rows / 1e9 + scans,
          2 * 0.007 + (14 * state + 768 * d) * rows / 1e9 + 2 * scans);
    double const whole = 0.010 + 2 * bytes / 1e6;
    takes("--ranks 2 --set attention.kind=linear_causal --set shape.dtype=f32 --backward",
          0.005 + (6 * state + 256 * d) * 2 * rows / 1e9 + whole,
          0.007 + (12 * state + 768 * d) * 2 * rows / 1e9 + whole);
    /* Heads of 24 are padded to 32, and the last of four ranks has a row more than the others. */
    takes("--ranks 1 --set attention.kind=linear --set shape.dtype=f32 --set shape.head_dim=24",
          4.0 * 32 * 32 * 2000 / 1e9, 0);
    json_t *const plan = plan_point_of(0, KIND_JOB "--ranks 4 --set attention.kind=linear "
                                                   "--set shape.dtype=f32 --set shape.seq=1001");
    cr_expect_eq(integer(plan, "slowest_rank"), 3);
    cr_expect_float_eq(real(member(plan, "forward"), "compute_ms"), 4 * state * 502 / 1e9, 1e-9);
    json_decref(plan);
}

/* Keys of the first two shards pass from node to node once in each pass. Gradients of the first
   begin on rank 1 and go home over both edges, as those of the third from rank 3; those of the
   second over one. */
Test(plan_times, counts_what_hops_between_nodes)
{
    json_t *plan = plan_of_nodes("--ranks 4 --set ring.schedule=ring --set pattern.causal=true "
                                 "--backward");
    cr_expect_eq(real(plan, "sent_network_bytes"), 2 * 2 * 64000 + 5 * 128000);
    json_decref(plan);
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
    if (!command_has_openblas())
        cr_skip_test("OpenBLAS is not installed");
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

/* Keys travel for each of 64 parts of the queries of every head. */
Test(plan_times, of_more_bytes_than_integers_hold_are_not_less_than_none)
{
    static const char pair[] = "ranks: 2\npeak_tflops: {f32: 1}\nforward: {f32: {efficiency: 1}}\n"
                               "node: {gb_per_s: 1}\n";
    command_file_write("pair.yaml", pair, strlen(pair));
    json_t *plan = plan_point_of(
        0, "plan --hardware pair.yaml --ranks 2 --set shape.seq=2147483647 --set shape.heads=1024 "
           "--set shape.head_dim=256 --set shape.batch=100 --set shape.dtype=f32 "
           "--set ring.schedule=direct --set ring.head_groups=65536");
    const json_t *step = json_array_get(json_object_get(plan, "steps"), 1);
    cr_expect_eq(integer(step, "fetched_bytes"), 1LL << 60);
    cr_expect_gt(real(step, "forward_comm_ms"), 1e12, "by a thousand million bytes a second");
    json_decref(plan);
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
