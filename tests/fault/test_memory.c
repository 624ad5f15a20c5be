/*
 * Every request for memory of a whole forward and backward run is refused once: the n-th for n = 0,
 * 1, ... until a run makes fewer. Then the command says why in one line and ends with the code for
 * that, or does without; it leaves no file that looks like a result, and no block.
 * A run takes a moment, so only some are refused (thin_sweep.h).
 */
#include "support/thin_sweep.h"
#include "tool/command_runner.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(memory, .init = command_folder_make, .fini = command_folder_remove, .timeout = 900);

static command_result result;

typedef struct report {
    long requests, live;
    int refused;
    bool written; /* a process that was ended by another writes none */
} report;

static report report_read(void)
{
    char path[128];
    report r = {0};
    snprintf(path, sizeof(path), "%s/report", command_folder);
    FILE *const file = fopen(path, "r");
    if (file == NULL)
        return r;
    r.written = fscanf(file, "%ld %d %ld", &r.requests, &r.refused, &r.live) == 3;
    fclose(file);
    return r;
}

static report run_failing(int ranks, int rank, long n, const char *arguments)
{
    char text[2048], start[64] = "";
    if (ranks > 0)
        snprintf(start, sizeof(start), "\"$MPIEXEC\" -n %d ", ranks);
    snprintf(text, sizeof(text),
             "rm -f report out.safetensors* trace.json* r.json* blocks.log*\n"
             "RA_FAIL_AT=%ld RA_FAIL_RANK=%d RA_FAIL_REPORT=report\n"
             "export RA_FAIL_AT RA_FAIL_RANK RA_FAIL_REPORT\n"
             "exec %s'%s' %s",
             n, rank, start, RA_TEST_FAILING, arguments);
    command_shell(&result, text);
    return report_read();
}

/* What a run that was refused must look like. */
static void expect_clean(const report *r, int ranks, long n, const char *arguments)
{
    int const lines = command_count_lines(result.err, "ringattn: error: ");
    bool const done = result.code == 0;
    cr_assert(done || result.code == 4, "request %ld: exit code %d\n%s\n%s", n, result.code,
              arguments, result.err);
    if (r->written)
        cr_assert_eq(r->live, 0, "request %ld: %ld blocks left\n%s\n%s", n, r->live, arguments,
                     result.err);
    if (done) {
        cr_assert_eq(lines, 0, "request %ld: %s", n, result.err);
        return;
    }
    cr_assert(lines >= 1 && lines <= (ranks > 1 ? ranks : 1), "request %ld: %d lines\n%s", n, lines,
              result.err);
    cr_assert_not_null(strstr(result.err, "memory"), "request %ld: %s", n, result.err);
    /* What comes after the report leaves it where it is. */
    if (strstr(result.err, "report") == NULL && strstr(result.err, "trace") == NULL &&
        strstr(result.err, "memory.pool.log") == NULL)
        cr_assert(ranks > 1 || !command_file_exists("r.json"), "request %ld: %s", n, result.err);
}

#define JOB                                                                                        \
    "run --quiet --backward --verify --output out.safetensors --trace trace.json --json=r.json "   \
    "--set shape.seq=150 --set shape.heads=2 --set shape.head_dim=8 --set shape.dtype=bf16 "       \
    "--set pattern.causal=true --set pattern.window.left=40 --set pattern.sinks=2 "                \
    "--set compute.threads=2 --set memory.pool.log=blocks.log "

static void sweep_command(int ranks, int rank, long usual_every, const char *arguments)
{
    thin_sweep const thin = thin_sweep_begin(usual_every);
    long failures = 0, n = thin.skipped;
    report r;
    for (;; n += thin.every) {
        r = run_failing(ranks, rank, n, arguments);
        if (r.written && r.refused == 0)
            break;
        expect_clean(&r, ranks, n, arguments);
        failures += result.code != 0;
    }
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_assert_eq(r.live, 0, "%ld blocks left", r.live);
    cr_assert_gt(failures, r.requests / thin.every / 2, "%ld of %ld, %s", failures, r.requests,
                 thin.text);
}

