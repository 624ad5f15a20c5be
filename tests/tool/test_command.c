/* The command as users meet it when something is wrong: exit codes, one line, nothing left. */
#include "tool/command_runner.h"

#include <criterion/criterion.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

TestSuite(command, .init = command_folder_make, .fini = command_folder_remove);

static command_result result;

/* A safetensors file: header text of any kind, then `data_bytes` bytes of float 1.0. */
static void write_tensors(const char *name, const char *header, uint64_t declared_bytes,
                          size_t data_bytes)
{
    static char file[16384];
    float const one = 1;
    size_t const header_bytes = strlen(header);
    cr_assert_lt(8 + header_bytes + data_bytes, sizeof(file));
    for (int i = 0; i < 8; i++)
        file[i] = (char)(declared_bytes >> (8 * i));
    memcpy(file + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++)
        file[8 + header_bytes + i] = ((const char *)&one)[i % sizeof(one)];
    command_file_write(name, file, 8 + header_bytes + data_bytes);
}

static void write_plain(const char *name, const char *header, size_t data_bytes)
{
    write_tensors(name, header, strlen(header), data_bytes);
}

#define TENSOR(name, shape, from, to)                                                              \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]}"
#define GOOD_K TENSOR("k", "[1,8,2,4]", "256", "512")
#define GOOD_V TENSOR("v", "[1,8,2,4]", "512", "768")
#define GOOD   "{" TENSOR("q", "[1,8,2,4]", "0", "256") "," GOOD_K "," GOOD_V "}"

typedef struct bad_case {
    const char *arguments;
    int code;
    const char *says;
} bad_case;

/* One line, the exit code, no file that was not there. */
static void refuses(const bad_case *bad, int ranks)
{
    int const entries = command_folder_entries();
    command_run(&result, ranks, bad->arguments);
    cr_expect_eq(result.code, bad->code, "%d ranks, %s: exit code %d, not %d\n%s", ranks,
                 bad->arguments, result.code, bad->code, result.err);
    cr_expect_eq(command_count_lines(result.err, "ringattn: error:"), 1, "%d ranks, %s:\n%s", ranks,
                 bad->arguments, result.err);
    cr_expect_not_null(strstr(result.err, bad->says), "%d ranks, %s does not say '%s':\n%s", ranks,
                       bad->arguments, bad->says, result.err);
    cr_expect_eq(result.out[0], '\0', "%s printed: %s", bad->arguments, result.out);
    cr_expect_eq(command_folder_entries(), entries, "%s left a file", bad->arguments);
}

/* Every case alone, every second one on two ranks: there it differs who speaks, not what. */
static void refuses_all(const bad_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        refuses(&cases[i], 0);
        if (command_has_mpi() && i % 2 == 0)
            refuses(&cases[i], 2);
    }
}

#define REFUSES(cases) refuses_all(cases, sizeof(cases) / sizeof((cases)[0]))

Test(command, usage_and_configuration_are_refused_with_2, .timeout = 200)
{
    static const char bad_yaml[] = "shape:\n  seq: 64\n  seqq: 5\n";
    static const char twice[] = "shape:\n  seq: 64\n  seq: 65\n";
    static const char sums[] = "shape: {seq: 64}\npattern:\n  documents: [10, 10]\n";
    static const bad_case cases[] = {
        {"rnu", 2, "'run'"},
        {"plan --config bad.yaml", 2, "bad.yaml"},
        {"run --confg x", 2, "'--config'"},
        {"run --config bad.yaml --output o.st", 2,
         "bad.yaml:3:3: shape.seqq: unknown key; did you mean 'shape.seq'?"},
        {"run --config twice.yaml --output o.st", 2, "twice.yaml:3:3: duplicate key 'seq'"},
        {"run --config sums.yaml --output o.st", 2,
         "sums.yaml:3:3: pattern.documents: lengths sum to 20, but shape.seq is 64"},
        {"run --set shape.seq=128Q --output o.st", 2, "shape.seq: '128Q'"},
        {"run --set shape.head_dim=257 --output o.st", 2, "from 1 to 256"},
        {"run --set shape.heads=8 --set shape.kv_heads=3 --output o.st", 2, "multiple"},
        {"run --set attention.kind=linear --set pattern.causal=true --output o.st", 2,
         "pattern.causal"},
        {"run --variant lean", 2, "--variant lean: the configuration has no such variant"},
        {"probe --variant base", 2, "give --set ring.variant=base"},
        {"plan --ranks 4 --set ring.variant=base", 2, "base runs on one rank, not on 4"},
        {"run --set memory.limit=1.5GiB", 2, "'1.5GiB' is not a whole number of bytes, or of K"},
        {"run --set compute.backend=gpu", 2, "did you mean 'cuda'?"},
        {"bench --set shape.seq=[64,128]", 2, "belong in the file's section sweep"},
        {"run --set pattern.blocks.kind=list", 2, "--input"},
    };
    command_file_write("bad.yaml", bad_yaml, strlen(bad_yaml));
    command_file_write("twice.yaml", twice, strlen(twice));
    command_file_write("sums.yaml", sums, strlen(sums));
    REFUSES(cases);
}

