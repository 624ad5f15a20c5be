/* Who holds what in which step, and how large the maps are, for the followed ranks. */
#include "internal.h"
#include "ring/predict_job.h"

#include <math.h>
#include <stdlib.h>

/* Chunks counted over all maps of a job, times the slices of one. */
static const double looks_wanted = 2e6;
const double ra_predict_looks_most = 2e9;

/* Add ranges of an owner to a row set: global rows, numbered in packed order. */
static void add_ranges(const ra_predict_job *job, int owner, const ra_range *ranges, int64_t count,
                       ra_rowset *set)
{
    const ra_rowset *from = &job->rows[owner];
    int64_t piece = 0;
    for (int64_t i = 0; i < count; ++i) {
        ra_range const local = ranges[i];
        while (from->pieces[piece].first + from->pieces[piece].rows.count <= local.begin)
            ++piece;
        ra_range const rows = from->pieces[piece].rows;
        ra_range const global = {rows.begin +
                                     rows.stride * (local.begin - from->pieces[piece].first),
                                 rows.stride * local.stride, local.count};
        set->pieces[set->piece_count++] = (ra_row_piece){global, set->row_count};
        set->row_count += global.count;
    }
}

static ra_status keys_init(int64_t pieces, ra_predict_keys *keys)
{
    *keys = (ra_predict_keys){0};
    return ra_predict_take(&keys->set.pieces, pieces, sizeof(*keys->set.pieces));
}

static void add_need(const ra_predict_job *job, int owner, const ra_need *need,
                     ra_predict_keys *keys)
{
    add_ranges(job, owner, need->items, need->count, &keys->set);
    keys->row_count += need->row_count;
    keys->piece_count += need->piece_count;
}

/* The keys of one owner alone. */
static ra_status keys_of(const ra_predict_job *job, int owner, const ra_need *need,
                         ra_predict_keys *keys)
{
    ra_status const status = keys_init(need->count, keys);
    if (status == RA_OK) {
        add_need(job, owner, need, keys);
        keys->set.overlap = ra_row_pieces_sort(keys->set.pieces, keys->set.piece_count);
    }
    return status;
}

/* ---- plans by teams -------------------------------------------------------------------------- */

typedef struct planning {
    ra_predict_job *job;
    ra_heads heads;
    int32_t parts;   /* of the queries, this being one */
    ra_need **needs; /* [teams]: of each followed rank's team, by owner; NULL for other teams */
    int64_t chunks;
} planning;

/* The map of a part of a step, which the backward pass makes unless the step's own map serves. */
static ra_status map_part(const planning *p, int rank, int owner, const ra_need *need,
                          int64_t all_rows, ra_map_sum *sum, int64_t *keys_out)
{
    ra_predict_keys keys;
    ra_map_size map;
    ra_status status = keys_of(p->job, owner, need, &keys);
    if (status == RA_OK)
        status =
            ra_predict_map(p->job, p->heads, &p->job->queries[rank], &keys, p->chunks, NULL, &map);
    free(keys.set.pieces);
    if (status != RA_OK)
        return status;
    if (need->row_count < all_rows)
        ra_predict_add_map(p->job, &map, sum);
    *keys_out = map.runs > 0 ? need->row_count : 0;
    return RA_OK;
}

