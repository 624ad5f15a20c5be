/* The contract through pinned memory, over the stand-in runtime, and what becomes of failures. */
#include "comm/comm_internal.h"
#include "comm/contract.h"
#include "comm/device_failures.h"
#include "support/poison_pool.h"
#include "support/standin_cudart.h"

#include <criterion/criterion.h>

static void begin(void)
{
    standin_reset();
    contract_capture_log();
}

static void end(void)
{
    cr_expect_eq(standin.blocks + standin.pinned_blocks + standin.events + standin.streams, 0,
                 "something is left: %lld blocks, %lld pinned, %lld events, %lld streams",
                 (long long)standin.blocks, (long long)standin.pinned_blocks,
                 (long long)standin.events, (long long)standin.streams);
}

TestSuite(staged, .init = begin, .fini = end);

static int run_healthy(ra_comm *comm, void *context)
{
    return contract_run_healthy(comm, *(const uint64_t *)context);
}

static void keep_the_contract(int ranks, size_t piece_bytes)
{
    uint64_t seed = 4000 + (uint64_t)ranks;
    device_ranks plan = {.make = ra_comm_create_staged,
                         .timeout_ms = 60000,
                         .piece_bytes = piece_bytes,
                         .body = run_healthy,
                         .context = &seed};
    cr_expect_eq(device_ranks_run(ranks, &plan), 0, "%d ranks", ranks);
    cr_expect_eq(contract_count_lines("", ""), 0);
    contract_print_log();
}

Test(staged, keeps_the_contract)
{
    keep_the_contract(1, 0);
    keep_the_contract(2, 0);
    keep_the_contract(4, 0);
}

Test(staged, keeps_the_contract_in_pieces)
{
    keep_the_contract(1, 5000);
    keep_the_contract(3, 20011);
}

/* A piece must not come into its slot before the one there has passed. */
Test(staged, keeps_the_contract_where_copies_are_done_at_once)
{
    standin.is_eager = 1;
    keep_the_contract(2, 0);
    keep_the_contract(3, 20011);
}

