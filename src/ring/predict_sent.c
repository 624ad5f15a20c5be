/* What all ranks send in one pass: the choice of layout and schedule goes by it. */
#include "internal.h"
#include "ring/predict_job.h"

ra_status ra_predict_is_full(ra_predict_job *job, bool *full_out)
{
    ra_heads const all = {0, 1, job->request->ring.heads};
    bool full = true;
    for (int i = 0; i < job->followed_count && full; ++i) {
        ra_need *needs = NULL;
        ra_status const status = ra_predict_needs_of(job, all, job->followed[i], 1, &needs);
        for (int owner = 0; owner < job->ranks && status == RA_OK; ++owner)
            full = full && (owner == job->followed[i] ||
                            needs[owner].row_count == job->rows[owner].row_count);
        ra_predict_free_needs(needs, job->ranks);
        if (status != RA_OK)
            return status;
    }
    *full_out = full;
    return RA_OK;
}

/* Schedule ring: rows that any rank needs hop on to the farthest rank that needs some. */
static ra_status count_hops(ra_predict_job *job, double *rows_out)
{
    ra_heads const all = {0, 1, job->request->ring.heads};
    ra_need *needs = NULL;
    int last[RA_PREDICT_RANKS_ALL] = {0};
    ra_status status = RA_OK;
    for (int reader = 0; reader < job->ranks && status == RA_OK; ++reader) {
        status = ra_predict_needs_of(job, all, reader, 1, &needs);
        for (int owner = 0; owner < job->ranks && status == RA_OK; ++owner) {
            int const distance = ra_teams_distance(&job->teams, owner, reader);
            if (needs[owner].row_count > 0 && distance > last[owner])
                last[owner] = distance;
        }
        ra_predict_free_needs(needs, job->ranks);
    }
    if (status == RA_OK) {
        status = ra_predict_needs_of(job, all, 0, 0, &needs);
        for (int owner = 0; owner < job->ranks && status == RA_OK; ++owner)
            *rows_out += (double)needs[owner].row_count * last[owner];
        ra_predict_free_needs(needs, job->ranks);
    }
    return status;
}

/* How many teams the team of followed rank `index` stands for; ranks of a team are consecutive. */
static double team_weight(const ra_predict_job *job, int index)
{
    int const team = job->teams.team[job->followed[index]];
    double ranks = 0;
    for (int i = index; i < job->followed_count && job->teams.team[job->followed[i]] == team; ++i)
        ranks += job->weights[i];
    return ranks / ra_teams_size(&job->teams, team);
}

/* Rows that a followed rank's team needs of others. If it stands for other teams, the share of all
   others' rows is used: a row more or less of its own must not decide between two layouts. */
static double rows_for(const ra_predict_job *job, int index, const ra_need *needs)
{
    int const team = job->teams.team[job->followed[index]];
    double const all = (double)job->request->ring.seq;
    double rows = 0, own = 0;
    for (int owner = 0; owner < job->ranks; ++owner) {
        rows += (double)needs[owner].row_count;
        own += job->teams.team[owner] == team ? (double)job->rows[owner].row_count : 0;
    }
    if (job->followed_count == job->ranks || rows <= 0)
        return team_weight(job, index) * rows;
    return team_weight(job, index) * (rows / (all - own)) * (all - all / job->teams.count);
}

/* ---- of more ranks than are followed ----------------------------------------------------------
 */

enum {
    ASKED_MOST = 1024,       /* teams */
    ASKED_MOST_STRIDED = 64, /* of strided patterns, whose needs take longer */
    ASKED_LEAST = 16,
    ASKED_VISITS = 4 /* the part of the visits to slices that is theirs: one in so many */
};

/* How many teams' needs are counted one by one; 0: those of followed ranks stand for all. So they
   do for random blocks that are not drawn, as all ranks' are alike, and for stripes, each of which
   meets the pieces of all others. */
static int asked_count(const ra_predict_job *job, int32_t plans)
{
    int most = ASKED_MOST;
    if (job->followed_count == job->ranks || job->diagonal != NULL ||
        job->layout.kind == RA_LAYOUT_STRIPED)
        return 0;
    for (int32_t i = 0; i < ra_pattern_layer_count(job->pattern); ++i)
        if (ra_pattern_layer_stride(job->pattern, i) != 1)
            most = ASKED_MOST_STRIDED;
    most = most / plans > ASKED_LEAST ? most / plans : ASKED_LEAST;
    return job->teams.count < most ? job->teams.count : most;
}

