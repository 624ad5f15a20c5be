/*
 * Exchanges over NCCL: each is one group on the communicator's stream, behind an event of the
 * stream that uses the buffers, and in front of an event that says it is done.
 *
 * The communicator does not block: a group may still be on its way to the stream when NCCL returns.
 * Later work on the stream, our own event too, is enqueued once NCCL says that the group has
 * arrived there; until then a second exchange waits its turn.
 */
#include "comm_nccl.h"

#include "pause.h"

#include <stdio.h>

/* ---- failures -------------------------------------------------------------------------------- */

ra_status ra_nccl_fail(const ra_nccl_comm *nccl, const char *operation, int step,
                       ncclResult_t error)
{
    char where[128], what[320], record[400];
    snprintf(what, sizeof(what), "%s failed in NCCL (%s)", operation,
             ra_comm_where(&nccl->base.base, step, where, sizeof(where)));
    if (ra_cuda_has_lost(nccl->stream, what))
        return RA_ERR_NCCL;
    const char *const more = nccl->api->last_error(nccl->handle);
    ra_log(RA_LOG_ERROR, "%s: %s%s%.160s%s", what, nccl->api->error_string(error),
           more != NULL && more[0] != '\0' ? ", " : "", more != NULL ? more : "",
           ra_device_record(&nccl->base, record, sizeof(record)));
    return RA_ERR_NCCL;
}

void ra_nccl_warn(const ra_nccl_comm *nccl, ncclResult_t error, const char *what)
{
    if (error != ncclSuccess && error != ncclInProgress && !ra_cuda_has_lost(nccl->stream, NULL))
        ra_log(RA_LOG_WARNING, "%s: %s", what, nccl->api->error_string(error));
}

ra_status ra_nccl_look(ra_nccl_comm *nccl, const char *operation, int step, bool *busy_out)
{
    ncclResult_t state = ncclSuccess;
    ncclResult_t error = nccl->api->get_async_error(nccl->handle, &state);
    if (error == ncclSuccess && state != ncclInProgress)
        error = state;
    if (error != ncclSuccess)
        return ra_nccl_fail(nccl, operation, step, error);
    *busy_out = state == ncclInProgress;
    return RA_OK;
}

/* ---- progress -------------------------------------------------------------------------------- */

static ncclResult_t post_messages(ra_nccl_comm *nccl, const ra_nccl_transfer *t)
{
    const ra_nccl *const api = nccl->api;
    const ra_message *const send = &t->base.send, *const recv = &t->base.recv;
    ncclResult_t error = api->group_start();
    if (error != ncclSuccess)
        return error;
    if (recv->bytes > 0)
        error =
            api->recv(recv->data, recv->bytes, ncclUint8, recv->peer, nccl->handle, nccl->stream);
    if (send->bytes > 0 && (error == ncclSuccess || error == ncclInProgress))
        error =
            api->send(send->data, send->bytes, ncclUint8, send->peer, nccl->handle, nccl->stream);
    /* A started group must be ended, whatever happened in it. */
    ncclResult_t const ended = api->group_end();
    if (error == ncclSuccess || error == ncclInProgress)
        error = ended;
    return error == ncclInProgress ? ncclSuccess : error;
}

static ra_status launch(ra_nccl_comm *nccl, ra_nccl_transfer *t)
{
    const ra_transfer *const head = &t->base.base;
    cudaError_t error = cudaSetDevice(ra_device_used());
    if (error == cudaSuccess)
        error = cudaStreamWaitEvent(nccl->stream, t->base.ready, 0);
    if (error != cudaSuccess)
        return ra_device_status(&nccl->base, &t->base, NULL, error);
    ra_device_time_begin(&t->base, nccl->stream);
    ncclResult_t const posted = post_messages(nccl, t);
    if (posted != ncclSuccess)
        return ra_nccl_fail(nccl, head->operation, head->step, posted);
    t->phase = RA_NCCL_LAUNCHING;
    t->base.phase = "being launched";
    return RA_OK;
}

static ra_status look_launched(ra_nccl_comm *nccl, ra_nccl_transfer *t)
{
    bool busy = false;
    ra_status const status = ra_nccl_look(nccl, t->base.base.operation, t->base.base.step, &busy);
    if (status != RA_OK || busy)
        return status;
    t->phase = RA_NCCL_RUNNING;
    t->base.phase = t->base.is_ready ? "under way" : "waiting for this rank's own GPU";
    ra_device_time_end(&t->base, nccl->stream);
    return ra_device_status(&nccl->base, &t->base, NULL, cudaEventRecord(t->done, nccl->stream));
}

