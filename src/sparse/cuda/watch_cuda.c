/*
 * Whether a GPU makes progress. A stream stays busy both with a kernel that hangs and with one that
 * takes very long: these are told apart by the tickets that thread blocks draw, and by a byte that
 * changes after each call. Both are copied on a stream of their own, which runs beside kernels.
 */
#include "sparse/cuda/watch_cuda.h"

#include "internal.h"
#include "pause.h"
#include "ringattn/device.h"
#include "sparse/cuda/cuda_internal.h"
#include "sparse/cuda/launch_args.h"

#include <stdio.h>
#include <string.h>

/* So many looks in a row, spread over the deadline, must find nothing new: a process that was
   itself suspended that long has looked only once. */
enum { LOOKS = 8 };

_Static_assert(RA_CUDA_MARK_BYTES + RA_CUDA_TICKETS_BYTES <= RA_CUDA_TAIL_BYTES,
               "tickets and a mark lie behind scratch");

/* ---- life ------------------------------------------------------------------------------------ */

ra_status ra_cuda_watch_init(ra_kernel *kernel)
{
    ra_cuda_watch *const w = &ra_cuda_self(kernel)->watch;
    void *here = NULL;
    cudaError_t error = cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking);
    if (error == cudaSuccess)
        error = cudaHostAlloc(&here, sizeof(*w->here), cudaHostAllocPortable);
    if (here != NULL)
        memset(here, 0, sizeof(*w->here));
    w->here = here;
    ra_status const status =
        ra_cuda_kernel_status(kernel, error, "kernel cuda: looking at its GPU");
    if (status != RA_OK)
        ra_cuda_watch_fini(kernel);
    return status;
}

void ra_cuda_watch_fini(ra_kernel *kernel)
{
    static const char what[] = "kernel cuda: what looks at its GPU could not be returned";
    ra_cuda_watch *const w = &ra_cuda_self(kernel)->watch;
    if (w->stream != NULL)
        ra_cuda_warn(cudaStreamDestroy(w->stream), what);
    if (w->here != NULL && !ra_device_is_lost())
        ra_cuda_warn(cudaFreeHost(w->here), what);
    *w = (ra_cuda_watch){0};
}

/* ---- what is looked at ----------------------------------------------------------------------- */

static void *line_of(const ra_kernel *kernel)
{
    return (char *)kernel->workspace.data + kernel->workspace.bytes - RA_CUDA_MARK_BYTES;
}

ra_status ra_cuda_watch_note(ra_kernel *kernel)
{
    ra_cuda_self(kernel)->watch.looked_ns = ra_clock_ns();
    ra_cuda_watch *const w = &ra_cuda_self(kernel)->watch;
    w->quiet_looks = 0;
    if (kernel->workspace.data == NULL)
        return RA_OK; /* the kernel is being made: nothing was enqueued */
    return ra_cuda_kernel_status(
        kernel,
        cudaMemsetAsync(line_of(kernel), (int)(++w->given & 0xff), 1, ra_cuda_self(kernel)->stream),
        "kernel cuda: counting calls");
}

void ra_cuda_watch_launch(ra_kernel *kernel, const char *what, const ra_kernel_pair *pair,
                          const uint32_t *tickets)
{
    ra_cuda_watch *const w = &ra_cuda_self(kernel)->watch;
    if (pair != NULL)
        snprintf(w->what, sizeof(w->what), "%s of step %d, head group %d", what, (int)pair->step,
                 (int)pair->group);
    else
        snprintf(w->what, sizeof(w->what), "%s", what);
    w->tickets = tickets;
}

/* ---- looking --------------------------------------------------------------------------------- */

static cudaError_t ask(ra_cuda_watch *w, const void *line)
{
    cudaError_t error = cudaMemcpyAsync(&w->here->passed, line, sizeof(w->here->passed),
                                        cudaMemcpyDeviceToHost, w->stream);
    if (error == cudaSuccess && w->tickets != NULL)
        error = cudaMemcpyAsync(w->here->tickets, w->tickets, sizeof(w->here->tickets),
                                cudaMemcpyDeviceToHost, w->stream);
    w->asked = error == cudaSuccess;
    return error;
}

/* Whether the last look has arrived and differs from the one before; asks for the next. */
static cudaError_t look(ra_cuda_watch *w, const void *line, bool *moved_out)
{
    cudaError_t const error = w->asked ? ra_cuda_forget(cudaStreamQuery(w->stream)) : cudaSuccess;
    *moved_out = false;
    if (error == cudaErrorNotReady)
        return cudaSuccess;
    if (error != cudaSuccess)
        return error;
    *moved_out = w->asked && memcmp(&w->seen, w->here, sizeof(w->seen)) != 0;
    w->seen = *w->here;
    return ask(w, line);
}

static ra_status lose(ra_kernel *kernel)
{
    const ra_cuda_kernel *const self = ra_cuda_self(kernel);
    if (ra_device_lose())
        ra_log(RA_LOG_ERROR,
               "GPU %d hangs: it has come no further for %g s with what it was given (the last: "
               "%s): look at the kernel's log of that machine, or raise comm.timeout",
               self->index, (double)kernel->timeout_ms / 1000.0,
               self->watch.what[0] != '\0' ? self->watch.what : "no step yet");
    return RA_ERR_TIMEOUT;
}

ra_status ra_cuda_watch_look(ra_kernel *kernel)
{
    ra_cuda_watch *const w = &ra_cuda_self(kernel)->watch;
    int64_t const now_ns = ra_clock_ns();
    bool moved = false;
    if (ra_device_is_lost())
        return RA_ERR_TIMEOUT; /* that was said */
    if (now_ns - w->looked_ns < kernel->timeout_ms * 1000000 / LOOKS)
        return RA_OK;
    ra_status const status = ra_cuda_kernel_status(kernel, look(w, line_of(kernel), &moved),
                                                   "kernel cuda: looking at its GPU");
    w->looked_ns = now_ns;
    w->quiet_looks = moved ? 0 : w->quiet_looks + 1;
    return status == RA_OK && w->quiet_looks > LOOKS ? lose(kernel) : status;
}

ra_status ra_cuda_watch_wait(ra_kernel *kernel)
{
    ra_cuda_watch *const w = &ra_cuda_self(kernel)->watch;
    int64_t const begin_ns = ra_clock_ns();
    cudaError_t error = cudaSuccess;
    while (w->asked) {
        int64_t const waited_ns = ra_clock_ns() - begin_ns; /* when the question is put */
        error = ra_cuda_forget(cudaStreamQuery(w->stream));
        if (error != cudaErrorNotReady)
            break;
        if (ra_device_is_lost())
            return RA_ERR_TIMEOUT; /* that was said */
        if (waited_ns > kernel->timeout_ms * 1000000)
            return lose(kernel);
        if (kernel->poll != NULL)
            kernel->poll(kernel->poll_context);
        ra_pause(waited_ns);
    }
    w->asked = false;
    return ra_cuda_kernel_status(kernel, error, "kernel cuda: looking at its GPU");
}
