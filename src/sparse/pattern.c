/*
 * Creating a pattern: checks, copies, layers. blocks.c makes block maps, pattern_visit.c enumerates
 * slices, and multiplicity.c has the definition that they are checked against.
 */
#include "ringattn/pattern.h"

#include "internal.h"
#include "sparse/sparse_internal.h"

#include <stdlib.h>
#include <string.h>

ra_pattern_config ra_pattern_config_dense(void)
{
    return (ra_pattern_config){.window_left = -1, .window_right = -1};
}

int64_t ra_pattern_seq(const ra_pattern *pattern)
{
    return pattern->seq;
}

int32_t ra_pattern_heads(const ra_pattern *pattern)
{
    return pattern->heads;
}

int64_t ra_pattern_branch_count(const ra_pattern *pattern)
{
    return pattern->config.segments != NULL ? pattern->config.branch_count : 0;
}

int32_t ra_pattern_layer_count(const ra_pattern *pattern)
{
    return pattern->layer_count;
}

ra_heads ra_pattern_layer_heads(const ra_pattern *pattern, int32_t layer)
{
    return pattern->layers[layer].heads;
}

int64_t ra_pattern_layer_stride(const ra_pattern *pattern, int32_t layer)
{
    return pattern->layers[layer].stride;
}

int64_t ra_pattern_layer_segment(const ra_pattern *pattern, int32_t layer)
{
    return pattern->layers[layer].segment;
}

bool ra_pattern_differs_by_head(const ra_pattern *pattern)
{
    bool differs = false;
    for (int32_t i = 0; i < pattern->layer_count; ++i)
        differs = differs || pattern->layers[i].heads.count < pattern->heads;
    return differs;
}

bool ra_pattern_shares_heads(const ra_pattern_config *c)
{
    return c->segments != NULL && c->branch_count > 1 && c->dilated_heads == RA_HEADS_ALL;
}

/*
 * With a single stride, the layer's, its rows form one progression per residue. Keys at another
 * stride replace that stride by their own, and blocks have stride 1.
 */
bool ra_pattern_shares_rows(const ra_pattern_config *c, int ranks, bool masked)
{
    bool strides_differ = false, has_wide = false;
    int64_t const count = c->segments != NULL ? c->branch_count : 0;
    for (int64_t i = 0; i < count; ++i) {
        int64_t const stride = ra_min_i64(c->rates[i], c->segments[i]);
        has_wide = has_wide || stride > 1;
        strides_differ = strides_differ || stride != ra_min_i64(c->rates[0], c->segments[0]);
    }
    return ra_pattern_shares_heads(c) || (strides_differ && ranks > 1) || (has_wide && masked);
}

/* Heads of one branch are in one layer each, by their offsets, which differ from rate 2 on. */
bool ra_pattern_shares_keys(const ra_pattern_config *c, int32_t heads, int32_t kv_heads)
{
    int64_t const count = c->segments != NULL ? c->branch_count : 0, group = heads / kv_heads;
    bool shares = ra_pattern_shares_heads(c);
    for (int64_t i = 0; i < count; ++i) /* grouped: branch i begins with this head */
        shares = shares || (group > 1 && c->rates[i] > 1) ||
                 (count > 1 && ra_div_ceil(i * heads, count) % group != 0);
    return shares;
}

bool ra_pattern_has_long_rows(const ra_pattern_config *c)
{
    return c->blocks_kind == RA_BLOCKS_GLOBAL_LOCAL || c->blocks_kind == RA_BLOCKS_LIST;
}

static ra_status refuse(const char *what)
{
    ra_log(RA_LOG_ERROR, "pattern.%s", what);
    return RA_ERR_CONFIG;
}

static bool all_at_least(const int64_t *values, int64_t count, int64_t least)
{
    for (int64_t i = 0; i < count; ++i)
        if (values[i] < least)
            return false;
    return true;
}

static ra_status check_documents(const ra_pattern_config *c, int64_t seq)
{
    int64_t sum = 0;
    if (c->documents == NULL)
        return RA_OK;
    if (c->document_count < 1 || !all_at_least(c->documents, c->document_count, 0))
        return refuse("documents: lengths must be at least 0, and there must be one");
    for (int64_t i = 0; i < c->document_count; ++i) {
        if (c->documents[i] > seq - sum) {
            sum = -1;
            break;
        }
        sum += c->documents[i];
    }
    if (sum == seq)
        return RA_OK;
    ra_log(RA_LOG_ERROR, "pattern.documents: lengths must sum to shape.seq = %lld", (long long)seq);
    return RA_ERR_CONFIG;
}

