/* Keys of the pattern cache: what changes a map is in them, and nothing else. */
#include "sparse/cache_fixture.h"
#include "support/random_pattern.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* Whether all keys have one hash: they must be told apart all the same. */
static bool hashes_meet;

uint64_t __real_ra_map_key_hash(const ra_map_request *request, size_t *bytes_out);
uint64_t __wrap_ra_map_key_hash(const ra_map_request *request, size_t *bytes_out);
uint64_t __wrap_ra_map_key_hash(const ra_map_request *request, size_t *bytes_out)
{
    uint64_t const hash = __real_ra_map_key_hash(request, bytes_out);
    return hashes_meet ? 1 : hash;
}

/* Change one field of what is asked for; some changes change nothing. */
static void change(test_rng *rng, test_pattern *p, asked *a)
{
    ra_pattern_config *c = &p->config;
    switch (test_rng_between(rng, 0, 14)) {
    case 0:
        c->causal = !c->causal;
        break;
    case 1:
        c->window_left = test_rng_between(rng, -1, 40);
        break;
    case 2:
        c->window_right = test_rng_between(rng, -1, 40);
        break;
    case 3:
        c->sinks = test_rng_between(rng, 0, 3);
        break;
    case 4:
        c->block_size += c->blocks_kind != RA_BLOCKS_LIST;
        break;
    case 5:
        c->block_width = test_rng_between(rng, 0, 3);
        break;
    case 6:
        c->block_density = (double)test_rng_between(rng, 0, 4) / 4;
        break;
    case 7:
        c->block_globals = test_rng_between(rng, 0, 3);
        break;
    case 8:
        c->block_seed += 1;
        break;
    case 9:
        if (c->block_pair_count > 0)
            c->block_pair_count -= 1;
        break;
    case 10:
        if (c->branch_count > 0)
            p->segments[0] += 1;
        break;
    case 11:
        if (c->branch_count > 0)
            p->rates[0] += 1;
        break;
    case 12:
        c->dilated_heads = c->dilated_heads == RA_HEADS_ALL ? RA_HEADS_GROUPED : RA_HEADS_ALL;
        break;
    case 13:
        a->request.tile_rows = (int32_t)test_rng_between(rng, 1, 9);
        break;
    default:
        a->request.heads.count = (int32_t)test_rng_between(rng, 1, HEADS);
        break;
    }
}

/* One cache for all cases: whatever is found must be what the fields at hand would build. */
Test(pattern_cache, every_field_that_changes_a_map_is_in_its_key)
{
    enum { CASES = 400, CHANGES = 8 };
    fixture f = open_both(RA_CACHE_EAGER, 64, 1 << 22);
    test_rng rng = {seed()};
    for (int n = 0; n < CASES; ++n) {
        test_pattern p;
        char text[512];
        int64_t const seq = test_rng_between(&rng, 1, 90);
        test_pattern_draw(&rng, seq, &p);
        for (int i = 0; i < CHANGES; ++i) {
            ra_range const queries = {test_rng_between(&rng, 0, 1), test_rng_between(&rng, 1, 2),
                                      seq / 2};
            asked a;
            ask_rows(&f, &p.config, seq, queries, (ra_range){0, 1, seq}, &a);
            if (i > 0)
                change(&rng, &p, &a);
            int32_t const tile_rows = a.request.tile_rows;
            ra_heads const heads = a.request.heads;
            forget(&f, &a);
            ask_rows(&f, &p.config, seq, queries, (ra_range){0, 1, seq}, &a);
            a.request.tile_rows = tile_rows;
            a.request.heads = heads;
            use(&f, &a);
            test_pattern_print(&p.config, text, sizeof(text));
            cr_assert(use(&f, &a), "not found again: %s (RA_TEST_SEED %llu)", text,
                      (unsigned long long)seed());
            forget(&f, &a);
        }
    }
    cr_assert_gt(counts(&f).evictions, 0);
    close_both(&f);
}

Test(pattern_cache, row_sets_and_sequences_of_other_lengths_are_told_apart)
{
    fixture f = open_both(RA_CACHE_EAGER, 64, 1 << 22);
    static const ra_range ranges[] = {
        {0, 1, 100}, {0, 1, 101}, {1, 1, 100}, {0, 2, 100}, {0, 1, 99}};
    ra_pattern_config const config = window(30);
    for (int side = 0; side < 2; ++side)
        for (int i = 0; i < 5; ++i) {
            asked a;
            ra_range const all = {0, 1, 400};
            ask_rows(&f, &config, 400, side == 0 ? ranges[i] : all, side == 0 ? all : ranges[i],
                     &a);
            cr_assert_not(use(&f, &a));
            cr_assert(use(&f, &a));
            forget(&f, &a);
        }
    ra_pattern_config const dense = ra_pattern_config_dense();
    for (int64_t seq = 400; seq < 404; ++seq) {
        asked a;
        ask_rows(&f, &dense, seq, ranges[0], ranges[0], &a);
        cr_assert_not(use(&f, &a), "seq %lld", (long long)seq);
        forget(&f, &a);
    }
    close_both(&f);
}

