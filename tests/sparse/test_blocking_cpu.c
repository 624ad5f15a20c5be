#include "sparse/cpu/blocking_cpu.h"

#include <criterion/criterion.h>

enum { MIB = 1 << 20 };

Test(blocking_cpu, tiles_side_by_side_fill_the_second_cache)
{
    cr_expect_eq(ra_cpu_tiles_at_once(MIB, 128, false), 4);
    cr_expect_eq(ra_cpu_tiles_at_once(MIB / 2, 128, false), 2);
    cr_expect_eq(ra_cpu_tiles_at_once(MIB / 2, 128, true), 3);
    cr_expect_eq(ra_cpu_tiles_at_once(MIB, 256, false), 2);
    cr_expect_eq(ra_cpu_tiles_at_once(0, 256, false), 2); /* taken for 1 MiB */
}

Test(blocking_cpu, there_is_a_tile_in_the_least_cache_and_no_more_than_fit_the_workspace)
{
    for (int32_t dim = 1; dim <= 256; ++dim) {
        int32_t last = 1;
        for (int64_t bytes = 1; bytes <= (int64_t)1 << 40; bytes *= 2) {
            int32_t const tiles = ra_cpu_tiles_at_once(bytes, dim, false);
            cr_assert_geq(tiles, last); /* more cache never means fewer */
            cr_assert_leq(tiles, RA_TILES_AT_ONCE_MAX);
            cr_assert_geq(ra_cpu_tiles_at_once(bytes, dim, true), tiles); /* they are smaller */
            last = tiles;
        }
        cr_assert_eq(ra_cpu_tiles_at_once(1, dim, false), 1);
        cr_assert_eq(last, RA_TILES_AT_ONCE_MAX);
    }
}

/* Every head and chunk is in one task, and no task has more tiles than asked for. */
static void check_cut(int64_t lanes, int32_t group, int32_t chunks, int32_t tiles, int threads)
{
    ra_cpu_tasks const t = ra_cpu_cut_tasks(lanes, group, chunks, tiles, threads);
    cr_assert_geq(t.heads, 1);
    cr_assert_geq(t.chunks, 1);
    cr_assert_leq(t.heads * t.chunks, tiles);
    cr_assert_eq(t.count, lanes * t.head_parts * t.chunk_parts);
    cr_assert_geq(t.head_parts * t.heads, group);
    cr_assert_lt((t.head_parts - 1) * t.heads, group);
    cr_assert_geq(t.chunk_parts * t.chunks, chunks);
    cr_assert_lt((t.chunk_parts - 1) * t.chunks, chunks < 1 ? 1 : chunks);
    bool const is_least = t.heads == 1 && t.chunks == 1;
    cr_assert(threads == 1 || is_least || t.count >= 8 * (int64_t)threads,
              "%d threads wait for the last of %lld tasks", threads, (long long)t.count);
}

Test(blocking_cpu, tasks_cover_heads_and_chunks_and_are_enough_for_the_threads)
{
    for (int64_t lanes = 0; lanes <= 9; lanes += 3)
        for (int32_t group = 1; group <= 9; ++group)
            for (int32_t chunks = 0; chunks <= 70; chunks += 7)
                for (int32_t tiles = 1; tiles <= RA_TILES_AT_ONCE_MAX; ++tiles)
                    for (int threads = 1; threads <= 64; threads *= 2)
                        check_cut(lanes, group, chunks, tiles, threads);
}

Test(blocking_cpu, heads_of_a_key_head_come_before_neighbouring_chunks)
{
    ra_cpu_tasks const grouped = ra_cpu_cut_tasks(1, 8, 1000, 4, 2);
    cr_expect_eq(grouped.heads, 4);
    cr_expect_eq(grouped.chunks, 1);
    ra_cpu_tasks const single = ra_cpu_cut_tasks(8, 1, 1000, 4, 2);
    cr_expect_eq(single.heads, 1);
    cr_expect_eq(single.chunks, 4);
}
