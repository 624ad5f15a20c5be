/* The command on what stands in for GPUs, as tests run it, and read it. */
#ifndef RINGATTN_TESTS_DEVICE_RUNNER_H
#define RINGATTN_TESTS_DEVICE_RUNNER_H

#include "tool/command_runner.h"
#include "tool/json_reader.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static command_result result;

/* `ringattn ARGUMENTS` after `start`, which sets variables or is mpirun; it may be "". */
static inline void run(const char *start, const char *arguments)
{
    char line[2048];
    int const length = snprintf(line, sizeof(line), "%s \"$RINGATTN\" %s", start, arguments);
    cr_assert_lt(length, (int)sizeof(line));
    command_shell(&result, line);
}

/*
 * On ranks that all have `all` in their environment, and the second has `second`, too. One program
 * for all: the mpirun of Open MPI 5.0.7 dies of several.
 */
static inline void run_ranks(int ranks, const char *all, const char *second, const char *arguments)
{
    char line[4096];
    int const length =
        snprintf(line, sizeof(line),
                 "\"$MPIEXEC\" -n %d env %s sh -c 'if [ \"$OMPI_COMM_WORLD_RANK\" = 1 ]; then"
                 " exec env %s \"$RINGATTN\" \"$@\"; fi; exec \"$RINGATTN\" \"$@\"' rank %s",
                 ranks, all, second, arguments);
    cr_assert_lt(length, (int)sizeof(line));
    command_shell(&result, line);
}

/* What a run with RA_STANDIN_REPORT=.calls has written: calls of the runtime, and those of them
   that do not ask whether work is over; either may be NULL. */
static inline void read_calls(long *calls_out, long *acts_out)
{
    char path[128];
    long calls = 0, acts = 0;
    snprintf(path, sizeof(path), "%s/.calls", command_folder);
    FILE *const file = fopen(path, "r");
    cr_assert_not_null(file);
    cr_assert_eq(fscanf(file, "%ld %ld", &calls, &acts), 2);
    fclose(file);
    if (calls_out != NULL)
        *calls_out = calls;
    if (acts_out != NULL)
        *acts_out = acts;
}

/* The point of a run with --verify that was right; the caller drops *root_out. */
static inline json_t *verified_point(const char *kernel, json_t **root_out)
{
    cr_assert_eq(result.code, 0, "%s", result.err);
    *root_out = parse_json(result.out);
    json_t *point = first_point(*root_out);
    cr_expect_str_eq(text(point, "status"), "ok");
    cr_expect_str_eq(text(point, "kernel"), kernel);
    cr_expect_geq(json_object_size(member(point, "error")), 1);
    return point;
}

static inline void expect_verified(const char *kernel)
{
    json_t *root;
    verified_point(kernel, &root);
    json_decref(root);
}

/* It ended with this exit code and one error line. */
static inline void expect_error(int code, const char *says)
{
    cr_expect_eq(result.code, code, "'%s': exit code %d\n%s", says, result.code, result.err);
    cr_expect_eq(command_count_lines(result.err, "ringattn: error:"), 1, "%s", result.err);
    cr_expect_not_null(strstr(result.err, says), "'%s' does not say '%s'", result.err, says);
}

#endif
