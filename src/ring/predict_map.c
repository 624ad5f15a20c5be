/*
 * How large a tile map would be, chunk by chunk, without making it. In long shards some chunks are
 * counted, and stand for those around them.
 */
#include "internal.h"
#include "ring/predict_strips.h"

/* Tiles and runs of one layer's chunk. */
static ra_status count_chunk(ra_strip_mapper *m, int32_t layer, int64_t index)
{
    int64_t const begin = index * m->chunk_rows;
    int64_t const end = ra_min_i64(begin + m->chunk_rows, m->queries->row_count);
    m->strips.count = 0;
    m->tiles = m->runs = m->pairs = m->run_keys = 0;
    ra_status const status = m->job->request->ring.dense_mask
                                 ? ra_strips_gather_masked(m, layer, begin, end)
                                 : ra_strips_gather(m, layer, begin, end, &m->strips);
    return status == RA_OK ? ra_strips_count(m) : status;
}

static void choose_rows(ra_strip_mapper *m, ra_heads heads)
{
    ra_tilemap_choose_chunks(m->job->pattern, heads, m->queries, &m->shared, &m->tile_rows,
                             &m->chunk_rows);
}

/* Where look `i` of `looks` begins: it stands for the chunks up to the next. A quarter are single
   chunks at either end, where rows meet other ranks' keys; the others are evenly spread. */
static int64_t look_begin(int64_t i, int64_t looks, int64_t chunks)
{
    int64_t const edge = looks / 4, inner = looks - 2 * edge;
    if (i <= edge)
        return i;
    return i >= looks - edge ? chunks - (looks - i)
                             : edge + (chunks - 2 * edge) * (i - edge) / inner;
}

/* The looks of a layer, and the chunks with a live pair at hand. */
typedef struct live_chunks {
    int32_t layer;
    int64_t looks, chunks;
    int64_t begin, first; /* of a range of them, and the look that it begins in */
    int64_t at;           /* the chunk looked at last */
    bool live;            /* whether that is in the range */
} live_chunks;

/* The rows of [l->begin, end) that each of the looks up to `last` stands for. */
static ra_status add_live(ra_strip_mapper *m, const live_chunks *l, int64_t end, int64_t last)
{
    ra_status status = RA_OK;
    for (int64_t i = l->first; i <= last && status == RA_OK; ++i) {
        int64_t const from = ra_max_i64(l->begin, look_begin(i, l->looks, l->chunks));
        int64_t const to = ra_min_i64(end, look_begin(i + 1, l->looks, l->chunks));
        int64_t const rows =
            ra_min_i64(to * m->chunk_rows, m->queries->row_count) - from * m->chunk_rows;
        if (to > from)
            status = ra_predict_look_at(m->looks, l->looks, i, rows);
    }
    return status;
}

/* Chunk `at`, which look `i` is at, has a live pair or none. If the one before it was different,
   find where that changes, by halving. */
static ra_status note_look(ra_strip_mapper *m, live_chunks *l, int64_t i, int64_t at, bool live)
{
    int64_t before = l->at, after = i > 0 ? at : 0;
    bool const changes = i > 0 ? live != l->live : live;
    ra_status status = RA_OK;
    while (changes && after - before > 1 && status == RA_OK) {
        int64_t const middle = before + (after - before) / 2;
        status = count_chunk(m, l->layer, middle);
        *((m->runs > 0) == live ? &after : &before) = middle;
    }
    if (changes && live) {
        l->begin = after;
        l->first = ra_max_i64(0, i - 1);
    } else if (changes && status == RA_OK) {
        status = add_live(m, l, after, i);
    }
    l->at = at;
    l->live = live;
    return status;
}

