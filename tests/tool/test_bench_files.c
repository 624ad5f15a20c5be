/* The files of `bench`: what they hold if it fails, or ends early. */
#include "tool/bench_runner.h"

#include <stdio.h>
#include <string.h>

TestSuite(bench_files, .init = command_folder_make, .fini = command_folder_remove, .timeout = 300);

/* What ends a bench leaves what was measured before in the file. */
Test(bench_files, that_is_killed_leaves_the_points_it_has_measured)
{
    write_config("shape: {heads: 1}\njob: {repeat: 1, warmup: 0}\n"
                 "sweep: {shape.seq: [32, 256K]}\n");
    command_kill_after(&result, "bench --quiet --config job.yaml --json=b.json", "b.json");
    cr_expect_eq(command_folder_entries(), 2, "a temporary file was left");
    json_t *root = load_json(command_folder, "b.json");
    cr_expect(json_is_false(member(root, "complete")));
    cr_expect_eq(json_array_size(member(root, "points")), 1);
    cr_expect_str_eq(text(first_point(root), "status"), "ok");
    cr_expect_geq(json_array_size(member(root, "limits")), 1);
    json_decref(root);
    command_run(&result, 0, "plan --calibrate b.json");
    cr_expect_eq(result.code, 0, "%s", result.err);
    cr_expect_not_null(strstr(result.err, "warning: b.json: is not complete: 'bench' was ended"),
                       "%s", result.err);
}

/* What is written as it comes cannot be written twice. */
Test(bench_files, writes_a_pipe_once)
{
    write_config("shape: {seq: 32}\njob: {repeat: 1}\nsweep: {shape.heads: [1, 2]}\n");
    command_shell(&result, "mkfifo pipe\n"
                           "\"$RINGATTN\" bench --quiet --config job.yaml --json=pipe >table &\n"
                           "cat pipe; wait $!");
    cr_assert_eq(result.code, 0, "%s", result.err);
    json_t *root = parse_json(result.out);
    cr_expect(json_is_true(member(root, "complete")));
    cr_expect_eq(json_array_size(member(root, "points")), 2);
    json_decref(root);
}

/* No more than 4 KiB may be written to a file: the points are measured all the same. */
Test(bench_files, says_once_that_the_report_so_far_cannot_be_written)
{
    write_config("shape: {seq: 32}\njob: {repeat: 1}\nsweep: {shape.heads: [1, 2, 3]}\n");
    command_shell(&result, "ulimit -f 8\n"
                           "exec \"$RINGATTN\" bench --quiet --config job.yaml --json=b.json");
    cr_expect_eq(result.code, 3, "%d", result.code);
    cr_expect_eq(command_count_lines(result.out, "forward "), 3, "%s", result.out);
    cr_expect_eq(command_count_lines(result.err, "warning: b.json: cannot write the report"), 1,
                 "%s", result.err);
    cr_expect_eq(command_count_lines(result.err, "error: b.json: cannot write the report"), 1, "%s",
                 result.err);
    cr_expect_eq(command_folder_entries(), 1, "something was left");
}

/* A place has 600 bytes of the file's name, here with half of a character at their end. */
Test(bench_files, json_has_a_message_that_was_cut_within_a_character)
{
    static const char job[] = "pattern: {documents: [8]}\nsweep: {shape.seq: [8, 9]}\n";
    char line[1024] = "bench --quiet --json --config ";
    for (int i = 0; i < 299; i++)
        strcat(line, "./");
    strcat(line, "a\xc3\xa9");
    command_file_write("a\xc3\xa9", job, strlen(job));
    command_run(&result, 0, line);
    cr_expect_eq(result.code, 0, "%s", result.err);
    json_t *root = parse_json(result.out);
    const json_t *refused = json_array_get(member(root, "points"), 1);
    cr_expect_not_null(strstr(text(refused, "message"), "/a?:1:11: pattern.documents: "), "%s",
                       text(refused, "message"));
    json_decref(root);
}

/* A table that cannot be written costs no point of the JSON. */
Test(bench_files, json_is_whole_if_another_output_fails)
{
    static const char *const outputs[] = {"--csv=/dev/full", "--csv >/dev/full", ">/dev/full"};
    write_config("shape: {heads: 1}\njob: {repeat: 1, warmup: 0}\n"
                 "sweep: {shape.seq: [16, 17, 18, 19]}\n");
    for (size_t i = 0; i < sizeof(outputs) / sizeof(outputs[0]); i++) {
        char line[256];
        snprintf(line, sizeof(line),
                 "exec \"$RINGATTN\" bench --quiet --config job.yaml --json=b.json %s", outputs[i]);
        command_shell(&result, line);
        cr_expect_eq(result.code, 3, "%s: %d\n%s", outputs[i], result.code, result.err);
        cr_expect_eq(command_count_lines(result.err, "ringattn: error"), 1, "%s", result.err);
        json_t *root = load_json(command_folder, "b.json");
        cr_expect(json_is_true(member(root, "complete")), "%s", outputs[i]);
        cr_expect_eq(json_array_size(member(root, "points")), 4, "%s", outputs[i]);
        json_decref(root);
    }
}

/* Points are so short that most of them are over before the next report so far is due. */
Test(bench_files, json_has_every_point_up_to_a_failure)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    write_config("shape: {heads: 1}\njob: {repeat: 1, warmup: 0}\n"
                 "comm.timeout: 5s\n"
                 "sweep:\n"
                 "  shape.batch: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n"
                 "  shape.seq: [16, 17, 18, 19, 20, 21, 22, 23, 24, 25]\n"
                 "  shape.head_dim: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n"
                 "  job.seed: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n");
    command_shell(&result,
                  "cat >rank <<'END'\n"
                  "if [ \"$OMPI_COMM_WORLD_RANK\" = 1 ]; then\n"
                  "    (until [ -e b.json ]; do sleep 0.01; done; sleep 0.1; kill -STOP $$) &\n"
                  "fi\n"
                  "exec \"$RINGATTN\" bench --quiet --config job.yaml --json=b.json\n"
                  "END\n"
                  "exec \"$MPIEXEC\" -n 2 sh rank");
    cr_expect_eq(result.code, 5, "%d: %s", result.code, result.err);
    json_t *root = load_json(command_folder, "b.json");
    cr_expect(json_is_false(member(root, "complete")));
    cr_expect_eq((int)json_array_size(member(root, "points")),
                 command_count_lines(result.out, "forward "), "%zu of %d",
                 json_array_size(member(root, "points")),
                 command_count_lines(result.out, "forward "));
    json_decref(root);
}
