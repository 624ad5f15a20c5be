/* CUDA's stream-ordered allocator over the stand-in runtime: what is asked of it, what is counted,
   and what becomes of every failure. */
#include "ringattn/device.h"
#include "support/captured_log.h"
#include "support/standin_cudart.h"

#include <criterion/criterion.h>
#include <string.h>

enum { UNIT = STANDIN_POOL_UNIT_BYTES };

static captured_log said;
static ra_ledger *ledger;
static ra_pool *pool;

static void begin(void)
{
    standin_reset();
    captured_log_begin(&said);
}

TestSuite(driver_cuda, .init = begin);

static ra_status open_pool(int index, int64_t limit_bytes)
{
    ra_memory memory;
    ra_status status = ra_memory_device(index, &memory);
    if (status != RA_OK)
        return status;
    cr_assert_eq(ra_ledger_create(limit_bytes, &ledger), RA_OK);
    ra_pool_config const config = {.mode = RA_POOL_DRIVER, .memory = memory, .ledger = ledger};
    status = ra_pool_create(&config, &pool);
    if (status != RA_OK)
        ra_ledger_destroy(ledger);
    return status;
}

static void close_pool(void)
{
    ra_ledger_snapshot now;
    ra_pool_destroy(pool);
    ra_ledger_read(ledger, &now);
    cr_expect_eq(now.reserved_bytes, 0);
    ra_ledger_destroy(ledger);
}

static int64_t reserved(void)
{
    ra_ledger_snapshot now;
    ra_ledger_read(ledger, &now);
    return now.reserved_bytes;
}

static cudaStream_t make_stream(void)
{
    cudaStream_t stream = NULL;
    cr_assert_eq(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
}

Test(driver_cuda, serves_blocks_and_counts_what_the_driver_holds)
{
    ra_block a, b;
    cr_assert_eq(open_pool(1, INT64_MAX), RA_OK);
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_QKV, 1000, NULL, &a), RA_OK);
    cr_expect_eq(a.reserved_bytes, 1024);
    cr_expect_eq(standin_current(), 1);
    cr_expect_eq(reserved(), UNIT);
    cr_expect_eq(reserved(), standin.used_bytes);
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_QKV, UNIT, NULL, &b), RA_OK);
    cr_expect_eq(reserved(), 2 * UNIT);
    ra_pool_free(pool, NULL, &a);
    ra_pool_free(pool, NULL, &b);
    cr_assert_eq(cudaStreamSynchronize(NULL), cudaSuccess);
    cr_expect_eq(ra_pool_trim(pool, 0), 2 * UNIT);
    cr_expect_eq(standin.used_bytes, 0);
    close_pool();
    cr_expect_eq(standin.pools, 0);
    cr_expect_eq(said.errors + said.warnings, 0, "%s", said.line);
}

/* Blocks are given back on the stream that used them: until its work is done nobody else has them,
   and a trim, which never waits, does not get them. */
Test(driver_cuda, a_block_is_its_streams_until_work_is_done)
{
    cudaStream_t const stream = make_stream();
    ra_block block;
    cr_assert_eq(open_pool(0, INT64_MAX), RA_OK);
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_QKV, UNIT, (ra_stream *)stream, &block), RA_OK);
    cr_assert_eq(cudaMemsetAsync(block.data, 0, UNIT, stream), cudaSuccess);
    ra_pool_free(pool, (ra_stream *)stream, &block);
    cr_expect_eq(ra_pool_trim(pool, 0), 0);
    cr_expect_eq(reserved(), UNIT);
    cr_assert_eq(cudaStreamSynchronize(stream), cudaSuccess);
    cr_expect_eq(ra_pool_trim(pool, 0), UNIT);
    close_pool();
    cr_assert_eq(cudaStreamDestroy(stream), cudaSuccess);
}

