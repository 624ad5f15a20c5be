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
    if (status == RA_OK && job->teams.count > 1)
        job->rounds = (int32_t)ra_max_i64(1, job->request->ring.rounds);
    if (status == RA_OK)
        job->step_count = ra_plan_count_steps(&job->teams, job->rounds);
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

int32_t ra_predict_plan_count(const ra_predict_job *job, int32_t groups)
{
    return ra_ring_plan_count(&job->request->ring, job->pattern, job->teams.count, groups);
}

static int64_t plan_array_bytes(const ra_predict_job *job, int32_t groups)
{
    int64_t const plans = ra_predict_plan_count(job, groups);
    return ra_predict_round_host(job, plans * (int64_t)sizeof(ra_plan));
}

/* What is left beside plans when the ring chooses groups and rounds: it has rows and keys, not yet
   tensors. */
static int64_t room_beside(const ra_predict_job *job, const ra_predict_bytes *held, int rank)
{
    int64_t const taken = job->request->on_device
                              ? job->request->context_bytes + held->map_copies
                              : ra_predict_ground_bytes(job) + held->plans + held->maps +
                                    held->cached + ra_predict_round(job, job->request->pair_bytes);
    return job->request->memory_bytes - taken -
           ra_predict_round(job, job->request->workspace_bytes) -
           ra_predict_tensors_room(job, rank);
}

static int64_t room_of(const ra_predict_job *job, const ra_predict_plan *plan, int rank)
{
    ra_predict_bytes held = {0};
    ra_predict_add_plan(job, plan, rank, true, &held);
    return room_beside(job, &held, rank);
}

/* A rank's plan of all heads and queries, as it looks for groups. */
typedef struct whole_plan {
    const ra_predict_job *job;
    const ra_predict_plan *plan;
    int rank;
    ra_predict_whole bytes;
    double stretch;
} whole_plan;

/* What so many groups of it take of the room. */
static int64_t needed_bytes(const void *context, int32_t groups, int64_t *buffers_out)
{
    const whole_plan *whole = context;
    const ra_predict_job *job = whole->job;
    const ra_predict_plan *plan = whole->plan;
    int const rank = whole->rank;
    ra_predict_bytes b = {0};
    ra_predict_add_group(job, plan, rank, ra_ring_group_of(&job->request->ring, groups, groups - 1),
                         &b);
    int32_t const count = ra_predict_plan_count(job, groups);
    int64_t const more = count > 1 ? ra_ring_more_map_bytes(&job->request->ring, groups, count,
                                                            &whole->bytes.read, whole->stretch) +
                                         (count - 1) * whole->bytes.others
                                   : 0;
    return ra_predict_group_bytes(job, rank, &b, buffers_out) + more +
           (job->request->on_device ? 0 : plan_array_bytes(job, groups));
}

/* Choose the groups of plans of all heads, as ra_ring_settle_groups does. */
static ra_groups_found choose_groups(ra_predict_job *job, const ra_predict_plan *plans,
                                     double stretch)
{
    const ra_ring_config *c = &job->request->ring;
    int const count = job->request->memory_bytes != INT64_MAX ? job->followed_count : 0;
    whole_plan wholes[RA_PREDICT_RANKS_ALL];
    int64_t rooms[RA_PREDICT_RANKS_ALL], buffers;
    int32_t const fewest = ra_ring_fewest_groups(c, job->pattern, job->ranks, job->teams.count);
    int32_t const most =
        ra_ring_most_groups(c, job->ranks, job->request->tile_rows, job->request->standard);
    int32_t const wanted = c->head_groups != 0 ? c->head_groups : fewest;
    ra_groups_found found = {wanted, wanted, wanted, 0}; /* without a limit */
    for (int i = 0; i < count; ++i) {
        int const rank = job->followed[i];
        wholes[i] = (whole_plan){job, &plans[i], rank, ra_predict_whole_bytes(job, &plans[i], rank),
                                 stretch};
        rooms[i] = room_of(job, &plans[i], rank);
        ra_groups_found const one =
            ra_ring_find_groups(c, needed_bytes, &wholes[i], rooms[i], fewest, most);
        found = i == 0 ? one
                       : (ra_groups_found){(int32_t)ra_max_i64(one.fit, found.fit),
                                           (int32_t)ra_max_i64(one.could, found.could),
                                           (int32_t)ra_max_i64(one.least, found.least), 0};
    }
    job->groups = ra_groups_taken(found);
    for (int i = 0; i < count; ++i) {
        int64_t const lack = needed_bytes(&wholes[i], job->groups, &buffers) - rooms[i];
        found.lack_bytes = ra_max_i64(found.lack_bytes, lack);
    }
    if (found.lack_bytes > 0)
        found.fit = RA_GROUPS_NONE;
    return found;
}

