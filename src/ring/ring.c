/* Making a ring: decisions that rank 0 takes for all; its life. */
#include "internal.h"
#include "ring/ring_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

const char *ra_schedule_name(ra_schedule schedule)
{
    static const char *const names[] = {"ring", "direct", "shared", "auto", "scan"};
    size_t const index = (size_t)schedule;
    return index < sizeof(names) / sizeof(names[0]) ? names[index] : "unknown";
}

int64_t ra_ring_local_rows(const ra_ring *ring)
{
    return ring->layout.rows[ra_comm_rank(ring->comm)].row_count;
}

const ra_rowset *ra_ring_rows(const ra_ring *ring)
{
    return &ring->layout.rows[ra_comm_rank(ring->comm)];
}

ra_head_group ra_ring_group(const ra_ring *ring, int32_t group)
{
    return ra_ring_group_of(&ring->config, ring->group_count, group);
}

const ra_plan *ra_ring_plan(const ra_ring *ring, int32_t group)
{
    return &ring->plans[group % ring->plan_count];
}

ra_kernel_shape ra_ring_shape(const ra_ring *ring, const ra_head_group *group)
{
    const ra_ring_config *c = &ring->config;
    return (ra_kernel_shape){.batch = c->batch,
                             .q_heads = group->q_count,
                             .kv_heads = group->kv_count,
                             .q_head_begin = group->q_begin,
                             .dim = c->dim,
                             .scale = c->scale};
}

void ra_ring_set_mode(ra_ring *ring, ra_ring_mode mode)
{
    ring->mode = mode;
}

ra_status ra_ring_agree(ra_ring *ring, ra_status mine)
{
    char operation[64] = "agreeing on the ring";
    if (ring->pass != NULL)
        snprintf(operation, sizeof(operation), "agreeing on step %d of the %s pass", ring->step,
                 ring->pass);
    ra_status const worst = ra_comm_agree(ring->comm, operation, mine);
    ring->failed_together = worst == RA_ERR_NO_MEMORY && !ra_comm_is_broken(ring->comm);
    return worst;
}

/* ---- decisions ------------------------------------------------------------------------------- */

typedef struct decision {
    int32_t status, choice;
} decision;

/* Rank 0's choice and whether it could make one, on all ranks. */
static ra_status share_decision(ra_ring *ring, const char *operation, ra_status mine, int *choice)
{
    decision d = {(int32_t)mine, (int32_t)*choice};
    ra_status const sent = ra_comm_broadcast(ring->comm, operation, 0, &d, sizeof(d));
    *choice = d.choice;
    return sent != RA_OK ? sent : (ra_status)d.status;
}

/* Rank 0 resolves auto for all, by what teams will send; any other layout all ranks make at once.
 */
static ra_status settle_layout(ra_ring *ring)
{
    int const ranks = ra_comm_size(ring->comm);
    int kind = ring->config.layout;
    ra_status status = RA_OK;
    if (kind == RA_LAYOUT_AUTO && ranks == 1)
        kind = RA_LAYOUT_CONTIGUOUS;
    if (kind == RA_LAYOUT_AUTO) {
        if (ra_comm_rank(ring->comm) == 0) {
            status = ra_layout_choose(ring->pattern, &ring->teams,
                                      ring->config.schedule == RA_SCHEDULE_RING, ring->comm,
                                      ring->host_pool, &ring->layout);
            kind = ring->layout.kind;
        }
        status = share_decision(ring, "layout", status, &kind);
    }
    if (status == RA_OK && ring->layout.rows == NULL)
        status = ra_layout_init((ra_layout_kind)kind, ring->pattern, ranks, ring->comm,
                                ring->host_pool, &ring->layout);
    return ra_ring_agree(ring, status);
}

/* Without shared memory: neighbour hops if every rank needs every row, in one round, else needed
   rows only. */
static ra_status settle_sending(ra_ring *ring)
{
    bool full = false;
    ra_status status = RA_OK;
    if (ra_comm_rank(ring->comm) == 0 && ring->config.rounds <= 1)
        status = ra_plan_is_full(ring->pattern, &ring->layout, ring->comm, ring->host_pool, &full);
    int schedule = full ? RA_SCHEDULE_RING : RA_SCHEDULE_DIRECT;
    status = share_decision(ring, "schedule", status, &schedule);
    ring->schedule = (ra_schedule)schedule;
    return status;
}

static ra_status make_teams(ra_ring *ring, const int *hosts)
{
    return ra_ring_agree(
        ring, ra_teams_init(ra_comm_size(ring->comm), hosts, ring->host_pool, &ring->teams));
}

