/* The command `plan` as users meet it: what it says is what `run` takes, to the byte. */
#include "tool/command_runner.h"
#include "tool/json_reader.h"
#include "tool/plan_points.h"
#include "tool/safetensors.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

TestSuite(plan, .init = command_folder_make, .fini = command_folder_remove, .timeout = 6000);
static command_result result;

static const char *const jobs[] = {
    "--set shape.seq=1501 --set pattern.causal=true --backward",
    "--set shape.seq=1501 --set pattern.causal=true --set shape.dtype=f32 --set job.repeat=3",
    "--set shape.seq=1300 --set pattern.window.left=300 --set pattern.sinks=4 --set shape.batch=2",
    "--set shape.seq=2000 --set pattern.blocks.kind=dilated_sparse --set pattern.blocks.size=100 "
    "--set ring.comm_buffers=0 --backward",
    "--set shape.seq=2048 --set pattern.blocks.kind=random --set pattern.blocks.size=64 "
    "--set ring.layout=balanced --set ring.schedule=direct --backward",
    "--set shape.seq=1500 --set 'pattern.dilated.segments=[256,1024]' "
    "--set 'pattern.dilated.rates=[1,4]' --set ring.head_groups=2 --set ring.schedule=ring "
    "--set ring.comm_buffers=1",
    "--set shape.seq=2000 --set 'pattern.documents=[700,1300]' --set ring.layout=striped "
    "--set ring.schedule=direct --set ring.comm_buffers=0 --set shape.dtype=f16 --backward",
    "--set shape.seq=33 --set ring.schedule=direct",
    "--set shape.seq=300 --set job.repeat=2 --backward --verify",
    "--set shape.seq=900 --set attention.kind=linear --verify",
    "--set shape.seq=901 --set attention.kind=linear_causal --backward",
    "--set shape.seq=2500 --set attention.mask=dense_blocks --set pattern.causal=true --backward",
    "--set shape.seq=1500 --set attention.mask=dense_blocks --set pattern.window.left=400 "
    "--set 'pattern.dilated.segments=[256,1024]' --set 'pattern.dilated.rates=[1,4]'",
    "--set shape.seq=2000 --set attention.mask=dense_blocks --set pattern.blocks.kind=local_window "
    "--set pattern.blocks.size=100 --set ring.layout=striped --set ring.schedule=direct",
    "--set shape.seq=1 --set memory.pattern_cache.mode=lazy --backward --verify",
    /* Groups of one head and of two: one head has more states for two threads. */
    "--set shape.seq=1700 --set attention.kind=linear --set shape.kv_heads=3 --set shape.heads=3 "
    "--set ring.head_groups=2 --set compute.threads=2 --backward",
    "--set shape.seq=400 --set attention.kind=linear_causal --set shape.kv_heads=3 "
    "--set shape.heads=6 --set ring.head_groups=2 --set attention.linear_method=cumsum",
};

#define SHAPE                                                                                      \
    "--set shape.heads=4 --set shape.kv_heads=2 --set shape.head_dim=16 --set compute.threads=1 "  \
    "--set memory.pool.mode=off --set memory.pattern_cache.mode=off "

static void compare(int ranks, const char *job)
{
    static const char *const sums[] = {"peak_bytes", "floor_bytes", "tilemap_bytes", "head_groups",
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
    cr_expect(json_is_true(member(plan, "exact")));
    json_object_foreach(member(run, "memory_bytes"), category, bytes)
    {
        cr_expect_eq(integer(member(plan, "memory_bytes"), category), json_integer_value(bytes),
                     "%d ranks, %s: %s", ranks, job, category);
    }
    for (size_t i = 0; i < sizeof(sums) / sizeof(sums[0]); i++)
        cr_expect_eq(integer(plan, sums[i]), integer(run, sums[i]), "%s: %s", job, sums[i]);
    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++)
        cr_expect_eq(json_number_value(member(plan, figures[i])),
                     json_number_value(member(run, figures[i])), "%s: %s", job, figures[i]);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        cr_expect_str_eq(json_string_value(member(plan, names[i])),
                         json_string_value(member(run, names[i])), "%s", job);
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

enum { INPUT_SEQ = 16, INPUT_DIM = 256 };

static void write_input(int seq, int heads)
{
    static const char *const names[] = {"q", "k", "v", "do"};
    char path[128];
    ra_tensor_info infos[4];
    ra_tensor_writer *writer;
    snprintf(path, sizeof(path), "%s/in.st", command_folder);
    for (int i = 0; i < 4; i++) {
        infos[i] = (ra_tensor_info){.dtype = "F32", .dims = 4, .shape = {1, seq, heads, INPUT_DIM}};
        strcpy(infos[i].name, names[i]);
    }
    cr_assert_eq(ra_tensor_writer_open(path, "test", true, infos, 4, &writer), RA_OK);
    cr_assert_eq(ra_tensor_writer_rename(writer), RA_OK);
    ra_tensor_writer_destroy(writer);
}

/* Striped rows of 8 KiB are read through a block; not those of 32 KiB, nor a rank's only row. */
Test(plan, knows_what_reading_an_input_takes)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    static const int cases[][2] = {{INPUT_SEQ, 8}, {INPUT_SEQ, 32}, {2, 8}}; /* tokens, heads */
    for (int i = 0; i < 3; i++) {
        char job[320];
        write_input(cases[i][0], cases[i][1]);
        snprintf(job, sizeof(job),
                 "--input in.st --set ring.layout=striped --set shape.seq=%d --set shape.heads=%d "
                 "--set shape.kv_heads=%d --set shape.head_dim=%d",
                 cases[i][0], cases[i][1], cases[i][1], INPUT_DIM);
        compare(2, job);
        /* The list of what `standard` keeps comes with the passes, after the peak of reading. */
        strcat(job, " --backward --set attention.kind=standard");
        if (command_has_openblas())
            compare(2, job);
    }
}

