/*
 * Schedule shared: ranks of one host, a team, lay keys and values in one window, rank after rank,
 * and read them where they lie. On one host nothing is sent, and as all keys are at hand the
 * forward pass is one step without state, as on one rank. What a team needs of another host's rows
 * is fetched into a window once for all of it.
 *
 * In the backward pass members take turns to add to the gradients of each other's rows. A barrier
 * ends each turn, so additions to a row come in the order of turns and repeat bit for bit.
 */
#include "internal.h"
#include "ring/ring_internal.h"

#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14; the C library's headers may be older */
#endif

static int team_of(const ra_ring *ring)
{
    return ring->teams.team[ra_comm_rank(ring->comm)];
}

int ra_ring_place(const ra_ring *ring)
{
    return ring->teams.place[ra_comm_rank(ring->comm)];
}

int ra_ring_team_size(const ra_ring *ring)
{
    return ra_teams_size(&ring->teams, team_of(ring));
}

/* Rows of the members before a place. */
static int64_t first_row(const ra_ring *ring, int place)
{
    int64_t first = 0;
    for (int p = 0; p < place; ++p)
        first += ring->layout.rows[ra_teams_member(&ring->teams, team_of(ring), p)].row_count;
    return first;
}

int64_t ra_shared_team_rows(const ra_ring *ring)
{
    return first_row(ring, ra_ring_team_size(ring));
}

/* Two tensors [batch, team's rows, heads, dim], one after the other, as a ring's users lay them. */
ra_pair_view ra_shared_keys(const ra_ring *ring, int32_t head, int place)
{
    const ra_ring_config *c = &ring->config;
    int64_t const rows = ra_shared_team_rows(ring), item = (int64_t)ra_dtype_bytes(c->dtype);
    char *second = (char *)ring->key_window.data + c->batch * rows * c->kv_heads * c->dim * item;
    ra_pair_view const pair = {
        ra_view_dense(ring->key_window.data, c->dtype, rows, c->kv_heads, c->dim, head),
        ra_view_dense(second, c->dtype, rows, c->kv_heads, c->dim, head)};
    return ra_pair_skip(&pair, first_row(ring, place));
}

ra_pair_view ra_shared_grads(const ra_ring *ring, const ra_head_group *group, int place)
{
    ra_pair_view const pair = ra_ring_pair(ring, group->kv_count, ring->grad_window.data, RA_F32);
    return ra_pair_skip(&pair, first_row(ring, place));
}

ra_ring_keys ra_ring_key_memory(const ra_ring *ring)
{
    if (ring->schedule != RA_SCHEDULE_SHARED)
        return (ra_ring_keys){NULL, NULL, ra_ring_local_rows(ring)};
    ra_pair_view const own = ra_shared_keys(ring, 0, ra_ring_place(ring));
    return (ra_ring_keys){own.first.data, own.second.data, ra_shared_team_rows(ring)};
}

/* Of bytes that the team's rows divide, those before a row: without a product that could overflow.
 */
static int64_t bytes_before(const ra_ring *ring, size_t bytes, int64_t row)
{
    int64_t const rows = ra_shared_team_rows(ring);
    if (rows == 0)
        return 0; /* nothing is held for a team without queries */
    return (int64_t)bytes / rows * row + ra_min_i64((int64_t)bytes % rows, row);
}

int64_t ra_shared_share(const ra_ring *ring, size_t bytes)
{
    int64_t const first = first_row(ring, ra_ring_place(ring));
    return bytes_before(ring, bytes, first + ra_ring_local_rows(ring)) -
           bytes_before(ring, bytes, first);
}

/* Make the share that is charged part of our resident set, like all that a ledger counts. Its pages
   are there already, so nothing can fail but for systems that do not know the advice (Linux before
   5.14): there they come with their first use. Others wait meanwhile. */
static void populate_share(const ra_ring *ring, const ra_window *window)
{
    int64_t const page = sysconf(_SC_PAGESIZE), most = (int64_t)64 << 20;
    int64_t const first = bytes_before(ring, window->bytes, first_row(ring, ra_ring_place(ring)));
    int64_t const end = first + ra_shared_share(ring, window->bytes);
    for (int64_t at = first / page * page; at < end; at += most) {
        (void)madvise((char *)window->data + at, (size_t)ra_min_i64(most, end - at),
                      MADV_POPULATE_READ);
        ra_comm_beat(ring->comm);
    }
}

/* Without a window for keys there are other ways; a ring that has one needs the others too. */
static ra_status make_window(ra_ring *ring, size_t bytes, ra_window *window)
{
    ra_status const status = ra_window_create(ring->comm, bytes, window);
    if (status == RA_OK)
        populate_share(ring, window);
    if (status == RA_ERR_UNSUPPORTED && ring->key_window.data != NULL &&
        ra_comm_rank(ring->comm) == 0)
        ra_log(RA_LOG_ERROR, "schedule shared: ranks of a host share their keys, but the system "
                             "refuses them more shared memory: raise the limits of processes "
                             "(ulimit -f, -n, -v), or take schedule direct");
    return status;
}

ra_status ra_shared_take(ra_ring *ring, ra_status mine, ra_category category, size_t bytes,
                         ra_window *window)
{
    size_t const taken = bytes > 0 ? bytes : 1; /* others may need more, and all take part */
    int64_t const share = ra_shared_share(ring, taken);
    ra_status const charged = mine != RA_OK ? mine : ra_pool_charge(ring->pool, category, share);
    ra_status status = ra_ring_agree(ring, charged);
    if (status == RA_OK)
        status = make_window(ring, taken, window);
    if (status != RA_OK && charged == RA_OK)
        ra_pool_release(ring->pool, category, share);
    return status;
}

void ra_shared_give(ra_ring *ring, ra_category category, ra_window *window)
{
    if (window->data != NULL)
        ra_pool_release(ring->pool, category, ra_shared_share(ring, window->bytes));
    ra_window_destroy(window);
}

ra_status ra_shared_barrier(ra_ring *ring, const char *operation, int step)
{
    if (ring->schedule != RA_SCHEDULE_SHARED || ring->mode == RA_RING_COMPUTE_ONLY)
        return RA_OK;
    int64_t const mark = ra_ring_mark(ring, RA_TRACE_BARRIER, step, -1, -1, -1);
    ra_status const status = ra_window_barrier(ring->comm, &ring->key_window, operation, step);
    ra_ring_mark_end(ring, mark);
    return status;
}
