/* `run` as tests measure with it, and read it. */
#ifndef RINGATTN_TESTS_MEASURE_RUNNER_H
#define RINGATTN_TESTS_MEASURE_RUNNER_H

#include "tool/command_runner.h"
#include "tool/json_reader.h"

#include <criterion/criterion.h>
#include <stdio.h>

static command_result result;

/* Run with --json and give the point; the caller drops *root_out. */
static inline json_t *measure(int ranks, const char *arguments, json_t **root_out)
{
    char line[1024];
    snprintf(line, sizeof(line), "run --json %s", arguments);
    command_run(&result, ranks, line);
    cr_assert_eq(result.code, 0, "%s: exit code %d\n%s", arguments, result.code, result.err);
    json_t *root = parse_json(result.out);
    cr_assert_eq(json_array_size(member(root, "points")), 1);
    *root_out = root;
    return first_point(root);
}

#endif
