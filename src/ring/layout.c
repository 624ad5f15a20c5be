/* Which rank owns which rows. */
#include "internal.h"
#include "ring/ring_internal.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK_MAX = 1024, CHUNK_MIN = 128 };

/* Pairs are counted in at most so many parts of the sequence, each of at least so many rows. */
enum { PARTS_MAX = 1024, PART_ROWS_MIN = 8192 };

const char *ra_layout_name(ra_layout_kind kind)
{
    static const char *const names[] = {"contiguous", "zigzag", "striped", "balanced", "auto"};
    size_t const index = (size_t)kind;
    return index < sizeof(names) / sizeof(names[0]) ? names[index] : "unknown";
}

/* Live pairs of some queries. Counting them may take long, so a heartbeat follows each part. */
static int64_t count_pairs(const ra_pattern *pattern, ra_range queries, ra_comm *comm)
{
    int64_t const span = ra_max_i64(PART_ROWS_MIN, ra_pattern_seq(pattern) / PARTS_MAX);
    int64_t const rows = ra_max_i64(1, span / queries.stride);
    int64_t pairs = 0;
    for (int64_t i = 0; i < queries.count; i += rows) {
        ra_comm_beat(comm);
        pairs +=
            ra_pattern_area(pattern, (ra_range){queries.begin + i * queries.stride, queries.stride,
                                                ra_min_i64(rows, queries.count - i)});
    }
    return pairs;
}

static ra_range share(int64_t seq, int64_t index, int64_t parts)
{
    int64_t const begin = ra_share_begin(seq, index, parts);
    return (ra_range){begin, 1, ra_share_begin(seq, index + 1, parts) - begin};
}

/* A rank's rows by all layouts but balanced: how many pieces, one or two. */
static int pieces_of(const ra_layout *layout, int64_t seq, int rank, ra_range pieces[2])
{
    int64_t const ranks = layout->ranks;
    if (layout->kind == RA_LAYOUT_STRIPED) {
        pieces[0] = (ra_range){rank, ranks, seq > rank ? (seq - 1 - rank) / ranks + 1 : 0};
        return 1;
    }
    bool const zigzag = layout->kind == RA_LAYOUT_ZIGZAG;
    pieces[0] = share(seq, rank, zigzag ? 2 * ranks : ranks);
    if (!zigzag)
        return 1;
    pieces[1] = share(seq, 2 * ranks - 1 - rank, 2 * ranks);
    if (pieces[0].begin + pieces[0].count < pieces[1].begin)
        return 2;
    pieces[0].count += pieces[1].count;
    return 1;
}

/* ---- balanced -------------------------------------------------------------------------------- */

typedef struct chunk {
    int64_t index, area;
    int rank;
} chunk;

typedef struct load {
    int64_t area, chunks;
} load;

