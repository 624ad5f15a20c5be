/* The command as users meet it when all is well: what it prints, what it writes, what it measures.
 */
#include "tool/config_points.h"
#include "tool/measure_runner.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

TestSuite(command_run, .init = command_folder_make, .fini = command_folder_remove, .timeout = 200);

static void check_times(json_t *times)
{
    double const min = real(times, "min"), median = real(times, "median");
    double const max = real(times, "max");
    cr_expect(min > 0 && min <= median && median <= max);
}

Test(command_run, json_tells_what_the_pattern_cache_did)
{
    json_t *root = NULL;
    json_t *cache = member(measure(0, "--set shape.seq=300", &root), "pattern_cache");
    cr_expect_str_eq(json_string_value(member(cache, "mode")), "lazy");
    cr_expect_eq(integer(cache, "misses"), 1);
    cr_expect_eq(integer(cache, "hits") + integer(cache, "evictions"), 0);
    cr_expect_eq(integer(cache, "bytes") + integer(cache, "entries"), 0, "used once");
    json_decref(root);
    json_t *point = measure(0, "--set shape.seq=300 --set memory.pattern_cache.mode=eager", &root);
    cache = member(point, "pattern_cache");
    cr_expect_eq(integer(cache, "entries"), 1);
    cr_expect_eq(integer(cache, "bytes"), integer(member(point, "memory_bytes"), "pattern_cache"));
    json_decref(root);
    /* A map that does not fit is made, used, and not kept. */
    point = measure(0,
                    "--set shape.seq=300 --set memory.pattern_cache.mode=eager "
                    "--set memory.pattern_cache.bytes=100",
                    &root);
    cr_expect_eq(integer(member(point, "pattern_cache"), "entries"), 0);
    cr_expect_eq(integer(member(point, "memory_bytes"), "pattern_cache"), 0);
    json_decref(root);
}

Test(command_run, json_has_every_field_and_they_agree)
{
    json_t *root = NULL;
    int const ranks = command_has_mpi() ? 3 : 0, members = ranks > 0 ? ranks : 1;
    json_t *point = measure(ranks,
                            "--backward --verify --set shape.seq=500 --set shape.heads=4"
                            " --set shape.kv_heads=2 --set shape.batch=2 --set job.repeat=3"
                            " --set job.warmup=1 --set pattern.causal=true"
                            " --set ring.layout=contiguous --set ring.schedule=ring",
                            &root);
    cr_expect_str_eq(json_string_value(member(root, "ringattn")), ra_version());
    cr_expect_str_eq(json_string_value(member(root, "command")), "run");
    cr_expect(json_is_object(member(root, "machine")));
    cr_expect_str_eq(json_string_value(member(point, "status")), "ok");
    cr_expect_eq(integer(point, "ranks"), members);
    check_times(member(point, "forward_ms"));
    check_times(member(point, "backward_ms"));
    cr_expect(real(point, "tflops_forward") > 0);
    cr_expect(real(point, "tflops_backward") > 0);
    /* Causal: half the square and half the diagonal, for 2 x 4 heads. */
    cr_expect_eq(integer(point, "live_pairs"), 8LL * 500 * 501 / 2);
    cr_expect(real(point, "imbalance") >= 1);
    cr_expect(real(point, "waiting_ms") >= 0);
    cr_expect_eq(integer(point, "sent_bytes") > 0, ranks > 0);
    cr_expect_eq(integer(point, "full_ring_bytes") > 0, ranks > 0);
    cr_expect(integer(point, "tilemap_bytes") > 0);
    cr_expect_eq(json_object_size(member(point, "error")), 5);
    long long const peak = integer(point, "peak_bytes");
    cr_expect(integer(point, "peak_bytes_sum") >= peak);
    cr_expect(integer(point, "peak_bytes_sum") <= members * peak);
    long long sum = 0;
    const char *name;
    json_t *value;
    json_object_foreach(member(point, "memory_bytes"), name, value) sum +=
        json_integer_value(value);
    cr_expect_eq(sum, peak, "categories sum to %lld, the peak is %lld", sum, peak);
    cr_expect(integer(member(point, "memory_bytes"), "qkv") > 0);
    json_decref(root);
}

