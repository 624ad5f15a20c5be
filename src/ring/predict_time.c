/* How long steps take on a machine in numbers: computing, communication, and what is exposed. */
#include "internal.h"
#include "ring/predict_job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FORWARD_FLOPS = 4, BACKWARD_FLOPS = 10 }; /* per live pair and element of head_dim */

ra_status ra_predict_begin_times(ra_predict_job *job, ra_predict_times *times)
{
    ra_status const status = ra_predict_take(
        &times->steps, (int64_t)job->followed_count * job->step_count, sizeof(*times->steps));
    return status == RA_OK ? ra_predict_take(&times->terms, 2 * (int64_t)job->followed_count,
                                             sizeof(*times->terms))
                           : status;
}

void ra_predict_free_times(ra_predict_times *times)
{
    free(times->steps);
    free(times->terms);
    *times = (ra_predict_times){0};
}

/* Queries in, outputs out, keys and values once: the least that a step moves. */
static double least_bytes(const ra_predict_job *job, const ra_map_size *map, double lines,
                          int32_t kv_heads)
{
    const ra_ring_config *c = &job->request->ring;
    double const k_lines = (double)(c->batch * map->k_rows) * kv_heads;
    return 2 * (lines + k_lines) * c->dim * (double)ra_dtype_bytes(c->dtype);
}

static double compute_ms(const ra_predict_job *job, bool backward, const ra_map_size *map,
                         const ra_pass_terms *terms, double lines, int32_t kv_heads)
{
    const ra_hardware *h = job->request->hardware;
    if (map->runs <= 0 || ra_predict_rate(job->request, backward) <= 0)
        return 0;
    double const ms = ra_predict_terms_ms(job->request, backward, terms);
    double const bytes = (backward ? 2 : 1) * least_bytes(job, map, lines, kv_heads);
    return h->memory_gb_per_s > 0 && !job->request->standard
               ? fmax(ms, bytes / (h->memory_gb_per_s * 1e6))
               : ms;
}

double ra_predict_link_ms(const ra_link *link, double bytes)
{
    return bytes > 0
               ? 1e-3 * link->latency_us + (link->gb_per_s > 0 ? bytes / (link->gb_per_s * 1e6) : 0)
               : 0;
}

/* Whether what a step fetches comes from another node. */
static bool crosses(const ra_predict_job *job, int rank, const ra_predict_step *step)
{
    int const each = job->request->ranks_per_node;
    int from = step->held_from;
    if (job->schedule == RA_SCHEDULE_SHARED)
        return true; /* a team is a node */
    if (job->schedule == RA_SCHEDULE_RING)
        from = (rank + job->ranks - 1) % job->ranks;
    return from / each != rank / each;
}

void ra_predict_add_times(const ra_predict_job *job, const ra_predict_plan *plan, int index,
                          int32_t number, int32_t plans, ra_predict_times *times)
{
    const ra_ring_config *c = &job->request->ring;
    const ra_hardware *h = job->request->hardware;
    int const rank = job->followed[index];
    int64_t const rows = job->queries[rank].row_count;
    int32_t kv = 0, q = 0, groups = 0;
    for (int32_t g = number; g < job->groups; g += plans, ++groups) {
        kv += ra_ring_group_of(c, job->groups, g).kv_count;
        q += ra_ring_group_of(c, job->groups, g).q_count;
    }
    double const lines = (double)(c->batch * rows * q);
    int64_t const row = 2 * c->batch * kv * c->dim, element = (int64_t)ra_dtype_bytes(c->dtype);
    for (int s = 0; s < job->step_count; ++s) {
        const ra_predict_step *from = &plan->steps[s];
        ra_predicted_step *to = &times->steps[(int64_t)index * job->step_count + s];
        to->step = s;
        to->held_from = from->held_from;
        to->crosses_nodes = s > 0 && crosses(job, rank, from);
        to->pairs += from->map.pairs * (double)c->batch;
        ra_predict_add_bytes(&to->held_bytes, s > 0 ? row * element * from->fetched_rows : 0);
        ra_predict_add_bytes(&to->sent_bytes, row * element * from->sent_rows);
        ra_predict_add_bytes(&to->grad_in_bytes, c->backward ? row * 4 * from->grad_in_rows : 0);
        ra_predict_add_bytes(&to->grad_out_bytes, c->backward ? row * 4 * from->grad_out_rows : 0);
        for (int pass = 0; pass < (c->backward ? 2 : 1); ++pass) {
            ra_pass_terms const terms =
                ra_predict_step_terms(job, pass != 0, &from->map, rows, q, groups);
            double *ms = pass != 0 ? to->backward_ms : to->forward_ms;
            ra_predict_add_terms(&terms, &times->terms[2 * index + pass]);
            if (h != NULL)
                ms[0] += compute_ms(job, pass != 0, &from->map, &terms, lines, kv);
        }
    }
}