Test(staged, fails_as_the_contract_says)
{
    device_contract_break(ra_comm_create_staged, 1 << 16);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* One rank sends to itself: as many bytes as the pieces of a send and of a receive. */
static int send_to_oneself(ra_comm *comm, void *context)
{
    enum { BYTES = 20000 };
    ra_status *const expected = context;
    char out[BYTES] = "", in[BYTES] = "";
    ra_exchange const exchange = {"to oneself", 0, {0, out, BYTES}, {0, in, BYTES}};
    ra_transfer *transfer = NULL;
    ra_status status = ra_comm_start(comm, &exchange, &transfer);
    if (status == RA_OK)
        status = ra_comm_wait(comm, transfer);
    return status != *expected;
}

static device_ranks in_pieces(ra_status *expected)
{
    return (device_ranks){.make = ra_comm_create_staged,
                          .timeout_ms = 60000,
                          .piece_bytes = 8192,
                          .body = send_to_oneself,
                          .context = expected};
}

Test(staged, charges_two_pieces_per_message)
{
    ra_ledger *ledger = NULL;
    ra_ledger_snapshot seen;
    ra_status expected = RA_OK;
    device_ranks plan = in_pieces(&expected);
    poison_pool_begin_within(4 * 8192, &ledger, &plan.host_pool);
    cr_expect_eq(device_ranks_run(1, &plan), 0);
    ra_ledger_read(ledger, &seen);
    cr_expect_eq(seen.peak_bytes[RA_MEM_COMM_BUFFER], 4 * 8192);
    poison_pool_end(ledger, plan.host_pool);
    poison_pool_begin_within(4 * 8192 - 1, &ledger, &plan.host_pool);
    expected = RA_ERR_NO_MEMORY;
    cr_expect_eq(device_ranks_run(1, &plan), 0);
    poison_pool_end(ledger, plan.host_pool);
}

/* What a pool keeps for later makes room for them. */
Test(staged, takes_the_room_of_idle_memory)
{
    enum { IDLE = 8192 };
    ra_ledger *ledger = NULL;
    ra_block block;
    ra_status expected = RA_OK;
    device_ranks plan = in_pieces(&expected);
    cr_assert_eq(ra_ledger_create(4 * 8192 + IDLE - 1, &ledger), RA_OK);
    ra_pool_config const config = {
        .mode = RA_POOL_SIZE_CLASS, .memory = ra_memory_host(), .ledger = ledger};
    cr_assert_eq(ra_pool_create(&config, &plan.host_pool), RA_OK);
    cr_assert_eq(ra_pool_alloc(plan.host_pool, RA_MEM_IO, IDLE, NULL, &block), RA_OK);
    ra_pool_free(plan.host_pool, NULL, &block);
    cr_expect_eq(device_ranks_run(1, &plan), 0);
    ra_pool_destroy(plan.host_pool);
    ra_ledger_destroy(ledger);
}

/* Each of the four pieces may be the one, and its own bytes are not among those held. */
Test(staged, says_what_is_held_where_the_driver_pins_no_more)
{
    static const char *const held[] = {"held 0 B: nothing", "held 8.0 KiB: comm_buffer=8.0 KiB",
                                       "held 16.0 KiB: comm_buffer=16.0 KiB",
                                       "held 24.0 KiB: comm_buffer=24.0 KiB"};
    ra_ledger *ledger = NULL;
    ra_status expected = RA_ERR_NO_MEMORY;
    int found = 0;
    device_ranks plan = in_pieces(&expected);
    poison_pool_begin(&ledger, &plan.host_pool);
    for (int64_t at = 1; found < 4 && at < 100; at++) {
        contract_clear_log();
        standin_reset();
        standin.fail_call = at;
        standin.fail_error = cudaErrorMemoryAllocation;
        int const failures = device_ranks_run(1, &plan);
        if (contract_count_lines("out of memory: the driver, which pins host memory, refused 8.0 "
                                 "KiB (8192 bytes) for comm_buffer",
                                 held[found]) == 0)
            continue;
        found++;
        cr_expect_eq(failures, 0);
        cr_expect_eq(contract_count_lines("", ""), 1, "call %lld", (long long)at);
    }
    standin_reset();
    cr_expect_eq(found, 4);
    poison_pool_end(ledger, plan.host_pool);
}

static int lacks_memory(ra_status status, void *context)
{
    (void)context;
    return status != RA_ERR_NO_MEMORY;
}

/* Streams and events may be what finds none on the GPU. */
Test(staged, says_what_is_held_where_the_gpu_has_no_memory_for_its_work)
{
    static const char line[] = "failed on the GPU (rank 0";
    ra_ledger *ledger = NULL;
    ra_status expected = RA_ERR_NO_MEMORY;
    int found = 0;
    device_ranks plan = {.make = ra_comm_create_staged,
                         .timeout_ms = 60000,
                         .body = send_to_oneself,
                         .context = &expected,
                         .refused = lacks_memory};
    poison_pool_begin(&ledger, &plan.pool);
    cr_assert_eq(ra_pool_charge(plan.pool, RA_MEM_QKV, 2048), RA_OK);
    for (int64_t at = 1; at < 100; at++) {
        contract_clear_log();
        standin_reset();
        standin.fail_call = at;
        standin.fail_error = cudaErrorMemoryAllocation;
        int const failures = device_ranks_run(1, &plan);
        if (contract_count_lines(line, "") == 0)
            continue;
        found++;
        cr_expect_eq(failures, 0, "call %lld: another status", (long long)at);
        cr_expect_eq(contract_count_lines(line, "held 2.0 KiB: qkv=2.0 KiB"),
                     contract_count_lines(line, ""), "call %lld", (long long)at);
    }
    standin_reset();
    cr_expect_gt(found, 4, "%d", found);
    ra_pool_release(plan.pool, RA_MEM_QKV, 2048);
    poison_pool_end(ledger, plan.pool);
}

/* ---- failures -------------------------------------------------------------------------------- */

Test(staged, moves_device_memory_in_pieces)
{
    device_outcome const outcome = device_job_run(ra_comm_create_staged, 300, 60000);
    cr_expect_eq(outcome.ok, 2);
    cr_expect_eq(outcome.wrong, 0);
}

static void fail_each_call(cudaError_t error)
{
    for (long at = 1; at < 400; at++) {
        contract_clear_log();
        standin_reset();
        standin.fail_call = at;
        standin.fail_error = error;
        device_outcome const outcome = device_job_run(ra_comm_create_staged, 300, 60000);
        cr_expect_eq(outcome.wrong, 0, "call %ld", at);
        cr_expect_eq(outcome.ok + outcome.failed, 2, "call %ld", at);
        cr_expect_eq(contract_count_errors() > 0, outcome.failed > 0, "call %ld: %d lines", at,
                     contract_count_errors());
    }
    standin_reset();
}

Test(staged, survives_the_failure_of_any_call_to_the_runtime)
{
    fail_each_call(cudaErrorInvalidResourceHandle);
}

Test(staged, survives_that_any_call_to_the_runtime_finds_no_memory)
{
    fail_each_call(cudaErrorMemoryAllocation);
}
