/*
 * How large a tile map would be, chunk by chunk, without making it. Of long shards every n-th chunk
 * is looked at, the first and the last among them, and stands for those up to the next.
 */
#include "internal.h"
#include "ring/predict_job.h"

#include <math.h>
#include <stdlib.h>

/* A slice between one piece of queries and one piece of keys: queries residue + stride * x. */
typedef struct strip {
    int64_t stride, residue, begin, count; /* x from begin on */
    int64_t k_begin, k_stride, k_count, lo, hi;
    ra_range keys; /* the same in the sequence */
    double chance; /* that a block of them is kept */
} strip;

typedef struct mapper {
    const ra_predict_job *job;
    const ra_rowset *queries, *keys;
    double share;  /* of the keys, those that are held */
    double chance; /* of the slice at hand */
    int64_t tile_rows, chunk_rows;
    bool shared;
    ra_range q_rows;
    int64_t q_first;
    strip *strips;
    int64_t *edges;
    int64_t strip_count, strip_room, edge_room;
    double tiles, runs, pairs, run_keys; /* of the chunk at hand, one head */
} mapper;

int64_t ra_predict_lcm(int64_t a, int64_t b)
{
    int64_t x = a, y = b;
    while (y != 0) {
        int64_t const rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

static ra_range every(ra_range r, int64_t ratio, int64_t phase)
{
    return (ra_range){r.begin + r.stride * phase, r.stride * ratio,
                      r.count > phase ? (r.count - phase - 1) / ratio + 1 : 0};
}

static bool is_unbounded(int64_t lo, int64_t hi)
{
    return lo <= RA_BAND_NONE_LO && hi >= RA_BAND_NONE_HI;
}

/* Queries that the band leaves without a key stay in: tiles are cut where ranges end. */
static bool strip_make(const mapper *m, const ra_slice *s, const ra_row_piece *keys, int64_t phase,
                       strip *out)
{
    ra_range q, k;
    if (!ra_range_intersect((ra_range){s->q_begin, s->stride, s->q_count}, m->q_rows, &q) ||
        !ra_range_intersect((ra_range){s->k_begin, s->stride, s->k_count}, keys->rows, &k))
        return false;
    int64_t lo = s->lo, hi = s->hi;
    if (!is_unbounded(lo, hi)) {
        int64_t const common = ra_predict_lcm(q.stride, k.stride), phases = common / q.stride;
        q = every(q, phases, phase % phases);
        k = every(k, common / k.stride, phase / phases);
        int64_t const ratio = common / s->stride;
        int64_t const offset =
            (k.begin - s->k_begin) / s->stride - (q.begin - s->q_begin) / s->stride;
        lo = lo > RA_BAND_NONE_LO ? ra_div_ceil(lo - offset, ratio) : lo;
        hi = hi < RA_BAND_NONE_HI ? ra_div_floor(hi - offset, ratio) : hi;
    }
    ra_slice const area = {.q_count = q.count, .k_count = k.count, .stride = 1, .lo = lo, .hi = hi};
    if (q.count <= 0 || k.count <= 0 || lo > hi || ra_slice_area(&area) == 0)
        return false;
    int64_t const first = m->q_first + (q.begin - m->q_rows.begin) / m->q_rows.stride;
    int64_t const stride = q.stride / m->q_rows.stride;
    *out = (strip){.stride = stride,
                   .residue = first % stride,
                   .begin = first / stride,
                   .count = q.count,
                   .k_begin = keys->first + (k.begin - keys->rows.begin) / keys->rows.stride,
                   .k_stride = k.stride / keys->rows.stride,
                   .k_count = k.count,
                   .lo = lo,
                   .hi = hi,
                   .keys = k,
                   .chance = m->chance};
    return true;
}

static ra_status grow(void *array, int64_t *room, size_t item_bytes)
{
    void **pointer = array;
    int64_t const wanted = *room > 0 ? 2 * *room : 256;
    void *larger = realloc(*pointer, (size_t)wanted * item_bytes);
    if (larger == NULL) {
        ra_log(RA_LOG_ERROR, "out of memory while predicting");
        return RA_ERR_NO_MEMORY;
    }
    *pointer = larger;
    *room = wanted;
    return RA_OK;
}

/* The first piece of sorted keys that may reach a row. */
static int64_t piece_before(const ra_rowset *keys, int64_t row)
{
    int64_t low = 0, high = keys->sorted ? keys->piece_count : 0;
    while (high - low > 1) {
        int64_t const middle = low + (high - low) / 2;
        if (keys->pieces[middle].rows.begin <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static ra_status gather(void *context, const ra_slice *slice)
{
    mapper *m = context;
    int64_t const last = slice->k_begin + slice->stride * (slice->k_count - 1);
    for (int64_t i = piece_before(m->keys, slice->k_begin); i < m->keys->piece_count; ++i) {
        const ra_row_piece *keys = &m->keys->pieces[i];
        if (keys->rows.begin > last && m->keys->sorted)
            break;
        int64_t const phases =
            keys->rows.begin > last ? 0 : ra_slice_phases(slice, m->q_rows, keys->rows);
        for (int64_t phase = 0; phase < phases; ++phase) {
            if (m->strip_count == m->strip_room) {
                ra_status const status = grow(&m->strips, &m->strip_room, sizeof(strip));
                if (status != RA_OK)
                    return status;
            }
            m->strip_count += strip_make(m, slice, keys, phase, &m->strips[m->strip_count]);
        }
    }
    return RA_OK;
}

static int compare_strips(const void *x, const void *y)
{
    const strip *a = x, *b = y;
    int64_t const difference = a->stride != b->stride     ? a->stride - b->stride
                               : a->residue != b->residue ? a->residue - b->residue
                               : a->k_begin != b->k_begin ? a->k_begin - b->k_begin
                               : a->begin != b->begin     ? a->begin - b->begin
                                                          : a->k_stride - b->k_stride;
    return (difference > 0) - (difference < 0);
}

static int compare_edges(const void *a, const void *b)
{
    int64_t const x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Blocks that `count` keys of a strip lie in; what is not left to chance is as good as one. */
static int64_t blocks_of(const mapper *m, const strip *s, int64_t first, int64_t count)
{
    int64_t const size = m->job->request->pattern->block_size;
    if (s->chance >= 1)
        return 1;
    int64_t const begin = s->keys.begin + s->keys.stride * first;
    int64_t const last = begin + s->keys.stride * (count - 1);
    return ra_min_i64(count, last / size - begin / size + 1);
}

/* Runs of `count` queries from x = at on. Full runs that meet are one; `end`: where the last full
   one ended, -1 after any other. */
static void count_tile(mapper *m, const strip *group, int64_t group_count, int64_t at,
                       int64_t count)
{
    int64_t end = -1, end_stride = 0;
    double end_chance = 1, runs = 0, none = 1;
    for (int64_t i = 0; i < group_count; ++i) {
        const strip *s = &group[i];
        int64_t const skip = at - s->begin;
        if (skip < 0 || skip >= s->count)
            continue;
        int64_t const lo = s->lo > RA_BAND_NONE_LO ? s->lo + skip : s->lo;
        int64_t const hi = s->hi < RA_BAND_NONE_HI ? s->hi + skip : s->hi;
        int64_t const first = ra_max_i64(0, lo);
        int64_t const last =
            hi < RA_BAND_NONE_HI ? ra_min_i64(s->k_count - 1, count - 1 + hi) : s->k_count - 1;
        if (first > last)
            continue;
        int64_t const keys = last - first + 1;
        bool const full = (lo <= RA_BAND_NONE_LO || lo - first <= -(count - 1)) &&
                          (hi >= RA_BAND_NONE_HI || hi - first >= keys - 1);
        int64_t const begin = s->k_begin + first * s->k_stride, stride = keys > 1 ? s->k_stride : 1;
        ra_slice const area = {.q_count = count,
                               .k_count = keys,
                               .stride = 1,
                               .lo = lo > RA_BAND_NONE_LO ? lo - first : lo,
                               .hi = hi < RA_BAND_NONE_HI ? hi - first : hi};
        int64_t const blocks = blocks_of(m, s, first, keys);
        m->pairs += s->chance * (double)ra_slice_area(&area);
        m->run_keys += s->chance * (double)keys;
        none *= s->chance < 1 ? pow(1 - s->chance, (double)blocks) : 0;
        runs += s->chance * (double)blocks - ra_predict_joined_runs(s->chance, m->share, blocks);
        if (full && end == begin && end_stride == stride)
            runs -= s->chance * end_chance >= 1 ? 1 : s->chance * end_chance / m->share;
        end = full ? begin + keys * stride : -1;
        end_stride = stride;
        end_chance = s->chance;
    }
    m->tiles += 1 - none;
    m->runs += runs;
}

static ra_status count_group(mapper *m, const strip *group, int64_t group_count)
{
    while (m->edge_room < 2 * group_count) {
        ra_status const status = grow(&m->edges, &m->edge_room, sizeof(int64_t));
        if (status != RA_OK)
            return status;
    }
    for (int64_t i = 0; i < group_count; ++i) {
        m->edges[2 * i] = group[i].begin;
        m->edges[2 * i + 1] = group[i].begin + group[i].count;
    }
    qsort(m->edges, (size_t)(2 * group_count), sizeof(*m->edges), compare_edges);
    for (int64_t i = 0; i + 1 < 2 * group_count; ++i)
        for (int64_t at = m->edges[i]; at < m->edges[i + 1]; at += m->tile_rows)
            count_tile(m, group, group_count, at, ra_min_i64(m->tile_rows, m->edges[i + 1] - at));
    return RA_OK;
}

static ra_status count_strips(mapper *m)
{
    strip *all = m->strips;
    int64_t const count = m->strip_count;
    if (count > 0)
        qsort(all, (size_t)count, sizeof(*all), compare_strips);
    for (int64_t begin = 0, end; begin < count; begin = end) {
        for (end = begin + 1; end < count && all[end].stride == all[begin].stride &&
                              all[end].residue == all[begin].residue;)
            ++end;
        for (int64_t i = end; i < count && !m->shared; ++i) {
            int64_t const common = ra_predict_lcm(all[begin].stride, all[i].stride);
            int64_t const gcd = all[begin].stride * all[i].stride / common;
            m->shared = (all[begin].residue - all[i].residue) % gcd == 0;
        }
        ra_status const status = count_group(m, &all[begin], end - begin);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

/* Tiles and runs of one layer's chunk. */
static ra_status count_chunk(mapper *m, int32_t layer, int64_t index)
{
    const ra_rowset *queries = m->queries;
    int64_t const begin = index * m->chunk_rows;
    int64_t const end = ra_min_i64(begin + m->chunk_rows, queries->row_count);
    int64_t low = 0, high = queries->piece_count; /* the piece of the first row */
    while (high - low > 1) {
        int64_t const middle = low + (high - low) / 2;
        if (queries->pieces[middle].first <= begin)
            low = middle;
        else
            high = middle;
    }
    m->strip_count = 0;
    m->tiles = m->runs = m->pairs = m->run_keys = 0;
    for (int64_t i = low; i < queries->piece_count && queries->pieces[i].first < end; ++i) {
        const ra_row_piece *from = &queries->pieces[i];
        m->q_first = ra_max_i64(begin, from->first);
        int64_t const last = ra_min_i64(end, from->first + from->rows.count);
        m->q_rows = (ra_range){from->rows.begin + from->rows.stride * (m->q_first - from->first),
                               from->rows.stride, last - m->q_first};
        ra_status const status =
            ra_predict_visit(m->job, layer, m->q_rows.begin,
                             m->q_rows.stride * (m->q_rows.count - 1) + 1, gather, m, &m->chance);
        if (status != RA_OK)
            return status;
    }
    return count_strips(m);
}

bool ra_predict_heads_meet(ra_heads a, ra_heads b)
{
    for (int32_t i = 0; i < a.count; ++i)
        if (ra_heads_contain(b, a.begin + i * a.stride))
            return true;
    return false;
}

/* Chunks hold a full tile of the widest stride; less where tiles share rows. */
static void choose_rows(mapper *m, ra_heads heads)
{
    enum { LONG_CHUNK = 1 << 20 };
    int64_t widest = 1;
    int64_t const q_stride = m->queries->piece_count > 0 ? m->queries->pieces[0].rows.stride : 1;
    const ra_pattern *pattern = m->job->pattern;
    for (int32_t i = 0; i < ra_pattern_layer_count(pattern); ++i) {
        ra_heads const layer = ra_pattern_layer_heads(pattern, i);
        if (!ra_predict_heads_meet(layer, heads))
            continue;
        int64_t const stride = ra_pattern_layer_stride(pattern, i);
        widest = ra_max_i64(widest, ra_predict_lcm(stride, q_stride) / q_stride);
        for (int32_t j = 0; j < i && !m->shared; ++j) {
            ra_heads const other = ra_pattern_layer_heads(pattern, j);
            m->shared = ra_predict_heads_meet(other, heads) && ra_predict_heads_meet(layer, other);
        }
    }
    int64_t const most = m->shared ? RA_SHARED_CHUNK_ROWS_MAX : LONG_CHUNK;
    m->chunk_rows = ra_min_i64(m->tile_rows * ra_min_i64(widest, most), most);
    m->tile_rows = ra_min_i64(m->tile_rows, m->chunk_rows);
}

/* All chunks of a layer, or some: the last stands for itself, others for those up to the next. */
static ra_status count_layer(mapper *m, int32_t layer, int64_t chunks, int64_t chunks_max,
                             double heads, ra_map_size *size)
{
    int64_t const inner = chunks - 1, looks = ra_min_i64(inner, chunks_max);
    bool const is_empty = chunks == 0 || m->keys->row_count == 0;
    for (int64_t i = 0; i <= looks && !is_empty; ++i) {
        int64_t const at = i == looks ? inner : inner * i / looks;
        int64_t const next = i == looks ? chunks : inner * (i + 1) / looks;
        ra_status const status = count_chunk(m, layer, at + (next - at) / 2);
        if (status != RA_OK)
            return status;
        double const weight = (double)(next - at);
        size->tiles += weight * m->tiles;
        size->runs += weight * m->runs;
        size->pairs += weight * heads * m->pairs;
        size->keys += weight * heads * m->run_keys;
    }
    return RA_OK;
}

static ra_status count_layers(mapper *m, ra_heads heads, int64_t chunks_max, int32_t *layers,
                              ra_map_size *size)
{
    *size = (ra_map_size){0};
    *layers = 0;
    int64_t const chunks = ra_div_ceil(m->queries->row_count, m->chunk_rows);
    for (int32_t i = 0; i < ra_pattern_layer_count(m->job->pattern); ++i) {
        ra_heads const layer = ra_pattern_layer_heads(m->job->pattern, i);
        int32_t wanted = 0;
        for (int32_t h = 0; h < layer.count; ++h)
            wanted += ra_heads_contain(heads, layer.begin + h * layer.stride);
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
                         const ra_predict_keys *keys, int64_t chunks_max, ra_map_size *size_out)
{
    double const all = (double)ra_max_i64(1, keys->set.row_count);
    mapper m = {.job = job,
                .queries = queries,
                .keys = &keys->set,
                .share = (double)ra_max_i64(1, keys->row_count) / all,
                .tile_rows = job->request->tile_rows};
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
    free(m.strips);
    free(m.edges);
    if (status != RA_OK)
        return status;
    int64_t const chunks = ra_div_ceil(queries->row_count, m.chunk_rows);
    size.bytes = layers * ((int64_t)sizeof(ra_tile_layer) + 4 * (chunks + 1)) +
                 (int64_t)((size.tiles + 1) * sizeof(ra_tile) + size.runs * sizeof(ra_run));
    size.k_rows = keys->row_count;
    size.is_empty = keys->set.piece_count == 0;
    size.kept_bytes =
        ra_predict_entry_bytes(job, layers, queries->piece_count + keys->piece_count, size.bytes);
    job->sampled = job->sampled || (chunks - 1 > chunks_max && keys->set.row_count > 0);
    *size_out = size;
    return RA_OK;
}
