/*
 * The whole command with compute.backend: cuda, on memory that only its kernels and copies reach.
 * The kernels are the CPU's: what is tested is all that goes on around those of a GPU.
 */
#include "tool/device_runner.h"

TestSuite(device, .init = command_folder_make, .fini = command_folder_remove, .timeout = 6000);

#define JOB                                                                                        \
    "--set compute.backend=cuda --set shape.seq=700 --set shape.heads=4 --set shape.kv_heads=2 "   \
    "--set shape.head_dim=40 --set pattern.causal=true "

Test(device, a_run_is_right_in_every_dtype)
{
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    for (int i = 0; i < 3; i++) {
        char arguments[512];
        snprintf(arguments, sizeof(arguments),
                 "run " JOB "--set shape.dtype=%s --backward --verify --json", dtypes[i]);
        run("", arguments);
        json_t *root;
        const json_t *point = verified_point("sealed", &root);
        cr_expect(json_is_null(member(point, "backend_note")));
        cr_expect_eq(json_object_size(member(point, "error")), 5);
        json_decref(root);
    }
}

/* Each is said, or not, by a job that is right all the same. */
Test(device, few_queues_are_warned_of)
{
    static const struct {
        const char *environment;
        int warnings;
    } cases[] = {{"", 0},
                 {"CUDA_DEVICE_MAX_CONNECTIONS=1", 1},
                 {"CUDA_DEVICE_MAX_CONNECTIONS=7", 1},
                 {"CUDA_DEVICE_MAX_CONNECTIONS=8", 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        run(cases[i].environment, "run " JOB "--verify --json");
        cr_expect_eq(result.code, 0, "%s", result.err);
        cr_expect_eq(command_count_lines(result.err, "CUDA_DEVICE_MAX_CONNECTIONS="),
                     cases[i].warnings, "%s", result.err);
    }
}

Test(device, its_bytes_and_those_of_the_host_are_told_apart)
{
    run("", "run " JOB "--set shape.dtype=f32 --backward --verify --json");
    cr_assert_eq(result.code, 0, "%s", result.err);
    json_t *root = parse_json(result.out);
    const json_t *point = first_point(root), *device = member(point, "device");
    const json_t *there = member(point, "memory_bytes");
    json_t *here = member(device, "host_memory_bytes");
    int64_t const q = 700 * 4 * 40 * 4, k = 700 * 2 * 40 * 4;
    cr_expect_str_eq(text(device, "name"), "stand-in 0");
    cr_expect_eq(integer(device, "index"), 0);
    cr_expect_geq(integer(there, "qkv"), 2 * q + 2 * k);
    cr_expect_geq(integer(there, "grads"), q + 2 * k);
    cr_expect_geq(integer(there, "output"), q);
    cr_expect_eq(integer(there, "io"), 0);
    cr_expect_eq(integer(here, "qkv"), 0);
    cr_expect_eq(integer(here, "output"), 0);
    cr_expect_eq(integer(here, "grads"), 0);
    cr_expect_gt(integer(here, "tilemap"), 0);
    cr_expect_gt(integer(here, "io"), 0);
    int64_t sum = 0;
    const char *category;
    json_t *bytes;
    json_object_foreach(here, category, bytes)
    {
        sum += json_integer_value(bytes);
    }
    cr_expect_eq(sum, integer(device, "host_peak_bytes"));
    json_decref(root);
    run("", "run " JOB "--quiet");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_eq(command_count_lines(result.out, "backend     GPU 0: stand-in 0"), 1, "%s",
                 result.out);
    cr_expect_eq(command_count_lines(result.out, "host memory "), 1, "%s", result.out);
}

/* The same kernels on the host give the same file. */
Test(device, files_come_and_go_as_on_the_host)
{
    run("", "run " JOB "--set shape.dtype=f16 --backward --output there.safetensors");
    cr_assert_eq(result.code, 0, "%s", result.err);
    run("", "run " JOB "--set compute.backend=cpu --set shape.dtype=f16 --backward --output "
            "here.safetensors");
    cr_assert_eq(result.code, 0, "%s", result.err);
    command_shell(&result, "cmp there.safetensors here.safetensors");
    cr_expect_eq(result.code, 0, "%s%s", result.out, result.err);
}

/* Half the output less than the job takes: how much that is depends on the processor here. */
Test(device, its_memory_limit_ends_the_job_with_what_it_holds)
{
    char text[256];
    run("", "run " JOB "--json");
    cr_assert_eq(result.code, 0, "%s", result.err);
    json_t *root = parse_json(result.out);
    long long const short_of_it = integer(first_point(root), "peak_bytes") - 100000;
    json_decref(root);
    snprintf(text, sizeof(text), "run " JOB "--set memory.limit=%lld", short_of_it);
    run("", text);
    expect_error(4, "memory limit");
    snprintf(text, sizeof(text), "RA_SEALED_BYTES=%lld", short_of_it);
    run(text, "run " JOB);
    expect_error(4, "qkv=");
}

Test(device, a_wrong_kernel_is_caught_before_the_job)
{
    run("RA_SEALED_BROKEN=1", "run " JOB "--output o.safetensors");
    expect_error(1, "kernel sealed computes wrong results here");
    cr_expect_eq(command_folder_entries(), 0);
}

#define SMALL "run --set shape.seq=64 --set shape.heads=1 --verify --json"

Test(device, wrong_kernels_end_a_job_that_insists_on_nccl)
{
    run("RA_SEALED_BROKEN=1", SMALL " --set comm.backend=nccl");
    expect_error(1, "kernel sealed computes wrong results here");
}

Test(device, auto_goes_to_the_cpu_where_its_kernels_are_wrong)
{
    run("RA_SEALED_BROKEN=1", SMALL);
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_eq(command_count_lines(result.err, "ringattn: warning: kernel sealed computes wrong "
                                                 "results here"),
                 1, "%s", result.err);
    cr_expect_not_null(strstr(result.err, "the CPU computes instead"), "%s", result.err);
    json_t *root = parse_json(result.out);
    const char *kernel = text(first_point(root), "kernel");
    const char *note = text(first_point(root), "backend_note");
    cr_assert(kernel != NULL && note != NULL);
    cr_expect_eq(strncmp(kernel, "cpu-", 4), 0, "%s", kernel);
    cr_expect_not_null(strstr(note, "wrong results"), "%s", note);
    cr_expect(json_is_null(member(first_point(root), "device")));
    json_decref(root);
}

/* Another process has it, or its memory. */
Test(device, auto_goes_to_the_cpu_where_a_gpu_cannot_be_taken)
{
    static const struct {
        const char *environment, *says;
        int code; /* if no other backend is allowed */
    } cases[] = {{"RA_STANDIN_TAKEN=46", "choosing a GPU: an injected error (CUDA error 46)", 5},
                 {"RA_STANDIN_TAKEN=2", "choosing a GPU: out of memory (CUDA error 2)", 4}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        run(cases[i].environment, SMALL " --set compute.threads=1");
        cr_assert_eq(result.code, 0, "%s", result.err);
        cr_expect_eq(command_count_lines(result.err, "ringattn:"), 1, "%s", result.err);
        cr_expect_eq(command_count_lines(result.err, "ringattn: warning: choosing a GPU: "), 1,
                     "%s", result.err);
        cr_expect_not_null(strstr(result.err, "): the CPU computes instead"), "%s", result.err);
        json_t *root = parse_json(result.out);
        const json_t *point = first_point(root);
        cr_expect_eq(strncmp(text(point, "kernel"), "cpu-", 4), 0, "%s", result.out);
        cr_expect_str_eq(text(point, "backend_note"), cases[i].says);
        cr_expect(json_is_null(member(point, "device")));
        json_decref(root);
        run(cases[i].environment, "run " JOB);
        expect_error(cases[i].code, cases[i].says);
        run(cases[i].environment, SMALL " --set comm.backend=nccl");
        expect_error(cases[i].code, cases[i].says);
    }
}

Test(device, a_gpu_in_mode_prohibited_is_not_usable)
{
    run("RA_STANDIN_MODE=2", "run --set shape.seq=64 --set shape.heads=1");
    cr_expect_eq(result.code, 0, "%s", result.err);
    cr_expect_not_null(strstr(result.out, "stand-in 0 is in compute mode Prohibited"), "%s",
                       result.out);
    run("RA_STANDIN_MODE=2", "run " JOB);
    expect_error(2, "stand-in 0 is in compute mode Prohibited");
    run("RA_STANDIN_MODE=3", "run " JOB); /* exclusive, and nobody has it */
    cr_expect_eq(result.code, 0, "%s", result.err);
}

Test(device, info_checks_its_kernels_too)
{
    run("RA_SEALED_BROKEN=1", "info --check");
    cr_expect_eq(result.code, 6, "%s", result.err);
    cr_expect_eq(command_count_lines(result.out, "sealed           softmax"), 3, "%s", result.out);
    cr_expect_eq(command_count_lines(result.out, "sealed           linear"), 3, "%s", result.out);
    cr_expect_eq(command_count_lines(result.out, "WRONG"), 3, "%s", result.out);
    cr_expect_eq(command_count_lines(result.err, "ringattn: error:"), 1, "%s", result.err);
}

Test(device, info_lists_them_and_advises_a_rank_for_each)
{
    run("RA_STANDIN_DEVICES=4 RA_STANDIN_OLD=1", "info");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_eq(command_count_lines(result.out, "GPU 1: stand-in 1 (9.0, 1.0 GiB, 132"), 1, "%s",
                 result.out);
    cr_expect_eq(command_count_lines(result.out, "GPU 2: "), 1, "%s", result.out);
    cr_expect_eq(command_count_lines(result.out, "GPU 3: "), 1, "%s", result.out);
    cr_expect_eq(command_count_lines(result.out, "GPU 0: "), 0, "it is too old");
    cr_expect_not_null(strstr(result.out, "advice           3 ranks, each with a GPU to itself\n"),
                       "%s", result.out);
    cr_expect_not_null(strstr(result.out, " mpirun -n 3 --bind-to none ringattn run"), "%s",
                       result.out);
    run("RA_STANDIN_DEVICES=3", "info --json");
    json_t *root = parse_json(result.out);
    const json_t *advice = member(member(root, "machine"), "advice");
    cr_expect_eq(integer(advice, "ranks_per_host"), 3);
    cr_expect_str_eq(text(advice, "bind_to"), "none");
    json_decref(root);
    run("RA_STANDIN_ABSENT=100", "info");
    cr_expect_eq(command_count_lines(result.out, "to itself"), 0, "%s", result.out);
}

Test(device, auto_takes_it_where_it_can_do_the_job)
{
    static const struct {
        const char *arguments, *says;
    } cases[] = {{"run --set shape.seq=64 --set shape.heads=1", "GPU 0: stand-in 0"},
                 {"run --set shape.seq=64 --set shape.heads=1 --set attention.kind=linear "
                  "--backward --verify",
                  "GPU 0: stand-in 0"},
                 {"run --set shape.seq=64 --set shape.heads=1 --set compute.isa=portable",
                  "kernel cpu-portable"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        run("", cases[i].arguments);
        cr_assert_eq(result.code, 0, "%s", result.err);
        cr_expect_not_null(strstr(result.out, cases[i].says), "%s\n%s", cases[i].arguments,
                           result.out);
    }
}

Test(device, refuses_what_it_cannot_do_in_one_line)
{
    static const struct {
        const char *arguments, *says;
    } cases[] = {{"run --set compute.backend=cpu --set comm.backend=nccl", "comm.backend"},
                 {"run --set comm.backend=nccl --set attention.kind=standard", "nccl is for GPUs"},
                 {"run --set compute.backend=cuda --set attention.kind=standard", "libcublas"},
                 {"run " JOB "--set compute.isa=avx2", "compute.isa"},
                 {"plan " JOB "--set compute.isa=sm_90a",
                  "compute.isa: sm_90a: this build has no kernels for it: use compute.isa: auto"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        run("", cases[i].arguments);
        expect_error(2, cases[i].says);
    }
}

Test(device, probe_finds_what_fits_into_its_memory)
{
    run("RA_SEALED_BYTES=4194304", "probe --json --variant lean --set compute.backend=cuda "
                                   "--config lean.yaml");
    cr_expect_eq(result.code, 3);
    static const char text[] = "shape: {heads: 2, head_dim: 32, dtype: bf16}\n"
                               "compute: {backend: cuda}\n"
                               "variants: {lean: {ring.variant: base}}\n";
    command_file_write("lean.yaml", text, strlen(text));
    run("RA_SEALED_BYTES=8388608", "probe --json --config lean.yaml");
    cr_assert_eq(result.code, 0, "%s", result.err);
    json_t *root = parse_json(result.out);
    const json_t *point = first_point(root);
    int64_t const tokens = integer(point, "tokens"), token_bytes = 4 * 2 * 32 * 2;
    cr_expect_leq(tokens * token_bytes, 8388608);
    cr_expect_geq(tokens * token_bytes, 8388608 / 2);
    json_decref(root);
}

Test(device, ablate_bench_and_plan_take_it)
{
    static const char yaml[] = "shape: {seq: 256, heads: 2, head_dim: 32, dtype: bf16}\n"
                               "compute: {backend: cuda}\n"
                               "job: {repeat: 1, warmup: 0}\n"
                               "sweep: {shape.seq: [128, 300]}\n";
    command_file_write("job.yaml", yaml, strlen(yaml));
    run("", "bench --json --config job.yaml");
    cr_assert_eq(result.code, 0, "%s", result.err);
    json_t *root = parse_json(result.out);
    const json_t *points = member(root, "points");
    cr_assert_eq(json_array_size(points), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *point = json_array_get(points, i);
        cr_expect_str_eq(text(point, "status"), "ok");
        /* 132 multiprocessors, 4096 per clock, 1 GHz. */
        cr_expect_float_eq(real(point, "limit_tflops"), 540.672, 1e-6);
        cr_expect_str_eq(text(point, "limit"), "tensor");
        cr_expect_gt(real(point, "share_forward"), 0);
        cr_expect(json_is_object(member(point, "device")));
    }
    json_decref(root);
    run("", "bench --config job.yaml --quiet");
    cr_expect_eq(result.code, 0, "%s", result.err);
    run("", "ablate --json --config job.yaml");
    cr_expect_eq(result.code, 0, "%s", result.err);
    run("", "plan --json --config job.yaml");
    cr_expect_eq(result.code, 0, "%s", result.err);
}

Test(device, a_trace_and_phases_are_those_of_its_passes)
{
    run("", "run " JOB "--trace trace.json --phases --json");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect(command_file_exists("trace.json"));
    json_t *root = parse_json(result.out);
    cr_expect_gt(json_array_size(member(first_point(root), "phases")), 0);
    json_decref(root);
}

/* What the context takes is in the composition, and in a limit that was given; beside what is
   available, as without a limit, it has room. */
Test(device, the_bytes_of_its_context_are_counted)
{
    run("RA_STANDIN_CONTEXT=12345678", "run " JOB "--json");
    cr_assert_eq(result.code, 0, "%s", result.err);
    json_t *root = parse_json(result.out);
    const json_t *bytes = member(first_point(root), "memory_bytes");
    cr_expect_eq(integer(bytes, "context"), 12345678);
    json_decref(root);
    run("", "run " JOB "--set memory.limit=8M");
    cr_assert_eq(result.code, 0, "%s", result.err);
    run("RA_STANDIN_CONTEXT=7345678", "run " JOB "--set memory.limit=8M");
    cr_assert_eq(result.code, 4, "%s", result.err);
    cr_expect_not_null(strstr(result.err, "context=7.0 MiB"), "%s", result.err);
    run("RA_STANDIN_CONTEXT=12345678", "run " JOB "--set memory.limit=8M");
    cr_assert_eq(result.code, 4, "%s", result.err);
    cr_expect_not_null(strstr(result.err, "for context"), "%s", result.err);
}

/* What is taken beyond what a context takes belongs to others, and passes no limit of this job. */
Test(device, bytes_of_other_processes_are_not_charged_to_it)
{
    static const char warning[] = "ringattn: warning: GPU 0: before the job 5.0 GiB of its memory";
    run("RA_STANDIN_BYTES=8589934592 RA_STANDIN_CONTEXT=5368709120",
        "run " JOB "--json --set memory.limit=1100M");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_eq(command_count_lines(result.err, "ringattn:"), 1, "%s", result.err);
    cr_expect_eq(command_count_lines(result.err, warning), 1, "%s", result.err);
    json_t *root = parse_json(result.out);
    const json_t *bytes = member(first_point(root), "memory_bytes");
    cr_expect_eq(integer(bytes, "context"), 1 << 30);
    json_decref(root);
    run("RA_STANDIN_BYTES=8589934592 RA_STANDIN_CONTEXT=1073741824",
        "run " JOB "--json --set memory.limit=1100M");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_eq(command_count_lines(result.err, "ringattn:"), 0, "%s", result.err);
    run("RA_STANDIN_BYTES=8589934592 RA_STANDIN_CONTEXT=5368709120",
        "run " JOB "--json --set memory.limit=1000M");
    cr_expect_eq(result.code, 4, "%s", result.err);
}

/* No GPU, whatever the runtime calls it, is one sentence with both versions, in every command. */
Test(device, that_is_absent_is_said_everywhere)
{
    static const struct {
        const char *environment, *says;
    } cases[] = {
        {"RA_STANDIN_ABSENT=35 RA_STANDIN_DRIVER=0",
         "there is no NVIDIA driver (CUDA of the driver: none, of this build: "},
        {"RA_STANDIN_ABSENT=35 RA_STANDIN_DRIVER=11040",
         "the NVIDIA driver is too old (CUDA of the driver: 11.4, of this build: "},
        {"RA_STANDIN_ABSENT=100",
         "there is no GPU, or CUDA_VISIBLE_DEVICES hides it (CUDA of the driver: 13.0, of "},
        {"RA_STANDIN_ABSENT=34", "is a stub for linking (CUDA of the driver: 13.0, of "}};
    static const char *const refused[] = {"run " JOB, "bench --config job.yaml",
                                          "probe --config job.yaml", "ablate --config job.yaml"};
    static const char text[] = "shape: {seq: 64, heads: 1, head_dim: 16}\n"
                               "compute: {backend: cuda}\n"
                               "sweep: {shape.seq: [64]}\n";
    command_file_write("job.yaml", text, strlen(text));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        run(cases[i].environment, "info");
        cr_expect_eq(result.code, 0, "%s", result.err);
        cr_expect_not_null(strstr(result.out, cases[i].says), "%s", result.out);
        run(cases[i].environment, "run --set shape.seq=64 --set shape.heads=1");
        cr_expect_eq(result.code, 0, "%s", result.err);
        cr_expect_not_null(strstr(result.out, cases[i].says), "%s", result.out);
        for (size_t j = 0; j < (i == 0 ? sizeof(refused) / sizeof(refused[0]) : 1); j++) {
            run(cases[i].environment, refused[j]);
            cr_expect_eq(result.code, 2, "%s: %s", refused[j], result.err);
            cr_expect(strstr(result.err, cases[i].says) != NULL ||
                          strstr(result.out, cases[i].says) != NULL,
                      "%s: %s%s", refused[j], result.out, result.err);
            cr_expect_leq(command_count_lines(result.err, "ringattn: error:"), 1, "%s: %s",
                          refused[j], result.err);
        }
    }
}

/* ---- several ranks --------------------------------------------------------------------------- */

/* Each has a GPU of its own, and messages go through pinned memory. */
#define PLAIN "RA_SEALED_PLAIN=1"

Test(device, ranks_pass_keys_from_one_to_the_other)
{
    static const char *const schedules[] = {"auto", "ring", "direct"};
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    for (int i = 0; i < 3; i++) {
        char arguments[512];
        snprintf(arguments, sizeof(arguments),
                 "run " JOB "--set shape.dtype=bf16 --set comm.backend=mpi --set ring.schedule=%s "
                 "--backward --verify --json",
                 schedules[i]);
        run_ranks(2 + i % 2, PLAIN, "", arguments);
        cr_assert_eq(result.code, 0, "%s", result.err);
        json_t *root = parse_json(result.out);
        const json_t *point = first_point(root);
        cr_expect_str_eq(text(point, "comm"), "staged");
        cr_expect_gt(integer(point, "sent_bytes"), 0);
        cr_expect_gt(integer(member(point, "memory_bytes"), "comm_buffer"), 0);
        cr_expect_gt(integer(member(member(point, "device"), "host_memory_bytes"), "comm_buffer"),
                     0);
        json_decref(root);
    }
}

Test(device, ranks_share_no_memory)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    run_ranks(2, PLAIN, "", "run " JOB "--set ring.schedule=shared --set comm.backend=mpi");
    expect_error(2, "ring.schedule: shared");
}

/* Then it computes nowhere: the ranks of a job have one backend. */
Test(device, one_rank_with_wrong_kernels_takes_all_to_the_cpu)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    run_ranks(2, "", "RA_SEALED_BROKEN=1", SMALL);
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_eq(command_count_lines(result.err, "ringattn: warning: kernel sealed computes wrong "
                                                 "results here"),
                 1, "%s", result.err);
    cr_expect_not_null(strstr(result.err, "rank 1"), "%s", result.err);
    json_t *root = parse_json(result.out);
    const char *note = text(first_point(root), "backend_note");
    cr_assert_not_null(note);
    cr_expect_not_null(strstr(note, "on another rank"), "%s", note);
    json_decref(root);
}

