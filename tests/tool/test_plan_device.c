/*
 * Plans of jobs on a GPU, held to the ledgers of the same jobs on the stand-in runtime: the GPU's
 * and the host's. And what becomes of jobs for which it has no room.
 */
#include "tool/command_runner.h"
#include "tool/json_reader.h"
#include "tool/plan_jobs.h"
#include "tool/plan_points.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MULTIPROCESSORS = 1 };

/* Few, because each has thread blocks that the emulator makes. */
static void begin(void)
{
    command_folder_make();
    cr_assert_eq(setenv("RA_STANDIN_MULTIPROCESSORS", "1", 1), 0);
}

TestSuite(plan_device, .init = begin, .fini = command_folder_remove, .timeout = 6000);

static bool tests_all(void)
{
    return getenv("RA_TEST_ALL") != NULL;
}

/* ---- random jobs ----------------------------------------------------------------------------- */

/* Small ones: kernels are emulated. Idle bytes of a pool have no formula, so it is off. */
static void draw_job(test_rng *rng, int ranks, job_text *job)
{
    int const seq = job_between(rng, 100, 700);
    *job = (job_text){.used = 0};
    job_add(job, " --set compute.backend=cuda --set memory.pool.mode=%s --set job.repeat=%d",
            ranks == 0 ? ONE_OF(rng, "off", "off", "driver") : "off", job_between(rng, 1, 2));
    job_draw_heads(rng, "flash", job);
    job_add(job, " --set shape.seq=%d", seq);
    job_add(job, " --set shape.batch=%d --set shape.head_dim=%d --set shape.dtype=%s",
            job_between(rng, 1, 2), job_between(rng, 4, 40), ONE_OF(rng, "f32", "f16", "bf16"));
    job_draw_pattern(rng, seq, job);
    if (test_rng_chance(rng, 0.25))
        job_add(job, " --set attention.mask=dense_blocks");
    else
        job_add(job, " --set memory.pattern_cache.mode=%s", ONE_OF(rng, "off", "lazy", "eager"));
    if (ranks > 0)
        job_draw_ring(rng, false, job);
    job_add(job, "%s%s%s%s", ranks > 0 ? " --set comm.backend=mpi" : "",
            test_rng_chance(rng, 0.5) ? " --backward" : "",
            test_rng_chance(rng, 0.5) ? " --set compute.deterministic=true" : "",
            test_rng_chance(rng, 0.2) ? " --verify" : "");
    if (test_rng_chance(rng, 0.3))
        job_add(job, " --set compute.isa=%s", ranks % 2 == 0 ? "sm_80" : "sm_90a");
}

/* But for idle bytes; beside several ranks' GPUs, but for what messages go through, which is taken
   as they come, and for what the host holds at another moment therefore. */
static void compare_categories(const json_t *run, const json_t *plan, bool all, const char *what)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)run, name, value)
    {
        bool const passing = strcmp(name, "comm_buffer") == 0 || strcmp(name, "io") == 0;
        if (strcmp(name, "pool_idle") == 0 || (passing && !all))
            continue;
        cr_expect_eq(integer(plan, name), json_integer_value(value),
                     "%s: planned %lld, taken %lld:%s", name, integer(plan, name),
                     (long long)json_integer_value(value), what);
    }
}

/* Whether the host had its peak while a tile map was cut, before tensors came through it: so small
   a peak is not planned, and then it is the larger one. */
static bool peak_is_of_planning(const json_t *there, const json_t *planned)
{
    enum { MOST_BYTES = 64 << 10 };
    int64_t const peak = integer(there, "host_peak_bytes");
    return integer(member(there, "host_memory_bytes"), "io") == 0 && peak < MOST_BYTES &&
           peak > integer(planned, "host_peak_bytes");
}

