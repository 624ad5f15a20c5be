/*
 * What a tile map depends on, in one canonical byte form. It is walked, not stored: hashing and
 * comparing need no memory, and lists of millions of blocks are read in place.
 */
#include "internal.h"
#include "sparse/sparse_internal.h"

#include <string.h>
#include <xxhash.h>

/* Takes the form piece by piece; false ends the walk. */
typedef struct key_sink {
    bool (*add)(struct key_sink *sink, const void *data, size_t bytes);
    uint64_t hash;  /* of all pieces so far */
    char *to;       /* writing: the next byte */
    const char *at; /* comparing: the next byte */
    size_t bytes;   /* so far; comparing: left */
} key_sink;

static bool add_i64(key_sink *sink, const int64_t *values, int64_t count)
{
    return count == 0 || sink->add(sink, values, (size_t)count * sizeof(*values));
}

/* Windows, sinks and causality as visit_bands reads them. */
static bool add_bands(key_sink *sink, const ra_pattern_config *c)
{
    bool causal = c->causal, right = c->window_right >= 0 && !causal;
    bool const left = c->window_left >= 0;
    int64_t const sinks = left || right ? c->sinks : 0;
    if (right && c->window_right == 0 && sinks == 0) {
        causal = true; /* no key after the query: the same bands */
        right = false;
    }
    int64_t const fields[] = {causal, left ? c->window_left : -1, right ? c->window_right : -1,
                              sinks};
    return add_i64(sink, fields, 4);
}

static bool add_list(key_sink *sink, const ra_pattern *p)
{
    int64_t const runs = p->block_row_runs[p->block_rows];
    return add_i64(sink, p->block_row_runs, p->block_rows + 1) &&
           (runs == 0 || sink->add(sink, p->block_runs, (size_t)runs * sizeof(*p->block_runs)));
}

/* Only the fields that the kind reads; block counts beyond the sequence are all the same. */
static bool add_blocks(key_sink *sink, const ra_pattern *p)
{
    const ra_pattern_config *c = &p->config;
    int64_t const size = c->blocks_kind != RA_BLOCKS_NONE ? c->block_size : 0;
    int64_t const kind[] = {c->blocks_kind, size};
    if (!add_i64(sink, kind, 2))
        return false;
    int64_t const width = ra_min_i64(c->block_width, p->block_rows);
    int64_t const globals = ra_min_i64(c->block_globals, p->block_rows);
    int64_t draw[] = {(int64_t)c->block_seed, 0};
    switch (c->blocks_kind) {
    case RA_BLOCKS_NONE:
        break;
    case RA_BLOCKS_LOCAL_WINDOW:
        return add_i64(sink, &width, 1);
    case RA_BLOCKS_DILATED_SPARSE:
        return add_i64(sink, &p->block_offset_count, 1) &&
               add_i64(sink, p->block_offsets, p->block_offset_count);
    case RA_BLOCKS_GLOBAL_LOCAL:
        return add_i64(sink, &width, 1) && add_i64(sink, &globals, 1);
    case RA_BLOCKS_RANDOM:
        memcpy(&draw[1], &c->block_density, sizeof(draw[1]));
        return add_i64(sink, draw, 2);
    case RA_BLOCKS_LIST:
        return add_list(sink, p);
    }
    return true;
}

/* The layers that the heads take part in. */
static bool add_layers(key_sink *sink, const ra_map_request *request)
{
    const ra_pattern *p = request->pattern;
    for (int32_t i = 0; i < p->layer_count; ++i) {
        const ra_layer *layer = &p->layers[i];
        int64_t const fields[] = {layer->heads.begin, layer->heads.stride, layer->heads.count,
                                  layer->segment,     layer->stride,       layer->offset};
        if (ra_heads_common(layer->heads, request->heads) > 0 && !add_i64(sink, fields, 6))
            return false;
    }
    return true;
}

static bool add_rows(key_sink *sink, const ra_rowset *rows)
{
    return rows->piece_count == 0 ||
           sink->add(sink, rows->pieces, (size_t)rows->piece_count * sizeof(*rows->pieces));
}

/* Each list follows its length, so different requests never give the same bytes. */
static bool walk(key_sink *sink, const ra_map_request *request)
{
    const ra_pattern *p = request->pattern;
    int32_t layer_count = 0;
    for (int32_t i = 0; i < p->layer_count; ++i)
        layer_count += ra_heads_common(p->layers[i].heads, request->heads) > 0;
    int64_t const lengths[] = {p->seq,
                               request->tile_rows,
                               request->by_keys,
                               request->heads.begin,
                               request->heads.stride,
                               request->heads.count,
                               ra_pattern_shares_heads(&p->config),
                               layer_count,
                               p->document_count,
                               request->queries->piece_count,
                               request->keys->piece_count};
    return add_i64(sink, lengths, (int64_t)(sizeof(lengths) / sizeof(lengths[0]))) &&
           add_bands(sink, &p->config) && add_layers(sink, request) &&
           add_i64(sink, p->document_starts, p->document_count + 1) &&
           add_rows(sink, request->queries) && add_rows(sink, request->keys) && add_blocks(sink, p);
}

_Static_assert(sizeof(ra_row_piece) == 4 * sizeof(int64_t) &&
                   sizeof(ra_block_run) == 2 * sizeof(int32_t),
               "keys hold no padding");

static bool hash_piece(key_sink *sink, const void *data, size_t bytes)
{
    sink->hash = XXH3_64bits_withSeed(data, bytes, sink->hash);
    sink->bytes += bytes;
    return true;
}

static bool write_piece(key_sink *sink, const void *data, size_t bytes)
{
    memcpy(sink->to, data, bytes);
    sink->to += bytes;
    return true;
}

static bool compare_piece(key_sink *sink, const void *data, size_t bytes)
{
    if (bytes > sink->bytes || memcmp(sink->at, data, bytes) != 0)
        return false;
    sink->at += bytes;
    sink->bytes -= bytes;
    return true;
}

static bool count_piece(key_sink *sink, const void *data, size_t bytes)
{
    (void)data;
    sink->bytes += bytes;
    return true;
}

size_t ra_pattern_cache_key_bytes(const ra_pattern *pattern, ra_heads heads, int64_t piece_count)
{
    ra_rowset const all = {.piece_count = piece_count}, none = {0};
    ra_map_request const request = {
        .pattern = pattern, .heads = heads, .queries = &all, .keys = &none};
    key_sink sink = {.add = count_piece}; /* reads no piece */
    walk(&sink, &request);
    return sink.bytes;
}

uint64_t ra_map_key_hash(const ra_map_request *request, size_t *bytes_out)
{
    key_sink sink = {.add = hash_piece};
    walk(&sink, request);
    *bytes_out = sink.bytes;
    return sink.hash;
}

void ra_map_key_write(const ra_map_request *request, void *key)
{
    key_sink sink = {.add = write_piece, .to = key};
    walk(&sink, request);
}

bool ra_map_key_equals(const ra_map_request *request, const void *key, size_t bytes)
{
    key_sink sink = {.add = compare_piece, .at = key, .bytes = bytes};
    return walk(&sink, request) && sink.bytes == 0;
}
