/*
 * Random blocks that are too many to be drawn and counted: their expected values.
 *
 * The pattern is made with every block kept, row of blocks by row of blocks. A slice of it has
 * three kinds of blocks: those that all its queries see, each kept with probability d; the few that
 * a band cuts, which are drawn as in the ring, with the run that they begin or end; and the block
 * on the diagonal, which is kept. Draws are independent, so a block that R rows of blocks see is
 * needed by one of them with probability 1 - (1 - d)^R.
 */
#include "internal.h"
#include "ring/predict_job.h"

#include <math.h>
#include <stdlib.h>

enum {
    MISS_LEAST = -700, /* its exp is as good as 0 here */
    GOES_ON_MAX = 64   /* blocks that a run is followed for; a longer one counts as two */
};

/* Whether expected values can be computed at all. */
static bool can_expect(const ra_predict_request *r)
{
    return r->pattern->segments == NULL && !r->ring.dense_mask &&
           r->ring.layout != RA_LAYOUT_BALANCED;
}

/* Slices that counting drawn blocks would visit: each kept one once per layout tried, and for
   stripes once per rank that has queries of its row. */
static double visits_of(const ra_predict_request *r)
{
    enum { DRAWS_PER_VISIT = 256 }; /* which take as long */
    const ra_pattern_config *c = r->pattern;
    double const rows = (double)ra_div_ceil(r->ring.seq, c->block_size);
    double const kept = rows * (1 + (rows - 1) * c->block_density);
    double const stripes = (double)ra_min_i64(r->ranks, c->block_size);
    bool const is_auto = r->ring.layout == RA_LAYOUT_AUTO && r->ranks > 1;
    double const times = is_auto                               ? RA_LAYOUT_AUTO - 1 + stripes
                         : r->ring.layout == RA_LAYOUT_STRIPED ? stripes
                                                               : 1;
    return rows * rows / DRAWS_PER_VISIT + kept * times;
}

bool ra_predict_is_thin(const ra_predict_request *r)
{
    const ra_pattern_config *c = r->pattern;
    int64_t const rows_max = r->drawn_rows_max > 0 ? r->drawn_rows_max : RA_PREDICT_DRAWN_ROWS;
    int64_t const most = r->visits_max > 0 ? r->visits_max : RA_PREDICT_VISITS;
    if (c->blocks_kind != RA_BLOCKS_RANDOM || c->block_size < 1)
        return false;
    return ra_div_ceil(r->ring.seq, c->block_size) > rows_max ||
           (can_expect(r) && visits_of(r) > (double)most);
}

/* Bytes of the drawn map: an offset per row of blocks, and two numbers per run. A row has as many
   runs as kept blocks, less the pairs of neighbours among them. Of a row's n - 1 pairs, two, or one
   at the ends, are with the block on the diagonal. */
static int64_t drawn_bytes(const ra_predict_job *job)
{
    const ra_pattern_config *c = job->request->pattern;
    enum { RUN_BYTES = 2 * sizeof(int32_t) };
    double const most = 1e18; /* bytes: exceeds any memory, yet can be added up */
    int64_t const rows = ra_div_ceil(job->request->ring.seq, c->block_size);
    double const n = (double)rows, d = c->block_density;
    double const kept = n * (1 + (n - 1) * d);
    double const joined = 2 * (n - 1) * d + (n - 1) * (n - 2) * d * d;
    return ra_predict_round_host(job, (rows + 1) * (int64_t)sizeof(int64_t)) +
           ra_predict_round_host(job, (int64_t)fmin(most, RUN_BYTES * (kept - joined)));
}

ra_status ra_predict_make_thin(ra_predict_job *job)
{
    const ra_predict_request *r = job->request;
    ra_pattern_config config = *r->pattern;
    ra_ledger_snapshot taken;
    if (config.segments != NULL) {
        ra_log(RA_LOG_ERROR,
               "pattern.blocks.kind: random is planned with dilated branches for up to %d rows of "
               "blocks: take larger blocks",
               RA_PREDICT_DRAWN_ROWS);
        return RA_ERR_UNSUPPORTED;
    }
    config.blocks_kind = RA_BLOCKS_LOCAL_WINDOW;
    config.block_width = INT32_MAX;
    ra_status status =
        ra_pattern_create(&config, r->ring.seq, r->ring.heads, job->pool, &job->pattern);
    if (status != RA_OK)
        return status;
    ra_ledger_read(job->ledger, &taken);
    job->pattern_bytes = taken.current_bytes[RA_MEM_TILEMAP] + drawn_bytes(job);
    config.block_width = 0;
    return ra_pattern_create(&config, r->ring.seq, r->ring.heads, job->pool, &job->diagonal);
}