/* Pairs of blocks of 8 TiB, of which none is on the disk. */
Test(plan, refuses_pairs_of_blocks_that_this_machine_has_no_memory_for)
{
    static const char text[] =
        "{\"q\":{\"dtype\":\"F32\",\"shape\":[1,2,1,1],\"data_offsets\":[0,8]},"
        "\"k\":{\"dtype\":\"F32\",\"shape\":[1,2,1,1],\"data_offsets\":[8,16]},"
        "\"v\":{\"dtype\":\"F32\",\"shape\":[1,2,1,1],\"data_offsets\":[16,24]},\"blocks\":"
        "{\"dtype\":\"I32\",\"shape\":[1099511627776,2],\"data_offsets\":[24,8796093022232]}}";
    unsigned char head[8 + sizeof(text) - 1] = {(sizeof(text) - 1) & 255, (sizeof(text) - 1) >> 8};
    memcpy(head + 8, text, sizeof(text) - 1);
    command_file_write("in.st", head, sizeof(head));
    char path[128];
    snprintf(path, sizeof(path), "%s/in.st", command_folder);
    if (truncate(path, (off_t)sizeof(head) + 8796093022232) != 0)
        cr_skip_test("this file system has no files of 8 TiB");
    command_refused(&result,
                    "plan --input in.st --set pattern.blocks.kind=list"
                    " --set pattern.blocks.size=1",
                    4, "the memory limit refused 8.0 TiB");
}

#define ONE_ROUND "--set ring.rounds=1 "

/* Head groups and rounds are fixed, and the pool is off: then the limit is exact. */
static void limit_is_exact(int ranks, const char *job)
{
    char line[1500];
    snprintf(line, sizeof(line), "plan --ranks %d " SHAPE ONE_ROUND "%s", ranks > 0 ? ranks : 1,
             job);
    json_t *plan = plan_point_of(0, line);
    long long const peak = integer(plan, "peak_bytes");
    json_decref(plan);
    snprintf(line, sizeof(line), "run --quiet " SHAPE ONE_ROUND "%s --set memory.limit=%lld", job,
             peak);
    command_run(&result, ranks, line);
    cr_expect_eq(result.code, 0, "%s: %d\n%s", line, result.code, result.err);
    snprintf(line, sizeof(line), "run --quiet " SHAPE ONE_ROUND "%s --set memory.limit=%lld", job,
             peak - peak / 100);
    command_run(&result, ranks, line);
    cr_expect_eq(result.code, 4, "%s: %d\n%s", line, result.code, result.err);
    cr_expect_not_null(strstr(result.err, "out of memory"), "%s", result.err);
}

Test(plan, gives_a_limit_that_a_run_keeps_and_one_percent_less_refuses)
{
    static const char causal[] = "--set shape.seq=1501 --set pattern.causal=true "
                                 "--set ring.head_groups=1 --backward";
    limit_is_exact(0, causal);
    limit_is_exact(0, "--set shape.seq=4000 --set pattern.blocks.kind=dilated_sparse "
                      "--set pattern.blocks.size=100 --set ring.head_groups=2");
    limit_is_exact(0, "--set shape.seq=500 --set ring.head_groups=1 --backward --verify");
    if (command_has_mpi()) {
        limit_is_exact(4, "--set shape.seq=1500 --set ring.head_groups=1 --verify");
        limit_is_exact(4, "--set shape.seq=700 --set ring.head_groups=2 --backward --verify "
                          "--set ring.schedule=direct");
        limit_is_exact(2, causal);
        limit_is_exact(3, "--set shape.seq=3000 --set pattern.window.left=500 --backward "
                          "--set ring.schedule=direct --set ring.head_groups=2");
    }
}