Test(command_run, the_effective_configuration_can_be_run_again)
{
    json_t *root = NULL, *again = NULL;
    json_t *point = measure(0,
                            "--set shape.seq=77 --set shape.dtype=f32 --set job.seed=9"
                            " --set pattern.window.left=5 --set pattern.causal=true",
                            &root);
    char *config = json_dumps(member(point, "config"), 0);
    command_file_write("again.yaml", config, strlen(config));
    json_t *second = measure(0, "--config again.yaml", &again);
    cr_expect(json_equal(member(point, "config"), member(second, "config")));
    cr_expect_eq(integer(point, "live_pairs"), integer(second, "live_pairs"));
    free(config);
    json_decref(root);
    json_decref(again);
}

Test(command_run, json_goes_to_a_file_and_the_table_to_stdout)
{
    command_run(&result, 0, "run --json=r.json --set shape.seq=64 --set compute.threads=1");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_expect_not_null(strstr(result.out, "tokens"));
    cr_expect_not_null(strstr(result.out, "every token sees every token"));
    cr_expect_not_null(strstr(result.out, "TFLOP/s"));
    cr_expect_not_null(strstr(result.out, "qkv"));
    cr_expect(command_file_exists("r.json"));
    cr_expect_eq(command_folder_entries(), 1, "a temporary file was left");
    cr_expect_eq(result.err[0], '\0', "said without need: %s", result.err);
}

Test(command_run, more_ranks_than_tokens_work)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    command_run(&result, 5, "run --set shape.seq=3 --backward --verify --output o.st");
    cr_expect_eq(result.code, 0, "%s", result.err);
    cr_expect(command_file_exists("o.st"));
}

/* A safetensors file of so many float32 in all, zeros but for those at the data's beginning. */
static void write_input(const char *name, const char *header, const float *data, size_t count,
                        size_t all)
{
    static unsigned char file[8 + 512 + 1024];
    size_t const length = strlen(header);
    cr_assert(length <= 512 && all * sizeof(float) <= 1024 && count <= all);
    memset(file, 0, sizeof(file));
    file[0] = (unsigned char)(length & 0xff);
    file[1] = (unsigned char)(length >> 8);
    memcpy(file + 8, header, length);
    memcpy(file + 8 + length, data, count * sizeof(float));
    command_file_write(name, file, 8 + length + all * sizeof(float));
}

/* A NaN and an infinity in q: the first and the second element of the file's data. */
Test(command_run, nan_and_inf_are_computed_on_and_said_once)
{
    static const char header[] =
        "{\"q\":{\"dtype\":\"F32\",\"shape\":[1,8,2,4],\"data_offsets\":[0,256]},"
        "\"k\":{\"dtype\":\"F32\",\"shape\":[1,8,2,4],\"data_offsets\":[256,512]},"
        "\"v\":{\"dtype\":\"F32\",\"shape\":[1,8,2,4],\"data_offsets\":[512,768]}}";
    static const float odd[] = {NAN, -INFINITY};
    write_input("odd.st", header, odd, 2, 192);
    for (int ranks = 0; ranks <= (command_has_mpi() ? 2 : 0); ranks += 2) {
        command_run(&result, ranks, "run --quiet --verify --input odd.st --output o.st");
        cr_expect_eq(result.code, 0, "%s", result.err);
        cr_expect_eq(command_count_lines(result.err, "1 NaN and 1 infinite"), 1, "%s", result.err);
        cr_expect_eq(command_count_lines(result.err, "all inputs are finite"), 0, "%s", result.err);
        cr_expect(command_file_exists("o.st"));
    }
    /* 3e38 in q and k: a score beyond float32 makes a row of results NaN. */
    static const float large[65] = {[0] = 3e38f, [64] = 3e38f};
    write_input("large.st", header, large, 65, 192);
    for (int ranks = 0; ranks <= (command_has_mpi() ? 2 : 0); ranks += 2) {
        command_run(&result, ranks, "run --quiet --input large.st --output o.st");
        cr_expect_eq(result.code, 0, "%s", result.err);
        cr_expect_eq(command_count_lines(result.err, "o.st: the results have 4 NaN"), 1, "%s",
                     result.err);
        cr_expect_eq(command_count_lines(result.err, "all inputs are finite"), 1, "%s", result.err);
    }
    command_shell(&result, "\"$RINGATTN\" run --quiet --input large.st --output 'o\n.st'");
    cr_expect_eq(command_count_lines(result.err, "text without control characters"), 1, "%s",
                 result.err);
}

