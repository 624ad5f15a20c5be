/* The layout, the work of ranks, and the choice that `auto` takes. */
#include "internal.h"
#include "ring/predict_job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The deal of layout balanced looks at every pair of chunk and rank, and swaps pairs of chunks.
   Areas are counted of so many chunks of a piece at most, and of all ranks' pieces together, or of
   all rows where they are so few slices. */
enum {
    DEAL_CHUNKS_MAX = 16384,
    AREA_CHUNK = 256,
    AREA_LOOKS = 256,
    ALL_LOOKS = 1 << 17,
    AREA_SLICES = 1 << 17
};

ra_status ra_predict_take(void *pointer_out, int64_t count, size_t item_bytes)
{
    void *const taken = calloc((size_t)ra_max_i64(count, 1), item_bytes);
    memcpy(pointer_out, &taken, sizeof(taken)); /* a pointer of any type */
    return taken != NULL ? RA_OK : ra_refuse_memory("a prediction");
}

ra_status ra_predict_grow(void *array, int64_t *room, size_t item_bytes)
{
    int64_t const wanted = *room > 0 ? 2 * *room : 16;
    void *items;
    memcpy(&items, array, sizeof(items));
    items = realloc(items, (size_t)wanted * item_bytes);
    if (items == NULL)
        return ra_refuse_memory("a prediction");
    memcpy(array, &items, sizeof(items));
    *room = wanted;
    return RA_OK;
}

ra_status ra_predict_push(void *array, int64_t *count, int64_t *room, const void *item,
                          size_t item_bytes)
{
    if (*count == *room) {
        ra_status const status = ra_predict_grow(array, room, item_bytes);
        if (status != RA_OK)
            return status;
    }
    void *items;
    memcpy(&items, array, sizeof(items));
    memcpy((char *)items + (size_t)(*count)++ * item_bytes, item, item_bytes);
    return RA_OK;
}

int64_t ra_predict_bounded(double bytes)
{
    return bytes < (double)RA_PREDICT_BYTES_MOST ? (int64_t)bytes : RA_PREDICT_BYTES_MOST;
}

void ra_predict_add_bytes(int64_t *sum, int64_t bytes)
{
    *sum = ra_min_i64(*sum + bytes, RA_PREDICT_BYTES_MOST);
}

int64_t ra_predict_round(const ra_predict_job *job, int64_t bytes)
{
    enum { GPU_LINE = 512, GPU_GRANULE = 2 << 20 };
    const ra_predict_request *r = job->request;
    if (!r->on_device)
        return ra_predict_round_host(job, bytes);
    if (r->pool == RA_POOL_SIZE_CLASS)
        return (int64_t)ra_pool_class_bytes((size_t)bytes);
    return (int64_t)ra_round_up(
        (size_t)bytes, bytes < GPU_GRANULE || r->pool == RA_POOL_DRIVER ? GPU_LINE : GPU_GRANULE);
}

int64_t ra_predict_round_buffer(const ra_predict_job *job, int64_t bytes)
{
    const ra_predict_request *r = job->request;
    bool const apart = r->buffer_unit_bytes > 0 && r->ring.comm_buffers > 0 && job->ranks > 1;
    return apart ? (int64_t)ra_round_up((size_t)bytes, (size_t)r->buffer_unit_bytes)
                 : ra_predict_round(job, bytes);
}

int64_t ra_predict_round_host(const ra_predict_job *job, int64_t bytes)
{
    return (int64_t)ra_pool_round(job->pool, (size_t)bytes);
}

void ra_predict_free_rows(ra_predict_job *job)
{
    ra_layout_fini(job->pool, &job->layout);
    free(job->placed);
    job->rows = job->queries = NULL;
    job->placed = NULL;
}

static ra_status place_pieces(ra_predict_job *job)
{
    int64_t at = 0;
    job->piece_count = 0;
    for (int r = 0; r < job->ranks; ++r)
        job->piece_count += job->rows[r].piece_count;
    ra_status const status = ra_predict_take(&job->placed, job->piece_count, sizeof(*job->placed));
    for (int r = 0; r < job->ranks && status == RA_OK; ++r)
        for (int64_t i = 0; i < job->rows[r].piece_count; ++i) {
            const ra_row_piece *piece = &job->rows[r].pieces[i];
            job->placed[at++] =
                (ra_placed_piece){piece->rows.begin, ra_range_last(piece->rows), r, piece};
        }
    if (status != RA_OK)
        return status;
    qsort(job->placed, (size_t)at, sizeof(*job->placed), ra_compare_i64); /* by begin, in front */
    job->apart = true;
    for (int64_t i = 1; i < at; ++i)
        job->apart = job->apart && job->placed[i - 1].last < job->placed[i].begin;
    return RA_OK;
}

/* Nor are blocks that are not drawn dealt: the deal goes by how much chance gave to each chunk. */
static bool can_deal(const ra_predict_job *job)
{
    return job->diagonal == NULL && ra_div_ceil(job->request->ring.seq, 1024) <= DEAL_CHUNKS_MAX &&
           job->ranks <= RA_PREDICT_RANKS_ALL;
}

