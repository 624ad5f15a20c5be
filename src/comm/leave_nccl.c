/*
 * Calls of NCCL that wait for other ranks, and have no deadline: even where its communicator does
 * not block, NCCL ends it by joining the thread of its proxy, which stays until those of the host's
 * other ranks have let go. A rank that is stopped would keep all others. So such a call is made by
 * a thread, and a call that does not return is left alone.
 */
#include "comm_nccl.h"

#include "ringattn/device.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

/* Shared with the thread; the last of both gives it back. */
typedef struct last_call {
    pthread_mutex_t mutex;
    pthread_cond_t returned;
    ra_nccl_call *call;
    const ra_nccl *api;
    ncclComm_t handle;
    void *argument;
    ncclResult_t result;
    bool is_over, is_left; /* left: nobody waits for it any more */
} last_call;

static void last_call_free(last_call *last)
{
    pthread_cond_destroy(&last->returned);
    pthread_mutex_destroy(&last->mutex);
    free(last);
}

enum {
    ABORT_MS = 2000, /* most that an abort may take where other processes do not know of the
                        failure: they let go only when this one ends the job */
    LOOK_MS = 20     /* between two looks at the other ranks */
};

/* NCCL gives a thread back the GPU that it had before: a thread that has chosen none would get a
   context on the first. */
static void *make_call(void *context)
{
    last_call *const last = context;
    (void)ra_cuda_forget(cudaSetDevice(ra_device_used())); /* what follows meets it too */
    ncclResult_t const result = last->call(last->api, last->handle, last->argument);
    pthread_mutex_lock(&last->mutex);
    bool const is_left = last->is_left;
    last->result = result;
    last->is_over = true;
    pthread_cond_signal(&last->returned);
    pthread_mutex_unlock(&last->mutex);
    if (is_left)
        last_call_free(last);
    return NULL;
}

/* Other threads handle signals. NULL: there is no thread, or no memory. */
static last_call *last_call_begin(const ra_nccl_comm *nccl, ra_nccl_call *call, ncclComm_t handle,
                                  void *argument)
{
    pthread_t thread;
    sigset_t all, before;
    last_call *const last = calloc(1, sizeof(*last));
    if (last == NULL)
        return NULL;
    *last = (last_call){.call = call, .api = nccl->api, .handle = handle, .argument = argument};
    pthread_mutex_init(&last->mutex, NULL);
    pthread_cond_init(&last->returned, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool const begun = pthread_create(&thread, NULL, make_call, last) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (begun) {
        pthread_detach(thread);
        return last;
    }
    last_call_free(last);
    return NULL;
}

/* Whether it returned in time, or has by now. */
static bool wait_some(last_call *last)
{
    int64_t const until_ns = ra_clock_ns() + (int64_t)LOOK_MS * 1000000;
    struct timespec const until = {until_ns / 1000000000, until_ns % 1000000000};
    int error = 0;
    pthread_mutex_lock(&last->mutex);
    while (!last->is_over && error == 0)
        error = pthread_cond_clockwait(&last->returned, &last->mutex, CLOCK_MONOTONIC, &until);
    bool const is_over = last->is_over;
    pthread_mutex_unlock(&last->mutex);
    return is_over;
}

/* Nobody waits for it any more. False: it has just returned. */
static bool leave_alone(last_call *last)
{
    pthread_mutex_lock(&last->mutex);
    last->is_left = !last->is_over;
    bool const is_left = last->is_left;
    pthread_mutex_unlock(&last->mutex);
    return is_left;
}

/* Whether it returned in time, which counts from the last heartbeat: a rank may come late to its
   end. One whose communicator has failed hears none. */
static bool wait_for(last_call *last, ra_comm *comm, int64_t timeout_ms)
{
    int64_t const begin_ns = ra_clock_ns();
    while (!wait_some(last)) {
        int64_t const now_ns = ra_clock_ns();
        if (ra_comm_look(comm) != RA_OK && comm->of_host->broken)
            timeout_ms = ra_min_i64(timeout_ms, ABORT_MS);
        if (ra_waited_ms(comm, begin_ns, now_ns) >= timeout_ms)
            return !leave_alone(last);
    }
    return true;
}

ncclResult_t ra_nccl_call_last(ra_nccl_comm *nccl, const char *what, ra_nccl_call *call,
                               ncclComm_t handle, void *argument)
{
    ra_comm *const comm = &nccl->base.base;
    int64_t const begin_ns = ra_clock_ns();
    last_call *const last = last_call_begin(nccl, call, handle, argument);
    if (last == NULL) {
        ra_log(RA_LOG_WARNING, "NCCL has no deadline for %s: there is no thread for it", what);
        return call(nccl->api, handle, argument);
    }
    if (!wait_for(last, comm, comm->timeout_ms)) {
        if (ra_device_lose())
            ra_log(RA_LOG_WARNING,
                   "NCCL has not returned from %s after %.3g s (rank %d on host %s): another rank "
                   "has not let go, or is stopped or lost; its GPU is left as it is until the "
                   "process ends",
                   what, (double)(ra_clock_ns() - begin_ns) / 1e9, comm->rank, comm->host);
        return ncclSuccess;
    }
    ncclResult_t const result = last->result;
    last_call_free(last);
    return result;
}
