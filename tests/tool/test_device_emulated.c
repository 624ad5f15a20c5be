/*
 * The whole command with the kernels for GPUs, interpreted or emulated, on the stand-in runtime:
 * from the configuration to verified results, as on a GPU, and slower by far.
 */
#include "tool/device_runner.h"

TestSuite(device_emulated, .init = command_folder_make, .fini = command_folder_remove,
          .timeout = 6000);

#define JOB                                                                                        \
    "--set compute.backend=cuda --set shape.seq=150 --set shape.heads=2 --set shape.kv_heads=1 "   \
    "--set shape.head_dim=24 --set pattern.causal=true "

Test(device_emulated, a_run_is_right_in_every_dtype)
{
    static const char *const dtypes[] = {"f32", "f16", "bf16",
                                         "bf16 --set compute.deterministic=true"};
    for (int i = 0; i < 4; i++) {
        char arguments[512];
        snprintf(arguments, sizeof(arguments),
                 "run " JOB "--set shape.dtype=%s --backward --verify --json", dtypes[i]);
        run("", arguments);
        expect_verified("cuda");
    }
}

#define WIDE "--set shape.dtype=bf16 --set shape.head_dim=128 "

/* Played GPUs are of 9.0. What is taken is what reports, plans and info say. */
Test(device_emulated, auto_takes_the_instruction_set_of_9_0_where_it_differs)
{
    static const struct {
        const char *environment, *job, *kernel;
    } cases[] = {
        {"", WIDE, "cuda-sm_90a"},
        {"", WIDE "--set compute.backend=auto", "cuda-sm_90a"},
        {"", "--set shape.dtype=f16 --set shape.head_dim=40 --backward", "cuda-sm_90a"},
        {"", WIDE "--set compute.isa=sm_80", "cuda"},
        {"", "--set shape.dtype=bf16 --set shape.head_dim=96", "cuda"},
        {"", "--set shape.dtype=f32 --set shape.head_dim=64", "cuda"},
        {"RA_STANDIN_MAJOR=8", WIDE, "cuda"},
        {"RA_STANDIN_MAJOR=10", WIDE, "cuda"},
        /* No GPU of 9.0 has so little, which suffices for the others. */
        {"RA_STANDIN_SHARED_BYTES=49152", "--set shape.dtype=f16 --set shape.head_dim=64", "cuda"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char arguments[512];
        snprintf(arguments, sizeof(arguments), "run " JOB "%s --verify --json", cases[i].job);
        run(cases[i].environment, arguments);
        expect_verified(cases[i].kernel);
        cr_expect_eq(command_count_lines(result.err, "ringattn: warning:"), 0, "%s", result.err);
        snprintf(arguments, sizeof(arguments), "plan " JOB "%s --set compute.backend=cuda --json",
                 cases[i].job);
        run(cases[i].environment, arguments);
        cr_assert_eq(result.code, 0, "%s", result.err);
        json_t *root = parse_json(result.out);
        cr_expect_str_eq(text(first_point(root), "kernel"), cases[i].kernel, "%s", cases[i].job);
        json_decref(root);
    }
    run("", "plan " JOB WIDE);
    cr_expect_eq(command_count_lines(result.out, "multiprocessors each, kernel cuda-sm_90a"), 1,
                 "%s", result.out);
    run("", "info");
    cr_expect_eq(command_count_lines(result.out, "multiprocessors), kernels cuda-sm_90a cuda"), 2,
                 "%s", result.out);
    run("RA_STANDIN_MAJOR=8", "info");
    cr_expect_eq(command_count_lines(result.out, "multiprocessors), kernels cuda"), 2, "%s",
                 result.out);
    cr_expect_eq(command_count_lines(result.out, "multiprocessors), kernels cuda-"), 0, "%s",
                 result.out);
}

/* Each of the two has the kernels of its own GPU, whichever has the other. */
Test(device_emulated, ranks_of_different_gpus_each_take_what_suits_theirs)
{
    static const char *const all[] = {"", "RA_STANDIN_MAJOR=8"};
    static const char *const second[] = {"RA_STANDIN_MAJOR=8", "RA_STANDIN_MAJOR=9"};
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    for (size_t i = 0; i < 2; i++) {
        run_ranks(2, all[i], second[i],
                  "run " JOB WIDE "--set comm.backend=mpi --set ring.layout=zigzag --backward "
                  "--verify --json");
        expect_verified(i == 0 ? "cuda-sm_90a" : "cuda");
        cr_expect_eq(command_count_lines(result.err, "ringattn: error:"), 0, "%s", result.err);
    }
}

/* By these kernels' name. */
static void expect_jobs_verified(const char *const *jobs, size_t count, const char *isa)
{
    char arguments[512], kernel[40];
    snprintf(kernel, sizeof(kernel), "cuda-%s", isa);
    for (size_t i = 0; i < count; i++) {
        snprintf(arguments, sizeof(arguments), "run " JOB "%s --set compute.isa=%s --verify --json",
                 jobs[i], isa);
        run("", arguments);
        expect_verified(kernel);
    }
}

/* Its own kernels, where it has some, and those of sm_80. */
Test(device_emulated, the_instruction_set_of_compute_capability_9_0_is_right_too)
{
    static const char *const jobs[] = {"--set shape.dtype=bf16 --set shape.head_dim=128",
                                       "--set shape.dtype=f16 --set shape.head_dim=64 --backward",
                                       "--set shape.dtype=bf16 --set shape.head_dim=100 "
                                       "--set pattern.window.left=70 --set pattern.sinks=2",
                                       "--set shape.dtype=bf16", "--set shape.dtype=f32"};
    expect_jobs_verified(jobs, sizeof(jobs) / sizeof(jobs[0]), "sm_90a");
    run("", "run " JOB "--set compute.isa=sm_80 --verify --json");
    expect_verified("cuda");
    /* The first block of queries sees all keys: its task is cut into parts. */
    run("RA_STANDIN_MULTIPROCESSORS=4",
        "run --set compute.backend=cuda --set shape.seq=1500 --set shape.heads=2 --set "
        "shape.head_dim=64 --set shape.dtype=bf16 --set pattern.blocks.kind=global_local --set "
        "pattern.blocks.size=128 --set pattern.blocks.width=0 --set compute.isa=sm_90a --verify "
        "--json --set job.repeat=2");
    expect_verified("cuda-sm_90a");
}

/* By name alone; with what is not computed so, too. */
Test(device_emulated, backward_by_warpgroups_is_right_where_it_is_asked_for)
{
    static const char *const jobs[] = {
        WIDE "--backward", WIDE "--backward --set compute.deterministic=true", WIDE,
        "--set shape.dtype=bf16 --set shape.head_dim=50 --set pattern.dilated.segments=[32,64] "
        "--set pattern.dilated.rates=[1,2] --backward",
        "--set shape.dtype=f16 --set shape.head_dim=64 --backward"};
    expect_jobs_verified(jobs, sizeof(jobs) / sizeof(jobs[0]), "sm_90a_backward");
    if (!command_has_mpi())
        return;
    run_ranks(2, "", "",
              "run " JOB WIDE "--set comm.backend=mpi --set compute.isa=sm_90a_backward --backward "
              "--verify --json");
    expect_verified("cuda-sm_90a_backward");
}

Test(device_emulated, other_gpus_do_not_have_the_instruction_set_of_9_0)
{
    static const char *const commands[] = {"run", "info"};
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        char arguments[512];
        snprintf(arguments, sizeof(arguments), "%s " JOB "--set compute.isa=sm_90a", commands[i]);
        run("RA_STANDIN_MAJOR=8", arguments);
        expect_error(2,
                     "compute.isa: sm_90a: code for sm_90a runs on compute capability 9.0 alone");
        run("RA_STANDIN_MAJOR=10", arguments);
        expect_error(2, "has 10.0: use compute.isa: auto");
        snprintf(arguments, sizeof(arguments), "%s " JOB "--set compute.isa=sm_90a_backward",
                 commands[i]);
        run("RA_STANDIN_MAJOR=8", arguments);
        expect_error(2, "compute.isa: sm_90a_backward: code for sm_90a runs on compute capability");
        run("RA_STANDIN_ABSENT=35", arguments);
        expect_error(2, "compute.backend: cuda: the NVIDIA driver is too old");
    }
}

