/* Decisions in the ring's order, bytes by category, and the rank that holds most. */
#include "ringattn/predict.h"

#include "internal.h"
#include "ring/predict_internal.h"
#include "ring/ring_internal.h"

#include <math.h>
#include <stdlib.h>

static int64_t keys_bytes(const ra_predict_job *job, int32_t kv_heads, int64_t rows)
{
    const ra_ring_config *c = &job->request->ring;
    return 2 * c->batch * rows * kv_heads * c->dim * (int64_t)ra_dtype_bytes(c->dtype);
}

static int64_t grads_bytes(const ra_predict_job *job, int32_t kv_heads, int64_t rows)
{
    const ra_ring_config *c = &job->request->ring;
    return 2 * c->batch * rows * kv_heads * c->dim * (int64_t)sizeof(float);
}

/* Of memory that a team shares, in proportion to rows; whole bytes, lower places first. */
static int64_t share_of(const ra_predict_job *job, int rank, int64_t bytes)
{
    int64_t before, rows;
    int64_t const own = job->rows[rank].row_count;
    ra_predict_team_rows(job, rank, &before, &rows);
    if (rows == 0)
        return 0;
    int64_t const taken = ra_max_i64(bytes, 1); /* a window is never empty */
    int64_t const rest = taken % rows;
    return taken / rows * own + ra_min_i64(rest, before + own) - ra_min_i64(rest, before);
}

/* What a buffer of the held rows counts for: this rank's, or its share of the team's. */
static int64_t counted(const ra_predict_job *job, int rank, int64_t bytes)
{
    return job->schedule == RA_SCHEDULE_SHARED ? share_of(job, rank, bytes)
                                               : ra_predict_round(bytes);
}

static void raise_to(int64_t *bytes, int64_t least)
{
    *bytes = *bytes > least ? *bytes : least;
}

/* ---- without standing buffers: what a step holds at most --------------------------------------
 */

typedef struct passing {
    int64_t held, partial, arriving, most; /* rounded */
} passing;

static void hold(passing *p, int64_t *region, int64_t counted_bytes, int64_t besides)
{
    *region = counted_bytes;
    raise_to(&p->most, p->held + p->partial + p->arriving + besides);
}

/* Forward and backward alike: what is sent is packed, what is held arrives, the sent is given
   back; then partial gradients, and those that come. */
static void pass_steps(const ra_predict_job *job, const ra_predict_plan *plan, int rank,
                       int32_t kv_heads, bool backward, passing *p)
{
    bool const shared = job->schedule == RA_SCHEDULE_SHARED; /* windows are taken in every step */
    for (int s = 1; s < job->step_count; ++s) {
        const ra_predict_step *step = &plan->steps[s];
        int64_t const sent = ra_predict_round(keys_bytes(job, kv_heads, step->sent_rows));
        int64_t const held = keys_bytes(job, kv_heads, step->held_rows);
        int64_t const grads = grads_bytes(job, kv_heads, step->grad_rows);
        raise_to(&p->most, p->held + p->partial + p->arriving + sent);
        if (held > 0 || shared)
            hold(p, &p->held, counted(job, rank, held), sent);
        if (backward && (grads > 0 || shared))
            hold(p, &p->partial, counted(job, rank, grads), 0);
        if (s + 1 == job->step_count || !plan->steps[s + 1].forwards)
            p->held = 0;
        if (!backward)
            continue;
        p->arriving = 0;
        if (step->grad_in_rows > 0)
            hold(p, &p->arriving, ra_predict_round(grads_bytes(job, kv_heads, step->grad_in_rows)),
                 0);
    }
    p->held = p->partial = p->arriving = 0;
}

/* ---- bytes of a rank's plans ------------------------------------------------------------------
 */

typedef struct group_bytes {
    int64_t state, grads, delta, shared;
    int64_t sent, held, partial, arriving;
    int64_t passing;
    double sent_sum;
} group_bytes;

