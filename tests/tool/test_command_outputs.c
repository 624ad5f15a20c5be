/* Outputs that cannot be written as they should: the command says so before it computes. */
#include "tool/command_runner.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

TestSuite(command_outputs, .init = command_folder_make, .fini = command_folder_remove,
          .timeout = 120);

static command_result result;

enum { NAME_BYTES_MAX = 255 }; /* NAME_MAX, of all file systems that are in use */

/* The file has another name until it is complete; that one must be no longer. */
Test(command_outputs, have_names_as_long_as_the_system_takes)
{
    char name[NAME_BYTES_MAX + 2], arguments[4 * NAME_BYTES_MAX];
    static const char *const options[] = {"--output ", "--json=", "--trace "};
    memset(name, 'n', sizeof(name));
    name[NAME_BYTES_MAX] = '\0';
    for (int i = 0; i < 3; i++) {
        name[0] = (char)('0' + i);
        snprintf(arguments, sizeof(arguments), "run --quiet --set shape.seq=16 %s%s", options[i],
                 name);
        command_run(&result, 0, arguments);
        cr_expect_eq(result.code, 0, "%s", result.err);
        cr_expect(command_file_exists(name), "%s", options[i]);
    }
    int const entries = command_folder_entries();
    name[NAME_BYTES_MAX] = 'n';
    name[NAME_BYTES_MAX + 1] = '\0';
    for (int i = 0; i < 3; i++) {
        snprintf(arguments, sizeof(arguments), "run --quiet --set shape.seq=16 %s%s", options[i],
                 name);
        command_refused(&result, arguments, 3, "cannot write there: File name too long");
    }
    cr_expect_eq(command_folder_entries(), entries);
}

/* The key's word for no file is a name like others where an option is given. */
Test(command_outputs, may_be_called_none)
{
    command_run(&result, 0, "run --quiet --set shape.seq=16 --output none");
    cr_expect_eq(result.code, 0, "%s", result.err);
    cr_expect(command_file_exists("none"));
    command_refused(&result, "run --quiet --set shape.seq=16 --input none", 3, "tensor 'q'");
}

Test(command_outputs, that_are_links_to_nothing_are_refused)
{
    command_shell(&result, "ln -s nothing link");
    command_refused(&result, "run --quiet --set shape.seq=16 --output link", 3,
                    "job.output: link: cannot write");
    command_refused(&result, "run --quiet --set shape.seq=16 --json=link", 3,
                    "--json: link: cannot write");
}

/* 65 TiB and more: no machine has such memory, which is asked for later. */
Test(command_outputs, that_do_not_fit_on_the_disk_are_refused_before_the_work)
{
    static const char job[] = "--quiet --set shape.seq=1K --set shape.batch=1048576"
                              " --set shape.heads=256 --set shape.head_dim=128 --output o.st";
    char arguments[256];
    struct statvfs system;
    cr_assert_eq(statvfs(command_folder, &system), 0);
    if ((double)system.f_bfree * (double)system.f_frsize >= 65 * 0x1p40)
        cr_skip_test("temporary files have 65 TiB");
    snprintf(arguments, sizeof(arguments), "run %s", job);
    command_refused(&result, arguments, 3,
                    "job.output: o.st: needs 65.0 TiB, but its file system has ");
    snprintf(arguments, sizeof(arguments), "run --backward %s", job);
    command_refused(&result, arguments, 3,
                    "job.output: o.st: needs 257.0 TiB, but its file system has ");
    cr_expect_eq(command_folder_entries(), 0);
}

/* JSON cannot hold other names: the report would be lost after the work. */
Test(command_outputs, that_the_report_cannot_name_are_refused)
{
    command_refused(&result, "run --quiet --set shape.seq=16 --output \xff.st --json", 2,
                    "must be UTF-8");
    command_refused(&result, "run --quiet --set shape.seq=16 --output \xff.st", 2,
                    "--output: job.output: ");
    command_refused(&result, "run --quiet --set shape.seq=16 --input \xff.st --json", 2,
                    "must be UTF-8");
    command_refused(&result, "run --quiet --set shape.seq=16 --set job.output=\xff.st", 2,
                    "not UTF-8");
    cr_expect_eq(command_folder_entries(), 0);
}

