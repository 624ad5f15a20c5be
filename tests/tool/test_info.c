#include "tool/command_runner.h"
#include "tool/json_reader.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static command_result *result;

static void begin(void)
{
    command_folder_make();
    result = malloc(sizeof(*result));
}

static void end(void)
{
    free(result);
    command_folder_remove();
}

TestSuite(info, .init = begin, .fini = end, .timeout = 120);

static const json_t *at(const json_t *tree, const char *section, const char *key)
{
    const json_t *value = json_object_get(member(tree, section), key);
    cr_assert_not_null(value, "no %s.%s", section, key);
    return value;
}

/* Every count is a positive number, or null where the machine does not tell. */
static void expect_count(const json_t *tree, const char *section, const char *key)
{
    const json_t *value = at(tree, section, key);
    cr_assert(json_is_null(value) || json_integer_value(value) > 0, "%s.%s", section, key);
}

static json_t *read_machine(int ranks)
{
    json_t *root = parse_json(result->out);
    cr_assert_str_eq(text(root, "command"), "info");
    cr_assert(json_is_string(member(root, "ringattn")));
    json_t *machine = member(root, "machine");
    cr_assert_eq(integer(machine, "ranks"), ranks);
    json_incref(machine);
    json_decref(root);
    return machine;
}

Test(info, refuses_a_configuration_that_run_refuses)
{
    static const char text[] = "shape: {seq: 64}\npattern:\n  documents: [10, 10]\n";
    static const struct {
        const char *arguments, *says;
        int code;
    } cases[] = {{"info --config none.yaml", "none.yaml", 3},
                 {"info --set shape.seq=128Q", "'128Q'", 2},
                 {"info --variant lean", "lean", 2},
                 {"info --config sums.yaml", "sums.yaml:3:3: pattern.documents", 2}};
    command_file_write("sums.yaml", text, strlen(text));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int ranks = 0; ranks <= (command_has_mpi() ? 2 : 0); ranks += 2) {
            command_run(result, ranks, cases[i].arguments);
            cr_expect_eq(result->code, cases[i].code, "%s: %s", cases[i].arguments, result->err);
            cr_expect_eq(command_count_lines(result->err, "ringattn: error:"), 1, "%s: %s",
                         cases[i].arguments, result->err);
            cr_expect_not_null(strstr(result->err, cases[i].says), "%s: %s", cases[i].arguments,
                               result->err);
            cr_expect_str_empty(result->out, "%s", cases[i].arguments);
        }
    }
    command_run(result, 0, "info --quiet --set shape.seq=64");
    cr_expect_eq(result->code, 0, "%s", result->err);
}

Test(info, tells_machine_and_build_as_json)
{
    command_run(result, 0, "info --json");
    cr_assert_eq(result->code, 0, "%s", result->err);
    cr_assert_str_empty(result->err);
    json_t *machine = read_machine(1);
    static const char *const counts[] = {"packages",     "numa_nodes",
                                         "cores",        "hardware_threads",
                                         "usable_cores", "usable_hardware_threads"};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); ++i)
        expect_count(machine, "processor", counts[i]);
    cr_assert_geq(json_integer_value(at(machine, "processor", "usable_cores")), 1);
    expect_count(machine, "memory", "total_bytes");
    expect_count(machine, "memory", "available_bytes");
    cr_assert_leq(json_integer_value(at(machine, "memory", "available_bytes")),
                  json_integer_value(at(machine, "memory", "total_bytes")));
    const json_t *available = at(machine, "isa", "available");
    const char *chosen = json_string_value(at(machine, "isa", "chosen"));
    bool found = false;
    for (size_t i = 0; i < json_array_size(available); ++i)
        found = found || strcmp(chosen, json_string_value(json_array_get(available, i))) == 0;
    cr_assert(found, "the chosen kernels %s are not available", chosen);
    bool const has_gpu = json_is_true(at(machine, "cuda", "available"));
    cr_assert_eq(has_gpu, json_is_null(at(machine, "cuda", "why_not")));
    cr_assert(!has_gpu || json_array_size(at(machine, "cuda", "devices")) > 0);
    cr_assert_not_null(at(machine, "cuda", "driver_cuda"));
    cr_assert_eq(json_is_string(at(machine, "cuda", "runtime_cuda")), RA_TEST_CUDA);
    const json_t *for_gpus = at(machine, "cuda", "kernels");
    cr_assert(json_is_array(for_gpus) && (RA_TEST_CUDA || json_array_size(for_gpus) == 0));
    static const char *const names[] = {"cuda-sm_90a", "cuda", "cuda-sm_90a_backward"};
    size_t const tables = json_array_size(for_gpus);
    /* A build with sanitizers has the runtime alone; others have all, or what every GPU runs. */
    cr_assert(tables == 0 || tables == 1 || tables == 3, "%zu kernels", tables);
    for (size_t i = 0; i < tables; ++i)
        cr_assert_str_eq(json_string_value(json_array_get(for_gpus, i)),
                         names[tables == 1 ? 1 : i]);
    bool const has_nccl = json_is_true(at(machine, "nccl", "available"));
    cr_assert_eq(has_nccl, json_is_null(at(machine, "nccl", "why_not")));
    cr_assert_eq(has_nccl, json_is_string(at(machine, "nccl", "library")));
    bool const has_cublas = json_is_true(at(machine, "cublas", "available"));
    cr_assert_eq(has_cublas, json_is_null(at(machine, "cublas", "why_not")));
    cr_assert_eq(has_cublas, json_is_string(at(machine, "cublas", "library")));
    static const char *const libraries[] = {"compiler", "libfyaml", "jansson", "hwloc"};
    for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); ++i)
        cr_assert_gt(json_string_length(at(machine, "build", libraries[i])), 0);
    json_decref(machine);
}

