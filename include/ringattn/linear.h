/*
 * Linear attention: sums over keys become states of a fixed size, so that work grows with the rows
 * and not with their pairs.
 *
 *     phi(x) = elu(x) + 1 = x + 1 where x > 0, else exp(x)          element by element, no scale
 *     S = sum of phi(k)^T v   [dim][dim]      z = sum of phi(k)   [dim]
 *     o = phi(q) S / (phi(q) z + 1e-6)
 *
 * with the sums over all keys (bidirectional), or over the keys j <= i (causal). After
 * Katharopoulos et al., "Transformers are RNNs" (ICML 2020). There is no LSE. Gradients, with
 * d = phi(q) z + 1e-6, g = do / d and c = -(g . o):
 *
 *     dphi(q) = S g + c z        G = sum of phi(q)^T g, w = sum of c phi(q), over the queries that
 *     dphi(k) = G v + w          see the key       dv = phi(k) G        dphi/dx = min(phi(x), 1)
 *
 * A rank has consecutive rows and cuts them into segments, so that all threads have work even with
 * few heads. `sum` computes each segment's own state; the caller turns these into the state before
 * each segment (causal) or of all rows, across ranks too, and `forward` does the rest. Likewise
 * backward_queries computes G and w of each segment, which the caller turns into those after it.
 *
 * Sums are float32, within RA_LINEAR_CHUNK rows first, then compensated (TwoSum, Knuth), so errors
 * do not grow with the length.
 *
 * Closed forms, in bytes per rank, with n rows, Hk kv heads and Hq query heads of one head group,
 * s = ra_linear_segments() and E = 4 * dim * (dim + 1), what one state takes:
 *     states, category state           batch * Hk * s * E, twice that with backward
 *     on several ranks                 three more E per batch and kv head, and as much of host
 *                                      memory where the kernel computes elsewhere
 *     prefixes, method cumsum          batch * Hk * n * E
 *     lines, with backward             batch * Hq * n * 8, category accumulator
 * and operations per pass, over all ranks, with N tokens and the heads of the job:
 *     forward 2 dim^2 batch N (Hq + Hk), backward twice that. That is the states' own work: chunked
 *     adds products within chunks, and segments or ranks add the Hk part once more.
 * SPDX-License-Identifier: BSD-3-Clause
 */
#ifndef RINGATTN_LINEAR_H
#define RINGATTN_LINEAR_H

#include "ringattn/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RA_LINEAR_EPSILON 1e-6f

/* Rows whose terms are summed before they are added to a longer sum. */
enum { RA_LINEAR_CHUNK = 64 };

/* "chunked", "recurrent", "cumsum" */
const char *ra_linear_method_name(ra_linear_method method);

/**
 * One rank's rows of one head group. Views are [batch][rows][heads][dim], of one dtype; a state is
 * S row-major, then z: ra_linear_state_floats(dim) floats.
 */
typedef struct ra_linear_pass {
    ra_kernel_shape shape; /* scale and q_head_begin play no part */
    int64_t rows;
    int32_t segments; /* of each (batch, kv head); ra_linear_segments */
    bool causal;
    ra_linear_method method; /* of a causal forward pass */
    ra_view q, k, v, out;
    ra_view dout, dq, dk, dv; /* backward */
    float *states;   /* [batch][kv_heads][segments][state]: S, z before the segment, or of all */
    float *grads;    /* backward; laid out likewise: G, w after the segment, or of all */
    float *prefixes; /* cumsum: [batch][kv_heads][rows][state] */
    float *lines;    /* backward: [batch][q_heads][rows][2]: 1 / d and c of a row, see above */
} ra_linear_pass;

/* What `spread` makes of the segments' sums: the exclusive scan in their order (BEFORE) or in the
   reverse one (AFTER), or in every segment the total (ALL). */
typedef enum ra_linear_reach { RA_LINEAR_BEFORE, RA_LINEAR_AFTER, RA_LINEAR_ALL } ra_linear_reach;

/**
 * What a kernel table offers for linear attention. Rows are read and written in place, each by one
 * thread; results depend on `segments`, never on timing. NaN or Inf in the inputs affects only rows
 * that see it. Calls need kernel->workspace and poll as attention does.
 */
struct ra_linear_ops {
    /* Workers that segments are cut for; 0: the kernel's threads. See ra_linear_workers. */
    int workers;
    /** states[segment] = S, z over the segment's keys; reads k, v. */
    ra_status (*sum)(ra_kernel *kernel, const ra_linear_pass *pass);
    /** Reads q, k, v (bidirectional: q alone) and states; writes out, and prefixes for cumsum. */
    ra_status (*forward)(ra_kernel *kernel, const ra_linear_pass *pass);
    /** Reads q, k, v, dout and states; writes dq, lines, and grads[segment] over its queries. */
    ra_status (*backward_queries)(ra_kernel *kernel, const ra_linear_pass *pass);
    /** Reads q, k, v, dout, lines and grads; writes dk, dv. */
    ra_status (*backward_keys)(ra_kernel *kernel, const ra_linear_pass *pass);
    /** totals_out[batch][kv_heads][state] = sum over the segments of `states`, a pass's or grads.
     */
    ra_status (*total)(ra_kernel *kernel, const ra_linear_pass *pass, const float *states,
                       float *totals_out);
    /**
     * Replace each segment's own sums, in `states`, by the scan or total that `reach` names.
     * `before` and `after` are what other ranks add to it, laid out as totals, or NULL: scans begin
     * with `before`, ALL adds both. Adds in the order of segments.
     */
    ra_status (*spread)(ra_kernel *kernel, const ra_linear_pass *pass, ra_linear_reach reach,
                        const float *before, const float *after, float *states);
};

/** dim * (dim + 1) */
int64_t ra_linear_state_floats(int32_t dim);

/** Threads for ra_linear_segments: the table's workers, or `threads` if it names none. */
static inline int ra_linear_workers(const ra_linear_ops *ops, int threads)
{
    return ops->workers > 0 ? ops->workers : threads;
}

/**
 * Segments that give `threads` even work: 1 if heads alone do; each has at least 4 chunks. Pure.
 */
int32_t ra_linear_segments(int64_t batch, int32_t kv_heads, int64_t rows, int threads);

#ifdef __cplusplus
}
#endif
#endif