/* Equally many blocks, and the same pairs of them. */
Test(pattern_cache, lists_of_blocks_of_other_sizes_are_told_apart)
{
    static const int32_t pairs[][2] = {{0, 0}, {1, 1}};
    fixture f = open_both(RA_CACHE_EAGER, 8, 1 << 22);
    ra_pattern_config config = ra_pattern_config_dense();
    config.blocks_kind = RA_BLOCKS_LIST;
    config.block_pairs = pairs;
    config.block_pair_count = 2;
    for (int i = 0; i < 6; ++i) {
        config.block_size = SEQ / 2 + i % 3;
        cr_assert_eq(use_config(&f, &config), i >= 3, "time %d", i);
    }
    close_both(&f);
}

Test(pattern_cache, maps_by_keys_are_told_apart_from_others)
{
    fixture f = open_both(RA_CACHE_EAGER, 8, 1 << 22);
    ra_pattern_config const config = window(30);
    asked a;
    ask(&f, &config, SEQ, &a);
    for (int i = 0; i < 4; ++i) {
        a.request.by_keys = i % 2 != 0;
        cr_assert_eq(use(&f, &a), i >= 2, "time %d", i);
    }
    forget(&f, &a);
    close_both(&f);
}

Test(pattern_cache, maps_of_other_heads_are_told_apart)
{
    fixture f = open_both(RA_CACHE_EAGER, 8, 1 << 22);
    ra_pattern_config const config = window(30);
    static const ra_heads heads[] = {{0, 1, 2}, {0, 2, 2}, {1, 1, 2}, {0, 1, 3}};
    asked a;
    ask(&f, &config, SEQ, &a);
    for (int i = 0; i < 8; ++i) {
        a.request.heads = heads[i % 4];
        cr_assert_eq(use(&f, &a), i >= 4, "time %d", i);
    }
    forget(&f, &a);
    close_both(&f);
}

Test(pattern_cache, branches_of_heads_that_are_not_asked_for_change_nothing)
{
    static const int64_t segments[3][2] = {{64, 128}, {64, 256}, {32, 128}}, rates[2] = {1, 2};
    fixture f = open_both(RA_CACHE_EAGER, 8, 1 << 22);
    ra_pattern_config config = ra_pattern_config_dense();
    config.rates = rates;
    config.branch_count = 2;
    config.dilated_heads = RA_HEADS_GROUPED; /* of 4 heads the first two have the first branch */
    for (int i = 0; i < 3; ++i) {
        asked a;
        config.segments = segments[i];
        ask(&f, &config, SEQ, &a);
        a.request.heads = (ra_heads){0, 1, 2};
        cr_assert_eq(use(&f, &a), i == 1, "segments %d", i);
        forget(&f, &a);
    }
    close_both(&f);
}

/* Head 1 has no row in the branch of segments of one token. But where heads are in several branches
   chunks are smaller, and maps say that rows may be shared. */
Test(pattern_cache, branches_that_a_head_has_no_rows_in_are_told_apart)
{
    static const int64_t segments[2] = {1, SEQ}, rates[2] = {4, 4};
    fixture f = open_both(RA_CACHE_EAGER, 8, 1 << 22);
    ra_pattern_config config = ra_pattern_config_dense();
    config.rates = rates;
    for (int i = 0; i < 4; ++i) {
        asked a;
        config.branch_count = 2 - i % 2;
        config.segments = &segments[i % 2];
        ask(&f, &config, SEQ, &a);
        a.request.heads = (ra_heads){1, 1, 1};
        cr_assert_eq(use(&f, &a), i >= 2, "time %d", i);
        forget(&f, &a);
    }
    close_both(&f);
}

Test(pattern_cache, maps_whose_keys_have_one_hash_are_told_apart)
{
    fixture f = open_both(RA_CACHE_EAGER, 16, 1 << 22);
    hashes_meet = true;
    for (int i = 0; i < 24; ++i) {
        ra_pattern_config const config = window(10 + i % 12);
        cr_assert_eq(use_config(&f, &config), i >= 12, "time %d", i);
    }
    hashes_meet = false;
    close_both(&f);
}