/* *shared_out: whether ranks of a host are teams, and their keys have a window. */
static ra_status try_sharing(ra_ring *ring, bool *shared_out)
{
    const ra_ring_config *c = &ring->config;
    ra_status status = RA_ERR_UNSUPPORTED; /* no host has two ranks */
    if (ring->teams.largest > 1) {
        ring->schedule = RA_SCHEDULE_SHARED;
        status = ra_shared_take(ring, RA_OK, RA_MEM_QKV,
                                ra_ring_keys_bytes(ring, c->kv_heads, ra_shared_team_rows(ring)),
                                &ring->key_window);
    }
    *shared_out = status == RA_OK;
    return status == RA_ERR_UNSUPPORTED ? RA_OK : status;
}

/* The ranks of a host, if any has several, are no team: a layout chosen for teams may not suit
   them. */
static ra_status settle_without_sharing(ra_ring *ring)
{
    bool const asked = ring->config.schedule == RA_SCHEDULE_SHARED;
    bool const had_teams = ring->teams.largest > 1;
    ra_teams_fini(ring->host_pool, &ring->teams);
    if (ra_comm_rank(ring->comm) == 0 && (asked || had_teams))
        ra_log(RA_LOG_WARNING,
               "schedule %s: no two ranks are on one host and see each other's memory: %s",
               ra_schedule_name(ring->config.schedule), asked ? "taking direct" : "keys are sent");
    ra_status const status = make_teams(ring, NULL);
    if (status != RA_OK || ring->config.layout != RA_LAYOUT_AUTO || !had_teams)
        return status;
    ra_layout_fini(ring->host_pool, &ring->layout);
    return settle_layout(ring);
}

static ra_status refuse_sharing(const ra_ring *ring)
{
    if (ra_comm_rank(ring->comm) == 0)
        ra_log(RA_LOG_ERROR, "schedule shared: the memory of GPUs is not shared by ranks: take "
                             "direct, ring or auto");
    return RA_ERR_UNSUPPORTED;
}

/* Layout and schedule: shared if possible; if it was requested but is impossible, direct with a
   warning, or between GPUs an error. */
static ra_status settle_schedule(ra_ring *ring)
{
    ra_schedule const asked = ring->config.schedule;
    bool const alone = ra_comm_size(ring->comm) == 1; /* has nothing to send or to share */
    bool const reaches = ra_comm_of_host(ring->comm) == ring->comm; /* each other's memory */
    bool const may_share =
        !alone && reaches && (asked == RA_SCHEDULE_SHARED || asked == RA_SCHEDULE_AUTO);
    bool shared = false;
    if (asked == RA_SCHEDULE_SHARED && !alone && !reaches)
        return refuse_sharing(ring);
    ra_status status = make_teams(ring, may_share ? ra_comm_hosts(ring->comm) : NULL);
    if (status == RA_OK)
        status = settle_layout(ring);
    if (status == RA_OK && may_share)
        status = try_sharing(ring, &shared);
    if (status == RA_OK && may_share && !shared)
        status = settle_without_sharing(ring);
    if (status != RA_OK || shared)
        return status;
    ring->schedule = asked == RA_SCHEDULE_RING ? RA_SCHEDULE_RING : RA_SCHEDULE_DIRECT;
    if (asked == RA_SCHEDULE_AUTO && !alone)
        status = settle_sending(ring);
    return status;
}

/* ---- life ------------------------------------------------------------------------------------ */

static bool can_follow(int64_t bytes)
{
    return bytes >= 0 && bytes <= INT64_C(1) << 60;
}

/* Of linear attention, besides. Its states are of dim + 1 columns. */
static ra_status check_linear(const ra_ring_config *c)
{
    bool const rows = c->layout == RA_LAYOUT_CONTIGUOUS || c->layout == RA_LAYOUT_AUTO;
    bool const gradients = !c->backward || c->linear == RA_LINEAR_BIDIRECTIONAL ||
                           c->linear_method == RA_LINEAR_CHUNKED;
    bool const stored = c->linear == RA_LINEAR_CAUSAL && c->linear_method == RA_LINEAR_CUMSUM;
    if (rows && gradients && c->schedule == RA_SCHEDULE_AUTO && c->rounds <= 1 && c->scale == 0 &&
        ra_elements_fit(c->batch, stored ? c->seq : 1, c->kv_heads, c->dim * (c->dim + 1)))
        return RA_OK;
    ra_log(RA_LOG_ERROR, "ring: linear attention takes layout contiguous or auto, schedule auto, "
                         "one round, no scale, for gradients the method chunked, and states that "
                         "are not too large to count");
    return RA_ERR_INVALID;
}