/* Scores of up to 1,400: most rows see one key in truth, and what is left of their gradients is
   what rounding left. Weights that are rounded, but not 1, would leave ten times as much. */
Test(device_emulated, gradients_of_rows_that_see_one_key_vanish)
{
#define STEEP_JOB                                                                                  \
    "run --set compute.backend=cuda --set shape.seq=200 --set shape.heads=1 "                      \
    "--set shape.head_dim=128 --set shape.dtype=bf16 --set shape.scale=30 "                        \
    "--set job.seed=4 --backward --verify --json"
    run("", STEEP_JOB);
    expect_verified("cuda-sm_90a");
    run("", STEEP_JOB " --set compute.isa=sm_80");
    expect_verified("cuda");
}

/* ---- a GPU of several ranks ------------------------------------------------------------------ */

#define TOGETHER "RA_STANDIN_DEVICES=1 RA_STANDIN_CONTEXT=100000000 RA_STANDIN_CONTEXTS=.contexts"

/* Each rank may take half of what both contexts leave, however late the second one comes. */
Test(device_emulated, ranks_of_one_gpu_ask_what_is_free_when_all_have_it)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    run_ranks(2, TOGETHER, "RA_STANDIN_CONTEXT_MS=1000", "run " JOB "--verify --json");
    json_t *root;
    const json_t *point = verified_point("cuda", &root);
    cr_expect_eq(integer(point, "limit_bytes_sum"), ((int64_t)1 << 30) - 2 * 100000000);
    json_decref(root);
}