/* Gives both back. */
static void compare_points(json_t *run, json_t *plan, bool all, const char *what)
{
    static const char *const alike[] = {"head_groups", "live_pairs", "sent_bytes"};
    const json_t *there = member(run, "device"), *planned = member(plan, "device");
    compare_categories(member(run, "memory_bytes"), member(plan, "memory_bytes"), true, what);
    if (!peak_is_of_planning(there, planned))
        compare_categories(member(there, "host_memory_bytes"), member(planned, "host_memory_bytes"),
                           all, what);
    for (int i = 0; i < 3; i++)
        cr_expect_eq(real(plan, alike[i]), real(run, alike[i]), "%s:%s", alike[i], what);
    cr_expect_str_eq(text(plan, "schedule"), text(run, "schedule"), "%s", what);
    json_decref(run);
    json_decref(plan);
}

static void compare(int ranks, const job_text *job)
{
    char line[JOB_TEXT_BYTES + 64];
    snprintf(line, sizeof(line), "run%s", job->text);
    json_t *run = plan_point_of(ranks, line);
    snprintf(line, sizeof(line), "plan --ranks %d%s", ranks > 0 ? ranks : 1, job->text);
    compare_points(run, plan_point_of(0, line), ranks == 0, job->text);
}

Test(plan_device, jobs_take_what_plan_says_of_both_memories)
{
    const char *seed = getenv("RA_TEST_SEED");
    test_rng rng = {seed != NULL ? strtoull(seed, NULL, 10) : 5};
    int const jobs = tests_all() ? 50 : 4, several = tests_all() ? 10 : 1;
    for (int i = 0; i < jobs; i++) {
        job_text job;
        int const ranks = i < several && command_has_mpi() ? 2 + i % 3 : 0;
        draw_job(&rng, ranks, &job);
        compare(ranks, &job);
    }
}

/* Gradients of keys are sums then, where a kernel stores those of a group alone. */
Test(plan_device, gradients_of_keys_that_head_groups_share_take_what_plan_says)
{
    static const int groups[] = {1, 2, 4, 12};
    for (int i = 0; i < 4; i++) {
        job_text job = {.used = 0};
        job_add(&job,
                " --set compute.backend=cuda --set memory.pool.mode=off --set shape.seq=90 "
                "--set shape.heads=4 --set shape.kv_heads=1 --set shape.head_dim=16 "
                "--set shape.dtype=bf16 --set ring.head_groups=%d --backward",
                groups[i]);
        compare(0, &job);
    }
}

/* More than 64 slices meet the one chunk of the wide branch: cutting them is the host's peak. */
Test(plan_device, planning_may_be_the_peak_of_a_host_that_has_little_else)
{
    static const char job[] =
        " --set compute.backend=cuda --set memory.pool.mode=off --set shape.seq=671 "
        "--set shape.heads=1 --set shape.head_dim=4 --set shape.dtype=f16 "
        "--set pattern.causal=true --set pattern.blocks.kind=global_local "
        "--set pattern.blocks.size=16 --set 'pattern.dilated.segments=[20,3857]' "
        "--set 'pattern.dilated.rates=[1,7]'";
    char line[JOB_TEXT_BYTES];
    snprintf(line, sizeof(line), "run%s", job);
    json_t *run = plan_point_of(0, line);
    snprintf(line, sizeof(line), "plan --ranks 1%s", job);
    json_t *plan = plan_point_of(0, line);
    cr_expect(peak_is_of_planning(member(run, "device"), member(plan, "device")));
    compare_points(run, plan, true, job);
}

