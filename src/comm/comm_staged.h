/* What comm_staged.c and exchange_staged.c share. */
#ifndef RINGATTN_COMM_STAGED_H
#define RINGATTN_COMM_STAGED_H

#include "device_comm.h"

/* A piece of pinned memory, and the last copy out of it or into it. */
typedef struct ra_staged_slot {
    char *data;
    size_t bytes; /* charged */
    cudaEvent_t copied;
} ra_staged_slot;

/* Piece i of a message lies in slot i % 2. Counts of pieces: each trails the one before. */
typedef struct ra_staged_message {
    int64_t pieces;
    int64_t read;   /* of a send: copies from the device begun */
    int64_t posted; /* handed to the host's communicator */
    int64_t passed; /* through it; of a receive, copies to the device begun */
    ra_staged_slot slots[2];
} ra_staged_message;

typedef struct ra_staged_transfer {
    ra_device_transfer base;
    ra_lengths lengths;
    bool lengths_posted, begun; /* begun: the first piece may go */
    ra_transfer *round;         /* pieces that travel: the next of each message; NULL: none do */
    ra_staged_message send, recv;
} ra_staged_transfer;

typedef struct ra_staged_comm {
    ra_device_comm base;
    ra_memory pinned;
    size_t piece_bytes;
    cudaStream_t out, in; /* from the device and to it: both ways at once */
    ra_staged_transfer transfers[RA_TRANSFER_MAX];
} ra_staged_comm;

/** Take the slots that the message's pieces need and does not have yet; a failure is logged. */
RA_CHECKED ra_status ra_staged_take_slots(ra_staged_comm *staged, ra_staged_message *message,
                                          size_t bytes);

ra_status ra_staged_start(ra_comm *comm, const ra_exchange *exchange, ra_transfer **transfer_out);
int ra_staged_missing_peer(ra_comm *comm, ra_transfer *transfer);
void ra_staged_progress(ra_device_comm *comm);

#endif
