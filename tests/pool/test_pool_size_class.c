/* What size_class adds to the contract: what is kept, cut, joined, trimmed and counted. */
#include "pool/pool_internal.h"

#include <criterion/criterion.h>
#include <stdlib.h>

/* Memory with streams whose requests can be refused. An event is over when its stream is. */
struct ra_stream {
    int64_t done; /* events up to this number are over */
    int64_t recorded;
};

typedef struct test_memory {
    int64_t out_bytes, requests, refuse_above_bytes;
    int64_t events;
    bool refuses_events;
} test_memory;

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
    test_memory *const self = memory->self;
    self->requests++;
    if (self->refuse_above_bytes > 0 && self->out_bytes + (int64_t)bytes > self->refuse_above_bytes)
        return RA_ERR_NO_MEMORY;
    self->out_bytes += (int64_t)bytes;
    return host.ops->alloc(&host, bytes, ptr_out);
}

static void test_free(const ra_memory *memory, void *ptr, size_t bytes)
{
    ra_memory const host = ra_memory_host();
    test_memory *const self = memory->self;
    self->out_bytes -= (int64_t)bytes;
    host.ops->free(&host, ptr, bytes);
}

static ra_status test_available(const ra_memory *memory, int64_t *bytes_out)
{
    (void)memory;
    *bytes_out = INT64_MAX;
    return RA_OK;
}

static ra_status test_record(const ra_memory *memory, ra_stream *stream, void **event_out)
{
    test_memory *const self = memory->self;
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
    test_memory *const self = memory->self;
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

static ra_ledger *ledger;
static ra_pool *pool;
static test_memory memory;
static int lines;

static void count_lines(void *context, ra_log_level level, const char *line)
{
    (void)context, (void)level, (void)line;
    lines++;
}

static void open_pool(int64_t limit_bytes, int64_t trim_bytes, const ra_memory_ops *ops)
{
    ra_log_set_handler(count_lines, NULL);
    memory = (test_memory){0};
    lines = 0;
    cr_assert_eq(ra_ledger_create(limit_bytes, &ledger), RA_OK);
    ra_pool_config const config = {.mode = RA_POOL_SIZE_CLASS,
                                   .memory = {ops, &memory},
                                   .ledger = ledger,
                                   .trim_bytes = trim_bytes};
    cr_assert_eq(ra_pool_create(&config, &pool), RA_OK);
}

static ra_pool_stats stats(void)
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
    cr_assert_eq(now.bytes[RA_POOL_RESERVED].current, memory.out_bytes);
    cr_assert_eq(snapshot.reserved_bytes, memory.out_bytes);
    cr_assert_eq(now.bytes[RA_POOL_ALLOCATED].current, snapshot.reserved_bytes - idle);
    cr_assert_leq(now.bytes[RA_POOL_REQUESTED].current, now.bytes[RA_POOL_ALLOCATED].current);
    cr_assert_leq(now.bytes[RA_POOL_ALLOCATED].current, now.bytes[RA_POOL_ACTIVE].current);
    cr_assert_leq(now.bytes[RA_POOL_INACTIVE_SPLIT].current, idle);
    for (int i = 0; i < RA_POOL_FIGURE_COUNT; i++) {
        const ra_pool_counter *c = &now.bytes[i];
        cr_assert_eq(c->current, c->allocated - c->freed);
        cr_assert_leq(c->current, c->peak);
    }
}

static void close_pool(void)
{
    expect_agreement();
    ra_pool_destroy(pool);
    cr_assert_eq(memory.out_bytes, 0);
    cr_assert_eq(memory.events, 0);
    ra_ledger_destroy(ledger);
}

static ra_block take(size_t bytes)
{
    ra_block block;
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_IO, bytes, NULL, &block), RA_OK);
    expect_agreement();
    return block;
}

static void give(ra_block *block)
{
    ra_pool_free(pool, NULL, block);
    expect_agreement();
}