static void add_group(const ra_predict_job *job, const ra_predict_plan *plan, int rank,
                      ra_head_group g, group_bytes *b)
{
    const ra_ring_config *c = &job->request->ring;
    bool const shared = job->schedule == RA_SCHEDULE_SHARED;
    int64_t const lines = c->batch * job->rows[rank].row_count * g.q_count;
    int64_t const kv_lines = c->batch * job->rows[rank].row_count * g.kv_count;
    int64_t const row = c->dim * (int64_t)sizeof(float);
    int live = plan->steps[0].map.runs > 0;
    passing p = {0};
    for (int s = 1; s < job->step_count; ++s) {
        const ra_predict_step *step = &plan->steps[s];
        live += step->map.runs > 0;
        raise_to(&b->sent, keys_bytes(job, g.kv_count, step->sent_rows));
        raise_to(&b->held, keys_bytes(job, g.kv_count, step->held_rows));
        b->sent_sum += (c->backward ? 2 : 1) * (double)keys_bytes(job, g.kv_count, step->sent_rows);
        if (!c->backward)
            continue;
        raise_to(&b->partial, grads_bytes(job, g.kv_count, step->grad_rows));
        raise_to(&b->arriving, grads_bytes(job, g.kv_count, step->grad_in_rows));
        b->sent_sum += (double)grads_bytes(job, g.kv_count, step->grad_out_rows);
    }
    if (live > 1)
        raise_to(&b->state, lines * (row + 2 * (int64_t)sizeof(float)));
    pass_steps(job, plan, rank, g.kv_count, false, &p);
    if (c->backward) {
        b->delta = c->batch * job->rows[rank].row_count * c->heads * (int64_t)sizeof(float);
        if (shared)
            raise_to(&b->shared, 2 * kv_lines * row);
        if (c->dtype != RA_F32)
            raise_to(&b->grads, (lines + (shared ? 0 : 2 * kv_lines)) * row);
        pass_steps(job, plan, rank, g.kv_count, true, &p);
    }
    raise_to(&b->passing, p.most);
}

static int64_t accumulator_bytes(const group_bytes *b)
{
    return ra_predict_round(b->state) + ra_predict_round(b->grads) + ra_predict_round(b->delta) +
           b->shared;
}

static int64_t buffer_bytes(const ra_predict_job *job, int rank, const group_bytes *b)
{
    int const count = job->request->ring.comm_buffers;
    bool const windows = job->schedule == RA_SCHEDULE_SHARED;
    int64_t each = ra_predict_round(b->sent);
    if (count == 0)
        return 0;
    if (!windows || job->teams.count > 1)
        each += counted(job, rank, b->held);
    if (!windows || (job->teams.count > 1 && job->request->ring.backward))
        each += counted(job, rank, b->partial);
    return count * each + ra_predict_round(b->arriving);
}

static int64_t plan_bytes(const ra_predict_job *job, const ra_predict_plan *plan, int rank)
{
    int64_t const team = ra_teams_size(&job->teams, job->teams.team[rank]);
    int64_t sum = ra_predict_round(job->step_count *
                                   ((int64_t)sizeof(ra_step) + team * (int64_t)sizeof(ra_part)));
    for (int s = 0; s < job->step_count; ++s) {
        const ra_predict_step *step = &plan->steps[s];
        sum += ra_predict_round(step->map.bytes) + step->part_bytes +
               ra_predict_round(step->sent_pieces * (int64_t)sizeof(ra_row_piece));
    }
    return sum;
}

/* The pattern's description, and every rank's rows. */
static int64_t ground_bytes(const ra_predict_job *job)
{
    int64_t const n = job->ranks;
    int64_t sum = job->pattern_bytes + ra_predict_round(n * (int64_t)sizeof(ra_rowset)) +
                  ra_predict_round((4 * n + 1) * (int64_t)sizeof(int));
    for (int r = 0; r < job->ranks; ++r)
        sum += ra_predict_round(job->rows[r].piece_count * (int64_t)sizeof(ra_row_piece));
    return sum;
}

/* ---- a rank's total ---------------------------------------------------------------------------
 */

typedef struct rank_total {
    group_bytes group;
    int64_t plans, map_arrays;
    double pairs;
} rank_total;