/* Groups that are chosen leave room for what verification works in: it fits to the byte. */
Test(plan, gives_a_limit_that_chosen_head_groups_keep_with_verification)
{
    static const char job[] =
        ONE_ROUND "--set shape.seq=4000 --backward --verify --set ring.schedule=direct";
    for (int ranks = 1; ranks <= 4; ranks += 3) {
        char line[1500];
        if (ranks > 1 && !command_has_mpi())
            return;
        snprintf(line, sizeof(line), "plan --ranks %d " SHAPE "%s --set ring.head_groups=4", ranks,
                 job);
        json_t *plan = plan_point_of(0, line);
        long long const peak = integer(plan, "peak_bytes");
        json_decref(plan);
        snprintf(line, sizeof(line), "run " SHAPE "%s --set memory.limit=%lld", job, peak);
        json_t *run = plan_point_of(ranks > 1 ? ranks : 0, line);
        cr_expect_eq(integer(run, "peak_bytes"), peak);
        cr_expect_eq(integer(run, "head_groups"), 4);
        cr_expect(json_is_object(member(run, "error")), "not verified");
        json_decref(run);
        /* A byte less takes parts of the queries. */
        snprintf(line, sizeof(line), "run " SHAPE "%s --set memory.limit=%lld", job, peak - 1);
        run = plan_point_of(ranks > 1 ? ranks : 0, line);
        cr_expect_gt(integer(run, "head_groups"), 4);
        cr_expect_leq(integer(run, "peak_bytes"), peak - 1);
        json_decref(run);
        /* What none fits is refused before anything is computed, in one line. */
        snprintf(line, sizeof(line), "run --quiet " SHAPE "%s --set memory.limit=%lld", job,
                 peak / 2);
        command_run(&result, ranks > 1 ? ranks : 0, line);
        cr_expect_eq(result.code, 4, "%s: %d\n%s", line, result.code, result.err);
        cr_expect_eq(command_count_lines(result.err, "ringattn: error"), 1, "%s", result.err);
    }
}

/* Likewise rounds, once there is a group for every head of keys; schedule ring, which auto takes
   for one round, gives way. */
Test(plan, gives_a_limit_that_chosen_rounds_keep)
{
    static const char job[] = "--set shape.seq=3000 --verify --set comm.backend=mpi "
                              "--set ring.layout=contiguous ";
    static const char *const asked[] = {"--set ring.schedule=direct --set ring.rounds=4",
                                        "--set ring.schedule=direct"};
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    char line[1500];
    snprintf(line, sizeof(line), "plan --ranks 4 " SHAPE "%s%s --set ring.head_groups=2", job,
             asked[0]);
    json_t *plan = plan_point_of(0, line);
    long long const peak = integer(plan, "peak_bytes");
    cr_expect_eq(integer(plan, "rounds"), 4);
    json_decref(plan);
    for (int planned = 0; planned <= 1; planned++) {
        snprintf(line, sizeof(line), "%s " SHAPE "%s%s --set memory.limit=%lld",
                 planned ? "plan --ranks 4" : "run", job, asked[1], peak);
        json_t *point = plan_point_of(planned ? 0 : 4, line);
        cr_expect_eq(integer(point, "peak_bytes"), peak, "%s", line);
        cr_expect_eq(integer(point, "head_groups"), 2, "%s", line);
        cr_expect_eq(integer(point, "rounds"), 4, "%s", line);
        cr_expect(planned || json_is_object(member(point, "error")), "not verified");
        json_decref(point);
    }
}

Test(plan, follows_a_thousand_million_tokens_on_4096_ranks)
{
    static const char *const patterns[] = {
        "--set pattern.causal=true",
        "--set pattern.window.left=4095 --set pattern.causal=true",
        "--set 'pattern.dilated.segments=[65536,1048576]' --set 'pattern.dilated.rates=[1,16]'",
        "--set 'pattern.dilated.segments=[1000000000]' --set 'pattern.dilated.rates=[8]' "
        "--set ring.layout=contiguous",
        "--set pattern.blocks.kind=dilated_sparse --set pattern.blocks.size=256",
        "--set pattern.blocks.kind=local_window --set pattern.blocks.size=256"};
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        char line[1024];
        snprintf(line, sizeof(line),
                 "plan --ranks 4096 --hardware '%s/configs/hardware/h200-nvlink-ib.yaml' "
                 "--set shape.seq=1000000000 --set shape.heads=8 --set shape.head_dim=128 %s",
                 RA_TEST_SOURCE, patterns[i]);
        json_t *plan = plan_point_of(0, line);
        long long const floor_bytes = integer(plan, "floor_bytes");
        cr_expect(json_is_false(member(plan, "exact")));
        cr_expect_eq(json_array_size(member(plan, "steps")), 4096);
        cr_expect_geq(integer(plan, "peak_bytes"), floor_bytes);
        cr_expect_leq(integer(plan, "peak_bytes"), 8 * floor_bytes);
        cr_expect_gt(json_number_value(json_object_get(member(plan, "forward_ms"), "median")), 0);
        if (i == 0) /* n (n + 1) / 2 pairs per head */
            cr_expect_float_eq(json_number_value(member(plan, "live_pairs")), 8 * 5e17, 8 * 5e14);
        if (i == 1)
            cr_expect_float_eq(json_number_value(member(plan, "live_pairs")), 8 * 4.096e12,
                               8 * 4.096e9);
        json_decref(plan);
    }
}

/* What a run would do is not silently something else: up to 64 ranks hops, then what stands for
   them, and nothing of that where it was asked for or where not every rank needs every row. */