/* Where room is short, all streams that have given back memory are waited for. */
Test(driver_cuda, memory_of_several_streams_serves_another)
{
    enum { STREAMS = 3 };
    cudaStream_t streams[STREAMS];
    ra_block blocks[STREAMS], whole;
    cr_assert_eq(open_pool(0, STREAMS * UNIT), RA_OK);
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = make_stream();
        cr_assert_eq(ra_pool_alloc(pool, RA_MEM_QKV, UNIT, (ra_stream *)streams[i], &blocks[i]),
                     RA_OK);
        cr_assert_eq(cudaMemsetAsync(blocks[i].data, 0, UNIT, streams[i]), cudaSuccess);
    }
    for (int i = 0; i < STREAMS; i++)
        ra_pool_free(pool, (ra_stream *)streams[i], &blocks[i]);
    cr_expect_eq(ra_pool_alloc(pool, RA_MEM_QKV, STREAMS * UNIT, NULL, &whole), RA_OK, "%s",
                 said.line);
    ra_pool_free(pool, NULL, &whole);
    close_pool();
    for (int i = 0; i < STREAMS; i++)
        cr_assert_eq(cudaStreamDestroy(streams[i]), cudaSuccess);
    cr_expect_eq(said.errors + said.warnings, 0, "%s", said.line);
}

/* A driver may keep what it was given back until the host has waited for the stream. */
Test(driver_cuda, memory_that_is_idle_is_nobodys_reason_to_be_refused_and_goes_at_the_end)
{
    ra_stream *const stream = (ra_stream *)make_stream();
    ra_block block;
    cr_assert_eq(open_pool(0, 3 * UNIT), RA_OK);
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_QKV, 2 * UNIT, stream, &block), RA_OK);
    ra_pool_free(pool, stream, &block);
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_QKV, 3 * UNIT, NULL, &block), RA_OK, "%s", said.line);
    ra_pool_free(pool, NULL, &block);
    cr_assert_eq(ra_pool_charge(pool, RA_MEM_CONTEXT, UNIT), RA_OK);
    ra_pool_release(pool, RA_MEM_CONTEXT, UNIT);
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_QKV, UNIT, stream, &block), RA_OK);
    ra_pool_free(pool, stream, &block);
    close_pool();
    cr_expect_eq(standin.used_bytes, 0, "the next job would count it as context");
    cr_assert_eq(cudaStreamDestroy((cudaStream_t)stream), cudaSuccess);
    cr_expect_eq(standin.events, 0);
    cr_expect_eq(said.errors + said.warnings, 0, "%s", said.line);
}

/* The end of a refusal, not of the process: what keeps the stream busy may never be over. */
Test(driver_cuda, a_stream_that_hangs_does_not_hold_up_a_refusal)
{
    cudaStream_t const stream = make_stream();
    ra_block block, more;
    cr_assert_eq(open_pool(0, 3 * UNIT), RA_OK);
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_QKV, 2 * UNIT, (ra_stream *)stream, &block), RA_OK);
    (void)standin_enter();
    cr_assert_eq(standin_leave(standin_enqueue_hang(stream)), cudaSuccess);
    ra_pool_free(pool, (ra_stream *)stream, &block);
    cr_expect_eq(ra_pool_alloc(pool, RA_MEM_QKV, 2 * UNIT, NULL, &more), RA_ERR_NO_MEMORY);
    cr_expect_eq(said.errors, 1);
    cr_expect_not_null(strstr(said.line, "the memory limit refused"), "%s", said.line);
}

Test(driver_cuda, what_a_device_refuses_is_out_of_memory_said_by_the_pool)
{
    ra_block block;
    cr_assert_eq(open_pool(0, INT64_MAX), RA_OK);
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_GRADS, (size_t)2 << 30, NULL, &block),
                 RA_ERR_NO_MEMORY);
    cr_expect_eq(said.errors, 1);
    cr_expect_not_null(strstr(said.line, "the driver refused"), "%s", said.line);
    cr_expect_not_null(strstr(said.line, "grads"), "%s", said.line);
    cr_expect_eq(cudaPeekAtLastError(), cudaSuccess, "nobody else is handed this error");
    cr_expect_eq(reserved(), 0);
    close_pool();
}

