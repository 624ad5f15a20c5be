/* `ringattn plot`: pictures of reports, and what it says of files that are none. */
#include "tool/command_runner.h"

#include <criterion/criterion.h>
#include <stdio.h>
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
    "\", \"peak_bytes\": " #peak ", \"memory_bytes\": {\"qkv\": " #peak ", \"tilemap\": 64},"      \
    " \"forward_ms\": {\"median\": 1.5}}"
#define REPORT(points)                                                                             \
    "{\"ringattn\": \"0\", \"command\": \"bench\", \"machine\": {}, \"points\": [" points "]}"

static bool picture_has(const char *name, const char *text)
{
    char path[200], line[4096];
    bool found = false;
    snprintf(path, sizeof(path), "%s/%s", command_folder, name);
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file, "%s was not drawn", name);
    while (!found && fgets(line, sizeof(line), file) != NULL)
        found = strstr(line, text) != NULL;
    fclose(file);
    return found;
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
                        "\"base\", \"tokens\": 4097, \"floor_bytes_per_token\": 16}]}");
    command_run(&result, 0, "plot p.json");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_assert(picture_has("p-probe.svg", "4097"));
}

Test(plot, takes_names_as_text)
{
    file_text("r.json", REPORT(POINT("x\\\" ; system(\\\"touch owned\\\") # `touch owned`", 64, 1,
                                     "ok") "," POINT("$(touch owned) \\\\ <b>&", 128, 1, "ok")));
    command_run(&result, 0, "plot r.json");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_assert_not(command_file_exists("owned"));
    cr_assert(picture_has("r-memory.svg", "$(touch owned)"));
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
         "cannot write", 3},
        {"g.json", REPORT(POINT("x", 64, 1, "ok")), "plot absent.json", "absent.json", 3},
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
