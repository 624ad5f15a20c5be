/* Whether a GPU comes further with what it was given: it is looked at, never waited for. */
#ifndef RINGATTN_WATCH_CUDA_H
#define RINGATTN_WATCH_CUDA_H

#include "ringattn/kernel.h"

#include <cuda_runtime_api.h>

/* What tells how far the GPU has come: it differs wherever the GPU has. */
typedef struct ra_cuda_mark {
    uint32_t tickets[2]; /* tasks that thread blocks of a launch have taken */
    uint32_t passed;     /* its lowest byte: calls of the table whose work is done, modulo 256 */
    uint32_t unused;
} ra_cuda_mark;

typedef struct ra_cuda_watch {
    cudaStream_t stream; /* of its own, so that it does not queue behind what it looks at */
    ra_cuda_mark *here;  /* pinned: where looks arrive */
    ra_cuda_mark seen;
    const uint32_t *tickets; /* on the device, of what was launched last; NULL: of nothing */
    uint32_t given;          /* calls so far */
    int64_t looked_ns;
    int quiet_looks; /* in a row, which found nothing new */
    bool asked;      /* a look is on its way */
    char what[96];   /* was given last, for the line of a failure; empty: nothing yet */
} ra_cuda_watch;

/* Of a kernel's workspace, at its end: the byte that says what has passed. */
enum { RA_CUDA_MARK_BYTES = sizeof(ra_cuda_mark) };

/** kernel->stream and self are set. What was taken before a failure is given back. */
RA_CHECKED ra_status ra_cuda_watch_init(ra_kernel *kernel);
void ra_cuda_watch_fini(ra_kernel *kernel);
/** All that was enqueued so far is one call: its end will be seen. The clock begins anew. */
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

#endif
