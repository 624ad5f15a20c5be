/*
 * Linear attention over ranks. A rank's rows are consecutive, so it needs only two sums of states
 * from the others, of a fixed size: those of the ranks before it, and, for gradients or if all rows
 * see all, those of the ranks after it. Head group by head group; nothing else travels.
 */
#include "internal.h"
#include "ring/ring_internal.h"

/* Floats of one head group on this rank. */
typedef struct linear_floats {
    size_t of[RA_LINEAR_PARTS];
} linear_floats;

static int32_t segments_of(const ra_ring *ring, const ra_head_group *g)
{
    return ra_linear_segments(ring->config.batch, g->kv_count, ra_ring_local_rows(ring),
                              ra_linear_workers(ring->kernel->ops->linear, ring->kernel->threads));
}

/* [batch][kv heads] of a group, each with one state. */
static size_t lane_floats(const ra_ring *ring, const ra_head_group *g)
{
    return (size_t)(ring->config.batch * g->kv_count * ra_linear_state_floats(ring->config.dim));
}

static linear_floats floats_of(const ra_ring *ring, const ra_head_group *g)
{
    const ra_ring_config *c = &ring->config;
    size_t const rows = (size_t)ra_ring_local_rows(ring), lanes = lane_floats(ring, g);
    size_t const states = lanes * (size_t)segments_of(ring, g);
    bool const prefixes = c->linear == RA_LINEAR_CAUSAL && c->linear_method == RA_LINEAR_CUMSUM;
    return (linear_floats){
        {[RA_LINEAR_STATES] = states,
         [RA_LINEAR_SUMS] = ra_comm_size(ring->comm) > 1 ? 3 * lanes : 0,
         [RA_LINEAR_GRADS] = c->backward ? states : 0,
         [RA_LINEAR_LINES] = c->backward ? 2 * (size_t)(c->batch * g->q_count) * rows : 0,
         [RA_LINEAR_PREFIXES] = prefixes ? lanes * rows : 0}};
}

/* The largest of each over the groups, of two sizes; fewer heads may have more segments. */
static linear_floats largest_floats(const ra_ring *ring, int32_t groups)
{
    int32_t const of_sizes[] = {0, groups - 1};
    linear_floats most = {0};
    for (int i = 0; i < 2; ++i) {
        ra_head_group const g = ra_ring_group_of(&ring->config, groups, of_sizes[i]);
        linear_floats const f = floats_of(ring, &g);
        for (int p = 0; p < RA_LINEAR_PARTS; ++p)
            most.of[p] = f.of[p] > most.of[p] ? f.of[p] : most.of[p];
    }
    return most;
}

static int64_t bytes_of_groups(const void *context, int32_t groups, int64_t *buffers_out)
{
    const ra_ring *ring = context;
    linear_floats const f = largest_floats(ring, groups);
    int64_t bytes = 0;
    for (int p = 0; p < RA_LINEAR_PARTS; ++p)
        bytes += (int64_t)ra_pool_round(ring->pool, f.of[p] * sizeof(float));
    *buffers_out = 0;
    return bytes;
}

static ra_status take_memory(ra_ring *ring)
{
    linear_floats const f = largest_floats(ring, ring->group_count);
    ra_ring_linear *l = &ring->linear;
    l->memory = ring->kernel->ops->memory();
    ra_status status = l->memory.ops != NULL ? RA_OK : RA_ERR_CUDA; /* it was said why */
    for (int p = 0; p < RA_LINEAR_PARTS && status == RA_OK; ++p)
        status = ra_pool_alloc(ring->pool, p == RA_LINEAR_LINES ? RA_MEM_ACCUMULATOR : RA_MEM_STATE,
                               f.of[p] * sizeof(float), ring->kernel->stream, &l->parts[p]);
    size_t const sums = f.of[RA_LINEAR_SUMS] * sizeof(float);
    if (status == RA_OK && sums > 0 && !ra_memory_is_host(&l->memory))
        status = ra_pool_alloc(ring->host_pool, RA_MEM_STATE, sums, NULL, &l->host_sums);
    return status;
}

double ra_linear_imbalance(const ra_layout *layout, int64_t seq)
{
    int64_t most = 0;
    for (int r = 0; r < layout->ranks; ++r)
        most = ra_max_i64(most, layout->rows[r].row_count);
    return (double)most * layout->ranks / (double)seq;
}