/* Expects `other` to find the entry that `config` has made. */
static void expect_shared(ra_pattern_config config, ra_pattern_config other, const char *what)
{
    fixture f = open_both(RA_CACHE_EAGER, 8, 1 << 20);
    use_config(&f, &config);
    cr_assert(use_config(&f, &other), "%s", what);
    close_both(&f);
}

/* In numbers of 8 bytes: eleven lengths, four of bands, the kind of blocks and their size, and what
   the comments say. */
Test(pattern_cache, a_key_holds_what_describes_the_pattern_and_its_rows_and_no_more)
{
    enum { BLOCKS = 10, FIXED = 11 + 4 + 2 + 6 /* a layer */ + 2 /* where its document begins */ };
    static const int32_t pairs[3][2] = {{1, 1}, {1, 2}, {4, 4}}; /* two runs */
    static const struct {
        ra_blocks_kind kind;
        int64_t numbers;
    } cases[] = {{RA_BLOCKS_NONE, 0},
                 {RA_BLOCKS_LOCAL_WINDOW, 1},
                 {RA_BLOCKS_GLOBAL_LOCAL, 2},
                 {RA_BLOCKS_RANDOM, 2},
                 {RA_BLOCKS_DILATED_SPARSE, 1 + 2}, /* distances 1 and 2 */
                 {RA_BLOCKS_LIST, BLOCKS + 1 + 2}};
    ra_ledger *ledger;
    ra_pool *pool;
    cr_assert_eq(ra_ledger_create(INT64_MAX, &ledger), RA_OK);
    cr_assert_eq(
        ra_pool_create(&(ra_pool_config){.memory = ra_memory_host(), .ledger = ledger}, &pool),
        RA_OK);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ra_pattern *pattern;
        ra_pattern_config config = ra_pattern_config_dense();
        config.blocks_kind = cases[i].kind;
        config.block_size = cases[i].kind != RA_BLOCKS_NONE ? 16 : 0;
        config.block_density = 0.5; /* 5 of 10 blocks */
        config.block_pairs = pairs;
        config.block_pair_count = cases[i].kind == RA_BLOCKS_LIST ? 3 : 0;
        cr_assert_eq(ra_pattern_create(&config, BLOCKS * 16, 1, pool, &pattern), RA_OK);
        cr_expect_eq(ra_pattern_cache_key_bytes(pattern, (ra_heads){0, 1, 1}, 3),
                     (size_t)(8 * (FIXED + 4 * 3 + cases[i].numbers)), "kind %d: %zu bytes", (int)i,
                     ra_pattern_cache_key_bytes(pattern, (ra_heads){0, 1, 1}, 3));
        ra_pattern_destroy(pattern);
    }
    ra_pool_destroy(pool);
    ra_ledger_destroy(ledger);
}

Test(pattern_cache, fields_that_change_nothing_share_an_entry)
{
    ra_pattern_config causal = ra_pattern_config_dense(), other;
    causal.causal = true;
    expect_shared(causal, window(SEQ), "below the window it is plain causal");
    other = causal;
    other.window_right = 0;
    expect_shared(causal, other, "causality hides what a window would allow to the right");
    other = ra_pattern_config_dense();
    other.window_right = 0;
    expect_shared(causal, other, "a window that ends at the query is causality");
    other = causal;
    other.sinks = 4;
    expect_shared(causal, other, "sinks without a window");
    other = causal;
    other.block_size = 64;
    other.block_seed = 3;
    expect_shared(causal, other, "sizes of blocks that are not there");
    ra_pattern_config blocks = causal;
    blocks.blocks_kind = RA_BLOCKS_LOCAL_WINDOW;
    blocks.block_size = 100;
    blocks.block_width = 30;
    other = blocks;
    other.block_width = 31;
    other.block_density = 0.5;
    expect_shared(blocks, other, "neighbours beyond the sequence, and a density not asked for");
    static const int32_t pairs[3][2] = {{1, 1}, {1, 2}, {0, 0}};
    static const int32_t sorted[4][2] = {{0, 0}, {1, 1}, {1, 2}, {1, 2}};
    blocks.blocks_kind = RA_BLOCKS_LIST;
    blocks.block_pairs = pairs;
    blocks.block_pair_count = 3;
    other = blocks;
    other.block_pairs = sorted;
    other.block_pair_count = 4;
    expect_shared(blocks, other, "listed blocks in another order, some twice");
}
