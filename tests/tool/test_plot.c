/* `ringattn plot`: pictures of reports, and what it says of files that are none. */
#include "tool/command_runner.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(plot, .init = command_folder_make, .fini = command_folder_remove, .timeout = 240);

static command_result result;

static void file_text(const char *name, const char *text)
{
    command_file_write(name, text, strlen(text));
}

/* A point of a sweep over lengths, in a report of `command`. */
#define POINT(variant, seq, peak, status)                                                          \
    "{\"config\": {\"shape\": {\"batch\": 1, \"seq\": " #seq ", \"heads\": 2, \"kv_heads\": 1,"    \
    " \"head_dim\": 4, \"dtype\": \"f16\"}, \"memory\": {\"limit\": 4096}},"                       \
    " \"variant\": \"" variant "\", \"sweep\": {\"shape.seq\": " #seq "}, \"status\": \"" status   \
    "\", \"peak_bytes\": " #peak ", \"floor_bytes\": " #seq                                        \
    "000, \"memory_bytes\": {\"qkv\": " #peak ", \"tilemap\": 64},"                                \
    " \"forward_ms\": {\"median\": 1.5}}"
#define REPORT_OF(command, points)                                                                 \
    "{\"ringattn\": \"0\", \"command\": \"" command "\", \"points\": [" points "]}"
#define REPORT(points) REPORT_OF("bench", points)

/* The first line from `from` on, counted from 1, that has `text`; 0: there is none. */
static int picture_line(const char *name, const char *text, int from)
{
    char path[200], line[4096];
    int number = 0, found = 0;
    snprintf(path, sizeof(path), "%s/%s", command_folder, name);
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file, "%s was not drawn", name);
    while (found == 0 && fgets(line, sizeof(line), file) != NULL)
        found = ++number >= from && strstr(line, text) != NULL ? number : 0;
    fclose(file);
    return found;
}

static bool picture_has(const char *name, const char *text)
{
    return picture_line(name, text, 1) > 0;
}

/* Has the scripts themselves take the place of what they draw. */
static void plot_scripts(const char *arguments)
{
    char line[400];
    snprintf(line, sizeof(line),
             "printf '#!/bin/sh\\ncat\\necho \"</svg>\"\\n' >gnuplot; chmod +x gnuplot; "
             "PATH=.:$PATH $RINGATTN plot --quiet %s",
             arguments);
    command_shell(&result, line);
    cr_assert_eq(result.code, 0, "%s", result.err);
}

Test(plot, draws_each_series_of_a_sweep_under_its_name)
{
    file_text("r.json",
              REPORT(POINT("lean", 64, 2048, "ok") "," POINT("lean", 128, 4096, "ok") "," POINT(
                  "wide", 64, 4096, "ok") "," POINT("wide", 128, 8192, "oom")));
    command_run(&result, 0, "plot r.json");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_assert_str_eq(result.out, "r-memory.svg\nr-memory-length.svg\nr-time-length.svg\n");
    cr_assert(picture_has("r-memory-length.svg", "lean"));
    cr_assert(picture_has("r-memory-length.svg", "wide (out of memory)"));
    cr_assert(picture_has("r-memory-length.svg", "lean (floor)"));
    cr_assert_not(picture_has("r-memory-length.svg", "wide (floor)"), "the same line twice");
    cr_assert(picture_has("r-memory.svg", "tilemap"));
    cr_assert_not(picture_has("r-memory.svg", "pool_idle"), "a category that holds nothing");
    cr_assert(picture_has("r-memory.svg", "wide, 64 tokens"), "a point without memory stands");
}

/* A cross at the limit says "out of memory", which other failures are not. */
Test(plot, only_points_that_lacked_memory_are_crosses_at_the_limit)
{
    file_text("r.json",
              REPORT(POINT("lean", 64, 2048, "ok") "," POINT("lean", 128, 4096, "ok") "," POINT(
                  "wrong", 64, 2048,
                  "verification failed") "," POINT("odd", 64, 2048,
                                                   "config") "," POINT("wide", 64, 2048, "oom")));
    plot_scripts("r.json");
    cr_assert(picture_has("r-memory-length.svg", "title \"wide (out of memory)\""));
    cr_assert_not(picture_has("r-memory-length.svg", "title \"wrong (out of memory)\""));
    cr_assert_not(picture_has("r-memory-length.svg", "title \"odd (out of memory)\""));
}

