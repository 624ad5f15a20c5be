/*
 * Block masks: lists that are the definition's, maps that are the lists', and what they cost. That
 * maps hold each pair as often as they should, for random patterns and layouts, test_pattern.c
 * checks.
 */
#include "ringattn/block_mask.h"
#include "support/captured_log.h"
#include "support/poison_suite.h"
#include "support/refusing_memory.h"

#include <criterion/criterion.h>

enum { SEQ = 900, HEADS = 2, TILE_ROWS = 256 };

static int64_t held_bytes(void)
{
    ra_ledger_snapshot snapshot;
    ra_ledger_read(ledger, &snapshot);
    return snapshot.reserved_bytes;
}

TestSuite(block_mask, .init = poison_suite_begin, .fini = poison_suite_end);

/* A pattern, and the rows that meet under it. */
typedef struct problem {
    ra_pattern *pattern;
    ra_heads heads;
    ra_rowset queries, keys;
} problem;

static problem problem_make(const ra_pattern_config *config, int64_t seq, ra_range queries,
                            ra_range keys)
{
    problem p = {.heads = {0, 1, HEADS}};
    cr_assert_eq(ra_pattern_create(config, seq, HEADS, pool, &p.pattern), RA_OK);
    cr_assert_eq(ra_rowset_init(pool, &queries, 1, &p.queries), RA_OK);
    cr_assert_eq(ra_rowset_init(pool, &keys, 1, &p.keys), RA_OK);
    return p;
}

static void problem_free(problem *p)
{
    ra_rowset_fini(pool, &p->queries);
    ra_rowset_fini(pool, &p->keys);
    ra_pattern_destroy(p->pattern);
}

static ra_block_mask mask_of(const problem *p)
{
    ra_block_mask mask;
    cr_assert_eq(ra_block_mask_init(p->pattern, p->heads, &p->queries, &p->keys, pool, &mask),
                 RA_OK);
    return mask;
}

/* Live pairs of a block, and pairs at all, pair by pair. */
static void count_block(const problem *p, int32_t head, int32_t q_block, int32_t k_block,
                        int64_t *live, int64_t *all)
{
    *live = *all = 0;
    for (int64_t x = (int64_t)q_block * RA_MASK_BLOCK;
         x < p->queries.row_count && x < (int64_t)(q_block + 1) * RA_MASK_BLOCK; ++x)
        for (int64_t y = (int64_t)k_block * RA_MASK_BLOCK;
             y < p->keys.row_count && y < (int64_t)(k_block + 1) * RA_MASK_BLOCK; ++y) {
            *live += ra_pattern_multiplicity(p->pattern, head, ra_rowset_global(&p->queries, x),
                                             ra_rowset_global(&p->keys, y)) > 0;
            ++*all;
        }
}

static bool lists(const ra_block_list *list, int32_t from, int32_t to)
{
    for (int32_t n = 0; n < list->counts[from]; ++n) {
        int32_t const at = list->indices[from * list->stride + n];
        cr_assert(n == 0 || list->indices[from * list->stride + n - 1] < at, "not ascending");
        if (at == to)
            return true;
    }
    return false;
}

/* For a pattern of one layer: every block is in the lists it belongs in, and in no other. */
static void check_lists(const ra_pattern_config *config, ra_range queries, ra_range keys)
{
    problem p = problem_make(config, SEQ, queries, keys);
    ra_block_mask mask = mask_of(&p);
    int64_t full_count = 0, partial_count = 0, empty_count = 0;
    cr_assert_eq(mask.layer_count, 1);
    for (int32_t q = 0; q < mask.q_blocks; ++q)
        for (int32_t k = 0; k < mask.k_blocks; ++k) {
            const ra_block_mask_layer *l = &mask.layers[0];
            int64_t live, all;
            count_block(&p, 0, q, k, &live, &all);
            bool const full = live == all, partial = live > 0 && live < all;
            cr_assert_eq(lists(&l->full_kv, q, k), full, "block %d, %d", q, k);
            cr_assert_eq(lists(&l->full_q, k, q), full, "block %d, %d", q, k);
            cr_assert_eq(lists(&l->kv, q, k), partial, "block %d, %d", q, k);
            cr_assert_eq(lists(&l->q, k, q), partial, "block %d, %d", q, k);
            full_count += full;
            partial_count += partial;
            empty_count += live == 0;
        }
    int64_t counted[4] = {0};
    for (int32_t q = 0; q < mask.q_blocks; ++q) {
        counted[0] += mask.layers[0].full_kv.counts[q];
        counted[1] += mask.layers[0].kv.counts[q];
    }
    for (int32_t k = 0; k < mask.k_blocks; ++k) {
        counted[2] += mask.layers[0].full_q.counts[k];
        counted[3] += mask.layers[0].q.counts[k];
    }
    cr_assert(counted[0] == full_count && counted[2] == full_count);
    cr_assert(counted[1] == partial_count && counted[3] == partial_count);
    cr_assert_eq(full_count + partial_count + empty_count, (int64_t)mask.q_blocks * mask.k_blocks);
    ra_block_mask_fini(pool, &mask);
    problem_free(&p);
}

