/* Ranks of an MPI job: point-to-point messages, beginning and end. MPI never blocks here. */
#include "comm_mpi_internal.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

bool ra_comm_has_mpi(void)
{
    return true;
}

ra_status ra_mpi_fail(const ra_mpi_comm *mpi, const char *operation, int step, int error)
{
    char text[MPI_MAX_ERROR_STRING] = "unknown error", where[32] = "";
    int length = 0;
    if (MPI_Error_string(error, text, &length) != MPI_SUCCESS)
        snprintf(text, sizeof(text), "error %d", error);
    if (step >= 0)
        snprintf(where, sizeof(where), ", step %d", step);
    ra_log(RA_LOG_ERROR, "%s failed in MPI (rank %d on host %s%s): %s", operation, mpi->base.rank,
           mpi->base.host, where, text);
    return RA_ERR_MPI;
}

static int64_t transfer_patience(const ra_mpi_transfer *transfer)
{
    int64_t patience_ns = RA_PATIENCE_NONE;
    for (int i = 0; i < transfer->count; i++) {
        if (transfer->requests[i] != MPI_REQUEST_NULL)
            patience_ns = ra_max_i64(patience_ns, i < transfer->recv_count ? RA_PATIENCE_FLOW
                                                                           : RA_PATIENCE_SEND);
    }
    return patience_ns;
}

void ra_mpi_pause(const ra_mpi_comm *mpi, int64_t patience_ns, int64_t begin_ns, int64_t now_ns)
{
    int64_t const least_ns = 50000; /* what a sleep takes anyway */
    int64_t const most_ns = 100000; /* what a message may be late by, at most */
    for (int i = 0; i < RA_TRANSFER_MAX; i++) {
        if (mpi->transfers[i].base.in_use)
            patience_ns = ra_max_i64(patience_ns, transfer_patience(&mpi->transfers[i]));
    }
    int64_t const sleep_ns = ra_min_i64((now_ns - begin_ns - patience_ns) / 64, most_ns);
    if (sleep_ns < least_ns) {
        sched_yield();
    } else {
        struct timespec const pause = {.tv_nsec = (long)sleep_ns};
        nanosleep(&pause, NULL);
    }
}

/* ---- exchanges ------------------------------------------------------------------------------- */

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

