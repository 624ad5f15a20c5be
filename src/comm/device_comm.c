/* What communicators of GPUs share: transfers in flight, waiting, lengths. */
#include "device_comm.h"

#include "bytes_text.h"
#include "pause.h"

#include <stdio.h>
#include <string.h>

/* ---- beginning and end ----------------------------------------------------------------------- */

void ra_device_init(ra_device_comm *comm, const ra_comm_ops *ops, ra_comm *host,
                    const ra_comm_device *device)
{
    ra_comm_init(&comm->base, ops, host->rank, host->size, host->timeout_ms);
    memcpy(comm->base.host, host->host, sizeof(host->host));
    comm->base.hosts = host->hosts;
    comm->base.of_host = host;
    comm->device = *device;
}

ra_status ra_device_events_create(ra_device_comm *comm)
{
    cudaError_t error = cudaSetDevice(ra_device_used());
    for (int i = 0; i < RA_TRANSFER_MAX && error == cudaSuccess; i++)
        error = cudaEventCreateWithFlags(&comm->transfers[i]->ready, cudaEventDisableTiming);
    return ra_device_status(comm, NULL, "making events", error);
}

void ra_device_events_destroy(ra_device_comm *comm)
{
    for (int i = 0; i < RA_TRANSFER_MAX; i++) {
        if (comm->transfers[i]->ready != NULL)
            (void)ra_cuda_forget(cudaEventDestroy(comm->transfers[i]->ready));
    }
}

/* ---- what is logged -------------------------------------------------------------------------- */

ra_status ra_device_status(const ra_device_comm *comm, const ra_device_transfer *transfer,
                           const char *operation, cudaError_t error)
{
    char what[320], where[128];
    if (error == cudaSuccess)
        return RA_OK;
    if (transfer != NULL)
        operation = transfer->base.operation;
    snprintf(what, sizeof(what), "%s failed on the GPU (%s)", operation,
             ra_comm_where(&comm->base, transfer != NULL ? transfer->base.step : -1, where,
                           sizeof(where)));
    return ra_cuda_status_of_work(ra_pool_ledger(comm->device.pool), error, what);
}

static void append_message(char *text, size_t bytes, const char *way, const ra_message *message)
{
    if (message->bytes > 0)
        ra_text_append(text, bytes, "", ", %s rank %d %zu bytes", way, message->peer,
                       message->bytes);
}

const char *ra_device_record(const ra_device_comm *comm, char *text, size_t bytes)
{
    int64_t const now_ns = ra_clock_ns();
    text[0] = '\0';
    for (int which = 0; which < RA_TRANSFER_MAX; which++) {
        const ra_device_transfer *const t = ra_device_in_flight(comm, which);
        if (t == NULL)
            continue;
        ra_text_append(text, bytes, "", "; in flight: %s, step %d, for %lld ms", t->base.operation,
                       t->base.step, (long long)(now_ns - t->begun_ns) / 1000000);
        append_message(text, bytes, "from", &t->recv);
        append_message(text, bytes, "to", &t->send);
        ra_text_append(text, bytes, "", " (%s)", t->phase);
    }
    return text;
}

/* ---- transfers ------------------------------------------------------------------------------- */

ra_status ra_device_take(ra_device_comm *comm, const ra_exchange *exchange,
                         ra_device_transfer **transfer_out)
{
    ra_status status = RA_OK;
    int at = 0;
    while (comm->transfers[at]->base.in_use) {
        at++;
        RA_ASSERT(at < RA_TRANSFER_MAX);
    }
    ra_device_transfer *const t = comm->transfers[at];
    t->base = (ra_transfer){.operation = exchange->operation, .step = exchange->step};
    t->status = RA_OK;
    t->send = exchange->send;
    t->recv = exchange->recv;
    t->over = t->is_ready = t->send.bytes == 0 && t->recv.bytes == 0;
    t->is_behind = false;
    t->number = comm->transfer_count++;
    t->begun_ns = ra_clock_ns();
    t->timed = comm->base.timed;
    t->span = -1;
    t->phase = "waiting for this rank's own GPU";
    if (!t->over) {
        cudaError_t error = cudaSetDevice(ra_device_used());
        if (error == cudaSuccess)
            error = cudaEventRecord(t->ready, (cudaStream_t)comm->base.stream);
        status = ra_device_status(comm, t, NULL, error);
    }
    t->base.in_use = status == RA_OK;
    *transfer_out = t;
    return status;
}