/* No row is left to compare, so that no error is told: it must not look as if all were well. */
Test(command_run, a_verification_that_compares_nothing_is_said)
{
    static const char header[] =
        "{\"q\":{\"dtype\":\"F32\",\"shape\":[1,2,1,4],\"data_offsets\":[0,32]},"
        "\"k\":{\"dtype\":\"F32\",\"shape\":[1,2,1,4],\"data_offsets\":[32,64]},"
        "\"v\":{\"dtype\":\"F32\",\"shape\":[1,2,1,4],\"data_offsets\":[64,96]}}";
    float data[24];
    for (int i = 0; i < 24; i++)
        data[i] = INFINITY;
    write_input("inf.st", header, data, 24, 24);
    for (int i = 0; i < 24; i++)
        data[i] = 3e38f;
    write_input("huge.st", header, data, 24, 24);
    for (int ranks = 0; ranks <= (command_has_mpi() ? 2 : 0); ranks += 2) {
        command_run(&result, ranks, "run --quiet --verify --input inf.st");
        cr_expect_eq(result.code, 0, "%s", result.err);
        cr_expect_eq(command_count_lines(result.err, "warning: verification compared nothing"), 1,
                     "%s", result.err);
        command_run(&result, ranks, "run --quiet --verify --set shape.seq=8");
        cr_expect_eq(command_count_lines(result.err, "compared nothing"), 0, "%s", result.err);
        /* Scores beyond float32 make NaN of finite inputs: that is an error, and says so alone. */
        command_run(&result, ranks, "run --quiet --verify --input huge.st");
        cr_expect_eq(result.code, 6, "%s", result.err);
        cr_expect_eq(command_count_lines(result.err, "error: verification failed"), 1, "%s",
                     result.err);
        cr_expect_eq(command_count_lines(result.err, "compared nothing"), 0, "%s", result.err);
    }
}

Test(command_run, what_a_file_has_for_other_commands_is_said_to_be_left_out_unless_quiet)
{
    static const char text[] = "shape: {seq: 64}\nsweep: {shape.seq: [64, 128]}\n"
                               "variants: {tiny: {shape.seq: 16}}\n";
    static const char *const commands[] = {"run", "ablate"};
    command_file_write("job.yaml", text, strlen(text));
    for (int i = 0; i < 2; i++) {
        char line[64];
        snprintf(line, sizeof(line), "%s --config job.yaml", commands[i]);
        command_run(&result, 0, line);
        cr_expect_eq(result.code, 0);
        cr_expect_eq(command_count_lines(result.err, "'sweep'"), 1, "%s", result.err);
        cr_expect_eq(command_count_lines(result.err, "--variant names one, as 'tiny'"), 1, "%s",
                     result.err);
    }
    command_run(&result, 0, "run --config job.yaml --variant tiny");
    cr_expect_eq(result.code, 0);
    cr_expect_eq(command_count_lines(result.err, "'sweep'"), 1, "%s", result.err);
    cr_expect_eq(command_count_lines(result.err, "'variants'"), 0, "%s", result.err);
    cr_expect_eq(command_count_lines(result.out, "16 x batch 1"), 1, "%s", result.out);
    command_run(&result, 0, "run --config job.yaml --quiet");
    cr_expect_eq(result.code, 0);
    cr_expect_eq(result.err[0], '\0', "%s", result.err);
}

