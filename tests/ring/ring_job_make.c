#include "ring/ring_job.h"

#include <math.h>
#include <stdlib.h>

void ring_job_take_tensors(ring_job *job)
{
    const ra_ring_config *c = &job->config;
    size_t const count = (size_t)(c->batch * c->seq * c->heads * c->dim);
    void **const outputs[] = {&job->out, &job->dq, &job->dk, &job->dv};
    job->q = job->k = job->v = job->dout = calloc(count, sizeof(float));
    for (int i = 0; i < 4; ++i)
        *outputs[i] = calloc(count, sizeof(float));
    job->lse = calloc((size_t)(c->batch * c->heads * c->seq), sizeof(float));
}

void ring_job_free(ring_job *job)
{
    void *const all[] = {(void *)(uintptr_t)job->q, job->out, job->dq, job->dk, job->dv, job->lse};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); ++i)
        free(all[i]);
}

static ring_job make(int ranks, int64_t seq, int32_t heads, int32_t kv_heads, int32_t dim,
                     ra_dtype dtype)
{
    ring_job job = {.config = {.batch = 1,
                               .seq = seq,
                               .heads = heads,
                               .kv_heads = kv_heads,
                               .dim = dim,
                               .dtype = dtype,
                               .schedule = RA_SCHEDULE_DIRECT,
                               .comm_buffers = 2,
                               .backward = true},
                    .pattern = ra_pattern_config_dense(),
                    .ranks = ranks};
    ring_job_take_tensors(&job);
    return job;
}

ring_job ring_job_plain(int ranks, int64_t seq, int32_t dim)
{
    return make(ranks, seq, 1, 1, dim, RA_F32);
}

ring_job ring_job_heads(int ranks, int64_t seq, int32_t heads, int32_t kv_heads, int32_t dim,
                        ra_dtype dtype)
{
    ring_job job = make(ranks, seq, heads, kv_heads, dim, dtype);
    for (int64_t i = 0; i < seq * heads * dim; ++i)
        ra_dtype_store(dtype, (void *)(uintptr_t)job.q, i, sinf((float)i));
    job.config.layout = RA_LAYOUT_ZIGZAG;
    job.pattern.causal = true;
    job.timeout_ms = 60000;
    return job;
}

ring_job ring_job_waves(int ranks, int64_t seq, int32_t dim, int buffers, ra_schedule schedule)
{
    ring_job job = ring_job_heads(ranks, seq, 1, 1, dim, RA_F32);
    job.config.comm_buffers = buffers;
    job.config.schedule = schedule;
    if (schedule == RA_SCHEDULE_SCAN) { /* which linear attention chooses */
        job.config.linear = RA_LINEAR_CAUSAL;
        job.config.layout = RA_LAYOUT_AUTO;
        job.config.schedule = RA_SCHEDULE_AUTO;
    }
    return job;
}
