/*
 * The whole command on several ranks with GPUs over NCCL: ranks are processes, started by mpirun,
 * and what is not there, GPUs and NCCL, is stood in for. Whatever happens to a rank, the job ends.
 */
#include "support/thin_sweep.h"
#include "tool/device_runner.h"

TestSuite(nccl_emulated, .init = command_folder_make, .fini = command_folder_remove,
          .timeout = 1100);

enum { RANKS = 3 };

#define JOB                                                                                        \
    "run --set compute.backend=cuda --set shape.seq=60 --set shape.heads=2 --set "                 \
    "shape.kv_heads=1 --set shape.head_dim=16 --set shape.dtype=f32 --backward "

static void expect_verified_over_nccl(void)
{
    json_t *root;
    const json_t *point = verified_point("cuda", &root);
    cr_expect_str_eq(text(point, "comm"), "nccl");
    cr_expect_geq(json_object_size(member(point, "error")), 5);
    cr_expect_gt(integer(point, "sent_bytes"), 0);
    json_decref(root);
}

#define GPUS "RA_STANDIN_MULTIPROCESSORS=2 RA_STANDIN_DEVICES=3"

Test(nccl_emulated, ranks_pass_keys_and_gradients)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    run_ranks(RANKS, GPUS, "",
              JOB "--verify --json --set comm.backend=nccl --set ring.schedule=ring");
    expect_verified_over_nccl();
    run_ranks(RANKS, GPUS, "",
              JOB "--verify --json --set ring.schedule=direct --set pattern.causal=true");
    expect_verified_over_nccl();
}

/* What a stream gives back to the driver's pool waits on it while NCCL's memory is given back. */
Test(nccl_emulated, buffers_of_nccl_go_with_the_pool_of_the_driver)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    run_ranks(RANKS, GPUS, "",
              JOB "--verify --json --set comm.backend=nccl --set memory.pool.mode=driver");
    expect_verified_over_nccl();
}

/* Which would have calls wait for other ranks without a deadline. */
Test(nccl_emulated, the_environment_does_not_make_nccl_block)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    run_ranks(RANKS, GPUS " NCCL_COMM_BLOCKING=1", "",
              JOB "--verify --json --set comm.backend=nccl");
    expect_verified_over_nccl();
}

/* NCCL takes one rank per GPU, unless each has a host by its own word. */
Test(nccl_emulated, ranks_that_share_a_gpu_are_told_of_it)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    run_ranks(RANKS, "RA_STANDIN_MULTIPROCESSORS=2 RA_STANDIN_DEVICES=2", "",
              JOB "--set comm.backend=nccl");
    expect_error(2, "ranks share a GPU");
    run_ranks(RANKS, "RA_STANDIN_MULTIPROCESSORS=2 RA_STANDIN_DEVICES=1 NCCL_HOSTID=one", "",
              JOB "--set comm.backend=nccl");
    expect_error(2, "ranks share a GPU");
    run_ranks(RANKS,
              "RA_STANDIN_MULTIPROCESSORS=2 RA_STANDIN_DEVICES=1 "
              "sh -c 'NCCL_HOSTID=host-$OMPI_COMM_WORLD_RANK exec \"$@\"' rank",
              "", JOB "--verify --json");
    expect_verified_over_nccl();
}

/* ---- failures -------------------------------------------------------------------------------- */

#define FRAGILE JOB "--set comm.backend=nccl --set comm.timeout="

/* Each rank that is left has a line at most. */
static void expect_ended(const char *how, int code)
{
    int const lines = command_count_lines(result.err, "ringattn: error:");
    cr_expect_eq(result.code, code, "%s: code %d: %s", how, result.code, result.err);
    cr_expect_leq(lines, 3, "%s: %s", how, result.err);
}

/* While ranks meet, at the first message, and in a pass. */
enum { CALL_MEETING = 1, CALL_JOINING = 4, CALL_PASS = 47 };

static void fail_at(const char *name, int call, const char *timeout)
{
    char how[64], arguments[512];
    snprintf(how, sizeof(how), "RA_STANDIN_NCCL_%s=%d", name, call);
    snprintf(arguments, sizeof(arguments), FRAGILE "%s", timeout);
    run_ranks(RANKS, GPUS, how, arguments);
}

Test(nccl_emulated, a_rank_that_is_killed_ends_the_job)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    fail_at("KILL", CALL_PASS, "60s");
    expect_ended("killed", 137);
}

/* Nobody but the deadline notices it. */
Test(nccl_emulated, a_rank_that_is_stopped_ends_the_job)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    fail_at("STOP", CALL_PASS, "3s");
    expect_ended("stopped", 5);
    cr_expect_geq(command_count_lines(result.err, "timed out after 3 s"), 1, "%s", result.err);
}

Test(nccl_emulated, an_error_of_nccl_ends_the_job)
{
    static const int calls[] = {CALL_MEETING, CALL_JOINING, CALL_PASS};
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    for (int i = 0; i < 3; i++) {
        fail_at("FAIL", calls[i], "60s");
        expect_ended("an error", 5);
        cr_expect_geq(command_count_lines(result.err, "failed in NCCL (rank 1"), 1, "call %d: %s",
                      calls[i], result.err);
    }
}

