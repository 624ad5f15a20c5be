/* The plan of schedule ring: blocks hop from rank to rank. */
#include "internal.h"
#include "ring/ring_internal.h"

ra_status ra_demand_init(const ra_pattern *pattern, const ra_layout *layout,
                         const ra_rowset *queries, ra_heads heads, int owner, ra_comm *comm,
                         ra_pool *pool, ra_demand *demand_out, ra_rowset *local_out)
{
    ra_demand d = {0};
    ra_rowset others;
    ra_status status = ra_rowset_join(queries, NULL, layout->ranks, owner, pool, &others);
    if (status != RA_OK)
        return status;
    ra_comm_beat(comm);
    status = ra_pattern_needed_rows(pattern, heads, &others, &layout->rows[owner], pool, &d.rows,
                                    local_out);
    ra_rowset_fini(pool, &others);
    /* The nearest reader, then the farthest; rows that are needed have one. */
    for (int way = 0; way < 2 && d.rows.row_count > 0; ++way) {
        int *const distance = way == 0 ? &d.first : &d.last;
        int64_t needed = 0;
        for (int i = 1; i < layout->ranks && needed == 0 && status == RA_OK; ++i) {
            *distance = way == 0 ? i : layout->ranks - i;
            const ra_rowset *const reader = &queries[(owner + *distance) % layout->ranks];
            ra_comm_beat(comm);
            status = ra_pattern_count_needed(pattern, heads, reader, &layout->rows[owner], pool,
                                             &needed);
        }
    }
    if (status == RA_OK) {
        *demand_out = d;
        return RA_OK;
    }
    ra_demand_fini(pool, &d);
    if (local_out != NULL)
        ra_rowset_fini(pool, local_out);
    return status;
}

void ra_demand_fini(ra_pool *pool, ra_demand *demand)
{
    ra_rowset_fini(pool, &demand->rows);
    *demand = (ra_demand){0};
}

/*
 * The owner sends the rows that any rank needs; the block hops on until the last rank that needs
 * some. Its gradient starts at the first rank that has one and hops on to the owner.
 */
static ra_status init_ring_step(const ra_plan_request *request, const ra_demand *demands, int s,
                                ra_pool *pool, ra_plan *plan)
{
    const ra_teams *teams = request->teams; /* each a rank */
    int const owner = ra_teams_behind(teams, request->rank, s);
    const ra_demand *held = &demands[owner];
    const ra_demand *sent = &demands[ra_teams_behind(teams, request->rank, s - 1)];
    const ra_demand *next = &demands[ra_teams_behind(teams, request->rank, s + 1)];
    ra_step *step = &plan->steps[s];
    ra_status const status = ra_plan_init_map(request, &held->rows, pool, &step->map);
    if (status != RA_OK)
        return status;
    step->held_from = step->grad_from = ra_teams_behind(teams, request->rank, 1);
    step->sent_to = step->grad_to = ra_teams_ahead(teams, request->rank, 1);
    step->held_rows = step->fetched_rows = s <= held->last ? held->rows.row_count : 0;
    step->sent_rows = s <= sent->last ? sent->rows.row_count : 0;
    step->part_count = 1;
    step->parts[0].owner = owner;
    if (s >= held->first) /* without a reader there are no rows */
        step->grad_rows = step->grad_out_rows = held->rows.row_count;
    if (s >= next->first)
        step->grad_in_rows = next->rows.row_count;
    if (s == teams->count - 1)
        step->grad_home = &plan->steps[1].sent_local;
    return RA_OK;
}

static ra_status init_ring_own(const ra_plan_request *request, ra_pool *pool, ra_step *step)
{
    const ra_rowset *own = &request->layout->rows[request->rank];
    step->part_count = 1;
    step->parts[0].owner = request->rank;
    step->held_rows = own->row_count;
    return ra_plan_init_map(request, own, pool, &step->map);
}

ra_status ra_plan_init_ring(const ra_plan_request *request, ra_pool *pool, ra_plan *plan)
{
    int const ranks = request->layout->ranks;
    ra_block block;
    ra_status status =
        ra_pool_alloc(pool, RA_MEM_TILEMAP, (size_t)ranks * sizeof(ra_demand), NULL, &block);
    if (status != RA_OK)
        return status;
    ra_demand *demands = block.data;
    int made = 0;
    status = init_ring_own(request, pool, &plan->steps[0]);
    while (made < ranks && status == RA_OK) {
        bool const sends = made == request->rank && ranks > 1;
        status = ra_demand_init(request->pattern, request->layout, request->queries, request->heads,
                                made, request->comm, pool, &demands[made],
                                sends ? &plan->steps[1].sent_local : NULL);
        made += status == RA_OK;
    }
    for (int s = 1; s < ranks && status == RA_OK; ++s)
        status = init_ring_step(request, demands, s, pool, plan);
    for (int i = 0; i < made; ++i)
        ra_demand_fini(pool, &demands[i]);
    ra_pool_free(pool, NULL, &block);
    return status;
}
