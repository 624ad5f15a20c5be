/*
 * Check at the start of a job, on a small problem (up to some tenths of a second), that a kernel
 * computes what the plain one does. A compiler, driver or processor may err though every test
 * passed elsewhere.
 * SPDX-License-Identifier: BSD-3-Clause
 */
#ifndef RINGATTN_KERNEL_CHECK_H
#define RINGATTN_KERNEL_CHECK_H

#include "ringattn/linear.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The result whose error was largest relative to its bound. */
typedef struct ra_kernel_verdict {
    bool agrees;
    const char *tensor; /* "o", "lse", "dq", "dk" or "dv"; static */
    double error;       /* INFINITY: there was a NaN */
    double allowed;
} ra_kernel_verdict;

/**
 * Compare `ops` with `plain` in float32 on the same inputs, rounded to use->dtype: one batch of a
 * bit more than a tile of queries, with full and masked runs and shared key heads, its keys in one
 * step and in two that carry the state. If use->dilated says so, also a dilated pattern: of two
 * branches with shares_rows and shares_keys, and with heads that share keys with shares_keys.
 *
 * Linear attention, if use->linear says so: a bit more than a chunk, in one segment and in two,
 * every method against the chunked one of `plain`. Its dq and dk, whose terms may cancel, are
 * measured against at least a hundredth of the inputs, in float32 a twentieth.
 *
 * o, dq, dk and dv: relative Frobenius error, at most twice the documented bounds (gradients of dim
 * below 16 twice that), and no element off by more than 32 times that; lse: largest absolute error.
 * Everything is in memory of its own, at most 4 MiB beside the tile maps and the kernels'
 * workspaces (cumsum: 19 MiB more at head_dim 256), given back.
 *
 * @param plain  a table of the host, usually ra_kernel_cpu(RA_ISA_PORTABLE)
 * @param ops    has linear attention, where that is asked for, and serves this use
 * @param poll   called by both kernels while they compute, with `poll_context`: other ranks that
 *               wait hear by it that this one is at work, and a device that hangs has its own
 *               deadline (ra_kernel_finish); NULL: nobody waits
 * @return RA_OK              compared; *verdict_out says whether they agree
 *         RA_ERR_NO_MEMORY   or what a kernel returned, one line was logged
 */
RA_CHECKED ra_status ra_kernel_check(const ra_kernel_ops *ops, const ra_kernel_ops *plain,
                                     const ra_kernel_use *use, ra_kernel_poll *poll,
                                     void *poll_context, ra_kernel_verdict *verdict_out);

#ifdef __cplusplus
}
#endif
#endif
