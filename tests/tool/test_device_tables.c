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
