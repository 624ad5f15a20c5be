/*
 * What becomes of the command when its GPU is lost, on the stand-in runtime and with emulated
 * launches: a kernel hangs, or leaves an error that all later calls return. Whenever it happens,
 * one line says so, the job ends with exit code 5, and no file is left.
 */
#include "support/thin_sweep.h"
#include "tool/device_runner.h"

TestSuite(lost_gpu, .init = command_folder_make, .fini = command_folder_remove, .timeout = 1100);

#define JOB                                                                                        \
    "run --quiet --set compute.backend=cuda --set shape.heads=2 --set shape.kv_heads=1 "           \
    "--set shape.head_dim=24 --set shape.dtype=f32 --backward --output o.safetensors "
#define CAUSAL        JOB "--set shape.seq=150 --set pattern.causal=true "
#define LINEAR_CAUSAL JOB "--set shape.seq=1100 --set attention.kind=linear_causal "
#define STANDARD      CAUSAL "--set attention.kind=standard "

static void run_with(const char *variable, long number, const char *job)
{
    char start[80];
    snprintf(start, sizeof(start), "RA_STANDIN_MULTIPROCESSORS=2 %s=%ld", variable, number);
    run(start, job);
}

static bool lacks_cublas(void)
{
    return strstr(result.err, "this build has no cuBLAS") != NULL;
}

static void expect_lost(long number, const char *job, const char *line)
{
    if (lacks_cublas())
        return;
    cr_expect_eq(result.code, 5, "%ld, %s: %d: %s", number, job, result.code, result.err);
    cr_expect_eq(command_count_lines(result.err, "ringattn: error:"), 1, "%ld, %s: %s", number, job,
                 result.err);
    cr_expect_eq(command_count_lines(result.err, "could not be"), 0, "%ld, %s: %s", number, job,
                 result.err);
    cr_expect_eq(command_count_lines(result.err, line), 1, "%ld, %s: %s", number, job, result.err);
    cr_expect_eq(command_folder_entries(), 0, "%ld, %s", number, job);
}

/* ---- a kernel that hangs --------------------------------------------------------------------- */

/* In the check at the start, and in a pass; nothing waits for it at the end either, where the
   stand-in would say so. */
static void expect_hang(int launch, const char *job, const char *named)
{
    char arguments[512];
    snprintf(arguments, sizeof(arguments), "%s--set comm.timeout=500ms", job);
    run_with("RA_STANDIN_HANG", launch, arguments);
    expect_lost(launch, job, "ringattn: error: GPU 0 hangs");
    cr_expect(lacks_cublas() || strstr(result.err, named) != NULL, "%d, %s: %s", launch, job,
              result.err);
}

Test(lost_gpu, a_kernel_that_hangs_ends_the_job)
{
    expect_hang(1, CAUSAL, "kernel of step ");
    expect_hang(21, CAUSAL, "kernel of step ");
    expect_hang(1, LINEAR_CAUSAL, "linear attention");
    expect_hang(17, LINEAR_CAUSAL, "linear attention");
    expect_hang(1, STANDARD, "products of step ");
    expect_hang(68, STANDARD, "products of step ");
}

#define STAGED CAUSAL "--set comm.backend=mpi "
#define GPUS   "RA_STANDIN_MULTIPROCESSORS=2"

/* By a clock that the rank tells whose kernel hangs: who is late, or a machine that stalls, makes
   nobody give others up. */
static void run_rank_hangs(int ranks, int launch, const char *job)
{
    char hang[64];
    snprintf(hang, sizeof(hang), "RA_STANDIN_HANG=%d", launch);
    run_ranks(ranks, GPUS " RA_STANDIN_CLOCK=.shared/clock", hang, job);
    cr_expect(lacks_cublas() || result.code == 5, "%d, %s: %d: %s", launch, job, result.code,
              result.err);
}

/* Others may have given it up for lost in a pass, while its stream has what they wait for. */
static void expect_rank_hangs(int launch, const char *timeout, int lines_max)
{
    char job[512];
    snprintf(job, sizeof(job), STAGED "--set comm.timeout=%s", timeout);
    run_rank_hangs(2, launch, job);
    cr_expect_eq(command_count_lines(result.err, "ringattn: error: GPU 1 hangs"), 1, "%d: %s",
                 launch, result.err);
    cr_expect_leq(command_count_lines(result.err, "ringattn: error:"), lines_max, "%d: %s", launch,
                  result.err);
}

Test(lost_gpu, a_rank_whose_kernel_hangs_ends_all)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    expect_rank_hangs(28, "5s", 2);
}

/* The others hear meanwhile that it is at work, so that its own deadline is over first. */
Test(lost_gpu, a_rank_whose_kernel_hangs_in_the_check_says_so_before_others_give_it_up)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    expect_rank_hangs(1, "3s", 1);
    expect_rank_hangs(19, "3s", 1);
}

