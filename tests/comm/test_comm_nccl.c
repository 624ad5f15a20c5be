/* The contract over the stand-in for NCCL, and what becomes of every failure. */
#include "comm/comm_internal.h"
#include "comm/comm_nccl.h"
#include "comm/contract.h"
#include "comm/contract_clock.h"
#include "comm/device_failures.h"
#include "comm/local_ranks.h"
#include "support/standin_cudart.h"
#include "support/standin_nccl.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void end(void)
{
    standin_nccl_reset();
    standin_reset_streams();
    cr_expect_eq(standin_nccl.communicators, 0);
    cr_expect_eq(standin.blocks + standin.pinned_blocks + standin.events + standin.streams, 0,
                 "something is left: %lld blocks, %lld events, %lld streams",
                 (long long)standin.blocks, (long long)standin.events, (long long)standin.streams);
}

TestSuite(nccl, .init = device_ranks_begin_nccl, .fini = end);

static int run_healthy(ra_comm *comm, void *context)
{
    return contract_run_healthy(comm, *(const uint64_t *)context);
}

Test(nccl, keeps_the_contract_on_1_to_4_ranks)
{
    for (int ranks = 1; ranks <= 4; ranks++) {
        uint64_t seed = 3000 + (uint64_t)ranks;
        device_ranks plan = {.make = ra_comm_create_nccl,
                             .timeout_ms = 60000,
                             .body = run_healthy,
                             .context = &seed};
        cr_expect_eq(device_ranks_run(ranks, &plan), 0, "%d ranks", ranks);
    }
    cr_expect_eq(standin_nccl.aborted, 0);
    cr_expect_eq(standin_nccl.destroyed, 1 + 2 + 3 + 4);
    cr_expect_eq(contract_count_lines("", ""), 0);
    contract_print_log();
}

/* What the first messages needed has been given back, and nobody counts them. */
static int run_nothing(ra_comm *comm, void *context)
{
    ra_comm_stats stats;
    (void)context;
    ra_comm_read_stats(comm, &stats);
    return (standin.blocks != 0) + (stats.sent_bytes != 0) + (stats.received_bytes != 0);
}

/* Beside kernels that fill the GPU. */
Test(nccl, messages_come_before_what_computes)
{
    device_ranks plan = {.make = ra_comm_create_nccl, .timeout_ms = 60000, .body = run_nothing};
    cr_expect_eq(device_ranks_run(3, &plan), 0);
    cr_expect_eq(standin.urgent_streams, 3);
}

Test(nccl, fails_as_the_contract_says)
{
    device_contract_break(ra_comm_create_nccl, 0);
}

/* ---- what a rank is told --------------------------------------------------------------------- */

static int expect_unsupported(ra_status status, void *context)
{
    (void)context;
    return status != RA_ERR_UNSUPPORTED;
}

static int run_unsupported(int ranks)
{
    device_ranks plan = {
        .make = ra_comm_create_nccl, .timeout_ms = 60000, .refused = expect_unsupported};
    return device_ranks_run(ranks, &plan);
}

Test(nccl, that_is_absent_is_said)
{
    standin_nccl.absent = 1;
    cr_expect_eq(run_unsupported(2), 0);
    cr_expect_eq(contract_count_lines("joining NCCL: ", "told to be absent"), 2);
}

static int expect_failed(ra_status status, void *context)
{
    (void)context;
    return status != RA_ERR_NCCL;
}

/* Without a meeting no rank goes to it. */
Test(nccl, nobody_joins_where_rank_0_cannot_open_the_meeting)
{
    device_ranks plan = {
        .make = ra_comm_create_nccl, .timeout_ms = 60000, .refused = expect_failed};
    standin_nccl.fail_call = 1;
    cr_expect_eq(device_ranks_run(3, &plan), 0);
    cr_expect_eq(standin_nccl.calls, 1);
    cr_expect_eq(contract_count_lines("joining NCCL failed in NCCL (rank 0", ""), 1);
    cr_expect_eq(contract_count_lines("", ""), 1);
}

Test(nccl, refuses_ranks_that_share_a_gpu)
{
    unsetenv("NCCL_HOSTID");
    cr_expect_eq(run_unsupported(3), 0);
    cr_expect_eq(contract_count_lines("ranks share a GPU", "comm.backend mpi"), 1);
    cr_expect_eq(contract_count_lines("", ""), 1);
    setenv("NCCL_HOSTID", "one for all", 1);
    cr_expect_eq(run_unsupported(3), 0);
    cr_expect_eq(contract_count_lines("ranks share a GPU", "comm.backend mpi"), 2);
}

static int expect_name(ra_comm *comm, void *context)
{
    return strcmp(ra_comm_name(comm), context) != 0;
}