/* A rank without the GPU is waited for likewise, and no longer. */
Test(device_emulated, ranks_of_one_gpu_do_not_wait_for_one_that_cannot_have_it)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    run_ranks(2, TOGETHER, "RA_STANDIN_TAKEN=46", "run " JOB "--json");
    expect_error(5, "(CUDA error 46)");
}

/* ---- less shared memory ---------------------------------------------------------------------- */

/* As thread blocks have on GPUs of compute capability 8.6, 8.9 and 12.x: the least from 8.0 on. */
#define LEAST_GPU "RA_STANDIN_MAJOR=8 RA_STANDIN_SHARED_BYTES=101376"

Test(device_emulated, a_gpu_of_99_kib_computes_the_widest_heads)
{
    static const char *const jobs[] = {
        "--set shape.dtype=bf16 --set shape.head_dim=128", "--set shape.dtype=bf16",
        "--set shape.dtype=f16", "--set shape.dtype=f32",
        "--set attention.kind=linear_causal --set shape.head_dim=128"};
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        char arguments[512];
        snprintf(arguments, sizeof(arguments),
                 "run --set compute.backend=cuda --set shape.seq=40 --set shape.heads=1 "
                 "--set shape.head_dim=256 %s --backward --verify --json",
                 jobs[i]);
        run(LEAST_GPU, arguments);
        expect_verified("cuda");
    }
}

/* What a driver may report, though no GPU from 8.0 on has so little. */
#define SMALL_GPU "RA_STANDIN_SHARED_BYTES=49152"
#define WIDE_JOB                                                                                   \
    "--set shape.seq=40 --set shape.heads=1 --set shape.head_dim=128 --set shape.dtype=bf16 "      \
    "--backward "

static void expect_on_cpu(const char *why)
{
    json_t *root = parse_json(result.out);
    const json_t *point = first_point(root);
    const char *kernel = text(point, "kernel");
    const char *note = text(point, "backend_note");
    cr_expect_eq(strncmp(kernel, "cpu-", 4), 0, "%s", kernel);
    cr_expect_not_null(strstr(note, why), "%s", note);
    json_decref(root);
}

Test(device_emulated, a_gpu_with_less_shared_memory_is_refused_before_the_job)
{
    static const char *const jobs[] = {
        "run " WIDE_JOB "--output o.safetensors --set compute.backend=cuda",
        "run " WIDE_JOB "--output o.safetensors --set comm.backend=nccl",
        "info " WIDE_JOB "--set compute.backend=cuda",
        "run --set shape.seq=40 --set shape.heads=1 --set shape.head_dim=129 "
        "--set attention.kind=linear --set compute.backend=cuda",
        "run --set shape.seq=40 --set shape.heads=1 --set shape.head_dim=193 "
        "--set shape.dtype=f32 --set compute.backend=cuda"};
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        run(SMALL_GPU, jobs[i]);
        expect_error(2, "and GPU 0 (stand-in 0) has 49152");
        cr_expect_eq(command_folder_entries(), 0);
    }
}