/* Long before the deadline, which is beyond that of this test's commands. */
Test(nccl_emulated, a_rank_without_memory_for_first_messages_ends_all)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    run_ranks(RANKS, GPUS, "RA_STANDIN_FULL_AT=15", FRAGILE "10m");
    expect_error(4, "for comm_buffer");
    cr_expect_not_null(strstr(result.err, "held "), "%s", result.err);
    cr_expect_not_null(strstr(result.err, "workspace="), "%s", result.err);
    cr_expect_not_null(strstr(result.err, "(rank 1 on host"), "%s", result.err);
}

/* Of buffers the driver may refuse one, though more than it takes is free by its own count. */
Test(nccl_emulated, a_rank_without_memory_for_buffers_says_what_it_holds)
{
    static const int requests[] = {17, 20};
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    for (int i = 0; i < 2; i++) {
        char how[64];
        snprintf(how, sizeof(how), "RA_STANDIN_FULL_AT=%d", requests[i]);
        run_ranks(RANKS, GPUS, how, FRAGILE "10m");
        expect_error(4, "for comm_buffer");
        cr_expect_not_null(strstr(result.err, "context="), "%s", result.err);
    }
}

/* The others hear meanwhile that it is at work, so that its own deadline is over first: by a clock
   that this rank tells, so that none gives it up for being late, or where the machine stalls. */
Test(nccl_emulated, a_gpu_that_hangs_in_the_check_is_named_before_others_give_its_rank_up)
{
    static const int launches[] = {1, 13};
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    for (int i = 0; i < 2; i++) {
        char how[64];
        snprintf(how, sizeof(how), "RA_STANDIN_HANG=%d", launches[i]);
        run_ranks(RANKS, GPUS " RA_STANDIN_CLOCK=.shared/clock", how, FRAGILE "3s");
        expect_error(5, "GPU 1 hangs");
    }
}

/* In the check at the start, and in a pass, where NCCL may be the first to meet it. */
Test(nccl_emulated, a_gpu_with_an_error_that_stays_ends_all_with_one_line)
{
    static const int launches[] = {1, 22, 24, 26};
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    for (int i = 0; i < 4; i++) {
        char how[64];
        snprintf(how, sizeof(how), "RA_STANDIN_FAULT=%d", launches[i]);
        run_ranks(RANKS, GPUS, how, FRAGILE "60s");
        cr_expect_eq(result.code, 5, "%s: %d: %s", how, result.code, result.err);
        cr_expect_eq(command_count_lines(result.err, "ringattn: error:"), 1, "%s: %s", how,
                     result.err);
        cr_expect_eq(command_count_lines(result.err, "could not be"), 0, "%s: %s", how, result.err);
        cr_expect_eq(command_count_lines(result.err, "GPU 1 is lost to this process"), 1, "%s: %s",
                     how, result.err);
    }
}

/* ---- a GPU that is lost, whichever call meets it first --------------------------------------- */

#define WRITES                                                                                     \
    FRAGILE "60s --quiet --output o.safetensors; code=$?; ls; rm -f o.safetensors; exit $code"

/* How many calls of the runtime rank 1 makes, questions whether work is over not counted. */
static long count_acts(void)
{
    long acts = 0;
    run_ranks(2, GPUS, "RA_STANDIN_REPORT=.calls", WRITES);
    cr_assert_eq(result.code, 0, "%s", result.err);
    read_calls(NULL, &acts);
    return acts;
}

/* The job ends with one line, or has been complete: then there is no line, and the output stays. */
static bool is_lost_at(long act)
{
    char how[64];
    snprintf(how, sizeof(how), "RA_STANDIN_LOST=%ld", act);
    run_ranks(2, GPUS, how, WRITES);
    bool const ended = result.code != 0;
    cr_expect(!ended || result.code == 5, "%s: %d: %s", how, result.code, result.err);
    cr_expect_eq(command_count_lines(result.err, "ringattn:"), ended, "%s: %s", how, result.err);
    cr_expect_eq(command_count_lines(result.err, "GPU 1 is lost to this process"), ended, "%s: %s",
                 how, result.err);
    cr_expect_eq(command_count_lines(result.out, "o.safetensors"), !ended, "%s", how);
    return ended;
}

/* From when rank 1 has chosen its GPU. */
Test(nccl_emulated, a_gpu_is_lost_with_one_line_or_when_nobody_needs_it_any_more)
{
    enum { FIRST = 48, EVERY = 163, LAST = 84, LAST_EVERY = 14 };
    int ended = 0, complete = 0;
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    thin_sweep const sweep = thin_sweep_begin(EVERY), last = thin_sweep_begin(LAST_EVERY);
    long const acts = count_acts();
    for (long act = FIRST + sweep.skipped; act < acts - LAST; act += sweep.every)
        ended += is_lost_at(act);
    for (long act = acts - LAST + last.skipped; act <= acts; act += last.every)
        complete += !is_lost_at(act);
    cr_expect_geq(ended, 2, "%s", sweep.text);
    cr_expect_geq(complete, 3, "%s", sweep.text);
}
