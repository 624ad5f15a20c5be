/* The pattern cache: maps from it are those that would be built, and its bounds hold. */
#include "ringattn/pattern_cache.h"

#include "support/poison_memory.h"
#include "support/random_pattern.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ = 3000, HEADS = 4, TILE_ROWS = 64 };

/* ---- a cache, a pool, and memory that can refuse ------------------------------------------------
 */

typedef struct refusing_memory {
    int64_t refuse_at; /* negative: never */
    atomic_llong requests;
} refusing_memory;

static refusing_memory cache_memory, pool_memory;

static size_t refusing_round(const ra_memory *memory, size_t bytes)
{
    ra_memory const host = ra_memory_poison();
    (void)memory;
    return host.ops->round(&host, bytes);
}

static ra_status refusing_alloc(const ra_memory *memory, size_t bytes, void **ptr_out)
{
    refusing_memory *self = memory->self;
    ra_memory const host = ra_memory_poison();
    return atomic_fetch_add(&self->requests, 1) == self->refuse_at
               ? RA_ERR_NO_MEMORY
               : host.ops->alloc(&host, bytes, ptr_out);
}

static void refusing_free(const ra_memory *memory, void *ptr, size_t bytes)
{
    ra_memory const host = ra_memory_poison();
    (void)memory;
    host.ops->free(&host, ptr, bytes);
}

static ra_status refusing_available(const ra_memory *memory, int64_t *bytes_out)
{
    ra_memory const host = ra_memory_poison();
    (void)memory;
    return host.ops->available(&host, bytes_out);
}

static const ra_memory_ops refusing_ops = {.name = "refusing",
                                           .round = refusing_round,
                                           .alloc = refusing_alloc,
                                           .free = refusing_free,
                                           .available = refusing_available};

typedef struct fixture {
    ra_ledger *ledger;
    ra_pool *pool;
    ra_pattern_cache *cache;
} fixture;

static int logged;

static void count_line(void *context, ra_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
    ++logged;
}

static void open_pool(fixture *f, int64_t limit_bytes)
{
    ra_memory const memory = {&refusing_ops, &pool_memory};
    pool_memory.refuse_at = -1;
    cr_assert_eq(ra_ledger_create(limit_bytes, &f->ledger), RA_OK);
    cr_assert_eq(ra_pool_create(&(ra_pool_config){.memory = memory, .ledger = f->ledger}, &f->pool),
                 RA_OK);
}

static void open_cache(fixture *f, ra_cache_mode mode, int64_t entries, int64_t bytes)
{
    cache_memory.refuse_at = -1;
    cache_memory.requests = 0;
    ra_pattern_cache_config const config = {
        .mode = mode, .entries = entries, .bytes = bytes, .memory = {&refusing_ops, &cache_memory}};
    cr_assert_eq(ra_pattern_cache_create(&config, &f->cache), RA_OK);
}

static fixture open_both(ra_cache_mode mode, int64_t entries, int64_t bytes)
{
    fixture f = {0};
    open_pool(&f, INT64_MAX);
    open_cache(&f, mode, entries, bytes);
    ra_pattern_cache_attach(f.cache, f.pool);
    return f;
}

static int64_t held_bytes(const ra_ledger *ledger, ra_category category)
{
    ra_ledger_snapshot now;
    ra_ledger_read(ledger, &now);
    return now.current_bytes[category];
}

static void close_pool(fixture *f)
{
    ra_ledger_snapshot now;
    ra_ledger_read(f->ledger, &now);
    cr_assert_eq(now.reserved_bytes, 0, "%lld bytes leaked", (long long)now.reserved_bytes);
    ra_pool_destroy(f->pool);
    ra_ledger_destroy(f->ledger);
}

static void close_both(fixture *f)
{
    ra_pattern_cache_detach(f->cache);
    ra_pattern_cache_destroy(f->cache);
    close_pool(f);
}

static ra_cache_counts counts(const fixture *f)
{
    ra_pattern_cache_stats stats;
    ra_pattern_cache_read(f->cache, &stats);
    return stats.host;
}

