/*
 * Any pattern, right or wrong, is refused with one line or compiled; then its slices, its tile map
 * and its needed rows hold the definition's pairs, one by one, for any shards.
 */
#include "ringattn/tilemap.h"
#include "support/captured_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ_MAX = 48, HEADS_MAX = 4, LIST_MAX = 6 };

typedef struct reader {
    const uint8_t *data;
    size_t bytes;
} reader;

typedef struct trial {
    const ra_pattern *pattern;
    ra_pool *pool;
    int64_t seq;
    int32_t heads;
    ra_rowset queries, keys;
    uint16_t counts[HEADS_MAX][SEQ_MAX][SEQ_MAX];
} trial;

static captured_log said;

static void check(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "broken: %s\n", what);
        abort();
    }
}

static int64_t take(reader *in, int64_t low, int64_t high)
{
    uint8_t byte = 0;
    if (in->bytes > 0) {
        byte = *in->data++;
        in->bytes--;
    }
    return low + byte % (high - low + 1);
}

/* Numbers a pattern may hold: mostly small, sometimes far out or wrong. */
static int64_t take_number(reader *in)
{
    int64_t const kind = take(in, 0, 15);
    if (kind == 0)
        return INT32_MAX;
    if (kind == 1)
        return -take(in, 0, 3);
    return take(in, 0, kind < 8 ? 9 : SEQ_MAX + 2);
}

static int64_t take_list(reader *in, int64_t list[LIST_MAX])
{
    int64_t const count = take(in, 0, LIST_MAX);
    for (int64_t i = 0; i < count; i++)
        list[i] = take_number(in);
    return count;
}

typedef struct storage {
    int64_t documents[LIST_MAX + 1], block_rates[LIST_MAX], segments[LIST_MAX], rates[LIST_MAX];
    int32_t pairs[LIST_MAX][2];
} storage;

static void take_documents(reader *in, int64_t seq, storage *lists, ra_pattern_config *config)
{
    int64_t count = take_list(in, lists->documents), sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += lists->documents[i];
    /* Most lengths do not sum to seq by themselves. */
    if (take(in, 0, 7) != 0 && sum <= seq)
        lists->documents[count++] = seq - sum;
    config->documents = lists->documents;
    config->document_count = count;
}

static void take_blocks(reader *in, storage *lists, ra_pattern_config *config)
{
    config->blocks_kind = (ra_blocks_kind)take(in, RA_BLOCKS_NONE, RA_BLOCKS_LIST);
    config->block_size = take_number(in);
    config->block_width = take_number(in);
    config->block_globals = take_number(in);
    config->block_density = (double)take(in, 0, 20) / 20;
    config->block_seed = (uint64_t)take(in, 0, 255);
    if (take(in, 0, 1) == 1) {
        config->block_rate_count = take_list(in, lists->block_rates);
        config->block_rates = lists->block_rates;
    }
    config->block_pair_count = take(in, 0, LIST_MAX);
    for (int64_t i = 0; i < config->block_pair_count; i++) {
        lists->pairs[i][0] = (int32_t)take_number(in);
        lists->pairs[i][1] = (int32_t)take_number(in);
    }
    config->block_pairs = (const int32_t(*)[2])lists->pairs;
}

static void take_config(reader *in, int64_t seq, storage *lists, ra_pattern_config *config)
{
    int64_t const keys = take(in, 0, 31);
    *config = ra_pattern_config_dense();
    config->causal = (keys & 1) != 0;
    if (keys & 2) {
        config->window_left = take_number(in);
        config->window_right = take_number(in);
        config->sinks = take_number(in);
    }
    if (keys & 4)
        take_documents(in, seq, lists, config);
    if (keys & 8)
        take_blocks(in, lists, config);
    if (keys & 16) {
        config->branch_count = take_list(in, lists->segments);
        (void)take_list(in, lists->rates);
        config->segments = lists->segments;
        config->rates = lists->rates;
        config->dilated_heads = (ra_dilated_heads)take(in, RA_HEADS_ALL, RA_HEADS_GROUPED);
    }
}

