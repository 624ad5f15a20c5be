/* What `plan` knows of machines: from files, from what bench measured, and what it says is missing.
 */
#include "tool/command_runner.h"
#include "tool/json_reader.h"
#include "tool/plan_points.h"

#include <stdio.h>
#include <string.h>

TestSuite(plan_hardware, .init = command_folder_make, .fini = command_folder_remove,
          .timeout = 6000);
static command_result result;

/* Times that one nanosecond per live pair explains, and one per element of a row. */
static void write_bench(void)
{
    static const char bench[] =
        "{\"points\": ["
        "{\"ranks\": 1, \"limit_tflops\": 1, \"config\": {\"shape\": {\"seq\": 1000, \"heads\": 1, "
        "\"dtype\": \"f32\"}}, \"forward_ms\": {\"median\": 1.064}},"
        "{\"ranks\": 1, \"limit_tflops\": 1, \"config\": {\"shape\": {\"seq\": 2000, \"heads\": 1, "
        "\"dtype\": \"f32\"}}, \"forward_ms\": {\"median\": 4.128}},"
        "{\"ranks\": 1, \"limit_tflops\": 1, \"config\": {\"shape\": {\"seq\": 4000, \"heads\": 1, "
        "\"dtype\": \"f32\"}}, \"forward_ms\": {\"median\": 16.256}}]}\n";
    command_file_write("bench.json", bench, strlen(bench));
}

static double forward_ms(const json_t *plan)
{
    return real(member(plan, "forward_ms"), "median");
}

Test(plan_hardware, learns_the_speed_of_a_machine_from_a_bench)
{
    write_bench();
    json_t *plan = plan_point_of(0, "plan --calibrate bench.json --set shape.dtype=f32 "
                                    "--set shape.heads=1 --set shape.seq=3000");
    cr_expect_float_eq(forward_ms(plan), 9.192, 0.09, "%g ms", forward_ms(plan));
    json_decref(plan);
    plan = plan_point_of(0, "plan --calibrate bench.json --set shape.dtype=bf16");
    cr_expect_null(json_object_get(plan, "forward_ms"), "nothing was measured of bf16");
    json_decref(plan);
}

/* A report is no text that the user wrote: it has no lines, and is a file at fault. */
Test(plan_hardware, names_the_point_whose_configuration_it_does_not_know)
{
    static const char later[] =
        "{\"points\": [{\"ranks\": 1}, {\"ranks\": 1, \"limit_tflops\": 1, \"config\": "
        "{\"ring\": {\"newkey\": 1}}, \"forward_ms\": {\"median\": 1}}]}\n";
    command_file_write("later.json", later, strlen(later));
    command_refused(&result, "plan --calibrate later.json", 3,
                    "error: later.json: points[1]: ring.newkey: unknown key");
}

/* The machine that is planned need not have the tensors that were read on the one measured. */
Test(plan_hardware, needs_no_tensors_that_a_bench_has_read)
{
    static const char read[] = "{\"points\": [{\"ranks\": 1, \"limit_tflops\": 1, \"config\": "
                               "{\"shape\": {\"seq\": 1000}, \"job\": {\"input\": \"gone.st\"}}, "
                               "\"forward_ms\": {\"median\": 4}}]}\n";
    command_file_write("read.json", read, strlen(read));
    json_t *plan = plan_point_of(0, "plan --calibrate read.json --set shape.seq=1000");
    cr_expect_float_eq(forward_ms(plan), 4, 0.04, "%g ms", forward_ms(plan));
    json_decref(plan);
}

#define GPU_POINT(kind, seq, ms) GPU_POINT_OF("132", kind, seq, ms)
#define GPU_POINT_OF(threads, kind, seq, ms)                                                       \
    "{\"ranks\": 1, \"limit_tflops\": 1, \"device\": {\"index\": 0}, \"threads\": " threads        \
    ", \"config\": "                                                                               \
    "{\"attention\": {\"kind\": \"" kind "\"}, \"shape\": {\"seq\": " seq                          \
    ", \"heads\": 1, \"dtype\": \"f32\"}}, \"forward_ms\": {\"median\": " ms "}}"

/* The times of write_bench, of a GPU; and points that tell nothing of its flash attention: the
   CPU's limits, its point, and another kind. */