Test(plan, says_where_it_does_not_follow_the_hops_that_a_run_makes)
{
    static const struct {
        const char *ranks, *options, *schedule;
        int left_out;
    } cases[] = {{"64", "", "ring", 0},
                 {"65", "", "direct", 1},
                 {"65", "--set ring.schedule=direct", "direct", 0},
                 {"65", "--set pattern.causal=true", "direct", 0},
                 {"65", "--set ring.rounds=2", "direct", 0}};
    static const char apart[] = "ranks_per_node: 1\n";
    command_file_write("apart.yaml", apart, strlen(apart));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char line[512];
        snprintf(line, sizeof(line),
                 "plan --ranks %s --hardware apart.yaml --set shape.seq=8192 %s", cases[i].ranks,
                 cases[i].options);
        json_t *plan = plan_point_of(0, line);
        cr_expect_str_eq(text(plan, "schedule"), cases[i].schedule, "%s", line);
        cr_expect_eq(json_is_true(member(plan, "hops_left_out")), cases[i].left_out, "%s", line);
        json_decref(plan);
        command_run(&result, 0, line);
        cr_expect_eq(command_count_lines(result.out, "a run takes schedule ring"),
                     cases[i].left_out, "%s", result.out);
    }
}

/* Where a byte is missing for one round, it takes two, in which nothing hops. */
Test(plan, leaves_no_hops_out_where_it_takes_several_rounds)
{
    static const char apart[] = "ranks_per_node: 1\n";
    static const char job[] = "plan --ranks 65 --hardware apart.yaml " SHAPE
                              "--set shape.seq=256K --set ring.head_groups=2";
    char line[512];
    command_file_write("apart.yaml", apart, strlen(apart));
    json_t *plan = plan_point_of(0, job);
    long long const peak = integer(plan, "peak_bytes");
    cr_expect(json_is_true(member(plan, "hops_left_out")));
    json_decref(plan);
    snprintf(line, sizeof(line), "%s --set memory.limit=%lld", job, peak - 1);
    plan = plan_point_of(0, line);
    cr_expect_gt(integer(plan, "rounds"), 1);
    cr_expect(json_is_false(member(plan, "hops_left_out")));
    json_decref(plan);
}

Test(plan, finds_the_longest_sequence_for_a_memory)
{
    static const char job[] = "--ranks 3 --set pattern.causal=true --set memory.limit=8M "
                              "--set ring.schedule=direct";
    char line[512];
    snprintf(line, sizeof(line), "plan --longest " SHAPE "%s", job);
    json_t *plan = plan_point_of(0, line);
    long long const longest = integer(plan, "longest_seq"), limit = 8 << 20;
    json_int_t const groups = integer(plan, "longest_head_groups");
    json_int_t const rounds = integer(plan, "longest_rounds");
    json_decref(plan);
    cr_assert_gt(longest, 1000);
    for (int more = 0; more < 2; more++) {
        snprintf(line, sizeof(line), "plan " SHAPE "%s --set shape.seq=%lld", job,
                 longest + more * (longest / 500));
        plan = plan_point_of(0, line);
        cr_expect_eq(integer(plan, "peak_bytes") <= limit, more == 0, "%lld tokens", longest);
        cr_expect_str_eq(json_string_value(member(plan, "status")), more == 0 ? "ok" : "oom");
        if (more == 0) {
            cr_expect_eq(integer(plan, "head_groups"), groups);
            cr_expect_eq(integer(plan, "rounds"), rounds);
            cr_expect_gt(rounds, 1, "else it says little");
        }
        json_decref(plan);
    }
}