ra_status ra_linear_make(ra_ring *ring)
{
    ring->schedule = RA_SCHEDULE_SCAN;
    ring->rounds = 1;
    ring->linear.states_group = -1;
    ring->layout.imbalance = ra_linear_imbalance(&ring->layout, ring->config.seq);
    ra_groups_found found;
    int64_t room;
    ra_status status = ra_ring_read_room(ring, &room);
    if (status == RA_OK)
        status = ra_ring_settle_groups(ring, bytes_of_groups, ring, room, 0, 1, &found);
    return status != RA_OK ? status : ra_ring_agree(ring, take_memory(ring));
}

void ra_linear_give(ra_ring *ring)
{
    for (int p = 0; p < RA_LINEAR_PARTS; ++p)
        ra_pool_free(ring->pool, ring->kernel->stream, &ring->linear.parts[p]);
    ra_pool_free(ring->host_pool, NULL, &ring->linear.host_sums);
}

/* ---- states of other ranks and segments ------------------------------------------------------ */

static ra_status scan(ra_ring *ring, ra_scan direction, const float *own, float *before,
                      size_t count)
{
    if (ring->mode == RA_RING_COMPUTE_ONLY)
        return RA_OK;
    int64_t const mark =
        ra_ring_mark(ring, RA_TRACE_SCAN, -1, -1, (int64_t)(count * sizeof(float)), -1);
    ra_status const status = ra_comm_exscan_f32(
        ring->comm,
        direction == RA_SCAN_UP ? "states of the ranks before" : "states of the ranks after",
        direction, own, before, (int64_t)count);
    ra_ring_mark_end(ring, mark);
    return status;
}

/*
 * Scan our own sums into those of the ranks before us, and, if all rows see all, of those after us.
 * MPI cannot read device memory: on a GPU, own sums are first copied to the host, which waits for
 * the kernels that make them, and the scan's results are copied back.
 */
static ra_status scan_ranks(ra_ring *ring, ra_linear_reach reach, size_t count)
{
    ra_ring_linear *const l = &ring->linear;
    bool const on_host = l->host_sums.data == NULL, all = reach == RA_LINEAR_ALL;
    float *const sums = l->parts[RA_LINEAR_SUMS].data;
    float *const own = on_host ? sums : l->host_sums.data;
    size_t const bytes = count * sizeof(float);
    ra_status status = on_host ? RA_OK : ra_kernel_finish(ring->kernel);
    if (status == RA_OK && !on_host)
        status = ra_memory_read(&l->memory, ring->kernel->stream, own, sums, bytes);
    if (status == RA_OK)
        status = scan(ring, reach == RA_LINEAR_AFTER ? RA_SCAN_DOWN : RA_SCAN_UP, own, own + count,
                      count);
    if (status == RA_OK && all)
        status = scan(ring, RA_SCAN_DOWN, own, own + 2 * count, count);
    if (status == RA_OK && !on_host)
        status = ra_memory_write(&l->memory, ring->kernel->stream, sums + count, own + count,
                                 all ? 2 * bytes : bytes);
    return status;
}

/*
 * Turn each segment's own sums into what its rows see: the sums of all rows before or after it, or,
 * if not causal, of all rows.
 */
static ra_status combine(ra_ring *ring, const ra_head_group *g, const ra_linear_pass *pass,
                         ra_linear_reach reach, float *states)
{
    const ra_linear_ops *const ops = ring->kernel->ops->linear;
    size_t const lanes = lane_floats(ring, g);
    float *const own = ring->linear.parts[RA_LINEAR_SUMS].data; /* NULL on one rank */
    bool const all = ring->config.linear == RA_LINEAR_BIDIRECTIONAL;
    if (all)
        reach = RA_LINEAR_ALL;
    if (own == NULL)
        return ops->spread(ring->kernel, pass, reach, NULL, NULL, states);
    ra_status status = ops->total(ring->kernel, pass, states, own);
    if (status == RA_OK)
        status = scan_ranks(ring, reach, lanes);
    if (status == RA_OK)
        status = ops->spread(ring->kernel, pass, reach, own + lanes, all ? own + 2 * lanes : NULL,
                             states);
    return status;
}

/* ---- passes ---------------------------------------------------------------------------------- */

