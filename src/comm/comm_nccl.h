/* What comm_nccl.c and exchange_nccl.c share. */
#ifndef RINGATTN_COMM_NCCL_H
#define RINGATTN_COMM_NCCL_H

#include "device_comm.h"
#include "nccl_library.h"

typedef enum ra_nccl_phase {
    RA_NCCL_POSTED,    /* waits for those before it to be launched */
    RA_NCCL_LAUNCHING, /* NCCL has it, and has not put all of it on the stream */
    RA_NCCL_RUNNING,   /* on the stream, with our event behind it */
    RA_NCCL_DONE
} ra_nccl_phase;

typedef struct ra_nccl_transfer {
    ra_device_transfer base;
    ra_nccl_phase phase;
    cudaEvent_t done;
    ra_lengths lengths;
} ra_nccl_transfer;

/* A block of ra_comm_memory. */
typedef struct ra_nccl_block {
    struct ra_nccl_block *next;
    void *data;
    void *handle; /* of its registration */
} ra_nccl_block;

typedef struct ra_nccl_comm {
    ra_device_comm base;
    const ra_nccl *api;
    ncclComm_t handle; /* NULL: there is none yet, or it was aborted */
    cudaStream_t stream;
    ra_nccl_transfer transfers[RA_TRANSFER_MAX];
    void *first_bytes; /* of the device, for first messages; NULL: they are over */
    ra_nccl_block *blocks;
    int64_t charged_bytes; /* of the device, as measured */
} ra_nccl_comm;

/**
 * Ask NCCL's communicator for its state.
 *
 * @return RA_OK and whether it is still at work on what it was asked for last
 *         RA_ERR_NCCL  logged
 */
RA_CHECKED ra_status ra_nccl_look(ra_nccl_comm *nccl, const char *operation, int step,
                                  bool *busy_out);
/**
 * Log an NCCL error with NCCL's own words, or, where it comes of a lost GPU, what that one says, if
 * it was not said yet.
 * @return RA_ERR_NCCL
 */
RA_CHECKED ra_status ra_nccl_fail(const ra_nccl_comm *nccl, const char *operation, int step,
                                  ncclResult_t error);

/** One warning for an error that does not fail the job, unless a lost GPU is the cause. */
void ra_nccl_warn(const ra_nccl_comm *nccl, ncclResult_t error, const char *what);

/** Wait, under the deadline, until NCCL is not busy any more. */
RA_CHECKED ra_status ra_nccl_wait_idle(ra_nccl_comm *nccl, const char *operation);

/** Whether one rank sends another a message before the communicator is made. */
bool ra_nccl_meets_first(const ra_comm *comm, int from, int to);

/* A call of NCCL that waits for other ranks. */
typedef ncclResult_t ra_nccl_call(const ra_nccl *api, ncclComm_t handle, void *argument);

/**
 * Make such a call, under the deadline, or, if the host's communicator is broken, too, within 2 s.
 * If that time passes, the call goes on in a thread, and the GPU is lost (ra_device_is_lost):
 * nothing of the process may wait for it any more, not even at its end.
 * @param what  "ending its communicator"
 * @return what NCCL returned; ncclSuccess: or it has not, which was said
 */
ncclResult_t ra_nccl_call_last(ra_nccl_comm *nccl, const char *what, ra_nccl_call *call,
                               ncclComm_t handle, void *argument);

/** See ra_comm_memory. */
bool ra_nccl_memory(ra_comm *comm, ra_memory *memory_out);

ra_status ra_nccl_start(ra_comm *comm, const ra_exchange *exchange, ra_transfer **transfer_out);
int ra_nccl_missing_peer(ra_comm *comm, ra_transfer *transfer);
void ra_nccl_progress(ra_device_comm *comm);

#endif