/* With no terminal, progress is a line every few seconds; the job is stopped once there is one. */
Test(command_run, a_long_job_shows_progress)
{
    command_shell(&result,
                  "\"$RINGATTN\" run --set shape.seq=1K --set job.repeat=1000000 >/dev/null &\n"
                  "pid=$!\n"
                  "n=0\n"
                  "while [ $n -lt 600 ] && ! grep -q 'of 1000000' .err && kill -0 $pid; do\n"
                  "    sleep 0.1\n"
                  "    n=$((n + 1))\n"
                  "done\n"
                  "kill $pid\n");
    cr_expect_eq(result.code, 0, "the job ended by itself: %s", result.err);
    cr_expect_geq(command_count_lines(result.err, "ringattn: forward "), 1, "%s", result.err);
}

/* Files in configs/ are what people copy: each must be taken as it stands. */
Test(command_run, every_example_is_a_configuration)
{
    static const char *const names[] = {"quickstart",   "dense",   "causal", "sliding-window",
                                        "documents",    "dilated", "blocks", "own-tensors",
                                        "small-memory", "gpu"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[512];
        snprintf(path, sizeof(path), "%s/configs/%s.yaml", RA_TEST_SOURCE, names[i]);
        ra_config config = config_of(path, NULL);
        cr_assert_eq(ra_config_check(&config, 4), RA_OK, "%s", path);
        ra_config_fini(&config);
    }
}

Test(command_run, standard_attention_shows_its_scores_and_is_verified)
{
    json_t *root = NULL;
    if (!command_has_openblas())
        cr_skip_test("OpenBLAS is not installed");
    json_t *point = measure(0,
                            "--backward --verify --set attention.kind=standard "
                            "--set shape.seq=1024 --set shape.heads=2 --set shape.dtype=f32 "
                            "--set pattern.causal=true",
                            &root);
    /* S, P, dP and dS, one float per pair and head, whether it is live or not. */
    cr_expect_eq(integer(member(point, "memory_bytes"), "scores"), 4LL * 4 * 2 * 1024 * 1024);
    cr_expect_str_eq(json_string_value(member(point, "kernel")), "standard");
    json_decref(root);
    if (!command_has_mpi())
        return;
    command_run(&result, 3,
                "run --backward --quiet --set attention.kind=standard --set shape.seq=1024 "
                "--set shape.heads=2 --set shape.dtype=f32 --set memory.limit=12MiB "
                "--set ring.schedule=direct");
    cr_expect_eq(result.code, 4, "%s", result.err);
    cr_expect_leq(command_count_lines(result.err, "ringattn: error"), 3, "%s", result.err);
    cr_expect_geq(command_count_lines(result.err, "for scores"), 1, "%s", result.err);
    cr_expect_null(strstr(result.err, "MPI_ABORT"), "%s", result.err);
}

Test(command_run, standard_attention_refuses_an_instruction_set)
{
    command_run(&result, 0, "run --set attention.kind=standard --set compute.isa=portable");
    cr_expect_eq(result.code, 2);
    cr_expect_not_null(strstr(result.err, "compute.isa"), "%s", result.err);
}

/* What a search path finds under OpenBLAS's names and cannot load hides the true one. */
Test(command_run, standard_attention_without_openblas_is_refused_in_one_line)
{
    command_file_write("libopenblas.so.0", "", 0);
    command_file_write("libopenblas.so", "", 0);
    command_shell(&result, "LD_LIBRARY_PATH=. $RINGATTN info");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_assert_null(strstr(result.out, "OpenBLAS 0."), "%s", result.out);
    command_shell(&result, "LD_LIBRARY_PATH=. $RINGATTN run --set attention.kind=standard");
    cr_expect_eq(result.code, 2, "%s", result.err);
    cr_expect_eq(command_count_lines(result.err, "ringattn: "), 1, "%s", result.err);
    cr_expect_not_null(strstr(result.err, "OpenBLAS, which is not installed"), "%s", result.err);
    cr_expect_str_empty(result.out);
}
