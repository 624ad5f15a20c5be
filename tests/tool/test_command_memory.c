/* The command's memory: what is counted and when, what a limit refuses, what a block mask takes. */
#include "tool/measure_runner.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(command_memory, .init = command_folder_make, .fini = command_folder_remove,
          .timeout = 200);

/* What was measured is not computed from what was counted. */
static void check_resident(const char *arguments)
{
    json_t *root = NULL;
    json_t *point = measure(0, arguments, &root);
    double const peak = (double)integer(point, "peak_bytes");
    double const resident = (double)integer(point, "rss_peak_bytes");
    double const slack = 0.02 * peak + (16 << 20);
    cr_expect(resident >= peak - slack && resident <= peak + slack,
              "%s: counted %.0f, resident %.0f", arguments, peak, resident);
    json_decref(root);
}

Test(command_memory, counted_memory_is_what_the_system_counts)
{
    if (RA_TEST_SANITIZED)
        cr_skip_test("a sanitizer's shadow memory is resident too");
    check_resident("--set shape.seq=64K --set pattern.window.left=63 --set pattern.causal=true");
    check_resident("--set shape.seq=16K --set pattern.window.left=31 --set pattern.causal=true"
                   " --set shape.dtype=f32 --backward");
}

Test(command_memory, one_rank_takes_little_more_than_its_tensors)
{
    json_t *root = NULL;
    json_t *point = measure(0,
                            "--set shape.seq=64K --set pattern.window.left=15"
                            " --set pattern.causal=true",
                            &root);
    long long const tensors = 4LL * 65536 * 8 * 64 * 2;
    long long const workspace = integer(member(point, "memory_bytes"), "workspace");
    cr_expect_leq(integer(point, "peak_bytes") - workspace, tensors + tensors / 50);
    cr_expect_eq(integer(member(point, "memory_bytes"), "lse"), 0, "nobody asked for lse");
    json_decref(root);
}

/* Bytes of a category at the i-th phase, whose name is as expected. */
static long long phase_bytes(json_t *point, size_t i, const char *name, const char *category)
{
    json_t *phase = json_array_get(member(point, "phases"), i);
    cr_assert_not_null(phase, "no phase %zu, %s", i, name);
    cr_expect_str_eq(json_string_value(member(phase, "name")), name);
    const char *key;
    json_t *bytes, *memory = member(phase, "memory_bytes");
    long long total = 0;
    json_object_foreach(memory, key, bytes)
    {
        total += json_integer_value(bytes);
    }
    cr_expect_eq(total, integer(phase, "total_bytes"));
    cr_expect_leq(total, integer(point, "peak_bytes"));
    return integer(memory, category);
}

Test(command_memory, phases_show_each_matrix_of_standard_attention_come)
{
    static const struct {
        const char *name;
        int matrices;
    } wanted[] = {{"forward start", 0}, {"after scores", 1}, {"after softmax", 2},
                  {"forward step", 2},  {"forward end", 2},  {"backward start", 2},
                  {"after dP", 3},      {"after dS", 4},     {"backward step", 4},
                  {"backward end", 0}};
    enum { COUNT = sizeof(wanted) / sizeof(wanted[0]) };
    json_t *root = NULL;
    if (!command_has_openblas())
        cr_skip_test("OpenBLAS is not installed");
    json_t *point = measure(0,
                            "--phases --backward --set attention.kind=standard "
                            "--set shape.seq=512 --set shape.heads=2 --set shape.batch=3 "
                            "--set job.repeat=2 --set job.warmup=1",
                            &root);
    cr_expect_eq(json_array_size(member(point, "phases")), COUNT);
    cr_expect_eq(integer(point, "phases_left_out"), 0);
    for (size_t i = 0; i < COUNT; i++)
        cr_expect_eq(phase_bytes(point, i, wanted[i].name, "scores"),
                     4LL * 3 * 2 * 512 * 512 * wanted[i].matrices, "%s", wanted[i].name);
    json_decref(root);
}