/* No job would take it. */
Test(device_emulated, a_gpu_too_old_is_not_asked_what_it_has)
{
    run("RA_STANDIN_OLD=1", "info " WIDE_JOB "--set compute.backend=cuda");
    cr_expect_eq(result.code, 0, "%s", result.err);
    cr_expect_not_null(strstr(result.out, "1 GPU; CUDA of the driver"), "%s", result.out);
    cr_expect_eq(command_count_lines(result.out, "GPU 1: stand-in 1 (9.0"), 1, "%s", result.out);
    cr_expect_eq(command_count_lines(result.out, "GPU 0: "), 0, "%s", result.out);
}

Test(device_emulated, auto_leaves_a_gpu_with_less_shared_memory_and_says_so_once)
{
    run(SMALL_GPU, "run " JOB "--set compute.backend=auto --set shape.dtype=bf16 --backward "
                   "--verify --json");
    expect_verified("cuda"); /* what it has suffices there */
    cr_expect_eq(command_count_lines(result.err, "ringattn: warning:"), 0, "%s", result.err);
    run(SMALL_GPU, "run " WIDE_JOB "--verify --json");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_eq(command_count_lines(result.err, "ringattn: warning:"), 1, "%s", result.err);
    cr_expect_not_null(strstr(result.err, "has 49152: the CPU computes instead"), "%s", result.err);
    expect_on_cpu("of shared memory per thread block");
    static const char sweep[] = "sweep: {shape.seq: [40]}\n";
    command_file_write("sweep.yaml", sweep, strlen(sweep));
    run(SMALL_GPU, "bench --json --config sweep.yaml " WIDE_JOB
                   "--set job.repeat=1 --set memory.pool.mode=off");
    cr_assert_eq(result.code, 0, "%s", result.err);
    expect_on_cpu("of shared memory per thread block");
    json_t *root = parse_json(result.out);
    const json_t *point = first_point(root);
    cr_expect_eq(integer(point, "theory_bytes"), integer(point, "peak_bytes"));
    cr_expect_gt(integer(point, "theory_bytes"), 0);
    json_decref(root);
}

/* The CPU, which would have a prediction, was not asked for. */
Test(device_emulated, nothing_is_predicted_of_a_job_that_was_refused)
{
    static const char *const keys[] = {"comm.backend: nccl", "compute.backend: cuda"};
    static const char sweep[] = "sweep: {compute.backend: [auto, cuda]}\n";
    command_file_write("sweep.yaml", sweep, strlen(sweep));
    run(SMALL_GPU, "bench --json --config sweep.yaml " WIDE_JOB "--set comm.backend=nccl");
    cr_expect_eq(result.code, 2, "%s", result.err);
    json_t *root = parse_json(result.out);
    const json_t *points = member(root, "points");
    cr_assert_eq(json_array_size(points), 2, "%s", result.out);
    for (size_t i = 0; i < 2; i++) {
        const json_t *point = json_array_get(points, i);
        const char *message = text(point, "message");
        cr_expect_not_null(strstr(message, keys[i]), "%s", message);
        cr_expect_not_null(strstr(message, "and GPU 0 (stand-in 0) has 49152"), "%s", message);
        cr_expect_null(json_object_get(point, "theory_bytes"), "%s", result.out);
    }
    json_decref(root);
}

Test(device_emulated, one_rank_whose_gpu_has_less_shared_memory_takes_all_to_the_cpu)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    run_ranks(2, "", SMALL_GPU, "run " WIDE_JOB "--json");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_eq(command_count_lines(result.err, "ringattn: warning:"), 1, "%s", result.err);
    cr_expect_not_null(strstr(result.err, "has 49152: the CPU computes instead (rank 1 on host"),
                       "%s", result.err);
    expect_on_cpu("of another rank");
}

/* As of a GPU that this build has no code for: the first kernel to be launched finds out. */
Test(device_emulated, auto_leaves_a_gpu_on_which_the_check_fails)
{
    static const char *const errors[] = {"RA_STANDIN_NO_CODE=209", "RA_STANDIN_NO_CODE=222"};
    for (size_t i = 0; i < 2; i++) {
        run(errors[i], "run " WIDE_JOB "--verify --json");
        cr_assert_eq(result.code, 0, "%s", result.err);
        cr_expect_eq(command_count_lines(result.err, "ringattn:"), 1, "%s", result.err);
        cr_expect_not_null(strstr(result.err, "): the CPU computes instead"), "%s", result.err);
        expect_on_cpu(i == 0 ? "(CUDA error 209)" : "(CUDA error 222)");
        run(errors[i], "run " WIDE_JOB "--set compute.backend=cuda");
        expect_error(5, i == 0 ? "(CUDA error 209)" : "(CUDA error 222)");
    }
    run("RA_STANDIN_FAULT=1", "run " WIDE_JOB "--json");
    expect_error(5, "GPU 0 is lost to this process");
}