/* Which maps a cache evicts, and what cutting maps takes, is not followed. */
Test(plan, is_exact_only_where_neither_evictions_nor_scratch_decides)
{
    static const struct {
        const char *more;
        bool exact;
    } cases[] = {{"", true},
                 {"--set pattern.blocks.kind=dilated_sparse --set pattern.blocks.size=1", false},
                 {"--ranks 2 --set memory.pattern_cache.mode=eager", true},
                 {"--ranks 2 --set memory.pattern_cache.mode=eager "
                  "--set memory.pattern_cache.entries=1",
                  false},
                 {"--ranks 25 --set pattern.window.left=0 --set pattern.causal=true", true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char line[512];
        snprintf(line, sizeof(line),
                 "plan --set memory.pool.mode=off --set compute.threads=1 --set shape.seq=2000 "
                 "--set ring.rounds=1 --set shape.heads=1 --set shape.head_dim=16 "
                 "--set ring.schedule=direct %s",
                 cases[i].more);
        json_t *plan = plan_point_of(0, line);
        cr_expect_eq(json_is_true(member(plan, "exact")), cases[i].exact, "%s", cases[i].more);
        json_decref(plan);
    }
}

/* Points that differ in their length alone have one, which is said once. */
Test(plan, says_the_longest_sequence_of_a_sweep_over_lengths_once)
{
    static const char sweep[] = "sweep: {shape.seq: [300, 600], shape.head_dim: [16, 64]}\n";
    static const char line[] = "plan --longest --config sweep.yaml --set memory.limit=64M "
                               "--set compute.threads=1";
    char with_json[256];
    command_file_write("sweep.yaml", sweep, strlen(sweep));
    command_run(&result, 0, line);
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_eq(command_count_lines(result.out, "tokens fit"), 2, "%s", result.out);
    snprintf(with_json, sizeof(with_json), "%s --json", line);
    command_run(&result, 0, with_json);
    json_t *root = parse_json(result.out);
    const json_t *points = member(root, "points");
    cr_assert_eq(json_array_size(points), 4);
    for (size_t i = 0; i < 2; i++) /* lengths are the outer loop */
        cr_expect_eq(integer(json_array_get(points, i), "longest_seq"),
                     integer(json_array_get(points, i + 2), "longest_seq"));
    cr_expect_gt(integer(json_array_get(points, 0), "longest_seq"),
                 integer(json_array_get(points, 1), "longest_seq"));
    json_decref(root);
}

/* Then it is not the memory that ends it. */
Test(plan, says_that_the_longest_sequence_is_the_longest_of_all)
{
    command_run(&result, 0, "plan --longest --set memory.limit=100000G --set compute.threads=1");
    cr_expect_eq(result.code, 0, "%s", result.err);
    cr_expect_not_null(strstr(result.out, " 2,147,483,647 tokens fit, the most that shape.seq"),
                       "%s", result.out);
}

Test(plan, documents_are_repeated_as_often_as_they_can_be)
{
    command_run(&result, 0,
                "plan --longest --set memory.limit=100000G --set compute.threads=1 --set "
                "shape.seq=4 --set pattern.documents=[4]");
    cr_expect_eq(result.code, 0, "%s", result.err);
    cr_expect_not_null(strstr(result.out, " 268,435,455 tokens fit, the most that such documents"),
                       "%s", result.out);
}

/* What verification works in is less of a short sequence. */
Test(plan, the_longest_sequence_is_the_same_from_wherever_it_is_looked_for)
{
    static const char *const from[] = {"1", "8", "700"};
    long long longest[3];
    for (int i = 0; i < 3; i++) {
        char line[512];
        snprintf(line, sizeof(line),
                 "plan --longest --backward --verify --set shape.heads=4 --set shape.head_dim=16 "
                 "--set shape.dtype=f32 --set compute.threads=1 --set memory.pool.mode=off --set "
                 "memory.limit=3M --set shape.seq=%s",
                 from[i]);
        json_t *plan = plan_point_of(0, line);
        longest[i] = integer(plan, "longest_seq");
        json_decref(plan);
    }
    cr_expect_gt(longest[0], 100);
    cr_expect_eq(longest[0], longest[1]);
    cr_expect_eq(longest[0], longest[2]);
}

Test(plan, has_no_longest_sequence_where_not_one_token_fits)
{
    command_run(&result, 0, "plan --longest --set memory.limit=1KiB");
    cr_expect_eq(result.code, 4);
    cr_expect_not_null(strstr(result.err, "--longest: not a single token fits"), "%s", result.err);
    cr_expect_not_null(strstr(result.out, " 0 tokens fit"), "%s", result.out);
}

Test(plan, refuses_what_is_wrong_in_one_line)
{
    static const char slip[] = "name: x\nranks: 4\nnode: {gb_per_sec: 3}\n";
    static const char twice[] = "node.gb_per_s: 1\nnode: {gb_per_s: 2}\n";
    static const char range[] = "forward:\n  bf16: {efficiency: 1.5}\n";
    command_file_write("slip.yaml", slip, strlen(slip));
    command_file_write("range.yaml", range, strlen(range));
    command_file_write("list.yaml", "[1]\n", 4);
    command_file_write("empty.yaml", "memory:\n", 8);
    command_file_write("twice.yaml", twice, strlen(twice));
    command_file_write("section.yaml", "node: 5\n", 8);
    command_file_write("empty.json", "{}\n", 3);
    command_file_write("ranks.yaml", "ranks: [1, 2]\n", 14);
    command_refused(&result, "plan --hardware ranks.yaml", 2, "is not an integer from 1 to 4096\n");
    command_refused(&result, "plan --hardware slip.yaml", 2, "slip.yaml:3:");
    command_refused(&result, "plan --hardware slip.yaml", 2, "did you mean 'node.gb_per_s'?");
    command_refused(&result, "plan --hardware range.yaml", 2, "range.yaml:2:");
    command_refused(&result, "plan --hardware range.yaml", 2, "forward.bf16.efficiency");
    command_refused(&result, "plan --hardware list.yaml", 2, "a mapping");
    command_refused(&result, "plan --hardware empty.yaml", 2,
                    "empty.yaml:1:1: memory: '' is not a whole number of bytes");
    command_refused(&result, "plan --hardware twice.yaml", 2,
                    "twice.yaml:2:8: node.gb_per_s: duplicate key");
    command_refused(&result, "plan --hardware section.yaml", 2,
                    "section.yaml:1:7: node: is a section: its keys go below it");
    command_refused(&result, "plan --hardware missing.yaml", 3,
                    "missing.yaml: cannot open the hardware file");
    command_refused(&result, "plan --json=nowhere/plan.json", 3,
                    "--json: nowhere/plan.json: cannot write there");
    command_refused(&result, "plan --ranks 0", 2, "--ranks: '0' is not an integer from 1 to 4096");
    command_refused(&result, "plan --ranks 4x", 2, "'4x'");
    command_refused(&result, "plan --ranks 4294967297", 2, "is not an integer from 1 to 4096");
    command_refused(&result, "plan --longest", 2, "memory.limit");
    command_refused(&result, "plan --calibrate empty.json", 3,
                    "no point that was measured on one rank");
    command_refused(&result, "plan --calibrate x.json", 3,
                    "error: x.json: cannot open the report: No such file");
    command_refused(&result, "plan --ranks 2 --set ring.variant=base", 2, "base runs on one rank");
    command_refused(&result, "plan --set ring.layout=balanced --ranks 100", 2, "balanced");
    command_refused(
        &result,
        "plan --set pattern.blocks.kind=random --set pattern.blocks.size=1 "
        "--set shape.seq=10000000 --set pattern.dilated.segments=[1000] "
        "--set pattern.dilated.rates=[2]",
        2, "pattern.blocks.kind: random is planned with dilated branches for up to 32768 rows");
    command_refused(
        &result,
        "plan --set pattern.blocks.kind=random --set pattern.blocks.size=1 "
        "--set shape.seq=10000000 --set attention.mask=dense_blocks",
        2, "attention.mask: dense_blocks is planned with random blocks of up to 32768 rows");
    command_refused(&result,
                    "plan --ranks 4096 --set shape.seq=1000000000 --set ring.layout=striped "
                    "--set pattern.blocks.kind=local_window",
                    2, "ring.layout: striped over 4096 ranks cuts");
    command_refused(&result, "run --ranks 2", 2, "--ranks is an option of 'plan'");
}

Test(plan, of_several_ranks_says_what_is_wrong_once_and_for_all)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    command_run(&result, 2, "plan --longest");
    cr_expect_eq(result.code, 2);
    cr_expect_eq(command_count_lines(result.err, "ringattn: "), 1, "%s", result.err);
    cr_expect_not_null(strstr(result.err, "--hardware with its memory\n"), "%s", result.err);
}