ra_status ra_ring_check_config(const ra_ring_config *c, bool materialises)
{
    bool const shape = c->batch >= 1 && c->seq >= 1 && c->heads >= 1 && c->kv_heads >= 1 &&
                       c->heads % c->kv_heads == 0 && c->dim >= 1 && c->dim <= RA_HEAD_DIM_MAX;
    bool const groups =
        shape && (c->head_groups == 0 || (ra_ring_has_groups(c, c->head_groups) &&
                                          !(materialises && c->head_groups > c->heads)));
    if (groups && c->comm_buffers >= 0 && c->comm_buffers <= RA_BUFFERS_MAX && c->rounds >= 0 &&
        c->rounds <= RA_ROUNDS_MAX && (c->rounds <= 1 || c->schedule != RA_SCHEDULE_RING) &&
        (size_t)c->schedule <= RA_SCHEDULE_AUTO && (size_t)c->layout <= RA_LAYOUT_AUTO &&
        (size_t)c->dtype <= RA_BF16 && isfinite(c->scale) &&
        (size_t)c->linear <= RA_LINEAR_CAUSAL && (size_t)c->linear_method <= RA_LINEAR_CUMSUM &&
        can_follow(c->follow_bytes[0]) && can_follow(c->follow_bytes[1]) &&
        ra_elements_fit(c->batch, c->seq, c->heads, c->dim))
        return c->linear == RA_LINEAR_NONE ? RA_OK : check_linear(c);
    ra_log(RA_LOG_ERROR,
           "ring: batch %lld, seq %lld, heads %d/%d, head_dim %d, dtype %s, scale %g, linear %d by "
           "method %d, layout %s, schedule %s, comm_buffers %d, head_groups %d, rounds %d and "
           "follow_bytes %lld and %lld do not go together, or are too large to count",
           (long long)c->batch, (long long)c->seq, c->heads, c->kv_heads, c->dim,
           ra_dtype_name(c->dtype), (double)c->scale, (int)c->linear, (int)c->linear_method,
           ra_layout_name(c->layout), ra_schedule_name(c->schedule), c->comm_buffers,
           c->head_groups, c->rounds, (long long)c->follow_bytes[0], (long long)c->follow_bytes[1]);
    return RA_ERR_INVALID;
}

/* Linear attention counts no pairs. */
static ra_status check_pattern(const ra_ring_config *c, const ra_pattern *pattern)
{
    int64_t const branches = ra_pattern_branch_count(pattern);
    if (ra_pattern_seq(pattern) == c->seq && ra_pattern_heads(pattern) == c->heads &&
        (c->linear != RA_LINEAR_NONE || ra_pairs_fit(c->batch, c->seq, c->heads, branches)))
        return RA_OK;
    ra_log(RA_LOG_ERROR,
           "ring: a pattern of seq %lld and heads %d does not go with batch %lld, seq %lld and "
           "heads %d, or its pairs are too many to count",
           (long long)ra_pattern_seq(pattern), ra_pattern_heads(pattern), (long long)c->batch,
           (long long)c->seq, c->heads);
    return RA_ERR_INVALID;
}

/* All of linear attention. Live pairs say nothing about its work, so none are counted. */
static ra_status make_linear(ra_ring *ring)
{
    ra_status const dealt =
        ra_layout_deal(RA_LAYOUT_CONTIGUOUS, ring->pattern, ra_comm_size(ring->comm), ring->comm,
                       ring->host_pool, &ring->layout);
    ra_status const status = ra_ring_agree(ring, dealt);
    return status == RA_OK ? ra_linear_make(ring) : status;
}

/* Layout, schedule, plans and memory of softmax attention. */
static ra_status make_softmax(ra_ring *ring)
{
    ra_status status = settle_schedule(ring);
    if (status == RA_OK)
        status = ra_ring_make_buffer_pool(ring);
    if (status == RA_OK) {
        status = ra_ring_make_plans(ring);
        if (status == RA_OK)
            status = ra_ring_make_memory(ring);
        status = ra_ring_agree(ring, status);
    }
    if (status == RA_OK)
        status = ra_ring_settle_last_grads(ring);
    return status == RA_OK ? ra_ring_make_windows(ring) : status;
}

static ra_status check_kernel(const ra_ring_config *c, const ra_kernel *kernel)
{
    if (c->linear == RA_LINEAR_NONE || kernel->ops->linear != NULL)
        return RA_OK;
    ra_log(RA_LOG_ERROR, "kernel %s has no linear attention: take another compute.backend",
           kernel->ops->name);
    return RA_ERR_UNSUPPORTED;
}

