/* `info --check`: how the kernels that there are compare with the plain one. */
#ifndef RINGATTN_TOOL_KERNEL_FINDINGS_H
#define RINGATTN_TOOL_KERNEL_FINDINGS_H

#include "kernel_choice.h"

#include <jansson.h>

/* One table and dtype, softmax or linear attention: the head_dim, and the kind of linear attention,
   with the largest error relative to its bound. */
typedef struct ra_kernel_finding {
    const ra_kernel_ops *ops;
    ra_kernel_use use;
    ra_kernel_verdict verdict;
    double longest_ms;         /* of all its comparisons, of which a job makes one, */
    ra_kernel_use longest_use; /* and which that was */
} ra_kernel_finding;

enum { RA_KERNEL_FINDINGS_MAX = 6 * RA_KERNEL_LIST_MAX };

/**
 * Every table that this machine runs, the first usable GPU's too, each dtype, forward and backward,
 * at six head_dims, and linear attention likewise (of those for sm_90a what they do not
 * compute as the one before them): some tenths of a second per table of the CPU.
 * How many were found in *count_out, after an error too, as when one hangs. What a process does
 * once for all comparisons, beginning a GPU's context and cuBLAS, is not in their times.
 *
 * @param comm     of a rank that checks while the others wait; NULL: none do
 * @param threads  of the plain kernel beside a GPU's, as a job has them; the CPU's have one
 */
RA_CHECKED ra_status ra_kernel_findings_make(ra_comm *comm, int threads,
                                             ra_kernel_finding findings[RA_KERNEL_FINDINGS_MAX],
                                             int *count_out);
/** [{"kernel": …, "attention": …, "dtype": …, "agrees": …, …}]; NULL: no memory. */
json_t *ra_kernel_findings_json(const ra_kernel_finding *findings, int count);
void ra_kernel_findings_print(const ra_kernel_finding *findings, int count);
/** Whether all of them agree. */
bool ra_kernel_findings_agree(const ra_kernel_finding *findings, int count);

#endif