static int64_t look_rows(ra_range rows)
{
    return ra_max_i64(1, AREA_CHUNK / rows.stride); /* a look spans few rows */
}

/* Rows of a dilated branch may be further apart than looks are long, but its segments are a slice
   each, for every offset. */
static bool has_few_slices(const ra_predict_job *job)
{
    const ra_pattern_config *const p = job->request->pattern;
    const ra_ring_config *const c = &job->request->ring;
    double slices = 0;
    for (int64_t i = 0; i < p->branch_count; ++i)
        slices += (double)ra_min_i64(p->rates[i], c->heads) *
                  ((double)c->seq / (double)p->segments[i] + 1 + (double)p->document_count);
    return p->branch_count > 0 && p->blocks_kind == RA_BLOCKS_NONE && slices <= AREA_SLICES;
}

/* Live pairs of some queries: of all, or of `looks` parts that stand for those around them. */
static double area_of(ra_predict_job *job, ra_range rows, int64_t looks)
{
    int64_t const look = look_rows(rows);
    if (rows.count / look <= looks || has_few_slices(job))
        return ra_predict_area(job, rows);
    double sum = 0;
    for (int64_t i = 0; i < looks; ++i) {
        int64_t const begin = ra_share_begin(rows.count, i, looks);
        int64_t const end = ra_share_begin(rows.count, i + 1, looks);
        int64_t const middle = begin + (end - begin - look) / 2;
        ra_range const part = {rows.begin + rows.stride * middle, rows.stride, look};
        sum += ra_predict_area(job, part) * (double)(end - begin) / (double)look;
    }
    job->sampled = true;
    return sum;
}

/* Live pairs of a rank over all heads, one batch; of long shards, from chunks of them. */
static double rank_area(ra_predict_job *job, int rank)
{
    double sum = 0;
    for (int64_t i = 0; i < job->rows[rank].piece_count; ++i)
        sum += area_of(job, job->rows[rank].pieces[i].rows, AREA_LOOKS);
    return sum;
}

/* Live pairs of every half of a contiguous shard, which are the pieces of zigzag, too: one pass
   over the mask for both, and for the sum. */
static ra_status count_halves(ra_predict_job *job)
{
    int64_t const n = job->request->ring.seq, halves = 2 * (int64_t)job->ranks;
    int64_t const looks = ra_min_i64(AREA_LOOKS, ALL_LOOKS / halves);
    if (job->halves != NULL)
        return RA_OK;
    ra_status const status = ra_predict_take(&job->halves, halves, sizeof(*job->halves));
    for (int64_t i = 0; i < halves && status == RA_OK; ++i) {
        int64_t const begin = ra_share_begin(n, i, halves);
        int64_t const end = ra_share_begin(n, i + 1, halves);
        job->halves[i] = area_of(job, (ra_range){begin, 1, end - begin}, looks);
        job->area += job->halves[i];
    }
    return status;
}

/* Shares that are counted in other pieces may differ by less. */
static double const little_more = 1.01;

/* The largest share among all ranks, of whom only some are followed. */
static double most_of_halves(const ra_predict_job *job, int *rank_out)
{
    bool const zigzag = job->layout.kind == RA_LAYOUT_ZIGZAG;
    double most = -1;
    for (int r = 0; r < job->ranks; ++r) {
        int const first = zigzag ? r : 2 * r;
        int const second = zigzag ? 2 * job->ranks - 1 - r : 2 * r + 1;
        double const area = job->halves[first] + job->halves[second];
        if (area > most) {
            most = area;
            *rank_out = r;
        }
    }
    return most;
}

void ra_predict_follow_busiest(ra_predict_job *job)
{
    int rank = 0, place = 0;
    double most = 0;
    if (job->followed_count == job->ranks || job->layout.kind == RA_LAYOUT_STRIPED)
        return;
    double const area = most_of_halves(job, &rank);
    for (int i = 0; i < job->followed_count; ++i) {
        most = job->areas[i] > most ? job->areas[i] : most;
        place += job->followed[i] < rank ? 1 : 0;
    }
    if (area <= little_more * most || job->followed[place] == rank)
        return;
    for (int i = job->followed_count++; i > place; --i) {
        job->followed[i] = job->followed[i - 1];
        job->areas[i] = job->areas[i - 1];
    }
    job->followed[place] = rank;
    job->areas[place] = area;
    ra_predict_weigh_followed(job);
}

/*
 * The largest share over the mean one, as the ring. Of more ranks than are followed, stripes of
 * those stand for all: the mean is that of all live pairs, or, of stripes that are looked at here
 * and there, that of the same looks, which err alike.
 */
