/*
 * How bytes move: one table of operations, several makers (self, local, mpi; for memory of GPUs
 * nccl and staged, see comm_device.h).
 *
 * A communicator belongs to one rank and is used by one thread at a time. All ranks make the same
 * sequence of collective calls; exchanges are matched pair by pair in the order they are posted.
 * Every message carries a sequence number, every wait has the communicator's deadline. The deadline
 * counts from the last heartbeat (ra_comm_beat) of any other rank, so a rank that computes for long
 * is not taken for lost, and ranks that only wait for each other still time out. Where the waiting
 * rank itself stood still, as in a job that was suspended, that counts as an eighth of the deadline
 * at most: others may have stood still, too. A wait that passes the deadline logs rank, host, step,
 * peer and operation, and returns RA_ERR_TIMEOUT; from then on the communicator is broken and every
 * call returns RA_ERR_PEER in silence. A thread that has waited for long has a timer slack of 1 us
 * from then on (PR_SET_TIMERSLACK of Linux).
 * SPDX-License-Identifier: BSD-3-Clause
 */
#ifndef RINGATTN_COMM_H
#define RINGATTN_COMM_H

#include "ringattn/timeline.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ra_comm ra_comm;
typedef struct ra_transfer ra_transfer;
typedef struct ra_memory ra_memory; /* pool.h */

/* One contiguous piece of memory to or from one peer. Zero bytes: the message does not exist. */
typedef struct ra_message {
    int peer;
    void *data; /* borrowed until the exchange has been waited for; a send only reads it */
    size_t bytes;
} ra_message;

/* A send and a receive that are posted together and waited for together. */
typedef struct ra_exchange {
    const char *operation; /* static text for errors: "forward keys and values" */
    int step;              /* for errors; -1: not in a step */
    ra_message send, recv;
} ra_exchange;

typedef enum ra_reduce { RA_SUM, RA_MIN, RA_MAX } ra_reduce;

typedef struct ra_comm_stats {
    int64_t sent_bytes, sent_messages; /* exchanges only, counted where messages are posted */
    int64_t received_bytes;
    double wait_ms; /* time spent in ra_comm_wait and ra_window_barrier */
} ra_comm_stats;

int ra_comm_rank(const ra_comm *comm);
int ra_comm_size(const ra_comm *comm);
/** "self", "local", "mpi", "nccl" or "staged". */
const char *ra_comm_name(const ra_comm *comm);
/** Name of this rank's host; borrowed. */
const char *ra_comm_host(const ra_comm *comm);
/** A hash of host name and boot, so that two machines of one name are told apart. */
int64_t ra_comm_host_id(const ra_comm *comm);
/** Ranks on this rank's host, itself included; at least 1. */
int ra_comm_local_size(const ra_comm *comm);
/** [size] the host of each rank; hosts count from 0 in the order of their first ranks. Borrowed. */
const int *ra_comm_hosts(const ra_comm *comm);
/** The deadline of its waits. */
int64_t ra_comm_timeout_ms(const ra_comm *comm);
/** Whether an operation has failed, or ra_comm_abort was called: nothing is tried any more. */
bool ra_comm_is_broken(const ra_comm *comm);
void ra_comm_read_stats(const ra_comm *comm, ra_comm_stats *stats_out);
/** Set the counters of ra_comm_read_stats to zero. */
void ra_comm_reset_stats(ra_comm *comm);

/**
 * Post an exchange, which is copied; returns at once, over NCCL within a millisecond or so. Between
 * GPUs through the host, an exchange that needs more pinned memory than those before it first waits
 * for the stream of ra_comm_set_stream. At most two may be in flight. Sizes must agree on both
 * sides: a mismatch is found and reported as RA_ERR_PEER by the receiver, in the wait. Messages of
 * any length (beyond 2 GiB too). A peer may be the rank itself.
 *
 * @return RA_OK             and a transfer that must be waited for; else nothing was posted
 *         RA_ERR_PEER       another rank failed, or the communicator is broken; not logged here
 *         RA_ERR_MPI, RA_ERR_NCCL, RA_ERR_CUDA  what carries the bytes failed
 *         RA_ERR_NO_MEMORY, RA_ERR_TIMEOUT  between GPUs through the host: there is no more pinned
 *                           memory; or this rank's GPU hangs
 */
RA_CHECKED ra_status ra_comm_start(ra_comm *comm, const ra_exchange *exchange,
                                   ra_transfer **transfer_out);
/** Let transfers progress without waiting; cheap enough to call between tiles. */
void ra_comm_poll(ra_comm *comm);
/**
 * Heartbeat: tell the others that this rank is at work. To be called often (between tiles) by ranks
 * that compute while others may wait. Sends next to nothing, a few times per deadline. NULL: there
 * are no others.
 */
void ra_comm_beat(ra_comm *comm);
/**
 * Wait until done or until the deadline; the transfer is gone in either case. NULL: RA_OK.
 * @return RA_ERR_TIMEOUT or as ra_comm_start; the communicator is broken then
 */
