/*
 * What tile maps cost to build, and to find in the pattern cache. Not a test:
 *     build/release/tests/sparse/cache_bench [TOKENS [PATTERN]]
 * with a pattern's name, or the beginning of it, as printed.
 */
#include "ringattn/pattern_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HEADS = 8, TILE_ROWS = 256, NAME_BYTES = 24, CASES_MAX = 10, HITS = 20 };

static const int64_t segments[] = {2048, 4096, 8192}, rates[] = {1, 2, 4};

static const int64_t small_rates[] = {1, 2, 4, 8};

typedef struct bench_case {
    char name[NAME_BYTES];
    ra_pattern_config config;
} bench_case;

typedef struct bench {
    ra_ledger *ledger;
    ra_pool *pool;
    int64_t tokens;
} bench;

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

static void check(ra_status status)
{
    if (status != RA_OK)
        exit(1); /* what failed has been logged */
}

static ra_pattern_config blocks(ra_blocks_kind kind)
{
    ra_pattern_config config = ra_pattern_config_dense();
    config.blocks_kind = kind;
    config.block_size = 128;
    config.block_width = 1;
    config.block_globals = 1;
    config.block_density = 0.02;
    return config;
}

/* Every other neighbourhood of blocks, as a list: its key is as long as the list. */
static ra_pattern_config listed(int64_t tokens)
{
    ra_pattern_config config = blocks(RA_BLOCKS_LIST);
    int64_t const rows = (tokens + config.block_size - 1) / config.block_size;
    enum { PER_ROW = 32 };
    int32_t(*pairs)[2] = calloc((size_t)rows * PER_ROW, sizeof(*pairs));
    if (pairs == NULL)
        exit(1);
    for (int64_t i = 0; i < rows * PER_ROW; ++i) {
        pairs[i][0] = (int32_t)(i / PER_ROW);
        pairs[i][1] = (int32_t)((i / PER_ROW + 2 * (i % PER_ROW)) % rows);
    }
    config.block_pairs = (const int32_t(*)[2])pairs;
    config.block_pair_count = rows * PER_ROW;
    return config;
}

static int list_cases(int64_t tokens, bench_case cases[CASES_MAX])
{
    ra_pattern_config const dense = ra_pattern_config_dense();
    ra_pattern_config causal = dense, window = dense, dilated = dense;
    causal.causal = true;
    window.causal = true;
    window.window_left = 4095;
    window.sinks = 4;
    dilated.segments = segments;
    dilated.rates = rates;
    dilated.branch_count = 3;
    ra_pattern_config small = blocks(RA_BLOCKS_DILATED_SPARSE);
    small.block_size = 1;
    small.block_rates = small_rates;
    small.block_rate_count = 4;
    bench_case const all[] = {
        {"dense", dense},
        {"causal", causal},
        {"window 4096, sinks", window},
        {"dilated", dilated},
        {"blocks local_window", blocks(RA_BLOCKS_LOCAL_WINDOW)},
        {"blocks dilated_sparse", blocks(RA_BLOCKS_DILATED_SPARSE)},
        {"blocks global_local", blocks(RA_BLOCKS_GLOBAL_LOCAL)},
        {"blocks random", blocks(RA_BLOCKS_RANDOM)},
        {"tokens dilated_sparse", small},
        {"blocks list", listed(tokens)},
    };
    memcpy(cases, all, sizeof(all));
    return (int)(sizeof(all) / sizeof(all[0]));
}

/* Median time of a hit on a map that is kept. */
static double hit_ms(bench *b, const ra_map_request *request)
{
    ra_pattern_cache_config const config = {RA_CACHE_EAGER, 1, INT64_MAX / 4, ra_memory_host()};
    ra_pattern_cache *cache;
    double times[HITS];
    check(ra_pattern_cache_create(&config, &cache));
    ra_pattern_cache_attach(cache, b->pool);
    for (int i = -1; i < HITS; ++i) { /* the first one builds it */
        ra_tilemap map;
        double const begin_ms = now_ms();
        check(ra_pattern_cache_get(cache, request, b->pool, &map));
        ra_pattern_cache_put(b->pool, &map);
        double const ms = now_ms() - begin_ms;
        int at = i;
        for (; at > 0 && times[at - 1] > ms; --at)
            times[at] = times[at - 1];
        if (at >= 0)
            times[at] = ms;
    }
    ra_cache_counts counts;
    ra_pattern_cache_read(cache, &counts);
    if (counts.hits != HITS)
        exit(1);
    ra_pattern_cache_detach(cache);
    ra_pattern_cache_destroy(cache);
    return times[HITS / 2];
}

static void measure(bench *b, const bench_case *c)
{
    ra_pattern *pattern;
    ra_rowset rows;
    ra_tilemap map;
    ra_range const all = {0, 1, b->tokens};
    double const begin_ms = now_ms();
    check(ra_pattern_create(&c->config, b->tokens, HEADS, b->pool, &pattern));
    check(ra_rowset_init(b->pool, &all, 1, &rows));
    double const made_ms = now_ms();
    check(ra_tilemap_init(
        &(ra_map_request){pattern, (ra_heads){0, 1, HEADS}, &rows, &rows, TILE_ROWS, false},
        b->pool, &map));
    double const built_ms = now_ms();
    int64_t const area = ra_pattern_area(pattern, all);
    double const area_ms = now_ms();
    if (area != map.live_pairs)
        exit(1);
    ra_map_request const request = {pattern, {0, 1, HEADS}, &rows, &rows, TILE_ROWS, false};
    double const build_ms = built_ms - made_ms, hit = hit_ms(b, &request);
    printf("%-22s %10.2f %10.2f %10.2f %10.5f %10.0f %12lld %10u\n", c->name, made_ms - begin_ms,
           build_ms, area_ms - built_ms, hit, build_ms / hit, (long long)map.bytes, map.run_count);
    ra_tilemap_fini(b->pool, &map);
    ra_rowset_fini(b->pool, &rows);
    ra_pattern_destroy(pattern);
}

int main(int count, char **arguments)
{
    bench b = {.tokens = count > 1 ? strtoll(arguments[1], NULL, 10) : 1 << 20};
    bench_case cases[CASES_MAX];
    check(ra_ledger_create(INT64_MAX, &b.ledger));
    check(
        ra_pool_create(&(ra_pool_config){.memory = ra_memory_host(), .ledger = b.ledger}, &b.pool));
    printf("%-22s %10s %10s %10s %10s %10s %12s %10s\n", "pattern", "create ms", "build ms",
           "area ms", "hit ms", "build/hit", "map bytes", "runs");
    int const n = list_cases(b.tokens, cases);
    for (int i = 0; i < n; ++i)
        if (count < 3 || strncmp(cases[i].name, arguments[2], strlen(arguments[2])) == 0)
            measure(&b, &cases[i]);
    free((void *)(uintptr_t)cases[n - 1].config.block_pairs);
    ra_pool_destroy(b.pool);
    ra_ledger_destroy(b.ledger);
    return 0;
}
