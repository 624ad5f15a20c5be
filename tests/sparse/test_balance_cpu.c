#include "sparse/cpu/balance_cpu.h"

#include "sparse/cpu/cpu_internal.h"
#include "sparse/mapped.h"
#include "sparse/run_band.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { TILE_ROWS = 256, HEADS = 2, MEMBERS_MAX = 16 };

static mapped map_of(const ra_pattern_config *config, int64_t n)
{
    return mapped_make(
        &(mapped_config){.pattern = config, .rows = n, .heads = HEADS, .tile_rows = TILE_ROWS});
}

static int64_t work_of_all(const ra_tilemap *map)
{
    int64_t work = 0;
    for (int32_t c = 0; c < map->chunk_count; ++c)
        work += ra_cpu_chunk_work(map, 0, HEADS, c);
    return work;
}

Test(balance_cpu, work_is_the_pairs_of_tiles_or_a_little_more_where_a_band_cuts_them)
{
    ra_pattern_config config = ra_pattern_config_dense();
    mapped dense = map_of(&config, 3000);
    cr_expect_eq(work_of_all(&dense.map), HEADS * (int64_t)3000 * 3000);
    cr_expect_eq(ra_cpu_chunk_work(&dense.map, 1, 2, 0), (int64_t)TILE_ROWS * 3000);
    mapped_free(&dense);
    config.causal = true;
    mapped causal = map_of(&config, 3000);
    cr_expect_geq(work_of_all(&causal.map), causal.map.live_pairs);
    cr_expect_leq(work_of_all(&causal.map),
                  causal.map.live_pairs + HEADS * (int64_t)3000 * TILE_ROWS);
    for (int32_t c = 1; c + 1 < causal.map.chunk_count; ++c)
        cr_expect_gt(ra_cpu_chunk_work(&causal.map, 0, 1, c),
                     ra_cpu_chunk_work(&causal.map, 0, 1, c - 1));
    mapped_free(&causal);
}

Test(balance_cpu, work_is_of_the_layers_that_hold_the_heads)
{
    static const int64_t segments[] = {512, 2048}, rates[] = {1, 2};
    ra_pattern_config config = ra_pattern_config_dense();
    config.segments = segments;
    config.rates = rates;
    config.branch_count = 2;
    config.dilated_heads = RA_HEADS_GROUPED; /* head 0 has the first branch, head 1 the second */
    mapped f = map_of(&config, 4096);
    cr_assert_eq(f.map.layer_count, 2);
    int64_t first = 0, second = 0;
    for (int32_t c = 0; c < f.map.chunk_count; ++c) {
        first += ra_cpu_chunk_work(&f.map, 0, 1, c);
        second += ra_cpu_chunk_work(&f.map, 1, 2, c);
    }
    cr_expect_eq(first, (int64_t)4096 * 512);
    cr_expect_eq(second, (int64_t)2048 * 1024);
    mapped_free(&f);
}

Test(balance_cpu, classes_halve_the_longest)
{
    cr_expect_eq(ra_cpu_task_class(1000, 1000), 0);
    cr_expect_eq(ra_cpu_task_class(501, 1000), 0);
    cr_expect_eq(ra_cpu_task_class(500, 1000), 1);
    cr_expect_eq(ra_cpu_task_class(250, 1000), 2);
    cr_expect_eq(ra_cpu_task_class(126, 1000), 2);
    cr_expect_eq(ra_cpu_task_class(125, 1000), 3);
    cr_expect_eq(ra_cpu_task_class(0, 1000), 3);
    cr_expect_eq(ra_cpu_task_class(0, 0), 3); /* a map without a pair */
}

/* When the last of `threads` ends that take tasks as forward does: by class, then from the end. */
static int64_t end_of_tasks(const int64_t *work, int count, int threads)
{
    int64_t ends[MEMBERS_MAX] = {0}, most = 0, end = 0;
    for (int i = 0; i < count; ++i)
        most = work[i] > most ? work[i] : most;
    for (int i = 0; i < RA_TASK_CLASSES * count; ++i) {
        int64_t const next = work[count - 1 - i % count];
        int free_thread = 0;
        if (ra_cpu_task_class(next, most) != i / count)
            continue;
        for (int t = 1; t < threads; ++t)
            free_thread = ends[t] < ends[free_thread] ? t : free_thread;
        ends[free_thread] += next;
        end = ends[free_thread] > end ? ends[free_thread] : end;
    }
    return end;
}

/* Where the first chunk sees all keys and others few, it would be alone at the end. */
Test(balance_cpu, no_thread_is_left_alone_with_a_long_task)
{
    ra_pattern_config config = ra_pattern_config_dense();
    config.blocks_kind = RA_BLOCKS_GLOBAL_LOCAL;
    config.block_size = 128;
    config.block_width = 1;
    config.block_globals = 1;
    mapped f = map_of(&config, 65536);
    int64_t work[256], sum = 0, most = 0;
    cr_assert_eq(f.map.chunk_count, 256);
    for (int32_t c = 0; c < 256; ++c) {
        work[c] = ra_cpu_chunk_work(&f.map, 0, HEADS, c);
        sum += work[c];
        most = work[c] > most ? work[c] : most;
    }
    cr_assert_eq(most, work[0]);
    for (int threads = 2; threads <= MEMBERS_MAX; ++threads) {
        int64_t const least = sum / threads > most ? sum / threads : most;
        cr_expect_leq(end_of_tasks(work, 256, threads), least + most / 8, "%d threads", threads);
    }
    mapped_free(&f);
}