static ra_status look_done(ra_nccl_comm *nccl, ra_nccl_transfer *t)
{
    bool busy = false;
    ra_status const status = ra_nccl_look(nccl, t->base.base.operation, t->base.base.step, &busy);
    if (status != RA_OK)
        return status;
    cudaError_t const error = ra_cuda_forget(cudaEventQuery(t->done));
    if (error == cudaErrorNotReady) {
        if (t->base.is_ready)
            t->base.phase = "under way";
        return RA_OK;
    }
    if (error != cudaSuccess)
        return ra_device_status(&nccl->base, &t->base, NULL, error);
    t->phase = RA_NCCL_DONE;
    t->base.phase = "done, its lengths are not";
    return RA_OK;
}

static ra_status advance(ra_nccl_comm *nccl, ra_nccl_transfer *t, bool is_first)
{
    ra_status status = ra_lengths_look(&nccl->base, &t->base, &t->lengths);
    if (status == RA_OK)
        status = ra_device_look_ready(&nccl->base, &t->base);
    if (status == RA_OK && t->phase == RA_NCCL_POSTED && is_first)
        status = launch(nccl, t);
    if (status == RA_OK && t->phase == RA_NCCL_LAUNCHING)
        status = look_launched(nccl, t);
    if (status == RA_OK && t->phase == RA_NCCL_RUNNING)
        status = look_done(nccl, t);
    t->base.over = t->phase == RA_NCCL_DONE && t->lengths.transfer == NULL;
    return status;
}

void ra_nccl_progress(ra_device_comm *base)
{
    ra_nccl_comm *const nccl = (ra_nccl_comm *)base;
    bool is_first = true; /* nobody before it waits to be launched */
    for (int which = 0; which < RA_TRANSFER_MAX; which++) {
        ra_device_transfer *const t = ra_device_in_flight(base, which);
        if (t == NULL || t->over)
            continue;
        ra_nccl_transfer *const transfer = (ra_nccl_transfer *)t;
        if (t->status == RA_OK)
            t->status = advance(nccl, transfer, is_first);
        is_first = is_first && transfer->phase >= RA_NCCL_RUNNING;
    }
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/* NCCL's thread takes some tens of microseconds, more only where it has still to connect. */
enum { LAUNCH_WAIT_NS = 1000000 };

/*
 * Wait until NCCL has put the group on the stream, unless one before it is not there yet. The
 * caller enqueues attention next, whose thread blocks fill the GPU: NCCL's come first only if they
 * are on the stream when there is room. A group that takes longer may wait for a peer that
 * computes: then this rank computes too. The wait reports failures.
 */
static void stay_for_launch(ra_nccl_comm *nccl, const ra_nccl_transfer *t)
{
    int64_t const begin_ns = ra_clock_ns();
    int64_t now_ns = begin_ns;
    ra_nccl_progress(&nccl->base);
    while (t->phase == RA_NCCL_LAUNCHING && t->base.status == RA_OK &&
           now_ns - begin_ns < LAUNCH_WAIT_NS) {
        ra_pause(now_ns - begin_ns);
        ra_nccl_progress(&nccl->base);
        now_ns = ra_clock_ns();
    }
}

ra_status ra_nccl_start(ra_comm *comm, const ra_exchange *exchange, ra_transfer **transfer_out)
{
    ra_nccl_comm *const nccl = (ra_nccl_comm *)comm;
    ra_device_transfer *head;
    ra_status status = ra_device_take(&nccl->base, exchange, &head);
    if (status != RA_OK)
        return status;
    ra_nccl_transfer *const t = (ra_nccl_transfer *)head;
    if (!t->base.over) {
        t->phase = RA_NCCL_POSTED;
        status = ra_lengths_start(&nccl->base, &t->base, &t->lengths);
    }
    if (status != RA_OK) {
        t->base.base.in_use = false;
        return status;
    }
    stay_for_launch(nccl, t);
    *transfer_out = &t->base.base;
    return RA_OK;
}

int ra_nccl_missing_peer(ra_comm *comm, ra_transfer *transfer)
{
    const ra_nccl_transfer *const t = (const ra_nccl_transfer *)transfer;
    ra_device_poll(comm);
    return ra_device_missing_peer((ra_device_comm *)comm, &t->base, t->lengths.transfer);
}
