/*
 * What comes and goes within steps: buffers where none stand, and the matrices of attention that
 * materialises them, one float per query and key of every head:
 *     forward    S and P of a pair of shards; kept where backward follows, else given back
 *     backward   dP and dS of each pair, or of each part of it, until the pass is over
 */
#include "internal.h"
#include "ring/predict_job.h"

typedef struct passing {
    const ra_predict_job *job;
    const ra_predict_plan *plan;
    int rank;
    ra_head_group group;
    bool stands;                     /* buffers stand: steps take none */
    int64_t held, partial, arriving; /* counted */
    int64_t scores;                  /* held now, except those kept for backward */
    ra_predict_bytes *bytes;
} passing;

static void note(passing *p, int64_t besides)
{
    int64_t const most = p->held + p->partial + p->arriving + besides + p->scores;
    if (most <= p->bytes->passing)
        return;
    p->bytes->passing = most;
    p->bytes->passing_scores = p->scores;
}

/* Two matrices of the rank's queries against so many keys. */
static int64_t scores_of(const passing *p, int64_t keys)
{
    const ra_ring_config *c = &p->job->request->ring;
    double const queries =
        (double)c->batch * p->group.q_count * (double)p->job->rows[p->rank].row_count;
    return 2 * ra_predict_round(p->job, ra_predict_bounded(queries * (double)keys * sizeof(float)));
}

static void compute_forward(passing *p, const ra_predict_step *step)
{
    bool const keeps = p->job->request->ring.backward;
    if (!p->job->request->standard || step->map.runs <= 0)
        return;
    int64_t const scores = scores_of(p, step->map.k_rows);
    int64_t const before = p->scores;
    if (!keeps)
        p->bytes->step_scores = ra_max_i64(p->bytes->step_scores, scores);
    ra_predict_add_bytes(keeps ? &p->bytes->scores : &p->scores, scores);
    note(p, 0);
    p->scores = before;
}

static void compute_backward(passing *p, const ra_predict_step *step)
{
    if (!p->job->request->standard || step->map.runs <= 0)
        return;
    for (int k = 0; k < step->part_count && step->part_keys != NULL; ++k)
        ra_predict_add_bytes(&p->scores, scores_of(p, step->part_keys[k]));
    if (step->part_keys == NULL)
        ra_predict_add_bytes(&p->scores, scores_of(p, step->map.k_rows));
    note(p, 0);
}

static int64_t of_keys(const passing *p, int64_t rows)
{
    return p->stands ? 0 : ra_predict_keys_bytes(p->job, p->group.kv_count, rows);
}

static int64_t of_grads(const passing *p, int64_t rows)
{
    return p->stands ? 0 : ra_predict_grads_bytes(p->job, p->group.kv_count, rows);
}

/* Rows to send are packed, or were held before; held rows arrive, and sent rows are given back;
   then come partial gradients, work, and arriving gradients. */
static void pass_step(passing *p, int s, bool backward)
{
    const ra_predict_step *step = &p->plan->steps[s];
    const ra_predict_step *next = s + 1 < p->job->step_count ? step + 1 : NULL;
    bool const shared = /* windows are taken in every step */
        p->job->schedule == RA_SCHEDULE_SHARED && !p->stands;
    int64_t const sent = ra_predict_round(p->job, of_keys(p, step->sent_rows));
    int64_t const held = of_keys(p, step->held_rows), grads = of_grads(p, step->grad_rows);
    p->held = held > 0 || shared ? ra_predict_counted(p->job, p->rank, held) : 0;
    note(p, sent);
    if (backward && (grads > 0 || shared)) {
        p->partial = ra_predict_counted(p->job, p->rank, grads);
        note(p, 0);
    }
    if (backward)
        compute_backward(p, step);
    else
        compute_forward(p, step);
    if (next == NULL || !ra_keys_hop(p->job->schedule, s + 1) || next->sent_rows == 0)
        p->held = 0;
    if (!backward)
        return;
    p->arriving = 0;
    if (step->grad_in_rows > 0) {
        p->arriving = ra_predict_round(p->job, of_grads(p, step->grad_in_rows));
        note(p, 0);
    }
}

void ra_predict_add_passing(const ra_predict_job *job, const ra_predict_plan *plan, int rank,
                            ra_head_group group, ra_predict_bytes *bytes)
{
    passing p = {.job = job,
                 .plan = plan,
                 .rank = rank,
                 .group = group,
                 .stands = job->request->ring.comm_buffers > 0,
                 .bytes = bytes};
    compute_forward(&p, &plan->steps[0]);
    for (int s = 1; s < job->step_count; ++s)
        pass_step(&p, s, false);
    if (!job->request->ring.backward)
        return;
    p = (passing){.job = job,
                  .plan = plan,
                  .rank = rank,
                  .group = group,
                  .stands = p.stands,
                  .scores = bytes->grad_scores,
                  .bytes = bytes};
    compute_backward(&p, &plan->steps[0]);
    for (int s = 1; s < job->step_count; ++s)
        pass_step(&p, s, true);
    bytes->grad_scores = p.scores;
}
