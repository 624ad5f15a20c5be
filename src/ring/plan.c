/* Who holds whose rows in which step, and what travels for it. Everything is known to every rank.
 */
#include "internal.h"
#include "ring/ring_internal.h"

#include <string.h>

/* What the other ranks need of one owner's rows. */
typedef struct demand {
    ra_rowset rows, local; /* needed by anyone; local numbers of the owner */
    int first, last;       /* distances of the nearest and farthest rank that needs any; 0: none */
} demand;

static int behind(int rank, int distance, int ranks)
{
    return (rank - distance % ranks + ranks) % ranks;
}

static int ahead(int rank, int distance, int ranks)
{
    return (rank + distance) % ranks;
}

/* The rows of all ranks but one (-1: of all), rank after rank, as one set. */
static ra_status init_others(const ra_layout *layout, int except, ra_pool *pool, ra_rowset *others)
{
    ra_block block;
    int64_t count = 0;
    for (int r = 0; r < layout->ranks; ++r)
        count += layout->rows[r].piece_count;
    ra_status status =
        ra_pool_alloc(pool, RA_MEM_TILEMAP, (size_t)count * sizeof(ra_range), NULL, &block);
    if (status != RA_OK)
        return status;
    ra_range *ranges = block.data;
    count = 0;
    for (int r = 0; r < layout->ranks; ++r)
        for (int64_t i = 0; r != except && i < layout->rows[r].piece_count; ++i)
            ranges[count++] = layout->rows[r].pieces[i].rows;
    status = ra_rowset_init(pool, ranges, count, others);
    ra_pool_free(pool, NULL, &block);
    return status;
}

static void fini_demand(ra_pool *pool, demand *d)
{
    ra_rowset_fini(pool, &d->rows);
    ra_rowset_fini(pool, &d->local);
}

static ra_status init_demand(const ra_plan_request *request, int owner, ra_pool *pool, demand *d)
{
    const ra_layout *layout = request->layout;
    ra_rowset others;
    *d = (demand){0};
    ra_status status = init_others(layout, owner, pool, &others);
    if (status != RA_OK)
        return status;
    status = ra_pattern_needed_rows(request->pattern, request->heads, &others, &layout->rows[owner],
                                    pool, &d->rows, &d->local);
    ra_rowset_fini(pool, &others);
    for (int distance = 1; distance < layout->ranks && status == RA_OK; ++distance) {
        ra_rowset needed;
        status = ra_pattern_needed_rows(request->pattern, request->heads,
                                        &layout->rows[ahead(owner, distance, layout->ranks)],
                                        &layout->rows[owner], pool, &needed, NULL);
        if (status != RA_OK)
            break;
        if (needed.row_count > 0) {
            d->first = d->first > 0 ? d->first : distance;
            d->last = distance;
        }
        ra_rowset_fini(pool, &needed);
    }
    if (status != RA_OK)
        fini_demand(pool, d);
    return status;
}

static ra_status init_map(const ra_plan_request *request, const ra_rowset *keys, ra_pool *pool,
                          ra_step *step)
{
    return ra_tilemap_init(request->pattern, request->heads, &request->layout->rows[request->rank],
                           keys, request->tile_rows, pool, &step->map);
}

/* Needed rows only, straight from their owner; partial gradients straight back. */
static ra_status init_direct_step(const ra_plan_request *request, int distance, ra_pool *pool,
                                  ra_step *step)
{
    const ra_layout *layout = request->layout;
    int const owner = behind(request->rank, distance, layout->ranks);
    int const reader = ahead(request->rank, distance, layout->ranks);
    const ra_rowset *own = &layout->rows[request->rank];
    ra_rowset held, sent;
    ra_status status = ra_pattern_needed_rows(request->pattern, request->heads, own,
                                              &layout->rows[owner], pool, &held, NULL);
    if (status != RA_OK)
        return status;
    status = init_map(request, &held, pool, step);
    step->held_from = step->grad_to = owner;
    step->held_rows = step->grad_out_rows = held.row_count;
    ra_rowset_fini(pool, &held);
    if (status != RA_OK)
        return status;
    status = ra_pattern_needed_rows(request->pattern, request->heads, &layout->rows[reader], own,
                                    pool, &sent, &step->sent_local);
    if (status != RA_OK)
        return status;
    step->sent_to = step->grad_from = reader;
    step->sent_rows = step->grad_in_rows = sent.row_count;
    step->grad_home = &step->sent_local;
    ra_rowset_fini(pool, &sent);
    return RA_OK;
}

static ra_status init_direct(const ra_plan_request *request, ra_pool *pool, ra_plan *plan)
{
    ra_status status = RA_OK;
    for (int s = 1; s < plan->step_count && status == RA_OK; ++s)
        status = init_direct_step(request, s, pool, &plan->steps[s]);
    return status;
}

/*
 * Blocks hop from rank to rank. The owner sends what anyone needs; a block travels until the last
 * rank that needs it. Its gradient starts at the first rank that has one and travels home.
 */
static ra_status init_ring_step(const ra_plan_request *request, const demand *demands, int s,
                                ra_pool *pool, ra_plan *plan)
{
    int const ranks = request->layout->ranks;
    const demand *held = &demands[behind(request->rank, s, ranks)];
    const demand *sent = &demands[behind(request->rank, s - 1, ranks)];
    const demand *next = &demands[behind(request->rank, s + 1, ranks)];
    ra_step *step = &plan->steps[s];
    ra_status const status = init_map(request, &held->rows, pool, step);
    if (status != RA_OK)
        return status;
    step->held_from = step->grad_from = behind(request->rank, 1, ranks);
    step->sent_to = step->grad_to = ahead(request->rank, 1, ranks);
    step->held_rows = s <= held->last ? held->rows.row_count : 0;
    step->sent_rows = s <= sent->last ? sent->rows.row_count : 0;
    step->forwards = s > 1;
    if (held->first > 0 && s >= held->first)
        step->grad_out_rows = held->rows.row_count;
    if (next->first > 0 && s >= next->first)
        step->grad_in_rows = next->rows.row_count;
    if (s == ranks - 1)
        step->grad_home = &plan->steps[1].sent_local;
    return RA_OK;
}