/* Count all chunks of a layer, or some. */
static ra_status count_layer(ra_strip_mapper *m, int32_t layer, int64_t chunks, int64_t chunks_max,
                             double heads, ra_map_size *size)
{
    int64_t const some = ra_max_i64(RA_PREDICT_CHUNKS_LEAST, chunks_max / RA_PREDICT_SPARED) + 1;
    int64_t const looks = chunks - 1 <= chunks_max ? chunks : some;
    bool const notes = m->looks != NULL && m->chunk_rows == m->looks->chunk_rows;
    live_chunks l = {.layer = layer, .looks = looks, .chunks = chunks};
    ra_status status = RA_OK;
    for (int64_t i = 0; i < looks && m->keys->row_count > 0 && status == RA_OK; ++i) {
        int64_t const begin = look_begin(i, looks, chunks), end = look_begin(i + 1, looks, chunks);
        int64_t const at = begin + (end - begin) / 2;
        status = count_chunk(m, layer, at);
        if (status != RA_OK)
            return status;
        double const weight = (double)(end - begin);
        size->tiles += weight * m->tiles;
        size->runs += weight * m->runs;
        size->pairs += weight * heads * m->pairs;
        size->keys += weight * heads * m->run_keys;
        if (notes)
            status = note_look(m, &l, i, at, m->runs > 0);
    }
    return status == RA_OK && l.live ? add_live(m, &l, chunks, looks - 1) : status;
}

static ra_status count_layers(ra_strip_mapper *m, ra_heads heads, int64_t chunks_max,
                              int32_t *layers, ra_map_size *size)
{
    *size = (ra_map_size){0};
    *layers = 0;
    int64_t const chunks = ra_div_ceil(m->queries->row_count, m->chunk_rows);
    if (m->looks != NULL)
        ra_predict_begin_looks(m->looks, m->chunk_rows, chunks);
    for (int32_t i = 0; i < ra_pattern_layer_count(m->job->pattern); ++i) {
        ra_heads const layer = ra_pattern_layer_heads(m->job->pattern, i);
        int32_t const wanted = ra_heads_common(layer, heads);
        if (wanted == 0)
            continue;
        ++*layers;
        ra_status const status = count_layer(m, i, chunks, chunks_max, wanted, size);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

ra_status ra_predict_map(ra_predict_job *job, ra_heads heads, const ra_rowset *queries,
                         const ra_predict_keys *keys, int64_t chunks_max, ra_predict_looks *looks,
                         ra_map_size *size_out)
{
    double const all = (double)ra_max_i64(1, keys->set.row_count);
    ra_strip_mapper m = {.job = job,
                         .queries = queries,
                         .keys = &keys->set,
                         .share = (double)ra_max_i64(1, keys->row_count) / all,
                         .tile_rows = job->request->tile_rows,
                         .looks = looks};
    ra_map_size size;
    int32_t layers = 0;
    choose_rows(&m, heads);
    bool const was_shared = m.shared;
    ra_status status = count_layers(&m, heads, chunks_max, &layers, &size);
    /* Rows that turn out to be shared take the smaller chunks. */
    if (status == RA_OK && m.shared && !was_shared && m.chunk_rows > RA_SHARED_CHUNK_ROWS_MAX) {
        choose_rows(&m, heads);
        status = count_layers(&m, heads, chunks_max, &layers, &size);
    }
    job->pieces = ra_max_i64(job->pieces, m.strips.most + m.bands.most);
    ra_strips_free(&m);
    if (status != RA_OK)
        return status;
    int64_t const chunks = ra_div_ceil(queries->row_count, m.chunk_rows);
    size.rows = queries->row_count;
    if (looks != NULL && size.runs > 0)
        ra_predict_end_looks(looks, m.chunk_rows, &size.rows);
    size.bytes = layers * ((int64_t)sizeof(ra_tile_layer) + 4 * (chunks + 1)) +
                 (int64_t)((size.tiles + 1) * sizeof(ra_tile) + size.runs * sizeof(ra_run));
    if (job->request->maps_by_keys && job->request->ring.backward)
        size.bytes += ra_tilemap_index_bytes((int64_t)size.runs);
    if (job->request->ring.dense_mask)
        size.mask_bytes = ra_predict_mask_bytes(layers, queries->row_count, keys->row_count);
    size.k_rows = keys->row_count;
    size.is_empty = keys->set.piece_count == 0;
    if (job->request->cache == RA_CACHE_EAGER || size.is_empty) /* else none is kept */
        size.kept_bytes = ra_predict_entry_bytes(
            job, heads, queries->piece_count + keys->piece_count, size.bytes);
    job->sampled = job->sampled || (chunks - 1 > chunks_max && keys->set.row_count > 0);
    *size_out = size;
    return RA_OK;
}