static ra_status check_blocks(const ra_pattern_config *c, int64_t seq)
{
    if (c->blocks_kind == RA_BLOCKS_NONE)
        return RA_OK;
    if ((size_t)c->blocks_kind > RA_BLOCKS_LIST)
        return refuse("blocks.kind: there is no such kind");
    if (c->block_rate_count < 0 || c->block_pair_count < 0)
        return refuse("blocks: rates and pairs must be at least 0 in number");
    if (c->block_size < 1)
        return refuse("blocks.size: must be at least 1");
    int64_t const rows = ra_div_ceil(seq, c->block_size);
    if (rows > INT32_MAX)
        return refuse("blocks.size: too small, there may be at most 2^31 - 1 blocks");
    if (c->block_width < 0)
        return refuse("blocks.width: must be at least 0");
    if (c->block_globals < 0)
        return refuse("blocks.globals: must be at least 0");
    if (!(c->block_density >= 0 && c->block_density <= 1))
        return refuse("blocks.density: must be from 0 to 1");
    if (c->block_rates != NULL && !all_at_least(c->block_rates, c->block_rate_count, 1))
        return refuse("blocks.rates: must be at least 1 each");
    if (c->blocks_kind != RA_BLOCKS_LIST)
        return RA_OK;
    if (c->block_pairs == NULL && c->block_pair_count > 0)
        return refuse("blocks: kind list needs the pairs (tensor 'blocks' of the input file)");
    for (int64_t i = 0; i < c->block_pair_count; ++i)
        for (int side = 0; side < 2; ++side)
            if (c->block_pairs[i][side] < 0 || c->block_pairs[i][side] >= rows)
                return refuse("blocks: a listed pair lies outside [0, seq / size)");
    return RA_OK;
}

static ra_status check_dilated(const ra_pattern_config *c)
{
    if (c->segments == NULL)
        return RA_OK;
    if ((size_t)c->dilated_heads > RA_HEADS_GROUPED)
        return refuse("dilated.heads: must be all or grouped");
    if (c->branch_count < 1 || c->rates == NULL)
        return refuse("dilated: needs one rate per segment length, and at least one");
    if (!all_at_least(c->segments, c->branch_count, 1))
        return refuse("dilated.segments: must be at least 1 each");
    if (!all_at_least(c->rates, c->branch_count, 1))
        return refuse("dilated.rates: must be at least 1 each");
    return RA_OK;
}

ra_status ra_pattern_take(ra_pattern *p, size_t bytes, void *pointer_out)
{
    ra_block *block = &p->memory[p->memory_count];
    RA_ASSERT(p->memory_count < (int)(sizeof(p->memory) / sizeof(p->memory[0])));
    ra_status const status = ra_pool_alloc(p->pool, RA_MEM_TILEMAP, bytes, NULL, block);
    if (status != RA_OK)
        return status;
    ++p->memory_count;
    memcpy(pointer_out, &block->data, sizeof(block->data));
    return RA_OK;
}

static ra_status make_documents(ra_pattern *p)
{
    int64_t const count = p->config.documents != NULL ? p->config.document_count : 1;
    ra_status const status =
        ra_pattern_take(p, (size_t)(count + 1) * sizeof(*p->document_starts), &p->document_starts);
    if (status != RA_OK)
        return status;
    p->document_starts[0] = 0;
    for (int64_t i = 0; i < count; ++i)
        p->document_starts[i + 1] =
            p->document_starts[i] + (p->config.documents != NULL ? p->config.documents[i] : p->seq);
    p->document_count = count;
    return RA_OK;
}

static ra_status make_branches(ra_pattern *p)
{
    int64_t const count = p->config.branch_count;
    if (p->config.segments == NULL)
        return RA_OK;
    int64_t *copy;
    ra_status const status = ra_pattern_take(p, 2 * (size_t)count * sizeof(*copy), &copy);
    if (status != RA_OK)
        return status;
    memcpy(copy, p->config.segments, (size_t)count * sizeof(*copy));
    memcpy(copy + count, p->config.rates, (size_t)count * sizeof(*copy));
    p->config.segments = copy;
    p->config.rates = copy + count;
    return RA_OK;
}

