/* Which steps compute a chunk of queries, against the definition, pair by pair. */
#include "sparse/sparse_internal.h"
#include "support/poison_pool.h"
#include "support/random_pattern.h"

#include <criterion/criterion.h>
#include <stdlib.h>

enum { STEPS_MAX = 5 };

typedef struct chunk_case {
    test_pattern pattern;
    int64_t seq;
    int32_t heads, tile_rows, steps;
    ra_range queries, keys[STEPS_MAX];
} chunk_case;

/* The pattern points to arrays of the case itself. */
static void draw_case(test_rng *rng, chunk_case *c)
{
    c->seq = test_rng_between(rng, 1, 256);
    test_pattern_draw(rng, c->seq, &c->pattern);
    c->heads = (int32_t)test_rng_between(rng, 1, 3);
    c->tile_rows = (int32_t)test_rng_between(rng, 1, 40);
    c->steps = (int32_t)test_rng_between(rng, 1, STEPS_MAX);
    bool const striped = test_rng_chance(rng, 0.3);
    int64_t const begin = test_rng_between(rng, 0, c->seq - 1);
    c->queries = (ra_range){begin, 1, test_rng_between(rng, 1, c->seq - begin)};
    for (int i = 0; i < c->steps; ++i) {
        int64_t const from = c->seq * i / c->steps, to = c->seq * (i + 1) / c->steps;
        c->keys[i] = striped ? (ra_range){i, c->steps, (c->seq - i + c->steps - 1) / c->steps}
                             : (ra_range){from, 1, to - from};
    }
}

static bool is_live(const ra_pattern *pattern, const chunk_case *c, int64_t begin, int64_t end,
                    const ra_range *keys)
{
    for (int32_t head = 0; head < c->heads; ++head)
        for (int64_t q = begin; q < end; ++q)
            for (int64_t k = 0; k < keys->count; ++k)
                if (ra_pattern_multiplicity(pattern, head, c->queries.begin + q,
                                            keys->begin + keys->stride * k) > 0)
                    return true;
    return false;
}

/* Returns how many chunks carry state. */
static int check_chunks(const ra_pattern *pattern, const chunk_case *c, const ra_tilemap *map,
                        const ra_chunk_steps *found, int64_t carried)
{
    int64_t rows = 0;
    int count = 0, first_live = -1;
    for (int i = 0; i < c->steps && first_live < 0; ++i)
        first_live = is_live(pattern, c, 0, c->queries.count, &c->keys[i]) ? i : -1;
    for (int32_t chunk = 0; chunk < map->chunk_count; ++chunk) {
        int64_t const begin = (int64_t)chunk * map->chunk_rows, after = begin + map->chunk_rows;
        int64_t const end = after < c->queries.count ? after : c->queries.count;
        int first = -1, last = -1;
        for (int i = 0; i < c->steps; ++i) {
            if (!is_live(pattern, c, begin, end, &c->keys[i]))
                continue;
            first = first < 0 ? i : first;
            last = i;
        }
        if (first < 0)
            first = last = first_live;
        cr_assert_eq(found[chunk].first, first, "chunk %d", (int)chunk);
        cr_assert_eq(found[chunk].last, last, "chunk %d", (int)chunk);
        if (first == last)
            continue;
        cr_assert_eq(found[chunk].state_row, rows, "chunk %d: rows of state without a gap",
                     (int)chunk);
        rows += end - begin;
        ++count;
    }
    cr_assert_eq(carried, rows);
    return count;
}

/* Of several chunks, some but not all carry state. */
static bool check_case(const chunk_case *c, ra_pool *pool)
{
    ra_pattern *pattern;
    ra_rowset queries, keys[STEPS_MAX];
    ra_tilemap maps[STEPS_MAX];
    const ra_tilemap *list[STEPS_MAX];
    bool some = false;
    cr_assert_eq(ra_pattern_create(&c->pattern.config, c->seq, c->heads, pool, &pattern), RA_OK);
    cr_assert_eq(ra_rowset_init(pool, &c->queries, 1, &queries), RA_OK);
    for (int i = 0; i < c->steps; ++i) {
        cr_assert_eq(ra_rowset_init(pool, &c->keys[i], c->keys[i].count > 0, &keys[i]), RA_OK);
        ra_map_request const request = {pattern,  {0, 1, c->heads}, &queries,
                                        &keys[i], c->tile_rows,     false};
        cr_assert_eq(ra_tilemap_init(&request, pool, &maps[i]), RA_OK);
        list[i] = &maps[i];
    }
    const ra_tilemap *const live = ra_chunk_steps_map(list, c->steps);
    if (live != NULL) {
        ra_chunk_steps *const found = calloc((size_t)live->chunk_count, sizeof(*found));
        cr_assert_not_null(found);
        int64_t const carried = ra_chunk_steps_find(list, c->steps, found);
        int const count = check_chunks(pattern, c, live, found, carried);
        some = count > 0 && count < live->chunk_count;
        free(found);
    }
    for (int i = 0; i < c->steps; ++i) {
        ra_tilemap_fini(pool, &maps[i]);
        ra_rowset_fini(pool, &keys[i]);
    }
    ra_rowset_fini(pool, &queries);
    ra_pattern_destroy(pattern);
    return some;
}

Test(chunk_steps, are_those_of_the_definition_for_random_patterns, .timeout = 600)
{
    enum { CASES = 400, SOME_LEAST = CASES / 20 };
    test_rng rng = {11};
    ra_ledger *ledger;
    ra_pool *pool;
    int some = 0;
    poison_pool_begin(&ledger, &pool);
    for (int n = 0; n < CASES; ++n) {
        chunk_case c;
        draw_case(&rng, &c);
        some += check_case(&c, pool);
    }
    cr_expect_geq(some, SOME_LEAST, "%d cases had chunks of both kinds", some);
    poison_pool_end(ledger, pool);
}