/* The peer of a transfer's receive, or else of its send. */
static int peer_of(const ra_device_transfer *transfer)
{
    return transfer->recv.bytes > 0 ? transfer->recv.peer : transfer->send.peer;
}

int ra_device_missing_peer(ra_device_comm *comm, const ra_device_transfer *transfer,
                           ra_transfer *travelling)
{
    if (transfer->over || transfer->status != RA_OK)
        return -1;
    int const peer = travelling != NULL ? ra_comm_missing_peer(comm->base.of_host, travelling) : -1;
    return peer >= 0 ? peer : peer_of(transfer);
}

void ra_device_time_begin(ra_device_transfer *transfer, cudaStream_t stream)
{
    const ra_timed *const timed = &transfer->timed;
    transfer->span =
        ra_timeline_begin(timed->line, (ra_stream *)stream, timed->first, timed->count);
}

void ra_device_time_end(ra_device_transfer *transfer, cudaStream_t stream)
{
    ra_timeline_end(transfer->timed.line, (ra_stream *)stream, transfer->span);
    transfer->span = -1;
}

ra_device_transfer *ra_device_in_flight(const ra_device_comm *comm, int which)
{
    ra_device_transfer *a = comm->transfers[0], *b = comm->transfers[1];
    if (b->base.in_use && (!a->base.in_use || b->number < a->number)) {
        ra_device_transfer *const swapped = a;
        a = b;
        b = swapped;
    }
    ra_device_transfer *const t = which == 0 ? a : b;
    return t->base.in_use ? t : NULL;
}