/* ---- requests and maps -------------------------------------------------------------------------
 */

/* A request with all that it borrows. */
typedef struct asked {
    ra_pattern *pattern;
    ra_rowset queries, keys;
    ra_map_request request;
} asked;

static void ask_rows(fixture *f, const ra_pattern_config *config, int64_t seq, ra_range queries,
                     ra_range keys, asked *a)
{
    cr_assert_eq(ra_pattern_create(config, seq, HEADS, f->pool, &a->pattern), RA_OK);
    cr_assert_eq(ra_rowset_init(f->pool, &queries, 1, &a->queries), RA_OK);
    cr_assert_eq(ra_rowset_init(f->pool, &keys, 1, &a->keys), RA_OK);
    a->request = (ra_map_request){a->pattern, {0, 1, HEADS}, &a->queries, &a->keys, TILE_ROWS};
}

static void ask(fixture *f, const ra_pattern_config *config, int64_t seq, asked *a)
{
    ra_range const all = {0, 1, seq};
    ask_rows(f, config, seq, all, all, a);
}

static void forget(fixture *f, asked *a)
{
    ra_rowset_fini(f->pool, &a->queries);
    ra_rowset_fini(f->pool, &a->keys);
    ra_pattern_destroy(a->pattern);
}

static void expect_same_map(const ra_tilemap *a, const ra_tilemap *b)
{
    cr_assert(a->q_rows == b->q_rows && a->k_rows == b->k_rows && a->tile_rows == b->tile_rows &&
              a->chunk_rows == b->chunk_rows && a->chunk_count == b->chunk_count &&
              a->layer_count == b->layer_count && a->tile_count == b->tile_count &&
              a->run_count == b->run_count && a->shared_rows == b->shared_rows &&
              a->live_pairs == b->live_pairs && a->bytes == b->bytes);
    for (int32_t i = 0; i < a->layer_count; ++i) {
        cr_assert_eq(memcmp(&a->layers[i].heads, &b->layers[i].heads, sizeof(ra_heads)), 0);
        cr_assert_eq(memcmp(a->layers[i].chunk_tile, b->layers[i].chunk_tile,
                            (size_t)(a->chunk_count + 1) * sizeof(uint32_t)),
                     0);
    }
    cr_assert_eq(memcmp(a->tiles, b->tiles, ((size_t)a->tile_count + 1) * sizeof(ra_tile)), 0);
    cr_assert(a->run_count == 0 ||
              memcmp(a->runs, b->runs, (size_t)a->run_count * sizeof(ra_run)) == 0);
}

static void expect_as_built(fixture *f, const asked *a, const ra_tilemap *map)
{
    ra_tilemap built;
    cr_assert_eq(ra_pattern_cache_get(NULL, &a->request, f->pool, &built), RA_OK);
    cr_assert_null(built.entry);
    expect_same_map(map, &built);
    ra_pattern_cache_put(f->pool, &built);
}

/* Ask once, compare with what would be built, and give back; whether it was a hit. */
static bool use(fixture *f, const asked *a)
{
    int64_t const hits = counts(f).hits;
    ra_tilemap map;
    cr_assert_eq(ra_pattern_cache_get(f->cache, &a->request, f->pool, &map), RA_OK);
    expect_as_built(f, a, &map);
    ra_pattern_cache_put(f->pool, &map);
    cr_assert_null(map.runs);
    return counts(f).hits > hits;
}

static bool use_config(fixture *f, const ra_pattern_config *config)
{
    asked a;
    ask(f, config, SEQ, &a);
    bool const hit = use(f, &a);
    forget(f, &a);
    return hit;
}

static ra_pattern_config window(int64_t left)
{
    ra_pattern_config config = ra_pattern_config_dense();
    config.causal = true;
    config.window_left = left;
    return config;
}

/* ---- modes -------------------------------------------------------------------------------------
 */