Test(size_class, rounds_up_by_little_and_never_down)
{
    size_t last = 0;
    for (size_t bytes = 1; bytes < (size_t)1 << 40; bytes += bytes / 100 + 1) {
        size_t const size = ra_pool_class_bytes(bytes);
        cr_assert_geq(size, bytes);
        cr_assert_geq(size, last);
        cr_assert_eq(size % 64, 0);
        if (bytes >= 64 << 10)
            cr_assert_eq(size % 4096, 0);
        else if (bytes >= 4096)
            cr_assert_leq(size - bytes, bytes / 64 + 1);
        cr_assert_eq(ra_pool_class_bytes(size), size);
        cr_assert_lt(ra_pool_bin(size), RA_POOL_BINS);
        cr_assert_leq(ra_pool_bin(bytes), ra_pool_bin(size));
        last = size;
    }
}

Test(size_class, serves_again_what_was_given_back)
{
    static const size_t sizes[] = {1, 100, 4096, 65000, 65536, 1 << 20, 5000000};
    open_pool(INT64_MAX, 0, &plain_ops);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        ra_block block = take(sizes[i]);
        void *const data = block.data;
        give(&block);
        int64_t const requests = memory.requests;
        block = take(sizes[i]);
        cr_assert_eq(block.data, data);
        cr_assert_eq(memory.requests, requests);
        give(&block);
    }
    cr_assert_eq(stats().hits, 7);
    close_pool();
}

Test(size_class, asks_for_no_more_than_it_is_asked_for)
{
    ra_block blocks[64];
    int64_t bytes = 0;
    open_pool(INT64_MAX, 0, &plain_ops);
    for (int i = 0; i < 64; i++) {
        blocks[i] = take((size_t)1000 * (size_t)(i + 1));
        bytes += (int64_t)blocks[i].reserved_bytes;
        cr_assert_leq(memory.out_bytes, bytes + bytes / 8, "block %d", i);
    }
    for (int i = 0; i < 64; i++)
        give(&blocks[i]);
    close_pool();
}

/* Three thirds of one segment, freed in every order, are one chunk again. */
Test(size_class, joins_what_was_cut)
{
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    open_pool(INT64_MAX, 1 << 30, &plain_ops);
    ra_block whole = take(3 << 20);
    give(&whole);
    for (int i = 0; i < 6; i++) {
        ra_block parts[3];
        for (int j = 0; j < 3; j++)
            parts[j] = take(1 << 20);
        cr_assert_eq(stats().bytes[RA_POOL_INACTIVE_SPLIT].current, 0);
        for (int j = 0; j < 3; j++) {
            give(&parts[orders[i][j]]);
            cr_assert_eq(stats().bytes[RA_POOL_INACTIVE_SPLIT].current,
                         j < 2 ? (int64_t)(j + 1) << 20 : 0);
        }
        whole = take(3 << 20);
        give(&whole);
        cr_assert_eq(memory.requests, 1);
    }
    close_pool();
}

/* Automatic trim: whatever the sizes, keeping does not raise the peak. */
Test(size_class, never_reserves_more_than_was_in_use_at_most)
{
    uint64_t state = 12345;
    open_pool(INT64_MAX, 0, &plain_ops);
    ra_block blocks[16] = {{0}};
    for (int i = 0; i < 1500; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ra_block *block = &blocks[state >> 60];
        give(block);
        *block = take((size_t)(100000 + (state >> 20) % 2000000));
    }
    ra_pool_stats const now = stats();
    cr_assert_geq(ra_pool_utilisation(&now), 0.95);
    cr_assert_leq(ra_pool_internal_fragmentation(&now), 0.05);
    for (int i = 0; i < 16; i++)
        give(&blocks[i]);
    close_pool();
}

Test(size_class, keeps_no_more_idle_bytes_than_it_may)
{
    ra_block blocks[8];
    open_pool(INT64_MAX, 2 << 20, &plain_ops);
    for (int i = 0; i < 8; i++)
        blocks[i] = take(1 << 20);
    for (int i = 0; i < 8; i++) {
        give(&blocks[i]);
        cr_assert_leq(memory.out_bytes, (int64_t)(7 - i + 2) << 20);
    }
    cr_assert_eq(memory.out_bytes, 2 << 20);
    cr_assert_eq(ra_pool_trim(pool, 1 << 20), 1 << 20);
    cr_assert_eq(ra_pool_trim(pool, 0), 1 << 20);
    cr_assert_eq(ra_pool_trim(pool, 0), 0);
    close_pool();
}

