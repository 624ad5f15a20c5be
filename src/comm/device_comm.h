/* Common to communicators of GPUs: the host's side, transfers, events, waiting, log lines. */
#ifndef RINGATTN_SRC_DEVICE_COMM_H
#define RINGATTN_SRC_DEVICE_COMM_H

#include "device_place.h"
#include "pool/cuda_error.h"

#include <cuda_runtime_api.h>

/* The head of a transfer. */
typedef struct ra_device_transfer {
    ra_transfer base;
    ra_status status;  /* of what polling found; it has been logged */
    const char *phase; /* for the flight record */
    bool over;
    bool is_ready;     /* our stream has come to where the exchange was started */
    bool is_behind;    /* at the last look it had not: our own GPU is at work */
    cudaEvent_t ready; /* recorded there */
    int64_t number, begun_ns;
    ra_timed timed; /* as it was when the exchange was started */
    int32_t span;
    ra_message send, recv;
} ra_device_transfer;

typedef struct ra_device_comm ra_device_comm;

struct ra_device_comm {
    ra_comm base;
    ra_comm_device device;
    ra_device_transfer *transfers[RA_TRANSFER_MAX]; /* the maker's */
    int64_t transfer_count;
    bool takes_multiprocessors; /* messages do, so that they may wait for a kernel of ours to end */
    /* Let every transfer progress without waiting; what fails is kept in the transfer. */
    void (*progress)(ra_device_comm *comm);
};

/** Fill the head; its events are made by ra_device_events_create. */
void ra_device_init(ra_device_comm *comm, const ra_comm_ops *ops, ra_comm *host,
                    const ra_comm_device *device);
/** Make the events of `transfers`, which are set and zero. What fails is logged. */
RA_CHECKED ra_status ra_device_events_create(ra_device_comm *comm);
void ra_device_events_destroy(ra_device_comm *comm);
/** Collective: whether two ranks use one GPU, and one host by NCCL's reckoning. */
RA_CHECKED ra_status ra_device_find_shared(ra_comm *host, bool *shared_out);

/** Copy an exchange into a free transfer and record its event. What fails is logged. */
RA_CHECKED ra_status ra_device_take(ra_device_comm *comm, const ra_exchange *exchange,
                                    ra_device_transfer **transfer_out);
/**
 * Who a transfer waits for; -1: nobody. `travelling`: its messages over the host's communicator, if
 * there are any now, and else NULL.
 */
int ra_device_missing_peer(ra_device_comm *comm, const ra_device_transfer *transfer,
                           ra_transfer *travelling);
/** The transfer in flight that began first (0) or second (1); NULL: there is none. */
ra_device_transfer *ra_device_in_flight(const ra_device_comm *comm, int which);
/** The transfer's span, if it is timed: begins, and ends, behind what is on a stream. */
void ra_device_time_begin(ra_device_transfer *transfer, cudaStream_t stream);
void ra_device_time_end(ra_device_transfer *transfer, cudaStream_t stream);
/** Whether our stream has come to the transfer; until then, if it is watched, sends heartbeats. */
RA_CHECKED ra_status ra_device_look_ready(ra_device_comm *comm, ra_device_transfer *transfer);

/**
 * The status of a CUDA error, logged with the transfer; NULL: with the communicator's `operation`.
 */
RA_CHECKED ra_status ra_device_status(const ra_device_comm *comm,
                                      const ra_device_transfer *transfer, const char *operation,
                                      cudaError_t error);
/** "; in flight: ..." of all transfers, cut to `bytes`. Returns `text`. */
const char *ra_device_record(const ra_device_comm *comm, char *text, size_t bytes);
/**
 * Wait, with heartbeats, for a stream that ends by itself unless the GPU hangs: to be called before
 * a call that would wait for it without a deadline. Who gives up all the same need not ask:
 * @return what the watch has said; RA_ERR_TIMEOUT if the GPU is lost, as it is without a watch once
 *         the deadline has passed
 */
ra_status ra_device_end_stream(ra_device_comm *comm, cudaStream_t stream);

/* As ra_comm_ops has them. */
ra_status ra_device_wait(ra_comm *comm, ra_transfer *transfer);
ra_status ra_device_drain(ra_comm *comm);
void ra_device_poll(ra_comm *comm);

/* ---- lengths: they travel over the host's communicator beside each message ------------------- */

typedef struct ra_lengths {
    ra_transfer *transfer; /* NULL: over */
    int64_t sent_bytes, received_bytes;
} ra_lengths;

/** Post the lengths of a transfer's messages. */
RA_CHECKED ra_status ra_lengths_start(ra_device_comm *comm, const ra_device_transfer *transfer,
                                      ra_lengths *lengths);
/** Look whether they have come, and then compare them: a mismatch is logged, RA_ERR_PEER. */
RA_CHECKED ra_status ra_lengths_look(ra_device_comm *comm, const ra_device_transfer *transfer,
                                     ra_lengths *lengths);

#endif
