/* Jobs of linear attention, with tensors for them and for the oracle. */
#ifndef TESTS_RING_LINEAR_JOB_H
#define TESTS_RING_LINEAR_JOB_H

#include "ring/ring_job.h"

typedef struct tensors {
    int64_t wide, narrow;
    void *data[8];   /* q k v dout out dq dk dv */
    double *in[4];   /* q k v dout */
    double *want[4]; /* o dq dk dv */
    float *lse;
} tensors;

/** Whether a tensor, by its place in `data`, has the heads of keys and values. */
bool is_narrow(int tensor);

/** Draws the inputs. */
void tensors_init(tensors *t, const ra_ring_config *c, uint64_t seed);
void tensors_fini(tensors *t);

/** Of these tensors; with the table for GPUs where RA_RING_JOBS_CUDA is defined. */
ring_job job_for(tensors *t, const ra_ring_config *c, int ranks, int threads);

/** One head; layout and schedule auto. */
ra_ring_config linear_config(ra_linear_kind kind, ra_linear_method method, int64_t seq, int32_t dim,
                             ra_dtype dtype);

#endif