/* The parts of a step, one after the other: `needs` of each owner. */
static ra_status hold(const planning *p, int rank, const int *owners, int count,
                      const ra_need *needs, ra_predict_plan *plan, int s)
{
    ra_predict_job *job = p->job;
    ra_predict_step *const step = &plan->steps[s];
    int const place = job->teams.place[rank];
    bool const apart = job->request->ring.backward && count > 1;
    int64_t pieces = 0, rows = 0;
    for (int k = 0; k < count; ++k) {
        pieces += needs[k].count;
        rows += needs[k].row_count;
    }
    ra_predict_keys held;
    ra_status status = keys_init(pieces, &held);
    if (apart && status == RA_OK)
        status = ra_predict_take(&step->part_keys, count, sizeof(*step->part_keys));
    for (int k = 0; k < count && status == RA_OK; ++k) {
        add_need(job, owners[k], &needs[k], &held);
        if (apart)
            status = map_part(p, rank, owners[k], &needs[k], rows, &plan->part_maps,
                              &step->part_keys[k]);
    }
    held.set.overlap = ra_row_pieces_sort(held.set.pieces, held.set.piece_count);
    if (status == RA_OK)
        status = ra_predict_map(job, p->heads, &job->queries[rank], &held, p->chunks, &plan->looks,
                                &step->map);
    step->part_count = count;
    step->held_from = count == 1 ? owners[0] : -1;
    step->held_rows = rows;
    step->fetched_rows = place < count ? needs[place].row_count : 0;
    free(held.set.pieces);
    return status;
}

/*
 * What the team ahead needs of a rank's rows. If that team is not followed, the last or the first
 * team but one at the same distance stands for it: patterns look the same from rank to rank except
 * at the ends of the sequence. (Teams at the ends do if these are not followed.)
 */
static const ra_need *need_of_team(const planning *p, int rank, int distance)
{
    const ra_predict_job *job = p->job;
    const ra_teams *teams = &job->teams;
    int const team = teams->team[rank], count = teams->count, place = teams->place[rank];
    int const reader = ra_teams_ahead(teams, team, distance);
    if (p->needs[reader] != NULL)
        return &p->needs[reader][rank];
    bool const forward = team + distance < count;
    int asked = forward ? count - 2 : 1;
    if (p->needs[asked] == NULL)
        asked = forward ? count - 1 : 0;
    int const of = (asked - distance + count) % count;
    int const same = ra_teams_member(teams, of, place);
    RA_ASSERT(same >= 0); /* only the last team may be smaller, and it is none of these */
    return &p->needs[asked][same];
}

/* What a rank's team holds of some owners: in step 0 its own rows, then what it fetches in a round.
 */
static ra_status hold_of(const planning *p, int rank, const int *owners, int count, int round,
                         ra_predict_plan *plan, int s)
{
    const ra_need *of_team = p->needs[p->job->teams.team[rank]];
    ra_need *parts = NULL;
    ra_status status = ra_predict_take(&parts, count, sizeof(*parts));
    for (int k = 0; k < count && status == RA_OK; ++k)
        status = s == 0 ? ra_predict_need_all(&p->job->rows[owners[k]], &parts[k])
                        : ra_predict_need_of_round(p->job, &of_team[owners[k]], round, &parts[k]);
    if (status == RA_OK)
        status = hold(p, rank, owners, count, parts, plan, s);
    ra_predict_free_needs(parts, count);
    return status;
}

static ra_status team_step(const planning *p, int rank, int round, int distance, int turn,
                           ra_predict_plan *plan, int s)
{
    ra_predict_step *const step = &plan->steps[s];
    const ra_predict_job *job = p->job;
    const ra_teams *teams = &job->teams;
    int const team = teams->team[rank];
    int const readers = ra_teams_size(teams, ra_teams_ahead(teams, team, distance));
    int count;
    const int *const owners = ra_teams_owners(teams, team, distance, turn, &count);
    ra_status status = hold_of(p, rank, owners, count, round, plan, s);
    step->grad_rows = step->held_rows;
    step->grad_out_rows = step->fetched_rows;
    if (teams->place[rank] / readers == turn && status == RA_OK) {
        ra_need sent = {0};
        status = ra_predict_need_of_round(job, need_of_team(p, rank, distance), round, &sent);
        step->sent_rows = step->grad_in_rows = sent.row_count;
        step->sent_pieces = sent.piece_count;
        free(sent.items);
    }
    return status;
}