/* By its name, by another, and by links. */
Test(command, an_output_that_is_the_input_is_refused_before_anything_is_written, .timeout = 100)
{
    static const char *const places[] = {"--output good.st", "--output ./good.st",
                                         "--output hard.st", "--output soft.st",
                                         "--json=hard.st",   "--trace good.st"};
    write_plain("good.st", GOOD, 768);
    command_shell(&result, "ln good.st hard.st && ln -s good.st soft.st && cp good.st before.st");
    cr_assert_eq(result.code, 0);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        char line[128];
        snprintf(line, sizeof(line), "run --input good.st %s", places[i]);
        command_run(&result, 0, line);
        cr_expect_eq(result.code, 2, "%s: exit code %d", line, result.code);
        cr_expect_eq(command_count_lines(result.err, "is the input file good.st (job.input)"), 1,
                     "%s: %s", line, result.err);
        command_shell(&result, "cmp good.st before.st && [ \"$(ls | grep -c st$)\" = 4 ]");
        cr_expect_eq(result.code, 0, "%s: something was written", line);
    }
}

/* Whatever a command reads, whatever it writes. */
Test(command, an_output_that_is_any_file_it_reads_is_refused, .timeout = 100)
{
    static const char *const lines[] = {"run --config job.yaml --json=job.yaml",
                                        "run --config job.yaml --output ./job.yaml",
                                        "run --config job.yaml --trace hard.yaml",
                                        "run --config job.yaml --set memory.pool.log=soft.yaml",
                                        "info --config job.yaml --json=hard.yaml",
                                        "probe --config job.yaml --json=soft.yaml",
                                        "ablate --config soft.yaml --json=job.yaml",
                                        "bench --config job.yaml --csv=hard.yaml",
                                        "plan --config job.yaml --json=job.yaml",
                                        "plan --hardware job.yaml --json=soft.yaml",
                                        "plan --hardware job.yaml --save hard.yaml",
                                        "plan --calibrate job.yaml --save job.yaml"};
    static const char yaml[] = "shape: {seq: 64, heads: 1}\n";
    static const char machine[] = "name: a\npeak_tflops: {f32: 1, f16: 1, bf16: 1}\n";
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        bool const is_machine = strstr(lines[i], "--hardware") != NULL;
        const char *text = is_machine ? machine : yaml;
        command_file_write("job.yaml", text, strlen(text));
        if (strstr(lines[i], "--calibrate") != NULL)
            command_shell(&result, "\"$RINGATTN\" bench --quiet --set shape.seq=64 "
                                   "--set job.repeat=1 --json=job.yaml");
        command_shell(&result, "ln -f job.yaml hard.yaml && ln -sf job.yaml soft.yaml && "
                               "cp job.yaml before");
        cr_assert_eq(result.code, 0);
        command_run(&result, 0, lines[i]);
        cr_expect_eq(result.code, 2, "%s: exit code %d\n%s", lines[i], result.code, result.err);
        cr_expect_eq(command_count_lines(result.err, ": is the input file "), 1, "%s: %s", lines[i],
                     result.err);
        command_shell(&result, "cmp job.yaml before && [ $(ls *.yaml* | wc -l) = 3 ]");
        cr_expect_eq(result.code, 0, "%s: something was written", lines[i]);
    }
}