/* Of what travels the longer way of a link. */
static double grads_bytes(const ra_predicted_step *step)
{
    return (double)ra_max_i64(step->grad_in_bytes, step->grad_out_bytes);
}

static void add_comm(const ra_predict_job *job, ra_predicted_step *step)
{
    const ra_hardware *h = job->request->hardware;
    const ra_link *link = step->crosses_nodes ? &h->network : &h->node;
    double const keys = (double)ra_max_i64(step->held_bytes, step->sent_bytes);
    step->forward_ms[1] = ra_predict_link_ms(link, keys);
    if (job->request->ring.backward)
        step->backward_ms[1] = step->forward_ms[1] + ra_predict_link_ms(link, grads_bytes(step));
}

/* If chunks stand for others, scale the steps to the total of the rank's rows. */
static void scale_steps(const ra_predict_job *job, int index, ra_predicted_step *steps)
{
    double sum = 0;
    for (int s = 0; s < job->step_count; ++s)
        sum += steps[s].pairs;
    double const factor = sum > 0 ? job->areas[index] * (double)job->request->ring.batch / sum : 1;
    for (int s = 0; s < job->step_count && job->sampled; ++s) {
        steps[s].pairs *= factor;
        if (job->request->standard)
            continue; /* its work goes by all pairs, which are not sampled */
        steps[s].forward_ms[0] *= factor;
        steps[s].backward_ms[0] *= factor;
    }
}

/* With two buffers: the next step's keys travel while one computes. */
static double forward_ms(const ra_predict_job *job, const ra_predicted_step *steps)
{
    double total_ms = 0;
    for (int s = 0; s < job->step_count; ++s) {
        double const coming_ms = s + 1 < job->step_count ? steps[s + 1].forward_ms[1] : 0;
        total_ms += fmax(steps[s].forward_ms[0], coming_ms);
    }
    return total_ms;
}

/* Likewise, and the gradients of the step before. Part of the own step is computed while the last
   gradients travel (ra_backward_cut_own). */
static double backward_ms(const ra_predict_job *job, const ra_predicted_step *steps)
{
    const ra_ring_config *c = &job->request->ring;
    ra_head_group const group = ra_ring_group_of(c, job->groups, job->groups - 1);
    int32_t const lots = ra_own_lots(&group);
    double const own_ms = steps[0].backward_ms[0];
    double total_ms = 0, leaving_ms = 0, early = 1;
    int late = 0;
    for (int s = 1; s < job->step_count; ++s)
        late = grads_bytes(&steps[s]) > 0 ? s : late;
    if (late > 0 && !job->request->standard)
        early = (double)ra_early_lots(lots, c->dtype) / lots;
    for (int s = 0; s < job->step_count; ++s) {
        double const ms = s > 0 ? steps[s].backward_ms[0] : early * own_ms;
        double const coming_ms = s + 1 < job->step_count ? steps[s + 1].forward_ms[1] : 0;
        total_ms += fmax(ms, coming_ms + leaving_ms);
        leaving_ms = steps[s].backward_ms[1] - steps[s].forward_ms[1];
        if (s == late && s > 0) {
            total_ms += fmax((1 - early) * own_ms, leaving_ms);
            leaving_ms = 0;
        }
    }
    return total_ms;
}

static ra_predicted_pass pass_of(const ra_predict_job *job, const ra_predicted_step *steps,
                                 bool backward)
{
    ra_predicted_pass pass = {0};
    /* A table that takes memory in its steps rests on a GPU while messages travel. */
    bool const rests = job->request->standard && job->request->on_device;
    for (int s = 0; s < job->step_count; ++s) {
        const double *ms = backward ? steps[s].backward_ms : steps[s].forward_ms;
        pass.compute_ms += ms[0];
        pass.comm_ms += ms[1];
    }
    pass.total_ms = pass.compute_ms + pass.comm_ms;
    if (job->request->ring.comm_buffers == 2 && !rests)
        pass.total_ms = backward ? backward_ms(job, steps) : forward_ms(job, steps);
    pass.exposed_ms = pass.total_ms - pass.compute_ms;
    double const lesser = fmin(pass.compute_ms, pass.comm_ms);
    pass.overlap =
        lesser > 0 ? (pass.compute_ms + pass.comm_ms - pass.total_ms) / lesser : (double)NAN;
    return pass;
}

