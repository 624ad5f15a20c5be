/* What size_class adds to the contract: what is kept, cut, joined and counted. */
#include "pool/counted_pool.h"

#include <criterion/criterion.h>

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
        if (bytes >= 1 << 20)
            cr_assert_lt(size - bytes, 4096);
        cr_assert_eq(ra_pool_class_bytes(size), size);
        cr_assert_lt(ra_pool_bin(size), RA_POOL_BINS);
        cr_assert_leq(ra_pool_bin(bytes), ra_pool_bin(size));
        last = size;
    }
}

Test(size_class, serves_again_what_was_given_back)
{
    static const size_t sizes[] = {1, 100, 4096, 65000, 65536, 1 << 20, 5000000};
    open_pool(INT64_MAX, 0, false);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        ra_block block = take(sizes[i]);
        void *const data = block.data;
        give(&block);
        int64_t const requests = counted.requests;
        block = take(sizes[i]);
        cr_assert_eq(block.data, data);
        cr_assert_eq(counted.requests, requests);
        give(&block);
    }
    cr_assert_eq(stats().hits, 7);
    close_pool();
}

/* Of one bin, and the first that is found is too short: the next request finds the other. */
Test(size_class, serves_from_the_idle_block_that_fits_best)
{
    size_t const least = 4 << 20, unit = 32 << 10;
    open_pool(INT64_MAX, 0, false);
    ra_block close_fit = take(least + 2 * unit), loose = take(least + 4 * unit),
             too_short = take(least);
    void *const close_data = close_fit.data, *const loose_data = loose.data;
    cr_assert_eq(ra_pool_bin(least), ra_pool_bin(least + 4 * unit));
    give(&close_fit);
    give(&loose);
    give(&too_short);
    close_fit = take(least + unit);
    loose = take(least + 3 * unit);
    cr_assert_eq(close_fit.data, close_data);
    cr_assert_eq(loose.data, loose_data);
    cr_assert_eq(counted.requests, 3);
    give(&close_fit);
    give(&loose);
    close_pool();
}

/* What lies in the caches is used, also by a request for a little less. */
Test(size_class, serves_first_what_was_given_back_last)
{
    size_t const bytes = 4 << 20, unit = 32 << 10;
    open_pool(INT64_MAX, 0, false);
    for (int last = 0; last < 2; last++) {
        ra_block blocks[2] = {take(bytes), take(bytes)};
        void *const data = blocks[last].data;
        give(&blocks[1 - last]);
        give(&blocks[last]);
        ra_block block = take(bytes - unit);
        cr_assert_eq(block.data, data);
        give(&block);
    }
    cr_assert_eq(counted.requests, 2);
    close_pool();
}

Test(size_class, asks_for_no_more_than_it_is_asked_for)
{
    ra_block blocks[64];
    int64_t bytes = 0;
    open_pool(INT64_MAX, 0, false);
    for (int i = 0; i < 64; i++) {
        blocks[i] = take((size_t)1000 * (size_t)(i + 1));
        bytes += (int64_t)blocks[i].reserved_bytes;
        cr_assert_leq(counted.out_bytes, bytes + bytes / 8, "block %d", i);
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
    open_pool(INT64_MAX, 1 << 30, false);
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
        cr_assert_eq(counted.requests, 1);
    }
    close_pool();
}

/* Automatic trim: whatever the sizes, keeping does not raise the peak. */
Test(size_class, never_reserves_more_than_was_in_use_at_most)
{
    uint64_t state = 12345;
    open_pool(INT64_MAX, 0, false);
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

Test(size_class, knows_the_composition_with_least_idle_of_equal_peaks)
{
    ra_ledger_snapshot now;
    open_pool(INT64_MAX, 1 << 30, false);
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
    ra_ledger_read(ledger, &now);
    cr_assert_eq(now.at_peak_bytes[RA_MEM_POOL_IDLE], 0);
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
    times = (ra_pool_times){0};
    for (int64_t ns = 100; ns <= 100000; ns *= 10) /* of four the second, and the slowest */
        ra_pool_times_add(&times, ns);
    cr_assert_eq(ra_pool_times_quantile(&times, 0.5), 1023);
    cr_assert_gt(ra_pool_times_quantile(&times, 0.99), 99999);
    ra_pool_times_add(&times, 7); /* of five the third */
    cr_assert_eq(ra_pool_times_quantile(&times, 0.5), 1023);
}