Test(block_mask, lists_are_those_of_the_definition, .timeout = 600)
{
    static const int64_t documents[] = {300, 0, 484, 116};
    ra_range const all = {0, 1, SEQ}, odd = {1, 2, SEQ / 2}, tail = {300, 1, 517};
    ra_pattern_config configs[6];
    for (int i = 0; i < 6; ++i)
        configs[i] = ra_pattern_config_dense();
    configs[1].causal = true;
    configs[2].window_left = 200;
    configs[2].window_right = 0;
    configs[2].sinks = 130;
    configs[3].documents = documents;
    configs[3].document_count = 4;
    configs[4].causal = true;
    configs[4].blocks_kind = RA_BLOCKS_LOCAL_WINDOW;
    configs[4].block_size = 96;
    configs[4].block_width = 1;
    configs[5].blocks_kind = RA_BLOCKS_RANDOM;
    configs[5].block_size = 128;
    configs[5].block_density = 0.3;
    for (int i = 0; i < 6; ++i) {
        check_lists(&configs[i], all, all);
        check_lists(&configs[i], all, odd);
        check_lists(&configs[i], tail, odd);
        check_lists(&configs[i], odd, tail);
    }
}

Test(block_mask, sets_without_a_row_have_no_block)
{
    ra_pattern_config config = ra_pattern_config_dense();
    problem p = problem_make(&config, SEQ, (ra_range){0, 1, SEQ}, (ra_range){0, 1, 0});
    ra_map_request const request = {p.pattern, p.heads, &p.queries, &p.keys, TILE_ROWS, false};
    ra_tilemap map;
    cr_assert_eq(ra_tilemap_init_dense(&request, pool, &map), RA_OK);
    cr_assert_eq(map.run_count, 0);
    ra_tilemap_fini(pool, &map);
    ra_map_request const swapped = {p.pattern, p.heads, &p.keys, &p.queries, TILE_ROWS, false};
    cr_assert_eq(ra_tilemap_init_dense(&swapped, pool, &map), RA_OK);
    cr_assert_eq(map.chunk_count, 0);
    ra_tilemap_fini(pool, &map);
    problem_free(&p);
}

/* 16 (N / 128)^2 bytes of lists, two numbers per block row and direction, and the layers' heads. */
Test(block_mask, costs_16_bytes_per_block_whatever_the_pattern)
{
    enum { N = 65536, BLOCKS = N / RA_MASK_BLOCK };
    ra_pattern_config config = ra_pattern_config_dense();
    config.causal = true;
    config.window_left = 63;
    problem p = problem_make(&config, N, (ra_range){0, 1, N}, (ra_range){0, 1, N});
    ra_map_request const request = {p.pattern, p.heads, &p.queries, &p.keys, TILE_ROWS, false};
    int64_t const before = held_bytes();
    ra_tilemap map;
    cr_assert_eq(ra_tilemap_init_dense(&request, pool, &map), RA_OK);
    int64_t const lists_bytes = 16LL * BLOCKS * BLOCKS + 16LL * BLOCKS;
    int64_t const mask_bytes = (int64_t)map.mask.bytes;
    cr_expect_geq(mask_bytes, lists_bytes);
    cr_expect_leq(mask_bytes, lists_bytes + 256);
    cr_expect_eq(map.bytes, mask_bytes + (int64_t)map.block.bytes);
    cr_expect_eq(held_bytes() - before,
                 (int64_t)(map.mask.reserved_bytes + map.block.reserved_bytes));
    cr_expect_eq(map.live_pairs, ra_pattern_area(p.pattern, (ra_range){0, 1, N}));
    ra_tilemap_fini(pool, &map);
    problem_free(&p);
}

