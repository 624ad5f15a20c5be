/* When size_class gives memory back: its bound, the limit, and a machine that refuses. */
#include "pool/counted_pool.h"

#include <criterion/criterion.h>

/* At no moment, that of giving back included. */
static void expect_bound(int64_t bound)
{
    ra_ledger_snapshot now;
    ra_ledger_read(ledger, &now);
    cr_assert_leq(now.peak_bytes[RA_MEM_POOL_IDLE], bound);
}

Test(trim, keeps_no_more_idle_bytes_than_it_may)
{
    ra_block blocks[8];
    open_pool(INT64_MAX, 2 << 20, false);
    for (int i = 0; i < 8; i++)
        blocks[i] = take(1 << 20);
    for (int i = 0; i < 8; i++) {
        give(&blocks[i]);
        cr_assert_leq(counted.out_bytes, (int64_t)(7 - i + 2) << 20);
    }
    cr_assert_eq(counted.out_bytes, 2 << 20);
    expect_bound(2 << 20);
    cr_assert_eq(ra_pool_trim(pool, 1 << 20), 1 << 20);
    cr_assert_eq(ra_pool_trim(pool, 0), 1 << 20);
    cr_assert_eq(ra_pool_trim(pool, 0), 0);
    close_pool();
}

/* What is as large as the bound leaves, and what has been kept stays. */
Test(trim, a_block_above_the_bound_is_never_idle)
{
    open_pool(INT64_MAX, 2 << 20, false);
    ra_block small = take(1 << 20), large = take(3 << 20);
    void *const kept = small.data;
    give(&small);
    give(&large);
    cr_assert_eq(counted.out_bytes, 1 << 20);
    small = take(1 << 20);
    cr_assert_eq(small.data, kept);
    give(&small);
    expect_bound(2 << 20);
    close_pool();
}

/* Blocks share a segment only where all of it but one may be idle. */
Test(trim, parts_of_segments_in_use_count_too)
{
    static const int64_t bounds[] = {1, 64, 4096, 100000, 1 << 20, 3 << 20, 5 << 20};
    ra_memory const host = ra_memory_host();
    for (size_t b = 0; b < sizeof(bounds) / sizeof(bounds[0]); b++) {
        ra_block blocks[40] = {{0}};
        uint64_t state = 1 + b;
        open_pool(INT64_MAX, bounds[b], false);
        for (int i = 0; i < 1000; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            ra_block *block = &blocks[(state >> 33) % 40];
            give(block);
            size_t const bytes = (size_t)1 << (state >> 50) % 22;
            *block = take(bytes);
            cr_assert_leq(block->reserved_bytes, host.ops->round(&host, bytes));
            expect_bound(bounds[b]);
        }
        cr_assert(bounds[b] == 1 || stats().hits > 0, "bound %lld: nothing was used again",
                  (long long)bounds[b]);
        for (int i = 0; i < 40; i++)
            give(&blocks[i]);
        expect_bound(bounds[b]);
        close_pool();
    }
}

/* A shared segment would have 69,120 bytes, and 69,632 once they are whole pages. */
Test(trim, a_block_has_no_segment_that_the_bound_forbids_to_share)
{
    enum { COUNT = 18 };
    ra_block blocks[COUNT];
    open_pool(INT64_MAX, 69200, false);
    for (int i = 0; i < COUNT; i++)
        blocks[i] = take(60 << 10);
    ra_block small = take(1024);
    cr_expect_eq(small.reserved_bytes, 1024, "%zu", small.reserved_bytes);
    give(&small);
    for (int i = 0; i < COUNT; i++)
        give(&blocks[i]);
    close_pool();
}

/* Until work on its stream is over a block can neither be returned nor be given to others. */
Test(trim, what_a_stream_uses_passes_the_bound_until_it_is_over)
{
    ra_stream stream = {0};
    open_pool(INT64_MAX, 1 << 20, true);
    ra_block first = take_on(&stream, 2 << 20), second = take_on(&stream, 64 << 10);
    ra_pool_free(pool, &stream, &first);
    cr_assert_eq(counted.out_bytes, (2 << 20) + (64 << 10));
    stream.done = stream.recorded;
    ra_pool_free(pool, &stream, &second);
    stream.done = stream.recorded;
    cr_assert_eq(counted.out_bytes, 64 << 10);
    close_pool();
}

/* The limit has room for one of them: without a trim the second would fail, and say so. */
Test(trim, trims_and_tries_again_in_silence)
{
    open_pool(10 << 20, 1 << 30, false);
    ra_block block = take(4 << 20), other = take(4 << 20), large;
    give(&block);
    give(&other);
    large = take(9 << 20);
    cr_assert_eq(said.count, 0);
    cr_assert_eq(stats().retries, 1);
    cr_assert_eq(stats().ooms, 0);
    cr_assert_eq(stats().trimmed_segments, 2);
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_IO, 2 << 20, NULL, &block), RA_ERR_NO_MEMORY);
    cr_assert_eq(said.count, 1);
    cr_assert_eq(stats().ooms, 1);
    give(&large);
    cr_assert_eq(ra_pool_charge(pool, RA_MEM_QKV, 8 << 20), RA_OK);
    cr_assert_eq(said.count, 1);
    ra_pool_release(pool, RA_MEM_QKV, 8 << 20);
    close_pool();
}

