/*
 * Which rows of other ranks a rank's queries touch: ranges in each owner's local numbers that grow
 * as slices are visited. If a rank has too many rows to visit, every n-th chunk is visited, and its
 * keys are stretched to the next one's: patterns move along with their queries.
 */
#include "internal.h"
#include "ring/predict_job.h"

enum {
    LOOK_ROWS = 256,      /* queries of a chunk that stands for others */
    VISITS_MAX = 1 << 25, /* slices that are visited one by one, of all readers */
    READER_VISITS_MAX = 1 << 20,
    THIN_VISITS_MAX = 1 << 18 /* owners in which rows of random blocks are searched */
};

typedef struct touching {
    ra_predict_job *job;
    ra_need *needs;
    int reader, reader_count;
    int skip_begin, skip_end; /* owners to skip: the readers themselves */
    ra_range q_rows;          /* global */
    int64_t stretch;          /* how many rows touched keys move until the next chunk */
    double chance;            /* that a block of the slice is kept */
    double rows_of_blocks;    /* that the current queries stand for */
} touching;

/* Rows that a slice touches in one piece of an owner; with several phases, phase by phase. */
static ra_status touch_piece(touching *t, const ra_slice *slice, const ra_row_piece *keys,
                             ra_need *need)
{
    int64_t const phases = ra_slice_phases(slice, t->q_rows, keys->rows);
    for (int64_t phase = 0; phase < phases; ++phase) {
        ra_local_slice local;
        if (!ra_slice_restrict(slice, t->q_rows, keys->rows, phase, &local))
            continue;
        ra_range range = {keys->first + local.k_begin, local.k_stride, local.k_count};
        if (range.count > 1)
            ra_strides_see(&need->strides, range.stride);
        else
            range.stride = 1;
        if (t->chance >= 1) {
            int64_t const left = keys->first + keys->rows.count - range.begin;
            range.count = ra_min_i64((left - 1) / range.stride + 1,
                                     range.count + t->stretch / (keys->rows.stride * range.stride));
        }
        ra_status const status =
            t->job->diagonal != NULL
                ? ra_predict_add_thin(need, range, t->chance, t->rows_of_blocks)
                : ra_predict_add_range(need, range);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

/* The first of the pieces that may reach a row. */
static int64_t first_piece(const ra_predict_job *job, int64_t row)
{
    int64_t low = 0, high = job->apart ? job->piece_count : 0;
    while (low < high) {
        int64_t const middle = low + (high - low) / 2;
        if (job->placed[middle].last < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static ra_status touch(void *context, const ra_slice *slice)
{
    touching *t = context;
    const ra_predict_job *job = t->job;
    ra_range const keys = ra_slice_keys(slice);
    int64_t const last = ra_range_last(keys);
    ra_range seen;
    ra_status status = RA_OK;
    if (!ra_range_intersect(ra_slice_queries(slice), t->q_rows, &seen))
        return RA_OK;
    for (int64_t i = first_piece(job, keys.begin); i < job->piece_count && status == RA_OK; ++i) {
        const ra_placed_piece *at = &job->placed[i];
        bool const skipped = at->owner >= t->skip_begin && at->owner < t->skip_end;
        if (at->begin > last)
            break;
        if (!skipped && at->last >= keys.begin)
            status = touch_piece(t, slice, at->piece, &t->needs[at->owner]);
    }
    return status;
}

static ra_status visit(touching *t, int32_t layer, ra_range rows)
{
    t->q_rows = rows;
    return ra_predict_visit(t->job, layer, rows.begin, ra_range_span(rows), touch, t, &t->chance);
}

/* About how many owners the slices of one row of blocks touch; else their pieces are all tried. */
static double touched_owners(const ra_predict_job *job)
{
    const ra_pattern_config *c = job->request->pattern;
    bool const near = c->window_left >= 0 && (c->causal || c->window_right >= 0);
    double const documents = c->documents != NULL ? (double)c->document_count : 1;
    if (!job->apart)
        return (double)job->piece_count;
    return near ? 1 : 1 + job->ranks / documents;
}

/* Random blocks: visit rows of blocks one by one, or some that stand for those up to the next.
   Certain keys move with their queries; the others are as likely as if all were visited. */
static ra_status visit_rows_of_blocks(touching *t, int32_t layer, ra_range rows)
{
    int64_t const size = t->job->request->pattern->block_size;
    int64_t const first = rows.begin / size;
    int64_t const span = ra_range_last(rows) / size - first + 1;
    int64_t const count = ra_min_i64(span, rows.count);
    int64_t const most = ra_max_i64(1, (int64_t)(THIN_VISITS_MAX / touched_owners(t->job)));
    int64_t const looks = ra_min_i64(count, most);
    /* Stripes of several readers share their rows of blocks. */
    bool const striped = t->job->layout.kind == RA_LAYOUT_STRIPED;
    int64_t const readers = striped ? ra_min_i64(t->reader_count, size) : 1;
    ra_status status = RA_OK;
    for (int64_t i = 0; i < looks && status == RA_OK; ++i) {
        int64_t const from = ra_share_begin(count, i, looks);
        int64_t const to = ra_share_begin(count, i + 1, looks);
        int64_t const begin =
            span > count
                ? from
                : ra_max_i64(0, ra_div_ceil((first + from) * size - rows.begin, rows.stride));
        int64_t const row = rows.begin + rows.stride * begin;
        int64_t const left = ra_div_ceil((row / size + 1) * size - row, rows.stride);
        t->rows_of_blocks = (double)(to - from) / (double)readers;
        t->stretch = ra_max_i64(size, rows.stride) * (to - from - 1);
        status =
            visit(t, layer, (ra_range){row, rows.stride, ra_min_i64(left, rows.count - begin)});
    }
    t->stretch = 0;
    return status;
}

typedef struct counting {
    int64_t count, most;
} counting;

static ra_status count(void *context, const ra_slice *slice)
{
    counting *c = context;
    (void)slice;
    return ++c->count > c->most ? RA_ERR_UNSUPPORTED : RA_OK; /* enough is known */
}

/* How many slices rows have, counted up to `most`. */
static ra_status count_slices(const ra_predict_job *job, int32_t layer, ra_range rows, int64_t most,
                              int64_t *count_out)
{
    counting c = {.most = most};
    double chance;
    ra_status const status =
        ra_predict_visit(job, layer, rows.begin, ra_range_span(rows), count, &c, &chance);
    *count_out = c.count;
    return c.count > most ? RA_OK : status;
}

/* Visit all rows at once if they have few slices; else queries that stand for others. */
static ra_status visit_piece(touching *t, int32_t layer, ra_range rows)
{
    if (t->job->diagonal != NULL)
        return visit_rows_of_blocks(t, layer, rows);
    int64_t const visits = ra_min_i64(READER_VISITS_MAX, VISITS_MAX / t->job->readers) /
                           (t->job->apart ? 1 : t->job->ranks);
    int64_t const span = ra_max_i64(1, LOOK_ROWS / rows.stride); /* a look spans few rows */
    int64_t const look = ra_min_i64(span, rows.count);
    ra_range const middle = {rows.begin + rows.stride * (rows.count / 2 / look * look), rows.stride,
                             ra_min_i64(look, rows.count)};
    int64_t all, each;
    ra_status status = count_slices(t->job, layer, rows, visits, &all);
    if (status == RA_OK && all <= visits)
        return visit(t, layer, rows);
    if (status == RA_OK)
        status = count_slices(t->job, layer, middle, visits, &each);
    if (status != RA_OK)
        return status;
    t->job->sampled = true;
    int64_t const parts =
        ra_min_i64(rows.count, ra_max_i64(visits / RA_PREDICT_SPARED / ra_max_i64(each, 1), 1));
    for (int64_t i = 0; i < parts && status == RA_OK; ++i) {
        int64_t const begin = ra_share_begin(rows.count, i, parts);
        int64_t const end = ra_share_begin(rows.count, i + 1, parts);
        t->stretch = rows.stride * ra_max_i64(0, end - begin - look);
        status = visit(t, layer,
                       (ra_range){rows.begin + rows.stride * begin, rows.stride,
                                  ra_min_i64(look, end - begin)});
    }
    t->stretch = 0;
    if (status == RA_OK) /* what lies behind the last of them is another owner's */
        status =
            visit(t, layer,
                  (ra_range){rows.begin + rows.stride * (rows.count - look), rows.stride, look});
    return status;
}

/* Late rows first: if causal, they see most, and earlier ones add little. */
static ra_status visit_reader(touching *t, int32_t layer)
{
    const ra_rowset *rows = &t->job->queries[t->reader];
    ra_status status = RA_OK;
    for (int64_t i = rows->piece_count - 1; i >= 0 && status == RA_OK; --i)
        status = visit_piece(t, layer, rows->pieces[i].rows);
    return status;
}

static ra_status visit_readers(touching *t, int32_t layer, int reader, int count)
{
    bool const all = count == 0;
    int const begin = all ? 0 : reader, end = all ? t->job->ranks : reader + count;
    ra_status status = RA_OK;
    for (int r = end - 1; r >= begin && status == RA_OK; --r) {
        t->reader = r;
        t->reader_count = end - begin;
        t->skip_begin = all ? r : begin;
        t->skip_end = all ? r + 1 : end;
        status = visit_reader(t, layer);
    }
    return status;
}

ra_status ra_predict_touch(ra_predict_job *job, ra_heads heads, int reader, int count,
                           ra_need *needs)
{
    touching t = {.job = job, .needs = needs};
    for (int32_t layer = 0; layer < ra_pattern_layer_count(job->pattern); ++layer) {
        if (ra_heads_common(ra_pattern_layer_heads(job->pattern, layer), heads) == 0)
            continue;
        ra_status const status = visit_readers(&t, layer, reader, count);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}
