/* The command as users meet it when all is well: what it prints, what it writes, what it measures.
 */
#include "tool/command_runner.h"
#include "tool/config.h"
#include "tool/json_reader.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(command_run, .init = command_folder_make, .fini = command_folder_remove, .timeout = 200);

static command_result result;

/* Run with --json and give the point; the caller drops *root_out. */
static json_t *measure(int ranks, const char *arguments, json_t **root_out)
{
    char line[1024];
    json_error_t error;
    snprintf(line, sizeof(line), "run --json %s", arguments);
    command_run(&result, ranks, line);
    cr_assert_eq(result.code, 0, "%s: exit code %d\n%s", arguments, result.code, result.err);
    json_t *root = json_loads(result.out, JSON_REJECT_DUPLICATES, &error);
    cr_assert_not_null(root, "%s: %s\n%s", arguments, error.text, result.out);
    cr_assert_eq(json_array_size(member(root, "points")), 1);
    *root_out = root;
    return json_array_get(member(root, "points"), 0);
}

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
    cr_expect(real(point, "exposed_comm_ms") >= 0);
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

/* What was measured is not computed from what was counted. */
static void check_resident(const char *arguments)
{
    json_t *root = NULL;
    json_t *point = measure(0, arguments, &root);
    double const peak = (double)integer(point, "peak_bytes");
    double const resident = (double)integer(point, "rss_peak_bytes");
    double const slack = 0.02 * peak + (16 << 20);
    cr_expect(resident >= peak - slack && resident <= peak + slack,
              "%s: counted %.0f, resident %.0f", arguments, peak, resident);
    json_decref(root);
}

Test(command_run, counted_memory_is_what_the_system_counts)
{
    if (RA_TEST_SANITIZED)
        cr_skip_test("a sanitizer's shadow memory is resident too");
    check_resident("--set shape.seq=64K --set pattern.window.left=63 --set pattern.causal=true");
    check_resident("--set shape.seq=16K --set pattern.window.left=31 --set pattern.causal=true"
                   " --set shape.dtype=f32 --backward");
}