/* Small blocks share segments from so many on; this one has its own where no more is left. */
Test(trim, asks_for_no_more_than_needed_where_the_limit_ends)
{
    enum { BLOCKS = 65, BYTES = 4096 };
    ra_block blocks[BLOCKS];
    open_pool(BLOCKS * BYTES, 1 << 30, false);
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = take(BYTES);
    cr_assert_eq(stats().retries, 1);
    cr_assert_eq(said.count, 0);
    for (int i = 0; i < BLOCKS; i++)
        give(&blocks[i]);
    close_pool();
}

Test(trim, trims_for_a_machine_that_refuses)
{
    open_pool(INT64_MAX, 1 << 30, false);
    counted.refuse_above_bytes = 10 << 20;
    ra_block block = take(6 << 20), large;
    give(&block);
    large = take(9 << 20);
    cr_assert_eq(said.count, 0);
    cr_assert_eq(stats().retries, 1);
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_IO, 2 << 20, NULL, &block), RA_ERR_NO_MEMORY);
    cr_assert_eq(said.count, 1);
    give(&large);
    close_pool();
}

static int64_t count_question(void *context)
{
    int *const questions = context;
    ++*questions;
    return 0;
}

/* Neither a trim nor a keeper's piece mends a device, and each try would be another line of it. */
Test(trim, asks_a_memory_that_fails_once)
{
    int questions = 0;
    ra_pool_keeper const keeper = {&questions, NULL, count_question};
    open_pool(INT64_MAX, 1 << 30, false);
    ra_block block = take(4 << 20);
    give(&block);
    ra_pool_set_keeper(pool, &keeper);
    counted.fails = true;
    cr_expect_eq(ra_pool_alloc(pool, RA_MEM_IO, 8 << 20, NULL, &block), RA_ERR_CUDA);
    cr_expect_eq(counted.requests, 2);
    cr_expect_eq(questions, 0);
    cr_expect_eq(counted.out_bytes, 4 << 20, "what is idle stays");
    cr_expect_eq(stats().retries, 0);
    cr_expect_eq(stats().ooms, 0);
    cr_expect_eq(said.count, 0, "who has seen the failure says it");
    ra_pool_set_keeper(pool, NULL);
    close_pool();
}

/* Automatic: a new segment takes the place of the oldest one that is idle, and of no other. */
Test(trim, keeps_what_the_highest_use_had_room_for)
{
    open_pool(INT64_MAX, 0, false);
    ra_block first = take(4 << 20), second = take(4 << 20), small;
    void *const kept = second.data;
    give(&first);
    give(&second);
    small = take(1 << 20);
    cr_assert_eq(counted.out_bytes, 5 << 20);
    second = take(4 << 20);
    cr_assert_eq(second.data, kept);
    give(&small);
    give(&second);
    close_pool();
}

/* Automatic: what others took is in use like a block, and in use no more once it is released. */
Test(trim, what_is_charged_from_elsewhere_takes_the_place_of_idle_bytes)
{
    open_pool(INT64_MAX, 0, false);
    ra_block block = take(4 << 20), small;
    give(&block);
    cr_assert_eq(ra_pool_charge(pool, RA_MEM_COMM_BUFFER, 4 << 20), RA_OK);
    cr_assert_eq(counted.out_bytes, 0);
    ra_pool_release(pool, RA_MEM_COMM_BUFFER, 4 << 20);
    block = take(4 << 20);
    give(&block);
    small = take(1 << 20);
    cr_assert_eq(counted.out_bytes, 1 << 20);
    give(&small);
    close_pool();
}

/* What a stream may still use is active until it is returned. */
Test(trim, what_a_charge_takes_the_place_of_is_not_active)
{
    ra_stream stream = {0};
    open_pool(INT64_MAX, 0, true);
    ra_block block = take_on(&stream, 1 << 20);
    ra_pool_free(pool, &stream, &block);
    cr_expect_eq(stats().bytes[RA_POOL_ACTIVE].current, 1 << 20);
    stream.done = stream.recorded;
    cr_assert_eq(ra_pool_charge(pool, RA_MEM_COMM_BUFFER, 1 << 20), RA_OK);
    cr_expect_eq(stats().bytes[RA_POOL_ACTIVE].current, 0);
    ra_pool_release(pool, RA_MEM_COMM_BUFFER, 1 << 20);
    close_pool();
}

