/* Private to backward.c and backward_compute.c: a backward pass over one head group. */
#ifndef RINGATTN_RING_BACKWARD_PASS_H
#define RINGATTN_RING_BACKWARD_PASS_H

#include "ring/ring_internal.h"

typedef struct ra_backward_pass {
    ra_ring *ring;
    const ra_plan *plan;
    ra_head_group group;
    int32_t group_index;
    ra_backward_step step;  /* what all steps have in common */
    ra_pair_view own;       /* keys and values */
    ra_pair_view team_keys; /* those of the own team, where they lie */
    ra_pair_view own_grads;
    ra_stored_grads direct; /* gradients that are computed in the outputs */
    const ra_ring_tensors *tensors;
    int32_t q_early; /* of the group's query heads: those of the own step that come early */
    int late;        /* the step after which the others do; 0: there are none */
} ra_backward_pass;

/* Some of the group's query heads, and the rows that they read and add to. */
typedef struct ra_backward_work {
    int32_t q_first, q_count;
    ra_pair_view keys, grads;
} ra_backward_work;

/* Which heads of the own step come late, and when; the group and its plan are known. */
void ra_backward_cut_own(ra_backward_pass *pass);

/* What step s adds to gradients of held rows, in the turns of a team. */
RA_CHECKED ra_status ra_backward_compute(ra_backward_pass *pass, int s,
                                         const ra_backward_work *work);

#endif