Test(command, outputs_that_are_links_of_one_file_are_refused)
{
    command_shell(&result, "echo 1 >a && ln a b && \"$RINGATTN\" run --json=a --trace b");
    cr_expect_eq(result.code, 2, "%s", result.err);
    cr_expect_eq(command_count_lines(result.err, "is the file of --json, too"), 1, "%s",
                 result.err);
    command_shell(&result, "[ \"$(cat a)\" = 1 ]");
    cr_expect_eq(result.code, 0, "something was written");
}

/* The one written last would be all there is. A device takes what comes. */
Test(command, outputs_that_are_one_file_are_refused_before_anything_is_written, .timeout = 100)
{
    static const char *const places[] = {"run --output o --json=o", "run --output o --trace ./o",
                                         "run --json=o --trace \"$PWD/o\"",
                                         "bench --csv=o --json=../${PWD##*/}/o"};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        char line[128];
        snprintf(line, sizeof(line), "\"$RINGATTN\" %s", places[i]);
        command_shell(&result, line);
        cr_expect_eq(result.code, 2, "%s: exit code %d", line, result.code);
        cr_expect_eq(command_count_lines(result.err, ", too: give another path"), 1, "%s: %s", line,
                     result.err);
        cr_expect_not(command_file_exists("o"), "%s: something was written", line);
    }
    command_run(&result, 0,
                "run --quiet --set shape.seq=8 --json=/dev/null --trace /dev/null --output o");
    cr_expect_eq(result.code, 0, "%s", result.err);
    cr_expect(command_file_exists("o"));
}

Test(command, a_log_is_not_written_where_a_link_leads)
{
    command_shell(&result, "echo 1 >kept && ln -s kept p.1 && \"$RINGATTN\" bench --quiet "
                           "--set shape.seq=8 --set job.repeat=1 --set memory.pool.log=p "
                           "--json=r.json");
    cr_expect_eq(result.code, 3, "%s", result.err);
    cr_expect_eq(command_count_lines(result.err, "memory.pool.log: p.1: is a link"), 1, "%s",
                 result.err);
    command_shell(&result, "[ \"$(cat kept)\" = 1 ] && grep -q '\"status\": *\"ok\"' r.json");
    cr_expect_eq(result.code, 0, "it was, or what was measured is lost");
}

/* Ranks and points write FILE.1, FILE.2.0: a link to such a file is one, too. */
Test(command, a_log_whose_files_would_replace_others_is_refused, .timeout = 100)
{
    static const bad_case cases[] = {
        {"run --input q.1 --set memory.pool.log=q", 2,
         "memory.pool.log: q: with a number behind it is the input file q.1 (job.input)"},
        {"run --input link --set memory.pool.log=./q", 2, "is the input file link (job.input)"},
        {"bench --config job.2.0 --set memory.pool.log=job", 2,
         "is the input file job.2.0 (--config)"},
        {"run --json=p.1 --set memory.pool.log=p", 2,
         "--json: p.1: is the file of memory.pool.log, too"},
        {"run --output p.0 --set memory.pool.log=p", 2,
         "memory.pool.log: p: with a number behind it is the file of job.output, too"},
    };
    static const char *const allowed[] = {"p.1.2.3", "p.1x", "p."};
    write_plain("q.1", GOOD, 768);
    command_file_write("job.2.0", "job: {repeat: 1}\n", 17);
    command_shell(&result, "ln -s q.1 link");
    REFUSES(cases);
    for (size_t i = 0; i < sizeof(allowed) / sizeof(allowed[0]); i++) {
        char line[128];
        snprintf(line, sizeof(line), "run --quiet --set shape.seq=8 --json=%s --set %s", allowed[i],
                 "memory.pool.log=p");
        command_run(&result, 0, line);
        cr_expect_eq(result.code, 0, "%s: %s", line, result.err);
    }
}

