/* Accumulators: rows of state, which chunks of queries that several steps compute take, the list of
 * these steps, and rows of gradients. */
#include "internal.h"
#include "ring/predict_job.h"

#include <stdlib.h>

void ra_predict_begin_looks(ra_predict_looks *looks, int64_t chunk_rows, int64_t chunk_count)
{
    if (!looks->settled) {
        free(looks->items);
        looks->items = NULL;
        looks->count = 0;
        looks->chunk_rows = chunk_rows;
        looks->chunk_count = chunk_count;
    }
    for (int64_t i = 0; i < looks->count; ++i)
        looks->items[i].now = 0;
}

ra_status ra_predict_look_at(ra_predict_looks *looks, int64_t count, int64_t index, int64_t rows)
{
    if (looks->items == NULL) {
        ra_status const status = ra_predict_take(&looks->items, count, sizeof(*looks->items));
        if (status != RA_OK)
            return status;
        looks->count = count;
    }
    RA_ASSERT(count == looks->count);
    looks->items[index].now = ra_max_i64(looks->items[index].now, rows);
    return RA_OK;
}

void ra_predict_end_looks(ra_predict_looks *looks, int64_t chunk_rows, int64_t *rows)
{
    looks->settled = true;
    looks->differ = looks->differ || looks->chunk_rows != chunk_rows;
    if (looks->chunk_rows != chunk_rows)
        return;
    *rows = 0;
    for (int64_t i = 0; i < looks->count; ++i) {
        ra_predict_look *const look = &looks->items[i];
        look->second = ra_max_i64(look->second, ra_min_i64(look->now, look->most));
        look->most = ra_max_i64(look->most, look->now);
        *rows += look->now;
    }
}

static bool is_carried(const ra_predict_job *job, const ra_predict_plan *plan)
{
    int live = 0;
    for (int s = 0; s < job->step_count; ++s)
        live += plan->steps[s].map.runs > 0;
    return live > 1;
}

static bool goes_by_chunks(const ra_predict_job *job, const ra_predict_plan *plan)
{
    return !job->request->standard && !plan->looks.differ;
}

int64_t ra_predict_state_rows(const ra_predict_job *job, const ra_predict_plan *plan, int rank,
                              const ra_head_group *group)
{
    int64_t const queries = ra_head_group_rows(group, job->rows[rank].row_count);
    int64_t rows = 0;
    if (!is_carried(job, plan))
        return 0;
    if (!goes_by_chunks(job, plan))
        return queries;
    for (int64_t i = 0; i < plan->looks.count; ++i)
        rows += plan->looks.items[i].second;
    return ra_min_i64(rows, queries); /* the plan may be of all */
}

int64_t ra_predict_chunk_bytes(const ra_predict_job *job, const ra_predict_plan *plan)
{
    int64_t const bytes = plan->looks.chunk_count * (int64_t)sizeof(ra_chunk_steps);
    return is_carried(job, plan) && goes_by_chunks(job, plan) ? ra_predict_round(job, bytes) : 0;
}

int64_t ra_predict_summed_rows(const ra_predict_job *job, const ra_predict_plan *plan, int rank,
                               const ra_head_group *g)
{
    int64_t const batch = job->request->ring.batch, rows = job->rows[rank].row_count;
    bool const shared = job->schedule == RA_SCHEDULE_SHARED;
    ra_stored_grads const stores = job->request->stores;
    bool shares = !g->begins_keys || !g->ends_keys; /* keys with other groups, or with ranks */
    for (int s = 1; s < job->step_count; ++s)
        shares = shares || (!ra_keys_hop(job->schedule, s) && plan->steps[s].sent_rows > 0);
    if (job->request->ring.dtype == RA_F32)
        return 0; /* in outputs, and windows */
    bool const dq = !stores.dq || shared || is_carried(job, plan);
    bool const dkv = (!stores.dkv || shares) && !shared;
    return batch * ((dq ? g->q_count * ra_head_group_rows(g, rows) : 0) +
                    (dkv ? 2 * g->kv_count * rows : 0));
}
