/*
 * Where bytes live: the ledger, memory sources, and the pool that serves requests from them.
 *
 * Every allocation names a category. The ledger knows the current and peak bytes and the number of
 * allocations of each, and the whole composition at the moment of the peak. Always:
 *     sum of categories = reserved,   reserved - pool_idle = allocated,
 * and host memory is touched when it is taken, so that reserved <= resident set.
 * SPDX-License-Identifier: BSD-3-Clause
 */
#ifndef RINGATTN_POOL_H
#define RINGATTN_POOL_H

#include "ringattn/status.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- ledger ------------------------------------------------------------------------------- */

typedef enum ra_category {
    RA_MEM_QKV,           /* q, k, v and do as given by the caller */
    RA_MEM_OUTPUT,        /* o */
    RA_MEM_LSE,           /* log-sum-exp per row and head */
    RA_MEM_GRADS,         /* dq, dk, dv */
    RA_MEM_ACCUMULATOR,   /* float32 state carried over ring steps; gradient accumulators; delta */
    RA_MEM_WORKSPACE,     /* scratch of kernels; does not grow with the sequence */
    RA_MEM_TILEMAP,       /* slices, row sets, tile maps */
    RA_MEM_PATTERN_CACHE, /* tile maps kept for later use */
    RA_MEM_POOL_IDLE,     /* held by the pool, used by nobody */
    RA_MEM_COMM_BUFFER,   /* packed keys, values and partial gradients on their way */
    RA_MEM_SCORES,        /* materialised scores (kind: standard) */
    RA_MEM_STATE,         /* linear attention */
    RA_MEM_IO,            /* staging for files */
    RA_MEM_CONTEXT,       /* device context and NCCL; measured, not counted */
    RA_MEM_CATEGORY_COUNT
} ra_category;

/** The category's name as reports print it, e.g. "comm_buffer". */
const char *ra_category_name(ra_category category);

typedef struct ra_ledger ra_ledger;

typedef struct ra_ledger_snapshot {
    int64_t current_bytes[RA_MEM_CATEGORY_COUNT];
    int64_t peak_bytes[RA_MEM_CATEGORY_COUNT];    /* each category's own peak */
    int64_t at_peak_bytes[RA_MEM_CATEGORY_COUNT]; /* composition when the total peaked */
    int64_t alloc_count[RA_MEM_CATEGORY_COUNT];   /* charges since create */
    int64_t reserved_bytes;                       /* = sum of current_bytes */
    int64_t reserved_peak_bytes;                  /* = sum of at_peak_bytes */
    int64_t limit_bytes;                          /* INT64_MAX: none */
} ra_ledger_snapshot;

/**
 * A caller that has no limit of its own should still give one on a CPU: under overcommit the
 * system grants more than it has and later kills whoever touches it. The command gives what
 * ra_pool_available (ra_memory_ops.available) finds at the start, less 2 % for what the ledger
 * does not see, divided by the ranks of the node (ra_comm_local_size).
 *
 * @param limit_bytes  at least 1; INT64_MAX for no limit
 * @return RA_ERR_NO_MEMORY, or RA_OK and a ledger that the caller destroys after every pool on it
 */
RA_CHECKED ra_status ra_ledger_create(int64_t limit_bytes, ra_ledger **ledger_out);
void ra_ledger_destroy(ra_ledger *ledger); /* NULL is fine */

/**
 * Count `bytes` (>= 0) towards a category; thread-safe.
 *
 * @return RA_ERR_NO_MEMORY  the limit would be passed; the composition was logged as one line,
 *                           nothing was counted
 */
RA_CHECKED ra_status ra_ledger_charge(ra_ledger *ledger, ra_category category, int64_t bytes);
/** Undo a charge of the same size; thread-safe. */
void ra_ledger_release(ra_ledger *ledger, ra_category category, int64_t bytes);
/** A consistent copy; thread-safe. */
void ra_ledger_read(const ra_ledger *ledger, ra_ledger_snapshot *snapshot_out);