static ra_status measure(ra_predict_job *job)
{
    double most = 0, sum = 0;
    int busiest = 0;
    for (int i = 0; i < job->followed_count; ++i) {
        job->areas[i] = rank_area(job, job->followed[i]);
        most = job->areas[i] > most ? job->areas[i] : most;
        sum += job->weights[i] * job->areas[i];
    }
    if (job->followed_count == job->ranks) {
        job->area = sum;
    } else {
        ra_range const stripe = {0, job->ranks, job->request->ring.seq / job->ranks};
        ra_status const status = count_halves(job);
        if (status != RA_OK)
            return status;
        if (job->layout.kind != RA_LAYOUT_STRIPED)
            most = most_of_halves(job, &busiest);
        if (job->layout.kind != RA_LAYOUT_STRIPED || stripe.count / look_rows(stripe) < AREA_LOOKS)
            sum = job->area;
    }
    /* Stripes that are followed may all be below the mean. */
    job->layout.imbalance = sum > 0 ? fmax(1, most * job->ranks / sum) : 1;
    return RA_OK;
}

static ra_status set_rows(ra_predict_job *job, ra_layout_kind kind)
{
    ra_predict_free_rows(job);
    ra_status status =
        ra_layout_deal(kind, job->pattern, job->ranks, job->request->comm, job->pool, &job->layout);
    job->rows = job->queries = job->layout.rows;
    if (status == RA_OK && job->request->ring.linear != RA_LINEAR_NONE) {
        job->layout.imbalance = ra_linear_imbalance(&job->layout, job->request->ring.seq);
        return RA_OK; /* it has no pairs to look for */
    }
    if (status == RA_OK)
        status = place_pieces(job);
    return status == RA_OK ? measure(job) : status;
}

/* Whether what the layout at hand needs can be counted: among very many ranks, stripes of strided
   or much-cut patterns are too many pieces, each of which is looked for with every owner. */
static ra_status can_count(const ra_predict_job *job, bool *can_out)
{
    double const ranks = job->ranks;
    double slices = 0;
    bool unit = true;
    *can_out = true;
    if (job->layout.kind != RA_LAYOUT_STRIPED || job->ranks <= RA_PREDICT_RANKS_ALL)
        return RA_OK;
    for (int32_t i = 0; i < ra_pattern_layer_count(job->pattern); ++i)
        unit = unit && ra_pattern_layer_stride(job->pattern, i) == 1;
    ra_status const status = ra_predict_slices(job, &slices);
    *can_out = unit && slices * ranks * ranks * job->followed_count <= ra_predict_looks_most;
    return status;
}

ra_status ra_predict_refuse_pieces(const ra_predict_job *job)
{
    ra_log(RA_LOG_ERROR,
           "ring.layout: %s over %d ranks cuts this pattern into more pieces than are planned: "
           "take contiguous or zigzag%s",
           ra_layout_name(job->layout.kind), job->ranks,
           job->rounds > 1 ? ", or fewer ring.rounds" : "");
    return RA_ERR_UNSUPPORTED;
}

/* As the ring: fewest rows sent where even enough, else the most even; first of equals. */
static ra_status choose(ra_predict_job *job)
{
    int best = -1;
    ra_layout_cost best_cost = {0};
    for (int kind = RA_LAYOUT_CONTIGUOUS; kind < RA_LAYOUT_AUTO; ++kind) {
        if (kind == RA_LAYOUT_BALANCED && !can_deal(job)) {
            job->left_out[kind] = true;
            continue;
        }
        bool can = true;
        ra_status status = set_rows(job, (ra_layout_kind)kind);
        if (status == RA_OK)
            status = can_count(job, &can);
        job->left_out[kind] = !can;
        if (status == RA_OK && !can)
            continue;
        ra_layout_cost cost = {.imbalance = job->layout.imbalance};
        if (status == RA_OK && ra_layout_is_even(&cost))
            status = ra_predict_crossing(job, &cost.rows);
        if (status != RA_OK)
            return status;
        if (best < 0 || ra_layout_is_better(&cost, &best_cost)) {
            best = kind;
            best_cost = cost;
        }
        if (best_cost.rows == 0 && ra_layout_is_even(&best_cost))
            break; /* none sends less */
    }
    return (int)job->layout.kind == best ? RA_OK : set_rows(job, (ra_layout_kind)best);
}

ra_status ra_predict_layout(ra_predict_job *job)
{
    ra_layout_kind const kind = job->request->ring.layout;
    bool const linear =
        job->request->ring.linear != RA_LINEAR_NONE; /* its rows follow each other */
    if (kind == RA_LAYOUT_AUTO)
        return job->ranks > 1 && !linear ? choose(job) : set_rows(job, RA_LAYOUT_CONTIGUOUS);
    if (kind == RA_LAYOUT_BALANCED && !can_deal(job)) {
        ra_log(RA_LOG_ERROR,
               "ring.layout: balanced is planned for up to %d ranks and %d tokens, and %d rows of "
               "random blocks: take zigzag, striped or contiguous",
               RA_PREDICT_RANKS_ALL, 1024 * DEAL_CHUNKS_MAX, RA_PREDICT_DRAWN_ROWS);
        return RA_ERR_UNSUPPORTED;
    }
    bool can = true;
    ra_status status = set_rows(job, kind);
    if (status == RA_OK)
        status = can_count(job, &can);
    return status == RA_OK && !can ? ra_predict_refuse_pieces(job) : status;
}