static int run_by_itself(int ranks, char *name)
{
    device_ranks plan = {
        .make = ra_comm_create_device, .timeout_ms = 60000, .body = expect_name, .context = name};
    return device_ranks_run(ranks, &plan);
}

Test(nccl, is_chosen_where_it_serves)
{
    char nccl[] = "nccl", staged[] = "staged";
    cr_expect_eq(run_by_itself(3, nccl), 0);
    cr_expect_eq(contract_count_lines("", ""), 0);
    unsetenv("NCCL_HOSTID");
    cr_expect_eq(run_by_itself(1, nccl), 0);
    cr_expect_eq(run_by_itself(2, staged), 0);
    cr_expect_eq(contract_count_lines("through host memory: ranks share a GPU", ""), 1);
    setenv("NCCL_HOSTID", "one for all", 1);
    cr_expect_eq(run_by_itself(2, staged), 0);
    cr_expect_eq(contract_count_lines("through host memory: ranks share a GPU", ""), 2);
    standin_nccl.absent = 1;
    cr_expect_eq(run_by_itself(2, staged), 0);
    cr_expect_eq(contract_count_lines("through host memory: a stand-in for NCCL", ""), 1);
}

Test(nccl, is_not_chosen_where_ranks_have_different_versions)
{
    char staged[] = "staged";
    standin_nccl.differs = 1;
    cr_expect_eq(run_by_itself(3, staged), 0);
    cr_expect_eq(contract_count_lines("through host memory: ranks have different versions", ""), 1);
}

/* Of 24 ranks in rows of 8, and of as many dealt in turn to three hosts. */
Test(nccl, ranks_of_a_host_and_one_of_another_meet_before_memory_is_dealt_out)
{
    int rows[24], turns[24], few[16] = {0};
    for (int r = 0; r < 24; r++) {
        rows[r] = r / 8;
        turns[r] = r % 3;
    }
    int *const hosts[] = {rows, turns};
    for (int h = 0; h < 2; h++) {
        ra_comm const comm = {.size = 24, .hosts = hosts[h]};
        for (int from = 0; from < 24; from++) {
            int own = 0, others = 0;
            for (int to = 0; to < 24; to++) {
                bool const meets = ra_nccl_meets_first(&comm, from, to);
                own += meets && hosts[h][from] == hosts[h][to];
                others += meets && hosts[h][from] != hosts[h][to];
            }
            cr_expect(ra_nccl_meets_first(&comm, from, (from + 1) % 24) &&
                          ra_nccl_meets_first(&comm, from, (from + 23) % 24),
                      "rank %d does not meet its neighbours", from);
            cr_expect_eq(own, 8, "rank %d meets %d of its host", from, own);
            cr_expect(others >= 1 && others <= 3, "rank %d meets %d others", from, others);
        }
    }
    ra_comm const comm = {.size = 16, .hosts = few};
    few[7] = 1;
    cr_expect(ra_nccl_meets_first(&comm, 3, 7) && ra_nccl_meets_first(&comm, 7, 12));
}

/* Then many a rank sends a first message as far as none comes from, or the other way round. */
Test(nccl, ranks_of_hosts_of_several_sizes_meet_all_of_those)
{
    enum { RANKS = 20 };
    int hosts[RANKS] = {0};
    device_ranks plan = {
        .make = ra_comm_create_nccl, .timeout_ms = 60000, .hosts = hosts, .body = run_nothing};
    for (int r = 0; r < RANKS; r++)
        hosts[r] = (r >= 3) + (r >= 8);
    cr_expect_eq(device_ranks_run(RANKS, &plan), 0);
    cr_expect_eq(contract_count_lines("", ""), 0);
    contract_print_log();
}

/* Rank 1 has begun to send to rank 0, which sends to rank 2: that one has not come yet. */
static int wait_for_the_last(ra_comm *comm, void *context)
{
    static char out[3][4] = {"abc", "def", "ghi"}, in[3][4];
    int const rank = ra_comm_rank(comm);
    ra_message const send = {rank == 0 ? 2 : 0, out[rank], rank < 2 ? 4 : 0};
    ra_message const recv = {rank == 0 ? 1 : 0, in[rank], rank != 1 ? 4 : 0};
    ra_exchange const exchange = {"a chain", 0, send, recv};
    ra_transfer *transfer = NULL;
    int failures = 0;
    (void)context;
    if (rank < 2)
        failures += ra_comm_start(comm, &exchange, &transfer) != RA_OK;
    failures += ra_comm_barrier(comm, "two have begun") != RA_OK;
    if (rank == 0)
        failures += ra_comm_missing_peer(comm, transfer) != 2;
    failures += ra_comm_barrier(comm, "rank 0 has looked") != RA_OK;
    if (rank == 2)
        failures += ra_comm_start(comm, &exchange, &transfer) != RA_OK;
    failures += ra_comm_wait(comm, transfer) != RA_OK;
    return failures + (rank != 1 && strcmp(in[rank], out[rank == 0 ? 1 : 0]) != 0);
}