Test(info, tells_what_mpi_gave_or_why_there_is_none)
{
    int const ranks = command_has_mpi() ? 2 : 0;
    command_run(result, ranks, "info --json");
    cr_assert_eq(result->code, 0, "%s", result->err);
    json_t *machine = read_machine(ranks == 2 ? 2 : 1); /* one rank prints */
    if (command_has_mpi()) {
        cr_assert(json_is_true(at(machine, "mpi", "available")));
        cr_assert_gt(json_string_length(at(machine, "mpi", "library")), 0);
        cr_assert_str_eq(json_string_value(at(machine, "mpi", "thread_level")), "funneled");
    } else {
        cr_assert(json_is_false(at(machine, "mpi", "available")));
        cr_assert_not_null(strstr(json_string_value(at(machine, "mpi", "why_not")), "RA_MPI"));
    }
    json_decref(machine);
}

/* A job reads settings of MPI before its report is written, which must not change the level. */
Test(info, jobs_tell_what_mpi_gave_too)
{
    if (!command_has_mpi())
        cr_skip_test("built without MPI");
    command_run(result, 2, "run --quiet --json --set shape.seq=64");
    cr_assert_eq(result->code, 0, "%s", result->err);
    json_t *root = parse_json(result->out);
    const json_t *level = at(member(root, "machine"), "mpi", "thread_level");
    cr_expect_str_eq(json_string_value(level), "funneled");
    json_decref(root);
}

Test(info, is_a_table_without_json)
{
    command_run(result, 0, "info");
    cr_assert_eq(result->code, 0, "%s", result->err);
    static const char *const lines[] = {"ringattn ",     "kernels ", "memory ",    "available ",
                                        "cgroup limit ", "MPI ",     "OpenMP ",    "CUDA ",
                                        "NCCL ",         "cuBLAS ",  "libraries ", "compiler "};
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); ++i)
        cr_assert_geq(command_count_lines(result->out, lines[i]), 1, "no '%s' in\n%s", lines[i],
                      result->out);
}

Test(info, checks_every_kernel_when_it_is_asked_to)
{
    command_run(result, 0, "info --check --json");
    cr_assert_eq(result->code, 0, "%s", result->err);
    json_t *root = parse_json(result->out);
    const json_t *machine = member(root, "machine");
    const json_t *checks = member(root, "checks");
    size_t const isas = json_array_size(at(machine, "isa", "available"));
    size_t const standard = json_is_string(member(machine, "openblas"));
    cr_expect_eq(json_array_size(checks), 3 * (2 * isas + standard)); /* f32, f16, bf16; and all but
                                                                         standard linear, too */
    for (size_t i = 0; i < json_array_size(checks); ++i) {
        const json_t *check = json_array_get(checks, i);
        cr_expect(json_is_true(member(check, "agrees")));
        cr_expect_gt(real(check, "longest_ms"), 0);
        /* The longest is of any head_dim, and need not be the worst. */
        long long const dim = integer(check, "longest_head_dim");
        cr_expect(dim >= 32 && dim <= 256 && dim % 32 == 0, "%lld", dim);
        /* The plain kernel agrees with itself, bit for bit where it has no steps to merge. */
        bool const linear = strcmp(text(check, "attention"), "linear") == 0;
        cr_expect(linear || real(check, "error") > 0);
        cr_expect_neq(linear, strcmp(text(check, "longest_form"), "plain") == 0 ||
                                  strcmp(text(check, "longest_form"), "dilated") == 0);
    }
    json_decref(root);
    command_run(result, 0, "info --json");
    cr_assert_eq(result->code, 0, "%s", result->err);
    cr_expect_null(strstr(result->out, "\"checks\""));
}

