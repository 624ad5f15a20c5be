/*
 * GPUs: which there are, and memory on them. No CUDA type is in here; a build without CUDA has the
 * same functions and says so.
 *
 * SPDX-License-Identifier: BSD-3-Clause
 */
#ifndef RINGATTN_DEVICE_H
#define RINGATTN_DEVICE_H

#include "ringattn/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { RA_DEVICES_MAX = 64, RA_DEVICE_MAJOR_MIN = 8 /* compute capability 8.0 */ };

typedef struct ra_device {
    char name[64];
    char bus_id[16];      /* "0000:3b:00.0" */
    int32_t major, minor; /* compute capability */
    int32_t multiprocessors;
    int32_t clock_khz; /* the highest that the driver reports; 0: none */
    int64_t memory_bytes;
    int64_t shared_bytes; /* most shared memory that a block may ask for */
    bool usable; /* it could be read (else nothing here is known), its compute capability is high
                    enough, and its compute mode not Prohibited */
} ra_device;

typedef struct ra_devices {
    int count;           /* of `list`: those beyond RA_DEVICES_MAX are left out */
    int usable_count;    /* of these */
    int driver_version;  /* newest CUDA it serves, 13000 for 13.0; 0: there is no driver */
    int runtime_version; /* of the CUDA runtime in this build; 0: built without CUDA */
    char why_not[240];   /* one sentence if usable_count is 0; else "" */
    ra_device list[RA_DEVICES_MAX];
} ra_devices;

/**
 * Look for GPUs. Nothing is logged: to find none is an answer, explained in why_not. If there is a
 * driver, the first call starts it, which takes up to seconds; no context is made.
 */
void ra_devices_read(ra_devices *devices_out);

/** Index of the first usable GPU; 0 if none is. */
static inline int ra_devices_first(const ra_devices *devices)
{
    for (int i = 0; i < devices->count; i++)
        if (devices->list[i].usable)
            return i;
    return 0;
}

/**
 * Make `index` the GPU of this process, for all its threads; without a call it is GPU 0. Not to be
 * called by two threads at once, nor while anybody uses what belongs to the GPU before.
 *
 * @return RA_ERR_UNSUPPORTED  there is no such GPU or none at all, it is not usable, or this build
 *                             has no CUDA
 *         RA_ERR_NO_MEMORY    the device has no room for the context
 *         RA_ERR_CUDA         the driver failed, as it does if another process has taken a GPU in
 *                             compute mode Exclusive_Process; in any case one line was logged,
 *                             nothing changed
 */
RA_CHECKED ra_status ra_device_use(int index);
/** The index that ra_device_use was given last, or 0. */
int ra_device_used(void);

/**
 * Mark the process's GPU as lost: it hangs, or has had a sticky error, which every later call would
 * return. The library does so when it notices, logs one line, and then nothing more about it. Calls
 * that need the GPU fail; its memory, streams and communicators are leaked, because freeing them
 * would block. If a call fails and the GPU is lost, the caller destroys what it has made, in the
 * usual order (which returns at once), and leaves by _exit, because the driver would block in exit
 * too. Thread-safe; there is no way back.
 *
 * @return true for the first caller, who logs the reason
 */
bool ra_device_lose(void);
bool ra_device_is_lost(void);

/** Say whether other ranks of the job use this process's GPU too; the default is false. */
void ra_device_share(bool shared);

/**
 * Bytes in use on this process's GPU, by anyone: total less free. Just after ra_device_use this is
 * the process's context, plus what other processes hold there, which the runtime cannot tell apart.
 * Category `context` is charged with it, in the command with 1 GiB at most, beyond which it is not
 * the context's, and with what libraries add when they begin. If ranks share the GPU
 * (ra_device_share), nobody can tell whose bytes they are: this is 0, and no rank is charged.
 *
 * @return RA_ERR_UNSUPPORTED, RA_ERR_NO_MEMORY or RA_ERR_CUDA; one line was logged
 */
RA_CHECKED ra_status ra_device_taken(int64_t *bytes_out);

/**
 * Memory of GPU `index`. Blocks below 2 MiB are rounded up to 512 bytes, others to 2 MiB;
 * `available` is what the device has free. It is stream-ordered (events), so a pool with
 * RA_POOL_SIZE_CLASS may reuse a block on another stream. Every call makes the device the calling
 * thread's current one.
 *
 * @return RA_ERR_UNSUPPORTED  there is no such GPU, no GPU at all, or this build has no CUDA
 *         RA_ERR_NO_MEMORY    the device has no room for the context
 *         RA_ERR_CUDA         the driver failed; in any case one line was logged
 */
RA_CHECKED ra_status ra_memory_device(int index, ra_memory *memory_out);

/**
 * Host memory that GPUs read and write directly, in whole pages; `available` is that of
 * ra_memory_host. It belongs to the GPU of ra_device_used. Stream order and errors as for
 * ra_memory_device.
 */
RA_CHECKED ra_status ra_memory_pinned(ra_memory *memory_out);

#ifdef __cplusplus
}
#endif
#endif