Test(command, files_are_refused_with_3, .timeout = 300)
{
    static const bad_case cases[] = {
        {"run --config none.yaml --output o.st", 3, "none.yaml"},
        {"run --input none.st --output o.st", 3, "none.st"},
        {"run --input nothing.st --output o.st", 3, "nothing.st"},
        {"run --input empty.st --output o.st", 3, "empty.st"},
        {"run --input missing.st --output o.st", 3, "'v'"},
        {"run --input good.st --backward --output o.st", 3, "'do'"},
        {"run --input shape.st --output o.st", 3, "shape.st"},
        {"run --input good.st --set shape.seq=9 --output o.st", 3, "shape.seq"},
        {"run --input good.st --set shape.dtype=bf16 --output o.st", 3, "shape.dtype"},
        {"run --input dtype.st --output o.st", 3, "dtype.st"},
        {"run --input short.st --output o.st", 3, "short.st"},
        {"run --input long.st --output o.st", 3, "long.st"},
        {"run --input huge.st --output o.st", 3, "huge.st"},
        {"run --input overlap.st --output o.st", 3, "overlap.st"},
        {"run --input beyond.st --output o.st", 3, "beyond.st"},
        {"run --input twice.st --output o.st", 3, "twice.st"},
        {"run --input good.st --output nowhere/o.st", 3, "nowhere/o.st"},
        {"run --input good.st --output .", 3, "folder"},
        {"run --input good.st --json=nowhere/r.json", 3, "nowhere/r.json"},
    };
    write_plain("good.st", GOOD, 768);
    command_file_write("nothing.st", "", 0);
    write_plain("empty.st",
                "{" TENSOR("q", "[1,0,2,4]", "0", "0") "," TENSOR(
                    "k", "[1,0,2,4]", "0", "0") "," TENSOR("v", "[1,0,2,4]", "0", "0") "}",
                0);
    write_plain("missing.st", "{" TENSOR("q", "[1,8,2,4]", "0", "256") "," GOOD_K "}", 512);
    write_plain("shape.st",
                "{" TENSOR("q", "[1,8,2,4]", "0", "256") "," GOOD_K "," TENSOR("v", "[1,4,4,4]",
                                                                               "512", "768") "}",
                768);
    write_plain(
        "dtype.st",
        "{" TENSOR(
            "q", "[1,8,2,4]", "0",
            "256") "," GOOD_K
                   ",\"v\":{\"dtype\":\"I32\",\"shape\":[1,8,2,4],\"data_offsets\":[512,768]}}",
        768);
    write_plain("short.st", GOOD, 767);
    write_plain("long.st", GOOD, 769);
    write_tensors("huge.st", GOOD, UINT64_C(1) << 63, 768);
    write_plain("overlap.st",
                "{" TENSOR("q", "[1,8,2,4]", "0", "256") "," TENSOR("k", "[1,8,2,4]", "0",
                                                                    "256") "," GOOD_V "}",
                768);
    write_plain("beyond.st",
                "{" TENSOR("q", "[1,8,2,4]", "0",
                           "256") "," GOOD_K "," TENSOR("v", "[1,8,2,4]", "512", "99999999999") "}",
                768);
    write_plain("twice.st",
                "{" TENSOR("q", "[1,8,2,4]", "0", "256") "," TENSOR(
                    "q", "[1,8,2,4]", "0", "256") "," GOOD_K "," GOOD_V "}",
                768);
    REFUSES(cases);
}

/* Node-local copies of an input may be stale: of another shape, or with other data. */
Test(command, ranks_that_read_different_files_are_refused, .timeout = 120)
{
    static const char *const changes[] = {
        "printf 'x' | dd of=1/in.st bs=1 seek=$(($(stat -c %s 1/in.st) - 1)) conv=notrunc",
        "cp longer.st 1/in.st",
    };
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    write_plain("in.st", GOOD, 768);
    write_plain("longer.st",
                "{" TENSOR("q", "[1,9,2,4]", "0", "288") "," TENSOR(
                    "k", "[1,9,2,4]", "288", "576") "," TENSOR("v", "[1,9,2,4]", "576", "864") "}",
                864);
    for (int i = -1; i < 2; i++) {
        char text[600];
        snprintf(text, sizeof(text),
                 "mkdir -p 0 1 && cp in.st 0 && cp in.st 1 && { %s; } 2>/dev/null\n"
                 "exec \"$MPIEXEC\" -n 2 sh -c 'cd $OMPI_COMM_WORLD_RANK &&"
                 " exec \"$RINGATTN\" run --quiet --input in.st --output ../o.st'",
                 i < 0 ? ":" : changes[i]);
        command_shell(&result, text);
        cr_expect_eq(result.code, i < 0 ? 0 : 3, "%d: %d\n%s", i, result.code, result.err);
        cr_expect_eq(command_count_lines(result.err, "ringattn: error:"), i < 0 ? 0 : 1, "%s",
                     result.err);
        cr_expect(i < 0 || strstr(result.err, "the input of rank 1 on host ") != NULL, "%s",
                  result.err);
        cr_expect_eq(command_file_exists("o.st"), i < 0);
        command_shell(&result, "rm -rf 0 1 o.st");
    }
}