/* A driver that is asked for memory may wait for the GPU, and never return: the stand-in ends the
   process there. */
Test(lost_gpu, a_rank_that_needs_memory_while_its_kernel_hangs_ends_all)
{
    static const struct {
        const char *job;
        int launches[2];
    } cases[] = {{STAGED "--set comm.timeout=2s --set ring.schedule=ring", {28, 35}},
                 {STAGED "--set comm.timeout=2s --set ring.comm_buffers=0", {30, 40}},
                 {STAGED "--set comm.timeout=2s --set attention.kind=standard", {90, 115}}};
    int const count = RA_TEST_SANITIZED ? 1 : 2; /* a sanitized build makes fewer launches */
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int l = 0; l < count; l++)
            run_rank_hangs(3, cases[i].launches[l], cases[i].job);
}

/* ---- an error that stays --------------------------------------------------------------------- */

#define STAYS "(CUDA error 700): GPU 0 is lost to this process"

Test(lost_gpu, a_kernel_that_leaves_an_error_ends_the_job)
{
    static const struct {
        const char *job;
        int launch;
    } cases[] = {{CAUSAL, 1},         {CAUSAL, 21},  {LINEAR_CAUSAL, 1},
                 {LINEAR_CAUSAL, 17}, {STANDARD, 1}, {STANDARD, 68}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        run_with("RA_STANDIN_FAULT", cases[i].launch, cases[i].job);
        expect_lost(cases[i].launch, cases[i].job, STAYS);
    }
}

/* Of the runtime, in all of a job; 0: it computes without cuBLAS, which there is not. */
static long count_calls(const char *job)
{
    long calls = 0;
    run("RA_STANDIN_MULTIPROCESSORS=2 RA_STANDIN_REPORT=.calls", job);
    if (lacks_cublas())
        return 0;
    cr_assert_eq(result.code, 0, "%s: %s", job, result.err);
    read_calls(&calls, NULL);
    return calls;
}

/* Whichever call of the runtime is the first to meet it, as long as there was a GPU at first.
   Behind the last results nobody minds; outputs that were complete by then stay. */
Test(lost_gpu, whatever_call_meets_it_first)
{
    enum { FIRST = 44, EVERY = 97 };
    static const char *const jobs[] = {
        "--trace t.json --set memory.pool.mode=off", "--set memory.pool.mode=driver",
        "--set attention.kind=standard", "--set attention.kind=linear"};
    thin_sweep const sweep = thin_sweep_begin(EVERY);
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        char job[512];
        long ended = 0, complete = 0;
        snprintf(job, sizeof(job),
                 "%s--set shape.seq=60 %s; code=$?; rm -f o.safetensors t.json; exit $code", JOB,
                 jobs[i]);
        long const calls = count_calls(job);
        for (long call = FIRST + sweep.skipped; call <= calls; call += sweep.every) {
            run_with("RA_STANDIN_STICKY", call, job);
            complete += result.code == 0;
            ended += result.code != 0;
            if (result.code == 0) /* nothing was left but giving back */
                cr_expect_eq(command_count_lines(result.err, "ringattn:"), 0, "%ld (%s), %s: %s",
                             call, sweep.text, job, result.err);
            else
                expect_lost(call, job, STAYS);
            cr_expect(complete == 0 || result.code == 0, "%ld (%s), %s: %s", call, sweep.text, job,
                      result.err);
        }
        cr_expect(calls == 0 || ended >= 3, "%s: %ld of %ld calls (%s)", job, ended, calls,
                  sweep.text);
        cr_expect(calls == 0 || sweep.every > 1 || complete > 0, "%s", job);
    }
}

/* Before that, no GPU is known, and the job computes on the CPU, or says that it must not. */
Test(lost_gpu, it_is_the_same_from_when_the_gpu_is_known_until_it_is_at_work)
{
    enum { KNOWN_AT = 22, AT_WORK = 71 };
    static const char *const jobs[] = {CAUSAL, CAUSAL "--set compute.backend=auto "};
    for (int i = 0; i < 2; i++)
        for (long act = KNOWN_AT; act <= AT_WORK; act++) {
            run_with("RA_STANDIN_LOST", act, jobs[i]);
            expect_lost(act, jobs[i], STAYS);
        }
}

Test(lost_gpu, a_rank_whose_kernel_leaves_an_error_ends_all)
{
    static const int launches[] = {1, 21, 25};
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    for (size_t l = 0; l < sizeof(launches) / sizeof(launches[0]); l++) {
        char fault[64];
        snprintf(fault, sizeof(fault), "RA_STANDIN_FAULT=%d", launches[l]);
        run_ranks(2, GPUS, fault, STAGED);
        expect_lost(launches[l], STAGED, "GPU 1 is lost to this process");
    }
}