static ra_status init_ring(const ra_plan_request *request, ra_pool *pool, ra_plan *plan)
{
    int const ranks = request->layout->ranks;
    ra_block block;
    ra_status status =
        ra_pool_alloc(pool, RA_MEM_TILEMAP, (size_t)ranks * sizeof(demand), NULL, &block);
    if (status != RA_OK)
        return status;
    demand *demands = block.data;
    int made = 0;
    for (; made < ranks && status == RA_OK; ++made)
        status = init_demand(request, made, pool, &demands[made]);
    for (int s = 1; s < ranks && status == RA_OK; ++s)
        status = init_ring_step(request, demands, s, pool, plan);
    if (status == RA_OK && ranks > 1) {
        plan->steps[1].sent_local = demands[request->rank].local;
        demands[request->rank].local = (ra_rowset){0};
    }
    for (int i = 0; i < made; ++i)
        fini_demand(pool, &demands[i]);
    ra_pool_free(pool, NULL, &block);
    return status;
}

/* All keys in one map; and for the backward pass, one map per rank whose rows we add to. */
static ra_status init_shared(const ra_plan_request *request, ra_pool *pool, ra_plan *plan)
{
    const ra_layout *layout = request->layout;
    const ra_rowset *own = &layout->rows[request->rank];
    ra_rowset all;
    ra_status status = init_others(layout, -1, pool, &all);
    if (status != RA_OK)
        return status;
    status = ra_tilemap_init(request->pattern, request->heads, own, &all, request->tile_rows, pool,
                             &plan->whole);
    ra_rowset_fini(pool, &all);
    for (int s = 0; s < plan->step_count && request->backward && status == RA_OK; ++s)
        status = init_map(request, &layout->rows[ahead(request->rank, s, layout->ranks)], pool,
                          &plan->steps[s]);
    return status;
}

ra_status ra_plan_init(const ra_plan_request *request, ra_pool *pool, ra_plan *plan_out)
{
    ra_plan plan = {.step_count = request->layout->ranks};
    RA_ASSERT(request->schedule != RA_SCHEDULE_AUTO);
    ra_status status = ra_pool_alloc(pool, RA_MEM_TILEMAP,
                                     (size_t)plan.step_count * sizeof(ra_step), NULL, &plan.block);
    if (status != RA_OK)
        return status;
    plan.steps = memset(plan.block.data, 0, plan.block.bytes);
    if (request->schedule == RA_SCHEDULE_SHARED)
        status = init_shared(request, pool, &plan);
    else
        status = init_map(request, &request->layout->rows[request->rank], pool, &plan.steps[0]);
    if (status == RA_OK && request->schedule == RA_SCHEDULE_RING)
        status = init_ring(request, pool, &plan);
    else if (status == RA_OK && request->schedule == RA_SCHEDULE_DIRECT)
        status = init_direct(request, pool, &plan);
    if (status != RA_OK) {
        ra_plan_fini(pool, &plan);
        return status;
    }
    *plan_out = plan;
    return RA_OK;
}

void ra_plan_fini(ra_pool *pool, ra_plan *plan)
{
    for (int s = 0; s < plan->step_count && plan->steps != NULL; ++s) {
        ra_tilemap_fini(pool, &plan->steps[s].map);
        ra_rowset_fini(pool, &plan->steps[s].sent_local);
    }
    ra_tilemap_fini(pool, &plan->whole);
    ra_pool_free(pool, NULL, &plan->block);
    *plan = (ra_plan){0};
}

ra_status ra_plan_is_full(const ra_pattern *pattern, const ra_layout *layout, ra_pool *pool,
                          bool *full_out)
{
    ra_heads const all = {0, 1, ra_pattern_heads(pattern)};
    *full_out = true;
    for (int owner = 0; owner < layout->ranks && *full_out; ++owner)
        for (int reader = 0; reader < layout->ranks && *full_out; ++reader) {
            ra_rowset needed;
            if (owner == reader)
                continue;
            ra_status const status = ra_pattern_needed_rows(
                pattern, all, &layout->rows[reader], &layout->rows[owner], pool, &needed, NULL);
            if (status != RA_OK)
                return status;
            *full_out = needed.row_count == layout->rows[owner].row_count;
            ra_rowset_fini(pool, &needed);
        }
    return RA_OK;
}

ra_plan_rows ra_plan_measure(const ra_plan *plan)
{
    ra_plan_rows rows = {.live_steps = plan->whole.run_count > 0};
    if (plan->whole.layers != NULL)
        return rows; /* schedule shared: one step, and nothing travels */
    for (int s = 0; s < plan->step_count; ++s) {
        const ra_step *step = &plan->steps[s];
        rows.live_steps += step->map.run_count > 0;
        if (s == 0)
            continue;
        rows.held = ra_max_i64(rows.held, step->held_rows);
        rows.sent = ra_max_i64(rows.sent, step->sent_rows);
        rows.grad_out = ra_max_i64(rows.grad_out, step->grad_out_rows);
        rows.grad_in = ra_max_i64(rows.grad_in, step->grad_in_rows);
    }
    return rows;
}