/* The table would be replaced, or stand before the JSON. A pipe is another matter. */
Test(command_outputs, that_are_the_file_of_standard_output_are_refused)
{
    static const char *const outputs[] = {
        "run --output /dev/stdout >table", "run --json=/dev/stdout >table",
        "run --json=table >>table",        "run --output /dev/stderr 2>table",
        "plan --json=/dev/stdout >table",  "bench --csv=/dev/stdout >table"};
    char text[256];
    for (size_t i = 0; i < sizeof(outputs) / sizeof(outputs[0]); i++) {
        snprintf(text, sizeof(text), "\"$RINGATTN\" %s --quiet --set shape.seq=16; code=$?; %s",
                 outputs[i], "cat table; rm table; exit $code");
        command_shell(&result, text);
        cr_expect_eq(result.code, 3, "%s: %d", outputs[i], result.code);
        cr_expect(strstr(result.out, "is the file of standard ") != NULL ||
                      strstr(result.err, "is the file of standard ") != NULL,
                  "%s: %s%s", outputs[i], result.out, result.err);
        cr_expect_eq(command_count_lines(result.out, "tokens"), 0, "%s", result.out);
        cr_expect_eq(command_folder_entries(), 0);
    }
    command_shell(&result, "\"$RINGATTN\" run --json=/dev/stdout --quiet --set shape.seq=16 | cat");
    cr_expect_eq(result.code, 0, "%s", result.err);
    cr_expect_not_null(strstr(result.out, "\"points\""), "%s", result.out);
}

/* What was measured is not lost with a report or a trace that cannot be written. */
Test(command_outputs, that_are_of_the_measurement_leave_the_table_if_they_fail)
{
    static const char *const jobs[] = {
        "exec \"$RINGATTN\" run --set shape.seq=64 --json=/dev/full",
        "exec \"$RINGATTN\" run --set shape.seq=64 --trace /dev/full",
    };
    for (int i = 0; i < 2; i++) {
        command_shell(&result, jobs[i]);
        cr_expect_eq(result.code, 3, "%s: %d\n%s", jobs[i], result.code, result.err);
        cr_expect_eq(command_count_lines(result.err, "ringattn: error:"), 1, "%s", result.err);
        cr_expect_eq(command_count_lines(result.out, "forward "), 1, "%s: %s", jobs[i], result.out);
    }
}

/* Nor is one output lost with another; a pipe's reader that goes away is a failure like others. */
Test(command_outputs, that_fail_cost_no_other)
{
    static const char *const outputs[] = {
        ">&-", ">/dev/full", "--json=/dev/full", "--trace /dev/full",
        "--trace pipe --set job.repeat=500"}; /* more than a pipe holds */
    char line[200];
    for (int i = 0; i < 5; i++) {
        snprintf(line, sizeof(line),
                 "mkfifo pipe && { exec 3<pipe 3<&- & }\n"
                 "exec \"$RINGATTN\" run --set shape.seq=64 --set memory.pool.log=log %s",
                 outputs[i]);
        command_shell(&result, line);
        cr_expect_eq(result.code, 3, "%s: %d\n%s", line, result.code, result.err);
        cr_expect_eq(command_count_lines(result.err, "ringattn: error:"), 1, "%s", result.err);
        cr_expect(command_file_exists("log"), "%s", line);
        command_shell(&result, ": 3<>pipe; rm -f pipe log");
    }
}

/* Where standard files are closed, what is opened first must not take their numbers: lines would be
   printed into it. */
Test(command_outputs, are_not_taken_for_standard_files_that_are_closed)
{
    command_shell(&result, "mkfifo pipe\n"
                           "\"$RINGATTN\" plan --calibrate pipe <&- >&- 2>&- &\n"
                           "exec 3>pipe\n" /* once it is open there */
                           "for fd in 0 1 2; do readlink /proc/$!/fd/$fd; done");
    cr_expect_str_eq(result.out, "/dev/null\n/dev/null\n/dev/null\n");
}

/* As a shell's process substitution: /dev/fd/3 is a link to what has no name. */
Test(command_outputs, may_be_pipes_without_a_name)
{
    command_shell(&result, "\"$RINGATTN\" run --set shape.seq=64 --set compute.threads=1 "
                           "--json=/dev/fd/3 3>&1 >/dev/null | cat");
    cr_expect_eq(strlen(result.err), 0, "%s", result.err);
    cr_expect_eq(command_count_lines(result.out, "\"forward_ms\""), 1, "%s", result.out);
}