/* Another command would wait for messages that nobody sends; other options might go unseen. */
Test(command, ranks_with_other_arguments_are_refused, .timeout = 120)
{
    static const char *const others[] = {"bench --set shape.seq=64", "run --set shape.seq=65",
                                         "run --set shape.seq=64 --phases", "run"};
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        char text[300];
        snprintf(text, sizeof(text),
                 "exec \"$MPIEXEC\" -n 2 sh -c 'if [ \"$OMPI_COMM_WORLD_RANK\" = 0 ]; then"
                 " exec \"$RINGATTN\" run --set shape.seq=64; fi; exec \"$RINGATTN\" %s'",
                 others[i]);
        command_shell(&result, text);
        cr_expect_eq(result.code, 2, "%s: %d\n%s", others[i], result.code, result.err);
        cr_expect_eq(command_count_lines(result.err, "ringattn: error:"), 1, "%s", result.err);
        cr_expect_not_null(strstr(result.err, "was started with other arguments than rank 0"), "%s",
                           result.err);
    }
}

Test(command, a_memory_limit_is_kept_with_4, .timeout = 120)
{
    static const bad_case cases[] = {
        {"run --set memory.limit=1K --output o.st", 4, "ringattn: error:"},
        {"run --set memory.limit=40M --set compute.threads=1 --set shape.seq=16K --output o.st", 4,
         "qkv"},
        {"run --set memory.limit=1G --set shape.seq=16K --set attention.kind=linear_causal"
         " --set attention.linear_method=cumsum --set ring.head_groups=1 --output o.st",
         4, "state"},
    };
    REFUSES(cases);
}

/* Ranks and hosts differ in what they have: the line says whose memory it was. */
Test(command, a_refused_allocation_names_rank_and_host, .timeout = 60)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    command_run(&result, 2,
                "run --set memory.limit=3M --set compute.threads=1"
                " --set shape.seq=16K --output o.st");
    cr_assert_eq(result.code, 4, "%s", result.err);
    cr_assert_eq(command_count_lines(result.err, "ringattn: error:"), 1, "%s", result.err);
    cr_assert_eq(command_count_lines(result.err, " for qkv ("), 1, "%s", result.err);
    cr_assert_eq(command_count_lines(result.err, " (rank 0 on host "), 1, "%s", result.err);
}

Test(command, ranks_that_a_configuration_does_not_allow_are_refused, .timeout = 60)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    command_run(&result, 2, "run --set ring.variant=base");
    cr_assert_eq(result.code, 2);
    cr_assert_eq(command_count_lines(result.err, "ringattn: error:"), 1, "%s", result.err);
    cr_assert_not_null(strstr(result.err, "base runs on one rank, not on 2"));
    command_run(&result, 2, "run --set comm.backend=self");
    cr_assert_eq(result.code, 2);
    cr_assert_eq(command_count_lines(result.err, "ringattn: error:"), 1, "%s", result.err);
    cr_assert_not_null(strstr(result.err, "use mpi or auto\n"), "not of one rank: %s", result.err);
}