Test(plan, counts_with_all_digits)
{
    json_t *plan = plan_point_of(0, "plan --ranks 1 --set shape.seq=65537 --set shape.heads=1 "
                                    "--set pattern.causal=true");
    cr_expect_eq(integer(plan, "live_pairs"), 65537ll * 65538 / 2);
    json_decref(plan);
}

Test(plan, says_of_linear_attention_what_a_run_says)
{
    command_run(&result, 0,
                "plan --ranks 1 --set attention.kind=linear_causal "
                "--set shape.seq=1024 --set shape.head_dim=32");
    cr_expect_eq(result.code, 0);
    cr_expect_not_null(strstr(result.out, "linear attention, causal, chunked"), "%s", result.out);
    cr_expect_not_null(strstr(result.out, "a state of 32 x 32 for each batch"), "%s", result.out);
    cr_expect_null(strstr(result.out, "query-key pairs"), "%s", result.out);
    cr_expect_null(strstr(result.out, "steps"), "there are none: %s", result.out);
}

Test(plan, counts_one_query_in_the_singular)
{
    command_run(&result, 0, "plan --quiet --set shape.seq=1");
    cr_expect_eq(result.code, 0, "%s", result.err);
    cr_expect_not_null(strstr(result.out, ", with 1 query\n"), "%s", result.out);
}

/* Rank 0 alone needs all rows: of 65 ranks, of which some stand for others, no other must, too. */
Test(plan, sends_of_many_ranks_are_those_of_as_many_that_are_all_followed)
{
    double sent[2];
    for (int more = 0; more < 2; more++) {
        char line[300];
        snprintf(line, sizeof(line),
                 "plan --ranks %d " SHAPE "--set shape.seq=64K --set ring.schedule=direct "
                 "--set ring.layout=contiguous --set pattern.blocks.kind=global_local",
                 64 + more);
        json_t *const plan = plan_point_of(0, line);
        sent[more] = json_number_value(member(plan, "sent_bytes"));
        json_decref(plan);
    }
    cr_expect(sent[1] > 0.9 * sent[0] && sent[1] < 1.1 * sent[0], "%g and %g bytes", sent[0],
              sent[1]);
}

/* Rows of 128 bytes: of 64 ranks and more, those that every rank needs are counted. */
Test(plan, sends_of_many_ranks_are_what_each_of_them_needs)
{
    static const struct {
        const char *pattern;
        double bytes, network_bytes;
    } cases[] = {
        /* 64 rows a rank, and 255 before each but the first ones; 8 ranks a node */
        {"--set pattern.window.left=255", 128 * (64 + 128 + 192 + 61 * 255),
         128 * (8 * 255 + 7 * (191 + 127 + 63))},
        /* documents of 13 ranks: rank r of one needs what r ranks have */
        {"--set 'pattern.documents=[832,832,832,832,832]'", 128 * 5 * 64 * 78, -1},
    };
    static const char nodes[] = "ranks_per_node: 8\n";
    command_file_write("nodes.yaml", nodes, strlen(nodes));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char line[400];
        snprintf(line, sizeof(line),
                 "plan --ranks 65 --hardware nodes.yaml " SHAPE
                 "--set shape.seq=4160 --set pattern.causal=true --set ring.schedule=direct "
                 "--set ring.layout=contiguous %s",
                 cases[i].pattern);
        json_t *const plan = plan_point_of(0, line);
        cr_expect_eq(json_number_value(member(plan, "sent_bytes")), cases[i].bytes,
                     "%s: %g, not %g", cases[i].pattern,
                     json_number_value(member(plan, "sent_bytes")), cases[i].bytes);
        if (cases[i].network_bytes >= 0)
            cr_expect_eq(json_number_value(member(plan, "sent_network_bytes")),
                         cases[i].network_bytes, "%s: %g, not %g", cases[i].pattern,
                         json_number_value(member(plan, "sent_network_bytes")),
                         cases[i].network_bytes);
        json_decref(plan);
    }
}