Test(plot, draws_a_report_of_a_real_run)
{
    command_run(&result, 0, "run --set shape.seq=64 --json=run.json --quiet");
    cr_assert_eq(result.code, 0, "%s", result.err);
    command_run(&result, 0, "plot run.json --prefix pictures");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_assert_str_eq(result.out, "pictures-memory.svg\n");
    cr_assert(picture_has("pictures-memory.svg", "job, 64 tokens"));
}

Test(plot, draws_probes_as_bars)
{
    file_text("p.json", "{\"ringattn\": \"0\", \"command\": \"probe\", \"points\": [{\"variant\": "
                        "\"base\", \"tokens\": 4097}]}");
    command_run(&result, 0, "plot p.json");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_assert(picture_has("p-probe.svg", "4097"));
}

Test(plot, lines_go_from_short_to_long_whatever_the_order_of_files)
{
    file_text("late.json",
              REPORT(POINT("lean", 256, 4194304, "ok") "," POINT("lean", 128, 2097152, "ok")));
    file_text("early.json", REPORT(POINT("lean", 64, 1048576, "ok")));
    plot_scripts("late.json early.json --prefix r");
    int const block = picture_line("r-memory-length.svg", "$peak0 << EOD", 1);
    cr_assert_gt(block, 0);
    cr_assert_eq(picture_line("r-memory-length.svg", "64 1", block), block + 1);
    cr_assert_eq(picture_line("r-memory-length.svg", "128 2", block), block + 2);
    cr_assert_eq(picture_line("r-memory-length.svg", "256 4", block), block + 3);
}

Test(plot, what_is_planned_and_what_was_measured_are_two_series)
{
    file_text("r.json", REPORT(POINT("lean", 64, 2048, "ok") "," POINT("lean", 128, 4096, "ok")));
    file_text("p.json",
              REPORT_OF("plan", POINT("lean", 64, 2040, "ok") "," POINT("lean", 128, 4090, "ok")));
    command_run(&result, 0, "plot r.json p.json");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_assert(picture_has("r-memory-length.svg", "lean, planned"));
    cr_assert(picture_has("r-memory.svg", "lean, planned, 128 tokens"));
    cr_assert(picture_has("r-memory.svg", "lean, 128 tokens"));
}

/* Names are all that tells jobs apart. */
Test(plot, jobs_of_one_name_and_length_are_mentioned)
{
    file_text("a.json", REPORT(POINT("lean", 64, 2048, "ok")));
    file_text("b.json", REPORT(POINT("lean", 64, 4096, "ok")));
    file_text("c.json", REPORT(POINT("other", 64, 4096, "ok") "," POINT("lean", 128, 4096, "ok")));
    command_run(&result, 0, "plot a.json b.json");
    cr_expect_eq(result.code, 0, "%s", result.err);
    cr_expect_not_null(strstr(result.err, "several points of 64 tokens are of the series 'lean'"));
    command_run(&result, 0, "plot a.json c.json");
    cr_expect_str_eq(result.err, "");
}

#define RANKED(ranks, peak)                                                                        \
    "{\"config\": {\"shape\": {\"seq\": 64}}, \"ranks\": " #ranks ", \"peak_bytes\": " #peak       \
    ", \"memory_bytes\": {\"qkv\": " #peak "}}"

Test(plot, jobs_of_different_numbers_of_ranks_are_two_series)
{
    file_text("1.json", REPORT(RANKED(1, 2048)));
    file_text("2.json", REPORT(RANKED(2, 1024)));
    plot_scripts("1.json 2.json --prefix r");
    cr_expect_str_eq(result.err, "");
    cr_expect(picture_has("r-memory.svg", "job, 64 tokens"));
    cr_expect(picture_has("r-memory.svg", "job, 2 ranks, 64 tokens"));
}

#define SWEPT(variant, dim, seq, peak)                                                             \
    "{\"config\": {\"shape\": {\"seq\": " #seq "}}, \"variant\": \"" variant "\", \"sweep\": "     \
    "{\"shape.head_dim\": " #dim ", \"shape.seq\": " #seq "}, \"peak_bytes\": " #peak "}"