static ra_status plan_teams(const planning *p, int rank, ra_predict_plan *plan)
{
    const ra_teams *teams = &p->job->teams;
    int const team = teams->team[rank];
    int s = 1;
    ra_status status = hold_of(p, rank, teams->members + teams->begin[team],
                               ra_teams_size(teams, team), 0, plan, 0);
    for (int round = 0; round < p->job->rounds; ++round)
        for (int d = 1; d < teams->count; ++d)
            for (int turn = 0; turn < teams->turns[d] && status == RA_OK; ++turn)
                status = team_step(p, rank, round, d, turn, plan, s++);
    return status;
}

/* ---- schedule ring --------------------------------------------------------------------------- */

/* What anyone needs of an owner, and the nearest and farthest rank that does; 0: nobody. */
typedef struct demand {
    ra_need rows;
    int first, last;
} demand;

static ra_status make_demands(const planning *p, demand *demands)
{
    ra_predict_job *job = p->job;
    ra_need *sums = NULL;
    ra_status const status = ra_predict_needs_of(job, p->heads, 0, 0, &sums);
    for (int reader = 0; reader < job->ranks && status == RA_OK; ++reader)
        for (int owner = 0; owner < job->ranks; ++owner) {
            int const distance = ra_teams_distance(&job->teams, owner, reader);
            demand *d = &demands[owner];
            if (owner == reader || p->needs[reader][owner].row_count == 0)
                continue;
            d->first = d->first == 0 || distance < d->first ? distance : d->first;
            d->last = distance > d->last ? distance : d->last;
        }
    for (int owner = 0; owner < job->ranks && status == RA_OK; ++owner) {
        demands[owner].rows = sums[owner];
        sums[owner] = (ra_need){0};
    }
    ra_predict_free_needs(sums, job->ranks);
    return status;
}

static ra_status ring_step(const planning *p, const demand *demands, int rank, int s,
                           ra_predict_plan *plan)
{
    ra_predict_step *const step = &plan->steps[s];
    ra_predict_job *job = p->job;
    const ra_teams *teams = &job->teams; /* each a rank */
    int const owner = ra_teams_behind(teams, rank, s);
    const demand *held = &demands[owner];
    const demand *sent = &demands[ra_teams_behind(teams, rank, s - 1)];
    const demand *next = &demands[ra_teams_behind(teams, rank, s + 1)];
    ra_predict_keys keys;
    ra_status status = keys_of(job, owner, &held->rows, &keys);
    if (status == RA_OK)
        status = ra_predict_map(job, p->heads, &job->queries[rank], &keys, p->chunks, &plan->looks,
                                &step->map);
    free(keys.set.pieces);
    step->held_from = owner;
    step->held_rows = step->fetched_rows = s <= held->last ? held->rows.row_count : 0;
    step->sent_rows = s <= sent->last ? sent->rows.row_count : 0;
    step->sent_pieces = s == 1 ? sent->rows.piece_count : 0;
    step->grad_rows = step->grad_out_rows =
        held->first > 0 && s >= held->first ? held->rows.row_count : 0;
    step->grad_in_rows = next->first > 0 && s >= next->first ? next->rows.row_count : 0;
    return status;
}

static ra_status plan_ring(const planning *p, ra_predict_plan *plans)
{
    ra_predict_job *job = p->job;
    demand *demands;
    if (job->followed_count < job->ranks) {
        ra_log(RA_LOG_ERROR, "ring.schedule: ring is planned for up to %d ranks: take direct",
               RA_PREDICT_RANKS_ALL);
        return RA_ERR_UNSUPPORTED;
    }
    ra_status status = ra_predict_take(&demands, job->ranks, sizeof(*demands));
    if (status == RA_OK)
        status = make_demands(p, demands);
    for (int rank = 0; rank < job->ranks && status == RA_OK; ++rank) {
        const ra_rowset *own = &job->rows[rank];
        ra_predict_plan *const plan = &plans[rank];
        ra_predict_keys const keys = {*own, own->row_count, own->piece_count};
        status = ra_predict_map(job, p->heads, &job->queries[rank], &keys, p->chunks, &plan->looks,
                                &plan->steps[0].map);
        plan->steps[0].held_from = rank;
        for (int s = 1; s < job->ranks && status == RA_OK; ++s)
            status = ring_step(p, demands, rank, s, plan);
    }
    for (int i = 0; i < job->ranks && demands != NULL; ++i)
        free(demands[i].rows.items);
    free(demands);
    return status;
}