/* Without buffers kept, what arrives for a step is there in that step only. */
Test(command_memory, phases_of_a_ring_show_what_a_step_holds)
{
    json_t *root = NULL;
    int const ranks = command_has_mpi() ? 2 : 0;
    json_t *point = measure(ranks,
                            "--phases --set shape.seq=300 --set shape.heads=2 "
                            "--set ring.schedule=auto --set ring.comm_buffers=0",
                            &root);
    cr_expect_eq(phase_bytes(point, 0, "forward start", "comm_buffer"), 0);
    cr_expect_eq(phase_bytes(point, 1, "forward step", "comm_buffer"), 0);
    json_decref(root);
    point = measure(0, "--set shape.seq=300", &root);
    cr_expect_null(json_object_get(point, "phases"));
    json_decref(root);
    command_run(&result, 0, "run --quiet --phases --set shape.seq=300");
    cr_expect_eq(result.code, 0, "%s", result.err);
    cr_expect_not_null(strstr(result.out, "forward end: qkv "), "%s", result.out);
    if (ranks == 0)
        return;
    point = measure(2,
                    "--phases --set shape.seq=300 --set shape.heads=2 --set ring.schedule=direct "
                    "--set ring.comm_buffers=0 --set memory.pool.mode=off",
                    &root);
    long long const kernels = phase_bytes(point, 0, "forward start", "workspace");
    cr_expect_eq(phase_bytes(point, 1, "forward step", "workspace"), kernels);
    cr_expect_gt(phase_bytes(point, 2, "forward step", "workspace"), kernels);
    cr_expect_eq(phase_bytes(point, 2, "forward step", "comm_buffer"), 0);
    cr_expect_eq(integer(json_array_get(member(point, "phases"), 2), "step"), 1);
    cr_expect_eq(phase_bytes(point, 3, "forward end", "workspace"), kernels);
    json_decref(root);
}

/* What a step takes is refused on every rank, and said by one of them. */
Test(command_memory, memory_refused_within_a_pass_is_one_line_for_all_ranks)
{
    static const struct {
        const char *sets, *category;
    } jobs[] = {{"--set ring.comm_buffers=0 --set ring.schedule=direct", "workspace"},
                {"--set attention.kind=standard --backward", "scores"}};
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    for (size_t i = 0; i < (command_has_openblas() ? 2 : 1); i++) {
        json_t *root = NULL;
        char line[512];
        snprintf(line, sizeof(line),
                 "--set shape.seq=384 --set shape.heads=2 --set memory.pool.mode=off "
                 "--set memory.pattern_cache.mode=off --set ring.head_groups=1 "
                 "--set ring.rounds=1 %s",
                 jobs[i].sets);
        long long const peak = integer(measure(3, line, &root), "peak_bytes");
        json_decref(root);
        char run[640], wanted[64];
        snprintf(run, sizeof(run), "run --quiet %s --set memory.limit=%lld", line, peak - 1);
        snprintf(wanted, sizeof(wanted), " for %s (", jobs[i].category);
        command_run(&result, 3, run);
        cr_expect_eq(result.code, 4, "%s: %d", run, result.code);
        cr_expect_eq(command_count_lines(result.err, "ringattn: error:"), 1, "%s", result.err);
        cr_expect_eq(command_count_lines(result.err, wanted), 1, "%s", result.err);
    }
}

/* Of the memory that tensors will take nothing is given to head groups, and of other nothing left.
 */
Test(command_memory, head_groups_leave_room_for_tensors_and_no_more)
{
    static const struct {
        int ranks;
        const char *sets;
    } jobs[] = {{0, "--backward"},
                {2, "--backward --set ring.schedule=shared"},
                {2, "--backward --set ring.schedule=direct"},
                {2, "--set ring.schedule=direct"}};
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        json_t *root = NULL;
        char line[512], limited[640];
        if (jobs[i].ranks > 0 && !command_has_mpi())
            continue;
        snprintf(line, sizeof(line),
                 "--set shape.seq=384 --set shape.heads=8 --set memory.pool.mode=off "
                 "--set memory.pattern_cache.mode=off --set ring.rounds=1 %s",
                 jobs[i].sets);
        snprintf(limited, sizeof(limited), "%s --set ring.head_groups=2", line);
        long long const peak = integer(measure(jobs[i].ranks, limited, &root), "peak_bytes");
        json_decref(root);
        for (int less = 0; less < 2; less++) {
            snprintf(limited, sizeof(limited), "%s --set memory.limit=%lld", line, peak - less);
            json_t *point = measure(jobs[i].ranks, limited, &root);
            long long const groups = integer(point, "head_groups");
            cr_expect(less ? groups > 2 : groups == 2, "%s: %lld", limited, groups);
            json_decref(root);
        }
    }
}