/* A head_dim of 32 is compared with the same, not with the first of all. */
Test(plot, savings_are_over_the_first_variant_of_the_same_setting)
{
    file_text("r.json",
              REPORT(SWEPT("wide", 16, 64, 8000) "," SWEPT("lean", 16, 64, 4000) "," SWEPT(
                  "wide", 32, 64, 9000) "," SWEPT("lean", 32, 64,
                                                  3000) "," SWEPT("lean", 32, 128,
                                                                  3000) "," SWEPT("wide", 32, 128,
                                                                                  15000)));
    plot_scripts("r.json");
    int const first = picture_line("r-savings.svg", "$savings1 << EOD", 1);
    int const block = picture_line("r-savings.svg", "$savings3 << EOD", 1);
    cr_assert_eq(picture_line("r-savings.svg", "64 2", first), first + 1);
    cr_assert_eq(picture_line("r-savings.svg", "64 3", block), block + 1);
    cr_assert_eq(picture_line("r-savings.svg", "128 5", block), block + 2);
    cr_assert_not(picture_has("r-savings.svg", "title \"wide"));
    cr_assert(picture_has("r-savings.svg", "title \"lean, head_dim=32\""));
}

#define DIGITS "0123456789012345678901234567890123456789012345678901234567890123456789"
#define CUT(variant, input, seq, peak)                                                             \
    "{\"config\": {\"shape\": {\"seq\": " #seq "}}, \"variant\": \"" variant "\", \"sweep\": "     \
    "{\"job.input\": \"" DIGITS DIGITS input "\", \"shape.seq\": " #seq                            \
    "}, \"peak_bytes\": " #peak "}"

/* Labels end before these differ: no line goes from one to the other. */
Test(plot, series_are_told_apart_by_more_than_their_labels)
{
    file_text("r.json",
              REPORT(CUT("wide", "a", 64, 8388608) "," CUT("lean", "a", 64, 4194304) "," CUT(
                  "wide", "b", 64,
                  3145728) "," CUT("lean", "b", 64,
                                   1048576) "," CUT("lean", "a", 128,
                                                    4194304) "," CUT("wide", "b", 128, 3145728)));
    plot_scripts("r.json");
    int const lean = picture_line("r-memory-length.svg", "$peak1 << EOD", 1);
    cr_assert_eq(picture_line("r-memory-length.svg", "64 4", lean), lean + 1);
    cr_assert_eq(picture_line("r-memory-length.svg", "128 4", lean), lean + 2);
    int const wide = picture_line("r-memory-length.svg", "$peak2 << EOD", 1);
    cr_assert_eq(picture_line("r-memory-length.svg", "64 3", wide), wide + 1);
    cr_assert_eq(picture_line("r-memory-length.svg", "128 3", wide), wide + 2);
}

/* A report has nine digits; in binary a tenth has more. */
Test(plot, labels_have_the_digits_of_the_report)
{
    file_text("r.json",
              "{\"ringattn\": \"0\", \"points\": [{\"sweep\": {\"pattern.blocks.density\": "
              "0.1}, \"config\": {\"shape\": {\"seq\": 64}}, \"memory_bytes\": {\"qkv\": "
              "1}}]}");
    plot_scripts("r.json");
    cr_assert(picture_has("r-memory.svg", "\"pattern.blocks.density=0.1, 64 tokens\""));
}

/* No viewer shows any of a picture that has one byte which is no UTF-8. */
Test(plot, labels_are_cut_between_characters)
{
    file_text("r.json", REPORT(POINT(DIGITS "012345678901234567890123456789012345678901234567é", 64,
                                     1, "ok")));
    plot_scripts("r.json");
    cr_assert(picture_has("r-memory.svg", "67?, 64 tokens\""));
    cr_assert_not(picture_has("r-memory.svg", "\xc3"));
}

/* The axes keep their height: what a long key takes comes on top. */
Test(plot, a_picture_grows_with_its_key)
{
#define LENGTHS(name) POINT(name, 64, 2048, "ok") "," POINT(name, 128, 4096, "ok")
    file_text("few.json", REPORT(LENGTHS("lean")));
    file_text(
        "many.json",
        REPORT(LENGTHS("a rather long name of one of many variants") "," LENGTHS(
            "a rather long "
            "name of another "
            "of them") "," LENGTHS("c") "," LENGTHS("d") "," LENGTHS("e") "," LENGTHS("f") "," LENGTHS("g") "," LENGTHS("h")));
    plot_scripts("few.json");
    plot_scripts("many.json");
    cr_assert(picture_has("few-memory-length.svg", "size 960,560 "));
    /* Nine lines, one below the other, where there is room for four. */
    cr_assert(picture_has("many-memory-length.svg", "size 960,680 "));
    cr_assert(picture_has("many-memory-length.svg", "set key maxcols 1"));
}