static int compare_by_area(const void *a, const void *b)
{
    const chunk *x = a, *y = b;
    if (x->area != y->area)
        return x->area > y->area ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* Largest first, to the least loaded rank that may still take one (longest processing time first,
   Graham 1969); chunk counts of ranks differ by at most one. */
static void deal(chunk *chunks, int64_t count, load *loads, int ranks)
{
    int64_t const least = count / ranks;
    int64_t larger = count % ranks; /* ranks that may have one more */
    for (int r = 0; r < ranks; ++r)
        loads[r] = (load){0, 0};
    qsort(chunks, (size_t)count, sizeof(*chunks), compare_by_area);
    for (int64_t i = 0; i < count; ++i) {
        int best = -1;
        for (int r = 0; r < ranks; ++r) {
            bool const may = loads[r].chunks < least || (loads[r].chunks == least && larger > 0);
            if (may && (best < 0 || loads[r].area < loads[best].area))
                best = r;
        }
        larger -= loads[best].chunks == least;
        loads[best].area += chunks[i].area;
        ++loads[best].chunks;
        chunks[i].rank = best;
    }
}

/* Of the largest load over the mean one. */
static double ratio(int64_t most, int64_t sum, int ranks)
{
    return sum > 0 ? (double)most * ranks / (double)sum : 1.0;
}

static double imbalance_of(const load *loads, int ranks)
{
    int64_t most = 0, sum = 0;
    for (int r = 0; r < ranks; ++r) {
        most = ra_max_i64(most, loads[r].area);
        sum += loads[r].area;
    }
    return ratio(most, sum, ranks);
}

/* The first chunk with a smaller area; chunks are sorted by area. */
static int64_t first_below(const chunk *chunks, int64_t count, int64_t area)
{
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t const middle = low + (high - low) / 2;
        if (chunks[middle].area < area)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/*
 * The exchange of two chunks between the most loaded rank and another that leaves the least peak;
 * false: none lowers it. Chunks are sorted by area, so the candidates (small enough to relieve the
 * one rank, large enough not to overload the other) form one interval, which shrinks as better
 * exchanges are found.
 */
static bool exchange_best(chunk *chunks, int64_t count, load *loads, int ranks)
{
    int worst = 0, least = 0;
    for (int r = 1; r < ranks; ++r) {
        worst = loads[r].area > loads[worst].area ? r : worst;
        least = loads[r].area < loads[least].area ? r : least;
    }
    int64_t const most = loads[worst].area;
    int64_t best_peak = most, best_i = -1, best_j = -1, last_area = -1;
    for (int64_t i = 0; i < count; ++i) {
        int64_t const area = chunks[i].area;
        if (chunks[i].rank != worst || area == last_area)
            continue;
        last_area = area;
        int64_t j = first_below(chunks, count, area - (most - best_peak));
        for (; j < count && area - chunks[j].area < best_peak - loads[least].area; ++j) {
            int64_t const shift = area - chunks[j].area;
            int64_t const peak = ra_max_i64(most - shift, loads[chunks[j].rank].area + shift);
            if (peak < best_peak) /* not among the chunks of `worst`: that would get more */
                best_peak = peak, best_i = i, best_j = j;
        }
    }
    if (best_i < 0)
        return false;
    int const other = chunks[best_j].rank;
    int64_t const shift = chunks[best_i].area - chunks[best_j].area;
    loads[worst].area -= shift;
    loads[other].area += shift;
    chunks[best_i].rank = other;
    chunks[best_j].rank = worst;
    return true;
}

/* Exchange chunks, sorted by area, while that lowers the largest load. */
static void refine(chunk *chunks, int64_t count, load *loads, int ranks)
{
    for (int round = 0; round < 64 && imbalance_of(loads, ranks) > RA_LAYOUT_IMBALANCE; ++round)
        if (!exchange_best(chunks, count, loads, ranks))
            return;
}

/* Chunks of equal load are interchangeable: each rank gets its number of them side by side, so that
   windows reach into few other ranks. Sorted by area, then index; `loads` is overwritten. */
static void gather_equals(chunk *chunks, int64_t count, load *loads, int ranks)
{
    for (int64_t begin = 0, end; begin < count; begin = end) {
        for (int r = 0; r < ranks; ++r)
            loads[r].chunks = 0;
        for (end = begin; end < count && chunks[end].area == chunks[begin].area; ++end)
            ++loads[chunks[end].rank].chunks;
        int64_t at = begin;
        for (int r = 0; r < ranks; ++r)
            for (; loads[r].chunks > 0; --loads[r].chunks)
                chunks[at++].rank = r;
    }
}

static ra_status set_chunks(const ra_layout *layout, int64_t seq, ra_pool *pool,
                            const chunk *chunks, int64_t count, ra_range *scratch)
{
    for (int rank = 0; rank < layout->ranks; ++rank) {
        int64_t n = 0;
        for (int64_t i = 0; i < count; ++i) {
            int64_t const begin = chunks[i].index * layout->chunk;
            int64_t const rows = ra_min_i64(layout->chunk, seq - begin);
            if (chunks[i].rank != rank)
                continue;
            if (n > 0 && scratch[n - 1].begin + scratch[n - 1].count == begin)
                scratch[n - 1].count += rows;
            else
                scratch[n++] = (ra_range){begin, 1, rows};
        }
        ra_status const status = ra_rowset_init(pool, scratch, n, &layout->rows[rank]);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

static ra_status set_balanced(ra_layout *layout, const ra_pattern *pattern, ra_comm *comm,
                              ra_pool *pool)
{
    int64_t const seq = ra_pattern_seq(pattern);
    int64_t const most = ra_div_ceil(seq, CHUNK_MIN);
    ra_block block;
    size_t const item = sizeof(chunk) + sizeof(ra_range);
    ra_status status =
        ra_pool_alloc(pool, RA_MEM_TILEMAP,
                      (size_t)most * item + (size_t)layout->ranks * sizeof(load), NULL, &block);
    if (status != RA_OK)
        return status;
    chunk *chunks = block.data;
    ra_range *scratch = (void *)(chunks + most);
    load *loads = (void *)(scratch + most);
    int64_t count = 0;
    for (int64_t size = CHUNK_MAX; size >= CHUNK_MIN; size /= 2) {
        layout->chunk = size;
        count = ra_div_ceil(seq, size);
        for (int64_t i = 0; i < count; ++i) {
            ra_range const rows = {i * size, 1, ra_min_i64(size, seq - i * size)};
            chunks[i] = (chunk){i, count_pairs(pattern, rows, comm), 0};
        }
        deal(chunks, count, loads, layout->ranks);
        refine(chunks, count, loads, layout->ranks);
        if (imbalance_of(loads, layout->ranks) <= RA_LAYOUT_IMBALANCE)
            break;
    }
    layout->imbalance = imbalance_of(loads, layout->ranks);
    gather_equals(chunks, count, loads, layout->ranks);
    qsort(chunks, (size_t)count, sizeof(*chunks), ra_compare_i64); /* by index, in front */
    status = set_chunks(layout, seq, pool, chunks, count, scratch);
    ra_pool_free(pool, NULL, &block);
    return status;
}

/* ---- all kinds ------------------------------------------------------------------------------- */

static void measure(ra_layout *layout, const ra_pattern *pattern, ra_comm *comm)
{
    int64_t most = 0, sum = 0;
    layout->imbalance = 1.0;
    if (layout->ranks == 1)
        return; /* counting live pairs may take long */
    for (int r = 0; r < layout->ranks; ++r) {
        int64_t area = 0;
        for (int64_t i = 0; i < layout->rows[r].piece_count; ++i)
            area += count_pairs(pattern, layout->rows[r].pieces[i].rows, comm);
        most = ra_max_i64(most, area);
        sum += area;
    }
    layout->imbalance = ratio(most, sum, layout->ranks);
}

static ra_status set_rows(ra_layout *layout, const ra_pattern *pattern, ra_comm *comm,
                          ra_pool *pool)
{
    int64_t const seq = ra_pattern_seq(pattern);
    ra_status status = RA_OK;
    if (layout->kind == RA_LAYOUT_BALANCED)
        return set_balanced(layout, pattern, comm, pool);
    for (int r = 0; r < layout->ranks && status == RA_OK; ++r) {
        ra_range pieces[2];
        int const count = pieces_of(layout, seq, r, pieces);
        status = ra_rowset_init(pool, pieces, count, &layout->rows[r]);
    }
    return status;
}

ra_status ra_layout_deal(ra_layout_kind kind, const ra_pattern *pattern, int ranks, ra_comm *comm,
                         ra_pool *pool, ra_layout *layout_out)
{
    RA_ASSERT(ranks >= 1 && kind < RA_LAYOUT_AUTO);
    ra_layout layout = {.kind = kind, .ranks = ranks};
    ra_status status = ra_pool_alloc(pool, RA_MEM_TILEMAP, (size_t)ranks * sizeof(*layout.rows),
                                     NULL, &layout.block);
    if (status != RA_OK)
        return status;
    layout.rows = memset(layout.block.data, 0, layout.block.bytes);
    status = set_rows(&layout, pattern, comm, pool);
    if (status != RA_OK)
        ra_layout_fini(pool, &layout);
    else
        *layout_out = layout;
    return status;
}

ra_status ra_layout_init(ra_layout_kind kind, const ra_pattern *pattern, int ranks, ra_comm *comm,
                         ra_pool *pool, ra_layout *layout_out)
{
    int64_t const seq = ra_pattern_seq(pattern), branches = ra_pattern_branch_count(pattern);
    if (!ra_pairs_fit(1, seq, ra_pattern_heads(pattern), branches)) {
        ra_log(RA_LOG_ERROR, "layout %s: %lld tokens and %d heads have too many pairs to count",
               ra_layout_name(kind), (long long)seq, ra_pattern_heads(pattern));
        return RA_ERR_UNSUPPORTED;
    }
    ra_status const status = ra_layout_deal(kind, pattern, ranks, comm, pool, layout_out);
    if (status == RA_OK && kind != RA_LAYOUT_BALANCED)
        measure(layout_out, pattern, comm);
    return status;
}

void ra_layout_fini(ra_pool *pool, ra_layout *layout)
{
    for (int r = 0; r < layout->ranks && layout->rows != NULL; ++r)
        ra_rowset_fini(pool, &layout->rows[r]);
    ra_pool_free(pool, NULL, &layout->block);
    *layout = (ra_layout){0};
}
