/* A pattern and its tile map for a kernel, in a pool of poisoned memory of their own. */
#ifndef TESTS_SPARSE_MAPPED_H
#define TESTS_SPARSE_MAPPED_H

#include "ringattn/tilemap.h"
#include "support/poison_pool.h"

typedef struct mapped_config {
    const ra_pattern_config *pattern;
    int64_t rows;
    int32_t heads, tile_rows;
    bool by_keys;
    const ra_range *queries; /* NULL: all rows */
    int query_ranges;
    int64_t limit_bytes; /* 0: none */
} mapped_config;

typedef struct mapped {
    ra_ledger *ledger;
    ra_pool *pool;
    ra_pattern *pattern;
    ra_rowset queries, keys; /* keys are all rows */
    ra_tilemap map;
} mapped;

static inline mapped mapped_make(const mapped_config *c)
{
    bool const some = c->queries != NULL;
    ra_range const all = {0, 1, c->rows};
    mapped m = {0};
    poison_pool_begin_within(c->limit_bytes != 0 ? c->limit_bytes : INT64_MAX, &m.ledger, &m.pool);
    cr_assert_eq(ra_pattern_create(c->pattern, c->rows, c->heads, m.pool, &m.pattern), RA_OK);
    cr_assert_eq(
        ra_rowset_init(m.pool, some ? c->queries : &all, some ? c->query_ranges : 1, &m.queries),
        RA_OK);
    cr_assert_eq(ra_rowset_init(m.pool, &all, 1, &m.keys), RA_OK);
    ra_map_request const request = {m.pattern, {0, 1, c->heads}, &m.queries,
                                    &m.keys,   c->tile_rows,     c->by_keys};
    cr_assert_eq(ra_tilemap_init(&request, m.pool, &m.map), RA_OK);
    return m;
}

/** Whatever else was taken from the pool is to have been given back. */
static inline void mapped_free(mapped *m)
{
    ra_tilemap_fini(m->pool, &m->map);
    ra_rowset_fini(m->pool, &m->keys);
    ra_rowset_fini(m->pool, &m->queries);
    ra_pattern_destroy(m->pattern);
    poison_pool_end(m->ledger, m->pool);
}

#endif