static void set_rounds(ra_predict_job *job, int32_t rounds, ra_schedule schedule)
{
    job->rounds = rounds;
    job->schedule = schedule;
    job->step_count = ra_plan_count_steps(&job->teams, rounds);
}

/* Plans of all heads and queries, in as many groups and rounds as the ring takes. */
static ra_status make_plans(ra_predict_job *job, const ra_plans_search *by, ra_predict_plan **plans,
                            ra_groups_found *found_out)
{
    const ra_ring_config *c = &job->request->ring;
    ra_heads const all = {0, 1, c->heads};
    ra_schedule const first = job->schedule;
    bool const sampled = job->sampled;
    ra_rounds_search search = ra_rounds_search_begin(job->rounds, by->failed);
    for (;;) {
        ra_status status = ra_predict_take(plans, job->followed_count, sizeof(**plans));
        if (status == RA_OK)
            status = ra_predict_plans(job, all, *plans);
        if (status != RA_OK)
            return status;
        *found_out = choose_groups(job, *plans, by->stretch);
        int32_t const more = ra_plan_more_rounds(c, &job->teams, job->rounds);
        bool const too_many = job->looks * more > ra_predict_looks_most * job->rounds;
        if (!ra_rounds_search_goes_on(&search, c, *found_out, too_many ? 0 : more))
            return RA_OK;
        ra_predict_free_plans(job, *plans);
        *plans = NULL;
        job->sampled = sampled;
        job->tried_rounds = true;
        set_rounds(job, search.rounds, ra_schedule_of_rounds(first, search.rounds));
    }
}

/* Plan `number` of so many, of some heads and the queries at hand, and all groups that go by it. */
static ra_status add_plans(ra_predict_job *job, const ra_predict_plan *plans, ra_heads heads,
                           int32_t number, int32_t count, ra_predict_bytes *totals,
                           ra_predict_times *times)
{
    const ra_ring_config *c = &job->request->ring;
    int32_t kv_heads = 0;
    for (int i = 0; i < job->followed_count; ++i) {
        int const rank = job->followed[i];
        for (int32_t g = number; g < job->groups; g += count)
            ra_predict_add_group(job, &plans[i], rank, ra_ring_group_of(c, job->groups, g),
                                 &totals[i]);
        ra_predict_add_plan(job, &plans[i], rank, true, &totals[i]);
        ra_predict_add_times(job, &plans[i], i, number, count, times);
    }
    for (int32_t g = number; g < job->groups; g += count)
        kv_heads += ra_ring_group_of(c, job->groups, g).kv_count;
    return ra_predict_cross(job, heads, kv_heads);
}

/* One of several plans: of a part of the queries, of all heads or of those of its group. */
static ra_status make_split(ra_predict_job *job, int32_t number, int32_t count,
                            ra_predict_bytes *totals, ra_predict_times *times)
{
    const ra_ring_config *c = &job->request->ring;
    ra_head_group const group = ra_ring_group_of(c, job->groups, number);
    ra_heads const heads = ra_ring_plan_heads(c, job->groups, count, number);
    ra_group_queries queries = {0};
    ra_predict_plan *plans = NULL;
    ra_status status = ra_predict_take(&plans, job->followed_count, sizeof(*plans));
    if (status == RA_OK)
        status = ra_group_queries_init(&job->layout, &group, job->pool, &queries);
    if (status == RA_OK) {
        job->queries = queries.rows;
        status = ra_predict_plans(job, heads, plans);
        if (status == RA_OK)
            status = add_plans(job, plans, heads, number, count, totals, times);
        job->queries = job->rows;
        ra_group_queries_fini(job->pool, job->ranks, &queries);
    }
    ra_predict_free_plans(job, plans);
    return status;
}