/* The limit has room for one of them: without a trim the second would fail, and say so. */
Test(size_class, trims_and_tries_again_in_silence)
{
    open_pool(10 << 20, 1 << 30, &plain_ops);
    ra_block block = take(4 << 20), other = take(4 << 20), large;
    give(&block);
    give(&other);
    large = take(9 << 20);
    cr_assert_eq(lines, 0);
    cr_assert_eq(stats().retries, 1);
    cr_assert_eq(stats().ooms, 0);
    cr_assert_eq(stats().trimmed_segments, 2);
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_IO, 2 << 20, NULL, &block), RA_ERR_NO_MEMORY);
    cr_assert_eq(lines, 1);
    cr_assert_eq(stats().ooms, 1);
    give(&large);
    cr_assert_eq(ra_pool_charge(pool, RA_MEM_QKV, 8 << 20), RA_OK);
    cr_assert_eq(lines, 1);
    ra_pool_release(pool, RA_MEM_QKV, 8 << 20);
    close_pool();
}

Test(size_class, trims_for_a_machine_that_refuses)
{
    open_pool(INT64_MAX, 1 << 30, &plain_ops);
    memory.refuse_above_bytes = 10 << 20;
    ra_block block = take(6 << 20), large;
    give(&block);
    large = take(9 << 20);
    cr_assert_eq(lines, 0);
    cr_assert_eq(stats().retries, 1);
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_IO, 2 << 20, NULL, &block), RA_ERR_NO_MEMORY);
    cr_assert_eq(lines, 1);
    give(&large);
    close_pool();
}

Test(size_class, counts_idle_segments_as_available)
{
    int64_t bytes;
    open_pool(8 << 20, 1 << 30, &plain_ops);
    ra_block block = take(6 << 20);
    cr_assert_eq(ra_pool_available(pool, &bytes), RA_OK);
    cr_assert_eq(bytes, 2 << 20);
    give(&block);
    cr_assert_eq(ra_pool_available(pool, &bytes), RA_OK);
    cr_assert_eq(bytes, 8 << 20);
    close_pool();
}

Test(size_class, knows_the_composition_with_least_idle_of_equal_peaks)
{
    ra_ledger_snapshot now;
    open_pool(INT64_MAX, 1 << 30, &plain_ops);
    ra_block block = take(4 << 20), part, rest;
    give(&block);
    part = take(1 << 20);
    rest = take(3 << 20);
    ra_ledger_read(ledger, &now);
    cr_assert_eq(now.reserved_peak_bytes, 4 << 20);
    cr_assert_eq(now.at_peak_bytes[RA_MEM_POOL_IDLE], 0);
    cr_assert_eq(now.alloc_count[RA_MEM_IO], 3);
    cr_assert_eq(now.alloc_count[RA_MEM_POOL_IDLE], 0);
    give(&part);
    give(&rest);
    close_pool();
}

/* ---- streams --------------------------------------------------------------------------------- */

static ra_block take_on(ra_stream *stream, size_t bytes)
{
    ra_block block;
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_IO, bytes, stream, &block), RA_OK);
    expect_agreement();
    return block;
}

Test(streams, keep_a_block_from_each_other_until_its_use_is_over)
{
    ra_stream a = {0}, b = {0};
    open_pool(INT64_MAX, 1 << 30, &stream_ops);
    ra_block block = take_on(&a, 1 << 20);
    void *const data = block.data;
    ra_pool_free(pool, &a, &block);
    cr_assert_eq(stats().bytes[RA_POOL_ACTIVE].current, 1 << 20);
    cr_assert_eq(stats().bytes[RA_POOL_ALLOCATED].current, 0);

    ra_block other = take_on(&b, 1 << 20);
    cr_assert_neq(other.data, data);
    cr_assert_eq(memory.requests, 2);
    block = take_on(&a, 1 << 20); /* its own stream need not wait */
    cr_assert_eq(block.data, data);
    ra_pool_free(pool, &a, &block);

    a.done = a.recorded;
    block = take_on(&b, 1 << 20);
    cr_assert_eq(block.data, data);
    cr_assert_eq(memory.requests, 2);
    ra_pool_free(pool, &b, &block);
    ra_pool_free(pool, &b, &other);
    b.done = b.recorded;
    close_pool();
}