Test(plan_hardware, learns_the_speed_of_a_gpu_from_its_flash_attention_alone)
{
    static const char bench[] =
        "{\"machine\": {\"cuda\": {\"devices\": [{\"compute_capability\": \"9.0\"}]}}, "
        "\"limits\": [{\"fma_tflops\": 100, \"read_gb_per_s\": 1e-3}], \"points\": ["
        "{\"ranks\": 1, \"limit_tflops\": 9, \"config\": {\"shape\": {\"seq\": 1000, \"heads\": 1, "
        "\"dtype\": \"f32\"}}, \"forward_ms\": {\"median\": 1000}}," GPU_POINT(
            "standard", "1000",
            "500") "," GPU_POINT("flash", "1000",
                                 "1.064") "," GPU_POINT("flash", "2000",
                                                        "4.128") "," GPU_POINT("flash", "4000",
                                                                               "16.256") "]}\n";
    if (!RA_TEST_CUDA_KERNELS)
        cr_skip_test("this build has no kernels for GPUs");
    command_file_write("bench.json", bench, strlen(bench));
    json_t *plan =
        plan_point_of(0, "plan --calibrate bench.json --save gpu.yaml --set compute.backend=cuda "
                         "--set shape.dtype=f32 --set shape.heads=1 --set shape.seq=3000");
    cr_expect_float_eq(forward_ms(plan), 9.192, 0.09, "%g ms", forward_ms(plan));
    json_decref(plan);
    plan = plan_point_of(0, "plan --hardware gpu.yaml --set compute.backend=cuda "
                            "--set shape.dtype=f32 --set shape.heads=1 --set shape.seq=3000");
    cr_expect_float_eq(forward_ms(plan), 9.192, 0.09, "%g ms", forward_ms(plan));
    json_decref(plan);
    command_shell(&result, "cat gpu.yaml");
    cr_expect_eq(command_count_lines(result.out, "multiprocessors: 132"), 1, "%s", result.out);
    cr_expect_eq(command_count_lines(result.out, "compute_capability: 9"), 1, "%s", result.out);
    cr_expect_eq(command_count_lines(result.out, "memory_gb_per_s"), 0, "%s", result.out);
    command_run(&result, 0, "plan --calibrate bench.json");
    cr_expect_eq(command_count_lines(result.err, "bench.json: 2 points of other kinds than flash, "
                                                 "or of the CPU, are left out"),
                 1, "%s", result.err);
}

Test(plan_hardware, says_what_it_does_not_learn_from_a_gpu)
{
    static const char bench[] = "{\"points\": [" GPU_POINT("linear", "1000", "1") "]}\n";
    command_file_write("bench.json", bench, strlen(bench));
    command_refused(&result, "plan --calibrate bench.json", 3,
                    "of a GPU only flash attention is learned");
}

Test(plan_hardware, refuses_a_gpu_of_a_number_of_multiprocessors_that_none_has)
{
    static const char *const benches[] = {
        "{\"points\": [" GPU_POINT_OF("0", "flash", "1000", "1") "]}\n",
        "{\"points\": [" GPU_POINT_OF("-1", "flash", "1000", "1") "]}\n",
        "{\"points\": [" GPU_POINT_OF("65537", "flash", "1000", "1") "]}\n",
        "{\"points\": [" GPU_POINT_OF("\"132\"", "flash", "1000", "1") "]}\n"};
    for (size_t i = 0; i < sizeof(benches) / sizeof(benches[0]); ++i) {
        command_file_write("bench.json", benches[i], strlen(benches[i]));
        command_refused(&result, "plan --calibrate bench.json", 3, "its multiprocessors, are not");
    }
}

