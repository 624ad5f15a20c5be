/* Exchanges over MPI: messages in pieces, polled until they are done or the deadline passes. */
#include "comm_mpi.h"

#include "pause.h"

#include <stdio.h>
#include <string.h>

ra_status ra_mpi_fail(const ra_mpi_comm *mpi, const char *operation, int step, int error)
{
    char text[MPI_MAX_ERROR_STRING] = "unknown error", where[128];
    int length = 0;
    if (MPI_Error_string(error, text, &length) != MPI_SUCCESS)
        snprintf(text, sizeof(text), "error %d", error);
    ra_log(RA_LOG_ERROR, "%s failed in MPI (%s): %s", operation,
           ra_comm_where(&mpi->base, step, where, sizeof(where)), text);
    return RA_ERR_MPI;
}

/* ---- waiting --------------------------------------------------------------------------------- */

static int64_t transfer_patience(const ra_mpi_transfer *transfer)
{
    if (transfer->recv.request != MPI_REQUEST_NULL)
        return RA_PATIENCE_FLOW;
    return transfer->send.request != MPI_REQUEST_NULL ? RA_PATIENCE_SEND : RA_PATIENCE_NONE;
}

void ra_mpi_pause(const ra_mpi_comm *mpi, int64_t patience_ns, int64_t begin_ns, int64_t now_ns)
{
    for (int i = 0; i < RA_TRANSFER_MAX; i++) {
        if (mpi->transfers[i].base.in_use)
            patience_ns = ra_max_i64(patience_ns, transfer_patience(&mpi->transfers[i]));
    }
    ra_pause(now_ns - begin_ns - patience_ns);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

int ra_mpi_receive(ra_mpi_comm *mpi, int peer, int tag, void *data, int bytes, int *bytes_out,
                   MPI_Request *request_out)
{
    MPI_Message message;
    MPI_Status status;
    int found = 0;
    *bytes_out = -1;
    int error = MPI_Improbe(peer, tag, mpi->handle, &found, &message, &status);
    if (error == MPI_SUCCESS && found)
        error = MPI_Get_count(&status, MPI_BYTE, bytes_out);
    if (error == MPI_SUCCESS && found && *bytes_out == bytes)
        error = MPI_Imrecv(data, bytes, MPI_BYTE, &message, request_out);
    return error;
}

static int next_piece_bytes(const ra_mpi_comm *mpi, const ra_mpi_message *message)
{
    size_t const left_bytes = message->bytes - message->done_bytes;
    return (int)(left_bytes < mpi->piece_bytes ? left_bytes : mpi->piece_bytes);
}

/* Begin the next piece of a message; of a receive, only if it is there. */
static ra_status begin_piece(ra_mpi_comm *mpi, const ra_transfer *base, ra_mpi_message *message)
{
    MPI_Request *const request = &message->request;
    char *const data = message->data + message->done_bytes;
    int const bytes = next_piece_bytes(mpi, message);
    int error, found_bytes = -1;
    message->piece_bytes = bytes;
    if (message->is_send)
        error = MPI_Isend(data, bytes, MPI_BYTE, message->peer, message->tag, mpi->handle, request);
    else
        error =
            ra_mpi_receive(mpi, message->peer, message->tag, data, bytes, &found_bytes, request);
    if (error != MPI_SUCCESS)
        return ra_mpi_fail(mpi, base->operation, base->step, error);
    if (found_bytes < 0 || found_bytes == bytes)
        return RA_OK;
    bool const is_last = (size_t)found_bytes < mpi->piece_bytes;
    ra_comm_log_mismatch(&mpi->base, base->operation, base->step, message->peer,
                         is_last ? (int64_t)message->done_bytes + found_bytes : -1,
                         (int64_t)message->bytes);
    return RA_ERR_PEER;
}

/* Has the piece gone or come; was it the last, or what follows? */
static ra_status advance(ra_mpi_comm *mpi, const ra_transfer *base, ra_mpi_message *message)
{
    int arrived = 0;
    if (message->done)
        return RA_OK;
    if (message->request == MPI_REQUEST_NULL) { /* a receive, whose piece had not come */
        ra_status const status = begin_piece(mpi, base, message);
        if (status != RA_OK || message->request == MPI_REQUEST_NULL)
            return status;
    }
    int const error = MPI_Test(&message->request, &arrived, MPI_STATUS_IGNORE);
    if (error != MPI_SUCCESS)
        return ra_mpi_fail(mpi, base->operation, base->step, error);
    if (!arrived)
        return RA_OK;
    message->done_bytes += (size_t)message->piece_bytes;
    message->done = (size_t)message->piece_bytes < mpi->piece_bytes;
    return message->done ? RA_OK : begin_piece(mpi, base, message);
}

/* An empty message to every rank. Nothing is lost if one is not sent: the next follows soon. At the
   end ours are not waited for then. */
void ra_mpi_beat(ra_comm *comm)
{
    ra_mpi_comm *const mpi = (ra_mpi_comm *)comm;
    if (!ra_beat_is_due(comm, ra_clock_ns()))
        return;
    mpi->beats_sent++;
    for (int rank = 0; rank < comm->size; rank++) {
        MPI_Request request;
        if (rank == comm->rank)
            continue;
        if (MPI_Isend(NULL, 0, MPI_BYTE, rank, RA_TAG_BEAT, mpi->handle, &request) == MPI_SUCCESS)
            MPI_Request_free(&request);
        else
            mpi->beats_refused = true;
    }
}

/* Receive other ranks' heartbeats, as far as they are there. */
static void hear(ra_mpi_comm *mpi, int64_t now_ns)
{
    for (int i = 0; i < mpi->base.size; i++) {
        MPI_Status status;
        int found = 0;
        if (MPI_Iprobe(MPI_ANY_SOURCE, RA_TAG_BEAT, mpi->handle, &found, &status) != MPI_SUCCESS ||
            !found)
            return;
        if (MPI_Recv(NULL, 0, MPI_BYTE, status.MPI_SOURCE, RA_TAG_BEAT, mpi->handle,
                     MPI_STATUS_IGNORE) != MPI_SUCCESS)
            continue;
        mpi->base.heard_ns = now_ns;
        mpi->beats_heard[status.MPI_SOURCE]++;
    }
}

/* Looks every millisecond at most. */
static void listen(ra_mpi_comm *mpi)
{
    int64_t const now_ns = ra_clock_ns();
    if (now_ns - mpi->listened_ns < 1000000)
        return;
    mpi->listened_ns = now_ns;
    hear(mpi, now_ns);
}

/* The first rank with a heartbeat that has not come; -1: there is none. */
static int find_unheard(const ra_mpi_comm *mpi, const int64_t *sent)
{
    for (int rank = 0; rank < mpi->base.size; rank++) {
        if (rank != mpi->base.rank && mpi->beats_heard[rank] < sent[rank])
            return rank;
    }
    return -1;
}

ra_status ra_mpi_hear_all(ra_mpi_comm *mpi, const char *operation)
{
    ra_comm *const comm = &mpi->base;
    int64_t *const sent = mpi->recv_sequence; /* messages have come to their end */
    memset(sent, 0, (size_t)comm->size * sizeof(*sent));
    sent[comm->rank] = mpi->beats_refused ? 0 : mpi->beats_sent;
    ra_status const status =
        ra_mpi_reduce(comm, operation, RA_NUMBER_I64, RA_SUM, sent, comm->size);
    int64_t const begin_ns = ra_clock_ns();
    int late;
    while (status == RA_OK && (late = find_unheard(mpi, sent)) >= 0) {
        int64_t const now_ns = ra_clock_ns();
        hear(mpi, now_ns);
        if (comm->heard_ns == now_ns)
            continue; /* there may be more */
        if (ra_waited_ms(comm, begin_ns, now_ns) >= comm->timeout_ms) {
            ra_comm_log_timeout(comm, operation, -1, late);
            return RA_ERR_TIMEOUT;
        }
        ra_mpi_pause(mpi, RA_PATIENCE_NONE, begin_ns, now_ns);
    }
    return status;
}

void ra_mpi_progress(ra_mpi_comm *mpi)
{
    listen(mpi);
    for (int i = 0; i < RA_TRANSFER_MAX; i++) {
        ra_mpi_transfer *const transfer = &mpi->transfers[i];
        if (!transfer->base.in_use || transfer->status != RA_OK)
            continue;
        transfer->status = advance(mpi, &transfer->base, &transfer->recv);
        if (transfer->status == RA_OK)
            transfer->status = advance(mpi, &transfer->base, &transfer->send);
    }
}

void ra_mpi_poll(ra_comm *comm)
{
    ra_mpi_progress((ra_mpi_comm *)comm);
}

/* A failure in a transfer is reported by the wait for it. */
ra_status ra_mpi_look(ra_comm *comm)
{
    ra_mpi_progress((ra_mpi_comm *)comm);
    return RA_OK;
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/*
 * Give up what is in flight. MPI keeps it, but is not entered again for it: a broken communicator
 * makes no progress, so that nothing is written to the buffers.
 */
static void drop_requests(ra_mpi_transfer *transfer)
{
    if (transfer->send.request != MPI_REQUEST_NULL)
        MPI_Request_free(&transfer->send.request);
    if (transfer->recv.request != MPI_REQUEST_NULL)
        MPI_Request_free(&transfer->recv.request);
}

static ra_mpi_message make_message(const ra_mpi_comm *mpi, const ra_message *message, bool is_send)
{
    int64_t *const sequence = is_send ? mpi->send_sequence : mpi->recv_sequence;
    ra_mpi_message made = {.data = message->data,
                           .bytes = message->bytes,
                           .peer = message->peer,
                           .is_send = is_send,
                           .done = message->bytes == 0,
                           .request = MPI_REQUEST_NULL};
    if (!made.done)
        made.tag = RA_TAG_MESSAGES + (int)(sequence[made.peer]++ % mpi->tag_count);
    return made;
}

ra_status ra_mpi_start(ra_comm *comm, const ra_exchange *exchange, ra_transfer **transfer_out)
{
    ra_mpi_comm *const mpi = (ra_mpi_comm *)comm;
    ra_mpi_transfer *transfer = mpi->transfers;
    while (transfer->base.in_use) {
        transfer++;
        RA_ASSERT(transfer < mpi->transfers + RA_TRANSFER_MAX);
    }
    transfer->base = (ra_transfer){.operation = exchange->operation, .step = exchange->step};
    transfer->status = RA_OK;
    transfer->recv = make_message(mpi, &exchange->recv, false);
    transfer->send = make_message(mpi, &exchange->send, true);
    if (!transfer->send.done) {
        ra_status const status = begin_piece(mpi, &transfer->base, &transfer->send);
        if (status != RA_OK)
            return status;
    }
    transfer->base.in_use = true;
    *transfer_out = &transfer->base;
    return RA_OK;
}

static bool is_done(const ra_mpi_transfer *transfer)
{
    return transfer->recv.done && transfer->send.done;
}

/* Of a transfer that is not done. */
static int find_open_peer(const ra_mpi_transfer *transfer)
{
    return transfer->recv.done ? transfer->send.peer : transfer->recv.peer;
}

ra_status ra_mpi_wait(ra_comm *comm, ra_transfer *base)
{
    ra_mpi_comm *const mpi = (ra_mpi_comm *)comm;
    ra_mpi_transfer *const transfer = (ra_mpi_transfer *)base;
    int64_t const begin_ns = ra_clock_ns();
    for (;;) {
        /* The clock first: a rank that was itself suspended looks once more before it complains. */
        int64_t const now_ns = ra_clock_ns();
        ra_mpi_progress(mpi);
        if (transfer->status != RA_OK || is_done(transfer))
            break;
        if (ra_waited_ms(comm, begin_ns, now_ns) >= comm->timeout_ms) {
            ra_comm_log_timeout(comm, base->operation, base->step, find_open_peer(transfer));
            transfer->status = RA_ERR_TIMEOUT;
            break;
        }
        ra_mpi_pause(mpi, RA_PATIENCE_NONE, begin_ns, now_ns);
    }
    if (transfer->status != RA_OK)
        drop_requests(transfer);
    base->in_use = false;
    return transfer->status;
}

int ra_mpi_missing_peer(ra_comm *comm, ra_transfer *base)
{
    const ra_mpi_transfer *const transfer = (const ra_mpi_transfer *)base;
    ra_mpi_progress((ra_mpi_comm *)comm);
    return transfer->status != RA_OK || is_done(transfer) ? -1 : find_open_peer(transfer);
}

void ra_mpi_drop(ra_comm *comm)
{
    ra_mpi_comm *const mpi = (ra_mpi_comm *)comm;
    for (int i = 0; i < RA_TRANSFER_MAX; i++) {
        if (mpi->transfers[i].base.in_use)
            drop_requests(&mpi->transfers[i]);
    }
}
