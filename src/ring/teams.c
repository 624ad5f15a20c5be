/*
 * Teams: ranks that read each other's rows where they lie, those of one host; and which rank of one
 * team exchanges with which rank of another.
 */
#include "internal.h"
#include "ring/ring_internal.h"

#include <string.h>

static int turns_of(const ra_teams *teams, int distance)
{
    int most = 1;
    if (teams->largest * teams->count == teams->ranks)
        return 1; /* all are of one size */
    for (int t = 0; t < teams->count; ++t) {
        int const readers = ra_teams_size(teams, t);
        int const owners = ra_teams_size(teams, ra_teams_behind(teams, t, distance));
        int const turns = (owners + readers - 1) / readers;
        most = turns > most ? turns : most;
    }
    return most;
}

ra_status ra_teams_init(int ranks, const int *hosts, ra_pool *pool, ra_teams *teams_out)
{
    ra_teams teams = {.ranks = ranks};
    size_t const n = (size_t)ranks;
    ra_status const status =
        ra_pool_alloc(pool, RA_MEM_TILEMAP, (5 * n + 1) * sizeof(int), NULL, &teams.block);
    if (status != RA_OK)
        return status;
    int *const team = memset(teams.block.data, 0, teams.block.bytes), *const place = team + n,
               *const members = place + n, *const begin = members + n, *const turns = begin + n + 1;
    for (int rank = 0; rank < ranks; ++rank) {
        team[rank] = hosts != NULL ? hosts[rank] : rank;
        teams.count = team[rank] >= teams.count ? team[rank] + 1 : teams.count;
        place[rank] = begin[team[rank] + 1]++;
    }
    for (int t = 0; t < teams.count; ++t) {
        teams.largest = begin[t + 1] > teams.largest ? begin[t + 1] : teams.largest;
        begin[t + 1] += begin[t];
    }
    for (int rank = 0; rank < ranks; ++rank)
        members[begin[team[rank]] + place[rank]] = rank;
    teams.team = team;
    teams.place = place;
    teams.members = members;
    teams.begin = begin;
    teams.turns = turns;
    for (int distance = 1; distance < teams.count; ++distance)
        turns[distance] = turns_of(&teams, distance);
    *teams_out = teams;
    return RA_OK;
}

void ra_teams_fini(ra_pool *pool, ra_teams *teams)
{
    ra_pool_free(pool, NULL, &teams->block);
    *teams = (ra_teams){0};
}

int ra_teams_size(const ra_teams *teams, int team)
{
    return teams->begin[team + 1] - teams->begin[team];
}

int ra_teams_member(const ra_teams *teams, int team, int place)
{
    return place < ra_teams_size(teams, team) ? teams->members[teams->begin[team] + place] : -1;
}

int ra_teams_ahead(const ra_teams *teams, int team, int distance)
{
    return (team + distance) % teams->count;
}

int ra_teams_behind(const ra_teams *teams, int team, int distance)
{
    return (team - distance % teams->count + teams->count) % teams->count;
}

int ra_teams_distance(const ra_teams *teams, int from, int to)
{
    return (to - from + teams->count) % teams->count;
}

const int *ra_teams_owners(const ra_teams *teams, int team, int distance, int turn, int *count_out)
{
    int const size = ra_teams_size(teams, team), behind = ra_teams_behind(teams, team, distance);
    int const owners = ra_teams_size(teams, behind);
    int const first = turn * size < owners ? turn * size : owners;
    *count_out = owners - first < size ? owners - first : size;
    return teams->members + teams->begin[behind] + first;
}

ra_status ra_rowset_join(const ra_rowset *sets, const int *which, int count, int skipped,
                         ra_pool *pool, ra_rowset *joined_out)
{
    ra_block block;
    int64_t pieces = 0;
    for (int i = 0; i < count; ++i)
        pieces += sets[which != NULL ? which[i] : i].piece_count;
    ra_status status =
        ra_pool_alloc(pool, RA_MEM_TILEMAP, (size_t)pieces * sizeof(ra_range), NULL, &block);
    if (status != RA_OK)
        return status;
    ra_range *const ranges = block.data;
    pieces = 0;
    for (int i = 0; i < count; ++i) {
        int const number = which != NULL ? which[i] : i;
        if (number == skipped)
            continue;
        for (int64_t k = 0; k < sets[number].piece_count; ++k)
            ranges[pieces++] = sets[number].pieces[k].rows;
    }
    status = ra_rowset_init(pool, ranges, pieces, joined_out);
    ra_pool_free(pool, NULL, &block);
    return status;
}

ra_status ra_teams_rows(const ra_teams *teams, int team, const ra_rowset *rows, ra_pool *pool,
                        ra_rowset *rows_out)
{
    return ra_rowset_join(rows, teams->members + teams->begin[team], ra_teams_size(teams, team), -1,
                          pool, rows_out);
}
