/*
 * Exchanges of GPU memory: communicators whose messages lie on a device, made over one of host
 * memory (comm.h) that serves collectives, scans and agreement. No CUDA or NCCL type is in here; a
 * build without CUDA has the same functions and says so.
 *
 * They keep what comm.h promises, with these differences: messages lie in device memory; windows do
 * not exist; ra_comm_set_stream says what an exchange is ordered after. A rank whose exchange waits
 * for its own stream is at work and sends heartbeats (ra_comm_beat). If an exchange fails, all that
 * are in flight are aborted before the call returns; the log line of a timeout lists them, with
 * their start and progress.
 * SPDX-License-Identifier: BSD-3-Clause
 */
#ifndef RINGATTN_COMM_DEVICE_H
#define RINGATTN_COMM_DEVICE_H

#include "ringattn/comm.h"
#include "ringattn/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Collective. Choose this rank's GPU, for ra_device_use. Ranks of a host choose one after the
 * other: each, of the usable GPUs that it sees, the first that fewest before it have. So each gets
 * one of its own while there are enough, whether all see the same GPUs, each only its own, or some
 * these and some those. `sharers_out`: how many ranks got this GPU, identified by host and bus
 * address; `most_out`: how many got the one that most have. If hwloc knows which cores are near the
 * GPU, a process that is bound to others is warned, once.
 *
 * @return RA_ERR_UNSUPPORTED  no GPU is usable on some rank; why was logged there
 *         RA_ERR_NO_MEMORY    or what failed on another rank
 */
RA_CHECKED ra_status ra_comm_pick_device(ra_comm *host, int *index_out, int *sharers_out,
                                         int *most_out);

/* What a rank provides. */
typedef struct ra_comm_device {
    ra_memory memory;   /* of the GPU of ra_device_used, where messages lie; copied */
    ra_pool *pool;      /* of device memory, to which it is charged; borrowed until destroy */
    ra_pool *host_pool; /* of host memory, likewise */
} ra_comm_device;

/**
 * Collective over all ranks of `host`, which is borrowed until destroy: all fail, or none does.
 *
 * ra_comm_memory gives NCCL's own memory where it has some (2.26.5 and newer), in units of 2 MiB.
 * Messages go through NCCL on a stream of their own. Exchanges are carried out one after the other:
 * none may need a later one of its own rank to end. Each is one group of sends and receives; none
 * needs memory or waits on the host. Lengths travel over `host` beside them, so that a mismatch is
 * found where NCCL would only hang. Before this returns each pair of at most 16 ranks, else each
 * rank with those of its host, its neighbours and one of another host, has exchanged a message
 * under the deadline; others connect when they first meet. What NCCL took of the device meanwhile
 * is measured as the difference of free memory, and charged as context; none of it where ranks
 * share the GPU (ra_device_share). If the environment has NCCL_COMM_BLOCKING=1, NCCL's calls block,
 * without the deadline.
 *
 * @return RA_ERR_UNSUPPORTED  there is no NCCL (ra_nccl_describe) or no CUDA; ranks share a GPU,
 *                             which NCCL takes only where NCCL_HOSTID tells them apart
 *         RA_ERR_NCCL, RA_ERR_CUDA, RA_ERR_NO_MEMORY, RA_ERR_TIMEOUT, or what `host` failed with;
 *         a line was logged by the rank that failed
 */
RA_CHECKED ra_status ra_comm_create_nccl(ra_comm *host, const ra_comm_device *device,
                                         ra_comm **comm_out);

/**
 * The same without NCCL: messages go through pinned host memory and `host`, in pieces of at most
 * 4 MiB. While one piece travels, the next is copied from the device, and the one before to it.
 * Each message in flight has two pinned pieces, taken when they are first needed and kept until
 * destroy, charged to the host's pool as comm_buffer.
 */
RA_CHECKED ra_status ra_comm_create_staged(ra_comm *host, const ra_comm_device *device,
                                           ra_comm **comm_out);

/**
 * The same: through NCCL if every rank has it, in one version, and a GPU of its own, else staged.
 * Rank 0 logs why.
 */
RA_CHECKED ra_status ra_comm_create_device(ra_comm *host, const ra_comm_device *device,
                                           ra_comm **comm_out);

/* Blocks of ra_comm_memory over NCCL are whole units of this: granules of the driver. */
enum { RA_NCCL_UNIT_BYTES = 2 << 20 };

/** Whether communicators over the NCCL of this machine have such memory: 2.26.5 and newer. */
bool ra_nccl_has_memory(void);

/**
 * Describe this machine's NCCL: its version, or why there is none. It is loaded, not started.
 * @return whether there is one
 */
bool ra_nccl_describe(char *text, size_t bytes);
/** Its number, 22703 for 2.27.3; 0: there is none. */
int ra_nccl_version(void);

#ifdef __cplusplus
}
#endif
#endif