/* Heads of branch `branch` with offset `offset`; count 0: none. */
static ra_heads branch_heads(const ra_pattern *p, int64_t branch, int64_t offset)
{
    /* a larger rate leaves each head an offset of its own, too */
    int64_t const rate = ra_min_i64(p->config.rates[branch], INT32_MAX);
    int64_t const branches = p->config.branch_count;
    int64_t first = 0, end = p->heads;
    if (p->config.dilated_heads == RA_HEADS_GROUPED) { /* h * branches / heads == branch */
        first = ra_div_ceil(branch * p->heads, branches);
        end = ra_div_ceil((branch + 1) * p->heads, branches);
    }
    first += ((offset - first) % rate + rate) % rate;
    if (first >= end)
        return (ra_heads){0, 1, 0};
    return (ra_heads){(int32_t)first, (int32_t)rate, (int32_t)((end - 1 - first) / rate + 1)};
}

/* List the layers that have heads and rows; layers == NULL: only count them. */
static int64_t list_layers(const ra_pattern *p, ra_layer *layers)
{
    if (p->config.segments == NULL) {
        if (layers != NULL)
            layers[0] = (ra_layer){{0, 1, p->heads}, p->seq, 1, 0};
        return 1;
    }
    int64_t count = 0;
    for (int64_t i = 0; i < p->config.branch_count; ++i) {
        int64_t const segment = ra_min_i64(p->config.segments[i], p->seq);
        int64_t const rate = p->config.rates[i];
        int64_t const offsets = ra_min_i64(ra_min_i64(rate, p->heads), segment);
        for (int64_t offset = 0; offset < offsets; ++offset) {
            ra_heads const heads = branch_heads(p, i, offset);
            if (heads.count == 0)
                continue;
            if (layers != NULL)
                layers[count] = (ra_layer){heads, segment, ra_min_i64(rate, segment), offset};
            ++count;
        }
    }
    return count;
}

static ra_status make_layers(ra_pattern *p)
{
    int64_t const count = list_layers(p, NULL);
    ra_status const status = ra_pattern_take(p, (size_t)count * sizeof(*p->layers), &p->layers);
    if (status != RA_OK)
        return status;
    list_layers(p, p->layers);
    p->layer_count = (int32_t)count;
    return RA_OK;
}

/*
 * Windows that reach from the last token to the first never bind: the mask is the same without
 * them, and smaller numbers are safe to add.
 */
static ra_pattern_config normalised(const ra_pattern_config *config, int64_t seq)
{
    ra_pattern_config c = *config;
    c.window_left = c.window_left < 0 || c.window_left >= seq - 1 ? -1 : c.window_left;
    c.window_right = c.window_right < 0 || c.window_right >= seq - 1 ? -1 : c.window_right;
    c.sinks = ra_min_i64(c.sinks, seq);
    c.block_width = ra_min_i64(c.block_width, INT32_MAX);
    c.block_globals = ra_min_i64(c.block_globals, INT32_MAX);
    return c;
}

ra_status ra_pattern_create(const ra_pattern_config *config, int64_t seq, int32_t heads,
                            ra_pool *pool, ra_pattern **pattern_out)
{
    ra_pattern *p;
    ra_status status;

    RA_ASSERT(seq >= 1 && seq <= INT64_C(1) << 60 && heads >= 1);
    if (config->sinks < 0)
        return refuse("sinks: must be at least 0");
    if ((status = check_documents(config, seq)) != RA_OK ||
        (status = check_blocks(config, seq)) != RA_OK || (status = check_dilated(config)) != RA_OK)
        return status;
    p = calloc(1, sizeof(*p));
    if (p == NULL)
        return ra_refuse_memory("a pattern");
    p->pool = pool;
    p->seq = seq;
    p->heads = heads;
    p->config = normalised(config, seq);
    if ((status = make_documents(p)) != RA_OK || (status = make_branches(p)) != RA_OK ||
        (status = ra_pattern_make_blocks(p)) != RA_OK || (status = make_layers(p)) != RA_OK) {
        ra_pattern_destroy(p);
        return status;
    }
    /* These are borrowed for this call only; our own arrays have their contents. */
    p->config.documents = NULL;
    p->config.block_rates = NULL;
    p->config.block_pairs = NULL;
    *pattern_out = p;
    return RA_OK;
}

void ra_pattern_destroy(ra_pattern *p)
{
    if (p == NULL)
        return;
    for (int i = 0; i < p->memory_count; ++i)
        ra_pool_free(p->pool, NULL, &p->memory[i]);
    free(p);
}