/* Comparing each line with all others would not end within the suite's time. */
Test(plot, draws_the_first_of_thousands_of_series_and_says_so)
{
    enum { SERIES = 10000, SHOWN = 24 };
    char *text = NULL, wanted[100];
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    cr_assert_not_null(file);
    fputs("{\"ringattn\": \"0\", \"command\": \"bench\", \"points\": [{}", file);
    for (int i = 0; i < 2 * SERIES; i++)
        fprintf(file,
                ", {\"config\": {\"shape\": {\"seq\": %d}}, \"variant\": \"v%d\", \"peak_bytes\": "
                "1048576, \"floor_bytes\": 1048576, \"memory_bytes\": {\"qkv\": 1}}",
                i < SERIES ? 64 : 128, i % SERIES);
    fputs("]}", file);
    cr_assert_eq(fclose(file), 0);
    file_text("r.json", text);
    free(text);
    plot_scripts("r.json");
    snprintf(wanted, sizeof(wanted), "series: %d points of others are left out\n",
             2 * (SERIES - SHOWN + 1)); /* the first series is that of the empty point */
    cr_assert_not_null(strstr(result.err, wanted), "%s", result.err);
    cr_assert_eq(command_count_lines(result.err, "ringattn: "), 1, "%s", result.err);
    cr_assert(picture_has("r-memory-length.svg", "title \"v22\""));
    cr_assert_not(picture_has("r-memory-length.svg", "v23"));
    cr_assert(picture_has("r-memory.svg", "\"v22, 128 tokens\""));
    cr_assert_not(picture_has("r-memory.svg", "v23"));
}

/* Names that `touch owned`, were they run. */
static void plot_names(const char *report)
{
    file_text("r.json", report);
    command_run(&result, 0, "plot r.json");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_assert_not(command_file_exists("owned"));
}

Test(plot, takes_names_as_text)
{
    plot_names(REPORT(POINT("x\\\" ; system(\\\"touch owned\\\") # `touch owned`", 64, 1,
                            "ok") "," POINT("$(touch owned) \\\\ <b>&", 128, 1, "ok")));
    cr_assert(picture_has("r-memory.svg", "$(touch owned)"));
    cr_assert(picture_has("r-memory.svg", "x\" ; system(\"touch owned\") # `touch owned`"));
}

/* A key's names are part of a command, not of data. */
Test(plot, takes_names_in_keys_as_text)
{
    plot_names(REPORT(POINT("\\\"y `touch owned` \\\\z", 64, 1,
                            "ok") "," POINT("\\\"y `touch owned` \\\\z", 128, 1, "ok")));
    cr_assert(picture_has("r-memory-length.svg", "\"y `touch owned` \\z"), "no such name");
}

Test(plot, says_what_is_wrong_in_one_line_and_leaves_nothing)
{
    static const struct {
        const char *name, *text, *arguments, *wanted;
        int code;
    } cases[] = {
        {"a.json", "{", "plot a.json", "a.json: line 1: is no JSON", 3},
        {"b.json", "[]", "plot b.json", "is no report", 3},
        {"c.json", "{\"ringattn\": 1, \"points\": 3}", "plot c.json", "is no report", 3},
        {"d.json", "{\"ringattn\": 1, \"points\": []}", "plot d.json", "no points", 3},
        {"e.json", "{\"ringattn\": 1, \"points\": [1, null, {}, {\"config\": []}]}", "plot e.json",
         "nothing in it can be drawn", 3},
        {"f.json", REPORT(POINT("x", 64, 1, "ok")), "plot f.json --prefix nowhere/f",
         "error: nowhere/f-memory.svg: cannot write the picture: No such file", 3},
        {"g.json", REPORT(POINT("x", 64, 1, "ok")), "plot absent.json",
         "error: absent.json: cannot open the report: No such file or directory\n", 3},
        {"j.json", "{}", "plot --prefix j /", "error: /: cannot read the report: Is a directory\n",
         3},
        {"k-memory.svg", REPORT(POINT("x", 64, 1, "ok")), "plot k-memory.svg --prefix k",
         "is the input file k-memory.svg", 2},
        {"h.json", "{}", "plot", "no file", 2},
        {"i.json", "{}", "plot --config i.json", "is an option of", 2},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        file_text(cases[i].name, cases[i].text);
        int const entries = command_folder_entries();
        command_run(&result, 0, cases[i].arguments);
        cr_assert_eq(result.code, cases[i].code, "%s: %s", cases[i].arguments, result.err);
        cr_assert_not_null(strstr(result.err, cases[i].wanted), "%s", result.err);
        cr_assert_eq(command_count_lines(result.err, "ringattn: error: "), 1, "%s", result.err);
        cr_assert_eq(command_folder_entries(), entries);
    }
}

