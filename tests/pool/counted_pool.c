#include "pool/counted_pool.h"

#include <criterion/criterion.h>
#include <stdlib.h>

typedef struct test_event {
    ra_stream *stream;
    int64_t number;
} test_event;

static size_t test_round(const ra_memory *memory, size_t bytes)
{
    ra_memory const host = ra_memory_host();
    (void)memory;
    return host.ops->round(&host, bytes);
}

static ra_status test_alloc(const ra_memory *memory, size_t bytes, void **ptr_out)
{
    ra_memory const host = ra_memory_host();
    counted_memory *const self = memory->self;
    self->requests++;
    if (self->fails)
        return RA_ERR_CUDA;
    if (self->refuse_above_bytes > 0 && self->out_bytes + (int64_t)bytes > self->refuse_above_bytes)
        return RA_ERR_NO_MEMORY;
    self->out_bytes += (int64_t)bytes;
    return host.ops->alloc(&host, bytes, ptr_out);
}

static void test_free(const ra_memory *memory, void *ptr, size_t bytes)
{
    ra_memory const host = ra_memory_host();
    counted_memory *const self = memory->self;
    self->out_bytes -= (int64_t)bytes;
    host.ops->free(&host, ptr, bytes);
}

static ra_status test_available(const ra_memory *memory, int64_t *bytes_out)
{
    const counted_memory *const self = memory->self;
    *bytes_out = self->machine_bytes > 0 ? self->machine_bytes : INT64_MAX;
    return RA_OK;
}

static ra_status test_record(const ra_memory *memory, ra_stream *stream, void **event_out)
{
    counted_memory *const self = memory->self;
    if (self->refuses_events)
        return RA_ERR_CUDA;
    test_event *const event = malloc(sizeof(*event));
    cr_assert_not_null(event);
    *event = (test_event){stream, ++stream->recorded};
    self->events++;
    *event_out = event;
    return RA_OK;
}

static bool test_is_over(const ra_memory *memory, void *event)
{
    const test_event *const e = event;
    (void)memory;
    return e->number <= e->stream->done;
}

static void test_event_free(const ra_memory *memory, void *event)
{
    counted_memory *const self = memory->self;
    self->events--;
    free(event);
}

static const ra_memory_ops plain_ops = {.name = "plain",
                                        .round = test_round,
                                        .alloc = test_alloc,
                                        .free = test_free,
                                        .available = test_available};
static const ra_memory_ops stream_ops = {.name = "with streams",
                                         .round = test_round,
                                         .alloc = test_alloc,
                                         .free = test_free,
                                         .available = test_available,
                                         .event_record = test_record,
                                         .event_is_over = test_is_over,
                                         .event_free = test_event_free};

ra_ledger *ledger;
ra_pool *pool;
counted_memory counted;
captured_log said;

void open_pool(int64_t limit_bytes, int64_t trim_bytes, bool has_streams)
{
    captured_log_begin(&said);
    counted = (counted_memory){0};
    cr_assert_eq(ra_ledger_create(limit_bytes, &ledger), RA_OK);
    ra_pool_config const config = {.mode = RA_POOL_SIZE_CLASS,
                                   .memory = {has_streams ? &stream_ops : &plain_ops, &counted},
                                   .ledger = ledger,
                                   .trim_bytes = trim_bytes};
    cr_assert_eq(ra_pool_create(&config, &pool), RA_OK);
}

ra_pool_stats stats(void)
{
    ra_pool_stats now;
    ra_pool_read_stats(pool, &now);
    return now;
}

/* Ledger, statistics and memory tell the same. */
static void expect_agreement(void)
{
    ra_ledger_snapshot snapshot;
    ra_pool_stats const now = stats();
    ra_ledger_read(ledger, &snapshot);
    int64_t const idle = snapshot.current_bytes[RA_MEM_POOL_IDLE];
    cr_assert_eq(now.bytes[RA_POOL_RESERVED].current, counted.out_bytes);
    cr_assert_eq(snapshot.reserved_bytes, counted.out_bytes);
    cr_assert_eq(now.bytes[RA_POOL_ALLOCATED].current, snapshot.reserved_bytes - idle);
    cr_assert_leq(now.bytes[RA_POOL_REQUESTED].current, now.bytes[RA_POOL_ALLOCATED].current);
    cr_assert_leq(now.bytes[RA_POOL_ALLOCATED].current, now.bytes[RA_POOL_ACTIVE].current);
    cr_assert_leq(now.bytes[RA_POOL_INACTIVE_SPLIT].current, idle);
    for (int i = 0; i < RA_POOL_FIGURE_COUNT; i++) {
        const ra_pool_counter *c = &now.bytes[i];
        cr_assert_leq(c->current, c->peak);
        cr_assert_leq(c->peak, c->allocated);
    }
}

void close_pool(void)
{
    expect_agreement();
    ra_pool_destroy(pool);
    cr_assert_eq(counted.out_bytes, 0);
    cr_assert_eq(counted.events, 0);
    ra_ledger_destroy(ledger);
}

ra_block take_on(ra_stream *stream, size_t bytes)
{
    ra_block block;
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_IO, bytes, stream, &block), RA_OK);
    expect_agreement();
    return block;
}

ra_block take(size_t bytes)
{
    return take_on(NULL, bytes);
}

void give(ra_block *block)
{
    ra_pool_free(pool, NULL, block);
    expect_agreement();
}