Test(pattern_cache, eager_keeps_a_map_at_once)
{
    fixture f = open_both(RA_CACHE_EAGER, 8, 1 << 20);
    ra_pattern_config const config = window(100);
    cr_assert_not(use_config(&f, &config));
    cr_assert(use_config(&f, &config));
    cr_assert(use_config(&f, &config));
    ra_cache_counts const now = counts(&f);
    cr_assert(now.hits == 2 && now.misses == 1 && now.entries == 1 && now.evictions == 0);
    cr_assert_eq(held_bytes(f.ledger, RA_MEM_PATTERN_CACHE), now.bytes);
    close_both(&f);
}

Test(pattern_cache, lazy_keeps_a_map_when_it_is_asked_for_again)
{
    fixture f = open_both(RA_CACHE_LAZY, 8, 1 << 20);
    ra_pattern_config const config = window(100), other = window(101);
    cr_assert_not(use_config(&f, &config));
    cr_assert_eq(counts(&f).entries, 0);
    cr_assert_eq(held_bytes(f.ledger, RA_MEM_PATTERN_CACHE), 0);
    cr_assert_not(use_config(&f, &other));
    cr_assert_not(use_config(&f, &config));
    cr_assert_eq(counts(&f).entries, 1);
    cr_assert(use_config(&f, &config));
    close_both(&f);
}

Test(pattern_cache, off_keeps_nothing_and_counts_nothing)
{
    fixture f = open_both(RA_CACHE_OFF, 8, 1 << 20);
    ra_pattern_config const config = window(100);
    for (int i = 0; i < 3; ++i)
        cr_assert_not(use_config(&f, &config));
    cr_assert_eq(counts(&f).misses, 0);
    close_both(&f);
}

Test(pattern_cache, holders_of_one_map_share_its_arrays)
{
    fixture f = open_both(RA_CACHE_EAGER, 8, 1 << 20);
    ra_pattern_config const config = window(100);
    ra_tilemap maps[3];
    asked a;
    ask(&f, &config, SEQ, &a);
    for (int i = 0; i < 3; ++i)
        cr_assert_eq(ra_pattern_cache_get(f.cache, &a.request, f.pool, &maps[i]), RA_OK);
    cr_assert(maps[1].runs == maps[0].runs && maps[2].runs == maps[0].runs);
    for (int i = 0; i < 3; ++i)
        ra_pattern_cache_put(f.pool, &maps[i]);
    forget(&f, &a);
    close_both(&f);
}

/* A copy would show as tilemap bytes beside the entry's. */
Test(pattern_cache, a_map_that_is_kept_is_built_where_it_is_kept)
{
    fixture f = open_both(RA_CACHE_EAGER, 8, 64 << 20);
    ra_pattern_config config = ra_pattern_config_dense();
    config.blocks_kind = RA_BLOCKS_DILATED_SPARSE;
    config.block_size = 16;
    config.block_density = 0.1;
    asked a;
    ask(&f, &config, 1 << 16, &a);
    ra_tilemap map;
    cr_assert_eq(ra_pattern_cache_get(f.cache, &a.request, f.pool, &map), RA_OK);
    ra_ledger_snapshot now;
    ra_ledger_read(f.ledger, &now);
    cr_assert_gt(map.bytes, 1 << 20);
    cr_assert_lt(now.peak_bytes[RA_MEM_TILEMAP], map.bytes / 8);
    cr_assert_geq(now.current_bytes[RA_MEM_PATTERN_CACHE], map.bytes);
    cr_assert_leq(now.current_bytes[RA_MEM_PATTERN_CACHE], map.bytes + 16384);
    ra_pattern_cache_put(f.pool, &map);
    forget(&f, &a);
    close_both(&f);
}

/* ---- keys --------------------------------------------------------------------------------------
 */

