/* What the tables of several jobs say of the GPU: bench, probe and ablate. */
#include "tool/device_runner.h"

TestSuite(device_tables, .init = command_folder_make, .fini = command_folder_remove,
          .timeout = 300);

#define ABSENT "RA_STANDIN_ABSENT=35 RA_STANDIN_DRIVER=0"
#define SMALL  "--quiet --set memory.limit=4M --set job.repeat=1 "

static void write_job(const char *yaml)
{
    command_file_write("job.yaml", yaml, strlen(yaml));
}

static void expect_before(const char *first, const char *second)
{
    const char *a = strstr(result.out, first), *b = strstr(result.out, second);
    cr_expect(a != NULL && b != NULL && a < b, "'%s' is not before '%s':\n%s", first, second,
              result.out);
}

Test(device_tables, auto_says_once_and_first_what_computes)
{
    static const struct {
        const char *arguments, *header;
    } cases[] = {{"bench --config job.yaml " SMALL, "pass "},
                 {"probe --config job.yaml " SMALL, "variant "},
                 {"ablate --config job.yaml " SMALL, "memory "}};
    write_job("shape: {seq: 64, heads: 1, head_dim: 64, dtype: f32}\n"
              "variants: {plain: {pattern.causal: false}, causal: {pattern.causal: true}}\n");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        run(ABSENT, cases[i].arguments);
        cr_assert_eq(result.code, 0, "%s", result.err);
        cr_expect_eq(command_count_lines(result.out, "backend "), 1, "%s", result.out);
        expect_before("backend     the CPU: there is no NVIDIA driver", cases[i].header);
        run("", cases[i].arguments);
        cr_assert_eq(result.code, 0, "%s", result.err);
        cr_expect_eq(command_count_lines(result.out, "backend "), 1, "%s", result.out);
        expect_before("backend     GPU 0: stand-in 0", cases[i].header);
        char line[256];
        snprintf(line, sizeof(line), "%s --set compute.backend=cpu", cases[i].arguments);
        run("", line);
        cr_assert_eq(result.code, 0, "%s", result.err);
        cr_expect_eq(command_count_lines(result.out, "backend "), 0, "%s", result.out);
    }
}

Test(device_tables, a_point_on_another_backend_says_so)
{
    write_job("shape: {seq: 64, heads: 1}\nsweep: {compute.backend: [auto, cuda, cpu, auto]}\n");
    run("", "bench --config job.yaml " SMALL);
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_eq(command_count_lines(result.out, "backend     GPU 0: stand-in 0"), 2, "%s",
                 result.out);
    cr_expect_eq(command_count_lines(result.out, "backend     the CPU"), 1, "%s", result.out);
    cr_expect_eq(command_count_lines(result.out, "forward "), 4, "%s", result.out);
}

/* ---- bench's limits -------------------------------------------------------------------------- */

#define COUNTING "RA_STANDIN_LIMITS=calls"

/* 132 multiprocessors at 1 GHz, 4096 and 256 operations per clock. */
#define GPU_LIMITS "limits of 1 GPU: tensor (f16, bf16) 541, fma (f32) 33.8 TFLOP/s"

Test(device_tables, bench_measures_no_limit_of_the_cpu_on_a_gpu)
{
    write_job("shape: {seq: 64, heads: 1}\nsweep: {shape.dtype: [bf16, f32]}\n");
    run(COUNTING, "bench --config job.yaml " SMALL);
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_not(command_file_exists("calls"));
    cr_expect_eq(command_count_lines(result.out, "limits of "), 1, "%s", result.out);
    expect_before(GPU_LIMITS, "pass ");
    run(COUNTING, "bench --json --config job.yaml " SMALL);
    cr_assert_eq(result.code, 0, "%s", result.err);
    json_t *root = parse_json(result.out);
    cr_expect_eq(json_array_size(member(root, "limits")), 0);
    cr_expect_float_eq(real(first_point(root), "limit_tflops"), 540.672, 1e-6);
    cr_expect_float_eq(real(json_array_get(member(root, "points"), 1), "limit_tflops"), 33.792,
                       1e-6);
    cr_expect_not(command_file_exists("calls"));
    json_decref(root);
}