/* Segments are as many as on any GPU: four of 300 rows here, not those of one multiprocessor. */
Test(plan_device, states_of_linear_attention_lie_in_both_memories)
{
    static const char *const kinds[] = {"linear --backward", "linear_causal --backward",
                                        "linear_causal --set attention.linear_method=cumsum"};
    for (int ranks = 0; ranks <= (command_has_mpi() ? 2 : 0); ranks += 2)
        for (int i = 0; i < 3; i++) {
            job_text job = {.used = 0};
            job_add(&job,
                    " --set compute.backend=cuda --set memory.pool.mode=off --set shape.seq=1200 "
                    "--set shape.heads=2 --set shape.kv_heads=1 --set shape.head_dim=20 "
                    "--set ring.head_groups=1 --set shape.dtype=bf16 --set attention.kind=%s%s",
                    kinds[i], ranks > 0 ? " --set comm.backend=mpi" : "");
            compare(ranks, &job);
        }
    json_t *plan = plan_point_of(0, "plan --ranks 1 --set compute.backend=cuda "
                                    "--set shape.seq=1200 --set shape.heads=1 "
                                    "--set shape.head_dim=20 --set attention.kind=linear");
    cr_expect_eq(integer(member(plan, "memory_bytes"), "state") / (4 * 20 * 21), 4);
    json_decref(plan);
}

/* Kernels by name, on a GPU that is described. */
Test(plan_device, kernels_of_9_0_are_refused_where_the_gpu_is_of_another)
{
    static const struct {
        const char *isa, *described;
        int code;
    } cases[] = {{"sm_90a", "multiprocessors: 132\ncompute_capability: 8.0\n", 2},
                 {"sm_90a_backward", "multiprocessors: 132\ncompute_capability: 10.0\n", 2},
                 {"sm_90a_backward", "multiprocessors: 132\ncompute_capability: 9.0\n", 0},
                 {"sm_90a", "multiprocessors: 132\n", 0},
                 {"sm_80", "multiprocessors: 132\ncompute_capability: 8.0\n", 0},
                 /* Without multiprocessors it is the GPU that is here, of 9.0. */
                 {"sm_90a", "compute_capability: 8.0\n", 0},
                 {"auto", "compute_capability: 8.0\n", 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        job_text gpu = {.used = 0};
        command_result said;
        job_add(&gpu, "name: one\n%s", cases[i].described);
        command_file_write("gpu.yaml", gpu.text, gpu.used);
        char line[256];
        snprintf(line, sizeof(line),
                 "plan --ranks 1 --hardware gpu.yaml --set compute.backend=cuda --set "
                 "shape.dtype=bf16 --set compute.isa=%s",
                 cases[i].isa);
        command_run(&said, 0, line);
        cr_expect_eq(said.code, cases[i].code, "case %zu: %s", i, said.err);
        cr_expect_eq(command_count_lines(said.err, "compute.isa: kernel cuda-sm_90a"),
                     cases[i].code != 0, "%s", said.err);
    }
}

/* A GPU that is here has to do the job, as for run. */
Test(plan_device, jobs_that_the_gpu_here_cannot_do_are_refused_as_run_refuses_them)
{
    static const char *const refused[] = {"--set compute.isa=sm_90a --set shape.dtype=bf16",
                                          "--set attention.kind=linear --set shape.head_dim=256"};
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        command_result said[2];
        for (int plans = 0; plans < 2; plans++) {
            char line[512];
            snprintf(line, sizeof(line),
                     "RA_STANDIN_MAJOR=8 RA_STANDIN_SHARED_BYTES=101376 \"$RINGATTN\" %s --set "
                     "compute.backend=cuda %s",
                     plans ? "plan --ranks 1" : "run --quiet", refused[i]);
            command_shell(&said[plans], line);
            cr_expect_eq(said[plans].code, 2, "%s", line);
        }
        cr_expect_eq(command_count_lines(said[0].err, "ringattn: error:"), 1);
        cr_expect_str_eq(said[1].err, said[0].err);
    }
}

/*
 * Scratch for parts of long rows, where auto takes the kernels that cut them: of a GPU that is
 * here, of one that is described, and of the job itself.
 */