/* Refused in one line with the reason that `info` gives; auto takes the CPU and says the same. */
Test(command, a_gpu_that_cannot_compute_is_refused_and_auto_says_why, .timeout = 60)
{
    int const ranks = command_has_mpi() ? 2 : 0;
    static const char *const refused[] = {"run --set compute.backend=cuda --output o.st",
                                          "info --set compute.backend=cuda"};
    for (size_t i = 0; i < 2; i++) {
        command_run(&result, ranks, refused[i]);
        cr_assert_eq(result.code, 2, "%s: %s", refused[i], result.err);
        cr_assert_eq(command_count_lines(result.err, "ringattn: error:"), 1, "%s", result.err);
        cr_assert_not_null(strstr(result.err, "compute.backend: cuda: "), "%s", result.err);
        cr_assert_not_null(strstr(result.err, RA_TEST_CUDA ? "" : "no CUDA"), "%s", result.err);
        cr_assert_not(command_file_exists("o.st"));
    }
    command_run(&result, 0, "run --set shape.seq=64");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_assert_eq(command_count_lines(result.out, "backend     the CPU: "), RA_TEST_CUDA);
    command_run(&result, 0, "run --set shape.seq=64 --set compute.backend=cpu");
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_assert_eq(command_count_lines(result.out, "backend "), 0);
}

Test(command, help_and_version_are_printed_once, .timeout = 60)
{
    int const ranks = command_has_mpi() ? 2 : 0;
    command_run(&result, ranks, "--version");
    cr_assert_eq(result.code, 0);
    cr_assert_str_eq(result.out, "ringattn 0.1.0\n");
    command_run(&result, ranks, "run --help");
    cr_assert_eq(result.code, 0);
    cr_assert_eq(command_count_lines(result.out, "usage:"), 1);
    command_run(&result, 0, "");
    cr_assert_eq(result.code, 2);
    command_shell(&result, "exec \"$RINGATTN\" --help >/dev/full");
    cr_assert_eq(result.code, 3);
    cr_expect_not_null(strstr(result.err, "standard output: No space left"), "%s", result.err);
}

Test(command, the_page_of_all_keys_is_current, .timeout = 60)
{
    static char page[OUTPUT_BYTES_MAX];
    FILE *file = fopen(RA_TEST_SOURCE "/docs/configuration.md", "rb");
    cr_assert_not_null(file);
    page[fread(page, 1, sizeof(page) - 1, file)] = '\0';
    fclose(file);
    command_run(&result, 0, "run --help-config=markdown");
    cr_assert_eq(result.code, 0);
    cr_assert(strcmp(page, result.out) == 0, "write it anew: ringattn run --help-config=markdown");
}

Test(command, a_full_disk_leaves_no_output, .timeout = 120)
{
    write_plain("good.st", GOOD, 768);
    int const entries = command_folder_entries();
    /* No file may grow past 512 bytes. */
    command_shell(&result, "ulimit -f 1; exec \"$RINGATTN\" run --input good.st"
                           " --set job.repeat=1 --output o.st --backward --set shape.heads=2"
                           " --set pattern=null >/dev/null");
    cr_assert_neq(result.code, 0);
    cr_assert_not(command_file_exists("o.st"));
    command_shell(&result, "ulimit -f 1; exec \"$RINGATTN\" run --output o.st"
                           " --set shape.seq=256 >/dev/null");
    cr_assert_eq(result.code, 3, "%d: %s", result.code, result.err);
    cr_assert_eq(command_count_lines(result.err, "ringattn: error:"), 1, "%s", result.err);
    cr_assert_eq(command_folder_entries(), entries, "the failed output was left");
    command_run(&result, 0, "run --set shape.seq=64 --json >/dev/full");
    cr_assert_eq(result.code, 3);
}

/* MPI has files of its own in shared memory, without which mpirun hangs, or ranks do not start. */
Test(command, a_full_disk_ends_a_job_of_several_ranks, .timeout = 120)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    static const char *const schedules[] = {"ring", "shared"};
    for (size_t i = 0; i < sizeof(schedules) / sizeof(schedules[0]); i++) {
        char line[256];
        snprintf(line, sizeof(line),
                 "export PMIX_MCA_gds=hash OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo\n"
                 "ulimit -f 200; exec timeout 60 \"$MPIEXEC\" -n 2 \"$RINGATTN\" "
                 "run --quiet --output o.st --set ring.schedule=%s",
                 schedules[i]);
        command_shell(&result, line);
        cr_expect_eq(result.code, 3, "%s: %d\n%s", schedules[i], result.code, result.err);
        cr_expect_eq(command_count_lines(result.err, "ringattn: error:"), 1, "%s", result.err);
        cr_expect_not(command_file_exists("o.st"));
    }
}

