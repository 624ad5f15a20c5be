#include "ring/linear_job.h"

#include "ring/ring_job_cuda.h"
#include "support/oracle.h"

#include <stdlib.h>

bool is_narrow(int tensor)
{
    return tensor == 1 || tensor == 2 || tensor >= 6;
}

void tensors_init(tensors *t, const ra_ring_config *c, uint64_t seed)
{
    *t = (tensors){.wide = c->batch * c->seq * c->heads * c->dim,
                   .narrow = c->batch * c->seq * c->kv_heads * c->dim};
    for (int i = 0; i < 8; ++i) {
        int64_t const count = is_narrow(i) ? t->narrow : t->wide;
        t->data[i] = calloc((size_t)count, ra_dtype_bytes(c->dtype));
        double **const values = i < 4 ? &t->in[i] : &t->want[i - 4];
        *values = calloc((size_t)count, sizeof(double));
        if (i < 4)
            oracle_fill(&seed, c->dtype, 1, count, t->data[i], t->in[i]);
    }
    t->lse = calloc((size_t)(c->batch * c->heads * c->seq), sizeof(float));
}

void tensors_fini(tensors *t)
{
    for (int i = 0; i < 8; ++i)
        free(t->data[i]);
    for (int i = 0; i < 4; ++i) {
        free(t->in[i]);
        free(t->want[i]);
    }
    free(t->lse);
}

ring_job job_for(tensors *t, const ra_ring_config *c, int ranks, int threads)
{
    ring_job job = {.config = *c,
                    .pattern = ra_pattern_config_dense(),
                    .ranks = ranks,
                    .threads = threads,
                    .q = t->data[0],
                    .k = t->data[1],
                    .v = t->data[2],
                    .dout = t->data[3],
                    .out = t->data[4],
                    .dq = t->data[5],
                    .dk = t->data[6],
                    .dv = t->data[7],
                    .lse = t->lse};
#ifdef RA_RING_JOBS_CUDA
    ring_job_on_cuda(&job);
#endif
    return job;
}

ra_ring_config linear_config(ra_linear_kind kind, ra_linear_method method, int64_t seq, int32_t dim,
                             ra_dtype dtype)
{
    return (ra_ring_config){.batch = 1,
                            .seq = seq,
                            .heads = 1,
                            .kv_heads = 1,
                            .dim = dim,
                            .dtype = dtype,
                            .layout = RA_LAYOUT_AUTO,
                            .schedule = RA_SCHEDULE_AUTO,
                            .linear = kind,
                            .linear_method = method};
}