RA_CHECKED ra_status ra_comm_wait(ra_comm *comm, ra_transfer *transfer);
/** Start an exchange and wait for it. */
RA_CHECKED ra_status ra_comm_exchange(ra_comm *comm, const ra_exchange *exchange);
/**
 * Let a transfer progress, without waiting. @return -1: it is done, ra_comm_wait would return at
 * once; else the late peer: one that has not sent, or, if all was received, not received
 */
int ra_comm_missing_peer(ra_comm *comm, ra_transfer *transfer);

/**
 * The communicator whose messages lie in host memory: `comm` itself, or the one below a
 * communicator of GPUs; borrowed. Collectives and scans take host memory on either.
 */
ra_comm *ra_comm_of_host(ra_comm *comm);
/**
 * Set the GPU stream whose work uses the buffers of exchanges. An exchange begins after the work
 * that is on the stream when it is started; work enqueued after ra_comm_wait has returned sees the
 * messages. NULL (the default): the device's default stream. No effect on communicators of host
 * memory.
 */
void ra_comm_set_stream(ra_comm *comm, ra_stream *stream);
/**
 * Time later exchanges on the device: each becomes an interval of `timed`, from when it could begin
 * until its last message was through. {0} (the default): none. No effect on communicators of host
 * memory.
 */
void ra_comm_time(ra_comm *comm, ra_timed timed);

/**
 * Memory that the transport prefers for standing buffers (NCCL: registered, which saves a copy).
 * All ranks get the same answer; false: no preference. Valid until destroy, even when the
 * communicator is broken. It is not stream-ordered: free a block only when no stream uses it any
 * more.
 */
bool ra_comm_memory(ra_comm *comm, ra_memory *memory_out);

/**
 * A watchdog for this rank's own GPU. While an exchange waits for work that was enqueued before it
 * on the rank's stream, no deadline runs; `watch` is called now and then instead. RA_OK: the GPU
 * makes progress, wait on. Any other status ends the wait, and has been logged. NULL: none, and the
 * deadline runs as for others.
 */
typedef ra_status ra_comm_watch(void *context);
void ra_comm_set_watch(ra_comm *comm, ra_comm_watch *watch, void *context);

/*
 * Collectives, each under the deadline; done when they return. `operation`, for errors, is not
 * kept. Exchanges of host memory progress meanwhile. Those between GPUs need not: a rank
 * that others wait for before they come to a collective waits for its exchanges first.
 *
 * Errors of all, and of windows and scans, which break the communicator:
 *     RA_ERR_TIMEOUT  a rank did not come before the deadline
 *     RA_ERR_PEER     a rank failed, or called another collective; the communicator was broken.
 *                     Over MPI, who meets a broadcast by another one waits for the deadline
 *     RA_ERR_MPI      MPI failed
 *     RA_ERR_CUDA     scans between GPUs: an exchange in flight failed
 * What a collective or scan writes is undefined after a failure.
 */
RA_CHECKED ra_status ra_comm_barrier(ra_comm *comm, const char *operation);
RA_CHECKED ra_status ra_comm_broadcast(ra_comm *comm, const char *operation, int root, void *data,
                                       size_t bytes);
/** By all ranks: `data`, at most 64 bytes, becomes that of the first rank of this rank's host. */
RA_CHECKED ra_status ra_comm_broadcast_by_host(ra_comm *comm, const char *operation, void *data,
                                               size_t bytes);
/** In place, element by element; the result is the same, bit for bit, on every rank. */
RA_CHECKED ra_status ra_comm_reduce_i64(ra_comm *comm, const char *operation, ra_reduce reduce,
                                        int64_t *values, int count);
RA_CHECKED ra_status ra_comm_reduce_f64(ra_comm *comm, const char *operation, ra_reduce reduce,
                                        double *values, int count);
/** @param all_out  [size][count], from each rank */
RA_CHECKED ra_status ra_comm_allgather_i64(ra_comm *comm, const char *operation, const int64_t *own,
                                           int count, int64_t *all_out);
/**
 * Agree on what became of all ranks.
 * @param mine  this rank's status; a failure has been logged
 * @return      the worst (the largest) of all ranks, the same on every rank; if the agreement
 * itself fails, `mine` if that is a failure, else why
 */
RA_CHECKED ra_status ra_comm_agree(ra_comm *comm, const char *operation, ra_status mine);

typedef enum ra_scan { RA_SCAN_UP, RA_SCAN_DOWN } ra_scan;

/**
 * Exclusive scan: the sum over the ranks below this one (up), or above it (down), element by
 * element; zero if there is none. Values are added in rank order from the far end, so repeats agree
 * bit for bit: the result of rank r, plus its own, is what rank r + 1 (r - 1) gets.
 *
 * It is a chain of exchanges in pieces (counted by ra_comm_read_stats) and takes the time of about
 * bytes + ranks * 32 KiB on one link; makers need no table entry for it. MPI_Exscan is not used: it
 * has no deadline, and MPI may add in any order. MPI_Iexscan could be polled until our deadline,
 * but could not say which rank is missing.
 *
 * `own` is read, `before_out` is written, both [count]; they must not overlap. On failure the
 * contents of before_out are undefined. At most one exchange may be in flight.
 */