/* Two ranges at most, the second behind the first. */
static void take_rows(reader *in, ra_pool *pool, int64_t seq, ra_rowset *rows)
{
    ra_range ranges[2];
    int64_t begin = 0;
    for (int i = 0; i < 2; i++) {
        ra_range *range = &ranges[i];
        range->begin = begin + take(in, 0, seq);
        range->stride = take(in, 1, 5);
        range->count = take(in, 0, seq);
        while (range->count > 0 && range->begin + (range->count - 1) * range->stride >= seq)
            range->count--;
        if (range->count > 0)
            begin = range->begin + (range->count - 1) * range->stride + 1;
    }
    check(ra_rowset_init(pool, ranges, 2, rows) == RA_OK, "a row set");
}

static ra_status count_slice(void *context, const ra_slice *slice)
{
    trial *t = context;
    for (int64_t a = 0; a < slice->q_count; a++) {
        for (int64_t b = 0; b < slice->k_count; b++) {
            if (b - a >= slice->lo && b - a <= slice->hi)
                t->counts[0][slice->q_begin + slice->stride * a]
                         [slice->k_begin + slice->stride * b]++;
        }
    }
    return RA_OK;
}

/* Slices of all layers of one head at a time, against the definition. */
static void check_slices(trial *t)
{
    int64_t live = 0;
    for (int32_t head = 0; head < t->heads; head++) {
        memset(t->counts[0], 0, sizeof(t->counts[0]));
        for (int32_t layer = 0; layer < ra_pattern_layer_count(t->pattern); layer++) {
            if (ra_heads_contain(ra_pattern_layer_heads(t->pattern, layer), head))
                check(ra_pattern_visit(t->pattern, layer, 0, t->seq, count_slice, t) == RA_OK,
                      "a visit");
        }
        for (int64_t i = 0; i < t->seq; i++) {
            for (int64_t j = 0; j < t->seq; j++) {
                int32_t const wanted = ra_pattern_multiplicity(t->pattern, head, i, j);
                check(t->counts[0][i][j] == wanted, "slices differ from the definition");
                live += wanted;
            }
        }
    }
    check(ra_pattern_area(t->pattern, (ra_range){0, 1, t->seq}) == live,
          "the area is not that of the pairs");
}

static void count_tile(trial *t, const ra_tilemap *map, ra_heads heads, const ra_tile *tile)
{
    for (uint32_t r = tile->run_begin; r < tile[1].run_begin; r++) {
        const ra_run *run = &map->runs[r];
        for (int64_t a = 0; a < tile->q_count; a++) {
            for (int64_t b = 0; b < run->k_count; b++) {
                if ((run->lo != RA_RUN_NONE_LO && b - a < run->lo) ||
                    (run->hi != RA_RUN_NONE_HI && b - a > run->hi))
                    continue;
                int64_t const i = tile->q_begin + a * tile->q_stride;
                int64_t const j = run->k_begin + b * run->k_stride;
                check(i < map->q_rows && j < map->k_rows, "a tile map that leaves its rows");
                for (int32_t head = 0; head < t->heads; head++)
                    t->counts[head][i][j] += ra_heads_contain(heads, head);
            }
        }
    }
}

