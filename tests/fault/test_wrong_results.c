/* Results that are not what they must be: exit code 6, one line that says so, no output. */
#include "tool/command_runner.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(wrong_results, .init = command_folder_make, .fini = command_folder_remove,
          .timeout = 300);

static command_result result;

/* The command with what RA_WRONG says, or without. */
static void run_wrong(const char *what, int ranks, const char *arguments)
{
    char text[1024], start[64] = "";
    if (ranks > 0)
        snprintf(start, sizeof(start), "\"$MPIEXEC\" -n %d ", ranks);
    snprintf(text, sizeof(text), "RA_WRONG=%s; export RA_WRONG; exec %s'%s' %s", what, start,
             RA_TEST_FAILING, arguments);
    command_shell(&result, text);
}

static void expect_6(const char *arguments, const char *says)
{
    cr_expect_eq(result.code, 6, "%s: %d\n%s", arguments, result.code, result.err);
    cr_expect_eq(command_count_lines(result.err, "ringattn: error:"), 1, "%s:\n%s", arguments,
                 result.err);
    cr_expect_not_null(strstr(result.err, says), "%s:\n%s", arguments, result.err);
}

#define SHAPE "--set shape.seq=150 --set shape.heads=2 --set shape.head_dim=8 "

Test(wrong_results, of_a_run_are_not_written)
{
    static const char line[] = "run --quiet --backward --verify --output o.st --json=r.json " SHAPE;
    for (int ranks = 0; ranks <= 2 && (ranks == 0 || command_has_mpi()); ranks += 2) {
        run_wrong("nothing", ranks, line);
        cr_expect_eq(result.code, 0, "%d: %s", result.code, result.err);
        cr_expect(command_file_exists("o.st"));
        command_shell(&result, "rm o.st r.json");
        run_wrong("results", ranks, line);
        expect_6(line, "verification failed: an error is larger than allowed; no output was");
        cr_expect(command_file_exists("r.json"), "the report says by how much");
        cr_expect_eq(command_folder_entries(), 1, "an output was left");
    }
}

/* A series goes on, and its last line counts them. */
Test(wrong_results, of_a_series_are_counted)
{
    static const struct {
        const char *arguments, *says;
    } series[] = {
        {"bench --verify --set job.repeat=1 " SHAPE, "verification failed: 1 of 1"},
        {"ablate --verify --set job.repeat=1 " SHAPE, "verification failed: 9 of 9"},
        {"probe --set shape.heads=1 --set shape.head_dim=8 --set compute.threads=1 "
         "--set memory.limit=1MiB",
         "verification failed: 2 of 2"},
    };
    for (size_t i = 0; i < sizeof(series) / sizeof(series[0]); i++) {
        char line[512];
        snprintf(line, sizeof(line), "%s --quiet --json=r.json", series[i].arguments);
        run_wrong("results", 0, line);
        cr_expect_eq(result.code, 6, "%s: %d\n%s", line, result.code, result.err);
        cr_expect_eq(command_count_lines(result.err, series[i].says), 1, "%s", result.err);
        cr_expect(command_file_exists("r.json"), "%s", line);
    }
}

Test(wrong_results, of_kernels_are_what_info_looks_for)
{
    static const char line[] = "info --check --json";
    run_wrong("kernels", 0, line);
    expect_6(line, "kernels compute wrong results on this machine");
    cr_expect_not_null(strstr(result.out, "\"agrees\": false"), "%s", result.out);
    cr_expect_null(strstr(result.out, "\"agrees\": true"), "%s", result.out);
}