/* The highest use is that of blocks and of others together. */
Test(trim, what_was_charged_from_elsewhere_had_room_that_idle_bytes_may_have)
{
    open_pool(INT64_MAX, 0, false);
    ra_block block = take(4 << 20), small;
    cr_assert_eq(ra_pool_charge(pool, RA_MEM_COMM_BUFFER, 4 << 20), RA_OK);
    ra_pool_free(pool, NULL, &block);
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_IO, 1 << 20, NULL, &small), RA_OK);
    cr_assert_eq(counted.out_bytes, 1 << 20);
    ra_pool_free(pool, NULL, &small);
    ra_pool_release(pool, RA_MEM_COMM_BUFFER, 4 << 20);
    block = take(4 << 20);
    give(&block);
    small = take(3 << 20);
    cr_assert_eq(counted.out_bytes, 8 << 20);
    give(&small);
    close_pool();
}

Test(trim, returns_no_more_than_a_limit_asks_for)
{
    ra_block blocks[3];
    open_pool(8 << 20, 1 << 30, false);
    for (int i = 0; i < 3; i++)
        blocks[i] = take(2 << 20);
    give(&blocks[0]);
    give(&blocks[1]);
    cr_assert_eq(ra_pool_charge(pool, RA_MEM_COMM_BUFFER, 4 << 20), RA_OK);
    cr_assert_eq(counted.out_bytes, 4 << 20);
    ra_pool_release(pool, RA_MEM_COMM_BUFFER, 4 << 20);
    give(&blocks[2]);
    close_pool();
}

/* A segment that the bound has room for is cut, and once it is whole again, cut again. */
Test(trim, what_is_joined_counts_as_cut_no_more)
{
    open_pool(INT64_MAX, 4 << 20, false);
    ra_block block = take(4 << 20);
    give(&block);
    for (int i = 0; i < 3; i++) {
        block = take(1 << 20);
        cr_assert_eq(counted.requests, 1, "after it was joined %d times", i);
        give(&block);
    }
    close_pool();
}

/* Automatic: what is cut off would be idle as long as the rest is in use. */
Test(trim, cuts_little_off_what_is_whole)
{
    size_t const unit = 64 << 10;
    open_pool(INT64_MAX, 0, false);
    ra_block block = take(34 * unit);
    give(&block);
    block = take(33 * unit);
    cr_assert_eq(counted.requests, 1);
    give(&block);
    block = take(32 * unit);
    cr_assert_eq(counted.requests, 2);
    cr_assert_eq(counted.out_bytes, 32 * (int64_t)unit);
    give(&block);
    close_pool();
}

/* Segments of small blocks grow with what there is of these, and with that they shrink. */
Test(trim, forgets_small_blocks_that_it_returned)
{
    enum { COUNT = 2000 };
    static ra_block blocks[COUNT];
    open_pool(INT64_MAX, 1 << 30, false);
    blocks[0] = take(4096);
    int64_t const first_bytes = counted.out_bytes;
    for (int i = 1; i < COUNT; i++)
        blocks[i] = take(4096);
    cr_assert_lt(counted.requests, COUNT / 2);
    for (int i = 0; i < COUNT; i++)
        give(&blocks[i]);
    (void)ra_pool_trim(pool, 0);
    cr_assert_eq(counted.out_bytes, 0);
    blocks[0] = take(4096);
    cr_assert_eq(counted.out_bytes, first_bytes);
    give(&blocks[0]);
    close_pool();
}

Test(trim, counts_idle_segments_as_available)
{
    int64_t bytes;
    open_pool(8 << 20, 1 << 30, false);
    ra_block block = take(6 << 20);
    cr_assert_eq(ra_pool_available(pool, &bytes), RA_OK);
    cr_assert_eq(bytes, 2 << 20);
    give(&block);
    cr_assert_eq(ra_pool_available(pool, &bytes), RA_OK);
    cr_assert_eq(bytes, 8 << 20);
    close_pool();
}

static int64_t spare_one_mebibyte(void *context)
{
    (void)context;
    return 1 << 20;
}

static int64_t give_up_nothing(void *context)
{
    (void)context;
    return 0;
}

/* Idle bytes are the machine's no more: they come on top of what it has, as a keeper's do. */
Test(trim, counts_idle_bytes_beside_those_of_the_machine)
{
    ra_pool_keeper const keeper = {NULL, spare_one_mebibyte, give_up_nothing};
    int64_t bytes;
    open_pool(16 << 20, 1 << 30, false);
    counted.machine_bytes = 3 << 20;
    ra_block block = take(6 << 20);
    cr_assert_eq(ra_pool_available(pool, &bytes), RA_OK);
    cr_assert_eq(bytes, 3 << 20);
    give(&block);
    cr_assert_eq(ra_pool_available(pool, &bytes), RA_OK);
    cr_assert_eq(bytes, 9 << 20);
    ra_pool_set_keeper(pool, &keeper);
    cr_assert_eq(ra_pool_available(pool, &bytes), RA_OK);
    cr_assert_eq(bytes, 10 << 20);
    ra_pool_set_keeper(pool, NULL);
    close_pool();
}