/* ---- linear attention ------------------------------------------------------------------------ */

#define LINEAR_JOB                                                                                 \
    "--set compute.backend=cuda --set shape.seq=1100 --set shape.heads=2 --set shape.kv_heads=1 "  \
    "--set shape.head_dim=24 "

Test(device_emulated, linear_attention_is_right_in_every_dtype)
{
    static const char *const kinds[] = {
        "--set attention.kind=linear --set shape.dtype=f32 --backward",
        "--set attention.kind=linear_causal --set shape.dtype=f16 --backward",
        "--set attention.kind=linear_causal --set shape.dtype=bf16 --backward",
        "--set attention.kind=linear_causal --set attention.linear_method=recurrent",
        "--set attention.kind=linear_causal --set attention.linear_method=cumsum"};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        char arguments[512];
        snprintf(arguments, sizeof(arguments), "run " LINEAR_JOB "%s --verify --json", kinds[i]);
        run("", arguments);
        expect_verified("cuda");
    }
    if (command_has_mpi()) {
        run("\"$MPIEXEC\" -n 2", "run " LINEAR_JOB "--set attention.kind=linear_causal "
                                 "--set comm.backend=mpi --backward --verify --json");
        expect_verified("cuda");
    }
}

/* Scratch holds fewer blocks of these than the GPU would: two carry three matrices each. */
Test(device_emulated, linear_attention_by_rows_keeps_to_its_scratch)
{
    static const char *const methods[] = {"recurrent", "cumsum"};
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        char arguments[512];
        snprintf(arguments, sizeof(arguments),
                 "run --set compute.backend=cuda --set shape.seq=3 --set shape.heads=4 "
                 "--set shape.head_dim=256 --set attention.kind=linear_causal "
                 "--set attention.linear_method=%s --verify --json",
                 methods[i]);
        run("RA_STANDIN_MULTIPROCESSORS=1", arguments);
        expect_verified("cuda");
    }
}

/* What the driver holds is in its units: what is in use, and the rest idle. */
Test(device_emulated, the_drivers_pool_serves_a_job)
{
    run("", "run " JOB "--set shape.dtype=f32 --set memory.pool.mode=driver --verify --json");
    json_t *root;
    const json_t *point = verified_point("cuda", &root);
    json_t *value, *bytes = member(point, "memory_bytes");
    const json_t *pool = member(point, "pool");
    const char *name;
    json_int_t sum = 0;
    cr_expect_str_eq(text(pool, "mode"), "driver");
    json_object_foreach(bytes, name, value) sum += json_integer_value(value);
    cr_expect_eq(sum % (32 << 20), 0, "%lld", (long long)sum);
    cr_expect_gt(integer(bytes, "pool_idle"), 0);
    cr_expect_gt(integer(pool, "hits"), 0);
    json_decref(root);
}

Test(device_emulated, ranks_pass_keys_through_host_memory)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    run("\"$MPIEXEC\" -n 2",
        "run " JOB "--set shape.dtype=bf16 --set comm.backend=mpi --backward --verify --json");
    expect_verified("cuda");
}

/* Documents that are whole on a rank: nobody else adds to gradients. One that is not: rank 1, which
   takes most, has state and sums of dq, but stores dk and dv: heads that share keys are not
   computed apart. */
Test(device_emulated, ranks_store_gradients_that_one_step_computes)
{
    enum { ROWS = 64, DIM = 32, LINES = 4 * ROWS, DELTA = LINES * 4 };
    static const struct {
        const char *documents;
        int64_t sums;
    } cases[] = {{"[64, 64]", 0}, {"[32, 96]", LINES * 4 * (DIM + 2 + DIM)}};
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char arguments[512];
        snprintf(arguments, sizeof(arguments),
                 "run --set compute.backend=cuda --set comm.backend=mpi --set shape.seq=128 "
                 "--set shape.heads=4 --set shape.kv_heads=1 --set shape.head_dim=32 "
                 "--set shape.dtype=f16 --set pattern.causal=true --set pattern.documents='%s' "
                 "--set ring.layout=contiguous --set memory.pool.mode=off --backward --verify "
                 "--json",
                 cases[i].documents);
        run("\"$MPIEXEC\" -n 2", arguments);
        json_t *root;
        const json_t *memory = member(verified_point("cuda", &root), "category_peak_bytes");
        int64_t const taken = integer(memory, "accumulator");
        cr_expect_eq(taken, DELTA + cases[i].sums, "%s: %lld", cases[i].documents,
                     (long long)taken);
        json_decref(root);
    }
}