/* Needs of the teams of followed ranks; a single team needs nothing of others. */
static ra_status make_needs(const planning *p)
{
    ra_predict_job *job = p->job;
    const ra_teams *teams = &job->teams;
    ra_status status = RA_OK;
    for (int i = 0; i < job->followed_count && teams->count > 1 && status == RA_OK; ++i) {
        int const team = teams->team[job->followed[i]];
        if (p->needs[team] == NULL)
            status = ra_predict_needs_of(job, p->heads, ra_teams_member(teams, team, 0),
                                         ra_teams_size(teams, team), &p->needs[team]);
    }
    return status;
}

/* How many chunks of each map can be looked at. */
static ra_status choose_chunks(planning *p)
{
    ra_predict_job *job = p->job;
    double slices, maps = job->followed_count;
    ra_status const status = ra_predict_slices(job, &slices);
    if (status != RA_OK)
        return status;
    if (job->request->ring.dense_mask)
        slices *= ra_predict_mask_looks(job);
    for (int i = 0; i < job->followed_count; ++i) {
        const ra_need *needs = p->needs[job->teams.team[job->followed[i]]];
        for (int owner = 0; owner < job->ranks; ++owner)
            maps += needs == NULL ? 1 : needs[owner].row_count > 0 ? job->rounds : 0;
    }
    job->looks = RA_PREDICT_CHUNKS_LEAST * maps * slices;
    if (job->looks > ra_predict_looks_most)
        return ra_predict_refuse_pieces(job);
    p->chunks =
        (int64_t)fmax(RA_PREDICT_CHUNKS_LEAST, looks_wanted / fmax(slices, 1) / maps / p->parts);
    return RA_OK;
}

static ra_status plan_all(planning *p, ra_predict_plan *plans)
{
    ra_predict_job *job = p->job;
    ra_status status = make_needs(p);
    if (status == RA_OK)
        status = choose_chunks(p);
    for (int i = 0; i < job->followed_count && status == RA_OK; ++i) {
        status = ra_predict_take(&plans[i].steps, job->step_count, sizeof(ra_predict_step));
        plans[i].step_count = job->step_count;
        if (status == RA_OK && job->schedule != RA_SCHEDULE_RING)
            status = plan_teams(p, job->followed[i], &plans[i]);
    }
    return status == RA_OK && job->schedule == RA_SCHEDULE_RING ? plan_ring(p, plans) : status;
}

ra_status ra_predict_plans(ra_predict_job *job, ra_heads heads, int32_t parts,
                           ra_predict_plan *plans)
{
    planning p = {.job = job, .heads = heads, .parts = parts};
    ra_status status = ra_predict_take(&p.needs, job->teams.count, sizeof(ra_need *));
    if (status == RA_OK)
        status = plan_all(&p, plans);
    for (int i = 0; i < job->teams.count && p.needs != NULL; ++i)
        ra_predict_free_needs(p.needs[i], job->ranks);
    free(p.needs);
    return status;
}

void ra_predict_free_plans(ra_predict_job *job, ra_predict_plan *plans)
{
    for (int i = 0; i < job->followed_count && plans != NULL; ++i) {
        for (int s = 0; s < plans[i].step_count && plans[i].steps != NULL; ++s)
            free(plans[i].steps[s].part_keys);
        free(plans[i].steps);
        free(plans[i].looks.items);
    }
    free(plans);
}
