/* Decisions in the ring's order, bytes by category, and the rank that holds most. */
#include "ringattn/predict.h"

#include "internal.h"
#include "ring/predict_job.h"
#include "ring/ring_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- decisions ------------------------------------------------------------------------------- */

/* What changes from rank to rank does so evenly but for the ends: others lie on the line between
   the followed ones before and after them. */
void ra_predict_weigh_followed(ra_predict_job *job)
{
    for (int i = 0; i < job->followed_count; ++i) {
        int const before = i > 0 ? job->followed[i] - job->followed[i - 1] - 1 : 0;
        int const after =
            i + 1 < job->followed_count ? job->followed[i + 1] - job->followed[i] - 1 : 0;
        job->weights[i] = 1 + 0.5 * (before + after);
    }
    job->readers = job->followed_count;
}

static void choose_followed(ra_predict_job *job)
{
    int const n = job->ranks;
    int const some[] = {0, 1, n / 4, n / 2 - 1, n / 2, 3 * (n / 4), n - 2, n - 1};
    bool const all = n <= RA_PREDICT_RANKS_ALL;
    job->followed_count = all ? n : (int)(sizeof(some) / sizeof(some[0]));
    for (int i = 0; i < job->followed_count; ++i)
        job->followed[i] = all ? i : some[i];
    job->sampled = !all;
    ra_predict_weigh_followed(job);
}

/* Ranks fill nodes one after the other. */
static ra_status make_teams(ra_predict_job *job)
{
    int const each = job->schedule == RA_SCHEDULE_SHARED ? job->request->ranks_per_node : 1;
    int *hosts = NULL;
    ra_status status = ra_predict_take(&hosts, job->ranks, sizeof(*hosts));
    for (int r = 0; r < job->ranks && status == RA_OK; ++r)
        hosts[r] = r / each;
    if (status == RA_OK)
        status = ra_teams_init(job->ranks, hosts, job->pool, &job->teams);
    free(hosts);
    if (status == RA_OK)
        job->rounds = ra_plan_first_rounds(&job->request->ring, &job->teams);
    return status;
}

/* Which ranks share memory: settled before the layout, which goes by what is sent. */
static ra_status choose_teams(ra_predict_job *job)
{
    const ra_predict_request *r = job->request;
    ra_schedule const asked = r->ring.schedule;
    bool const shares = asked == RA_SCHEDULE_SHARED || asked == RA_SCHEDULE_AUTO;
    job->schedule = asked == RA_SCHEDULE_RING ? RA_SCHEDULE_RING : RA_SCHEDULE_DIRECT;
    if (r->ring.linear != RA_LINEAR_NONE) {
        job->schedule = RA_SCHEDULE_SCAN; /* nobody reads another's keys */
        return RA_OK;
    }
    if (shares && job->ranks > 1 && r->may_share && r->ranks_per_node > 1)
        job->schedule = RA_SCHEDULE_SHARED;
    return make_teams(job);
}