/* The stand-in's limits for f32 are 0.1. */
Test(device_tables, bench_measures_limits_where_auto_ends_on_the_cpu)
{
    static const char *const causes[] = {ABSENT " " COUNTING, "RA_SEALED_BROKEN=1 " COUNTING,
                                         "RA_STANDIN_TAKEN=46 " COUNTING};
    write_job("shape: {seq: 64, heads: 1, dtype: f32}\n");
    for (size_t i = 0; i < sizeof(causes) / sizeof(causes[0]); i++) {
        run(causes[i], "bench --json --config job.yaml " SMALL);
        cr_assert_eq(result.code, 0, "%s", result.err);
        json_t *root = parse_json(result.out);
        cr_expect_geq(json_array_size(member(root, "limits")), 2);
        cr_expect_float_eq(real(first_point(root), "limit_tflops"), 0.1, 1e-6);
        cr_expect(command_file_exists("calls"));
        json_decref(root);
    }
}

/* Points on the CPU have the CPU's, and those on a GPU beside them the GPU's. */
Test(device_tables, bench_shows_the_limits_of_each_backend)
{
    write_job("shape: {seq: 64, heads: 1}\nsweep: {compute.backend: [cuda, cpu]}\n");
    run("", "bench --config job.yaml " SMALL);
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_eq(command_count_lines(result.out, GPU_LIMITS), 1, "%s", result.out);
    cr_expect_eq(command_count_lines(result.out, "limits of 1 rank x "), 2, "%s", result.out);
    cr_expect_eq(command_count_lines(result.out, "sgemm: "), 1, "%s", result.out);
    cr_expect_eq(command_count_lines(result.out, "pass "), 1, "%s", result.out);
}

/* ---- what a plan learns of a GPU ------------------------------------------------------------- */

Test(device_tables, plan_is_calibrated_by_a_bench_on_a_gpu)
{
    write_job("shape: {heads: 1, dtype: bf16}\nsweep: {shape.seq: [64, 128, 200]}\n");
    run("", "bench --json=bench.json --backward --config job.yaml " SMALL);
    cr_assert_eq(result.code, 0, "%s", result.err);
    run("RA_STANDIN_ABSENT=100",
        "plan --json --calibrate bench.json --backward --set shape.seq=100 "
        "--set compute.backend=cuda --set shape.dtype=bf16");
    cr_assert_eq(result.code, 0, "%s", result.err);
    json_t *root = parse_json(result.out);
    const json_t *point = first_point(root);
    cr_expect_gt(real(member(point, "forward_ms"), "median"), 0);
    cr_expect_gt(real(member(point, "backward_ms"), "median"), 0);
    json_decref(root);
}

/* ---- ranks that share a GPU ------------------------------------------------------------------ */

static void expect_shared(int gpus, const char *arguments, const char *row, int warnings)
{
    char start[96];
    snprintf(start, sizeof(start), "RA_SEALED_PLAIN=1 RA_STANDIN_DEVICES=%d \"$MPIEXEC\" -n 3",
             gpus);
    run(start, arguments);
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_eq(command_count_lines(result.out, row), 1, "%s", result.out);
    cr_expect_eq(
        command_count_lines(result.err, "warning: compute.backend: auto has given one GPU"),
        warnings, "%s", result.err);
}

