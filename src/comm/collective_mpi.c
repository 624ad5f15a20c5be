/*
 * Collectives over MPI, by our own messages through rank 0 instead of MPI's collectives. So rank 0
 * knows who is missing when the deadline passes, and can tell the others; reductions are folded in
 * rank order, hence equal bit for bit; and ranks that disagree are found. The price is time that
 * grows with the number of ranks, in operations that no step of a ring waits for.
 */
#include "comm_mpi.h"

#include <string.h>

enum { BARRIER = -1 }; /* the kind of a note; a reduction's is its ra_number */

static int note_bytes(int count)
{
    return (int)offsetof(ra_mpi_note, values) + RA_NUMBER_BYTES * count;
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* The requests that will be waited for: none yet. */
static void begin_requests(ra_mpi_comm *mpi, int count)
{
    for (int i = 0; i < count; i++)
        mpi->requests[i] = MPI_REQUEST_NULL;
}

static ra_status complete_requests(ra_mpi_comm *mpi, const char *operation, int count,
                                   int64_t timeout_ms, int64_t patience_ns, int *open_out)
{
    int64_t const begin_ns = ra_clock_ns();
    int open_count = 0;
    for (int i = 0; i < count; i++)
        open_count += mpi->requests[i] != MPI_REQUEST_NULL;
    while (open_count > 0) {
        int64_t const now_ns = ra_clock_ns();
        int done_count = 0;
        int error = MPI_Testsome(count, mpi->requests, &done_count, mpi->indices, mpi->statuses);
        for (int i = 0; error == MPI_ERR_IN_STATUS && i < done_count; i++) {
            if (mpi->statuses[i].MPI_ERROR != MPI_SUCCESS)
                error = mpi->statuses[i].MPI_ERROR;
        }
        if (error != MPI_SUCCESS)
            return ra_mpi_fail(mpi, operation, -1, error);
        open_count -= done_count;
        if (open_count == 0)
            break;
        /* Others may need our next piece before they can come here. And where this rank was itself
           suspended, their signs of work lie unread. */
        ra_mpi_progress(mpi);
        if (ra_waited_ms(&mpi->base, begin_ns, now_ns) >= timeout_ms) {
            *open_out = 0;
            while (mpi->requests[*open_out] == MPI_REQUEST_NULL)
                ++*open_out;
            return RA_ERR_TIMEOUT;
        }
        ra_mpi_pause(mpi, patience_ns, begin_ns, now_ns);
    }
    return RA_OK;
}

/*
 * Wait until `count` of mpi->requests are done, or until `timeout_ms` have passed; after a failure
 * there are none. statuses and indices are overwritten.
 *
 * @param posted    MPI's error of posting them; nothing is waited for if it is one
 * @param open_out  the first request that was not done when the time had passed, else -1
 * @return RA_ERR_TIMEOUT: has not been logged, the caller knows what to say
 */
static ra_status wait_requests(ra_mpi_comm *mpi, const char *operation, int posted, int count,
                               int64_t timeout_ms, int64_t patience_ns, int *open_out)
{
    *open_out = -1;
    ra_status const status =
        posted != MPI_SUCCESS
            ? ra_mpi_fail(mpi, operation, -1, posted)
            : complete_requests(mpi, operation, count, timeout_ms, patience_ns, open_out);
    for (int i = 0; i < count && status != RA_OK; i++) {
        if (mpi->requests[i] == MPI_REQUEST_NULL)
            continue;
        MPI_Cancel(&mpi->requests[i]);
        MPI_Request_free(&mpi->requests[i]);
    }
    return status;
}

/*
 * Send the same to all other ranks, and wait until it has left. If `skip` is a rank, it gets
 * nothing, and a timeout is not logged.
 */
static ra_status send_all(ra_mpi_comm *mpi, const char *operation, const void *data, int bytes,
                          int tag, int skip, int64_t timeout_ms)
{
    int const size = mpi->base.size;
    int error = MPI_SUCCESS, open;
    begin_requests(mpi, size);
    for (int rank = 0; rank < size && error == MPI_SUCCESS; rank++) {
        if (rank != mpi->base.rank && rank != skip)
            error = MPI_Isend(data, bytes, MPI_BYTE, rank, tag, mpi->handle, &mpi->requests[rank]);
    }
    ra_status const status =
        wait_requests(mpi, operation, error, size, timeout_ms, RA_PATIENCE_SEND, &open);
    if (status == RA_ERR_TIMEOUT && skip < 0)
        ra_comm_log_timeout(&mpi->base, operation, -1, open);
    return status;
}

/* ---- barrier and reductions: notes to rank 0 and back ---------------------------------------- */

/* Rank 0: everybody's note, in mpi->notes. *missing_out: who is late, or -1. */
static ra_status collect_notes(ra_mpi_comm *mpi, const char *operation, int *missing_out)
{
    int const size = mpi->base.size;
    int error = MPI_SUCCESS;
    begin_requests(mpi, size);
    for (int rank = 1; rank < size && error == MPI_SUCCESS; rank++)
        error = MPI_Irecv(&mpi->notes[rank], (int)sizeof(ra_mpi_note), MPI_BYTE, rank, RA_TAG_NOTE,
                          mpi->handle, &mpi->requests[rank]);
    return wait_requests(mpi, operation, error, size, mpi->base.timeout_ms, RA_PATIENCE_NONE,
                         missing_out);
}

/* Rank 0: its note, with the verdict, to all but `missing`. */
static ra_status send_answers(ra_mpi_comm *mpi, const char *operation, int missing,
                              int64_t timeout_ms)
{
    const ra_mpi_note *const answer = &mpi->notes[0];
    return send_all(mpi, operation, answer, note_bytes(answer->count), RA_TAG_ANSWER, missing,
                    timeout_ms);
}

/* Rank 0: the first rank whose note does not fit rank 0's own; -1: none. */
static int find_disagreement(const ra_mpi_comm *mpi)
{
    const ra_mpi_note *const own = &mpi->notes[0];
    for (int rank = 1; rank < mpi->base.size; rank++) {
        const ra_mpi_note *const note = &mpi->notes[rank];
        if (note->sequence != own->sequence || note->kind != own->kind ||
            note->detail != own->detail || note->count != own->count)
            return rank;
    }
    return -1;
}

/* How long rank 0's verdict may take to come. */
static int64_t answer_ms(const ra_mpi_comm *mpi)
{
    return ra_min_i64(ra_max_i64(mpi->base.timeout_ms / 4, 50), 1000);
}

/* Rank 0's part. */
static ra_status preside(ra_mpi_comm *mpi, const char *operation)
{
    ra_mpi_note *const own = &mpi->notes[0];
    int missing;
    ra_status status = collect_notes(mpi, operation, &missing);
    if (status == RA_ERR_TIMEOUT) {
        ra_comm_log_timeout(&mpi->base, operation, -1, missing);
        own->verdict = RA_VERDICT_MISSING;
        own->missing_rank = missing;
    } else if (status == RA_OK) {
        int const other = find_disagreement(mpi);
        if (other >= 0) {
            ra_comm_log_disagreement(&mpi->base, operation, other);
            status = RA_ERR_PEER;
        }
    }
    if (status != RA_OK) { /* as far as they can be told */
        if (own->verdict == RA_VERDICT_OK)
            own->verdict = RA_VERDICT_REFUSED;
        (void)!send_answers(mpi, operation, own->verdict == RA_VERDICT_MISSING ? missing : 0,
                            answer_ms(mpi) / 2);
        return status;
    }
    for (int rank = 1; rank < mpi->base.size && own->kind != BARRIER; rank++)
        ra_reduce_fold((ra_number)own->kind, (ra_reduce)own->detail, &own->values,
                       &mpi->notes[rank].values, own->count);
    return send_answers(mpi, operation, -1, mpi->base.timeout_ms);
}

/* The part of every other rank: send the note; rank 0's comes back in its place. */
static ra_status attend(ra_mpi_comm *mpi, const char *operation)
{
    ra_mpi_note *const note = &mpi->notes[0], *const answer = &mpi->notes[1];
    int open;
    /* Rank 0's clock begins when it comes here, this one's up to a heartbeat's interval before. */
    int64_t const timeout_ms =
        mpi->base.timeout_ms + ra_beat_interval_ms(&mpi->base) + answer_ms(mpi);
    begin_requests(mpi, 2);
    int error = MPI_Irecv(answer, (int)sizeof(*answer), MPI_BYTE, 0, RA_TAG_ANSWER, mpi->handle,
                          &mpi->requests[0]);
    if (error == MPI_SUCCESS)
        error = MPI_Isend(note, note_bytes(note->count), MPI_BYTE, 0, RA_TAG_NOTE, mpi->handle,
                          &mpi->requests[1]);
    ra_status const status =
        wait_requests(mpi, operation, error, 2, timeout_ms, RA_PATIENCE_NONE, &open);
    if (status == RA_ERR_TIMEOUT)
        ra_comm_log_timeout(&mpi->base, operation, -1, 0);
    if (status != RA_OK)
        return status;
    if (answer->verdict == RA_VERDICT_MISSING) {
        ra_comm_log_timeout(&mpi->base, operation, -1, (int)answer->missing_rank);
        return RA_ERR_TIMEOUT;
    }
    if (answer->verdict != RA_VERDICT_OK)
        return RA_ERR_PEER; /* rank 0 has said why */
    *note = *answer;
    return RA_OK;
}

/* One round; mpi->notes[0].values go in and come out. */
static ra_status meet(ra_mpi_comm *mpi, const char *operation, int kind, int detail, int count)
{
    ra_mpi_note *const note = &mpi->notes[0];
    note->sequence = mpi->collective_sequence++;
    note->kind = kind;
    note->detail = detail;
    note->count = count;
    note->verdict = RA_VERDICT_OK;
    note->missing_rank = -1;
    if (mpi->base.size == 1)
        return RA_OK;
    return mpi->base.rank == 0 ? preside(mpi, operation) : attend(mpi, operation);
}

ra_status ra_mpi_barrier(ra_comm *comm, const char *operation)
{
    return meet((ra_mpi_comm *)comm, operation, BARRIER, 0, 0);
}

ra_status ra_mpi_reduce(ra_comm *comm, const char *operation, ra_number number, ra_reduce reduce,
                        void *values, int count)
{
    ra_mpi_comm *const mpi = (ra_mpi_comm *)comm;
    char *const at = values;
    for (int begin = 0; begin < count; begin += RA_NOTE_VALUES) {
        int const now = count - begin < RA_NOTE_VALUES ? count - begin : RA_NOTE_VALUES;
        size_t const bytes = (size_t)now * RA_NUMBER_BYTES;
        memcpy(&mpi->notes[0].values, at + (size_t)begin * RA_NUMBER_BYTES, bytes);
        ra_status const status = meet(mpi, operation, (int)number, (int)reduce, now);
        if (status != RA_OK)
            return status;
        memcpy(at + (size_t)begin * RA_NUMBER_BYTES, &mpi->notes[0].values, bytes);
    }
    return RA_OK;
}

/* ---- broadcast: from the root to each -------------------------------------------------------- */

/* Wait for the root's next piece, and see that it has the right length before it is received. */
static ra_status receive_piece(ra_mpi_comm *mpi, const char *operation, int root, char *data,
                               int bytes)
{
    int64_t const begin_ns = ra_clock_ns();
    int found_bytes = -1, open;
    for (;;) {
        int64_t const now_ns = ra_clock_ns();
        int const error = ra_mpi_receive(mpi, root, RA_TAG_BROADCAST, data, bytes, &found_bytes,
                                         &mpi->requests[0]);
        if (error != MPI_SUCCESS)
            return ra_mpi_fail(mpi, operation, -1, error);
        if (found_bytes >= 0)
            break;
        ra_mpi_progress(mpi); /* as above */
        if (ra_waited_ms(&mpi->base, begin_ns, now_ns) >= mpi->base.timeout_ms) {
            ra_comm_log_timeout(&mpi->base, operation, -1, root);
            return RA_ERR_TIMEOUT;
        }
        ra_mpi_pause(mpi, RA_PATIENCE_NONE, begin_ns, now_ns);
    }
    if (found_bytes != bytes) {
        ra_comm_log_disagreement(&mpi->base, operation, root);
        return RA_ERR_PEER;
    }
    ra_status const status = wait_requests(mpi, operation, MPI_SUCCESS, 1, mpi->base.timeout_ms,
                                           RA_PATIENCE_FLOW, &open);
    if (status == RA_ERR_TIMEOUT)
        ra_comm_log_timeout(&mpi->base, operation, -1, root);
    return status;
}

/* In pieces like those of a message: a shorter one, maybe empty, is the last. */
ra_status ra_mpi_broadcast(ra_comm *comm, const char *operation, int root, void *data, size_t bytes)
{
    ra_mpi_comm *const mpi = (ra_mpi_comm *)comm;
    char *const at = data;
    size_t const piece = mpi->piece_bytes;
    /* Broadcasts send no notes: the next note tells how many there were, and from whom. */
    mpi->collective_sequence += ((uint64_t)root + 1) << 32;
    for (size_t done = 0; done <= bytes; done += piece) {
        int const now = (int)(bytes - done < piece ? bytes - done : piece);
        ra_status const status =
            comm->rank == root
                ? send_all(mpi, operation, at + done, now, RA_TAG_BROADCAST, -1, comm->timeout_ms)
                : receive_piece(mpi, operation, root, at + done, now);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}