#define WINDOW                                                                                     \
    "--set shape.heads=1 --set shape.head_dim=8 --set pattern.causal=true "                        \
    "--set pattern.window.left=63 "

/* 16 (N / 128)^2 bytes, which the same pattern without a mask does not have. */
Test(command_memory, a_block_mask_is_seen_in_memory_and_gives_the_same)
{
    json_t *root = NULL;
    long long const blocks = 16384 / 128, mask = 16 * blocks * blocks + 16 * blocks;
    json_t *point = measure(0, "--set shape.seq=16384 " WINDOW, &root);
    long long const plain = integer(member(point, "memory_bytes"), "tilemap");
    cr_expect_lt(plain, mask / 8);
    json_decref(root);
    point = measure(0,
                    "--backward --verify --set attention.mask=dense_blocks "
                    "--set shape.seq=16384 " WINDOW,
                    &root);
    long long const dense = integer(member(point, "memory_bytes"), "tilemap");
    cr_expect_geq(dense, mask);
    cr_expect_leq(dense, mask + 4 * plain);
    cr_expect_geq(integer(point, "tilemap_bytes"), mask);
    cr_expect_eq(integer(member(point, "category_peak_bytes"), "pattern_cache"), 0);
    json_decref(root);
}

/* Each rank has its queries against the keys of every live step. */
Test(command_memory, block_masks_of_several_ranks_are_verified)
{
    static const char *const schedules[] = {"ring", "direct", "shared"};
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    for (size_t i = 0; i < 3; i++)
        for (int ranks = 2; ranks <= 3; ranks++) {
            char line[256];
            snprintf(line, sizeof(line),
                     "run --backward --verify --quiet --set attention.mask=dense_blocks "
                     "--set shape.seq=700 --set shape.heads=2 --set pattern.causal=true "
                     "--set shape.dtype=f32 --set ring.schedule=%s",
                     schedules[i]);
            command_run(&result, ranks, line);
            cr_expect_eq(result.code, 0, "%s: %s", schedules[i], result.err);
        }
}

Test(command_memory, a_block_mask_that_does_not_fit_ends_all_ranks)
{
    for (int ranks = 0; ranks <= 3 && (ranks == 0 || command_has_mpi()); ranks += 3) {
        command_run(
            &result, ranks,
            "run --quiet --set shape.seq=65536 --set attention.mask=dense_blocks "
            "--set ring.schedule=auto --set compute.threads=1 --set memory.limit=2MiB " WINDOW);
        cr_expect_eq(result.code, 4, "%d ranks: %s", ranks, result.err);
        cr_expect_geq(command_count_lines(result.err, "for tilemap"), 1, "%s", result.err);
        cr_expect_leq(command_count_lines(result.err, "ringattn: error"), ranks == 0 ? 1 : ranks);
        cr_expect_null(strstr(result.err, "MPI_ABORT"), "%s", result.err);
    }
}

Test(command_memory, a_block_mask_refuses_what_it_does_not_go_with)
{
    static const char *const sets[] = {"attention.kind=linear", "memory.pattern_cache.mode=eager"};
    for (size_t i = 0; i < 2; i++) {
        char line[256];
        snprintf(line, sizeof(line), "run --set attention.mask=dense_blocks --set %s", sets[i]);
        command_run(&result, 0, line);
        cr_expect_eq(result.code, 2, "%s", result.err);
        cr_expect_eq(command_count_lines(result.err, "ringattn: "), 1, "%s", result.err);
        cr_expect_not_null(strstr(result.err, "dense_blocks") != NULL
                               ? strstr(result.err, "dense_blocks")
                               : strstr(result.err, "attention.mask"),
                           "%s", result.err);
    }
}