Test(device_tables, ranks_that_auto_puts_on_one_gpu_are_told_of_it)
{
#define SHARED_JOB "--set shape.seq=64 --set shape.heads=1 --set comm.backend=mpi --quiet "
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    expect_shared(1, "run " SHARED_JOB, "GPU 0: stand-in 0, shared by 3 ranks", 1);
    expect_shared(2, "run " SHARED_JOB, "GPU 0: stand-in 0, shared by 2 ranks", 1);
    expect_shared(3, "run " SHARED_JOB, "GPU 0: stand-in 0", 0);
    expect_shared(1, "run --set compute.backend=cuda " SHARED_JOB, ", shared by 3 ranks", 0);
    expect_shared(1, "ablate --set job.repeat=1 " SHARED_JOB, ", shared by 3 ranks", 1);
    /* Which counts once however many have it. */
    expect_shared(1, "bench --set job.repeat=1 " SHARED_JOB, GPU_LIMITS, 1);
    expect_shared(2, "bench --set job.repeat=1 " SHARED_JOB,
                  "limits of 2 GPUs: tensor (f16, bf16) 1.08e+03, fma (f32) 67.6 TFLOP/s", 1);
    expect_shared(3, "run --json " SHARED_JOB, "\"sharers\": 1,", 0);
    expect_shared(1, "run --json " SHARED_JOB, "\"sharers\": 3,", 1);
}

/* ---- the host's memory beside a GPU's -------------------------------------------------------- */

static const json_t *set_of(const json_t *root, const char *name)
{
    size_t i;
    json_t *point;
    json_array_foreach(member(root, "points"), i, point)
    {
        if (strcmp(text(point, "variant"), name) == 0)
            return point;
    }
    cr_assert_fail("no set %s", name);
    return NULL;
}

static json_t *host_of(const json_t *point)
{
    return member(member(point, "device"), "host_memory_bytes");
}

#define CACHED_JOB "ablate --set shape.seq=700 --set pattern.causal=true --set job.repeat=1 "

/* Tile maps that are cached lie there. */
Test(device_tables, ablate_compares_the_hosts_memory_beside_a_gpus)
{
    run("", CACHED_JOB "--json");
    cr_assert_eq(result.code, 0, "%s", result.err);
    json_t *root = parse_json(result.out), *bytes;
    const json_t *base = set_of(root, "base"), *ring = set_of(root, "ring");
    const char *name;
    cr_expect_eq(integer(member(ring, "difference_bytes"), "pattern_cache"), 0);
    cr_expect_gt(integer(member(ring, "host_difference_bytes"), "pattern_cache"), 0);
    cr_expect_eq(
        integer(member(set_of(root, "no_cache"), "host_difference_bytes"), "pattern_cache"), 0);
    json_object_foreach(host_of(ring), name, bytes)
    {
        cr_expect_eq(integer(member(ring, "host_difference_bytes"), name),
                     json_integer_value(bytes) - integer(host_of(base), name), "%s", name);
    }
    cr_expect_eq(integer(ring, "host_peak_difference_bytes"),
                 integer(member(ring, "device"), "host_peak_bytes") -
                     integer(member(base, "device"), "host_peak_bytes"));
    json_decref(root);
    run("", CACHED_JOB "--json --set compute.backend=cpu");
    root = parse_json(result.out);
    cr_expect(json_is_null(member(set_of(root, "ring"), "host_difference_bytes")));
    cr_expect(json_is_null(member(set_of(root, "ring"), "host_peak_difference_bytes")));
    json_decref(root);
}

Test(device_tables, the_hosts_memory_is_below_a_gpus)
{
    run("", CACHED_JOB "--quiet");
    cr_assert_eq(result.code, 0, "%s", result.err);
    expect_before("\npeak ", "\nhost memory\n");
    expect_before("\nhost memory\n", "\npattern_cache ");
    expect_before("\npattern_cache ", "\nhost peak ");
    cr_expect_eq(command_count_lines(result.out, "less base "), 2, "%s", result.out);
    run("", CACHED_JOB "--quiet --set compute.backend=cpu");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_eq(command_count_lines(result.out, "host "), 0, "%s", result.out);
    write_job("shape: {heads: 1}\nvariants: {plain: {pattern.causal: false}}\n");
    run("", "probe --config job.yaml " SMALL);
    cr_assert_eq(result.code, 0, "%s", result.err);
    expect_before("\nhost memory\n", "\nhost peak ");
}
