/* `bench` as tests run it, and read it. */
#ifndef RINGATTN_TESTS_BENCH_RUNNER_H
#define RINGATTN_TESTS_BENCH_RUNNER_H

#include "tool/command_runner.h"
#include "tool/json_reader.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static command_result result;

static inline json_t *bench(int ranks, const char *arguments, int code)
{
    char line[1024];
    snprintf(line, sizeof(line), "bench --json %s", arguments);
    command_run(&result, ranks, line);
    cr_assert_eq(result.code, code, "%s: exit code %d\n%s", arguments, result.code, result.err);
    json_t *root = parse_json(result.out);
    cr_expect_str_eq(text(root, "command"), "bench");
    return root;
}

static inline void write_config(const char *yaml)
{
    command_file_write("job.yaml", yaml, strlen(yaml));
}

#endif