Test(nccl, of_two_peers_the_one_that_has_not_come_is_missing)
{
    static device_maker *const makers[] = {ra_comm_create_nccl, ra_comm_create_staged};
    for (int i = 0; i < 2; i++) {
        device_ranks plan = {.make = makers[i], .timeout_ms = 60000, .body = wait_for_the_last};
        cr_expect_eq(device_ranks_run(3, &plan), 0, "maker %d", i);
    }
    cr_expect_eq(contract_count_lines("", ""), 0);
}

/* ---- failures -------------------------------------------------------------------------------- */

Test(nccl, a_connection_that_spoils_bytes_is_found_at_the_start)
{
    standin_nccl.corrupts = 1;
    device_outcome const outcome = device_job_run(ra_comm_create_nccl, 0, 60000);
    cr_expect_eq(outcome.failed, 2);
    cr_expect_geq(contract_count_lines("a first message over NCCL brought", "between these GPUs"),
                  1);
}

Test(nccl, a_connection_that_stalls_ends_at_the_deadline)
{
    standin_nccl.stalls = 1;
    device_outcome const outcome = device_job_run(ra_comm_create_nccl, 0, 4000);
    cr_expect_eq(outcome.failed, 2);
    cr_expect_geq(contract_count_lines("a first message over NCCL timed out after 4 s (rank ",
                                       " 1 bytes (under way)"),
                  1);
}

Test(nccl, an_asynchronous_error_ends_all_ranks)
{
    device_outcome outcome = device_job_run(ra_comm_create_nccl, 0, 60000);
    int64_t const calls = standin_nccl.calls;
    cr_expect_eq(outcome.ok, 2);
    for (int64_t at = 1; at < calls - 8; at += 3) { /* the last calls are those of the end */
        standin_nccl_reset();
        contract_clear_log();
        standin_nccl.async_error_at = at;
        outcome = device_job_run(ra_comm_create_nccl, 0, 60000);
        cr_expect_eq(outcome.failed, 2, "from call %lld on", (long long)at);
        cr_expect_eq(outcome.wrong, 0);
        cr_expect_geq(contract_count_lines("failed in NCCL (rank ", "an injected remote error"), 1);
        cr_expect_eq(standin_nccl.communicators, 0);
    }
}

Test(nccl, survives_the_failure_of_any_call_to_it)
{
    for (int64_t at = 1;; at++) {
        standin_nccl_reset();
        contract_clear_log();
        standin_nccl.fail_call = at;
        device_outcome const outcome = device_job_run(ra_comm_create_nccl, 0, 60000);
        bool const failed = standin_nccl.calls >= at;
        cr_expect_eq(outcome.wrong, 0);
        cr_expect_eq(outcome.ok + outcome.failed, 2);
        cr_expect_eq(contract_count_lines(" timed out after ", ""), 0, "call %lld waited for",
                     (long long)at);
        cr_expect_eq(standin_nccl.communicators, 0, "call %lld", (long long)at);
        cr_expect_eq(standin_nccl.open_groups, 0, "call %lld", (long long)at);
        if (outcome.ok == 2)
            cr_expect_eq(contract_count_errors(), 0, "call %lld of an end", (long long)at);
        if (!failed)
            break;
        cr_expect_geq(contract_count_lines("", ""), 1, "call %lld failed in silence",
                      (long long)at);
    }
}

Test(nccl, survives_the_failure_of_any_call_to_the_runtime)
{
    for (long at = 1; at < 300; at++) {
        standin_nccl_reset();
        contract_clear_log();
        standin_reset();
        standin.fail_call = at;
        standin.fail_error = cudaErrorInvalidResourceHandle;
        device_outcome const outcome = device_job_run(ra_comm_create_nccl, 0, 60000);
        cr_expect_eq(outcome.wrong, 0, "call %ld", at);
        cr_expect_eq(outcome.ok + outcome.failed, 2, "call %ld", at);
        cr_expect_eq(standin_nccl.communicators, 0, "call %ld", at);
        cr_expect_eq(contract_count_errors() > 0, outcome.failed > 0, "call %ld: %d lines", at,
                     contract_count_errors());
    }
    standin_reset();
}

/* A process each: a GPU that is lost is lost for good. */
TestSuite(nccl_lost, .init = device_ranks_begin_nccl);