static int64_t add_tensors(const ra_predict_job *job, int rank, int64_t *memory)
{
    const ra_ring_config *c = &job->request->ring;
    int64_t const rows = c->batch * job->rows[rank].row_count;
    int64_t const element = (int64_t)ra_dtype_bytes(c->dtype);
    int64_t const q = rows * c->heads * c->dim * element, k = rows * c->kv_heads * c->dim * element;
    int64_t const lse = rows * c->heads * (int64_t)sizeof(float);
    bool const shared = job->schedule == RA_SCHEDULE_SHARED;
    memory[RA_MEM_QKV] = ra_predict_round(q) + (shared ? 2 * k : 2 * ra_predict_round(k));
    memory[RA_MEM_OUTPUT] = ra_predict_round(q);
    if (c->backward || job->request->keeps_lse)
        memory[RA_MEM_LSE] = ra_predict_round(lse);
    if (c->backward) {
        memory[RA_MEM_QKV] += ra_predict_round(q);
        memory[RA_MEM_GRADS] = ra_predict_round(q) + 2 * ra_predict_round(k);
    }
    return c->backward ? 4 * q + 4 * k + lse : 2 * q + 2 * k;
}

static int64_t total_of(const ra_predict_job *job, const rank_total *t, int rank, int64_t *memory,
                        int64_t *floor_out)
{
    const ra_predict_request *r = job->request;
    for (int i = 0; i < RA_MEM_CATEGORY_COUNT; ++i)
        memory[i] = 0;
    *floor_out = add_tensors(job, rank, memory);
    memory[RA_MEM_ACCUMULATOR] = accumulator_bytes(&t->group);
    memory[RA_MEM_WORKSPACE] = ra_predict_round(r->workspace_bytes);
    memory[RA_MEM_TILEMAP] = ground_bytes(job) + t->plans;
    memory[RA_MEM_COMM_BUFFER] = buffer_bytes(job, rank, &t->group);
    /* Inputs are read before passes begin: one of the two moments is the fuller. */
    int64_t const most = r->ring.comm_buffers == 0 ? t->group.passing : 0;
    if (ra_predict_round(r->staging_bytes) > ra_predict_round(r->io_bytes) + most) {
        memory[RA_MEM_IO] = ra_predict_round(r->staging_bytes);
    } else {
        memory[RA_MEM_IO] = ra_predict_round(r->io_bytes);
        memory[RA_MEM_COMM_BUFFER] += most;
    }
    int64_t sum = 0;
    for (int i = 0; i < RA_MEM_CATEGORY_COUNT; ++i)
        sum += memory[i];
    return sum;
}

/* ---- decisions --------------------------------------------------------------------------------
 */

static void choose_followed(ra_predict_job *job)
{
    int const n = job->ranks;
    if (n <= RA_PREDICT_RANKS_ALL) {
        for (int r = 0; r < n; ++r)
            job->followed[r] = r;
        job->followed_count = n;
        return;
    }
    int const some[] = {0, 1, n / 4, n / 2 - 1, n / 2, 3 * (n / 4), n - 2, n - 1};
    job->followed_count = (int)(sizeof(some) / sizeof(some[0]));
    for (int i = 0; i < job->followed_count; ++i)
        job->followed[i] = some[i];
    job->sampled = true;
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
    job->step_count = 1;
    for (int d = 1; d < job->teams.count && status == RA_OK; ++d)
        job->step_count += ra_teams_turns(&job->teams, d);
    return status;
}

/* Which ranks share memory: settled before the layout, which goes by what is sent. */
static ra_status choose_teams(ra_predict_job *job)
{
    const ra_predict_request *r = job->request;
    ra_schedule const asked = r->ring.schedule;
    bool const shares = asked == RA_SCHEDULE_SHARED || asked == RA_SCHEDULE_AUTO;
    job->schedule = asked == RA_SCHEDULE_RING ? RA_SCHEDULE_RING : RA_SCHEDULE_DIRECT;
    if (shares && job->ranks > 1 && r->may_share && r->ranks_per_node > 1)
        job->schedule = RA_SCHEDULE_SHARED;
    return make_teams(job);
}

static ra_status choose_schedule(ra_predict_job *job)
{
    bool full = false;
    if (job->request->ring.schedule != RA_SCHEDULE_AUTO || job->ranks == 1 ||
        job->schedule == RA_SCHEDULE_SHARED)
        return RA_OK;
    ra_status const status = ra_predict_is_full(job, &full);
    /* Of very many ranks, hops are not followed: what they send is the same. */
    if (full && job->ranks <= RA_PREDICT_RANKS_ALL)
        job->schedule = RA_SCHEDULE_RING;
    return status;
}