/* Pairs of a map made from this mask, whatever the pattern says. */
static int64_t pairs_of(const problem *p, const ra_block_mask *mask)
{
    ra_tilemap map;
    cr_assert_eq(ra_tilemap_init_masked(&(ra_map_request){p->pattern, p->heads, &p->queries,
                                                          &p->keys, TILE_ROWS, false},
                                        mask, pool, &map),
                 RA_OK);
    int64_t const pairs = map.live_pairs / HEADS;
    ra_tilemap_fini(pool, &map);
    return pairs;
}

/* A map is what the lists say: lose, add or move a block, and the pairs are others. */
Test(block_mask, a_list_that_is_wrong_makes_a_wrong_map)
{
    enum { B = RA_MASK_BLOCK };
    int64_t const block = (int64_t)B * B, triangle = (int64_t)B * (B + 1) / 2;
    ra_pattern_config config = ra_pattern_config_dense();
    config.causal = true;
    problem p =
        problem_make(&config, 6LL * B, (ra_range){0, 1, 6LL * B}, (ra_range){0, 1, 6LL * B});
    ra_block_mask mask = mask_of(&p);
    ra_block_mask_layer *l = &mask.layers[0];
    int64_t const right = 15 * block + 6 * triangle;
    cr_assert_eq(pairs_of(&p, &mask), right);
    cr_assert_eq(l->full_kv.counts[3], 3);
    --l->full_kv.counts[3];
    cr_expect_eq(pairs_of(&p, &mask), right - block, "a full block is lost");
    ++l->full_kv.counts[3];
    l->full_kv.indices[3 * l->full_kv.stride + 2] = 5;
    cr_expect_eq(pairs_of(&p, &mask), right, "a full block has moved behind the diagonal");
    ra_tilemap map;
    cr_assert_eq(ra_tilemap_init_masked(
                     &(ra_map_request){p.pattern, p.heads, &p.queries, &p.keys, TILE_ROWS, false},
                     &mask, pool, &map),
                 RA_OK);
    bool sees_the_future = false;
    for (uint32_t t = 0; t < map.tile_count; ++t)
        for (uint32_t r = map.tiles[t].run_begin; r < map.tiles[t + 1].run_begin; ++r)
            sees_the_future |= map.tiles[t].q_begin == 3 * B && map.runs[r].k_begin == 5 * B;
    cr_expect(sees_the_future);
    ra_tilemap_fini(pool, &map);
    l->full_kv.indices[3 * l->full_kv.stride + 2] = 2;
    l->kv.counts[2] = 0;
    cr_expect_eq(pairs_of(&p, &mask), right - triangle, "a partial block is lost");
    l->kv.counts[2] = 1;
    l->kv.indices[2 * l->kv.stride] = 3;
    cr_expect_eq(pairs_of(&p, &mask), right - triangle, "a partial block is where no band is");
    l->kv.indices[2 * l->kv.stride] = 2;
    cr_expect_eq(pairs_of(&p, &mask), right);
    ra_block_mask_fini(pool, &mask);
    problem_free(&p);
}

/* ---- memory that is refused
 * -------------------------------------------------------------------- */

Test(block_mask, whose_memory_is_refused_leaves_nothing)
{
    refusing_memory memory = {.inner = ra_memory_poison(), .countdown = -1};
    static const int64_t segments[] = {256, 512}, rates[] = {1, 2};
    ra_pattern_config config = ra_pattern_config_dense();
    config.causal = true;
    config.segments = segments;
    config.rates = rates;
    config.branch_count = 2;
    ra_pool *mine;
    captured_log said;
    cr_assert_eq(
        ra_pool_create(&(ra_pool_config){.memory = ra_memory_refusing(&memory), .ledger = ledger},
                       &mine),
        RA_OK);
    problem p = problem_make(&config, SEQ, (ra_range){0, 1, SEQ}, (ra_range){0, 1, SEQ});
    ra_map_request const request = {p.pattern, p.heads, &p.queries, &p.keys, TILE_ROWS, false};
    int64_t const before = held_bytes();
    ra_status status = RA_ERR_NO_MEMORY;
    long n = 0;
    for (; status != RA_OK; ++n) {
        ra_tilemap map = {0};
        memory.countdown = n;
        captured_log_begin(&said);
        status = ra_tilemap_init_dense(&request, mine, &map);
        cr_assert(status == RA_OK || status == RA_ERR_NO_MEMORY, "allocation %ld", n);
        cr_assert_eq(said.count, status != RA_OK, "allocation %ld: %d lines", n, said.count);
        ra_tilemap_fini(mine, &map);
        cr_assert_eq(held_bytes(), before, "allocation %ld leaks", n);
    }
    cr_assert_gt(n, 4);
    problem_free(&p);
    ra_pool_destroy(mine);
}
