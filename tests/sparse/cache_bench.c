/*
 * What tile maps cost to build. Not a test:
 *     build/release/tests/sparse/cache_bench [TOKENS [PATTERN]]
 * with a pattern's name, or the beginning of it, as printed.
 */
#include "ringattn/tilemap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HEADS = 8, TILE_ROWS = 256, NAME_BYTES = 24 };

static const int64_t segments[] = {2048, 4096, 8192}, rates[] = {1, 2, 4};

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

static int list_cases(bench_case cases[8])
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
    bench_case const all[] = {
        {"dense", dense},
        {"causal", causal},
        {"window 4096, sinks", window},
        {"dilated", dilated},
        {"blocks local_window", blocks(RA_BLOCKS_LOCAL_WINDOW)},
        {"blocks dilated_sparse", blocks(RA_BLOCKS_DILATED_SPARSE)},
        {"blocks global_local", blocks(RA_BLOCKS_GLOBAL_LOCAL)},
        {"blocks random", blocks(RA_BLOCKS_RANDOM)},
    };
    memcpy(cases, all, sizeof(all));
    return (int)(sizeof(all) / sizeof(all[0]));
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
    check(
        ra_tilemap_init(pattern, (ra_heads){0, 1, HEADS}, &rows, &rows, TILE_ROWS, b->pool, &map));
    double const built_ms = now_ms();
    int64_t const area = ra_pattern_area(pattern, all);
    double const area_ms = now_ms();
    if (area != map.live_pairs)
        exit(1);
    printf("%-22s %10.2f %10.2f %10.2f %12lld %10u\n", c->name, made_ms - begin_ms,
           built_ms - made_ms, area_ms - built_ms, (long long)map.bytes, map.run_count);
    ra_tilemap_fini(b->pool, &map);
    ra_rowset_fini(b->pool, &rows);
    ra_pattern_destroy(pattern);
}

int main(int count, char **arguments)
{
    bench b = {.tokens = count > 1 ? strtoll(arguments[1], NULL, 10) : 1 << 20};
    bench_case cases[8];
    check(ra_ledger_create(INT64_MAX, &b.ledger));
    check(
        ra_pool_create(&(ra_pool_config){.memory = ra_memory_host(), .ledger = b.ledger}, &b.pool));
    printf("%-22s %10s %10s %10s %12s %10s\n", "pattern", "create ms", "build ms", "area ms",
           "map bytes", "runs");
    int const n = list_cases(cases);
    for (int i = 0; i < n; ++i)
        if (count < 3 || strncmp(cases[i].name, arguments[2], strlen(arguments[2])) == 0)
            measure(&b, &cases[i]);
    ra_pool_destroy(b.pool);
    ra_ledger_destroy(b.ledger);
    return 0;
}