Test(command_run, one_rank_takes_little_more_than_its_tensors)
{
    json_t *root = NULL;
    json_t *point = measure(0,
                            "--set shape.seq=64K --set pattern.window.left=15"
                            " --set pattern.causal=true",
                            &root);
    long long const tensors = 4LL * 65536 * 8 * 64 * 2;
    long long const workspace = integer(member(point, "memory_bytes"), "workspace");
    cr_expect_leq(integer(point, "peak_bytes") - workspace, tensors + tensors / 50);
    cr_expect_eq(integer(member(point, "memory_bytes"), "lse"), 0, "nobody asked for lse");
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
    command_run(&result, 0, "run --json=r.json --set shape.seq=64");
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

/* A NaN and an infinity in q: the first and the second element of the file's data. */
Test(command_run, nan_and_inf_are_computed_on_and_said_once)
{
    static const char header[] =
        "{\"q\":{\"dtype\":\"F32\",\"shape\":[1,8,2,4],\"data_offsets\":[0,256]},"
        "\"k\":{\"dtype\":\"F32\",\"shape\":[1,8,2,4],\"data_offsets\":[256,512]},"
        "\"v\":{\"dtype\":\"F32\",\"shape\":[1,8,2,4],\"data_offsets\":[512,768]}}";
    static unsigned char file[8 + sizeof(header) - 1 + 768];
    static const unsigned char odd[8] = {0, 0, 0xc0, 0x7f, 0, 0, 0x80, 0xff};
    file[0] = (unsigned char)((sizeof(header) - 1) & 0xff);
    file[1] = (unsigned char)((sizeof(header) - 1) >> 8);
    memcpy(file + 8, header, sizeof(header) - 1);
    memcpy(file + 8 + sizeof(header) - 1, odd, sizeof(odd));
    command_file_write("odd.st", file, sizeof(file));
    for (int ranks = 0; ranks <= (command_has_mpi() ? 2 : 0); ranks += 2) {
        command_run(&result, ranks, "run --quiet --verify --input odd.st --output o.st");
        cr_expect_eq(result.code, 0, "%s", result.err);
        cr_expect_eq(command_count_lines(result.err, "1 NaN and 1 infinite"), 1, "%s", result.err);
        cr_expect(command_file_exists("o.st"));
    }
}

Test(command_run, a_sweep_is_said_to_be_left_out_unless_quiet)
{
    static const char text[] = "shape: {seq: 64}\nsweep: {shape.seq: [64, 128]}\n"
                               "variants: {tiny: {shape.seq: 16}}\n";
    command_file_write("job.yaml", text, strlen(text));
    command_run(&result, 0, "run --config job.yaml --variant tiny");
    cr_expect_eq(result.code, 0);
    cr_expect_eq(command_count_lines(result.err, "'sweep'"), 1, "%s", result.err);
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
    static const char *const names[] = {"quickstart",     "dense",       "causal",
                                        "sliding-window", "documents",   "dilated",
                                        "blocks",         "own-tensors", "small-memory"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[512];
        ra_config config = {0};
        snprintf(path, sizeof(path), "%s/configs/%s.yaml", RA_TEST_SOURCE, names[i]);
        ra_config_source const source = {.file = path};
        cr_assert_eq(ra_config_load(&source, &config), RA_OK, "%s", path);
        cr_assert_eq(ra_config_check(&config, 4), RA_OK, "%s", path);
        ra_config_fini(&config);
    }
}

Test(command_run, standard_attention_shows_its_scores_and_is_verified)
{
    json_t *root = NULL;
    command_run(&result, 0, "info");
    if (strstr(result.out, "OpenBLAS 0.") == NULL)
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

/* Bytes of a category at the i-th phase, whose name is as expected. */
static long long phase_bytes(json_t *point, size_t i, const char *name, const char *category)
{
    json_t *phase = json_array_get(member(point, "phases"), i);
    cr_assert_not_null(phase, "no phase %zu, %s", i, name);
    cr_expect_str_eq(json_string_value(member(phase, "name")), name);
    const char *key;
    json_t *bytes, *memory = member(phase, "memory_bytes");
    long long total = 0;
    json_object_foreach(memory, key, bytes)
    {
        total += json_integer_value(bytes);
    }
    cr_expect_eq(total, integer(phase, "total_bytes"));
    cr_expect_leq(total, integer(point, "peak_bytes"));
    return integer(memory, category);
}

Test(command_run, phases_show_each_matrix_of_standard_attention_come)
{
    static const struct {
        const char *name;
        int matrices;
    } wanted[] = {{"forward start", 0}, {"after scores", 1}, {"after softmax", 2},
                  {"forward step", 2},  {"forward end", 2},  {"backward start", 2},
                  {"after dP", 3},      {"after dS", 4},     {"backward step", 4},
                  {"backward end", 0}};
    enum { COUNT = sizeof(wanted) / sizeof(wanted[0]) };
    json_t *root = NULL;
    command_run(&result, 0, "info");
    if (strstr(result.out, "OpenBLAS 0.") == NULL)
        cr_skip_test("OpenBLAS is not installed");
    json_t *point = measure(0,
                            "--phases --backward --set attention.kind=standard "
                            "--set shape.seq=512 --set shape.heads=2 --set shape.batch=3 "
                            "--set job.repeat=2 --set job.warmup=1",
                            &root);
    cr_expect_eq(json_array_size(member(point, "phases")), COUNT);
    cr_expect_eq(integer(point, "phases_left_out"), 0);
    for (size_t i = 0; i < COUNT; i++)
        cr_expect_eq(phase_bytes(point, i, wanted[i].name, "scores"),
                     4LL * 3 * 2 * 512 * 512 * wanted[i].matrices, "%s", wanted[i].name);
    json_decref(root);
}

/* Without buffers kept, what arrives for a step is there in that step only. */
Test(command_run, phases_of_a_ring_show_what_a_step_holds)
{
    json_t *root = NULL;
    int const ranks = command_has_mpi() ? 2 : 0;
    json_t *point = measure(ranks,
                            "--phases --set shape.seq=300 --set shape.heads=2 "
                            "--set ring.schedule=auto --set ring.comm_buffers=0",
                            &root);
    cr_expect_eq(phase_bytes(point, 0, "forward start", "comm_buffer"), 0);
    cr_expect_eq(phase_bytes(point, 1, "forward step", "comm_buffer"), 0);
    json_decref(root);
    point = measure(0, "--set shape.seq=300", &root);
    cr_expect_null(json_object_get(point, "phases"));
    json_decref(root);
    command_run(&result, 0, "run --quiet --phases --set shape.seq=300");
    cr_expect_eq(result.code, 0, "%s", result.err);
    cr_expect_not_null(strstr(result.out, "forward end: qkv "), "%s", result.out);
    if (ranks == 0)
        return;
    point = measure(2,
                    "--phases --set shape.seq=300 --set shape.heads=2 --set ring.schedule=direct "
                    "--set ring.comm_buffers=0 --set memory.pool.mode=off",
                    &root);
    long long const kernels = phase_bytes(point, 0, "forward start", "workspace");
    cr_expect_eq(phase_bytes(point, 1, "forward step", "workspace"), kernels);
    cr_expect_gt(phase_bytes(point, 2, "forward step", "workspace"), kernels);
    cr_expect_eq(phase_bytes(point, 2, "forward step", "comm_buffer"), 0);
    cr_expect_eq(integer(json_array_get(member(point, "phases"), 2), "step"), 1);
    cr_expect_eq(phase_bytes(point, 3, "forward end", "workspace"), kernels);
    json_decref(root);
}

/* What a step takes is refused on every rank, and said by one of them. */
Test(command_run, memory_refused_within_a_pass_is_one_line_for_all_ranks)
{
    static const struct {
        const char *sets, *category;
    } jobs[] = {{"--set ring.comm_buffers=0 --set ring.schedule=direct", "workspace"},
                {"--set attention.kind=standard --backward", "scores"}};
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        json_t *root = NULL;
        char line[512];
        snprintf(line, sizeof(line),
                 "--set shape.seq=384 --set shape.heads=2 --set memory.pool.mode=off "
                 "--set memory.pattern_cache.mode=off --set ring.head_groups=1 %s",
                 jobs[i].sets);
        long long const peak = integer(measure(3, line, &root), "peak_bytes");
        json_decref(root);
        char run[640], wanted[64];
        snprintf(run, sizeof(run), "run --quiet %s --set memory.limit=%lld", line, peak - 1);
        snprintf(wanted, sizeof(wanted), " for %s (", jobs[i].category);
        command_run(&result, 3, run);
        cr_expect_eq(result.code, 4, "%s: %d", run, result.code);
        cr_expect_eq(command_count_lines(result.err, "ringattn: error:"), 1, "%s", result.err);
        cr_expect_eq(command_count_lines(result.err, wanted), 1, "%s", result.err);
    }
}

#define WINDOW                                                                                     \
    "--set shape.heads=1 --set shape.head_dim=8 --set pattern.causal=true "                        \
    "--set pattern.window.left=63 "

/* 16 (N / 128)^2 bytes, which the same pattern without a mask does not have. */
Test(command_run, a_block_mask_is_seen_in_memory_and_gives_the_same)
{
    json_t *root = NULL;
    long long const blocks = 16384 / 128, mask = 16 * blocks * blocks + 16 * blocks;
    json_t *point = measure(0, "--set shape.seq=16384 " WINDOW, &root);
    long long const plain = integer(member(point, "memory_bytes"), "tilemap");
    cr_expect_lt(plain, mask / 8);
    json_decref(root);
    point = measure(0,
                    "--backward --verify --set attention.mask=dense_blocks "
                    "--set shape.seq=16384 " WINDOW,
                    &root);
    long long const dense = integer(member(point, "memory_bytes"), "tilemap");
    cr_expect_geq(dense, mask);
    cr_expect_leq(dense, mask + 4 * plain);
    cr_expect_geq(integer(point, "tilemap_bytes"), mask);
    cr_expect_eq(integer(member(point, "category_peak_bytes"), "pattern_cache"), 0);
    json_decref(root);
}

/* Each rank has its queries against the keys of every live step. */
Test(command_run, block_masks_of_several_ranks_are_verified)
{
    static const char *const schedules[] = {"ring", "direct", "shared"};
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    for (size_t i = 0; i < 3; i++)
        for (int ranks = 2; ranks <= 3; ranks++) {
            char line[256];
            snprintf(line, sizeof(line),
                     "run --backward --verify --quiet --set attention.mask=dense_blocks "
                     "--set shape.seq=1500 --set shape.heads=2 --set pattern.causal=true "
                     "--set shape.dtype=f32 --set ring.schedule=%s",
                     schedules[i]);
            command_run(&result, ranks, line);
            cr_expect_eq(result.code, 0, "%s: %s", schedules[i], result.err);
        }
}

Test(command_run, a_block_mask_that_does_not_fit_ends_all_ranks)
{
    for (int ranks = 0; ranks <= 3 && (ranks == 0 || command_has_mpi()); ranks += 3) {
        command_run(&result, ranks,
                    "run --quiet --set shape.seq=65536 --set attention.mask=dense_blocks "
                    "--set ring.schedule=auto --set memory.limit=2MiB " WINDOW);
        cr_expect_eq(result.code, 4, "%d ranks: %s", ranks, result.err);
        cr_expect_geq(command_count_lines(result.err, "for tilemap"), 1, "%s", result.err);
        cr_expect_leq(command_count_lines(result.err, "ringattn: error"), ranks == 0 ? 1 : ranks);
        cr_expect_null(strstr(result.err, "MPI_ABORT"), "%s", result.err);
    }
}

Test(command_run, a_block_mask_refuses_what_it_does_not_go_with)
{
    static const char *const sets[] = {"attention.kind=linear", "memory.pattern_cache.mode=eager"};
    for (size_t i = 0; i < 2; i++) {
        char line[256];
        snprintf(line, sizeof(line), "run --set attention.mask=dense_blocks --set %s", sets[i]);
        command_run(&result, 0, line);
        cr_expect_eq(result.code, 2, "%s", result.err);
        cr_expect_eq(command_count_lines(result.err, "ringattn: "), 1, "%s", result.err);
        cr_expect_not_null(strstr(result.err, "dense_blocks") != NULL
                               ? strstr(result.err, "dense_blocks")
                               : strstr(result.err, "attention.mask"),
                           "%s", result.err);
    }
}