RA_CHECKED ra_status ra_comm_exscan_f32(ra_comm *comm, const char *operation, ra_scan scan,
                                        const float *own, float *before_out, int64_t count);

/**
 * Tell the other ranks that this one gives up: their waits return RA_ERR_PEER instead of running
 * to the deadline. Under MPI this ends the job (MPI_Abort) with `exit_code` and does not return.
 */
void ra_comm_abort(ra_comm *comm, int exit_code);

/**
 * No transfer may be in flight, unless the communicator is broken. Over MPI collective: the ranks
 * wait for each other under the deadline, unless theirs is broken. NULL is fine.
 */
void ra_comm_destroy(ra_comm *comm);

/* ---- makers -------------------------------------------------------------------------------- */

/** One rank, no peers but itself. @param timeout_ms at least 1. @return RA_ERR_NO_MEMORY */
RA_CHECKED ra_status ra_comm_create_self(int64_t timeout_ms, ra_comm **comm_out);

/**
 * `ranks` communicators of one process, one per thread, for tests: comms_out[r] is rank r's.
 * Each is destroyed by itself, in any order. Their deadlines go by the clock, whoever stood still.
 *
 * @param hosts  as if ranks were on several: as ra_comm_hosts gives them, copied; NULL: on one
 * @return RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_comm_create_local(int ranks, const int *hosts, int64_t timeout_ms,
                                          ra_comm **comms_out);

/**
 * All ranks of MPI_COMM_WORLD (duplicated). If MPI is not yet initialised, this does so with
 * MPI_THREAD_FUNNELED, and destroy finalises it, unless the communicator is broken. Neither
 * MPI_Init_thread nor MPI_Finalize has a deadline. argc and argv may be NULL.
 *
 * MPI cannot call off a message that has begun. After a failure nothing here enters MPI again, so
 * that nothing is written to the buffers of exchanges; a caller who does so keeps them, and what is
 * made over this communicator (rings, communicators of GPUs), until its process ends. And where
 * ranks share memory, a late one may still read what was being sent: it gets what lies there then,
 * and RA_OK. So what came counts when ra_comm_agree has said that all went well.
 *
 * Where a rank did not come in time, MPI may be left with a duplicate that is half made, of which
 * MPI_Finalize of Open MPI 4.1.4 can die: a caller whose MPI it is ends with MPI_Abort then.
 *
 * @return RA_ERR_UNSUPPORTED  this build has no MPI (ra_comm_has_mpi)
 *         RA_ERR_MPI          MPI failed, was finalised before, or lets no thread call it
 *         RA_ERR_NO_MEMORY
 *         or as collectives: a rank did not come
 */
RA_CHECKED ra_status ra_comm_create_mpi(int *argc, char ***argv, int64_t timeout_ms,
                                        ra_comm **comm_out);
/** Change the deadline of later waits, also of the communicator that this one was made over. */
void ra_comm_set_timeout(ra_comm *comm, int64_t timeout_ms);
/** Whether this build has MPI. */
bool ra_comm_has_mpi(void);

/* ---- windows: memory that all ranks of a host reach ------------------------------------------ */

typedef struct ra_meeting ra_meeting; /* the barrier of a window */

/* The same bytes, at an address of each rank's own; {0} is no window. */
typedef struct ra_window {
    void *data;
    size_t bytes;
    ra_meeting *meeting; /* where the ranks wait for each other; in the window too */
    int member_count;    /* ranks of this host */
} ra_window;

/**
 * Collective over all ranks: one window per host, of `bytes` (>= 1, the same on every rank of a
 * host) of zeroed memory, reserved when this returns, so that using it cannot fail. Every rank
 * returns the same status.
 *
 * The window is an anonymous file (memfd) of the host's first rank, which the others open through
 * /proc: it leaves no name behind and needs no /dev/shm. MPI_Win_allocate_shared has no deadline
 * and hangs if /dev/shm is short.
 *
 * @return RA_ERR_NO_MEMORY    a host has not that much memory; logged by its first rank
 *         RA_ERR_UNSUPPORTED  ranks of a host may not see each other's files (containers of their
 *                             own), or messages lie in memory of GPUs: not logged, as there are
 *                             other ways; or the system forbids such a file (RLIMIT_FSIZE), or to
 *                             map it (RLIMIT_AS), which a warning says
 */
RA_CHECKED ra_status ra_window_create(ra_comm *comm, size_t bytes, ra_window *window_out);
/** Unmap; the memory lives until the last rank has. {0} is fine. */
void ra_window_destroy(ra_window *window);
/**
 * Wait, under the deadline, until every rank of this host is here: what each wrote to host memory
 * before, all see after. Sends no message. While others are late a rank sleeps, so that they can
 * use its core; its transfers progress. Counts as waiting (ra_comm_stats.wait_ms).
 * @param step  for errors; -1: not in a step
 */
RA_CHECKED ra_status ra_window_barrier(ra_comm *comm, const ra_window *window,
                                       const char *operation, int step);

#ifdef __cplusplus
}
#endif
#endif
