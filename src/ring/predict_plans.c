/* Plans of a job that is predicted, made as ra_choose_plans asks for them. */
#include "internal.h"
#include "ring/predict_job.h"
#include "ring/ring_internal.h"

#include <stdlib.h>

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
                                    held->cached - held->spare_cached +
                                    ra_predict_round(job, job->request->pair_bytes);
    return job->request->memory_bytes - taken -
           ra_predict_round(job, job->request->workspace_bytes) -
           ra_predict_tensors_room(job, rank);
}

/* Plans of all heads and queries in so many rounds, and what making them settled. */
typedef struct whole_plans {
    int32_t rounds;
    ra_predict_plan *plans; /* [followed_count] */
    bool sampled;
    double looks;
} whole_plans;

/* The search for rounds comes by the same ones again, as long as tries fail. As they double, those
   of fewer take no more than the last. */
enum { WHOLES_MAX = 7 /* 1 to 64 rounds */ };
RA_STATIC_ASSERT(RA_ROUNDS_MAX == 1 << (WHOLES_MAX - 1), "a number for each power of two");

/* What ra_choose_plans works on. */
typedef struct plans_maker {
    ra_predict_job *job;
    ra_schedule schedule; /* of one round */
    bool sampled;         /* the layout is */
    whole_plans kept[WHOLES_MAX];
    int kept_count;
    ra_predict_plan *plans; /* those at hand: the last that is kept, or an earlier one */
    ra_plan_bytes bytes[RA_PREDICT_RANKS_ALL]; /* of these, as they looked for groups */
    double stretch;
    ra_predict_bytes *totals; /* [followed_count]; NULL: not yet; owned */
    ra_predict_times times;
} plans_maker;

/* A followed rank with its plan of all heads and queries, as it looks for groups. */
typedef struct whole_plan {
    const plans_maker *made;
    int index;
    int64_t room; /* beside that plan */
} whole_plan;

/* What so many groups of it take of the room. */
static int64_t needed_bytes(const void *context, int32_t groups, int64_t *buffers_out)
{
    const whole_plan *whole = context;
    const plans_maker *m = whole->made;
    const ra_predict_job *job = m->job;
    const ra_ring_config *c = &job->request->ring;
    int const rank = job->followed[whole->index];
    ra_predict_bytes b = {0};
    ra_predict_add_group(job, &m->plans[whole->index], rank,
                         ra_ring_group_of(c, groups, groups - 1), &b);
    return ra_predict_group_bytes(job, rank, &b, buffers_out) +
           ra_ring_more_plan_bytes(c, groups, ra_predict_plan_count(job, groups),
                                   &m->bytes[whole->index], m->stretch) +
           (job->request->on_device ? 0 : plan_array_bytes(job, groups));
}

/* Choose the groups of plans of all heads, as ra_ring_settle_groups does. */
static ra_groups_found choose_groups(plans_maker *m)
{
    ra_predict_job *job = m->job;
    const ra_ring_config *c = &job->request->ring;
    int const count = job->request->memory_bytes != INT64_MAX ? job->followed_count : 0;
    whole_plan wholes[RA_PREDICT_RANKS_ALL];
    int64_t buffers;
    int32_t const fewest = ra_ring_fewest_groups(c, job->pattern, job->ranks, job->teams.count);
    int32_t const most =
        ra_ring_most_groups(c, job->ranks, job->request->tile_rows, job->request->standard);
    int32_t const wanted = c->head_groups != 0 ? c->head_groups : fewest;
    ra_groups_found found = {wanted, wanted, wanted, 0}; /* without a limit */
    for (int i = 0; i < count; ++i) {
        int const rank = job->followed[i];
        ra_predict_bytes held = {0};
        ra_predict_add_plan(job, &m->plans[i], rank, &held);
        m->bytes[i] = ra_predict_plan_bytes(job, &m->plans[i], &held);
        wholes[i] = (whole_plan){m, i, room_beside(job, &held, rank)};
        ra_groups_found const one =
            ra_ring_find_groups(c, needed_bytes, &wholes[i], wholes[i].room,
                                ra_plan_bytes_sum(m->bytes[i]), fewest, most);
        found = i == 0 ? one
                       : (ra_groups_found){(int32_t)ra_max_i64(one.fit, found.fit),
                                           (int32_t)ra_max_i64(one.could, found.could),
                                           (int32_t)ra_max_i64(one.least, found.least), 0};
    }
    job->groups = ra_groups_taken(found);
    for (int i = 0; i < count; ++i)
        found.lack_bytes = ra_max_i64(
            found.lack_bytes, needed_bytes(&wholes[i], job->groups, &buffers) - wholes[i].room);
    if (found.lack_bytes > 0)
        found.fit = RA_GROUPS_NONE;
    return found;
}

