/*
 * Linear attention: states of a fixed size take the place of pairs and steps. Closed forms, with n
 * rows of a rank, and Hk and Hq heads of a head group:
 *     state        batch Hk s E, twice that with backward; s segments give threads even work
 *                  3 batch Hk E more on several ranks, on GPUs in host memory, too;
 *                  method cumsum: batch Hk n E more
 *     accumulator  batch Hq n 8, with backward
 * where E = 4 dim (dim + 1). Work is 2 dim^2 batch N (H + Hk) forward, twice that backward.
 */
#include "internal.h"
#include "ring/predict_job.h"

#include <math.h>

/* Bytes of the largest group, each rounded separately. */
typedef struct linear_bytes {
    int64_t states, grads, prefixes, lines, sums;
} linear_bytes;

static int64_t state_bytes(const ra_ring_config *c)
{
    return ra_linear_state_floats(c->dim) * (int64_t)sizeof(float);
}

static int64_t segments_of(const ra_predict_job *job, const ra_head_group *group, int64_t rows)
{
    return ra_linear_segments(job->request->ring.batch, group->kv_count, rows,
                              job->request->threads);
}

static linear_bytes bytes_of(const ra_predict_job *job, int rank, int32_t groups)
{
    const ra_ring_config *c = &job->request->ring;
    int64_t const rows = job->rows[rank].row_count;
    int32_t const of_sizes[] = {0, groups - 1}; /* the smallest group and the largest */
    linear_bytes b = {0};
    for (int i = 0; i < 2; ++i) {
        ra_head_group const group = ra_ring_group_of(c, groups, of_sizes[i]);
        int64_t const lanes = c->batch * group.kv_count * state_bytes(c);
        int64_t const states = lanes * segments_of(job, &group, rows);
        ra_predict_raise(&b.states, states);
        ra_predict_raise(&b.grads, c->backward ? states : 0);
        ra_predict_raise(&b.lines, c->backward ? 8 * c->batch * group.q_count * rows : 0);
        ra_predict_raise(&b.sums, job->ranks > 1 ? 3 * lanes : 0);
        if (c->linear == RA_LINEAR_CAUSAL && c->linear_method == RA_LINEAR_CUMSUM)
            ra_predict_raise(&b.prefixes, ra_predict_bounded((double)lanes * (double)rows));
    }
    return b;
}

static int64_t states_of(const ra_predict_job *job, const linear_bytes *b)
{
    return ra_predict_round(job, b->states) + ra_predict_round(job, b->grads) +
           ra_predict_round(job, b->prefixes) + ra_predict_round(job, b->sums);
}

/* A rank of a job, as it looks for groups. */
typedef struct rank_of {
    const ra_predict_job *job;
    int rank;
} rank_of;

static int64_t needed_bytes(const void *context, int32_t groups, int64_t *buffers_out)
{
    const rank_of *of = context;
    linear_bytes const b = bytes_of(of->job, of->rank, groups);
    *buffers_out = 0;
    return states_of(of->job, &b) + ra_predict_round(of->job, b.lines);
}

static int32_t groups_of(const ra_predict_job *job, int rank)
{
    const ra_ring_config *c = &job->request->ring;
    rank_of const of = {job, rank};
    int64_t left = job->request->memory_bytes;
    if (left == INT64_MAX)
        return c->head_groups != 0 ? c->head_groups : 1;
    left -= (job->request->on_device ? job->request->context_bytes : ra_predict_ground_bytes(job)) +
            ra_predict_round(job, job->request->workspace_bytes) +
            ra_predict_tensors_room(job, rank);
    int32_t const most = ra_ring_most_groups(c, job->ranks, job->request->tile_rows, false);
    ra_groups_found const found = ra_ring_find_groups(c, needed_bytes, &of, left, 0, 1, most);
    return ra_groups_taken(found);
}

/* By all ranks: each but the last sends its sums on; if all rows see all, both ways. Of
   several groups forward leaves the last one's states alone, so backward makes them all again. */
static double sent_bytes(const ra_predict_job *job)
{
    const ra_ring_config *c = &job->request->ring;
    double const heads = (double)c->batch * c->kv_heads,
                 ways = c->linear == RA_LINEAR_CAUSAL ? 1 : 2;
    double const once = heads * (double)state_bytes(c) * (job->ranks - 1) * ways;
    double const again = job->groups > 1 ? 1 : 0;
    return once * (c->backward ? 2 + again : 1);
}