/* Begin the next piece of message `index`; of a receive, only if it is there. */
static ra_status begin_piece(ra_mpi_comm *mpi, ra_mpi_transfer *transfer, int index)
{
    ra_mpi_message *const message = &transfer->messages[index];
    const ra_transfer *const base = &transfer->base;
    MPI_Request *const request = &transfer->requests[index];
    char *const data = message->data + message->done_bytes;
    int const bytes = next_piece_bytes(mpi, message);
    int error, found_bytes = -1;
    message->piece_bytes = bytes;
    if (index >= transfer->recv_count)
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

/* A piece has gone or come: was it the last, or what follows? */
static ra_status finish_piece(ra_mpi_comm *mpi, ra_mpi_transfer *transfer, int index)
{
    ra_mpi_message *const message = &transfer->messages[index];
    message->done_bytes += (size_t)message->piece_bytes;
    if ((size_t)message->piece_bytes == mpi->piece_bytes)
        return begin_piece(mpi, transfer, index);
    message->done = true;
    transfer->open_count--;
    return RA_OK;
}

static ra_status begin_receives(ra_mpi_comm *mpi, ra_mpi_transfer *transfer)
{
    ra_status status = RA_OK;
    for (int i = 0; i < transfer->recv_count && status == RA_OK; i++) {
        if (!transfer->messages[i].done && transfer->requests[i] == MPI_REQUEST_NULL)
            status = begin_piece(mpi, transfer, i);
    }
    return status;
}

static ra_status advance(ra_mpi_comm *mpi, ra_mpi_transfer *transfer)
{
    MPI_Status statuses[2 * RA_EXCHANGE_MAX];
    int indices[2 * RA_EXCHANGE_MAX], count = 0;
    ra_status status = begin_receives(mpi, transfer);
    if (status != RA_OK)
        return status;
    int error = MPI_Testsome(transfer->count, transfer->requests, &count, indices, statuses);
    if (count == MPI_UNDEFINED) /* nothing is in flight */
        count = 0;
    for (int i = 0; error == MPI_ERR_IN_STATUS && i < count; i++) {
        if (statuses[i].MPI_ERROR != MPI_SUCCESS)
            error = statuses[i].MPI_ERROR;
    }
    if (error != MPI_SUCCESS)
        return ra_mpi_fail(mpi, transfer->base.operation, transfer->base.step, error);
    for (int i = 0; i < count && status == RA_OK; i++)
        status = finish_piece(mpi, transfer, indices[i]);
    return status;
}

void ra_mpi_progress(ra_mpi_comm *mpi)
{
    for (int i = 0; i < RA_TRANSFER_MAX; i++) {
        ra_mpi_transfer *const transfer = &mpi->transfers[i];
        if (transfer->base.in_use && transfer->status == RA_OK && transfer->open_count > 0)
            transfer->status = advance(mpi, transfer);
    }
}

static void mpi_poll(ra_comm *comm)
{
    ra_mpi_progress((ra_mpi_comm *)comm);
}

/*
 * Give up what is in flight. MPI keeps it, but is not entered again for it: a broken communicator
 * makes no progress, so that nothing is written to the buffers.
 */
static void drop_requests(ra_mpi_transfer *transfer)
{
    for (int i = 0; i < transfer->count; i++) {
        if (transfer->requests[i] != MPI_REQUEST_NULL)
            MPI_Request_free(&transfer->requests[i]);
    }
}

static void add_message(ra_mpi_comm *mpi, ra_mpi_transfer *transfer, const ra_message *message,
                        int64_t *sequence)
{
    if (message->bytes == 0)
        return;
    int const index = transfer->count++;
    int const tag = (int)(sequence[message->peer]++ % mpi->tag_count);
    transfer->messages[index] = (ra_mpi_message){.data = message->data,
                                                 .bytes = message->bytes,
                                                 .peer = message->peer,
                                                 .tag = RA_TAG_MESSAGES + tag};
    transfer->requests[index] = MPI_REQUEST_NULL;
}

static ra_status mpi_start(ra_comm *comm, const ra_exchange *exchange, ra_transfer **transfer_out)
{
    ra_mpi_comm *const mpi = (ra_mpi_comm *)comm;
    ra_mpi_transfer *transfer = mpi->transfers;
    while (transfer->base.in_use) {
        transfer++;
        RA_ASSERT(transfer < mpi->transfers + RA_TRANSFER_MAX);
    }
    transfer->base = (ra_transfer){.operation = exchange->operation, .step = exchange->step};
    transfer->status = RA_OK;
    transfer->count = 0;
    for (int i = 0; i < exchange->recv_count; i++)
        add_message(mpi, transfer, &exchange->recvs[i], mpi->recv_sequence);
    transfer->recv_count = transfer->count;
    for (int i = 0; i < exchange->send_count; i++)
        add_message(mpi, transfer, &exchange->sends[i], mpi->send_sequence);
    transfer->open_count = transfer->count;

    for (int i = transfer->recv_count; i < transfer->count; i++) {
        ra_status const status = begin_piece(mpi, transfer, i);
        if (status != RA_OK) {
            drop_requests(transfer);
            return status;
        }
    }
    transfer->base.in_use = true;
    *transfer_out = &transfer->base;
    return RA_OK;
}

static int find_open_peer(const ra_mpi_transfer *transfer)
{
    int index = 0;
    while (transfer->messages[index].done)
        index++;
    return transfer->messages[index].peer;
}

static ra_status mpi_wait(ra_comm *comm, ra_transfer *base)
{
    ra_mpi_comm *const mpi = (ra_mpi_comm *)comm;
    ra_mpi_transfer *const transfer = (ra_mpi_transfer *)base;
    int64_t const begin_ns = ra_clock_ns();
    for (;;) {
        /* The clock first: a rank that was itself suspended looks once more before it complains. */
        int64_t const now_ns = ra_clock_ns();
        ra_mpi_progress(mpi);
        if (transfer->status != RA_OK || transfer->open_count == 0)
            break;
        if ((now_ns - begin_ns) / 1000000 >= comm->timeout_ms) {
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

/* ---- end ------------------------------------------------------------------------------------- */

static void mpi_abort(ra_comm *comm, int exit_code)
{
    MPI_Abort(((ra_mpi_comm *)comm)->handle, exit_code);
}

static void free_memory(ra_mpi_comm *mpi)
{
    free(mpi->send_sequence);
    free(mpi->recv_sequence);
    free(mpi->requests);
    free(mpi->statuses);
    free(mpi->indices);
    free(mpi->notes);
    free(mpi);
}

/*
 * MPI_Finalize waits for every rank and has no deadline, so the ranks meet under ours first. A
 * broken communicator is left as it is: to free it, or to finalise, could wait for ever for the
 * rank that is lost. The process then ends without MPI_Finalize, which the launcher takes for a
 * failed job, as it should.
 */
static void mpi_destroy(ra_comm *comm)
{
    ra_mpi_comm *const mpi = (ra_mpi_comm *)comm;
    bool healthy = !comm->broken;
    if (healthy && mpi->owns_mpi)
        healthy = ra_mpi_barrier(comm, "end of the job") == RA_OK;
    if (healthy) {
        MPI_Comm_free(&mpi->handle);
        if (mpi->owns_mpi)
            MPI_Finalize();
    }
    free_memory(mpi);
}

static const ra_comm_ops mpi_ops = {
    .name = "mpi",
    .start = mpi_start,
    .poll = mpi_poll,
    .wait = mpi_wait,
    .barrier = ra_mpi_barrier,
    .broadcast = ra_mpi_broadcast,
    .reduce_i64 = ra_mpi_reduce_i64,
    .reduce_f64 = ra_mpi_reduce_f64,
    .abort = mpi_abort,
    .destroy = mpi_destroy,
};

/* ---- beginning ------------------------------------------------------------------------------- */

void ra_comm_mpi_set_limits(ra_comm *comm, size_t piece_bytes, int tag_count)
{
    ra_mpi_comm *const mpi = (ra_mpi_comm *)comm;
    RA_ASSERT(comm->ops == &mpi_ops && comm->in_flight == 0);
    RA_ASSERT(piece_bytes >= 1 && piece_bytes <= INT_MAX && tag_count >= 2 * RA_MAIL_MAX);
    mpi->piece_bytes = piece_bytes;
    mpi->tag_count = tag_count;
}

/* MPI as we need it, initialised by us or by the caller. */
static ra_status enter_mpi(int *argc, char ***argv, bool *owns_mpi_out)
{
    int initialised = 0, finalised = 0, level = MPI_THREAD_SINGLE;
    MPI_Finalized(&finalised);
    if (finalised) {
        ra_log(RA_LOG_ERROR, "MPI was finalised before the communicator was made: MPI cannot begin "
                             "twice in one process");
        return RA_ERR_MPI;
    }
    MPI_Initialized(&initialised);
    if (initialised) {
        MPI_Query_thread(&level);
    } else if (MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) {
        ra_log(RA_LOG_ERROR, "MPI_Init_thread failed: start the program with mpirun");
        return RA_ERR_MPI;
    }
    if (level < MPI_THREAD_FUNNELED) {
        ra_log(RA_LOG_ERROR, "MPI runs without thread support: initialise it with "
                             "MPI_Init_thread and MPI_THREAD_FUNNELED at least");
        if (!initialised)
            MPI_Finalize();
        return RA_ERR_MPI;
    }
    *owns_mpi_out = !initialised;
    return RA_OK;
}

/* Our own copy of the world, so that no tag of ours meets anybody else's. */
static ra_status duplicate_world(ra_mpi_comm *mpi)
{
    static const char operation[] = "joining the job";
    int64_t const begin_ns = ra_clock_ns();
    MPI_Request request;
    int done = 0;
    int error = MPI_Comm_idup(MPI_COMM_WORLD, &mpi->handle, &request);
    while (error == MPI_SUCCESS) {
        int64_t const now_ns = ra_clock_ns();
        error = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (error != MPI_SUCCESS || done)
            break;
        if ((now_ns - begin_ns) / 1000000 >= mpi->base.timeout_ms) {
            ra_log(RA_LOG_ERROR,
                   "%s timed out after %g s (rank %d on host %s, waiting for some of ranks 0 to "
                   "%d): a rank is stopped or lost; look at the hosts, or raise comm.timeout",
                   operation, (double)mpi->base.timeout_ms / 1000.0, mpi->base.rank, mpi->base.host,
                   mpi->base.size - 1);
            return RA_ERR_TIMEOUT;
        }
        ra_mpi_pause(mpi, RA_PATIENCE_NONE, begin_ns, now_ns);
    }
    if (error == MPI_SUCCESS)
        error = MPI_Comm_set_errhandler(mpi->handle, MPI_ERRORS_RETURN);
    return error == MPI_SUCCESS ? RA_OK : ra_mpi_fail(mpi, operation, -1, error);
}

/* Counted through our own collectives: MPI_Comm_split_type has no deadline. */
static ra_status count_local_ranks(ra_mpi_comm *mpi)
{
    ra_comm *const comm = &mpi->base;
    int64_t *const hosts = calloc((size_t)comm->size, sizeof(*hosts));
    if (hosts == NULL) {
        ra_log(RA_LOG_ERROR, "no memory for the hosts of %d ranks", comm->size);
        return RA_ERR_NO_MEMORY;
    }
    int64_t const mine = ra_comm_host_id(comm);
    hosts[comm->rank] = mine;
    ra_status const status =
        ra_mpi_reduce_i64(comm, "counting ranks per host", RA_SUM, hosts, comm->size);
    comm->local_size = 0;
    for (int rank = 0; rank < comm->size; rank++)
        comm->local_size += hosts[rank] == mine;
    free(hosts);
    return status;
}

static ra_status take_memory(ra_mpi_comm *mpi)
{
    size_t const size = (size_t)mpi->base.size;
    mpi->send_sequence = calloc(size, sizeof(*mpi->send_sequence));
    mpi->recv_sequence = calloc(size, sizeof(*mpi->recv_sequence));
    mpi->requests = calloc(size, sizeof(MPI_Request));
    mpi->statuses = calloc(size, sizeof(*mpi->statuses));
    mpi->indices = calloc(size, sizeof(*mpi->indices));
    mpi->notes = calloc(mpi->base.rank == 0 || size < 2 ? size : 2, sizeof(*mpi->notes));
    if (mpi->send_sequence == NULL || mpi->recv_sequence == NULL || mpi->requests == NULL ||
        mpi->statuses == NULL || mpi->indices == NULL || mpi->notes == NULL) {
        ra_log(RA_LOG_ERROR, "no memory for a communicator of %zu ranks", size);
        return RA_ERR_NO_MEMORY; /* ra_comm_create_mpi frees what there is */
    }
    return RA_OK;
}

ra_status ra_comm_create_mpi(int *argc, char ***argv, int64_t timeout_ms, ra_comm **comm_out)
{
    RA_ASSERT(timeout_ms >= 1);
    bool owns_mpi = false;
    int rank = 0, size = 0, has_tags = 0;
    int *tag_max = NULL;
    ra_status status = enter_mpi(argc, argv, &owns_mpi);
    if (status != RA_OK)
        return status;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, (void *)&tag_max, &has_tags);

    ra_mpi_comm *const mpi = calloc(1, sizeof(*mpi));
    if (mpi == NULL) {
        ra_log(RA_LOG_ERROR, "no memory for a communicator of %zu bytes", sizeof(*mpi));
        return RA_ERR_NO_MEMORY;
    }
    ra_comm_init(&mpi->base, &mpi_ops, rank, size, timeout_ms);
    mpi->owns_mpi = owns_mpi;
    mpi->piece_bytes = (size_t)1 << 30;
    mpi->tag_count = (has_tags ? *tag_max : 32767) - RA_TAG_MESSAGES; /* 32767: MPI's promise */

    status = take_memory(mpi);
    if (status == RA_OK)
        status = duplicate_world(mpi);
    if (status == RA_OK)
        status = count_local_ranks(mpi);
    if (status != RA_OK) {
        free_memory(mpi); /* MPI stays as it is: the other ranks may never come to finalise it */
        return status;
    }
    *comm_out = &mpi->base;
    return RA_OK;
}
