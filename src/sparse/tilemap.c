/*
 * Cutting a pattern into a tile map.
 *
 * Per layer and chunk, the slices that meet the chunk's queries are restricted to the local numbers
 * of both row sets ("pieces"), grouped by the progression of queries they use, and cut at the
 * pieces' ends and at tile_rows. Each tile then lists its runs of keys. The whole is done twice:
 * once to count, once to fill arrays of exactly the right size.
 */
#include "ringattn/tilemap.h"

#include "internal.h"
#include "sparse/sparse_internal.h"

#include <stdlib.h>

enum { CHUNK_ROWS_MAX = 1 << 20 }; /* where no tiles share rows */

/* A slice in local numbers, ready to be cut. */
typedef struct piece {
    ra_local_slice s;
    int64_t residue; /* s.q_begin mod s.q_stride: with q_stride, the query progression */
} piece;

typedef struct builder {
    const ra_pattern *pattern;
    ra_heads heads;
    const ra_rowset *queries, *keys;
    ra_pool *pool;
    int64_t tile_rows, chunk_rows;
    const ra_row_piece *q_piece; /* while visiting: */
    ra_range q_rows;             /* the part of q_piece in the chunk */
    int64_t q_first;             /* local number of its first row */
    ra_vector pieces;            /* of piece, one chunk of one layer */
    ra_vector cuts;              /* of int64_t, one group of pieces */
    ra_tile *tiles;              /* NULL while counting */
    ra_run *runs;
    int64_t tile_count, run_count;
    ra_run open; /* the run that may still grow */
    bool has_open;
    int64_t area; /* live pairs of the layer, one head */
    bool shared;
} builder;

static ra_status add_pieces(builder *b, const ra_slice *slice, const ra_row_piece *keys)
{
    int64_t const phases = ra_slice_phases(slice, b->q_rows, keys->rows);
    for (int64_t phase = 0; phase < phases; ++phase) {
        ra_local_slice s;
        if (!ra_slice_restrict_loose(slice, b->q_rows, keys->rows, phase, &s))
            continue;
        ra_local_slice tight = s;
        int64_t q_cut, k_cut;
        if (!ra_band_trim(&q_cut, &tight.q_count, &k_cut, &tight.k_count, &tight.lo, &tight.hi))
            continue;
        s.q_begin += b->q_first;
        s.k_begin += keys->first;
        void *item;
        ra_status const status = ra_vector_push(b->pool, &b->pieces, sizeof(piece), &item);
        if (status != RA_OK)
            return status;
        *(piece *)item = (piece){s, s.q_begin % s.q_stride};
    }
    return RA_OK;
}

