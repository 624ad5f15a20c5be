/* What comm_mpi.c, exchange_mpi.c and collective_mpi.c share. */
#ifndef RINGATTN_COMM_MPI_H
#define RINGATTN_COMM_MPI_H

#include "comm_internal.h"

#include <mpi.h>

/* Tags: collectives use the first three, heartbeats the next, message s of a pair uses the s-th
 * of the others, round. */
enum { RA_TAG_NOTE, RA_TAG_ANSWER, RA_TAG_BROADCAST, RA_TAG_BEAT, RA_TAG_MESSAGES };

/*
 * One message of an exchange. It goes as pieces, one in flight at a time: full ones of
 * piece_bytes, then a shorter one, which may be empty. So the receiver sees any difference in
 * length as a piece of the wrong length, and never waits for a piece that nobody sends.
 *
 * A receive is posted when its piece is there and has the right length (a matched probe), because
 * MPI_ERR_TRUNCATE comes too late: Open MPI 4.1.4 has by then written beyond the buffer (seen with
 * shared memory, from 6,000 bytes on). This costs nothing: no byte moves before MPI is entered
 * anyway.
 */
typedef struct ra_mpi_message {
    char *data;
    size_t bytes, done_bytes;
    int piece_bytes; /* in flight */
    int peer, tag;
    bool is_send, done;
    MPI_Request request; /* MPI_REQUEST_NULL: no piece is in flight */
} ra_mpi_message;

typedef struct ra_mpi_transfer {
    ra_transfer base;
    ra_status status; /* of what polling found */
    ra_mpi_message send, recv;
} ra_mpi_transfer;

enum { RA_NOTE_VALUES = 64 };

enum { RA_VERDICT_OK, RA_VERDICT_MISSING, RA_VERDICT_REFUSED }; /* of a note */

/* What travels in a barrier or reduction: to rank 0 and back. */
typedef struct ra_mpi_note {
    uint64_t sequence; /* of collectives of this communicator */
    int32_t kind, detail, count;
    int32_t verdict; /* rank 0's answer */
    int64_t missing_rank;
    union {
        int64_t i64[RA_NOTE_VALUES];
        double f64[RA_NOTE_VALUES];
    } values;
} ra_mpi_note;

RA_STATIC_ASSERT(sizeof(ra_mpi_note) == 32 + 8 * RA_NOTE_VALUES, "notes cross the wire");

typedef struct ra_mpi_comm {
    ra_comm base;
    MPI_Comm handle;
    bool is_joining; /* MPI has yet to write the handle */
    bool owns_mpi;
    int *hosts;                             /* [size], of all ranks */
    int tag_count;                          /* tags for messages, from RA_TAG_MESSAGES on */
    size_t piece_bytes;                     /* at most INT_MAX */
    int64_t *send_sequence, *recv_sequence; /* [size] messages posted to and from each rank */
    ra_mpi_transfer transfers[RA_TRANSFER_MAX];
    int64_t listened_ns;  /* when heartbeats were last looked for */
    int64_t beats_sent;   /* to each of the others */
    bool beats_refused;   /* by MPI: not every other got each of them */
    int64_t *beats_heard; /* [size] */
    uint64_t collective_sequence;
    /* Scratch for collectives: one per rank on rank 0 and on the root of a broadcast. */
    MPI_Request *requests; /* [size] */
    MPI_Status *statuses;  /* [size] */
    int *indices;          /* [size] */
    ra_mpi_note *notes;    /* [size] on rank 0; else its own and rank 0's answer */
} ra_mpi_comm;

/**
 * Look for a piece from `peer`, and receive it into `data` if it has `bytes` bytes.
 * *bytes_out: its length, or -1 where there is none yet; *request_out: of the receive, if begun.
 *
 * @return MPI's error code
 */
int ra_mpi_receive(ra_mpi_comm *mpi, int peer, int tag, void *data, int bytes, int *bytes_out,
                   MPI_Request *request_out);

/** Log an MPI error with MPI's own words. @return RA_ERR_MPI */
ra_status ra_mpi_fail(const ra_mpi_comm *mpi, const char *operation, int step, int error);

/** Let every transfer in flight progress; what fails is kept in the transfer. */
void ra_mpi_progress(ra_mpi_comm *mpi);

/**
 * Collective, at the end: receive every heartbeat that was sent. One that outlived the communicator
 * would meet the next that MPI gives the same number, maybe the caller's own.
 */
RA_CHECKED ra_status ra_mpi_hear_all(ra_mpi_comm *mpi, const char *operation);

/* How long a wait yields before it begins to sleep. */
#define RA_PATIENCE_NONE INT64_C(0)         /* nobody has begun to send to us */
#define RA_PATIENCE_SEND INT64_C(200000000) /* a send may be flowing, or wait for its receiver */
#define RA_PATIENCE_FLOW (INT64_MAX / 2)    /* a receive is flowing: fragments need us at once */

/**
 * Between two looks at something that has not happened yet, in a wait that began at `begin_ns`.
 * Yields the core at first. A wait that has outlasted the patience of everything in flight sleeps
 * between looks, for a 64th of its length but never long: neither a core nor much time is lost.
 */
void ra_mpi_pause(const ra_mpi_comm *mpi, int64_t patience_ns, int64_t begin_ns, int64_t now_ns);

ra_status ra_mpi_start(ra_comm *comm, const ra_exchange *exchange, ra_transfer **transfer_out);
void ra_mpi_poll(ra_comm *comm);
void ra_mpi_beat(ra_comm *comm);
ra_status ra_mpi_wait(ra_comm *comm, ra_transfer *transfer);
int ra_mpi_missing_peer(ra_comm *comm, ra_transfer *transfer);
ra_status ra_mpi_look(ra_comm *comm);
void ra_mpi_drop(ra_comm *comm);

ra_status ra_mpi_barrier(ra_comm *comm, const char *operation);
ra_status ra_mpi_broadcast(ra_comm *comm, const char *operation, int root, void *data,
                           size_t bytes);
ra_status ra_mpi_reduce(ra_comm *comm, const char *operation, ra_number number, ra_reduce reduce,
                        void *values, int count);

#endif