static uint64_t seed(void)
{
    const char *text = getenv("RA_TEST_SEED");
    return text != NULL ? strtoull(text, NULL, 0) : 20261121;
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

/* Expects `other` to find the entry that `config` has made. */
static void expect_shared(ra_pattern_config config, ra_pattern_config other, const char *what)
{
    fixture f = open_both(RA_CACHE_EAGER, 8, 1 << 20);
    use_config(&f, &config);
    cr_assert(use_config(&f, &other), "%s", what);
    close_both(&f);
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

/* ---- bounds ------------------------------------------------------------------------------------
 */

static void expect_bounds(const fixture *f, int64_t entries, int64_t bytes)
{
    ra_cache_counts const now = counts(f);
    ra_ledger_snapshot ledger;
    ra_ledger_read(f->ledger, &ledger);
    cr_assert_leq(now.entries, entries);
    cr_assert_leq(now.bytes, bytes);
    cr_assert_eq(now.bytes, ledger.current_bytes[RA_MEM_PATTERN_CACHE]);
    cr_assert_leq(ledger.peak_bytes[RA_MEM_PATTERN_CACHE], bytes);
}

Test(pattern_cache, never_passes_its_bounds_and_gives_equal_maps_when_thrashing)
{
    static const int64_t bounds[] = {1, 1500, 5000, 20000, 1 << 20};
    for (size_t b = 0; b < sizeof(bounds) / sizeof(bounds[0]); ++b)
        for (int64_t entries = 1; entries <= 16; entries *= 4) {
            fixture f = open_both(RA_CACHE_EAGER, entries, bounds[b]);
            test_rng rng = {seed() + b};
            for (int n = 0; n < 60; ++n) {
                ra_pattern_config const config = window(test_rng_between(&rng, 1, 12) * 50);
                use_config(&f, &config);
                expect_bounds(&f, entries, bounds[b]);
            }
            close_both(&f);
        }
}

Test(pattern_cache, the_least_recently_used_map_leaves_first)
{
    fixture f = open_both(RA_CACHE_EAGER, 2, 1 << 20);
    ra_pattern_config const a = window(1), b = window(2), c = window(3);
    use_config(&f, &a);
    use_config(&f, &b);
    cr_assert(use_config(&f, &a));
    use_config(&f, &c); /* b leaves */
    cr_assert_eq(counts(&f).evictions, 1);
    cr_assert(use_config(&f, &a));
    cr_assert(use_config(&f, &c));
    cr_assert_not(use_config(&f, &b));
    close_both(&f);
}

Test(pattern_cache, a_map_that_leaves_while_in_use_lives_until_it_is_put_back)
{
    fixture f = open_both(RA_CACHE_EAGER, 1, 1 << 20);
    ra_pattern_config const config = window(1);
    asked a;
    ask(&f, &config, SEQ, &a);
    ra_tilemap map;
    cr_assert_eq(ra_pattern_cache_get(f.cache, &a.request, f.pool, &map), RA_OK);
    int64_t const bytes = counts(&f).bytes;
    int64_t const before = held_bytes(f.ledger, RA_MEM_TILEMAP);
    ra_pattern_cache_clear(f.cache);
    cr_assert_eq(counts(&f).entries, 0);
    cr_assert_eq(held_bytes(f.ledger, RA_MEM_PATTERN_CACHE), 0);
    cr_assert_eq(held_bytes(f.ledger, RA_MEM_TILEMAP), before + bytes);
    expect_as_built(&f, &a, &map);
    for (int64_t left = 2; left < 5; ++left) { /* others come and go meanwhile */
        ra_pattern_config const other = window(left);
        use_config(&f, &other);
    }
    expect_as_built(&f, &a, &map);
    ra_pattern_cache_put(f.pool, &map);
    cr_assert_eq(held_bytes(f.ledger, RA_MEM_TILEMAP), before);
    forget(&f, &a);
    close_both(&f);
}

Test(pattern_cache, clear_forgets_first_uses_too)
{
    fixture f = open_both(RA_CACHE_LAZY, 8, 1 << 20);
    ra_pattern_config const config = window(1);
    use_config(&f, &config);
    ra_pattern_cache_clear(f.cache);
    use_config(&f, &config);
    cr_assert_eq(counts(&f).entries, 0);
    use_config(&f, &config);
    cr_assert_eq(counts(&f).entries, 1);
    ra_pattern_cache_clear(f.cache);
    cr_assert_eq(held_bytes(f.ledger, RA_MEM_PATTERN_CACHE), 0);
    close_both(&f);
}

Test(pattern_cache, smaller_bounds_take_hold_at_once)
{
    fixture f = open_both(RA_CACHE_EAGER, 8, 1 << 20);
    for (int64_t left = 1; left <= 8; ++left) {
        ra_pattern_config const config = window(left);
        use_config(&f, &config);
    }
    int64_t const bytes = counts(&f).bytes;
    ra_pattern_cache_resize(f.cache, 3, 1 << 20);
    cr_assert_eq(counts(&f).entries, 3);
    ra_pattern_config const last = window(8);
    cr_assert(use_config(&f, &last));
    ra_pattern_cache_resize(f.cache, 8, bytes / 8);
    cr_assert_eq(counts(&f).entries, 1);
    cr_assert_eq(counts(&f).evictions, 7);
    ra_pattern_cache_resize(f.cache, 8, 1);
    cr_assert_eq(held_bytes(f.ledger, RA_MEM_PATTERN_CACHE), 0);
    close_both(&f);
}

/* ---- memory ------------------------------------------------------------------------------------
 */

Test(pattern_cache, what_is_kept_is_counted_in_the_pool_at_hand)
{
    fixture f = open_both(RA_CACHE_EAGER, 8, 1 << 20);
    ra_pattern_config const config = window(7), other = window(8);
    use_config(&f, &config);
    use_config(&f, &other);
    int64_t const bytes = counts(&f).bytes;
    ra_pattern_cache_detach(f.cache);
    close_pool(&f);
    open_pool(&f, INT64_MAX);
    cr_assert_eq(held_bytes(f.ledger, RA_MEM_PATTERN_CACHE), 0);
    ra_pattern_cache_attach(f.cache, f.pool);
    cr_assert_eq(held_bytes(f.ledger, RA_MEM_PATTERN_CACHE), bytes);
    cr_assert(use_config(&f, &config));
    ra_pattern_cache_detach(f.cache);
    close_pool(&f);
    open_pool(&f, bytes - 1); /* no room for both */
    ra_log_set_handler(count_line, NULL);
    ra_pattern_cache_attach(f.cache, f.pool);
    cr_assert_eq(logged, 0);
    cr_assert_eq(counts(&f).entries, 1);
    close_both(&f);
}

Test(pattern_cache, memory_that_is_refused_to_the_cache_fails_nobody)
{
    ra_pattern_config const config = window(7);
    ra_log_set_handler(count_line, NULL);
    for (int64_t n = 0; n < 3; ++n) {
        fixture f = open_both(RA_CACHE_EAGER, 8, 1 << 20);
        cache_memory.refuse_at = n;
        for (int64_t i = 0; i < 3; ++i)
            cr_assert_eq(use_config(&f, &config), n == 0 ? i > 1 : i > 0);
        cr_assert_eq(logged, 0);
        close_both(&f);
    }
}

Test(pattern_cache, idle_maps_make_way_under_a_limit)
{
    fixture f = {0};
    ra_log_set_handler(count_line, NULL);
    open_pool(&f, 24 << 10);
    open_cache(&f, RA_CACHE_EAGER, 100, 1 << 20);
    ra_pattern_cache_attach(f.cache, f.pool);
    for (int64_t left = 1; left < 40; ++left) {
        ra_pattern_config const config = window(left);
        asked a;
        ra_tilemap map;
        ask(&f, &config, SEQ / 4, &a);
        cr_assert_eq(ra_pattern_cache_get(f.cache, &a.request, f.pool, &map), RA_OK);
        ra_pattern_cache_put(f.pool, &map);
        forget(&f, &a);
    }
    cr_assert_eq(logged, 0);
    cr_assert_gt(counts(&f).evictions, 0);
    cr_assert_gt(counts(&f).entries, 1);
    close_both(&f);
}

/* The n-th request of either memory is refused. */
Test(pattern_cache, survives_the_nth_failure_without_a_leak)
{
    ra_pattern_config config = window(7);
    config.blocks_kind = RA_BLOCKS_DILATED_SPARSE;
    config.block_size = 16;
    config.block_density = 0.5;
    int failures = 0;
    bool done = false;
    for (int64_t n = 0; !done; ++n) {
        fixture f = open_both(RA_CACHE_EAGER, 8, 1 << 20);
        asked a;
        ask(&f, &config, SEQ, &a);
        pool_memory.refuse_at = pool_memory.requests + n;
        ra_tilemap map;
        ra_status const status = ra_pattern_cache_get(f.cache, &a.request, f.pool, &map);
        cr_assert(status == RA_OK || status == RA_ERR_NO_MEMORY);
        failures += status != RA_OK;
        cr_assert_eq(counts(&f).entries, status == RA_OK);
        done = pool_memory.requests <= pool_memory.refuse_at;
        pool_memory.refuse_at = -1;
        if (status == RA_OK) {
            expect_as_built(&f, &a, &map);
            ra_pattern_cache_put(f.pool, &map);
        }
        cr_assert_eq(held_bytes(f.ledger, RA_MEM_PATTERN_CACHE), counts(&f).bytes);
        use(&f, &a);
        cr_assert(use(&f, &a));
        forget(&f, &a);
        close_both(&f);
    }
    cr_assert_gt(failures, 1);
}

/* ---- threads -----------------------------------------------------------------------------------
 */

enum { THREADS = 4, ROUNDS = 150, PATTERNS = 12, HELD = 3 };

typedef struct worker {
    fixture *f;
    asked *asked;
    const ra_tilemap *built;
    int number;
    pthread_t thread;
} worker;

static void *work(void *argument)
{
    worker *w = argument;
    test_rng rng = {seed() + (uint64_t)w->number};
    ra_tilemap held[HELD] = {{0}};
    int which[HELD] = {0};
    for (int n = 0; n < ROUNDS; ++n) {
        int const i = n % HELD;
        if (held[i].runs != NULL)
            expect_same_map(&held[i], &w->built[which[i]]);
        ra_pattern_cache_put(w->f->pool, &held[i]);
        which[i] = (int)test_rng_between(&rng, 0, PATTERNS - 1);
        cr_assert_eq(
            ra_pattern_cache_get(w->f->cache, &w->asked[which[i]].request, w->f->pool, &held[i]),
            RA_OK);
        if (n == ROUNDS / 2 && w->number == 0)
            ra_pattern_cache_clear(w->f->cache);
        if (n % 40 == 20 && w->number == 1)
            ra_pattern_cache_resize(w->f->cache, n % 80 == 20 ? 2 : 6, 30000);
    }
    for (int i = 0; i < HELD; ++i)
        ra_pattern_cache_put(w->f->pool, &held[i]);
    return NULL;
}

Test(pattern_cache, is_safe_from_several_threads)
{
    fixture f = open_both(RA_CACHE_LAZY, 6, 30000);
    asked asked_for[PATTERNS];
    ra_tilemap built[PATTERNS];
    worker workers[THREADS];
    for (int i = 0; i < PATTERNS; ++i) {
        ra_pattern_config const config = window(10 + 40 * i);
        ask(&f, &config, SEQ, &asked_for[i]);
        cr_assert_eq(ra_pattern_cache_get(NULL, &asked_for[i].request, f.pool, &built[i]), RA_OK);
    }
    for (int t = 0; t < THREADS; ++t) {
        workers[t] = (worker){&f, asked_for, built, t, 0};
        cr_assert_eq(pthread_create(&workers[t].thread, NULL, work, &workers[t]), 0);
    }
    for (int t = 0; t < THREADS; ++t)
        pthread_join(workers[t].thread, NULL);
    ra_cache_counts const now = counts(&f);
    cr_assert_eq(now.hits + now.misses, THREADS * ROUNDS);
    cr_assert_gt(now.hits, 0);
    expect_bounds(&f, 6, 30000);
    for (int i = 0; i < PATTERNS; ++i) {
        ra_pattern_cache_put(f.pool, &built[i]);
        forget(&f, &asked_for[i]);
    }
    close_both(&f);
}