ra_status ra_device_look_ready(ra_device_comm *comm, ra_device_transfer *transfer)
{
    if (transfer->is_ready)
        return RA_OK;
    cudaError_t const error = ra_cuda_forget(cudaEventQuery(transfer->ready));
    transfer->is_behind = error == cudaErrorNotReady;
    if (error == cudaErrorNotReady) {
        if (comm->base.watch != NULL)
            ra_comm_beat(&comm->base);
        return RA_OK;
    }
    transfer->is_ready = error == cudaSuccess;
    return ra_device_status(comm, transfer, NULL, error);
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* While a stream is at work, for so long already. */
static ra_status look_at_own_gpu(const ra_device_comm *comm, int64_t waited_ms)
{
    const ra_comm *const base = &comm->base;
    char where[128];
    if (base->watch != NULL)
        return base->watch(base->watch_context);
    if (waited_ms <= base->timeout_ms)
        return RA_OK;
    if (ra_device_lose())
        ra_log(RA_LOG_ERROR,
               "GPU %d hangs: what messages wait for is not over after %g s (%s): look at the "
               "kernel's log of that machine, or raise comm.timeout",
               ra_device_used(), (double)base->timeout_ms / 1000.0,
               ra_comm_where(base, -1, where, sizeof(where)));
    return RA_ERR_TIMEOUT;
}

ra_status ra_device_end_stream(ra_device_comm *comm, cudaStream_t stream)
{
    int64_t const begin_ns = ra_clock_ns();
    int64_t waited_ns = 0; /* when the question is put */
    while (stream != NULL && !ra_device_is_lost() &&
           ra_cuda_forget(cudaStreamQuery(stream)) == cudaErrorNotReady) {
        ra_status const status = look_at_own_gpu(comm, waited_ns / 1000000);
        if (status != RA_OK)
            return status;
        ra_comm_beat(comm->base.of_host);
        ra_pause(waited_ns);
        waited_ns = ra_clock_ns() - begin_ns;
    }
    return ra_device_is_lost() ? RA_ERR_TIMEOUT : RA_OK;
}

void ra_device_poll(ra_comm *base)
{
    ra_device_comm *const comm = (ra_device_comm *)base;
    ra_comm_poll(comm->base.of_host);
    comm->progress(comm);
}

/* Exchanges may have to wait for those before them, of which some wait for our own stream. One that
   has failed waits for nothing. */
static bool own_gpu_is_behind(const ra_device_comm *comm)
{
    for (int which = 0; which < RA_TRANSFER_MAX; which++) {
        const ra_device_transfer *const t = ra_device_in_flight(comm, which);
        if (t != NULL && t->status == RA_OK && t->is_behind)
            return true;
    }
    return false;
}

/*
 * Whether a kernel of ours is at work: it may leave NCCL's no room, even if these were enqueued
 * before it. Only asked once a 16th of the deadline has passed.
 */
static bool own_kernel_works(const ra_device_comm *comm, int64_t waited_ms)
{
    const cudaStream_t stream = (cudaStream_t)comm->base.stream;
    if (!comm->takes_multiprocessors || stream == NULL || ra_device_is_lost() ||
        waited_ms < comm->base.timeout_ms / 16)
        return false;
    /* An error is met by whoever needs the stream. */
    cudaError_t const error = ra_cuda_forget(cudaStreamQuery(stream));
    return error == cudaErrorNotReady;
}

/* Whether it is our own GPU that others wait for. Without a watch nobody would find out that it
   hangs: the deadline is for it, too, and others hear nothing meanwhile. */
static bool own_gpu_is_late(const ra_device_comm *comm, int64_t waited_ms)
{
    return comm->base.watch != NULL &&
           (own_gpu_is_behind(comm) || own_kernel_works(comm, waited_ms));
}

static ra_status wait_until_over(ra_device_comm *comm, ra_device_transfer *t)
{
    char record[600];
    int64_t const first_ns = ra_clock_ns();
    int64_t begin_ns = first_ns; /* of what the deadline bounds */
    for (;;) {
        /* The clock first: a rank that was itself suspended looks once more before it complains. */
        int64_t const now_ns = ra_clock_ns();
        ra_status status = ra_comm_look(&comm->base);
        if (status == RA_OK) {
            comm->progress(comm);
            status = t->status;
        }
        if (status != RA_OK || t->over)
            return status;
        if (own_gpu_is_late(comm, (now_ns - begin_ns) / 1000000)) {
            begin_ns = now_ns; /* nobody else is */
            ra_comm_beat(&comm->base);
            status = comm->base.watch(comm->base.watch_context);
            if (status != RA_OK)
                return status;
        }
        if (ra_waited_ms(&comm->base, begin_ns, now_ns) >= comm->base.timeout_ms) {
            int const peer = comm->base.ops->missing_peer(&comm->base, &t->base);
            if (peer < 0)
                continue; /* the last look has found it done, or failed */
            ra_comm_log_timeout_with(&comm->base, t->base.operation, t->base.step, peer,
                                     ra_device_record(comm, record, sizeof(record)));
            return RA_ERR_TIMEOUT;
        }
        ra_pause(now_ns - first_ns);
    }
}

ra_status ra_device_drain(ra_comm *base)
{
    ra_device_comm *const comm = (ra_device_comm *)base;
    ra_status status = RA_OK;
    for (int which = 0; which < RA_TRANSFER_MAX && status == RA_OK; which++) {
        ra_device_transfer *const t = ra_device_in_flight(comm, which);
        if (t != NULL)
            status = wait_until_over(comm, t);
    }
    return status;
}

ra_status ra_device_wait(ra_comm *base, ra_transfer *transfer)
{
    ra_device_comm *const comm = (ra_device_comm *)base;
    ra_device_transfer *const t = (ra_device_transfer *)transfer;
    ra_status const status = wait_until_over(comm, t);
    t->base.in_use = false;
    return status;
}

/* ---- lengths --------------------------------------------------------------------------------- */

ra_status ra_lengths_start(ra_device_comm *comm, const ra_device_transfer *t, ra_lengths *lengths)
{
    ra_exchange exchange = {.operation = t->base.operation, .step = t->base.step};
    lengths->sent_bytes = (int64_t)t->send.bytes;
    lengths->received_bytes = (int64_t)t->recv.bytes;
    if (t->send.bytes > 0)
        exchange.send = (ra_message){t->send.peer, &lengths->sent_bytes, sizeof(int64_t)};
    if (t->recv.bytes > 0)
        exchange.recv = (ra_message){t->recv.peer, &lengths->received_bytes, sizeof(int64_t)};
    return ra_comm_start(comm->base.of_host, &exchange, &lengths->transfer);
}

ra_status ra_lengths_look(ra_device_comm *comm, const ra_device_transfer *t, ra_lengths *lengths)
{
    if (lengths->transfer == NULL ||
        ra_comm_missing_peer(comm->base.of_host, lengths->transfer) >= 0)
        return RA_OK;
    ra_status const status = ra_comm_wait(comm->base.of_host, lengths->transfer);
    lengths->transfer = NULL;
    if (status != RA_OK || lengths->received_bytes == (int64_t)t->recv.bytes)
        return status;
    ra_comm_log_mismatch(&comm->base, t->base.operation, t->base.step, t->recv.peer,
                         lengths->received_bytes, (int64_t)t->recv.bytes);
    return RA_ERR_PEER;
}