/* A pipe's writer may begin late; when one never does is in tests/fault. */
Test(plot, reads_reports_from_pipes)
{
    static const char *const commands[] = {
        "$RINGATTN plot --prefix s /dev/stdin <r.json",
        "(sleep 0.2; cat r.json) | $RINGATTN plot --prefix s /dev/stdin",
        "mkfifo pipe; { sleep 0.2; head -c 20 r.json; sleep 0.2; tail -c +21 r.json; } >pipe &"
        " $RINGATTN plot --prefix s pipe"};
    file_text("r.json", REPORT(POINT("x", 64, 1, "ok")));
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        command_shell(&result, commands[i]);
        cr_expect_eq(result.code, 0, "%s: %s", commands[i], result.err);
        cr_expect_str_eq(result.out, "s-memory.svg\n", "%s", commands[i]);
    }
}

/* Else pictures would go to /dev. */
Test(plot, asks_for_a_name_beside_a_stream)
{
    static const char *const commands[] = {
        "echo '{}' | $RINGATTN plot /dev/stdin", "$RINGATTN plot /dev/stdin <r.json",
        "$RINGATTN plot /proc/self/fd/0 <r.json", "mkfifo pipe; $RINGATTN plot pipe"};
    file_text("r.json", REPORT(POINT("x", 64, 1, "ok")));
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        command_shell(&result, commands[i]);
        cr_expect_eq(result.code, 2, "%s: %s", commands[i], result.err);
        cr_expect_not_null(strstr(result.err, "is not a file's own name: give pictures one"), "%s",
                           result.err);
    }
}

Test(plot, a_bar_without_a_length_has_its_name_alone)
{
    file_text("r.json", "{\"ringattn\": 1, \"points\": [{\"memory_bytes\": {\"qkv\": 5}}]}");
    command_shell(&result, "$RINGATTN plot r.json");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_assert(picture_has("r-memory.svg", ">job<"));
}

/* What people have set for pictures of their own. */
Test(plot, is_not_changed_by_settings_of_the_user)
{
    file_text("r.json", REPORT(POINT("x", 64, 1, "ok")));
    command_shell(&result,
                  "echo 'set output \"elsewhere\"' >.gnuplot; HOME=$PWD $RINGATTN plot r.json");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_assert(picture_has("r-memory.svg", "x, 64 tokens"));
    cr_assert_not(command_file_exists("elsewhere"));
}

Test(plot, asks_for_gnuplot_where_there_is_none)
{
    file_text("r.json", REPORT(POINT("x", 64, 1, "ok")));
    command_shell(&result, "PATH=/nowhere $RINGATTN plot r.json");
    cr_assert_eq(result.code, 2, "%s", result.err);
    cr_assert_not_null(strstr(result.err, "install gnuplot-nox"), "%s", result.err);
    command_shell(&result, "printf '#!/bin/sh\\necho oh no >&2\\nexit 3\\n' >gnuplot; "
                           "chmod +x gnuplot; PATH=.:$PATH $RINGATTN plot r.json");
    cr_assert_eq(result.code, 3, "%s", result.err);
    cr_assert_not_null(strstr(result.err, "gnuplot: oh no"), "%s", result.err);
}

/* The picture is not kept, and the program not waited for. */
Test(plot, stops_a_gnuplot_that_draws_without_end)
{
    file_text("r.json", REPORT(POINT("x", 64, 1, "ok")));
    command_shell(&result, "printf '#!/bin/sh\nexec yes\n' >gnuplot; chmod +x gnuplot; "
                           "PATH=.:$PATH $RINGATTN plot r.json");
    cr_assert_eq(result.code, 4, "%s", result.err);
    cr_assert_not_null(strstr(result.err, "out of memory for a picture"), "%s", result.err);
    cr_assert_not(command_file_exists("r-memory.svg"));
}