/* Of the last rank, which has most pairs: its own, then those of the ranks before it. */
Test(plan, steps_say_whose_rows_they_hold)
{
    static const struct {
        const char *schedule;
        int steps, held_from[4]; /* -1: of both ranks of a node */
    } cases[] = {{"ring", 4, {3, 2, 1, 0}}, {"direct", 4, {3, 2, 1, 0}}, {"shared", 2, {-1, -1}}};
    static const char pairs[] = "ranks_per_node: 2\nshares_memory: true\n";
    command_file_write("pairs.yaml", pairs, strlen(pairs));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char line[300];
        snprintf(line, sizeof(line),
                 "plan --ranks 4 --hardware pairs.yaml " SHAPE
                 "--set pattern.causal=true --set ring.layout=contiguous --set ring.schedule=%s",
                 cases[i].schedule);
        json_t *const plan = plan_point_of(0, line);
        const json_t *steps = member(plan, "steps");
        cr_expect_eq(json_array_size(steps), (size_t)cases[i].steps, "%s", cases[i].schedule);
        for (int s = 0; s < cases[i].steps; s++) {
            const json_t *from = member(json_array_get(steps, (size_t)s), "held_from");
            cr_expect_eq(json_is_null(from) ? -1 : json_integer_value(from), cases[i].held_from[s],
                         "%s, step %d", cases[i].schedule, s);
        }
        json_decref(plan);
    }
}

/* Rows of 128 bytes; rank 16, which has a row more than most, sends to ranks that are not followed.
   The first or the last rank, a document of its own, is none that stands for these. */
Test(plan, steps_of_many_ranks_send_what_ranks_between_the_ends_need)
{
    static const char *const cases[] = {
        "--set 'pattern.documents=[4099,65]' --set pattern.window.left=255 "
        "--set pattern.window.right=0",
        "--set 'pattern.documents=[64,4100]' --set pattern.window.left=0 "
        "--set pattern.window.right=255"};
    static const char apart[] = "ranks_per_node: 1\n";
    command_file_write("apart.yaml", apart, strlen(apart));
    for (int i = 0; i < 2; i++) {
        char line[500];
        double sent = 0;
        json_t *step;
        size_t s;
        snprintf(line, sizeof(line),
                 "plan --ranks 65 --hardware apart.yaml " SHAPE
                 "--set shape.seq=4164 --set ring.schedule=direct --set ring.layout=contiguous %s",
                 cases[i]);
        json_t *const plan = plan_point_of(0, line);
        json_array_foreach(member(plan, "steps"), s, step) sent += real(step, "sent_bytes");
        cr_expect_eq(integer(json_array_get(member(plan, "steps"), 0), "held_from"), 16, "%s",
                     cases[i]);
        cr_expect_eq(sent, 255 * 128, "%s: %g", cases[i], sent);
        json_decref(plan);
    }
}

/* Two ranks a node. Of each, the second has rows that the next node needs; rank 33, whose document
   begins before it, is the first followed one with all of its pairs, and so the one of the steps.
 */
Test(plan, steps_of_many_ranks_send_what_the_same_place_of_other_nodes_does)
{
    static const char pairs[] = "ranks_per_node: 2\nshares_memory: true\n";
    command_file_write("pairs.yaml", pairs, strlen(pairs));
    json_t *const plan = plan_point_of(
        0, "plan --ranks 66 --hardware pairs.yaml " SHAPE
           "--set shape.seq=4224 --set 'pattern.documents=[64,960,1024,2176]' "
           "--set pattern.causal=true --set pattern.window.left=63 --set ring.layout=contiguous");
    double sent = 0;
    json_t *step;
    size_t s;
    json_array_foreach(member(plan, "steps"), s, step) sent += real(step, "sent_bytes");
    cr_expect_str_eq(text(plan, "schedule"), "shared");
    cr_expect_eq(sent, 63 * 128, "%g", sent);
    json_decref(plan);
}

/* Some stripes of few rows, which may all be below the mean, stand for all. */
Test(plan, no_imbalance_is_below_one)
{
    json_t *const plan =
        plan_point_of(0, "plan --ranks 333 " SHAPE "--set shape.seq=383 --set pattern.causal=true "
                         "--set pattern.window.left=76 --set ring.layout=striped");
    cr_expect_geq(json_number_value(member(plan, "imbalance")), 1.0);
    json_decref(plan);
}

