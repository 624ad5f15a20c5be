/* Panels of queries against blocks of keys, up to the last key of the longest run: in the vectors
   of any machine, and where rows are added for products of pairs. */
#ifndef RA_VEC_LANES
#define RA_VEC_LANES    4
#define RA_PRODUCT_ROWS 4
#endif
#include "sparse/cpu/pairs.h"
#include "support/random_pattern.h"

#include <criterion/criterion.h>

static void skip_without_the_instructions(void)
{
#if RA_VEC_LANES == 16
    if (ra_kernel_cpu(RA_ISA_AVX512BF16) == NULL)
        cr_skip_test("this machine lacks AVX-512 with bf16");
#endif
}

TestSuite(panel_cpu, .init = skip_without_the_instructions);

enum { CASES = 3000, ROWS = KEY_BLOCK_ROWS + 16 };

static const vec one[PRODUCT_VECS] = {{0}};
static float scores[ROWS * PANEL], sums[PRODUCT_ROWS * PANEL];
static float columns[ROWS * PRODUCT_ROWS];

/* A block that ends with one of a run's last keys, or anywhere, and a band that cuts it or not. */
static key_block draw_block(test_rng *rng, int32_t q_count)
{
    int32_t const count = (int32_t)test_rng_between(rng, 1, RA_KEY_BLOCK);
    int64_t const most = test_rng_chance(rng, 0.5) ? INT32_MAX : 1000;
    int32_t const end =
        (int32_t)test_rng_between(rng, test_rng_chance(rng, 0.5) ? most - 300 : count, most);
    key_block block = {.begin = ra_hd_max(0, end - count), .end = end};
    ra_run run = {0, 1, (int32_t)most, RA_RUN_NONE_LO, RA_RUN_NONE_HI};
    if (test_rng_chance(rng, 0.5))
        run.lo = (int32_t)-test_rng_between(rng, 0, 300);
    if (test_rng_chance(rng, 0.7))
        run.hi = (int32_t)test_rng_between(rng, ra_max_i64(0, end - 400), end);
    block.band = ra_run_band_of(&run, q_count);
    return block;
}

static bool is_live(const key_block *block, const panel_block *panel, int64_t b, int lane)
{
    int64_t const distance = b - (panel->a0 + lane);
    return b < block->end && distance >= block->band.lo && distance <= block->band.hi;
}

/* Rows of a block that are computed: what is live in them is kept, all else is dead; and no query
   of the panel sees any other key. */
static void check_masks(const key_block *block, const panel_block *panel)
{
    for (int32_t b = block->begin; b < block->end; ++b) {
        int32_t const k = b - block->begin - panel->from;
        for (int lane = 0; lane < panel->rows; ++lane) {
            bool const kept = panel->count > 0 && k >= 0 && k < panel->count &&
                              (!panel->masked || scores[k * PANEL + lane] == 1);
            cr_assert_eq(kept, is_live(block, panel, b, lane), "key %d of [%d, %d) lane %d of %d",
                         (int)b, (int)block->begin, (int)block->end, lane, (int)panel->a0);
        }
    }
    for (int32_t k = block->end - block->begin - panel->from; panel->masked && k < panel->count;
         ++k)
        for (int lane = 0; lane < panel->rows; ++lane)
            cr_assert_eq(scores[k * PANEL + lane], 0, "row %d after the last key", (int)k);
}

static void fill_ones(void)
{
    for (int i = 0; i < ROWS * PANEL; ++i)
        scores[i] = 1;
    for (int i = 0; i < ROWS * PRODUCT_ROWS; ++i)
        columns[i] = 1;
}

Test(panel_cpu, masks_what_no_query_sees_up_to_the_last_key_of_any_run)
{
    for (uint64_t i = 0; i < CASES; ++i) {
        test_rng rng = {i};
        int32_t const q_count = (int32_t)test_rng_between(&rng, 1, RA_TILE_ROWS_MAX);
        key_block const block = draw_block(&rng, q_count);
        for (int32_t a0 = 0; a0 < q_count; a0 += PANEL) {
            panel_block panel = panel_of(&block, a0, q_count);
            fill_ones();
            if (panel.count > 0)
                mask_panel(PRODUCT_VECS, &panel, block.band, 0, scores);
            check_masks(&block, &panel);
#ifdef RA_PAIRS
            panel = panel_of_pairs(&block, a0, q_count);
            fill_ones();
            if (panel.count > 0)
                mask_pairs(PRODUCT_VECS, &panel, &block, 0, scores);
            cr_assert(panel.count <= 0 ||
                      (panel.from % PAIR_KEYS == 0 && panel.count % PAIR_KEYS == 0));
            check_masks(&block, &panel);
#endif
        }
    }
}

/* Sums of ones: how many keys a query sees. */
Test(panel_cpu, sums_what_each_query_sees)
{
    for (uint64_t i = 0; i < CASES; ++i) {
        test_rng rng = {i};
        int32_t const q_count = (int32_t)test_rng_between(&rng, 1, PANEL);
        key_block const block = draw_block(&rng, q_count);
        panel_block const panel = panel_of(&block, 0, q_count);
        if (panel.count <= 0)
            continue;
        fill_ones();
        memset(sums, 0, sizeof(sums));
        weigh_panel_live(&panel, block.band, 1, columns, scores, one, sums);
        for (int lane = 0; lane < panel.rows; ++lane) {
            int live = 0;
            for (int32_t b = block.begin; b < block.end; ++b)
                live += is_live(&block, &panel, b, lane);
            cr_assert_eq(sums[lane], (float)live, "case %d lane %d", (int)i, lane);
        }
    }
}
