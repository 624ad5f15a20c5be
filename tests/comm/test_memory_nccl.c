/* What NCCL takes of a GPU, and the memory that it has for messages, over the stand-ins. */
#include "comm/contract.h"
#include "comm/device_ranks.h"
#include "support/failing_calloc.h"
#include "support/poison_pool.h"
#include "support/standin_cudart.h"
#include "support/standin_nccl.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>

static void end(void)
{
    standin_nccl_reset();
    standin_reset_streams();
    cr_expect_eq(standin_nccl.communicators + standin_nccl.blocks, 0);
    cr_expect_eq(standin.blocks + standin.pinned_blocks + standin.events + standin.streams, 0);
}

TestSuite(memory_nccl, .init = device_ranks_begin_nccl, .fini = end);

static int expect_charged(ra_comm *comm, void *context)
{
    ra_ledger_snapshot seen;
    (void)comm;
    ra_ledger_read(context, &seen);
    return seen.reserved_bytes != standin_nccl.taken_bytes;
}

static int take_nothing(ra_comm *comm, void *context)
{
    (void)comm;
    (void)context;
    return 0;
}

static int expect_no_memory(ra_status status, void *context)
{
    (void)context;
    return status != RA_ERR_NO_MEMORY;
}

Test(memory_nccl, charges_what_it_was_seen_to_take)
{
    ra_ledger *ledger = NULL;
    ra_ledger_snapshot seen;
    int64_t bytes = standin_nccl.taken_bytes;
    device_ranks plan = {.make = ra_comm_create_nccl, .timeout_ms = 60000, .body = expect_charged};
    poison_pool_begin_within(bytes, &ledger, &plan.pool);
    plan.context = ledger;
    cr_expect_eq(device_ranks_run(1, &plan), 0);
    ra_ledger_read(ledger, &seen);
    cr_expect_eq(seen.peak_bytes[RA_MEM_CONTEXT], bytes);
    standin_nccl.taken_bytes++;
    plan.body = NULL;
    plan.refused = expect_no_memory;
    cr_expect_eq(device_ranks_run(1, &plan), 0);
    poison_pool_end(ledger, plan.pool);
}

/* Another process has given back more meanwhile. */
Test(memory_nccl, charges_nothing_where_the_device_has_more_left_than_before)
{
    ra_ledger *ledger = NULL;
    ra_ledger_snapshot seen;
    device_ranks plan = {.make = ra_comm_create_nccl, .timeout_ms = 60000, .body = take_nothing};
    poison_pool_begin_within(1 << 20, &ledger, &plan.pool);
    standin.used_bytes = 1 << 20;
    standin_nccl.taken_bytes = -4096;
    cr_expect_eq(device_ranks_run(1, &plan), 0);
    ra_ledger_read(ledger, &seen);
    cr_expect_eq(seen.reserved_peak_bytes, 0);
    poison_pool_end(ledger, plan.pool);
}

/* A block of the memory that messages should come from, there and back. */
static int use_memory(ra_comm *comm, void *context)
{
    ra_memory memory;
    void *data = NULL;
    int const expected = *(const int *)context;
    int64_t available = -1;
    if (!ra_comm_memory(comm, &memory) || memory.ops->round(&memory, 1) != 2 << 20 ||
        memory.ops->available(&memory, &available) != RA_OK || available < 1)
        return 1;
    if (memory.ops->alloc(&memory, 4 << 20, &data) != (ra_status)expected)
        return 1;
    if (data != NULL)
        memory.ops->free(&memory, data, 4 << 20);
    return 0;
}

static int run_memory(ra_status expected)
{
    int status = (int)expected;
    device_ranks plan = {
        .make = ra_comm_create_nccl, .timeout_ms = 60000, .body = use_memory, .context = &status};
    return device_ranks_run(2, &plan);
}

