/* Collectives of ranks that are threads: the rank that arrives last carries one out for all. */
#include "comm_local.h"

#include <string.h>

static void carry_out(ra_local_group *group)
{
    ra_local_part *const all = group->collectives;
    ra_local_part *const source = all[0].kind == RA_LOCAL_BROADCAST ? &all[all[0].detail] : &all[0];
    for (int rank = 1; rank < group->size && source->kind == RA_LOCAL_REDUCE; rank++)
        ra_reduce_fold(source->number, (ra_reduce)source->detail, source->data, all[rank].data,
                       (int)(source->bytes / RA_NUMBER_BYTES));
    for (int rank = 0; rank < group->size; rank++) {
        if (&all[rank] != source && source->bytes > 0)
            memcpy(all[rank].data, source->data, source->bytes);
        all[rank].present = false;
    }
    group->sequence++;
    pthread_cond_broadcast(&group->changed);
}

/* The first rank whose part differs from rank 0's; -1: all agree. */
static int find_disagreement(const ra_local_group *group)
{
    const ra_local_part *const first = &group->collectives[0];
    for (int rank = 1; rank < group->size; rank++) {
        const ra_local_part *const other = &group->collectives[rank];
        if (other->kind != first->kind || other->detail != first->detail ||
            other->number != first->number || other->bytes != first->bytes)
            return rank;
    }
    return -1;
}

/* The first rank that has not come yet; the number of ranks: all have. */
static int find_absent(const ra_local_group *group)
{
    int rank = 0;
    while (rank < group->size && group->collectives[rank].present)
        rank++;
    return rank;
}

/* The lock is held. *peer_out: who is late (RA_ERR_TIMEOUT), or disagrees (RA_ERR_PEER) or -1. */
static ra_status take_part(ra_local_comm *local, ra_local_part mine, int *peer_out)
{
    ra_local_group *const group = local->group;
    int64_t const begin_ns = ra_clock_ns();
    *peer_out = -1;
    if (group->failed)
        return RA_ERR_PEER;

    int64_t const sequence = group->sequence;
    group->collectives[local->base.rank] = mine;
    if (find_absent(group) == group->size) {
        int const other = find_disagreement(group);
        if (other >= 0) {
            *peer_out = other == local->base.rank ? 0 : other;
            return RA_ERR_PEER;
        }
        carry_out(group);
        return RA_OK;
    }
    while (group->sequence == sequence && !group->failed) {
        if (!ra_local_wait_for_change(group, &local->base, begin_ns))
            break;
    }
    if (group->sequence != sequence)
        return RA_OK;
    if (group->failed)
        return RA_ERR_PEER;
    *peer_out = find_absent(group);
    return RA_ERR_TIMEOUT;
}

static ra_status run_collective(ra_comm *comm, const char *operation, ra_local_part mine)
{
    ra_local_comm *const local = (ra_local_comm *)comm;
    int peer;
    mine.present = true;
    pthread_mutex_lock(&local->group->mutex);
    ra_status const status = take_part(local, mine, &peer);
    if (status != RA_OK)
        ra_local_fail(local->group);
    pthread_mutex_unlock(&local->group->mutex);

    if (status == RA_ERR_TIMEOUT)
        ra_comm_log_timeout(comm, operation, -1, peer);
    else if (status == RA_ERR_PEER && peer >= 0)
        ra_comm_log_disagreement(comm, operation, peer);
    return status;
}

ra_status ra_local_barrier(ra_comm *comm, const char *operation)
{
    return run_collective(comm, operation, (ra_local_part){.kind = RA_LOCAL_BARRIER});
}

ra_status ra_local_broadcast(ra_comm *comm, const char *operation, int root, void *data,
                             size_t bytes)
{
    return run_collective(
        comm, operation,
        (ra_local_part){.kind = RA_LOCAL_BROADCAST, .detail = root, .data = data, .bytes = bytes});
}

ra_status ra_local_reduce(ra_comm *comm, const char *operation, ra_number number, ra_reduce reduce,
                          void *values, int count)
{
    return run_collective(comm, operation,
                          (ra_local_part){.kind = RA_LOCAL_REDUCE,
                                          .detail = (int)reduce,
                                          .number = number,
                                          .data = values,
                                          .bytes = (size_t)count * RA_NUMBER_BYTES});
}