static ra_linear_pass pass_of(const ra_ring *ring, const ra_ring_tensors *t, const ra_head_group *g)
{
    const ra_ring_config *c = &ring->config;
    const ra_block *const parts = ring->linear.parts;
    return (ra_linear_pass){.shape = ra_ring_shape(ring, g),
                            .rows = ra_ring_local_rows(ring),
                            .segments = segments_of(ring, g),
                            .causal = c->linear == RA_LINEAR_CAUSAL,
                            .method = c->linear_method,
                            .q = ra_ring_view(ring, t->q, c->heads, g->q_begin),
                            .k = ra_ring_view(ring, t->k, c->kv_heads, g->kv_begin),
                            .v = ra_ring_view(ring, t->v, c->kv_heads, g->kv_begin),
                            .out = ra_ring_view(ring, t->out, c->heads, g->q_begin),
                            .dout = ra_ring_view(ring, t->dout, c->heads, g->q_begin),
                            .dq = ra_ring_view(ring, t->dq, c->heads, g->q_begin),
                            .dk = ra_ring_view(ring, t->dk, c->kv_heads, g->kv_begin),
                            .dv = ra_ring_view(ring, t->dv, c->kv_heads, g->kv_begin),
                            .states = parts[RA_LINEAR_STATES].data,
                            .grads = parts[RA_LINEAR_GRADS].data,
                            .prefixes = parts[RA_LINEAR_PREFIXES].data,
                            .lines = parts[RA_LINEAR_LINES].data};
}

/* One kernel call; a rank without rows has nothing to compute. */
static ra_status run(ra_ring *ring, ra_trace_kind kind, const ra_linear_pass *pass,
                     ra_status (*work)(ra_kernel *kernel, const ra_linear_pass *pass))
{
    if (pass->rows == 0 || ring->mode == RA_RING_COMM_ONLY)
        return RA_OK;
    int64_t const mark = ra_ring_mark(ring, kind, 0, -1, -1, pass->rows);
    ra_status const status = work(ring->kernel, pass);
    ra_ring_mark_end(ring, mark);
    return status;
}

static ra_status clear_states(ra_ring *ring, const ra_head_group *g, const ra_linear_pass *pass,
                              float *states)
{
    return ring->kernel->ops->zero(ring->kernel, states,
                                   lane_floats(ring, g) * (size_t)pass->segments * sizeof(*states));
}

/* Make the states of a group, unless the forward pass has left them. */
static ra_status make_states(ra_ring *ring, int32_t group, const ra_linear_pass *pass)
{
    ra_head_group const g = ra_ring_group(ring, group);
    bool const alone = ra_comm_size(ring->comm) == 1 && pass->segments == 1 && pass->causal;
    ra_status status = RA_OK;
    if (ring->linear.states_group == group)
        return RA_OK;
    ring->linear.states_group = -1;
    if (alone || pass->rows == 0) /* nothing comes before, or nothing from here */
        status = clear_states(ring, &g, pass, pass->states);
    else
        status = run(ring, RA_TRACE_FORWARD_KERNEL, pass, ring->kernel->ops->linear->sum);
    if (status == RA_OK && !alone)
        status = combine(ring, &g, pass, RA_LINEAR_BEFORE, pass->states);
    if (status == RA_OK)
        ring->linear.states_group = group;
    return status;
}

ra_status ra_linear_forward_group(ra_ring *ring, const ra_ring_tensors *tensors, int32_t group)
{
    ra_head_group const g = ra_ring_group(ring, group);
    ra_linear_pass const pass = pass_of(ring, tensors, &g);
    ra_status const status = make_states(ring, group, &pass);
    return status != RA_OK
               ? status
               : run(ring, RA_TRACE_FORWARD_KERNEL, &pass, ring->kernel->ops->linear->forward);
}

ra_status ra_linear_backward_group(ra_ring *ring, const ra_ring_tensors *tensors, int32_t group)
{
    const ra_linear_ops *const ops = ring->kernel->ops->linear;
    ra_head_group const g = ra_ring_group(ring, group);
    ra_linear_pass const pass = pass_of(ring, tensors, &g);
    ra_status status = make_states(ring, group, &pass);
    if (status == RA_OK && pass.rows == 0)
        status = clear_states(ring, &g, &pass, pass.grads);
    if (status == RA_OK)
        status = run(ring, RA_TRACE_BACKWARD_KERNEL, &pass, ops->backward_queries);
    if (status == RA_OK)
        status = combine(ring, &g, &pass, RA_LINEAR_AFTER, pass.grads);
    if (status == RA_OK)
        status = run(ring, RA_TRACE_BACKWARD_KERNEL, &pass, ops->backward_keys);
    return status;
}