/* ---- memory: where bytes come from ---------------------------------------------------------- */

typedef struct ra_memory ra_memory;

typedef struct ra_memory_ops {
    const char *name;
    /** Bytes that a request of `bytes` really takes (page or granule rounding). */
    size_t (*round)(const ra_memory *memory, size_t bytes);
    /** 64-byte aligned at least; `bytes` is a result of round. Failure is logged by the caller. */
    ra_status (*alloc)(const ra_memory *memory, size_t bytes, void **ptr_out);
    void (*free)(const ra_memory *memory, void *ptr, size_t bytes);
    /** Bytes that could be taken now, by this process. */
    ra_status (*available)(const ra_memory *memory, int64_t *bytes_out);
} ra_memory_ops;

/* A source of bytes. Tests wrap one in another to make the n-th request fail. */
struct ra_memory {
    const ra_memory_ops *ops;
    void *self;
};

/**
 * Host memory: touched when taken; blocks of 64 KiB and more are whole pages from the
 * system, returned to it when freed. `available` is the least of the machine's MemAvailable, the
 * control groups' limit less usage, and the room that RLIMIT_AS and RLIMIT_DATA leave.
 */
ra_memory ra_memory_host(void);

/* ---- pool: who serves requests ------------------------------------------------------------- */

/* An order of work on a device; NULL on the CPU, whose work is done when a call returns. */
typedef struct ra_stream ra_stream;

typedef enum ra_pool_mode {
    RA_POOL_OFF /* every request goes to the memory, every free returns to it */
} ra_pool_mode;

typedef struct ra_pool_config {
    ra_pool_mode mode;
    ra_memory memory;  /* copied; what `self` points to is borrowed until destroy */
    ra_ledger *ledger; /* borrowed until destroy */
} ra_pool_config;

typedef struct ra_pool ra_pool;

/* One piece of memory that the holder owns; {0} is the empty block. */
typedef struct ra_block {
    void *data;
    size_t bytes;          /* as asked */
    size_t reserved_bytes; /* as counted */
    ra_category category;
} ra_block;

RA_CHECKED ra_status ra_pool_create(const ra_pool_config *config, ra_pool **pool_out);
/** Every block must have been freed. NULL is fine. */
void ra_pool_destroy(ra_pool *pool);

/**
 * Take `bytes` (0 gives an empty block and RA_OK) for `category`; thread-safe. What is in it is
 * undefined. `stream` is where the memory is first used.
 *
 * @return RA_ERR_NO_MEMORY  limit or machine refused, one line was logged; *block_out is empty
 */
RA_CHECKED ra_status ra_pool_alloc(ra_pool *pool, ra_category category, size_t bytes,
                                   ra_stream *stream, ra_block *block_out);
/** Give a block back and empty it; an empty one is fine. `stream` is where it was last used. */
void ra_pool_free(ra_pool *pool, ra_stream *stream, ra_block *block);

/**
 * Count memory that comes from elsewhere (windows) towards a category and the limit, and undo it.
 * @return RA_ERR_NO_MEMORY  as for ra_pool_alloc
 */
RA_CHECKED ra_status ra_pool_charge(ra_pool *pool, ra_category category, int64_t bytes);
void ra_pool_release(ra_pool *pool, ra_category category, int64_t bytes);
/** Count charged bytes towards another category; the sum does not change, so nothing can fail. */
void ra_pool_move(ra_pool *pool, ra_category from, ra_category to, int64_t bytes);

/** Bytes that a request of `bytes` would be counted as. */
size_t ra_pool_round(const ra_pool *pool, size_t bytes);
/** Bytes that may still be asked for: the ledger's limit or the memory's own, the smaller. */
RA_CHECKED ra_status ra_pool_available(const ra_pool *pool, int64_t *bytes_out);
const ra_ledger *ra_pool_ledger(const ra_pool *pool);

#ifdef __cplusplus
}
#endif
#endif