Test(streams, are_never_waited_for_by_a_trim)
{
    ra_stream a = {0};
    ra_block refused;
    open_pool(2 << 20, 1 << 30, &stream_ops);
    ra_block block = take_on(&a, 1 << 20);
    ra_pool_free(pool, &a, &block);
    cr_assert_eq(ra_pool_trim(pool, 0), 0);
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_IO, 2 << 20, NULL, &refused), RA_ERR_NO_MEMORY);
    a.done = a.recorded;
    block = take_on(NULL, 2 << 20);
    ra_pool_free(pool, NULL, &block);
    close_pool();
}

/* Halves of one segment freed on two streams are joined once both are done. */
Test(streams, leave_joining_for_later)
{
    ra_stream a = {0}, b = {0};
    open_pool(INT64_MAX, 1 << 30, &stream_ops);
    ra_block whole = take_on(NULL, 2 << 20);
    ra_pool_free(pool, NULL, &whole);
    ra_block first = take_on(&a, 1 << 20), second = take_on(&b, 1 << 20);
    cr_assert_eq(memory.requests, 1);
    ra_pool_free(pool, &a, &first);
    ra_pool_free(pool, &b, &second);
    cr_assert_eq(stats().bytes[RA_POOL_INACTIVE_SPLIT].current, 2 << 20);
    a.done = b.done = 1;
    whole = take_on(NULL, 4 << 20); /* a miss looks at what is over */
    cr_assert_eq(stats().bytes[RA_POOL_INACTIVE_SPLIT].current, 0);
    ra_pool_free(pool, NULL, &whole);
    cr_assert_eq(ra_pool_trim(pool, 0), 6 << 20);
    close_pool();
}

/* A chunk that is cut while its stream still works leaves the rest to that stream alone. */
Test(streams, hold_both_parts_of_what_is_cut)
{
    ra_stream a = {0}, b = {0};
    open_pool(INT64_MAX, 1 << 30, &stream_ops);
    ra_block block = take_on(&a, 2 << 20), rest, other;
    ra_pool_free(pool, &a, &block);
    block = take_on(&a, 1 << 20);
    other = take_on(&b, 1 << 20);
    cr_assert_eq(memory.requests, 2);
    rest = take_on(&a, 1 << 20);
    cr_assert_eq(memory.requests, 2);
    ra_pool_free(pool, &a, &block);
    ra_pool_free(pool, &a, &rest);
    ra_pool_free(pool, &b, &other);
    a.done = a.recorded;
    b.done = b.recorded;
    close_pool();
}

Test(streams, never_get_again_what_could_not_be_recorded)
{
    ra_stream a = {0};
    open_pool(INT64_MAX, 1 << 30, &stream_ops);
    ra_block block = take_on(&a, 1 << 20);
    void *const data = block.data;
    memory.refuses_events = true;
    ra_pool_free(pool, &a, &block);
    block = take_on(&a, 1 << 20);
    cr_assert_neq(block.data, data);
    memory.refuses_events = false;
    ra_pool_free(pool, &a, &block);
    a.done = a.recorded;
    cr_assert_eq(ra_pool_trim(pool, 0), 1 << 20);
    close_pool();
}

/* ---- statistics ------------------------------------------------------------------------------ */

Test(statistics, time_what_they_are_asked_to)
{
    ra_pool_times times = {0};
    cr_assert_eq(ra_pool_times_quantile(&times, 0.5), -1);
    for (int64_t ns = 1; ns <= 1000; ns++)
        ra_pool_times_add(&times, ns);
    int64_t const p50 = ra_pool_times_quantile(&times, 0.5);
    int64_t const p99 = ra_pool_times_quantile(&times, 0.99);
    cr_assert(p50 >= 500 && p50 <= 500 + 500 / 8, "%lld", (long long)p50);
    cr_assert(p99 >= 990 && p99 <= 990 + 990 / 8, "%lld", (long long)p99);
    ra_pool_times_add(&times, INT64_MAX);
    cr_assert_gt(ra_pool_times_quantile(&times, 1), (int64_t)1 << 40);
}