/* Let the threads go that wait there, before the process ends. Long only where one does not. */
static void end_stuck(void)
{
    standin_nccl.stuck = 0;
    for (int i = 0; i < 60000 && standin_nccl.communicators > 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    cr_expect_eq(standin_nccl.communicators, 0);
}

/* NCCL waits there for ranks that may be stopped, and has no deadline. */
Test(nccl_lost, ends_though_it_does_not_return_from_ending)
{
    standin_nccl.stuck = 1;
    device_outcome const outcome = device_job_run(ra_comm_create_nccl, 0, 4000);
    cr_expect_eq(outcome.ok, 2);
    cr_expect_eq(outcome.wrong, 0);
    cr_expect_eq(contract_count_errors(), 0);
    cr_expect_eq(contract_count_lines("NCCL has not returned from ", "has not let go"), 1);
    cr_expect(ra_device_is_lost());
    cr_expect_eq(standin_nccl.on_first_gpu, 0);
    end_stuck();
}

/* Rank 0 is busy for longer than the deadline, and says so; till then the other's end waits. */
static int come_late(ra_comm *comm, void *context)
{
    enum { TILE_NS = 10000000, TILES = 200 };
    for (int tile = 0; ra_comm_rank(comm) == 0 && tile < TILES; tile++) {
        atomic_fetch_add((atomic_llong *)context, TILE_NS);
        /* Not ahead of the machine's own clock, by which the other sleeps between two looks. */
        nanosleep(&(struct timespec){.tv_nsec = TILE_NS}, NULL);
        ra_comm_beat(comm);
    }
    if (ra_comm_rank(comm) == 0)
        standin_nccl.stuck = 0;
    return 0;
}

Test(nccl_lost, an_end_waits_for_a_rank_that_comes_late_but_works)
{
    atomic_llong now_ns = ra_clock_ns();
    device_ranks plan = {
        .make = ra_comm_create_nccl, .timeout_ms = 1000, .body = come_late, .context = &now_ns};
    standin_nccl.stuck = 1;
    contract_clock_follow(&now_ns);
    cr_expect_eq(device_ranks_run(2, &plan), 0);
    contract_clock_follow(NULL);
    cr_expect_eq(contract_count_lines("", ""), 0);
    cr_expect_not(ra_device_is_lost());
    cr_expect_eq(standin_nccl.on_first_gpu, 0);
}

Test(nccl_lost, ends_though_it_does_not_return_from_aborting)
{
    standin_nccl.stalls = 1;
    standin_nccl.stuck = 1;
    device_outcome const outcome = device_job_run(ra_comm_create_nccl, 0, 4000);
    cr_expect_eq(outcome.failed, 2);
    cr_expect_geq(contract_count_lines("a first message over NCCL timed out", " bytes "), 1);
    cr_expect_eq(contract_count_lines("NCCL has not returned from aborting", "is left as it is"),
                 1);
    end_stuck();
}

ParameterizedTestParameters(nccl_lost, one_line_whichever_call_meets_it_first)
{
    enum { FIRST = 3, COUNT = 96 };
    static int64_t calls[COUNT];
    for (int i = 0; i < COUNT; i++)
        calls[i] = FIRST + i;
    return cr_make_param_array(int64_t, calls, COUNT);
}

ParameterizedTest(int64_t *call, nccl_lost, one_line_whichever_call_meets_it_first)
{
    standin.fail_call = *call;
    standin.fail_error = cudaErrorIllegalAddress;
    standin.fails_for_good = 1;
    device_outcome const outcome = device_job_run(ra_comm_create_nccl, 0, 60000);
    cr_expect_eq(outcome.wrong, 0);
    cr_expect_gt(outcome.failed, 0);
    cr_expect_eq(contract_count_lines("", ""), 1, "call %lld", (long long)*call);
    cr_expect_eq(contract_count_lines("GPU 0 is lost to this process", ""), 1, "call %lld",
                 (long long)*call);
    contract_print_log();
}

/* ---- which GPU ------------------------------------------------------------------------------- */

static int expect_turns(ra_comm *comm, void *context)
{
    const int(*const expected)[5] = context; /* of each rank: its GPU; how many have that */
    int const rank = ra_comm_rank(comm);
    int index = -1, sharers = -1, most = -1;
    return ra_comm_pick_device(comm, &index, &sharers, &most) != RA_OK ||
           index != expected[0][rank] || sharers != expected[1][rank];
}

Test(nccl, ranks_of_a_host_get_its_usable_gpus_in_turn)
{
    static const int hosts[] = {0, 1, 0, 0, 1};
    int turns[2][5] = {{0, 0, 1, 0, 1}, {2, 1, 1, 2, 1}};
    int second_only[2][5] = {{1, 1, 1, 1, 1}, {3, 2, 3, 3, 2}};
    ra_comm *comms[5];
    cr_assert_eq(ra_comm_create_local(5, hosts, 60000, comms), RA_OK);
    cr_expect_eq(local_ranks_run_on(5, comms, expect_turns, turns), 0);
    standin.major[0] = 7;
    cr_assert_eq(ra_comm_create_local(5, hosts, 60000, comms), RA_OK);
    cr_expect_eq(local_ranks_run_on(5, comms, expect_turns, second_only), 0);
}