/* A name may begin no other line, and say nothing to the terminal. */
Test(command, control_characters_of_names_are_not_printed, .timeout = 60)
{
    static const char *const uses[] = {"run --config ",
                                       "run --json=",
                                       "run --trace ",
                                       "plan --hardware ",
                                       "plot ",
                                       "run --output ",
                                       "plan --calibrate ",
                                       "run --nonsense ",
                                       "run ",
                                       "run --variant ",
                                       "run --set job.input=",
                                       "run --input ",
                                       "run --set shape.x",
                                       "run --nonsense=",
                                       "run --shape.dtype "};
    for (size_t i = 0; i < sizeof(uses) / sizeof(uses[0]); i++) {
        char line[256];
        snprintf(line, sizeof(line),
                 "exec \"$RINGATTN\" %s\"$(printf 'a\\nb\\033[31m\\302\\2331m\\177/x')\"", uses[i]);
        command_shell(&result, line);
        cr_expect_neq(result.code, 0, "%s", uses[i]);
        cr_expect_eq(command_count_lines(result.err, ""), 1, "%s:\n%s", uses[i], result.err);
        cr_expect_null(strpbrk(result.err, "\033\177\233"), "%s:\n%s", uses[i], result.err);
    }
}

Test(command, a_killed_rank_ends_the_job, .timeout = 300)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    /* Minutes of work, in which rank 1 is killed; the other must not wait for its deadline. */
    command_shell(&result, "cat >.rank <<'END'\n"
                           "if [ \"$OMPI_COMM_WORLD_RANK\" = 1 ]; then\n"
                           "    (for i in $(seq 2400); do\n"
                           "         grep -q 'warm-up\\|forward' .said && kill -KILL $$ && exit\n"
                           "         sleep 0.1\n"
                           "     done) &\n"
                           "else\n"
                           "    exec 2>.said\n"
                           "fi\n"
                           "exec \"$RINGATTN\" run --set shape.seq=16K --set job.repeat=1000 \\\n"
                           "    --output o.st\n"
                           "END\n"
                           "touch .said\n"
                           "exec timeout 280 \"$MPIEXEC\" -n 2 sh .rank");
    cr_assert_eq(result.code, 128 + 9, "%d: %s", result.code, result.err);
    cr_assert_eq(command_folder_entries(), 0, "something was left");
}

Test(command, more_heads_than_tokens_are_mentioned)
{
    static const char others[] = "{" TENSOR("q", "[1,2,8,4]", "0", "256") "," TENSOR(
        "k", "[1,2,8,4]", "256", "512") "," TENSOR("v", "[1,2,8,4]", "512", "768") "}";
    write_plain("ours.st", GOOD, 768);
    write_plain("others.st", others, 768);
    for (int i = 0; i < 2; i++) {
        command_run(&result, command_has_mpi() ? 2 : 0,
                    i == 0 ? "run --quiet --input ours.st" : "run --quiet --input others.st");
        cr_expect_eq(result.code, 0, "%s", result.err);
        cr_expect_eq(command_count_lines(result.err, "others.st: q is read as 8 heads of 2 tokens"),
                     i, "%s", result.err);
        cr_expect_eq(command_count_lines(result.err, "ringattn: warning:"), i, "%s", result.err);
    }
}

/* As mpirun would start it: one rank speaks for all. */
Test(command, ranks_of_a_build_without_mpi_are_refused_in_one_line)
{
    if (command_has_mpi())
        cr_skip_test("this build has MPI");
    for (int rank = 0; rank < 2; rank++) {
        char line[128];
        snprintf(line, sizeof(line),
                 "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=%d \"$RINGATTN\" info", rank);
        command_shell(&result, line);
        cr_expect_eq(result.code, 2, "rank %d: exit code %d", rank, result.code);
        cr_expect_eq(command_count_lines(result.err, "but this build has no MPI"), rank == 0);
        cr_expect_eq(command_count_lines(result.err, ""), rank == 0, "%s", result.err);
    }
}
