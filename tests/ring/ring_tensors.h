/* Tensors of ring jobs, drawn and checked: what jobs read and write, and the oracle's. */
#ifndef TESTS_RING_RING_TENSORS_H
#define TESTS_RING_RING_TENSORS_H

#include "ring/ring_job.h"

typedef struct tensors {
    int64_t wide, narrow, lines; /* elements of q, of k, of lse */
    void *data[8];               /* q k v dout out dq dk dv */
    float *lse;
    double *in[4];   /* q k v dout */
    double *want[5]; /* o dq dk dv lse: the oracle's, who asks it for them */
} tensors;

/** Draws the inputs. */
void tensors_init(tensors *t, const ra_ring_config *c, uint64_t seed, double dout_factor);
void tensors_fini(tensors *t);

/** Of these tensors; pattern NULL: dense. */
ring_job job_for(tensors *t, const ra_ring_config *c, const ra_pattern_config *pattern, int ranks);

/**
 * o, and where there is a backward pass dq, dk and dv, are within the documented bounds. Terms of
 * gradients that cancel leave errors relative to an rms of these floors.
 */
void expect_wanted(const tensors *t, const ra_ring_config *c, double dq_dk_floor, double dv_floor,
                   const char *about);
/** o, dq, dk and dv are the same bit for bit. */
void expect_same(const tensors *a, const tensors *b, ra_dtype dtype);

#endif