static void forget_totals(plans_maker *m)
{
    ra_predict_free_times(&m->times);
    free(m->totals);
    m->totals = NULL;
    m->job->has_crossed = false;
    m->job->crossed_bytes = m->job->crossed_network_bytes = 0;
}

static ra_status keep_whole(plans_maker *m, int32_t rounds)
{
    ra_predict_job *job = m->job;
    whole_plans whole = {.rounds = rounds};
    RA_ASSERT(m->kept_count < WHOLES_MAX);
    job->sampled = m->sampled;
    ra_status status = ra_predict_take(&whole.plans, job->followed_count, sizeof(*whole.plans));
    if (status != RA_OK)
        return status;
    status = ra_predict_plans(job, (ra_heads){0, 1, job->request->ring.heads}, 1, whole.plans);
    whole.sampled = job->sampled;
    whole.looks = job->looks;
    m->kept[m->kept_count++] = whole;
    return status;
}

/* In place of all that was made before. */
static ra_status plan_whole(plans_maker *m, int32_t rounds)
{
    ra_predict_job *job = m->job;
    int at = 0;
    ra_status status = RA_OK;
    forget_totals(m);
    job->rounds = rounds;
    job->schedule = ra_schedule_of_rounds(m->schedule, rounds);
    job->step_count = ra_plan_count_steps(&job->teams, rounds);
    while (at < m->kept_count && m->kept[at].rounds != rounds)
        ++at;
    if (at == m->kept_count) {
        status = keep_whole(m, rounds);
        at = m->kept_count - 1;
    }
    if (status != RA_OK)
        return status;
    m->plans = m->kept[at].plans;
    job->sampled = m->kept[at].sampled;
    job->looks = m->kept[at].looks;
    return RA_OK;
}

/* As of ra_plans_maker. What does not fit is found, not refused. */
static ra_status make_whole(void *context, int32_t rounds, double stretch, bool may_lack,
                            ra_groups_found *found_out)
{
    plans_maker *m = context;
    ra_predict_job *job = m->job;
    (void)may_lack;
    job->tried_rounds = job->tried_rounds || m->plans != NULL;
    job->tried_plans = job->tried_plans || m->totals != NULL;
    ra_status const status = plan_whole(m, rounds);
    if (status != RA_OK)
        return status;
    m->stretch = stretch;
    *found_out = choose_groups(m);
    if (2 * job->looks > ra_predict_looks_most) /* those of twice the rounds */
        found_out->could = (int32_t)ra_max_i64(found_out->could, RA_GROUPS_NONE);
    return RA_OK;
}

/* Plan `number` of so many, of some heads and the queries at hand, and all groups that go by it. */
static ra_status add_plans(plans_maker *m, const ra_predict_plan *plans, ra_heads heads,
                           int32_t number, int32_t count)
{
    ra_predict_job *job = m->job;
    const ra_ring_config *c = &job->request->ring;
    int32_t kv_heads = 0;
    for (int i = 0; i < job->followed_count; ++i) {
        int const rank = job->followed[i];
        for (int32_t g = number; g < job->groups; g += count)
            ra_predict_add_group(job, &plans[i], rank, ra_ring_group_of(c, job->groups, g),
                                 &m->totals[i]);
        ra_predict_add_plan(job, &plans[i], rank, &m->totals[i]);
        ra_predict_add_times(job, &plans[i], i, number, count, &m->times);
    }
    for (int32_t g = number; g < job->groups; g += count)
        kv_heads += ra_ring_group_of(c, job->groups, g).kv_count;
    return ra_predict_cross(job, heads, kv_heads);
}