/* Planning takes more than the tensors that follow, though the maps take less. */
Test(plan, is_not_exact_where_scratch_may_be_the_peak)
{
    static const char job[] = "--set shape.seq=1500 --set shape.batch=4 --set shape.dtype=f32 "
                              "--set pattern.blocks.kind=random --set pattern.blocks.size=1 "
                              "--set pattern.blocks.density=0.1";
    char line[500];
    snprintf(line, sizeof(line), "run " SHAPE "%s", job);
    json_t *const run = plan_point_of(0, line);
    snprintf(line, sizeof(line), "plan " SHAPE "%s", job);
    json_t *const plan = plan_point_of(0, line);
    cr_expect_gt(integer(run, "peak_bytes"), integer(plan, "peak_bytes"));
    cr_expect_gt(integer(plan, "floor_bytes"), integer(plan, "tilemap_bytes"));
    cr_expect(json_is_false(member(plan, "exact")));
    json_decref(run);
    json_decref(plan);
}

/* What ranks tell each other of where they run takes more than a row, but none of the job's. */
Test(plan, of_a_row_per_rank_is_exact)
{
    static const char *const smallest[] = {
        "--set attention.kind=linear --set shape.head_dim=1",
        "--set ring.schedule=direct --set ring.layout=contiguous "
        "--set ring.rounds=1 --set memory.pattern_cache.mode=off"};
    bool const has_mpi = command_has_mpi();
    int const ranks = has_mpi ? 5 : 1;
    for (int i = 0; i < (has_mpi ? 2 : 1); i++) { /* cutting a map takes more than one row */
        char line[400], job[300];
        snprintf(job, sizeof(job),
                 "--set memory.pool.mode=off --set compute.threads=1 --set shape.seq=%d "
                 "--set shape.heads=8 --set ring.head_groups=1 %s",
                 ranks, smallest[i]);
        snprintf(line, sizeof(line), "run %s", job);
        json_t *const run = plan_point_of(has_mpi ? ranks : 0, line);
        snprintf(line, sizeof(line), "plan --ranks %d %s", ranks, job);
        json_t *const plan = plan_point_of(0, line);
        cr_expect_eq(integer(run, "peak_bytes"), integer(plan, "peak_bytes"), "%s", job);
        cr_expect(json_is_true(member(plan, "exact")));
        json_decref(run);
        json_decref(plan);
    }
}

/* A long document among short ones lies on ranks that are none of the ends or quarters. */
Test(plan, the_busiest_of_many_ranks_is_followed)
{
    char lengths[1000] = "", line[1500];
    for (int i = 0; i < 181; i++)
        snprintf(lengths + strlen(lengths), sizeof(lengths) - strlen(lengths), "%s,",
                 i == 30 ? "1280" : "64");
    lengths[strlen(lengths) - 1] = '\0';
    snprintf(line, sizeof(line),
             "plan --ranks 200 " SHAPE "--set shape.seq=12800 --set 'pattern.documents=[%s]' "
             "--set ring.layout=contiguous --set ring.schedule=direct",
             lengths);
    json_t *const plan = plan_point_of(0, line);
    double const mean = json_number_value(member(plan, "live_pairs")) / 200;
    double pairs = 0;
    json_t *step;
    size_t i;
    json_array_foreach(member(plan, "steps"), i, step) pairs +=
        json_number_value(member(step, "live_pairs"));
    cr_expect_eq(integer(plan, "fullest_rank"), 30);
    cr_expect_float_eq(pairs / mean, json_number_value(member(plan, "imbalance")), 1e-6);
    cr_expect_gt(integer(member(plan, "memory_bytes"), "comm_buffer"), 0);
    json_decref(plan);
}

/* Nothing is tried where nothing has to fit. */
Test(plan, of_groups_that_share_keys_is_exact_without_a_limit)
{
    json_t *const plan = plan_point_of(0, "plan --ranks 2 " SHAPE
                                          "--set ring.schedule=direct --set ring.head_groups=4 "
                                          "--set memory.pattern_cache.mode=lazy");
    cr_expect_eq(integer(plan, "head_groups"), 4);
    cr_expect_eq(integer(plan, "rounds"), 1);
    cr_expect(json_is_true(member(plan, "exact")));
    json_decref(plan);
}

/* Of one head at a time, if need be: forward they come and go within a step. */
Test(plan, head_groups_leave_room_for_scores)
{
    if (!command_has_openblas())
        cr_skip_test("OpenBLAS is not installed");
    char line[300];
    json_t *const plan = plan_point_of(0, "plan --longest " SHAPE
                                          "--set attention.kind=standard --set memory.limit=3MiB");
    long long const longest = integer(plan, "longest_seq");
    cr_expect_eq(integer(plan, "longest_head_groups"), 4);
    json_decref(plan);
    for (int more = 0; more < 2; more++) {
        snprintf(line, sizeof(line),
                 "run " SHAPE "--set attention.kind=standard --set memory.limit=3MiB "
                 "--set shape.seq=%lld",
                 longest + more);
        command_run(&result, 0, line);
        cr_expect_eq(result.code, more == 0 ? 0 : 4, "%lld tokens: %s", longest + more, result.err);
    }
}