/* What a rank's tensors will take, or where the caller takes them from elsewhere, keys alone. */
static int64_t tensors_room(const ra_predict_job *job, int rank)
{
    int64_t memory[RA_MEM_CATEGORY_COUNT] = {0};
    bool const shared = job->schedule == RA_SCHEDULE_SHARED;
    if (!job->request->ring.tensors_follow)
        return shared ? keys_bytes(job, job->request->ring.kv_heads, job->rows[rank].row_count) : 0;
    (void)add_tensors(job, rank, memory);
    return memory[RA_MEM_QKV] + memory[RA_MEM_OUTPUT] + memory[RA_MEM_LSE] + memory[RA_MEM_GRADS];
}

/* What is left when the ring chooses its groups: it has rows, one plan and keys, not yet tensors.
 */
static int32_t groups_of(const ra_predict_job *job, const ra_predict_plan *plan, int rank)
{
    const ra_ring_config *c = &job->request->ring;
    int64_t left = job->request->memory_bytes;
    if (c->head_groups != 0 || left == INT64_MAX)
        return c->head_groups != 0 ? c->head_groups : 1;
    left -= ground_bytes(job) + plan_bytes(job, plan, rank) +
            ra_predict_round(job->request->workspace_bytes) +
            ra_predict_round(c->kv_heads * (int64_t)sizeof(ra_plan)) + tensors_room(job, rank);
    int32_t groups = 1;
    for (; groups < c->kv_heads; ++groups) {
        group_bytes b = {0};
        for (int32_t g = 0; g < groups; ++g)
            add_group(job, plan, rank, ra_ring_group_of(c, groups, g), &b);
        int64_t const turns = c->comm_buffers == 2 ? 2 : 1;
        if (accumulator_bytes(&b) + ra_predict_round(b.arriving) +
                turns * (ra_predict_round(b.sent) + counted(job, rank, b.held) +
                         counted(job, rank, b.partial)) <=
            left)
            break;
    }
    return groups;
}

static void add_plan(const ra_predict_job *job, const ra_predict_plan *plan, int rank,
                     int32_t group_begin, int32_t group_end, rank_total *t)
{
    for (int32_t g = group_begin; g < group_end; ++g)
        add_group(job, plan, rank, ra_ring_group_of(&job->request->ring, job->groups, g),
                  &t->group);
    t->plans += plan_bytes(job, plan, rank);
    for (int s = 0; s < job->step_count; ++s) {
        t->map_arrays += plan->steps[s].map.bytes;
        t->pairs += plan->steps[s].map.pairs;
    }
}

/* Packed keys differ by what the heads of a group need: then each has a plan. */
static ra_status make_totals(ra_predict_job *job, ra_predict_plan *plans, rank_total *totals,
                             ra_predict_times *times)
{
    ra_heads const all = {0, 1, job->request->ring.heads};
    ra_status status = ra_predict_plans(job, all, plans);
    if (status != RA_OK)
        return status;
    job->groups = 1;
    for (int i = 0; i < job->followed_count; ++i) {
        int32_t const groups = groups_of(job, &plans[i], job->followed[i]);
        job->groups = groups > job->groups ? groups : job->groups;
    }
    bool const split = job->groups > 1 && ra_pattern_differs_by_head(job->pattern) &&
                       (job->schedule != RA_SCHEDULE_SHARED || job->teams.count > 1);
    int64_t const plans_bytes =
        ra_predict_round((split ? job->groups : 1) * (int64_t)sizeof(ra_plan));
    for (int i = 0; i < job->followed_count; ++i) {
        totals[i].plans = plans_bytes;
        if (split)
            continue;
        add_plan(job, &plans[i], job->followed[i], 0, job->groups, &totals[i]);
        ra_predict_add_times(job, &plans[i], i, 0, job->groups, times);
    }
    for (int32_t g = 0; split && g < job->groups && status == RA_OK; ++g) {
        ra_head_group const group = ra_ring_group_of(&job->request->ring, job->groups, g);
        ra_predict_plan *part = NULL;
        status = ra_predict_take(&part, job->followed_count, sizeof(*part));
        if (status == RA_OK)
            status = ra_predict_plans(job, (ra_heads){group.q_begin, 1, group.q_count}, part);
        for (int i = 0; i < job->followed_count && status == RA_OK; ++i) {
            add_plan(job, &part[i], job->followed[i], g, g + 1, &totals[i]);
            ra_predict_add_times(job, &part[i], i, g, g + 1, times);
        }
        ra_predict_free_plans(job, part);
    }
    return status;
}