/* Visitor: a slice against the pieces of keys that its span meets. */
static ra_status collect(void *context, const ra_slice *slice)
{
    builder *b = context;
    const ra_rowset *keys = b->keys;
    int64_t const last = slice->k_begin + slice->stride * (slice->k_count - 1);
    int64_t i = 0;
    if (keys->sorted) { /* first piece that may reach k_begin */
        int64_t high = keys->piece_count;
        while (high - i > 1) {
            int64_t const middle = i + (high - i) / 2;
            if (keys->pieces[middle].rows.begin <= slice->k_begin)
                i = middle;
            else
                high = middle;
        }
    }
    for (; i < keys->piece_count; ++i) {
        const ra_range *rows = &keys->pieces[i].rows;
        if (rows->begin > last) {
            if (keys->sorted)
                break;
            continue;
        }
        ra_status const status = add_pieces(b, slice, &keys->pieces[i]);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

static int compare_pieces(const void *x, const void *y)
{
    const piece *a = x, *b = y;
    int64_t const left[] = {a->s.q_stride, a->residue, a->s.k_begin, a->s.q_begin, a->s.k_stride};
    int64_t const right[] = {b->s.q_stride, b->residue, b->s.k_begin, b->s.q_begin, b->s.k_stride};
    for (size_t i = 0; i < sizeof(left) / sizeof(left[0]); ++i)
        if (left[i] != right[i])
            return left[i] < right[i] ? -1 : 1;
    return 0;
}

static int32_t narrow(int64_t bound)
{
    if (bound <= RA_BAND_NONE_LO)
        return RA_RUN_NONE_LO;
    if (bound >= RA_BAND_NONE_HI)
        return RA_RUN_NONE_HI;
    return (int32_t)bound;
}

static bool is_full(ra_run run)
{
    return run.lo == RA_RUN_NONE_LO && run.hi == RA_RUN_NONE_HI;
}

static void close_run(builder *b)
{
    if (!b->has_open)
        return;
    if (b->runs != NULL)
        b->runs[b->run_count] = b->open;
    ++b->run_count;
    b->has_open = false;
}

/* A full run that goes on where a full one ended makes it longer. */
static void add_run(builder *b, ra_run run)
{
    if (b->has_open && is_full(b->open) && is_full(run) && b->open.k_stride == run.k_stride &&
        b->open.k_begin + (int64_t)b->open.k_count * b->open.k_stride == run.k_begin) {
        b->open.k_count += run.k_count;
        return;
    }
    close_run(b);
    b->open = run;
    b->has_open = true;
}

/* The keys of a piece that `count` of its queries, from its index `at` on, touch. */
static bool cut_run(const ra_local_slice *s, int64_t at, int64_t count, ra_run *run, int64_t *area)
{
    int64_t lo = s->lo <= RA_BAND_NONE_LO ? s->lo : s->lo + at;
    int64_t hi = s->hi >= RA_BAND_NONE_HI ? s->hi : s->hi + at;
    int64_t const first = ra_max_i64(0, lo);
    int64_t const last =
        hi >= RA_BAND_NONE_HI ? s->k_count - 1 : ra_min_i64(s->k_count - 1, count - 1 + hi);
    if (first > last)
        return false;
    int64_t const k_count = last - first + 1;
    if (lo > RA_BAND_NONE_LO)
        lo -= first;
    if (hi < RA_BAND_NONE_HI)
        hi -= first;
    if (lo <= -(count - 1))
        lo = RA_BAND_NONE_LO;
    if (hi >= k_count - 1)
        hi = RA_BAND_NONE_HI;
    *area = ra_slice_area(
        &(ra_slice){.q_count = count, .k_count = k_count, .stride = 1, .lo = lo, .hi = hi});
    *run = (ra_run){(int32_t)(s->k_begin + first * s->k_stride),
                    (int32_t)(k_count > 1 ? s->k_stride : 1), (int32_t)k_count, narrow(lo),
                    narrow(hi)};
    return true;
}

/* One tile: queries index, …, index + count - 1 of a group's progression. */
static void add_tile(builder *b, const piece *group, int64_t group_count, int64_t index,
                     int64_t count)
{
    int64_t const stride = group[0].s.q_stride, residue = group[0].residue;
    int64_t const run_begin = b->run_count;
    for (int64_t i = 0; i < group_count; ++i) {
        int64_t const at = index - (group[i].s.q_begin - residue) / stride;
        ra_run run;
        int64_t area;
        if (at < 0 || at >= group[i].s.q_count || !cut_run(&group[i].s, at, count, &run, &area))
            continue;
        b->area += area;
        add_run(b, run);
    }
    close_run(b);
    if (b->run_count == run_begin)
        return;
    if (b->tiles != NULL)
        b->tiles[b->tile_count] = (ra_tile){(int32_t)(residue + index * stride), (int32_t)stride,
                                            (int32_t)count, (uint32_t)run_begin};
    ++b->tile_count;
}

static int compare_i64(const void *a, const void *b)
{
    int64_t const x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Tiles of pieces that share a query progression: cut where one begins or ends, and at tile_rows.
 */
static ra_status cut_group(builder *b, const piece *group, int64_t group_count)
{
    int64_t const stride = group[0].s.q_stride, residue = group[0].residue;
    b->cuts.count = 0;
    for (int64_t i = 0; i < group_count; ++i) {
        int64_t const begin = (group[i].s.q_begin - residue) / stride;
        int64_t const ends[2] = {begin, begin + group[i].s.q_count};
        for (int side = 0; side < 2; ++side) {
            void *item;
            ra_status const status = ra_vector_push(b->pool, &b->cuts, sizeof(int64_t), &item);
            if (status != RA_OK)
                return status;
            *(int64_t *)item = ends[side];
        }
    }
    int64_t *cuts = b->cuts.block.data;
    qsort(cuts, (size_t)b->cuts.count, sizeof(*cuts), compare_i64);
    for (int64_t i = 0; i + 1 < b->cuts.count; ++i)
        for (int64_t at = cuts[i]; at < cuts[i + 1]; at += b->tile_rows)
            add_tile(b, group, group_count, at, ra_min_i64(b->tile_rows, cuts[i + 1] - at));
    return RA_OK;
}

static bool progressions_meet(const piece *a, const piece *b)
{
    int64_t const gcd = a->s.q_stride * b->s.q_stride / ra_lcm_i64(a->s.q_stride, b->s.q_stride);
    return (a->residue - b->residue) % gcd == 0;
}

static ra_status cut_chunk(builder *b)
{
    piece *pieces = b->pieces.block.data;
    int64_t const count = b->pieces.count;
    if (count > 0)
        qsort(pieces, (size_t)count, sizeof(*pieces), compare_pieces);
    for (int64_t begin = 0, end; begin < count; begin = end) {
        for (end = begin + 1; end < count && pieces[end].s.q_stride == pieces[begin].s.q_stride &&
                              pieces[end].residue == pieces[begin].residue;)
            ++end;
        /* Once is enough: rows shared with an earlier group are found from that one. */
        for (int64_t other = end; other < count && !b->shared; ++other)
            b->shared = progressions_meet(&pieces[begin], &pieces[other]);
        ra_status const status = cut_group(b, &pieces[begin], end - begin);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

/* All slices of a layer whose queries lie in local rows [begin, end), from query piece *at on. */
static ra_status collect_chunk(builder *b, int32_t layer, int64_t begin, int64_t end, int64_t *at)
{
    const ra_rowset *queries = b->queries;
    b->pieces.count = 0;
    while (queries->pieces[*at].first + queries->pieces[*at].rows.count <= begin)
        ++*at;
    for (int64_t i = *at; i < queries->piece_count && queries->pieces[i].first < end; ++i) {
        const ra_row_piece *from = &queries->pieces[i];
        b->q_first = ra_max_i64(begin, from->first);
        int64_t const last = ra_min_i64(end, from->first + from->rows.count);
        b->q_rows = (ra_range){from->rows.begin + from->rows.stride * (b->q_first - from->first),
                               from->rows.stride, last - b->q_first};
        ra_status const status =
            ra_pattern_visit(b->pattern, layer, b->q_rows.begin,
                             b->q_rows.stride * (b->q_rows.count - 1) + 1, collect, b);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

static ra_status cut_layer(builder *b, int32_t layer, int64_t chunk_count, uint32_t *chunk_tile)
{
    int64_t at = 0;
    for (int64_t c = 0; c < chunk_count; ++c) {
        int64_t const begin = c * b->chunk_rows;
        if (chunk_tile != NULL)
            chunk_tile[c] = (uint32_t)b->tile_count;
        ra_status status = collect_chunk(
            b, layer, begin, ra_min_i64(begin + b->chunk_rows, b->queries->row_count), &at);
        if (status == RA_OK)
            status = cut_chunk(b);
        if (status != RA_OK)
            return status;
    }
    if (chunk_tile != NULL)
        chunk_tile[chunk_count] = (uint32_t)b->tile_count;
    return RA_OK;
}

static bool heads_share(ra_heads a, ra_heads b)
{
    for (int32_t i = 0; i < a.count; ++i)
        if (ra_heads_contain(b, a.begin + i * a.stride))
            return true;
    return false;
}

static bool wants_layer(const builder *b, int32_t layer)
{
    return heads_share(b->pattern->layers[layer].heads, b->heads);
}

/* Rows per chunk: a full tile of the widest stride, less where tiles may share rows. */
static void choose_chunk_rows(builder *b)
{
    int64_t widest = 1;
    bool shared = b->shared;
    int64_t const q_stride = b->queries->piece_count > 0 ? b->queries->pieces[0].rows.stride : 1;
    for (int32_t i = 0; i < b->pattern->layer_count; ++i) {
        if (!wants_layer(b, i))
            continue;
        int64_t const stride = b->pattern->layers[i].stride;
        widest = ra_max_i64(widest, ra_lcm_i64(stride, q_stride) / q_stride);
        for (int32_t j = 0; j < i && !shared; ++j)
            shared = wants_layer(b, j) &&
                     heads_share(b->pattern->layers[i].heads, b->pattern->layers[j].heads);
    }
    b->shared = shared;
    int64_t const most = shared ? RA_SHARED_CHUNK_ROWS_MAX : CHUNK_ROWS_MAX;
    b->chunk_rows = ra_min_i64(b->tile_rows * ra_min_i64(widest, most), most);
    b->tile_rows = ra_min_i64(b->tile_rows, b->chunk_rows);
}

static int64_t chunk_count_of(const builder *b)
{
    return ra_div_ceil(b->queries->row_count, b->chunk_rows);
}

/* Count tiles and runs; where rows turn out to be shared, again with the smaller chunks. */
static ra_status count_all(builder *b, int32_t *layer_count)
{
    bool again;
    do {
        choose_chunk_rows(b);
        bool const was_shared = b->shared;
        *layer_count = 0;
        b->tile_count = b->run_count = 0;
        for (int32_t i = 0; i < b->pattern->layer_count; ++i) {
            if (!wants_layer(b, i))
                continue;
            ra_status const status = cut_layer(b, i, chunk_count_of(b), NULL);
            if (status != RA_OK)
                return status;
            ++*layer_count;
        }
        again = b->shared && !was_shared && b->chunk_rows > RA_SHARED_CHUNK_ROWS_MAX;
    } while (again);
    if (b->run_count < UINT32_MAX && b->tile_count < UINT32_MAX)
        return RA_OK;
    ra_log(RA_LOG_ERROR, "a tile map may have at most 2^32 - 2 runs: use larger blocks");
    return RA_ERR_UNSUPPORTED;
}

/* One block for all arrays, widest alignment first. */
static ra_status take_arrays(builder *b, int32_t layer_count, ra_tilemap *map)
{
    size_t const chunks = (size_t)chunk_count_of(b);
    size_t const layers_bytes = (size_t)layer_count * sizeof(ra_tile_layer);
    size_t const tiles_bytes = ((size_t)b->tile_count + 1) * sizeof(ra_tile);
    size_t const runs_bytes = (size_t)b->run_count * sizeof(ra_run);
    size_t const chunks_bytes = (size_t)layer_count * (chunks + 1) * sizeof(uint32_t);
    size_t const bytes = layers_bytes + tiles_bytes + runs_bytes + chunks_bytes;
    ra_status const status = ra_pool_alloc(b->pool, RA_MEM_TILEMAP, bytes, NULL, &map->block);
    if (status != RA_OK)
        return status;
    char *at = map->block.data;
    map->layers = (void *)at;
    map->tiles = (void *)(at += layers_bytes);
    map->runs = (void *)(at += tiles_bytes);
    uint32_t *chunk_tile = (void *)(at + runs_bytes);
    for (int32_t i = 0; i < layer_count; ++i)
        map->layers[i].chunk_tile = chunk_tile + (size_t)i * (chunks + 1);
    map->layer_count = layer_count;
    map->bytes = (int64_t)bytes;
    b->tiles = map->tiles;
    b->runs = map->runs;
    return RA_OK;
}

static ra_status fill_all(builder *b, ra_tilemap *map)
{
    int32_t next = 0;
    b->tile_count = b->run_count = 0;
    for (int32_t i = 0; i < b->pattern->layer_count; ++i) {
        if (!wants_layer(b, i))
            continue;
        ra_heads const heads = b->pattern->layers[i].heads;
        b->area = 0;
        ra_status const status = cut_layer(b, i, chunk_count_of(b), map->layers[next].chunk_tile);
        if (status != RA_OK)
            return status;
        map->layers[next++].heads = heads;
        int32_t wanted = 0;
        for (int32_t h = 0; h < heads.count; ++h)
            wanted += ra_heads_contain(b->heads, heads.begin + h * heads.stride);
        map->live_pairs += b->area * wanted;
    }
    map->tiles[b->tile_count] = (ra_tile){.q_stride = 1, .run_begin = (uint32_t)b->run_count};
    return RA_OK;
}

ra_status ra_tilemap_init(const ra_pattern *pattern, ra_heads heads, const ra_rowset *queries,
                          const ra_rowset *keys, int32_t tile_rows, ra_pool *pool,
                          ra_tilemap *map_out)
{
    RA_ASSERT(tile_rows >= 1);
    if (queries->row_count > INT32_MAX || keys->row_count > INT32_MAX) {
        ra_log(RA_LOG_ERROR, "a rank may own at most 2^31 - 1 rows: use more ranks");
        return RA_ERR_UNSUPPORTED;
    }
    builder b = {.pattern = pattern,
                 .heads = heads,
                 .queries = queries,
                 .keys = keys,
                 .pool = pool,
                 .tile_rows = tile_rows};
    ra_tilemap map = {0};
    int32_t layer_count;
    ra_status status = count_all(&b, &layer_count);
    if (status == RA_OK)
        status = take_arrays(&b, layer_count, &map);
    if (status == RA_OK)
        status = fill_all(&b, &map);
    ra_pool_free(pool, NULL, &b.pieces.block);
    ra_pool_free(pool, NULL, &b.cuts.block);
    if (status != RA_OK) {
        ra_tilemap_fini(pool, &map);
        return status;
    }
    map.q_rows = queries->row_count;
    map.k_rows = keys->row_count;
    map.tile_rows = (int32_t)b.tile_rows;
    map.chunk_rows = (int32_t)b.chunk_rows;
    map.chunk_count = (int32_t)chunk_count_of(&b);
    map.tile_count = (uint32_t)b.tile_count;
    map.run_count = (uint32_t)b.run_count;
    map.shared_rows = b.shared;
    *map_out = map;
    return RA_OK;
}

void ra_tilemap_fini(ra_pool *pool, ra_tilemap *map)
{
    ra_pool_free(pool, NULL, &map->block);
    *map = (ra_tilemap){0};
}