/* A hardware file with such numbers would not be read again. */
Test(plan_hardware, learns_no_number_that_its_file_could_not_hold)
{
    static const struct {
        const char *limit, *ms, *cache, *wanted;
    } cases[] = {{"1e18", "1", "1", "peak_tflops.f32 is more than a machine has"},
                 {"1", "1e20", "1", "forward.f32.start_us is more than a machine has"},
                 {"1", "1", "9000000000000000000", "cache is more than a machine has"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char bench[512];
        snprintf(bench, sizeof(bench),
                 "{\"machine\": {\"processor\": {\"caches\": {\"l3_bytes\": %s}}}, \"points\": ["
                 "{\"ranks\": 1, \"limit_tflops\": %s, \"config\": {\"shape\": {\"dtype\": "
                 "\"f32\"}}, \"forward_ms\": {\"median\": %s}}]}",
                 cases[i].cache, cases[i].limit, cases[i].ms);
        command_file_write("bench.json", bench, strlen(bench));
        command_run(&result, 0, "plan --calibrate bench.json --save machine.yaml");
        cr_expect_eq(result.code, 3, "%s: %d", cases[i].wanted, result.code);
        cr_expect_not_null(strstr(result.err, cases[i].wanted), "%s", result.err);
        cr_expect_not(command_file_exists("machine.yaml"));
    }
}

#define CPU_POINT(threads, seq, ms)                                                                \
    "{\"ranks\": 1, \"limit_tflops\": 1, \"threads\": " threads                                    \
    ", \"config\": {\"shape\": {\"seq\": " seq ", \"heads\": 1, \"dtype\": \"f32\"}}, "            \
    "\"forward_ms\": {\"median\": " ms "}}"

/* Where compute.threads is auto; else a line says whose times these are. */
Test(plan_hardware, takes_the_threads_whose_speed_it_knows)
{
    static const char bench[] =
        "{\"points\": [" CPU_POINT("3", "1000", "1.064") "," CPU_POINT("3", "2000", "4.128") "]}\n";
    command_file_write("bench.json", bench, strlen(bench));
    json_t *plan = plan_point_of(0, "plan --calibrate bench.json --save cpu.yaml "
                                    "--set shape.dtype=f32 --set shape.heads=1");
    cr_expect_eq(json_integer_value(json_object_get(plan, "threads")), 3);
    json_decref(plan);
    command_shell(&result, "cat cpu.yaml");
    cr_expect_eq(command_count_lines(result.out, "threads: 3"), 1, "%s", result.out);
    command_run(&result, 0, "plan --hardware cpu.yaml");
    cr_expect_eq(command_count_lines(result.err, "speeds of this machine"), 0, "%s", result.err);
    command_run(&result, 0, "plan --hardware cpu.yaml --set compute.threads=2");
    cr_expect_eq(result.code, 0);
    cr_expect_not_null(strstr(result.err, "those of 3 threads per rank, and compute.threads is 2"),
                       "%s", result.err);
}

static void leaves_out(const char *job, int warnings, const char *missing)
{
    char line[512];
    snprintf(line, sizeof(line),
             "plan --hardware links.yaml --set shape.dtype=f32 --set shape.seq=1000 %s", job);
    command_run(&result, 0, line);
    cr_expect_eq(result.code, 0, "%s", result.err);
    cr_expect_eq(command_count_lines(result.err, "the hardware has no "), warnings, "%s: %s", job,
                 result.err);
    cr_expect_not_null(strstr(result.err, missing), "%s: %s", job, result.err);
}

/* Within a node this one's ranks read in place; it says nothing of what is between nodes. */
Test(plan_hardware, says_which_link_that_bytes_take_it_knows_nothing_of)
{
    static const char links[] = "ranks: 4\nranks_per_node: 2\nshares_memory: true\n"
                                "peak_tflops: {f32: 1}\nforward.f32: {efficiency: 1}\n";
    static const char network[] = "no network.gb_per_s: times leave out what moving bytes between "
                                  "nodes takes";
    command_file_write("links.yaml", links, strlen(links));
    leaves_out("--ranks 1", 0, "");
    leaves_out("--ranks 2", 0, "");
    leaves_out("--ranks 2 --set ring.schedule=direct", 1, "no node.gb_per_s: ");
    leaves_out("", 1, network);
    leaves_out("--set ring.schedule=ring", 1, "no node.gb_per_s and network.gb_per_s: ");
    leaves_out("--set shape.dtype=bf16", 0, ""); /* there are no times */
}

Test(plan_hardware, learns_nothing_from_points_of_different_threads)
{
    static const char *const benches[] = {
        "{\"points\": [" CPU_POINT("1", "1000", "1") "," CPU_POINT("2", "1000", "1") "]}\n",
        "{\"points\": [" CPU_POINT("0", "1000", "1") "]}\n",
        "{\"points\": [" CPU_POINT("4097", "1000", "1") "]}\n"};
    for (size_t i = 0; i < sizeof(benches) / sizeof(benches[0]); ++i) {
        command_file_write("bench.json", benches[i], strlen(benches[i]));
        command_refused(&result, "plan --calibrate bench.json", 3,
                        i == 0 ? "points differ in their threads" : "not from 1 to 4096");
    }
}

/* Ranks that no file counts are those that were started, on one node. */
Test(plan_hardware, without_ranks_leaves_them_to_others)
{
    static const char machine[] = "memory: 1M\n";
    command_file_write("m.yaml", machine, strlen(machine));
    json_t *plan =
        plan_point_of(command_has_mpi() ? 2 : 0, "plan --hardware m.yaml --set shape.seq=64");
    cr_expect_eq(integer(plan, "ranks"), command_has_mpi() ? 2 : 1);
    cr_expect_eq(integer(plan, "sent_network_bytes"), 0);
    json_decref(plan);
    plan = plan_point_of(0, "plan --hardware m.yaml --ranks 3 --set shape.seq=64");
    cr_expect_eq(integer(plan, "ranks"), 3);
    cr_expect_eq(integer(plan, "sent_network_bytes"), 0);
    json_decref(plan);
}

/* A job has to fit both. */
Test(plan_hardware, its_memory_and_the_limit_both_count)
{
    static const char *const limits[] = {"512K", "2M"};
    static const char machine[] = "memory: 1M\n";
    command_file_write("m.yaml", machine, strlen(machine));
    for (int i = 0; i < 2; ++i) {
        char line[200];
        snprintf(line, sizeof(line),
                 "plan --hardware m.yaml --ranks 1 --set shape.seq=64 --set memory.limit=%s",
                 limits[i]);
        json_t *plan = plan_point_of(0, line);
        cr_expect_eq(integer(plan, "limit_bytes"), i == 0 ? 512 << 10 : 1 << 20);
        json_decref(plan);
    }
}

Test(plan_hardware, learns_nothing_from_results_that_were_wrong)
{
    static const char bench[] =
        "{\"points\": [{\"ranks\": 1, \"limit_tflops\": 1, \"status\": \"verification failed\", "
        "\"config\": {\"shape\": {\"seq\": 1000}}, \"forward_ms\": {\"median\": 1}}]}\n";
    command_file_write("bench.json", bench, strlen(bench));
    command_refused(&result, "plan --calibrate bench.json", 3, "no point that was measured");
}

/* Of a name 63 bytes are taken: here the last is half of a character. */
Test(plan_hardware, a_machine_whose_name_was_cut_is_one_that_is_read_again)
{
    char machine[128], name[64] = "";
    memset(name, 'n', 62);
    write_bench();
    snprintf(machine, sizeof(machine), "name: %s\xc3\xa9\n", name);
    command_file_write("long.yaml", machine, strlen(machine));
    json_t *plan = plan_point_of(0, "plan --hardware long.yaml --calibrate bench.json "
                                    "--save saved.yaml --set shape.dtype=f32");
    json_decref(plan);
    plan = plan_point_of(0, "plan --hardware saved.yaml --set shape.dtype=f32");
    cr_expect_str_eq(text(plan, "hardware"), strcat(name, "?"));
    json_decref(plan);
}

Test(plan_hardware, a_machine_that_was_saved_is_the_same_machine)
{
    static const char base[] = "name: a \"quoted\\ name\nranks: 3\nmemory: 1G\n"
                               "node: {gb_per_s: 3, latency_us: 2}\n";
    static const char job[] = "--set shape.dtype=f32 --set shape.heads=1 --set shape.seq=3000 "
                              "--set pattern.causal=true --set ring.schedule=direct";
    char line[512];
    write_bench();
    command_file_write("base.yaml", base, strlen(base));
    snprintf(line, sizeof(line),
             "plan --hardware base.yaml --calibrate bench.json --save saved.yaml %s", job);
    json_t *first = plan_point_of(0, line);
    snprintf(line, sizeof(line), "plan --hardware saved.yaml %s", job);
    json_t *second = plan_point_of(0, line);
    cr_expect_eq(integer(first, "ranks"), 3);
    cr_expect_eq(integer(second, "ranks"), 3);
    cr_expect_str_eq(text(second, "hardware"), "a \"quoted\\ name");
    cr_expect_eq(integer(second, "limit_bytes"), 1 << 30);
    cr_expect_float_eq(forward_ms(second), forward_ms(first), 1e-3 * forward_ms(first));
    cr_expect_float_eq(real(member(second, "forward"), "comm_ms"),
                       real(member(first, "forward"), "comm_ms"), 1e-6);
    json_decref(first);
    json_decref(second);
    command_shell(&result, "$RINGATTN plan --hardware saved.yaml --save again.yaml >plan.txt &&"
                           " sed 1d saved.yaml >saved && sed 1d again.yaml | cmp - saved");
    cr_expect_eq(result.code, 0, "%s%s", result.out, result.err);
    /* A machine without a name. */
    static const char unnamed[] = "memory: 1G\nranks: 4\n";
    command_file_write("unnamed.yaml", unnamed, strlen(unnamed));
    json_decref(plan_point_of(0, "plan --hardware unnamed.yaml --save saved.yaml"));
    json_decref(plan_point_of(0, "plan --hardware saved.yaml"));
    command_refused(&result, "plan --save saved.yaml", 2, "--save");
    command_refused(&result, "plan --calibrate bench.json --save nowhere/saved.yaml", 3,
                    "nowhere/saved.yaml");
}

static void expect_kernel(const char *options, const char *kernel, const char *warning)
{
    char line[512];
    snprintf(line, sizeof(line), "\"$RINGATTN\" plan --quiet --json --ranks 2 %s", options);
    command_shell(&result, line);
    cr_assert_eq(result.code, 0, "%s: %s", options, result.err);
    json_t *root = json_loads(result.out, 0, NULL);
    json_t *point = json_array_get(member(root, "points"), 0);
    cr_expect_eq(strncmp(text(point, "kernel"), kernel, strlen(kernel)), 0, "%s: %s", options,
                 text(point, "kernel"));
    cr_expect(warning != NULL ? strstr(result.err, warning) != NULL : result.err[0] == '\0',
              "%s: %s", options, result.err);
    json_decref(root);
}

/* The kernels and the memory of a plan are those of the machine whose speeds it goes by. */
Test(plan_hardware, auto_is_the_gpus_that_are_described)
{
    static const char gpu[] = "multiprocessors: 132\ncompute_capability: 9.0\nmemory: 1G\n";
    static const char old[] = "multiprocessors: 20\ncompute_capability: 7.5\nmemory: 1G\n";
    static const char with_cuda[] = "--hardware gpu.yaml --set compute.backend=cuda";
    char line[256];
    command_file_write("gpu.yaml", gpu, strlen(gpu));
    command_file_write("old.yaml", old, strlen(old));
    expect_kernel("", "cpu", NULL);
    expect_kernel("--hardware gpu.yaml --set compute.backend=cpu", "cpu",
                  "the CPU is planned, though the hardware has GPUs, whose times these are: the "
                  "CPU was asked for");
    expect_kernel("--hardware old.yaml", "cpu", "from compute capability 8.0 on");
    expect_kernel("--hardware gpu.yaml --set ring.schedule=shared", "cpu", "the CPU is planned");
    command_refused(&result,
                    "plan --ranks 2 --hardware gpu.yaml --set comm.backend=nccl "
                    "--set ring.schedule=shared",
                    2, "comm.backend: nccl is for GPUs");
    command_refused(&result, "plan --ranks 2 --set comm.backend=nccl", 2,
                    "no hardware with GPUs is described");
    snprintf(line, sizeof(line), "\"$RINGATTN\" plan --quiet %s", with_cuda);
    command_shell(&result, line);
    if (result.code != 0) { /* this build has no kernels for GPUs */
        expect_kernel("--hardware gpu.yaml", "cpu", "no kernels for GPUs");
        return;
    }
    expect_kernel(with_cuda, "cuda", NULL);
    expect_kernel("--hardware gpu.yaml", "cuda", NULL);
    json_t *plan = plan_point_of(0, "plan --hardware gpu.yaml");
    cr_expect_str_eq(text(member(member(plan, "config"), "compute"), "backend"), "auto");
    json_decref(plan);
}

/* What a bench of a CPU has measured is no GPU's. */
Test(plan_hardware, a_machine_is_of_cpus_once_one_was_measured)
{
    static const char gpu[] = "multiprocessors: 132\ncompute_capability: 9.0\ncontext: 1M\n"
                              "node: {gb_per_s: 3}\n";
    command_file_write("gpu.yaml", gpu, strlen(gpu));
    write_bench();
    expect_kernel("--hardware gpu.yaml --calibrate bench.json --set shape.dtype=f32", "cpu",
                  "the GPUs of --hardware are left out");
}

/* Every file there is, of machines and of what to measure on one. */
Test(plan_hardware, knows_the_machines_that_come_with_it)
{
    static const char *const names[] = {"h200-nvlink-ib", "a100", "gtx1080", "cpu-2-cores"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char line[512];
        snprintf(line, sizeof(line), "plan --hardware '%s/configs/hardware/%s.yaml' --backward",
                 RA_TEST_SOURCE, names[i]);
        json_t *plan = plan_point_of(0, line);
        cr_expect_gt(forward_ms(plan), 0, "%s", names[i]);
        cr_expect_gt(real(member(plan, "backward_ms"), "median"), forward_ms(plan), "%s", names[i]);
        cr_expect_gt(integer(plan, "limit_bytes"), 1LL << 30, "%s", names[i]);
        json_decref(plan);
    }
}