Test(plan_device, kernels_of_9_0_have_their_scratch_where_auto_takes_them)
{
    static const char job[] =
        " --set compute.backend=cuda --set memory.pool.mode=off --set shape.seq=400 "
        "--set shape.heads=1 --set shape.head_dim=64 --set shape.dtype=bf16 "
        "--set pattern.blocks.kind=global_local --set pattern.blocks.size=128";
    static const struct {
        const char *environment, *described, *kernel;
    } cases[] = {{"9", "compute_capability: 9.0\n", "cuda-sm_90a"},
                 {"8", "compute_capability: 8.0\n", "cuda"},
                 {"8", "", "cuda"}};
    int64_t taken[2] = {0, 0};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        job_text gpu = {.used = 0};
        char line[1024];
        cr_assert_eq(setenv("RA_STANDIN_MAJOR", cases[i].environment, 1), 0);
        snprintf(line, sizeof(line), "run%s", job);
        json_t *run = plan_point_of(0, line);
        snprintf(line, sizeof(line), "plan --ranks 1%s", job);
        json_t *here = plan_point_of(0, line);
        job_add(&gpu, "name: one\nmultiprocessors: %d\n%s", MULTIPROCESSORS, cases[i].described);
        command_file_write("gpu.yaml", gpu.text, gpu.used);
        cr_assert_eq(setenv("RA_STANDIN_DEVICES", "0", 1), 0);
        snprintf(line, sizeof(line), "plan --ranks 1 --hardware gpu.yaml --save saved.yaml%s", job);
        json_t *there = plan_point_of(0, line);
        snprintf(line, sizeof(line), "plan --ranks 1 --hardware saved.yaml%s", job);
        json_t *saved = plan_point_of(0, line);
        cr_assert_eq(unsetenv("RA_STANDIN_DEVICES"), 0);
        const json_t *const points[] = {run, here, there, saved};
        taken[i > 0] = integer(member(run, "memory_bytes"), "workspace");
        for (size_t p = 0; p < 4; p++) {
            cr_expect_str_eq(text(points[p], "kernel"), cases[i].kernel, "case %zu, %zu", i, p);
            cr_expect_eq(integer(member(points[p], "memory_bytes"), "workspace"), taken[i > 0],
                         "case %zu, %zu", i, p);
        }
        json_decref(saved);
        json_decref(there);
        compare_points(run, here, true, job);
    }
    cr_assert_eq(unsetenv("RA_STANDIN_MAJOR"), 0);
    cr_expect_gt(taken[0], taken[1] + 64 * 128 * 4);
}