static void sweep(int ranks, int rank, long usual_every, const char *more)
{
    char arguments[1024];
    snprintf(arguments, sizeof(arguments), JOB "%s", more);
    sweep_command(ranks, rank, usual_every, arguments);
    cr_assert(command_file_exists("out.safetensors"));
}

Test(memory, one_rank_survives_the_nth_refusal_with_the_pool_on)
{
    sweep(0, 0, 23, "--set memory.pattern_cache.mode=eager");
}

Test(memory, one_rank_survives_the_nth_refusal_with_the_pool_off)
{
    sweep(0, 0, 29, "--set memory.pool.mode=off --set memory.pattern_cache.mode=off");
}

Test(memory, several_ranks_survive_the_nth_refusal_of_one)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    sweep(2, 1, 83, "--set ring.schedule=direct");
    sweep(2, 0, 89, "--set ring.comm_buffers=0 --set memory.pool.mode=off");
}

Test(memory, a_block_mask_and_phases_survive_the_nth_refusal)
{
    sweep(0, 0, 47, "--phases --set attention.mask=dense_blocks");
    if (command_has_mpi())
        sweep(2, 1, 151, "--phases --set attention.mask=dense_blocks --set ring.schedule=shared");
}

/* Its steps take memory, in the middle of a pass. */
Test(memory, materialised_scores_survive_the_nth_refusal)
{
    if (!command_has_openblas())
        cr_skip_test("OpenBLAS is not installed");
    sweep(0, 0, 43, "--phases --set attention.kind=standard");
    if (command_has_mpi())
        sweep(2, 1, 149, "--set attention.kind=standard --set ring.schedule=direct");
}

/* Parsing goes no further than memory does. */
Test(memory, a_report_that_is_read_survives_the_nth_refusal)
{
    command_shell(&result, "$RINGATTN bench --quiet --json=bench.json --set shape.seq=64 "
                           "--set job.repeat=1 --set compute.threads=1");
    cr_assert_eq(result.code, 0, "%s", result.err);
    sweep_command(0, 0, 31, "plan --set compute.threads=1 --calibrate bench.json");
    sweep_command(0, 0, 31, "plot --prefix picture bench.json");
}

/* Its own lists come before all else. */
Test(memory, a_plan_survives_each_of_its_first_refusals)
{
    for (long n = 0; n < 30; n++) {
        report const r = run_failing(0, 0, n, "plan --ranks 2 --json=r.json --set shape.seq=150");
        cr_assert_eq(r.refused, 1, "request %ld", n);
        cr_assert_eq(result.code, 4, "request %ld: exit code %d", n, result.code);
        expect_clean(&r, 0, n, "plan");
    }
}

/* What comes before the first agreement on a ring, too, where a rank that fails is the only one. */
Test(memory, every_first_refusal_of_one_of_several_ranks_is_told_to_the_others)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    for (int rank = 0; rank < 2; rank++) {
        bool ended = false; /* at the ranks' cores, the last of these */
        for (long n = 0; n < 60 && !ended; n++) {
            report const r = run_failing(2, rank, n, "run --quiet --set shape.seq=150");
            expect_clean(&r, 2, n, "run");
            ended = strstr(result.err, "the ranks' cores") != NULL;
        }
        cr_expect(ended, "no request of rank %d was for the cores", rank);
    }
}

/* Only rank 0 has one, so that it must not fail there alone. */
Test(memory, without_memory_for_the_thread_that_shows_progress_a_job_goes_on)
{
    int const ranks = command_has_mpi() ? 2 : 0;
    for (long n = 0; n < 60; n++) {
        report const r = run_failing(ranks, 0, n, "run --set shape.seq=150");
        expect_clean(&r, ranks, n, "run");
        if (strstr(result.err, "the thread that shows progress") != NULL) {
            cr_assert_eq(result.code, 0, "%s", result.err);
            return;
        }
    }
    cr_assert(false, "no request was for it");
}