/* ---- the whole --------------------------------------------------------------------------------
 */

static void settle(const ra_predict_job *job, const rank_total *totals, ra_prediction *out)
{
    const ra_ring_config *c = &job->request->ring;
    double const scale = (double)job->ranks / job->followed_count;
    double const hops = job->ranks - 1;
    out->exact = !job->sampled;
    out->ranks = job->ranks;
    out->ranks_followed = job->followed_count;
    out->layout = job->layout;
    out->balanced_left_out = job->balanced_left_out;
    out->schedule = job->schedule;
    out->chunk = job->chunk;
    out->head_groups = job->groups;
    out->imbalance = job->imbalance;
    out->full_ring_bytes =
        hops * ((c->backward ? 2 : 1) * (double)keys_bytes(job, c->kv_heads, c->seq) +
                (c->backward ? (double)grads_bytes(job, c->kv_heads, c->seq) : 0));
    for (int i = 0; i < job->followed_count; ++i) {
        int64_t memory[RA_MEM_CATEGORY_COUNT], floor_bytes;
        int const rank = job->followed[i];
        int64_t const total = total_of(job, &totals[i], rank, memory, &floor_bytes);
        out->live_pairs += scale * totals[i].pairs * (double)c->batch;
        out->sent_bytes += scale * totals[i].group.sent_sum;
        if (totals[i].map_arrays > out->tilemap_bytes)
            out->tilemap_bytes = totals[i].map_arrays;
        if (total <= out->peak_bytes)
            continue;
        out->peak_bytes = total;
        out->floor_bytes = floor_bytes;
        out->fullest_rank = rank;
        out->rows = job->rows[rank].row_count;
        for (int m = 0; m < RA_MEM_CATEGORY_COUNT; ++m)
            out->memory_bytes[m] = memory[m];
    }
}

static ra_status make_pattern(ra_predict_job *job)
{
    const ra_predict_request *r = job->request;
    ra_ledger_snapshot taken;
    ra_status status = ra_ledger_create(INT64_MAX, &job->ledger);
    if (status != RA_OK)
        return status;
    ra_pool_config const config = {
        .mode = RA_POOL_OFF, .memory = ra_memory_host(), .ledger = job->ledger};
    status = ra_pool_create(&config, &job->pool);
    if (status == RA_OK)
        status =
            ra_pattern_create(r->pattern, r->ring.seq, r->ring.heads, job->pool, &job->pattern);
    if (status != RA_OK)
        return status;
    ra_ledger_read(job->ledger, &taken);
    job->pattern_bytes = taken.reserved_bytes;
    return RA_OK;
}

static ra_status predict(ra_predict_job *job, ra_predict_plan **plans, rank_total **totals,
                         ra_predict_times *times)
{
    ra_status status = make_pattern(job);
    if (status == RA_OK)
        status = choose_teams(job);
    if (status == RA_OK)
        status = ra_predict_layout(job);
    if (status == RA_OK)
        status = choose_schedule(job);
    if (status == RA_OK)
        status = ra_predict_take(plans, job->followed_count, sizeof(**plans));
    if (status == RA_OK)
        status = ra_predict_take(totals, job->followed_count, sizeof(**totals));
    if (status == RA_OK)
        status = ra_predict_begin_times(job, times);
    return status == RA_OK ? make_totals(job, *plans, *totals, times) : status;
}

ra_status ra_predict(const ra_predict_request *request, ra_prediction *prediction_out)
{
    RA_ASSERT(request->ranks >= 1 && request->ranks <= RA_PREDICT_RANKS_MAX);
    RA_ASSERT(request->ranks_per_node >= 1 && request->tile_rows >= 1);
    ra_predict_job job = {.request = request, .ranks = request->ranks};
    ra_predict_plan *plans = NULL;
    rank_total *totals = NULL;
    ra_predict_times times = {0};
    ra_prediction out = {0};
    choose_followed(&job);
    ra_status status = predict(&job, &plans, &totals, &times);
    if (status == RA_OK) {
        settle(&job, totals, &out);
        status = ra_predict_end_times(&job, &times, &out);
    }
    ra_predict_free_times(&job, &times);
    ra_predict_free_plans(&job, plans);
    free(totals);
    ra_predict_free_rows(&job);
    if (job.pool != NULL)
        ra_teams_fini(job.pool, &job.teams);
    ra_pattern_destroy(job.pattern);
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