double ra_predict_area(const ra_predict_job *job, ra_range queries)
{
    ra_predict_beat(job);
    double const all = (double)ra_pattern_area(job->pattern, queries);
    double const chance = job->request->pattern->block_density;
    if (job->diagonal == NULL)
        return all;
    return chance * all + (1 - chance) * (double)ra_pattern_area(job->diagonal, queries);
}

/* ---- slices ---------------------------------------------------------------------------------- */

typedef struct thinning {
    const ra_pattern_config *config;
    ra_slice_visitor *visit;
    void *context;
    double *chance;
} thinning;

/* Key blocks [begin, end) of a slice. */
static ra_status pass_on(const thinning *t, const ra_slice *slice, int64_t begin, int64_t end,
                         double chance)
{
    int64_t const size = t->config->block_size;
    int64_t const first = ra_max_i64(slice->k_begin, begin * size);
    int64_t const after = ra_min_i64(slice->k_begin + slice->k_count, end * size);
    ra_slice part = *slice;
    part.k_begin = first;
    part.k_count = after - first;
    ra_band_shift(slice->k_begin - first, &part.lo, &part.hi);
    *t->chance = chance;
    if (first >= after || !ra_slice_trim(&part))
        return RA_OK;
    return t->visit(t->context, &part);
}

/* Draw blocks from `at` up to, but not including, `stop`, forward or back. A run that goes on
   beyond is followed, at most to `limit`, and makes one slice. *next_out: the first block not
   drawn. */
static ra_status draw(const thinning *t, const ra_slice *slice, int64_t at, int64_t stop,
                      int64_t limit, int step, int64_t *next_out)
{
    int64_t const row = slice->q_begin / t->config->block_size;
    ra_status status = RA_OK;
    while (step * (stop - at) > 0 && status == RA_OK) {
        int64_t const from = at;
        bool kept = true;
        while (at != limit && step * (at - stop) < GOES_ON_MAX &&
               (kept = ra_block_is_drawn(t->config, row, at)))
            at += step;
        int64_t const to = at - step;
        if (at != from)
            status = pass_on(t, slice, ra_min_i64(from, to), ra_max_i64(from, to) + 1, 1);
        at += kept ? 0 : step;
    }
    *next_out = at;
    return status;
}

/* Blocks [begin, end), which all queries of a slice see, around that of the diagonal. */
static ra_status leave_to_chance(const thinning *t, const ra_slice *slice, int64_t begin,
                                 int64_t end)
{
    int64_t const row = slice->q_begin / t->config->block_size;
    int64_t const middle = ra_min_i64(ra_max_i64(row, begin), end);
    int64_t const right = middle == row && row < end ? row + 1 : middle;
    double const chance = t->config->block_density;
    ra_status status = RA_OK;
    if (chance > 0)
        status = pass_on(t, slice, begin, middle, chance);
    if (status == RA_OK)
        status = pass_on(t, slice, middle, right, 1);
    if (status == RA_OK && chance > 0)
        status = pass_on(t, slice, right, end, chance);
    return status;
}

/* A slice of one row of blocks. What the band cuts on the left and on the right is drawn. */
static ra_status split(void *context, const ra_slice *slice)
{
    const thinning *t = context;
    int64_t const size = t->config->block_size;
    int64_t const first = slice->k_begin / size;
    int64_t const end = ra_div_ceil(slice->k_begin + slice->k_count, size);
    int64_t left = first, right = end; /* blocks between them are seen by all queries */
    if (slice->lo > RA_BAND_NONE_LO && slice->lo + slice->q_count > 1)
        left = ra_div_ceil(slice->k_begin + slice->lo + slice->q_count - 1, size);
    if (slice->hi < slice->k_count - 1)
        right = (slice->k_begin + slice->hi + 1) / size;
    if (left >= right)
        left = right = end;
    if (t->config->block_density >= 1)
        return pass_on(t, slice, first, end, 1);
    int64_t begin, last;
    ra_status status = draw(t, slice, first, left, end, 1, &begin);
    if (status == RA_OK)
        status = draw(t, slice, end - 1, ra_max_i64(begin, right) - 1, begin - 1, -1, &last);
    return status == RA_OK ? leave_to_chance(t, slice, begin, last + 1) : status;
}