Test(device_emulated, a_limit_ends_the_job_with_what_it_holds)
{
    run("", "run " JOB "--set memory.limit=16KiB");
    expect_error(4, "memory limit");
}

#define STANDARD JOB "--set attention.kind=standard "

static json_int_t memory_of(const char *category)
{
    json_t *root = parse_json(result.out);
    const json_t *point = first_point(root);
    const json_t *bytes = json_object_get(member(point, "memory_bytes"), category);
    json_int_t const value = json_is_integer(bytes) ? json_integer_value(bytes) : -1;
    json_decref(root);
    return value;
}

/* What cuBLAS multiplies is a stand-in's; all else is the table's own. */
Test(device_emulated, materialised_scores_are_right_in_every_dtype)
{
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    enum { MATRIX_BYTES = (4 * 2 * 150 * 150 + 511) / 512 * 512 };
    for (int i = 0; i < 3; i++) {
        char arguments[512];
        snprintf(arguments, sizeof(arguments),
                 "run " STANDARD "--set shape.dtype=%s --backward --verify --json", dtypes[i]);
        run("", arguments);
        if (strstr(result.err, "this build has no cuBLAS") != NULL)
            cr_skip_test("this build has no cuBLAS");
        expect_verified("cuda-standard");
        cr_expect_eq(memory_of("scores"), 4 * MATRIX_BYTES, "%lld", (long long)memory_of("scores"));
        cr_expect_geq(memory_of("workspace"), 32 << 20);
    }
}

/* Nothing of a plan is asked of a GPU or of cuBLAS. */
Test(device_emulated, materialised_scores_are_planned_where_neither_gpu_nor_cublas_is)
{
    static const char gpu[] = "name: some GPU\nmultiprocessors: 132\n";
    command_file_write("gpu.yaml", gpu, strlen(gpu));
    run("", "plan --json --hardware gpu.yaml " STANDARD);
    if (strstr(result.err, "this build has no cuBLAS") != NULL)
        cr_skip_test("this build has no cuBLAS");
    cr_assert_eq(result.code, 0, "%s", result.err);
    json_int_t const bytes = memory_of("scores");
    cr_expect_gt(bytes, 0);
    run("RA_STANDIN_ABSENT=100 RA_STANDIN_NO_CUBLAS=1",
        "plan --json --hardware gpu.yaml " STANDARD);
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_eq(memory_of("scores"), bytes);
    run("RA_STANDIN_NO_CUBLAS=1", "run " STANDARD);
    expect_error(2, "libcublas");
    run("RA_STANDIN_NO_CUBLAS=1", "run " STANDARD "--set compute.backend=auto");
    cr_expect_eq(result.code, 0, "%s", result.err);
    cr_expect_not_null(strstr(result.out, "the CPU: there is no libcublas"), "%s", result.out);
}

/* What cuBLAS has taken is seen by who has a GPU alone. */
Test(device_emulated, ranks_materialise_their_share_of_scores)
{
    static const char *const gpus[] = {"RA_STANDIN_DEVICES=1 \"$MPIEXEC\" -n 2",
                                       "RA_STANDIN_DEVICES=2 \"$MPIEXEC\" -n 2"};
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    for (int i = 0; i < 2; i++) {
        run(gpus[i], "run " STANDARD "--set shape.dtype=bf16 --set comm.backend=mpi "
                     "--set ring.layout=zigzag --set ring.head_groups=1 --backward "
                     "--verify --json");
        if (strstr(result.err, "this build has no cuBLAS") != NULL)
            cr_skip_test("this build has no cuBLAS");
        expect_verified("cuda-standard");
        cr_expect_eq(memory_of("context") > 0, i == 1, "%lld", (long long)memory_of("context"));
    }
}