static void check_tilemap(trial *t, int32_t tile_rows)
{
    ra_tilemap map = {0};
    ra_heads const heads = {0, 1, t->heads};
    check(ra_tilemap_init(
              &(ra_map_request){t->pattern, heads, &t->queries, &t->keys, tile_rows, false},
              t->pool, &map) == RA_OK,
          "a tile map");
    memset(t->counts, 0, sizeof(t->counts));
    for (int32_t layer = 0; layer < map.layer_count; layer++) {
        const ra_tile_layer *l = &map.layers[layer];
        for (uint32_t n = l->chunk_tile[0]; n < l->chunk_tile[map.chunk_count]; n++)
            count_tile(t, &map, l->heads, &map.tiles[n]);
    }
    for (int32_t head = 0; head < t->heads; head++) {
        for (int64_t x = 0; x < t->queries.row_count; x++) {
            for (int64_t y = 0; y < t->keys.row_count; y++) {
                int32_t const wanted =
                    ra_pattern_multiplicity(t->pattern, head, ra_rowset_global(&t->queries, x),
                                            ra_rowset_global(&t->keys, y));
                check(t->counts[head][x][y] == wanted, "a tile map differs from the definition");
            }
        }
    }
    ra_tilemap_fini(t->pool, &map);
}

static void check_needed(trial *t)
{
    ra_rowset needed, local;
    bool listed[SEQ_MAX] = {false};
    ra_heads const heads = {0, 1, t->heads};
    check(ra_pattern_needed_rows(t->pattern, heads, &t->queries, &t->keys, t->pool, &needed,
                                 &local) == RA_OK,
          "needed rows");
    check(needed.row_count == local.row_count, "two lists of needed rows that differ");
    for (int64_t x = 0; x < needed.row_count; x++) {
        int64_t const y = ra_rowset_global(&local, x);
        check(y < t->keys.row_count &&
                  ra_rowset_global(&t->keys, y) == ra_rowset_global(&needed, x),
              "two lists of needed rows that differ");
        check(!listed[y], "a needed row twice");
        listed[y] = true;
    }
    for (int64_t y = 0; y < t->keys.row_count; y++) {
        bool touched = false;
        for (int32_t head = 0; head < t->heads; head++) {
            for (int64_t x = 0; x < t->queries.row_count; x++)
                touched |= t->counts[head][x][y] > 0; /* of check_tilemap */
        }
        check(touched == listed[y], "needed rows are not those that are touched");
    }
    ra_rowset_fini(t->pool, &local);
    ra_rowset_fini(t->pool, &needed);
}

static void try_pattern(reader *in, trial *t)
{
    storage lists = {0};
    ra_pattern_config config;
    ra_pattern *pattern = NULL;
    t->seq = take(in, 1, SEQ_MAX);
    t->heads = (int32_t)take(in, 1, HEADS_MAX);
    take_config(in, t->seq, &lists, &config);
    said.count = 0;
    ra_status const status = ra_pattern_create(&config, t->seq, t->heads, t->pool, &pattern);
    if (status != RA_OK) {
        check(status == RA_ERR_CONFIG && said.count == 1,
              "a pattern refused, but not with one line");
        return;
    }
    check(said.count == 0, "a line for what is right");
    t->pattern = pattern;
    check_slices(t);
    take_rows(in, t->pool, t->seq, &t->queries);
    take_rows(in, t->pool, t->seq, &t->keys);
    check_tilemap(t, (int32_t)take(in, 1, 20));
    check_needed(t);
    ra_rowset_fini(t->pool, &t->keys);
    ra_rowset_fini(t->pool, &t->queries);
    ra_pattern_destroy(pattern);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static trial t; /* large, and begun anew by whoever counts in it */
    reader in = {.data = data, .bytes = bytes};
    ra_ledger *ledger = NULL;
    ra_ledger_snapshot snapshot;
    captured_log_begin(&said);
    check(ra_ledger_create(INT64_MAX, &ledger) == RA_OK, "a ledger");
    ra_pool_config const config = {
        .mode = RA_POOL_OFF, .memory = ra_memory_host(), .ledger = ledger};
    check(ra_pool_create(&config, &t.pool) == RA_OK, "a pool");
    try_pattern(&in, &t);
    ra_ledger_read(ledger, &snapshot);
    check(snapshot.reserved_bytes == 0, "bytes are left over");
    ra_pool_destroy(t.pool);
    ra_ledger_destroy(ledger);
    return 0;
}