Test(info, checks_are_a_table_without_json)
{
    if (RA_TEST_SANITIZED)
        cr_skip_test("the same checks once more");
    command_run(result, 0, "info --check");
    cr_assert_eq(result->code, 0, "%s", result->err);
    cr_expect_eq(command_count_lines(result->out, "cpu-portable     softmax   bf16"), 1, "%s",
                 result->out);
}

Test(info, writes_json_to_a_file_whole_or_not_at_all)
{
    command_run(result, 0, "info --json=info.json");
    cr_assert_eq(result->code, 0, "%s", result->err);
    cr_assert(command_file_exists("info.json"));
    cr_expect_eq(command_count_lines(result->out, "OpenMP  "), 1, "the table: %s", result->out);
    cr_assert_eq(command_folder_entries(), 1);
    command_run(result, 0, "info --json=missing/info.json");
    cr_assert_eq(result->code, 3, "%s", result->err);
    cr_assert_eq(command_count_lines(result->err, "error"), 1);
    cr_assert_eq(command_folder_entries(), 1);
}

/* OpenBLAS would ask again and again for a buffer that it cannot have, for each of its own threads,
   and in newer releases for the one that loads it, too. */
Test(info, ends_where_openblas_has_no_address_space)
{
    if (RA_TEST_SANITIZED)
        cr_skip_test("sanitizers reserve address space of their own");
    for (int kib = 200000; kib <= 400000; kib += 50000) {
        char text[96];
        snprintf(text, sizeof(text), "ulimit -v %d; exec timeout -s KILL 20 \"$RINGATTN\" info",
                 kib);
        command_shell(result, text);
        cr_expect_eq(result->code, 0, "%d KiB: exit code %d\n%s", kib, result->code, result->err);
        if (kib == 200000)
            cr_expect_not_null(strstr(result->out, "refused address space"), "%s", result->out);
    }
    command_shell(result, "ulimit -v 200000; exec \"$RINGATTN\" run --set attention.kind=standard");
    cr_expect_eq(result->code, 4, "%s", result->err);
    cr_expect_eq(command_count_lines(result->err, "ringattn: "), 1, "%s", result->err);
    cr_expect_not_null(strstr(result->err, "address space"), "%s", result->err);
}

/* As it is loaded, which is for its version: its constructors would end the process by a signal. */
Test(info, ends_where_cublas_has_no_address_space)
{
    static const char *const limits[] = {"-v 708500", "-v 709500", "-v 710500", "-v 711500",
                                         "-d 191500", "-d 192500", "-v 900000"};
    if (RA_TEST_SANITIZED)
        cr_skip_test("sanitizers reserve address space of their own");
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); ++i) {
        char text[96];
        snprintf(text, sizeof(text), "ulimit %s; exec timeout -s KILL 20 \"$RINGATTN\" info",
                 limits[i]);
        command_shell(result, text);
        cr_expect_eq(result->code, 0, "%s: exit code %d\n%s", limits[i], result->code, result->err);
        cr_expect_not_null(strstr(result->out, "cuBLAS           no: "), "%s: %s", limits[i],
                           result->out);
    }
}

/* It would ask again and again for a buffer while it multiplies, and the process never end. */
Test(info, products_end_where_openblas_has_no_address_space)
{
    int refused = 0;
    if (RA_TEST_SANITIZED)
        cr_skip_test("sanitizers reserve address space of their own");
    if (!command_has_openblas())
        cr_skip_test("OpenBLAS is not installed");
    for (int kib = 200000; kib <= 800000; kib += 100000) {
        char text[240];
        snprintf(
            text, sizeof(text),
            "ulimit -v %d; exec timeout -s KILL 60 \"$RINGATTN\" run --quiet --backward --json "
            "--set attention.kind=standard --set shape.seq=512 --set compute.threads=3",
            kib);
        command_shell(result, text);
        cr_expect(result->code == 0 || result->code == 4, "%d KiB: exit code %d\n%s", kib,
                  result->code, result->err);
        refused += result->code == 4 && strstr(result->err, "MiB of address space") != NULL;
    }
    command_shell(result, "ulimit -v 700000; exec timeout -s KILL 60 \"$RINGATTN\" bench --quiet "
                          "--set shape.seq=512 --set compute.threads=4");
    cr_expect_eq(result->code, 0, "bench: exit code %d\n%s", result->code, result->err);
    cr_expect_not_null(strstr(result->out, "address space: not measured"), "%s", result->out);
    cr_expect_geq(refused, 2); /* 3 buffers and the program itself need more than 400,000 KiB */
}

Test(info, a_full_standard_output_is_an_error)
{
    command_shell(result, "\"$RINGATTN\" info >/dev/full");
    cr_assert_eq(result->code, 3, "%s", result->err);
    command_shell(result, "\"$RINGATTN\" info --json >/dev/full");
    cr_assert_eq(result->code, 3, "%s", result->err);
}