/* Shard rows from which a step's computing covers its transfer: per step 4 c^2 D H rho flops and
   2 c D Hk s bytes, so c >= (F / B) (s / 2) (Hk / H) / rho. */
static double balance_rows(const ra_predict_job *job, const ra_prediction *out)
{
    const ra_ring_config *c = &job->request->ring;
    const ra_hardware *h = job->request->hardware;
    const ra_link *link = job->ranks > job->request->ranks_per_node ? &h->network : &h->node;
    double const all = (double)c->batch * c->heads * (double)c->seq * (double)c->seq;
    double const density = job->request->standard ? 1 : out->live_pairs / all;
    RA_ASSERT(h != NULL); /* or there are no times */
    double const flops = 1e12 * ra_predict_rate(job->request, false);
    if (job->ranks == 1 || density <= 0 || link->gb_per_s <= 0)
        return (double)NAN;
    return flops / (1e9 * link->gb_per_s) * (double)ra_dtype_bytes(c->dtype) / 2 *
           ((double)ra_max_i64(job->groups, c->kv_heads) / c->heads) / density;
}

static double network_bytes(const ra_predict_job *job, const ra_predict_times *times)
{
    double sum = 0;
    double const passes = job->request->ring.backward ? 2 : 1;
    bool const hops = job->schedule == RA_SCHEDULE_RING; /* gradients come with the keys */
    for (int64_t i = 0; i < (int64_t)job->followed_count * job->step_count; ++i) {
        const ra_predicted_step *s = &times->steps[i];
        if (s->crosses_nodes)
            sum += job->weights[i / job->step_count] *
                   (passes * (double)s->held_bytes +
                    (double)(hops ? s->grad_in_bytes : s->grad_out_bytes));
    }
    return sum;
}

ra_status ra_predict_end_times(const ra_predict_job *job, ra_predict_times *times,
                               ra_prediction *out)
{
    const ra_ring_config *c = &job->request->ring;
    double slowest = -1;
    int chosen = 0;
    out->has_times = ra_predict_knows_times(job->request);
    for (int i = 0; i < job->followed_count; ++i) {
        ra_predicted_step *steps = &times->steps[(int64_t)i * job->step_count];
        double work = 0;
        scale_steps(job, i, steps);
        for (int s = 0; s < job->step_count; ++s) {
            if (out->has_times)
                add_comm(job, &steps[s]);
            work += steps[s].pairs;
        }
        if (out->has_times)
            work = pass_of(job, steps, false).total_ms +
                   (c->backward ? pass_of(job, steps, true).total_ms : 0);
        if (work > slowest) {
            slowest = work;
            chosen = i;
        }
    }
    /* Where few ranks stand for many, each of the two is an estimate by itself. */
    out->sent_network_bytes = job->has_crossed ? job->crossed_network_bytes
                                               : fmin(network_bytes(job, times), out->sent_bytes);
    out->slowest_rank = job->followed[chosen];
    out->step_count = job->step_count;
    ra_status const status = ra_predict_take(&out->steps, job->step_count, sizeof(*out->steps));
    if (status != RA_OK)
        return status;
    memcpy(out->steps, &times->steps[(int64_t)chosen * job->step_count],
           (size_t)job->step_count * sizeof(*out->steps));
    if (out->has_times) {
        out->forward = pass_of(job, out->steps, false);
        if (c->backward)
            out->backward = pass_of(job, out->steps, true);
        out->balance_rows = balance_rows(job, out);
    }
    out->forward.terms = times->terms[2 * (int64_t)chosen];
    out->backward.terms = times->terms[2 * (int64_t)chosen + 1];
    out->forward.flops = FORWARD_FLOPS * out->live_pairs * c->dim;
    out->backward.flops = c->backward ? BACKWARD_FLOPS * out->live_pairs * c->dim : 0;
    return RA_OK;
}