ra_status ra_predict_visit(const ra_predict_job *job, int32_t layer, int64_t q_begin,
                           int64_t q_count, ra_slice_visitor *visit, void *context,
                           double *chance_out)
{
    thinning t = {job->request->pattern, visit, context, chance_out};
    *chance_out = 1;
    ra_predict_beat(job);
    if (job->diagonal == NULL)
        return ra_pattern_visit(job->pattern, layer, q_begin, q_count, visit, context);
    return ra_pattern_visit(job->pattern, layer, q_begin, q_count, split, &t);
}

/* Two blocks with k - 1 others between them join if both are kept and none of the others is held:
   d^2 (1 - s)^(k - 1), summed over all pairs of n blocks. */
double ra_predict_joined_runs(double chance, double share, int64_t blocks)
{
    double const gap = 1 - share, n = (double)blocks;
    if (chance >= 1 || blocks < 2)
        return 0;
    return chance * chance * ((n - 1) / share - gap * (1 - pow(gap, n - 1)) / (share * share));
}

/* ---- needs ----------------------------------------------------------------------------------- */

/* Rows of blocks that see the same keys are one range. */
ra_status ra_predict_add_thin(ra_need *need, ra_range range, double chance, double rows_of_blocks)
{
    double const miss = fmax(MISS_LEAST, chance < 1 ? rows_of_blocks * log1p(-chance) : MISS_LEAST);
    ra_thin_range *last = need->thin_count > 0 ? &need->thin[need->thin_count - 1] : NULL;
    if (last != NULL && last->rows.begin == range.begin && last->rows.count == range.count) {
        last->miss = fmax(MISS_LEAST, last->miss + miss);
        return RA_OK;
    }
    ra_thin_range const next = {range, miss};
    return ra_predict_push(&need->thin, &need->thin_count, &need->thin_room, &next, sizeof(next));
}

/* Where a range begins or ends. */
typedef struct border {
    int64_t at;
    int change;
    double miss;
} border;

/* Rows between borders are needed with the probability that a row of blocks that sees them keeps
   them. A piece of needed rows begins at every needed block after one that is not. */
static void expect(const border *borders, int64_t count, double block_rows, ra_need *need)
{
    double miss = 0, before = 0, rows = 0, pieces = 0;
    int64_t open = 0;
    for (int64_t i = 0; i + 1 < count; ++i) {
        open += borders[i].change;
        miss = open > 0 ? miss + borders[i].miss : 0;
        double const length = (double)(borders[i + 1].at - borders[i].at);
        if (length <= 0)
            continue;
        double const needed = open > 0 ? -expm1(miss) : 0;
        rows += needed * length;
        pieces +=
            needed * (1 - before) + (fmax(1, length / block_rows) - 1) * needed * (1 - needed);
        before = needed;
    }
    need->row_count = llround(rows);
    need->piece_count = llround(pieces);
}

ra_status ra_predict_list_thin(const ra_predict_job *job, int owner, ra_need *need)
{
    const ra_rowset *rows = &job->rows[owner];
    ra_thin_range *const thin = need->thin;
    int64_t const count = need->thin_count;
    border *borders = NULL;
    if (thin == NULL)
        return RA_OK;
    need->thin = NULL;
    need->thin_count = need->thin_room = 0;
    ra_status status = ra_predict_take(&borders, 2 * count, sizeof(*borders));
    for (int64_t i = 0; i < count && status == RA_OK; ++i) {
        ra_range const range = thin[i].rows;
        RA_ASSERT(range.stride == 1); /* except in dilated branches, ranges fill a piece's rows */
        borders[2 * i] = (border){range.begin, 1, thin[i].miss};
        borders[2 * i + 1] = (border){range.begin + range.count, -1, -thin[i].miss};
        status = ra_predict_push_range(need, range);
    }
    if (status == RA_OK)
        status = ra_predict_list_unit(need, rows);
    if (status == RA_OK) {
        double const stride = (double)rows->pieces[0].rows.stride;
        qsort(borders, (size_t)(2 * count), sizeof(*borders), ra_compare_i64); /* by at, in front */
        expect(borders, 2 * count, fmax(1, (double)job->request->pattern->block_size / stride),
               need);
    }
    free(borders);
    free(thin);
    return status;
}