static ra_status make_totals(ra_predict_job *job, const ra_predict_plan *plans,
                             ra_predict_bytes *totals, ra_predict_times *times)
{
    ra_heads const all = {0, 1, job->request->ring.heads};
    ra_status status = RA_OK;
    int32_t const count = ra_predict_plan_count(job, job->groups);
    int64_t const plans_bytes = plan_array_bytes(job, job->groups);
    for (int i = 0; i < job->followed_count; ++i) {
        totals[i].plans = plans_bytes;
        if (count > 1) /* made to choose the groups, and given back */
            ra_predict_add_plan(job, &plans[i], job->followed[i], false, &totals[i]);
    }
    if (count == 1)
        return add_plans(job, plans, all, 0, 1, totals, times);
    for (int32_t i = 0; i < count && status == RA_OK; ++i)
        status = make_split(job, i, count, totals, times);
    return status;
}

/* Go back to what was tried, which lacks less than all that is left. */
static ra_status return_to(ra_predict_job *job, ra_plans_choice best, ra_schedule first,
                           ra_predict_plan **plans)
{
    ra_predict_free_plans(job, *plans);
    *plans = NULL;
    job->groups = best.groups;
    set_rounds(job, best.rounds, ra_schedule_of_rounds(first, best.rounds));
    ra_status const status = ra_predict_take(plans, job->followed_count, sizeof(**plans));
    return status == RA_OK
               ? ra_predict_plans(job, (ra_heads){0, 1, job->request->ring.heads}, *plans)
               : status;
}

/* As the ring measures several plans, or is refused them. */
static ra_plans_choice measure_splits(const ra_predict_job *job, double stretch,
                                      const ra_predict_plan *plans, const ra_predict_bytes *totals,
                                      int64_t *permille_out)
{
    ra_plans_choice tried = {job->groups, job->rounds, INT64_MIN};
    bool refused = false;
    *permille_out = 0;
    for (int i = 0; i < job->followed_count; ++i) {
        int const rank = job->followed[i];
        int64_t buffers;
        int64_t const needed = ra_predict_group_bytes(job, rank, &totals[i], &buffers);
        int64_t const room = room_beside(job, &totals[i], rank);
        int64_t const whole = ra_max_i64(1, ra_predict_read_maps(job, &plans[i]));
        refused = refused || room + ra_predict_tensors_room(job, rank) < 0;
        tried.lack_bytes = ra_max_i64(tried.lack_bytes, needed - room);
        *permille_out = ra_max_i64(*permille_out, 1000 * totals[i].read_maps / whole);
    }
    if (refused) {
        tried.lack_bytes = INT64_MAX;
        *permille_out = (int64_t)(2000 * stretch);
    }
    return tried;
}

/* Totals with the plans that an estimate chooses; *again_out: they do not fit, but others may. */
static ra_status try_plans(ra_predict_job *job, ra_plans_search *search, ra_predict_plan **plans,
                           ra_predict_bytes *totals, ra_predict_times *times, bool *again_out)
{
    ra_schedule const schedule = job->schedule;
    ra_groups_found found;
    int64_t permille;
    *again_out = false;
    ra_status status = make_plans(job, search, plans, &found);
    if (status != RA_OK)
        return status;
    bool const limited = job->request->memory_bytes != INT64_MAX;
    bool const goes_on = limited && ra_plans_search_may_go_on(search, &job->request->ring,
                                                              &job->teams, found, job->rounds);
    if (limited && !goes_on && ra_plans_search_returns(search, found, job->rounds))
        status = return_to(job, search->best, schedule, plans);
    if (status == RA_OK)
        status = ra_predict_begin_times(job, times);
    if (status == RA_OK)
        status = make_totals(job, *plans, totals, times);
    if (status != RA_OK || !goes_on || ra_predict_plan_count(job, job->groups) == 1)
        return status;
    ra_plans_choice const tried = measure_splits(job, search->stretch, *plans, totals, &permille);
    *again_out = tried.lack_bytes > 0;
    if (*again_out)
        ra_plans_search_go_on(search, found, tried, permille);
    return status;
}