Test(driver_cuda, a_device_whose_driver_has_no_pools_is_refused_with_a_reason)
{
    standin.has_no_pools = 1;
    cr_assert_eq(open_pool(0, INT64_MAX), RA_ERR_UNSUPPORTED);
    cr_expect_eq(said.errors, 1);
    cr_expect_not_null(strstr(said.line, "GPU 0 has none"), "%s", said.line);
}

/* Two blocks, a trim and an end. False as soon as something failed. */
static bool do_everything(void)
{
    ra_block a = {0}, b = {0};
    if (open_pool(1, INT64_MAX) != RA_OK)
        return false;
    bool fine = ra_pool_alloc(pool, RA_MEM_QKV, UNIT, NULL, &a) == RA_OK &&
                ra_pool_alloc(pool, RA_MEM_QKV, UNIT / 2, NULL, &b) == RA_OK;
    ra_pool_free(pool, NULL, &a);
    ra_pool_free(pool, NULL, &b);
    (void)ra_pool_trim(pool, 0);
    close_pool();
    return fine;
}

Test(driver_cuda, a_failure_of_any_call_is_one_line_and_leaves_the_ledger_empty)
{
    static const cudaError_t causes[] = {cudaErrorLaunchOutOfResources, cudaErrorMemoryAllocation};
    for (int c = 0; c < 2; c++) {
        bool done = false;
        for (int64_t call = 1; !done; call++) {
            cr_assert_lt(call, 100);
            begin();
            standin.fail_call = call;
            standin.fail_error = causes[c];
            bool const fine = do_everything();
            done = standin.calls < call;
            cr_expect(done ? fine && said.errors + said.warnings == 0
                           : said.errors + said.warnings >= 1,
                      "call %lld: %s", (long long)call, said.line);
            if (!fine && c == 1)
                cr_expect_eq(said.errors, 1, "call %lld: %s", (long long)call, said.line);
            if (fine)
                cr_expect_leq(said.errors + said.warnings, 1);
        }
    }
}

Test(driver_cuda, what_a_context_costs_is_what_is_taken_after_it_was_made)
{
    int64_t bytes = 0;
    void *data;
    cr_assert_eq(ra_device_use(1), RA_OK);
    cr_assert_eq(cudaMalloc(&data, 12345), cudaSuccess);
    cr_assert_eq(ra_device_taken(&bytes), RA_OK);
    cr_expect_eq(bytes, 12345);
    cr_expect_eq(standin_current(), 1);
    cr_assert_eq(cudaFree(data), cudaSuccess);
    bytes = -1;
    for (int64_t call = 1; call <= 2; call++) {
        said.errors = 0;
        standin.fail_call = standin.calls + call;
        standin.fail_error = call == 1 ? cudaErrorMemoryAllocation : cudaErrorInvalidResourceHandle;
        cr_expect_eq(ra_device_taken(&bytes), call == 1 ? RA_ERR_NO_MEMORY : RA_ERR_CUDA);
        cr_expect_eq(said.errors, 1);
        cr_expect_eq(bytes, -1);
    }
}

/* On a stream that hangs there may be no room for another call, which the runtime would wait for.
 */
Test(driver_cuda, a_lost_gpu_is_asked_nothing_when_blocks_come_back)
{
    ra_block block;
    cudaStream_t const stream = make_stream();
    cr_assert_eq(open_pool(1, INT64_MAX), RA_OK);
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_QKV, UNIT, (ra_stream *)stream, &block), RA_OK);
    cr_assert(ra_device_lose());
    int64_t const calls = standin.calls;
    ra_pool_free(pool, (ra_stream *)stream, &block);
    cr_expect_eq(standin.calls, calls);
    close_pool();
    cr_expect_eq(said.errors + said.warnings, 0, "%s", said.line);
}