/* The smallest there is, of a job whose maps share no rows, and scratch of its thread blocks. */
Test(plan_device, only_maps_that_share_rows_have_scratch_for_it)
{
    static const struct {
        const char *pattern;
        int ranks;
        bool scratch;
    } cases[] = {
        {"pattern.causal=true", 0, false},
        {"pattern.dilated='{segments: [50], rates: [2]}'", 0, false},
        {"pattern.dilated='{segments: [50, 100], rates: [1, 2], heads: grouped}'", 0, false},
        {"pattern.dilated='{segments: [50, 100], rates: [1, 2], heads: grouped}'", 2, true},
        {"pattern.dilated='{segments: [50, 100], rates: [1, 2]}'", 0, true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char line[JOB_TEXT_BYTES + 64];
        job_text job = {.used = 0};
        if (cases[i].ranks > 0 && !command_has_mpi())
            continue;
        job_add(&job,
                " --set compute.backend=cuda --set memory.pool.mode=off --set shape.seq=100 "
                "--set shape.heads=2 --set shape.kv_heads=2 --set shape.head_dim=16 --set %s%s",
                cases[i].pattern, cases[i].ranks > 0 ? " --set comm.backend=mpi" : "");
        compare(cases[i].ranks, &job);
        snprintf(line, sizeof(line), "plan --ranks %d%s", cases[i].ranks > 0 ? cases[i].ranks : 1,
                 job.text);
        json_t *plan = plan_point_of(0, line);
        int64_t const bytes = integer(member(plan, "memory_bytes"), "workspace");
        cr_expect(cases[i].scratch ? bytes > 1024 * 18 * 4 : bytes <= 512, "%s: %lld bytes",
                  job.text, (long long)bytes);
        json_decref(plan);
    }
}

static command_result result;

/*
 * Standing buffers are NCCL's own, each in whole units; what steps take for themselves is not. What
 * NCCL itself has taken is measured, and so told to the plan.
 */
static void compare_over_nccl(const char *ring)
{
    char line[JOB_TEXT_BYTES + 64];
    job_text job = {.used = 0}, gpu = {.used = 0};
    job_add(&job,
            " --set compute.backend=cuda --set memory.pool.mode=off --set shape.seq=301 "
            "--set shape.heads=2 --set shape.kv_heads=2 --set shape.head_dim=40 --backward "
            "--set comm.backend=nccl --set ring.head_groups=2 %s",
            ring);
    snprintf(line, sizeof(line), "run%s", job.text);
    json_t *run = plan_point_of(2, line);
    job_add(&gpu, "name: a stand-in\nmultiprocessors: %d\ncontext: %lld\n", MULTIPROCESSORS,
            integer(member(run, "memory_bytes"), "context"));
    command_file_write("gpu.yaml", gpu.text, gpu.used);
    snprintf(line, sizeof(line), "plan --ranks 2 --hardware gpu.yaml%s", job.text);
    compare_points(run, plan_point_of(0, line), true, job.text);
}

Test(plan_device, buffers_of_nccl_are_whole_units)
{
    command_run(&result, 0, "info");
    if (strstr(result.out, "a stand-in for NCCL") == NULL || !command_has_mpi())
        cr_skip_test("this build has no NCCL, or no MPI");
    compare_over_nccl("--set ring.schedule=ring --set ring.comm_buffers=2");
    compare_over_nccl("--set ring.schedule=direct --set ring.comm_buffers=1");
    compare_over_nccl("--set ring.schedule=direct --set ring.comm_buffers=0");
}

#define SHAPE                                                                                      \
    " --set compute.backend=cuda --set memory.pool.mode=off --set shape.seq=60 "                   \
    "--set shape.heads=4 --set shape.head_dim=8 --set shape.dtype=f32 --set pattern.causal=true "
#define JOB SHAPE "--set comm.backend=mpi --set ring.schedule=ring "

/* ---- what there is room for ------------------------------------------------------------------ */

/* As many groups as fit what is left, which is not all of a number's bytes. */
Test(plan_device, head_groups_are_those_that_fit_the_limit)
{
    int const ranks = command_has_mpi() ? 2 : 0;
    json_t *one = plan_point_of(0, ranks > 0 ? "plan --ranks 2" JOB : "plan --ranks 1" JOB);
    long long const peak = integer(one, "peak_bytes");
    char line[JOB_TEXT_BYTES + 64];
    job_text job = {.used = 0};
    job_add(&job, JOB "--set memory.limit=%lld", peak - 1);
    if (ranks > 0) {
        compare(ranks, &job);
        snprintf(line, sizeof(line), "plan --ranks 2%s", job.text);
        json_t *plan = plan_point_of(0, line);
        cr_expect_gt(integer(plan, "head_groups"), 1);
        json_decref(plan);
    }
    json_decref(one);
}

/* What the plan says is enough, and a byte less is not. */
Test(plan_device, a_limit_holds_to_the_byte)
{
    json_t *plan = plan_point_of(0, "plan --ranks 1 --backward --set ring.head_groups=1" SHAPE);
    for (int less = 0; less < 2; less++) {
        char line[1024];
        snprintf(line, sizeof(line),
                 "run --quiet --backward --set ring.head_groups=1" SHAPE "--set memory.limit=%lld",
                 integer(plan, "peak_bytes") - less);
        command_run(&result, 0, line);
        cr_expect_eq(result.code, less == 0 ? 0 : 4, "%s", result.err);
    }
    json_decref(plan);
}

/* The GPU itself refuses a request, each in turn or every third, in a job of every kind of block.
 */
Test(plan_device, a_gpu_that_is_full_ends_a_job_with_its_composition)
{
    char line[1024];
    int const every = tests_all() ? 1 : 3;
    int at = 1;
    for (result.code = 4; result.code == 4 && at < 100; at += every) {
        snprintf(line, sizeof(line),
                 "RA_STANDIN_FULL_AT=%d \"$RINGATTN\" run --quiet --backward" SHAPE, at);
        command_shell(&result, line);
        cr_assert(result.code == 4 || result.code == 0, "request %d: exit code %d\n%s", at,
                  result.code, result.err);
        if (result.code == 0)
            break;
        cr_expect_eq(command_count_lines(result.err, "ringattn: error:"), 1, "request %d: %s", at,
                     result.err);
        cr_expect_not_null(strstr(result.err, "out of memory"), "request %d: %s", at, result.err);
        cr_expect_not_null(strstr(result.err, "held "), "request %d: %s", at, result.err);
    }
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_gt(at, 12, "only %d requests", at);
}

/* ---- other commands -------------------------------------------------------------------------- */

/* With the scratch of kernels of 9.0 for long rows. */
Test(plan_device, bench_says_what_its_points_take_in_theory)
{
    static const char yaml[] = "shape: {seq: 256, heads: 2, head_dim: 64, dtype: bf16}\n"
                               "pattern: {blocks: {kind: global_local, size: 128}}\n"
                               "compute: {backend: auto}\nmemory: {pool: {mode: off}}\n"
                               "job: {repeat: 1, warmup: 0}\nsweep: {shape.seq: [128, 300]}\n";
    command_file_write("job.yaml", yaml, strlen(yaml));
    command_shell(&result, "RA_STANDIN_CONTEXT=1234567 \"$RINGATTN\" bench --config job.yaml "
                           "--quiet --json");
    cr_assert_eq(result.code, 0, "%s", result.err);
    json_t *root = parse_json(result.out);
    for (size_t i = 0; i < 2; i++) {
        const json_t *point = json_array_get(member(root, "points"), i);
        cr_expect_str_eq(text(point, "kernel"), "cuda-sm_90a");
        cr_expect_eq(integer(point, "theory_bytes"), integer(point, "peak_bytes"));
    }
    json_decref(root);
}

/* The machine that is described decides, and without one the GPU that is here. */
Test(plan_device, multiprocessors_are_the_hardwares_or_those_of_the_gpu_here)
{
    static const char text[] = "name: none here\nmultiprocessors: 7\ncontext: 1M\n";
    command_file_write("gpu.yaml", text, strlen(text));
    json_t *here = plan_point_of(0, "plan" JOB);
    json_t *first = plan_point_of(0, "plan --hardware gpu.yaml --save saved.yaml" JOB);
    json_t *there = plan_point_of(0, "plan --hardware saved.yaml" JOB);
    cr_expect_eq(integer(first, "peak_bytes"), integer(there, "peak_bytes"));
    cr_expect_eq(integer(member(here, "device"), "multiprocessors"), MULTIPROCESSORS);
    cr_expect_eq(integer(member(there, "device"), "multiprocessors"), 7);
    cr_expect_eq(integer(member(there, "memory_bytes"), "context"), 1 << 20);
    json_decref(here);
    json_decref(first);
    json_decref(there);
    command_shell(&result, "RA_STANDIN_DEVICES=0 \"$RINGATTN\" plan --quiet" JOB);
    cr_expect_eq(result.code, 2, "%s", result.err);
    cr_expect_not_null(strstr(result.err, "multiprocessors"), "%s", result.err);
    command_shell(&result,
                  "RA_STANDIN_DEVICES=0 \"$RINGATTN\" plan --quiet --hardware gpu.yaml" JOB);
    cr_expect_eq(result.code, 0, "%s", result.err);
    command_shell(&result, "\"$RINGATTN\" plan --quiet --set ring.schedule=shared --ranks 2 "
                           "--set compute.backend=cuda");
    cr_expect_eq(result.code, 2, "%s", result.err);
}
