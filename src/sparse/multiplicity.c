/* The definition of every pattern, for one pair at a time. Shares no code with the slices. */
#include "sparse/sparse_internal.h"

#include <stdlib.h>

static bool same_document(const ra_pattern *p, int64_t i, int64_t j, int64_t *start_out)
{
    int64_t low = 0, high = p->document_count - 1; /* last document that starts at or before i */
    while (low < high) {
        int64_t const middle = (low + high + 1) / 2;
        if (p->document_starts[middle] <= i)
            low = middle;
        else
            high = middle - 1;
    }
    *start_out = p->document_starts[low];
    return j >= p->document_starts[low] && j < p->document_starts[low + 1];
}

static bool in_dilated_sparse(const ra_pattern *p, int64_t distance)
{
    if (distance == 0)
        return true;
    for (int64_t i = 0; i < p->block_offset_count; ++i)
        if (p->block_offsets[i] == distance)
            return true;
    return false;
}

static bool in_list(const ra_pattern *p, int64_t bi, int64_t bj)
{
    int64_t const first = p->block_row_runs[bi];
    int64_t low = first, high = p->block_row_runs[bi + 1];
    while (low < high) { /* the first that begins after bj */
        int64_t const middle = low + (high - low) / 2;
        if (p->block_runs[middle].begin <= bj)
            low = middle + 1;
        else
            high = middle;
    }
    return low > first && bj < p->block_runs[low - 1].begin + p->block_runs[low - 1].count;
}

static bool keeps_block(const ra_pattern *p, int64_t bi, int64_t bj)
{
    const ra_pattern_config *c = &p->config;
    int64_t const distance = llabs(bi - bj);
    switch (c->blocks_kind) {
    case RA_BLOCKS_NONE:
        return true;
    case RA_BLOCKS_LOCAL_WINDOW:
        return distance <= c->block_width;
    case RA_BLOCKS_DILATED_SPARSE:
        return in_dilated_sparse(p, distance);
    case RA_BLOCKS_GLOBAL_LOCAL:
        return bi < c->block_globals || bj < c->block_globals || distance <= c->block_width;
    case RA_BLOCKS_RANDOM:
        return ra_block_is_drawn(c, bi, bj);
    case RA_BLOCKS_LIST:
        return in_list(p, bi, bj);
    }
    return false;
}

static bool is_kept(const ra_pattern *p, int64_t i, int64_t j)
{
    const ra_pattern_config *c = &p->config;
    int64_t start;
    if ((c->causal && j > i) || !same_document(p, i, j, &start))
        return false;
    bool const inside = (c->window_left < 0 || j >= i - c->window_left) &&
                        (c->window_right < 0 || j <= i + c->window_right);
    if (!inside && j - start >= c->sinks)
        return false;
    return c->blocks_kind == RA_BLOCKS_NONE || keeps_block(p, i / c->block_size, j / c->block_size);
}

int32_t ra_pattern_multiplicity(const ra_pattern *pattern, int32_t head, int64_t i, int64_t j)
{
    const ra_pattern_config *c = &pattern->config;
    if (!is_kept(pattern, i, j))
        return 0;
    if (c->segments == NULL)
        return 1;
    int32_t count = 0;
    for (int64_t b = 0; b < c->branch_count; ++b) {
        int64_t const w = c->segments[b], r = c->rates[b], offset = head % r;
        bool const takes_part =
            c->dilated_heads == RA_HEADS_ALL || head * c->branch_count / pattern->heads == b;
        count += takes_part && i / w == j / w && i % w % r == offset && j % w % r == offset;
    }
    return count;
}