/* ---- backward ----------------------------------------------------------------------------------
 */

static int64_t queries_of_key(const ra_tile *tile, const ra_run *run, int32_t b)
{
    ra_run_band const band = ra_run_band_of(run, tile->q_count);
    int32_t const first = ra_hd_max(0, b - band.hi),
                  end = ra_hd_min(tile->q_count, b - band.lo + 1);
    return ra_hd_max(0, end - first);
}

/* Pairs of head 0, by the share of their query and of their key. */
static void count_pairs(const ra_tilemap *map, const ra_cpu_shares *shares,
                        int64_t pairs[MEMBERS_MAX][MEMBERS_MAX])
{
    memset(pairs, 0, sizeof(*pairs) * MEMBERS_MAX);
    for (int32_t i = 0; i < map->layer_count; ++i) {
        for (int32_t c = 0; c < map->chunk_count && ra_heads_contain(map->layers[i].heads, 0);
             ++c) {
            const uint32_t *chunk_tile = map->layers[i].chunk_tile;
            int64_t *const row = pairs[ra_cpu_share_of(shares, c)];
            for (uint32_t t = chunk_tile[c]; t < chunk_tile[c + 1]; ++t) {
                for (uint32_t r = map->tiles[t].run_begin; r < map->tiles[t + 1].run_begin; ++r) {
                    const ra_run *run = &map->runs[r];
                    for (int32_t b = 0; b < run->k_count; ++b) {
                        int64_t const key = run->k_begin + (int64_t)run->k_stride * b;
                        row[ra_cpu_share_of(shares, key / shares->key_rows)] +=
                            queries_of_key(&map->tiles[t], run, b);
                    }
                }
            }
        }
    }
}

/* Members wait for each other after every round: what share of their time they work. */
static double time_at_work(const ra_tilemap *map, int32_t members)
{
    ra_cpu_shares const shares = ra_cpu_share_backward(map, 0, HEADS, members);
    int64_t pairs[MEMBERS_MAX][MEMBERS_MAX], sum = 0, time = 0;
    cr_assert_eq(shares.members, members);
    cr_assert_eq(shares.key_rows % RA_KEY_BLOCK, 0);
    count_pairs(map, &shares, pairs);
    for (int32_t round = 0; round < members; ++round) {
        int64_t most = 0;
        for (int32_t m = 0; m < members; ++m) {
            int64_t const count = pairs[m][(m + round) % members];
            sum += count;
            most = count > most ? count : most;
        }
        time += most;
    }
    cr_assert_eq(sum * HEADS, map->live_pairs);
    return (double)sum / (double)(time * members);
}

static void check_rounds(const ra_pattern_config *config, int32_t members_most, double least,
                         const char *what)
{
    for (int64_t n = 8192; n <= 65536; n *= 2) {
        mapped f = map_of(config, n);
        for (int32_t members = 2; members <= members_most; members *= 2) {
            double const share = time_at_work(&f.map, members);
            cr_expect_geq(share, least, "%s, %lld rows, %d members: %.2f", what, (long long)n,
                          members, share);
        }
        mapped_free(&f);
    }
}

Test(balance_cpu, members_of_a_team_have_equally_much_to_do_in_every_round, .timeout = 600)
{
    static const int64_t segments[] = {8192}, rates[] = {4};
    ra_pattern_config config = ra_pattern_config_dense();
    check_rounds(&config, MEMBERS_MAX, 0.99, "dense");
    config.window_left = config.window_right = 1000;
    check_rounds(&config, MEMBERS_MAX, 0.93, "window to both sides");
    config.window_left = -1;
    config.window_right = -1;
    config.causal = true;
    check_rounds(&config, MEMBERS_MAX, 0.95, "causal");
    config.window_left = 1023;
    check_rounds(&config, MEMBERS_MAX, 0.93, "causal window");
    config.window_left = -1;
    config.causal = false;
    config.segments = segments;
    config.rates = rates;
    config.branch_count = 1;
    check_rounds(&config, 8, 0.9, "dilated"); /* a segment has so many chunks */
}

Test(balance_cpu, every_member_has_keys_where_there_are_enough_of_them)
{
    ra_pattern_config const config = ra_pattern_config_dense();
    for (int64_t n = 1; n <= 4096; n = 2 * n + 1) {
        mapped f = map_of(&config, n);
        for (int32_t members = 1; members <= MEMBERS_MAX; ++members) {
            ra_cpu_shares const s = ra_cpu_share_backward(&f.map, 0, HEADS, members);
            int64_t const groups = (n + s.key_rows - 1) / s.key_rows;
            cr_expect(groups >= members || s.key_rows == RA_KEY_BLOCK, "%lld rows, %d members",
                      (long long)n, members);
        }
        mapped_free(&f);
    }
}