static ra_status choose_schedule(ra_predict_job *job)
{
    bool full = false;
    if (job->request->ring.schedule != RA_SCHEDULE_AUTO || job->ranks == 1 ||
        job->schedule == RA_SCHEDULE_SHARED || job->rounds > 1)
        return RA_OK;
    ra_status const status = ra_predict_is_full(job, &full);
    /* Of very many ranks, hops are not followed: they send as much, but most of it to neighbours.
     */
    job->hops_left_out = full && job->ranks > RA_PREDICT_RANKS_ALL;
    if (full && !job->hops_left_out)
        job->schedule = RA_SCHEDULE_RING;
    return status;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* What was chosen, of any kind of attention. */
static void fill_choices(const ra_predict_job *job, ra_prediction *out)
{
    out->blocks_expected = job->diagonal != NULL;
    out->counted = !job->sampled && job->diagonal == NULL;
    out->ranks = job->ranks;
    out->ranks_followed = job->followed_count;
    out->layout = job->layout.kind;
    memcpy(out->left_out, job->left_out, sizeof(out->left_out));
    out->schedule = job->schedule;
    out->hops_left_out = job->hops_left_out && job->rounds == 1; /* in several, nothing hops */
    out->chunk = job->layout.chunk;
    out->head_groups = job->groups;
    out->rounds = job->rounds;
    out->imbalance = job->layout.imbalance;
    out->full_ring_bytes = ra_predict_full_ring_bytes(job);
    out->may_keep_idle = job->request->pool != RA_POOL_OFF;
    out->work = ra_predict_work(job->request);
}

static void fill(const ra_predict_job *job, const ra_predict_bytes *totals, ra_prediction *out)
{
    const ra_ring_config *c = &job->request->ring;
    RA_ASSERT(totals != NULL);
    /* Areas are counted piece by piece, so they are nearer where chunks stand for others. */
    out->live_pairs = job->sampled ? job->area * (double)c->batch : 0;
    for (int i = 0; i < job->followed_count; ++i) {
        int const rank = job->followed[i];
        ra_predict_memory const memory = ra_predict_total(job, &totals[i], rank);
        if (!job->sampled)
            out->live_pairs += totals[i].pairs * (double)c->batch;
        out->sent_bytes += job->weights[i] * totals[i].sent_bytes;
        if (totals[i].map_arrays > out->tilemap_bytes)
            out->tilemap_bytes = totals[i].map_arrays;
        out->exact = out->exact && !memory.evicts && !ra_predict_evicts(job, &totals[i]);
        ra_predict_keep_fullest(job, &memory, rank, out);
    }
    if (job->has_crossed)
        out->sent_bytes = job->crossed_bytes;
}

/*
 * Whether the peak may come before the tensors: while blocks are drawn or listed, or while maps are
 * cut, whose scratch is not predicted. It grows with the pieces of slices that a chunk meets, from
 * the room for FIRST on; each takes up to PIECE_BYTES, with its place in their order. Linear
 * attention cuts none. Pairs of blocks, what kernels work in, and keys that others read in place
 * are there already.
 */
static bool may_peak_before(const ra_predict_job *job, const ra_prediction *out)
{
    enum { PIECE_BYTES = 512, FIRST = 16 };
    int64_t const pairs = ra_predict_round_host(job, job->request->pair_bytes);
    int64_t later = out->peak_bytes - pairs - out->memory_bytes[RA_MEM_TILEMAP] -
                    out->memory_bytes[RA_MEM_PATTERN_CACHE] - out->memory_bytes[RA_MEM_WORKSPACE];
    if (job->schedule == RA_SCHEDULE_SHARED)
        later -= ra_predict_keys_bytes(job, job->request->ring.kv_heads, out->rows);
    bool const linear = job->request->ring.linear != RA_LINEAR_NONE;
    int64_t const cutting = linear ? 0 : PIECE_BYTES * (job->pieces + FIRST);
    return job->making_bytes + pairs > out->peak_bytes || cutting > later;
}

/* Whether a pattern cache keeps one of maps that are counted for each plan: those of no queries, in
   parts of fewer rows than there are parts. */
static bool shares_maps(const ra_predict_job *job)
{
    int32_t const parts = ra_ring_parts(&job->request->ring, job->groups);
    bool some = false;
    for (int i = 0; i < job->followed_count; ++i)
        some = some || job->rows[job->followed[i]].row_count < parts;
    return parts > 1 && some && job->request->cache != RA_CACHE_OFF;
}

/* Of a prediction that is whole but for this; `exact` so far: no cache evicts. */
static bool is_exact(const ra_predict_job *job, const ra_prediction *out)
{
    const ra_predict_request *r = job->request;
    bool const tried = job->tried_plans || (job->tried_rounds && r->cache != RA_CACHE_OFF);
    return out->exact && out->counted && !out->may_keep_idle && !tried && !shares_maps(job) &&
           (r->on_device || !may_peak_before(job, out));
}

static ra_status make_pattern(ra_predict_job *job)
{
    const ra_predict_request *r = job->request;
    ra_ledger_snapshot taken;
    ra_status status = ra_ledger_create(INT64_MAX, &job->ledger);
    if (status != RA_OK)
        return status;
    ra_pool_config const config = {.mode = r->on_device ? RA_POOL_OFF
                                                        : r->pool, /* the pattern is the host's */
                                   .memory = ra_memory_host(),
                                   .ledger = job->ledger};
    status = ra_pool_create(&config, &job->pool);
    if (status == RA_OK && ra_predict_is_thin(r))
        return ra_predict_make_thin(job);
    if (status == RA_OK)
        status =
            ra_pattern_create(r->pattern, r->ring.seq, r->ring.heads, job->pool, &job->pattern);
    if (status != RA_OK)
        return status;
    ra_ledger_read(job->ledger, &taken);
    job->pattern_bytes = taken.current_bytes[RA_MEM_TILEMAP];
    job->making_bytes = taken.reserved_peak_bytes;
    return RA_OK;
}

static ra_status predict(ra_predict_job *job, ra_predict_bytes **totals, ra_predict_times *times)
{
    ra_status status = make_pattern(job);
    if (status == RA_OK)
        status = choose_teams(job);
    if (status == RA_OK)
        status = ra_predict_layout(job);
    if (status != RA_OK || job->request->ring.linear != RA_LINEAR_NONE)
        return status;
    ra_predict_follow_busiest(job);
    status = choose_schedule(job);
    return status == RA_OK ? ra_predict_settle_plans(job, totals, times) : status;
}

ra_status ra_predict(const ra_predict_request *request, ra_prediction *prediction_out)
{
    RA_ASSERT(request->ranks >= 1 && request->ranks <= RA_PREDICT_RANKS_MAX);
    RA_ASSERT(request->ranks_per_node >= 1 && request->tile_rows >= 1);
    RA_ASSERT(request->cache_entries >= 0 && request->pair_bytes >= 0);
    ra_status status = ra_ring_check_config(&request->ring, request->standard);
    if (status != RA_OK)
        return status;
    if (request->ring.dense_mask && ra_predict_is_thin(request)) {
        ra_log(RA_LOG_ERROR,
               "attention.mask: dense_blocks is planned with random blocks of up to %d rows of "
               "them: take larger blocks, or analytic",
               RA_PREDICT_DRAWN_ROWS);
        return RA_ERR_UNSUPPORTED;
    }
    ra_predict_job job = {.request = request, .ranks = request->ranks, .rounds = 1};
    ra_predict_bytes *totals = NULL;
    ra_predict_times times = {0};
    ra_prediction out = {.exact = true};
    ra_predict_beat(&job);
    choose_followed(&job);
    status = predict(&job, &totals, &times);
    if (status == RA_OK && request->ring.linear != RA_LINEAR_NONE) {
        ra_predict_linear(&job, &out);
    } else if (status == RA_OK) {
        fill(&job, totals, &out);
        status = ra_predict_end_times(&job, &times, &out);
    }
    if (status == RA_OK) {
        fill_choices(&job, &out);
        out.exact = is_exact(&job, &out);
    }
    ra_predict_free_times(&times);
    free(totals);
    ra_predict_free_rows(&job);
    free(job.halves);
    if (job.pool != NULL)
        ra_teams_fini(job.pool, &job.teams);
    ra_pattern_destroy(job.pattern);
    ra_pattern_destroy(job.diagonal);
    ra_pool_destroy(job.pool);
    ra_ledger_destroy(job.ledger);
    if (status == RA_OK)
        *prediction_out = out;
    return status;
}

void ra_prediction_fini(ra_prediction *prediction)
{
    free(prediction->steps);
    *prediction = (ra_prediction){0};
}
