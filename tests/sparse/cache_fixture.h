/* A pattern cache, a pool, and memory that can refuse one request; what is asked of them. */
#ifndef TESTS_SPARSE_CACHE_FIXTURE_H
#define TESTS_SPARSE_CACHE_FIXTURE_H

#include "ringattn/pattern_cache.h"
#include "support/refusing_memory.h"

enum { SEQ = 3000, HEADS = 4, TILE_ROWS = 64 };

extern refusing_memory cache_memory, pool_memory;

typedef struct fixture {
    ra_ledger *ledger;
    ra_pool *pool;
    ra_pattern_cache *cache;
} fixture;

void open_pool(fixture *f, ra_pool_mode mode, int64_t limit_bytes);
void open_cache(fixture *f, ra_cache_mode mode, int64_t entries, int64_t bytes);
fixture open_both(ra_cache_mode mode, int64_t entries, int64_t bytes);
void close_pool(fixture *f); /* where nothing may be left */
void close_both(fixture *f);
int64_t held_bytes(const ra_ledger *ledger, ra_category category);
ra_cache_counts counts(const fixture *f);

/* A request with all that it borrows. */
typedef struct asked {
    ra_pattern *pattern;
    ra_rowset queries, keys;
    ra_map_request request;
} asked;

void ask_rows(fixture *f, const ra_pattern_config *config, int64_t seq, ra_range queries,
              ra_range keys, asked *a);
void ask(fixture *f, const ra_pattern_config *config, int64_t seq, asked *a);
void forget(fixture *f, asked *a);

void expect_same_map(const ra_tilemap *a, const ra_tilemap *b);
void expect_as_built(fixture *f, const asked *a, const ra_tilemap *map);
/* Ask once, compare with what would be built, and give back; whether it was a hit. */
bool use(fixture *f, const asked *a);
bool use_config(fixture *f, const ra_pattern_config *config);

/* RA_TEST_SEED, or the usual one. */
uint64_t seed(void);

/* Causal, and this many tokens to the left. */
ra_pattern_config window(int64_t left);

#endif
