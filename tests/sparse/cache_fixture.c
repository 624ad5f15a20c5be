#include "sparse/cache_fixture.h"

#include "support/poison_memory.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

refusing_memory cache_memory, pool_memory;

void open_pool(fixture *f, ra_pool_mode mode, int64_t limit_bytes)
{
    pool_memory = (refusing_memory){.inner = ra_memory_poison(), .countdown = -1};
    cr_assert_eq(ra_ledger_create(limit_bytes, &f->ledger), RA_OK);
    ra_pool_config const config = {
        .mode = mode, .memory = ra_memory_refusing(&pool_memory), .ledger = f->ledger};
    cr_assert_eq(ra_pool_create(&config, &f->pool), RA_OK);
}

void open_cache(fixture *f, ra_cache_mode mode, int64_t entries, int64_t bytes)
{
    cache_memory = (refusing_memory){.inner = ra_memory_poison(), .countdown = -1};
    ra_pattern_cache_config const config = {.mode = mode,
                                            .entries = entries,
                                            .bytes = bytes,
                                            .memory = ra_memory_refusing(&cache_memory)};
    cr_assert_eq(ra_pattern_cache_create(&config, &f->cache), RA_OK);
}

fixture open_both(ra_cache_mode mode, int64_t entries, int64_t bytes)
{
    fixture f = {0};
    open_pool(&f, RA_POOL_OFF, INT64_MAX);
    open_cache(&f, mode, entries, bytes);
    ra_pattern_cache_attach(f.cache, f.pool);
    return f;
}

int64_t held_bytes(const ra_ledger *ledger, ra_category category)
{
    ra_ledger_snapshot now;
    ra_ledger_read(ledger, &now);
    return now.current_bytes[category];
}

void close_pool(fixture *f)
{
    ra_ledger_snapshot now;
    (void)ra_pool_trim(f->pool, 0);
    ra_ledger_read(f->ledger, &now);
    cr_assert_eq(now.reserved_bytes, 0, "%lld bytes leaked", (long long)now.reserved_bytes);
    ra_pool_destroy(f->pool);
    ra_ledger_destroy(f->ledger);
}

void close_both(fixture *f)
{
    ra_pattern_cache_detach(f->cache);
    ra_pattern_cache_destroy(f->cache);
    close_pool(f);
}

ra_cache_counts counts(const fixture *f)
{
    ra_cache_counts now;
    ra_pattern_cache_read(f->cache, &now);
    return now;
}

void ask_rows(fixture *f, const ra_pattern_config *config, int64_t seq, ra_range queries,
              ra_range keys, asked *a)
{
    cr_assert_eq(ra_pattern_create(config, seq, HEADS, f->pool, &a->pattern), RA_OK);
    cr_assert_eq(ra_rowset_init(f->pool, &queries, 1, &a->queries), RA_OK);
    cr_assert_eq(ra_rowset_init(f->pool, &keys, 1, &a->keys), RA_OK);
    a->request =
        (ra_map_request){a->pattern, {0, 1, HEADS}, &a->queries, &a->keys, TILE_ROWS, false};
}

void ask(fixture *f, const ra_pattern_config *config, int64_t seq, asked *a)
{
    ra_range const all = {0, 1, seq};
    ask_rows(f, config, seq, all, all, a);
}

void forget(fixture *f, asked *a)
{
    ra_rowset_fini(f->pool, &a->queries);
    ra_rowset_fini(f->pool, &a->keys);
    ra_pattern_destroy(a->pattern);
}

void expect_same_map(const ra_tilemap *a, const ra_tilemap *b)
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

void expect_as_built(fixture *f, const asked *a, const ra_tilemap *map)
{
    ra_tilemap built;
    cr_assert_eq(ra_pattern_cache_get(NULL, &a->request, f->pool, &built), RA_OK);
    cr_assert_null(built.entry);
    expect_same_map(map, &built);
    ra_pattern_cache_put(f->pool, &built);
}

/* Ask once, compare with what would be built, and give back; whether it was a hit. */
bool use(fixture *f, const asked *a)
{
    int64_t const hits = counts(f).hits;
    ra_tilemap map;
    cr_assert_eq(ra_pattern_cache_get(f->cache, &a->request, f->pool, &map), RA_OK);
    expect_as_built(f, a, &map);
    ra_pattern_cache_put(f->pool, &map);
    cr_assert_null(map.runs);
    return counts(f).hits > hits;
}

bool use_config(fixture *f, const ra_pattern_config *config)
{
    asked a;
    ask(f, config, SEQ, &a);
    bool const hit = use(f, &a);
    forget(f, &a);
    return hit;
}

ra_pattern_config window(int64_t left)
{
    ra_pattern_config config = ra_pattern_config_dense();
    config.causal = true;
    config.window_left = left;
    return config;
}

uint64_t seed(void)
{
    const char *text = getenv("RA_TEST_SEED");
    return text != NULL ? strtoull(text, NULL, 0) : 20261121;
}