/* The team that is asked as number `index` of `asked`: of more, the two at each end, and others
   evenly between. */
static int asked_team(int teams, int asked, int index)
{
    if (asked == teams || index == 0)
        return index;
    if (index == asked - 1)
        return teams - 1;
    RA_ASSERT(asked > 3); /* ASKED_LEAST */
    return 1 + (int)((int64_t)(index - 1) * (teams - 3) / (asked - 3));
}

/* Rows that teams need of others, and those of them that other nodes have. */
typedef struct crossed_rows {
    double all, network;
} crossed_rows;

static void add_needs(const ra_predict_job *job, int team, double weight, const ra_need *needs,
                      crossed_rows *crossed)
{
    int const each = job->request->ranks_per_node;
    int const node = ra_teams_member(&job->teams, team, 0) / each;
    for (int owner = 0; owner < job->ranks; ++owner) {
        double const rows = weight * (double)needs[owner].row_count;
        crossed->all += rows;
        crossed->network += owner / each != node ? rows : 0;
    }
}

static ra_status ask_teams(ra_predict_job *job, ra_heads heads, int asked,
                           crossed_rows *crossed_out)
{
    const ra_teams *teams = &job->teams;
    int const readers = job->readers;
    ra_status status = RA_OK;
    *crossed_out = (crossed_rows){0};
    job->readers = ASKED_VISITS * asked;
    for (int i = 0; i < asked && teams->count > 1 && status == RA_OK; ++i) {
        int const team = asked_team(teams->count, asked, i);
        int const before = i > 0 ? asked_team(teams->count, asked, i - 1) : team - 1;
        int const after = i + 1 < asked ? asked_team(teams->count, asked, i + 1) : team + 1;
        ra_need *needs = NULL;
        status = ra_predict_needs_of(job, heads, ra_teams_member(teams, team, 0),
                                     ra_teams_size(teams, team), &needs);
        if (status == RA_OK)
            add_needs(job, team, 0.5 * (after - before), needs, crossed_out);
        ra_predict_free_needs(needs, job->ranks);
    }
    job->readers = readers;
    return status;
}

ra_status ra_predict_cross(ra_predict_job *job, ra_heads heads, int32_t kv_heads)
{
    const ra_ring_config *c = &job->request->ring;
    int const asked = asked_count(job, ra_predict_plan_count(job, job->groups));
    crossed_rows rows;
    if (asked == 0)
        return RA_OK;
    ra_status const status = ask_teams(job, heads, asked, &rows);
    double const keys = (double)ra_predict_keys_bytes(job, kv_heads, 1),
                 grads = (double)ra_predict_grads_bytes(job, kv_heads, 1),
                 bytes = c->backward ? 2 * keys + grads : keys;
    job->has_crossed = true;
    job->crossed_bytes += bytes * rows.all;
    job->crossed_network_bytes += bytes * rows.network;
    return status;
}

/* What the teams of followed ranks need of others; a team is sent each row once. */
static ra_status count_for_teams(ra_predict_job *job, double *rows_out)
{
    ra_heads const all = {0, 1, job->request->ring.heads};
    const ra_teams *teams = &job->teams;
    int last = -1;
    double rows = 0;
    for (int i = 0; i < job->followed_count && teams->count > 1; ++i) {
        int const team = teams->team[job->followed[i]];
        ra_need *needs = NULL;
        if (team == last)
            continue;
        ra_status const status = ra_predict_needs_of(job, all, ra_teams_member(teams, team, 0),
                                                     ra_teams_size(teams, team), &needs);
        if (status == RA_OK)
            rows += rows_for(job, i, needs);
        ra_predict_free_needs(needs, job->ranks);
        if (status != RA_OK)
            return status;
        last = team;
    }
    *rows_out = rows;
    return RA_OK;
}

ra_status ra_predict_crossing(ra_predict_job *job, double *rows_out)
{
    bool const hops = job->schedule == RA_SCHEDULE_RING && job->ranks <= RA_PREDICT_RANKS_ALL;
    *rows_out = 0;
    if (hops)
        return count_hops(job, rows_out);
    int const asked = asked_count(job, 1);
    crossed_rows rows;
    if (asked < job->teams.count)
        return count_for_teams(job, rows_out);
    ra_status const status =
        ask_teams(job, (ra_heads){0, 1, job->request->ring.heads}, asked, &rows);
    *rows_out = rows.all;
    return status;
}