/* One of several plans: of a part of the queries, of all heads or of those of its group. */
static ra_status make_split(plans_maker *m, int32_t number, int32_t count)
{
    ra_predict_job *job = m->job;
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
        status = ra_predict_plans(job, heads, group.q_parts, plans);
        if (status == RA_OK)
            status = add_plans(m, plans, heads, number, count);
        job->queries = job->rows;
        ra_group_queries_fini(job->pool, job->ranks, &queries);
    }
    ra_predict_free_plans(job, plans);
    return status;
}

static ra_status make_totals(plans_maker *m, int32_t count)
{
    ra_predict_job *job = m->job;
    ra_heads const all = {0, 1, job->request->ring.heads};
    ra_status status = ra_predict_take(&m->totals, job->followed_count, sizeof(*m->totals));
    if (status == RA_OK)
        status = ra_predict_begin_times(job, &m->times);
    for (int i = 0; i < job->followed_count && status == RA_OK; ++i) {
        m->totals[i].plans = plan_array_bytes(job, job->groups);
        if (count > 1) /* made to choose the groups, and given back */
            ra_predict_add_given_back(job, &m->plans[i], &m->totals[i]);
    }
    if (status != RA_OK || count == 1)
        return status == RA_OK ? add_plans(m, m->plans, all, 0, 1) : status;
    for (int32_t i = 0; i < count && status == RA_OK; ++i)
        status = make_split(m, i, count);
    return status;
}

/* As the ring measures several plans, or is refused them. */
static ra_plans_made measure_splits(const plans_maker *m)
{
    const ra_predict_job *job = m->job;
    ra_plans_made made = {.lack_bytes = INT64_MIN};
    int64_t permille = 0;
    bool refused = false;
    for (int i = 0; i < job->followed_count; ++i) {
        const ra_predict_bytes *total = &m->totals[i];
        int const rank = job->followed[i];
        int64_t buffers;
        int64_t const needed = ra_predict_group_bytes(job, rank, total, &buffers);
        int64_t const room = room_beside(job, total, rank);
        refused = refused || room + ra_predict_tensors_room(job, rank) < 0;
        made.lack_bytes = ra_max_i64(made.lack_bytes, needed - room);
        permille = ra_max_i64(permille, 1000 * total->read_maps / ra_max_i64(1, m->bytes[i].maps));
    }
    made.stretch = 1e-3 * (double)permille;
    if (refused)
        made.lack_bytes = RA_LACK_UNKNOWN;
    return made;
}

/* As of ra_plans_maker. */
static ra_status make_all(void *context, ra_plans_choice choice, bool may_lack,
                          ra_plans_made *made_out)
{
    plans_maker *m = context;
    int32_t const count = ra_predict_plan_count(m->job, choice.groups);
    ra_status status = choice.rounds != m->job->rounds ? plan_whole(m, choice.rounds) : RA_OK;
    m->job->groups = choice.groups;
    if (status == RA_OK)
        status = make_totals(m, count);
    if (status == RA_OK && may_lack && count > 1)
        *made_out = measure_splits(m);
    return status;
}

ra_status ra_predict_settle_plans(ra_predict_job *job, ra_predict_bytes **totals_out,
                                  ra_predict_times *times_out)
{
    plans_maker made = {.job = job, .schedule = job->schedule, .sampled = job->sampled};
    ra_plans_maker const maker = {&job->request->ring, &job->teams, &made, make_whole, make_all};
    ra_status const status = ra_choose_plans(&maker);
    for (int i = 0; i < made.kept_count; ++i)
        ra_predict_free_plans(job, made.kept[i].plans);
    *totals_out = made.totals;
    *times_out = made.times;
    return status;
}
