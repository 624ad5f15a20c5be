/* Which layout `auto` takes: the one that sends least among those that are balanced enough. */
#include "internal.h"
#include "ring/ring_internal.h"

/* What a team needs of others is sent once, whichever members read it. */
static ra_status count_for_teams(const ra_pattern *pattern, const ra_layout *layout,
                                 const ra_teams *teams, ra_comm *comm, ra_pool *pool, int64_t *rows)
{
    ra_status status = RA_OK;
    if (teams->count == 1)
        return RA_OK; /* there are no others */
    for (int team = 0; team < teams->count && status == RA_OK; ++team) {
        ra_rowset queries;
        int64_t fetched = 0;
        ra_comm_beat(comm);
        status = ra_teams_rows(teams, team, layout->rows, pool, &queries);
        if (status != RA_OK)
            break;
        status = ra_pattern_count_fetched(pattern, &queries, pool, &fetched);
        ra_rowset_fini(pool, &queries);
        *rows += fetched;
    }
    return status;
}

/* Rows of an owner that any rank needs hop on until the last rank that needs some. */
static ra_status count_hops(const ra_pattern *pattern, const ra_layout *layout, ra_comm *comm,
                            ra_pool *pool, int64_t *rows)
{
    ra_heads const all = {0, 1, ra_pattern_heads(pattern)};
    for (int owner = 0; owner < layout->ranks; ++owner) {
        ra_demand demand;
        ra_status const status =
            ra_demand_init(pattern, layout, layout->rows, all, owner, comm, pool, &demand, NULL);
        if (status != RA_OK)
            return status;
        *rows += demand.rows.row_count * demand.last;
        ra_demand_fini(pool, &demand);
    }
    return RA_OK;
}

bool ra_layout_is_better(const ra_layout_cost *cost, const ra_layout_cost *best)
{
    double const rounded = 1e-12;
    if (ra_layout_is_even(cost))
        return !ra_layout_is_even(best) || cost->rows < best->rows * (1 - rounded);
    return !ra_layout_is_even(best) && cost->imbalance < best->imbalance;
}

ra_status ra_layout_choose(const ra_pattern *pattern, const ra_teams *teams, bool hops,
                           ra_comm *comm, ra_pool *pool, ra_layout *layout_out)
{
    ra_layout best = {0};
    ra_layout_cost best_cost = {0};
    for (int kind = RA_LAYOUT_CONTIGUOUS; kind < RA_LAYOUT_AUTO; ++kind) {
        ra_layout layout = {0};
        int64_t rows = 0;
        ra_status status =
            ra_layout_init((ra_layout_kind)kind, pattern, teams->ranks, comm, pool, &layout);
        ra_layout_cost cost = {.imbalance = layout.imbalance};
        if (status == RA_OK && ra_layout_is_even(&cost)) {
            status = hops ? count_hops(pattern, &layout, comm, pool, &rows)
                          : count_for_teams(pattern, &layout, teams, comm, pool, &rows);
        }
        if (status != RA_OK) {
            ra_layout_fini(pool, &layout);
            ra_layout_fini(pool, &best);
            return status;
        }
        cost.rows = (double)rows;
        bool const better = best.rows == NULL || ra_layout_is_better(&cost, &best_cost);
        ra_layout *loser = better ? &best : &layout;
        ra_layout_fini(pool, loser);
        if (better) {
            best = layout;
            best_cost = cost;
        }
        if (best_cost.rows == 0 && ra_layout_is_even(&best_cost))
            break; /* none sends less */
    }
    *layout_out = best;
    return RA_OK;
}