Test(device, one_rank_whose_gpu_is_taken_takes_all_to_the_cpu)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    run_ranks(3, "", "RA_STANDIN_TAKEN=46", SMALL);
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_eq(command_count_lines(result.err, "ringattn: error:"), 0, "%s", result.err);
    cr_expect_eq(command_count_lines(result.err, "ringattn: warning: choosing a GPU: "), 1, "%s",
                 result.err);
    cr_expect_not_null(strstr(result.err, "(CUDA error 46): the CPU computes instead (rank 1 on"),
                       "%s", result.err);
    json_t *root = parse_json(result.out);
    cr_expect_eq(strncmp(text(first_point(root), "kernel"), "cpu-", 4), 0, "%s", result.out);
    json_decref(root);
}

/* The machine is told to have two NUMA nodes of one core. */
Test(device, ranks_bound_to_nothing_are_as_advised)
{
    static const char ranks[] =
        "\"$MPIEXEC\" -n 2 --bind-to none env " PLAIN
        " HWLOC_SYNTHETIC='package:2 numa:1 core:1 pu:1' HWLOC_THISSYSTEM=1";
    static const char *const backends[] = {"cuda", "cpu"};
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    for (int i = 0; i < 2; i++) {
        char job[256];
        snprintf(job, sizeof(job),
                 "run --set shape.seq=64 --set shape.heads=2 --set compute.threads=1 "
                 "--set comm.backend=mpi --set compute.backend=%s",
                 backends[i]);
        run(ranks, job);
        cr_assert_eq(result.code, 0, "%s", result.err);
        /* As the test is. */
        bool const is_bound = command_count_lines(result.err, "are bound to the same core") > 0;
        cr_expect_eq(command_count_lines(result.err, "are bound to nothing"), is_bound ? 0 : i,
                     "%s: %s", backends[i], result.err);
    }
}
