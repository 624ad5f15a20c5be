/* Blocks that work on a stream still uses when they are given back. */
#include "pool/counted_pool.h"

#include <criterion/criterion.h>

Test(streams, keep_a_block_from_each_other_until_its_use_is_over)
{
    ra_stream a = {0}, b = {0};
    open_pool(INT64_MAX, 1 << 30, true);
    ra_block block = take_on(&a, 1 << 20);
    void *const data = block.data;
    ra_pool_free(pool, &a, &block);
    cr_assert_eq(stats().bytes[RA_POOL_ACTIVE].current, 1 << 20);
    cr_assert_eq(stats().bytes[RA_POOL_ALLOCATED].current, 0);

    ra_block other = take_on(&b, 1 << 20);
    cr_assert_neq(other.data, data);
    cr_assert_eq(counted.requests, 2);
    block = take_on(&a, 1 << 20); /* its own stream need not wait */
    cr_assert_eq(block.data, data);
    ra_pool_free(pool, &a, &block);

    a.done = a.recorded;
    block = take_on(&b, 1 << 20);
    cr_assert_eq(block.data, data);
    cr_assert_eq(counted.requests, 2);
    ra_pool_free(pool, &b, &block);
    ra_pool_free(pool, &b, &other);
    b.done = b.recorded;
    close_pool();
}

Test(streams, are_never_waited_for_by_a_trim)
{
    ra_stream a = {0};
    ra_block refused;
    open_pool(2 << 20, 1 << 30, true);
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
    open_pool(INT64_MAX, 1 << 30, true);
    ra_block whole = take_on(NULL, 2 << 20);
    ra_pool_free(pool, NULL, &whole);
    ra_block first = take_on(&a, 1 << 20), second = take_on(&b, 1 << 20);
    cr_assert_eq(counted.requests, 1);
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

/* The segments were taken in one order and have been idle in another. */
Test(streams, that_work_leave_idle_segments_in_their_order)
{
    ra_stream a = {0};
    open_pool(INT64_MAX, 1 << 30, true);
    ra_block first = take_on(NULL, 1 << 20), second = take_on(NULL, 2 << 20);
    ra_block used = take_on(&a, 4 << 20);
    ra_pool_free(pool, NULL, &first);
    ra_pool_free(pool, NULL, &second);
    ra_pool_free(pool, &a, &used); /* something may be joined later */
    ra_block other = take_on(NULL, 8 << 20);
    cr_assert_eq(ra_pool_trim(pool, 6 << 20), 1 << 20, "the one that was idle first");
    a.done = a.recorded;
    ra_pool_free(pool, NULL, &other);
    close_pool();
}

/* Neighbours of one stream are joined before it is done: they are over when the later one is. */
Test(streams, joined_blocks_are_over_with_the_later_use)
{
    for (int last = 0; last < 2; last++) {
        ra_stream a = {0}, b = {0};
        open_pool(INT64_MAX, 1 << 30, true);
        ra_block whole = take_on(NULL, 2 << 20);
        void *const data = whole.data;
        ra_pool_free(pool, NULL, &whole);
        ra_block halves[] = {take_on(&a, 1 << 20), take_on(&a, 1 << 20)};
        ra_pool_free(pool, &a, &halves[1 - last]);
        ra_pool_free(pool, &a, &halves[last]);
        a.done = 1;
        whole = take_on(&b, 2 << 20);
        cr_assert_neq(whole.data, data, "half %d is still in use", last);
        ra_pool_free(pool, &b, &whole);
        b.done = 1;
        a.done = 2;
        whole = take_on(NULL, 2 << 20);
        halves[0] = take_on(NULL, 2 << 20);
        cr_assert_eq(counted.requests, 2);
        ra_pool_free(pool, NULL, &whole);
        ra_pool_free(pool, NULL, &halves[0]);
        close_pool();
    }
}

/* A chunk that is cut while its stream still works leaves the rest to that stream alone. */
Test(streams, hold_both_parts_of_what_is_cut)
{
    ra_stream a = {0}, b = {0};
    open_pool(INT64_MAX, 1 << 30, true);
    ra_block block = take_on(&a, 2 << 20), rest, other;
    ra_pool_free(pool, &a, &block);
    block = take_on(&a, 1 << 20);
    other = take_on(&b, 1 << 20);
    cr_assert_eq(counted.requests, 2);
    rest = take_on(&a, 1 << 20);
    cr_assert_eq(counted.requests, 2);
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
    open_pool(INT64_MAX, 1 << 30, true);
    ra_block block = take_on(&a, 1 << 20);
    void *const data = block.data;
    counted.refuses_events = true;
    ra_pool_free(pool, &a, &block);
    block = take_on(&a, 1 << 20);
    cr_assert_neq(block.data, data);
    counted.refuses_events = false;
    ra_pool_free(pool, &a, &block);
    a.done = a.recorded;
    cr_assert_eq(ra_pool_trim(pool, 0), 1 << 20);
    close_pool();
}

/* Its neighbours are joined with each other's, and never with it. */
Test(streams, do_not_join_what_could_not_be_recorded)
{
    ra_stream a = {0};
    ra_block parts[3];
    open_pool(INT64_MAX, 1 << 30, true);
    ra_block whole = take_on(&a, 3 << 20);
    ra_pool_free(pool, NULL, &whole);
    for (int i = 0; i < 3; i++)
        parts[i] = take_on(&a, 1 << 20);
    cr_assert_eq(counted.requests, 1);
    counted.refuses_events = true;
    ra_pool_free(pool, &a, &parts[1]);
    counted.refuses_events = false;
    ra_pool_free(pool, NULL, &parts[0]);
    ra_pool_free(pool, NULL, &parts[2]);
    parts[0] = take_on(&a, 2 << 20);
    cr_assert_eq(counted.requests, 2);
    ra_pool_free(pool, NULL, &parts[0]);
    close_pool();
}

/* Nor is it returned, though the bound has no room for it: the stream may still use it. */
Test(streams, keep_what_could_not_be_recorded_beyond_the_bound)
{
    ra_stream a = {0};
    open_pool(INT64_MAX, 1 << 20, true);
    ra_block block = take_on(&a, 2 << 20);
    counted.refuses_events = true;
    ra_pool_free(pool, &a, &block);
    cr_assert_eq(counted.out_bytes, 2 << 20);
    close_pool();
}