static void fill_memory(ra_predict_job *job, ra_prediction *out)
{
    for (int i = 0; i < job->followed_count; ++i) {
        int32_t const groups = groups_of(job, job->followed[i]);
        job->groups = groups > job->groups ? groups : job->groups;
    }
    for (int i = 0; i < job->followed_count; ++i) {
        int const rank = job->followed[i];
        linear_bytes const b = bytes_of(job, rank, job->groups);
        ra_predict_bytes const none = {0};
        ra_predict_memory memory = ra_predict_total(job, &none, rank);
        memory.bytes[RA_MEM_STATE] = states_of(job, &b);
        memory.bytes[RA_MEM_ACCUMULATOR] = ra_predict_round(job, b.lines);
        memory.total_bytes += memory.bytes[RA_MEM_STATE] + memory.bytes[RA_MEM_ACCUMULATOR];
        if (job->request->on_device) { /* MPI scans what was read to the host */
            memory.host_bytes[RA_MEM_STATE] = ra_predict_round_host(job, b.sums);
            memory.host_total_bytes += memory.host_bytes[RA_MEM_STATE];
        }
        ra_predict_keep_fullest(job, &memory, rank, out);
    }
}

static int nodes_of(const ra_predict_job *job)
{
    return (int)ra_div_ceil(job->ranks, job->request->ranks_per_node);
}

/* What leaves a node: sums take a hop from each rank to the next, one of them from node to node. */
static double sent_network_bytes(const ra_predict_job *job)
{
    return job->ranks == 1 ? 0 : sent_bytes(job) * (nodes_of(job) - 1) / (job->ranks - 1);
}

/* One state of every (batch, kv head) from rank to rank; those of a head group travel together. */
static double scan_ms(const ra_predict_job *job)
{
    const ra_ring_config *c = &job->request->ring;
    const ra_hardware *h = job->request->hardware;
    int const nodes = nodes_of(job);
    double const bytes = (double)(c->batch * c->kv_heads * state_bytes(c)) / job->groups;
    return job->groups * ((nodes - 1) * ra_predict_link_ms(&h->network, bytes) +
                          (job->ranks - nodes) * ra_predict_link_ms(&h->node, bytes));
}

/* States travel while nobody computes: the next work needs them. */
static void fill_pass(const ra_predict_job *job, bool backward, int64_t rows,
                      ra_predicted_pass *pass)
{
    const ra_ring_config *c = &job->request->ring;
    ra_head_group const group = ra_ring_group_of(c, job->groups, 0);
    bool const one_state = job->ranks == 1 && segments_of(job, &group, rows) == 1;
    int const ways = c->linear == RA_LINEAR_CAUSAL ? 1 : 2;
    int const scans = ways * (backward && job->groups > 1 ? 2 : 1);
    pass->terms = ra_predict_linear_terms(job, backward, rows, !one_state);
    if (!ra_predict_knows_times(job->request))
        return;
    pass->compute_ms = ra_predict_terms_ms(job->request, backward, &pass->terms);
    pass->comm_ms = pass->exposed_ms = scans * scan_ms(job);
    pass->total_ms = pass->compute_ms + pass->comm_ms;
    pass->overlap = pass->comm_ms > 0 ? 0 : (double)NAN;
}

static void fill_times(const ra_predict_job *job, ra_prediction *out)
{
    for (int r = 1; r < job->ranks; ++r)
        if (job->rows[r].row_count > job->rows[out->slowest_rank].row_count)
            out->slowest_rank = r;
    int64_t const rows = job->rows[out->slowest_rank].row_count;
    out->has_times = ra_predict_knows_times(job->request);
    out->balance_rows = (double)NAN; /* nothing to hide behind */
    fill_pass(job, false, rows, &out->forward);
    if (job->request->ring.backward)
        fill_pass(job, true, rows, &out->backward);
}

void ra_predict_linear(ra_predict_job *job, ra_prediction *out)
{
    const ra_ring_config *c = &job->request->ring;
    double const heads = (double)c->heads + c->kv_heads;
    double const forward = 2.0 * c->dim * c->dim * (double)c->batch * (double)c->seq * heads;
    fill_memory(job, out);
    out->sent_bytes = sent_bytes(job);
    out->sent_network_bytes = sent_network_bytes(job);
    fill_times(job, out);
    out->forward.flops = forward;
    out->backward.flops = c->backward ? 2 * forward : 0;
}