/* Everything that a try has made or counted; the next begins as the first did. */
static void forget_try(ra_predict_job *job, ra_predict_plan **plans, ra_predict_bytes **totals,
                       ra_predict_times *times)
{
    ra_predict_free_plans(job, *plans);
    ra_predict_free_times(times);
    free(*totals);
    *plans = NULL;
    *totals = NULL;
    job->tried_plans = true;
    job->has_crossed = false;
    job->crossed_bytes = job->crossed_network_bytes = 0;
}

/* As try_plans, until they fit or no others may. */
static ra_status settle_plans(ra_predict_job *job, ra_predict_plan **plans,
                              ra_predict_bytes **totals, ra_predict_times *times)
{
    ra_schedule const schedule = job->schedule;
    int32_t const rounds = job->rounds;
    bool const sampled = job->sampled;
    ra_plans_search search = ra_plans_search_begin();
    for (;;) {
        bool again = false;
        ra_status status = ra_predict_take(totals, job->followed_count, sizeof(**totals));
        if (status == RA_OK)
            status = try_plans(job, &search, plans, *totals, times, &again);
        if (status != RA_OK || !again)
            return status;
        forget_try(job, plans, totals, times);
        job->sampled = sampled;
        set_rounds(job, rounds, schedule);
    }
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* What was chosen, of any kind of attention. */
static void fill_choices(const ra_predict_job *job, ra_prediction *out)
{
    out->blocks_expected = job->diagonal != NULL;
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
}

static void fill(const ra_predict_job *job, const ra_predict_bytes *totals, ra_prediction *out)
{
    const ra_ring_config *c = &job->request->ring;
    RA_ASSERT(totals != NULL);
    out->counted = !job->sampled && job->diagonal == NULL;
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
        out->exact = out->exact && !ra_predict_evicts(job, &totals[i]);
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

static ra_status predict(ra_predict_job *job, ra_predict_plan **plans, ra_predict_bytes **totals,
                         ra_predict_times *times)
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
    return status == RA_OK ? settle_plans(job, plans, totals, times) : status;
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
    ra_predict_plan *plans = NULL;
    ra_predict_bytes *totals = NULL;
    ra_predict_times times = {0};
    ra_prediction out = {.exact = true};
    ra_predict_beat(&job);
    choose_followed(&job);
    status = predict(&job, &plans, &totals, &times);
    if (status == RA_OK && request->ring.linear != RA_LINEAR_NONE) {
        ra_predict_linear(&job, &out);
    } else if (status == RA_OK) {
        fill(&job, totals, &out);
        status = ra_predict_end_times(&job, &times, &out);
    }
    if (status == RA_OK) {
        fill_choices(&job, &out);
        out.exact =
            out.exact && (request->on_device || !may_peak_before(&job, &out)) && !shares_maps(&job);
    }
    ra_predict_free_times(&times);
    ra_predict_free_plans(&job, plans);
    free(totals);
    ra_predict_free_rows(&job);
    free(job.halves);
    if (job.pool != NULL)
        ra_teams_fini(job.pool, &job.teams);
    ra_pattern_destroy(job.pattern);
    ra_pattern_destroy(job.diagonal);
    ra_pool_destroy(job.pool);
    ra_ledger_destroy(job.ledger);
    out.work = ra_predict_work(request);
    out.may_keep_idle = request->pool != RA_POOL_OFF;
    out.exact = out.exact && out.counted && !out.may_keep_idle && !job.tried_plans &&
                !(job.tried_rounds && request->cache != RA_CACHE_OFF);
    if (status == RA_OK)
        *prediction_out = out;
    return status;
}

void ra_prediction_fini(ra_prediction *prediction)
{
    free(prediction->steps);
    *prediction = (ra_prediction){0};
}