Test(memory_nccl, has_memory_for_messages)
{
    cr_expect_eq(run_memory(RA_OK), 0);
    cr_expect_eq(standin_nccl.blocks, 0);
    cr_expect_eq(contract_count_lines("", ""), 0);
    standin.memory_bytes = 4 << 20; /* NCCL takes some of it */
    cr_expect_eq(run_memory(RA_ERR_NO_MEMORY), 0);
    cr_expect_eq(contract_count_lines("", ""), 0); /* said by whoever asks */
    cr_expect_eq(standin_nccl.blocks, 0);
}

/* They go in another order than they came. Each is remembered in host memory. */
static int hold_many(ra_comm *comm, void *context)
{
    enum { BLOCKS = 40 };
    void *blocks[BLOCKS] = {0};
    ra_memory memory;
    (void)context;
    if (!ra_comm_memory(comm, &memory))
        return 1;
    for (int i = 0; i < BLOCKS; i++)
        if (memory.ops->alloc(&memory, RA_NCCL_UNIT_BYTES, &blocks[i]) != RA_OK)
            return 1;
    callocs_left = 0;
    ra_status const refused = memory.ops->alloc(&memory, RA_NCCL_UNIT_BYTES, &(void *){NULL});
    callocs_left = -1;
    if (refused != RA_ERR_NO_MEMORY || standin_nccl.blocks != BLOCKS)
        return 1;
    for (int i = 0; i < BLOCKS; i++)
        memory.ops->free(&memory, blocks[7 * i % BLOCKS], RA_NCCL_UNIT_BYTES);
    return standin_nccl.blocks != 0;
}

Test(memory_nccl, has_as_many_blocks_as_are_asked_for)
{
    device_ranks plan = {.make = ra_comm_create_nccl, .timeout_ms = 60000, .body = hold_many};
    cr_expect_eq(device_ranks_run(1, &plan), 0);
    cr_expect_eq(contract_count_lines("", ""), 0);
    contract_print_log();
}

typedef struct held_block {
    ra_memory memory;
    void *data;
} held_block;

static void *free_block(void *context)
{
    const held_block *const held = context;
    held->memory.ops->free(&held->memory, held->data, 4 << 20);
    return NULL;
}

static int free_on_another_thread(ra_comm *comm, void *context)
{
    held_block held = {0};
    pthread_t thread;
    (void)context;
    if (!ra_comm_memory(comm, &held.memory) ||
        held.memory.ops->alloc(&held.memory, 4 << 20, &held.data) != RA_OK)
        return 1;
    return pthread_create(&thread, NULL, free_block, &held) != 0 || pthread_join(thread, NULL) != 0;
}

/* A thread means the first GPU until it says which: the stand-in ends the process where memory is
   given back by one that means another. */
Test(memory_nccl, any_thread_may_give_back_memory_of_another_gpu_than_the_first)
{
    device_ranks plan = {
        .make = ra_comm_create_nccl, .timeout_ms = 60000, .body = free_on_another_thread};
    cr_assert_eq(ra_device_use(1), RA_OK);
    cr_expect_eq(device_ranks_run(1, &plan), 0);
    cr_expect_eq(contract_count_lines("", ""), 0);
}

/* What becomes of a request: of its memory, or of the registration of that. */
typedef struct refusal {
    bool of_memory, after_async_error;
    ncclResult_t error; /* of the registration; ncclSuccess: none */
    ra_status expected;
} refusal;

static int ask_in_vain(ra_comm *comm, void *context)
{
    const refusal *const r = context;
    ra_memory memory;
    void *data = NULL;
    if (!ra_comm_memory(comm, &memory))
        return 1;
    standin.full_at = r->of_memory ? standin.requests + 1 : 0;
    standin_nccl.fail_call = r->error != ncclSuccess ? standin_nccl.calls + 2 : 0;
    standin_nccl.fail_error = r->error;
    standin_nccl.async_error_at = r->after_async_error;
    ra_status const status = memory.ops->alloc(&memory, 2 << 20, &data);
    standin_nccl.async_error_at = standin_nccl.fail_call = 0;
    return status != r->expected || data != NULL || standin_nccl.blocks != 0;
}