ra_status ra_ring_create(const ra_ring_config *config, const ra_pattern *pattern, ra_comm *comm,
                         ra_kernel *kernel, ra_pool *pool, ra_pool *host_pool, ra_ring **ring_out)
{
    ra_status status = ra_ring_check_config(config, kernel->ops->step_bytes != NULL);
    if (status == RA_OK)
        status = check_pattern(config, pattern);
    if (status == RA_OK)
        status = check_kernel(config, kernel);
    if (status != RA_OK)
        return status;
    bool const linear = config->linear != RA_LINEAR_NONE;
    ra_ring *ring = calloc(1, sizeof(*ring));
    status = ra_comm_agree(comm, "agreeing on the ring",
                           ring != NULL ? RA_OK : ra_refuse_memory("a ring"));
    if (status != RA_OK) {
        free(ring);
        return status;
    }
    RA_ASSERT(ring != NULL); /* that is what they have agreed on */
    ring->config = *config;
    if (config->scale == 0)
        ring->config.scale = (float)(1 / sqrt((double)config->dim));
    ring->pattern = pattern;
    ring->comm = comm;
    ring->kernel = kernel;
    ring->number = ++kernel->owners;
    ring->pool = ring->buffer_pool = pool;
    ring->host_pool = host_pool;
    status = linear ? make_linear(ring) : make_softmax(ring);
    if (status != RA_OK) {
        ra_ring_destroy(ring);
        return status;
    }
    *ring_out = ring;
    return RA_OK;
}

/* The communicator's own memory is unmapped at once, but after a failed pass kernels may still use
   it: wait for them. After one that was complete nobody minds what the GPU says. */
static void leave_buffers(ra_ring *ring)
{
    if (ring->buffer_pool == ring->pool || !ring->may_compute)
        return;
    ra_status const ignored = ra_kernel_finish(ring->kernel);
    (void)ignored; /* the cause was logged, and after it nothing uses the buffers either */
}

void ra_ring_destroy(ra_ring *ring)
{
    if (ring == NULL)
        return;
    ra_stream *stream = ring->kernel->stream;
    leave_buffers(ring);
    ra_comm_set_watch(ring->comm, NULL, NULL); /* the kernel may end before the communicator */
    ra_comm_set_stream(ring->comm, NULL);
    for (int i = 0; i < RA_BUFFERS_MAX; ++i) {
        ra_shared_give(ring, RA_MEM_COMM_BUFFER, &ring->held[i].window);
        ra_shared_give(ring, RA_MEM_COMM_BUFFER, &ring->partial[i].window);
        ra_pool_free(ring->buffer_pool, stream, &ring->held[i].block);
        ra_pool_free(ring->buffer_pool, stream, &ring->partial[i].block);
    }
    ra_pool_free(ring->buffer_pool, stream, &ring->sent.block);
    ra_pool_free(ring->buffer_pool, stream, &ring->arriving.block);
    if (ring->buffer_pool != ring->pool)
        ra_pool_destroy(ring->buffer_pool);
    ra_pool_free(ring->pool, stream, &ring->state);
    ra_pool_free(ring->pool, stream, &ring->grads);
    ra_pool_free(ring->pool, stream, &ring->delta);
    ra_linear_give(ring);
    ra_shared_give(ring, RA_MEM_QKV, &ring->key_window);
    ra_shared_give(ring, RA_MEM_ACCUMULATOR, &ring->grad_window);
    ra_ring_give_plans(ring);
    ra_teams_fini(ring->host_pool, &ring->teams);
    ra_layout_fini(ring->host_pool, &ring->layout);
    free(ring);
}

static int64_t full_ring_bytes(const ra_ring *ring)
{
    const ra_ring_config *c = &ring->config;
    int64_t const hops = ra_comm_size(ring->comm) - 1;
    int64_t const keys = (int64_t)ra_ring_keys_bytes(ring, c->kv_heads, c->seq);
    int64_t const grads = (int64_t)ra_ring_grads_bytes(ring, c->kv_heads, c->seq);
    int64_t const hop = c->backward ? 2 * keys + grads : keys;
    return hops > 0 && hop > INT64_MAX / hops ? INT64_MAX : hops * hop;
}

void ra_ring_read_info(const ra_ring *ring, ra_ring_info *info_out)
{
    ra_ring_info info = {.layout = ring->layout.kind,
                         .schedule = ring->schedule,
                         .chunk = ring->layout.chunk,
                         .head_groups = ring->group_count,
                         .rounds = ring->rounds,
                         .imbalance = ring->layout.imbalance,
                         .full_ring_bytes = full_ring_bytes(ring)};
    for (int32_t i = 0; i < ring->plan_count; ++i) {
        const ra_plan *plan = &ring->plans[i];
        int const live = ra_plan_live_steps(plan);
        info.step_count = live > info.step_count ? live : info.step_count;
        for (int s = 0; s < plan->step_count; ++s) {
            info.tilemap_bytes += plan->steps[s].map.bytes;
            info.live_pairs += plan->steps[s].map.live_pairs * ring->config.batch;
        }
    }
    *info_out = info;
}
