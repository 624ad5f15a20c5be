/* Whether a GPU makes progress with its work: it is polled while that lasts. */
#ifndef RINGATTN_WATCH_CUDA_H
#define RINGATTN_WATCH_CUDA_H

#include "ringattn/kernel.h"

#include <cuda_runtime_api.h>

/* The GPU's progress: it changes whenever the GPU gets further. */
typedef struct ra_cuda_mark {
    uint32_t tickets[2]; /* tasks that thread blocks of a launch have taken */
    uint32_t passed;     /* its lowest byte: calls of the table whose work is done, modulo 256 */
} ra_cuda_mark;

typedef struct ra_cuda_watch {
    cudaStream_t stream; /* its own, so that it does not queue behind the work it watches */
    ra_cuda_mark *here;  /* pinned: where looks arrive */
    ra_cuda_mark seen;
    const uint32_t *tickets; /* on the device, of the last launch; NULL: none */
    uint32_t given;          /* calls so far */
    int64_t looked_ns;
    int quiet_looks; /* in a row, which found nothing new */
    bool asked;      /* a look is on its way */
    char what[96];   /* was launched last, for the line of a failure; empty: nothing yet */
} ra_cuda_watch;

/* At the end of a kernel's workspace: the mark's word `passed`, of which the device writes one
 * byte.
 */
enum { RA_CUDA_MARK_BYTES = sizeof(uint32_t) };

/** kernel->stream and self must be set. On failure, what was taken is given back. */
RA_CHECKED ra_status ra_cuda_watch_init(ra_kernel *kernel);
void ra_cuda_watch_fini(ra_kernel *kernel);
/** The work enqueued so far is one call: its end will be seen. The clock starts anew. */
RA_CHECKED ra_status ra_cuda_watch_note(ra_kernel *kernel);
/**
 * What is launched next, for the line of a failure.
 * @param pair     the step that it belongs to; NULL: that is not known
 * @param tickets  [2], which its thread blocks count up; NULL: there are none, and it must be over
 *                 within timeout_ms, as linear attention's and those of the table `standard` are:
 *                 what fits a GPU's memory takes them seconds
 */
void ra_cuda_watch_launch(ra_kernel *kernel, const char *what, const ra_kernel_pair *pair,
                          const uint32_t *tickets);
/** See ra_kernel_watch. */
RA_CHECKED ra_status ra_cuda_watch_look(ra_kernel *kernel);
/** Wait for the look that is on its way, if one is, for at most timeout_ms: it reads the workspace,
    and tickets, which may be given back next. */
RA_CHECKED ra_status ra_cuda_watch_wait(ra_kernel *kernel);

#endif
