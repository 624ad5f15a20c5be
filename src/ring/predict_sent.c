/* What all ranks send in one pass: the choice of layout and schedule goes by it. */
#include "internal.h"
#include "ring/predict_job.h"

ra_status ra_predict_needs_of(ra_predict_job *job, ra_heads heads, int reader, int count,
                              ra_need **needs_out)
{
    ra_status status = ra_predict_take(needs_out, job->ranks, sizeof(**needs_out));
    if (status == RA_OK)
        status = ra_predict_touch(job, heads, reader, count, *needs_out);
    return status == RA_OK ? ra_predict_list(job, *needs_out) : status;
}

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
            int const distance = (reader - owner + job->ranks) % job->ranks;
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
    return hops ? count_hops(job, rows_out) : count_for_teams(job, rows_out);
}