/* A driver may have memory that it cannot give, in pieces; other failures are NCCL's. */
Test(memory_nccl, takes_a_refusal_for_no_memory_however_much_is_free)
{
    refusal cases[] = {
        {.of_memory = true, .expected = RA_ERR_NO_MEMORY},
        {.of_memory = true, .after_async_error = true, .expected = RA_ERR_NCCL},
        {.error = ncclUnhandledCudaError, .expected = RA_ERR_NO_MEMORY},
        {.error = ncclUnhandledCudaError, .after_async_error = true, .expected = RA_ERR_NCCL},
        {.error = ncclSystemError, .expected = RA_ERR_NCCL}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        device_ranks plan = {.make = ra_comm_create_nccl,
                             .timeout_ms = 60000,
                             .body = ask_in_vain,
                             .context = &cases[i]};
        contract_clear_log();
        cr_expect_eq(device_ranks_run(1, &plan), 0, "case %zu", i);
        cr_expect_eq(contract_count_lines("", ""), cases[i].expected == RA_ERR_NCCL, "case %zu", i);
        cr_expect_eq(contract_count_lines("memory for messages failed in NCCL", ""),
                     cases[i].expected == RA_ERR_NCCL, "case %zu", i);
    }
}

/* Deregistering it, or returning it: a warning either way, and the other is done all the same. */
static int free_in_vain(ra_comm *comm, void *context)
{
    ra_memory memory;
    void *data = NULL;
    if (!ra_comm_memory(comm, &memory) || memory.ops->alloc(&memory, 2 << 20, &data) != RA_OK)
        return 1;
    standin_nccl.fail_call = standin_nccl.calls + *(const int *)context;
    memory.ops->free(&memory, data, 2 << 20);
    standin_nccl.fail_call = 0;
    return 0;
}

Test(memory_nccl, that_cannot_be_returned_is_said)
{
    for (int call = 1; call <= 2; call++) {
        device_ranks plan = {.make = ra_comm_create_nccl,
                             .timeout_ms = 60000,
                             .body = free_in_vain,
                             .context = &call};
        contract_clear_log();
        cr_expect_eq(device_ranks_run(1, &plan), 0);
        cr_expect_eq(contract_count_lines("2097152 bytes of memory for messages could not be", ""),
                     1, "call %d", call);
        cr_expect_eq(contract_count_lines("", ""), 1, "call %d", call);
        contract_print_log();
        cr_expect_eq(standin_nccl.blocks, 0, "call %d", call);
    }
}

/* Work that nobody has waited for may use it. */
static int free_too_early(ra_comm *comm, void *context)
{
    ra_memory memory;
    cudaStream_t stream = NULL;
    void *data = NULL;
    (void)context;
    if (!ra_comm_memory(comm, &memory) || memory.ops->alloc(&memory, 2 << 20, &data) != RA_OK ||
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaMemsetAsync(data, 0, 1, stream) != cudaSuccess)
        return 1;
    memory.ops->free(&memory, data, 2 << 20);
    return 0;
}

Test(memory_nccl, is_freed_by_the_stand_in_only_when_streams_are_over, .signal = SIGABRT)
{
    device_ranks plan = {.make = ra_comm_create_nccl, .timeout_ms = 60000, .body = free_too_early};
    (void)device_ranks_run(1, &plan);
}

static int expect_none(ra_comm *comm, void *context)
{
    ra_memory memory;
    (void)context;
    return ra_comm_memory(comm, &memory);
}

Test(memory_nccl, has_none_before_2_26_5)
{
    device_ranks plan = {.make = ra_comm_create_nccl, .timeout_ms = 60000, .body = expect_none};
    standin_nccl.is_old = 1;
    cr_expect_eq(device_ranks_run(2, &plan), 0);
    standin_nccl.is_old = 0;
    plan.make = ra_comm_create_staged;
    cr_expect_eq(device_ranks_run(2, &plan), 0);
}
