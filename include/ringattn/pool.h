/*
 * Where bytes live: the ledger, memory sources, and the pool that serves requests from them.
 *
 * Every allocation names a category. The ledger knows the current and peak bytes and the number of
 * allocations of each, and the whole composition at the moment of the peak. Always:
 *     sum of categories = reserved,   reserved - pool_idle = allocated,
 * a block counts in its category as it was rounded up (ra_block.reserved_bytes), and host memory is
 * touched when it is taken, so that reserved <= resident set. SPDX-License-Identifier: BSD-3-Clause
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
    RA_MEM_WORKSPACE,     /* scratch of kernels, and what a step takes and gives back */
    RA_MEM_TILEMAP,       /* slices, row sets, tile maps */
    RA_MEM_PATTERN_CACHE, /* tile maps kept for later use */
    RA_MEM_POOL_IDLE,     /* held by the pool, used by nobody */
    RA_MEM_COMM_BUFFER,   /* standing: packed keys, values and partial gradients on their way */
    RA_MEM_SCORES,        /* materialised scores (kind: standard) */
    RA_MEM_STATE,         /* linear attention */
    RA_MEM_IO,            /* files on their way, block pairs, trace events, times, verification */
    RA_MEM_CONTEXT,       /* device context, cuBLAS and NCCL: measured, then counted */
    RA_MEM_CATEGORY_COUNT
} ra_category;

/** The category's name as reports print it, e.g. "comm_buffer". */
const char *ra_category_name(ra_category category);

typedef struct ra_ledger ra_ledger;

typedef struct ra_ledger_snapshot {
    int64_t current_bytes[RA_MEM_CATEGORY_COUNT];
    int64_t peak_bytes[RA_MEM_CATEGORY_COUNT];    /* each category's own peak */
    int64_t at_peak_bytes[RA_MEM_CATEGORY_COUNT]; /* when the total peaked, with least idle */
    int64_t alloc_count[RA_MEM_CATEGORY_COUNT];   /* charges since create; none of idle bytes */
    int64_t reserved_bytes;                       /* = sum of current_bytes */
    int64_t reserved_peak_bytes;                  /* = sum of at_peak_bytes */
    int64_t limit_bytes;                          /* INT64_MAX: none */
} ra_ledger_snapshot;

/**
 * A caller that has no limit of its own should still give one on a CPU: under overcommit the
 * system grants more than it has and later kills whoever touches it. The command gives what
 * ra_pool_available (ra_memory_ops.available) finds at the start, less 2 % for what the ledger does
 * not see, divided by the ranks of the node (ra_comm_local_size); of a GPU, which refuses what it
 * does not have, all of it.
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
 *                           unless hushed, and nothing was counted
 */
RA_CHECKED ra_status ra_ledger_charge(ra_ledger *ledger, ra_category category, int64_t bytes);
/** Log that `who` refused `bytes` (0: it does not say how many) for `category`: one line, with what
    is held and what to do. */
void ra_ledger_log_refusal(const ra_ledger *ledger, const char *who, ra_category category,
                           int64_t bytes);
/** Refusals make no such line until this is undone: whoever asks can do without; thread-safe. */
void ra_ledger_hush(ra_ledger *ledger, bool hushed);
/** Undo a charge of the same size; thread-safe. */
void ra_ledger_release(ra_ledger *ledger, ra_category category, int64_t bytes);
/** A consistent copy; thread-safe. */
void ra_ledger_read(const ra_ledger *ledger, ra_ledger_snapshot *snapshot_out);

/* The composition at a moment that has a name, e.g. "after scores". */
typedef struct ra_ledger_mark {
    char name[16];
    int32_t group, step; /* of a pass; -1: of none */
    int64_t current_bytes[RA_MEM_CATEGORY_COUNT];
} ra_ledger_mark;

RA_STATIC_ASSERT(sizeof(ra_ledger_mark) == 24 + 8 * RA_MEM_CATEGORY_COUNT, "marks cross the wire");

/**
 * From now on keep the first `most` (at least 1) marks and count the others; earlier marks are
 * gone. Without this call a ledger keeps none, and a mark costs one branch. Not to be called while
 * others mark.
 * @return RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_ledger_keep_marks(ra_ledger *ledger, int32_t most);
/** Note what is held now under a name of at most 15 bytes, which is copied; thread-safe. */
void ra_ledger_mark_now(ra_ledger *ledger, const char *name, int32_t group, int32_t step);
/** Begin anew, with the same bound; thread-safe. */
void ra_ledger_forget_marks(ra_ledger *ledger);
/** How many are kept; *marks_out is borrowed until the ledger is changed. */
int32_t ra_ledger_read_marks(const ra_ledger *ledger, const ra_ledger_mark **marks_out,
                             int64_t *dropped_out);

/* ---- memory: where bytes come from ---------------------------------------------------------- */

typedef struct ra_memory ra_memory;

/* A CUDA stream; NULL on the CPU, whose work is done when a call returns. */
typedef struct ra_stream ra_stream;

/*
 * The pool that a device's driver keeps, for RA_POOL_DRIVER. Work is ordered by streams: memory may
 * be used on the stream of its alloc after that call, and on the stream of its free until that
 * call. `driver` is what create made. Functions that return a status have logged why, unless it is
 * RA_ERR_NO_MEMORY; the others log a warning if they fail.
 */
typedef struct ra_driver_ops {
    /** RA_ERR_UNSUPPORTED: the device's driver has no pools. */
    ra_status (*create)(const ra_memory *memory, void **driver_out);
    void (*destroy)(const ra_memory *memory, void *driver); /* everything is free, and over */
    size_t (*round)(const ra_memory *memory, size_t bytes); /* what a block is counted as */
    ra_status (*alloc)(const ra_memory *memory, void *driver, size_t bytes, ra_stream *stream,
                       void **ptr_out);
    void (*free)(const ra_memory *memory, void *driver, void *ptr, ra_stream *stream);
    /** Bytes taken from the device, for blocks in use and idle ones. Never NO_MEMORY. */
    ra_status (*held)(const ra_memory *memory, void *driver, int64_t *bytes_out);
    /**
     * Wait for the streams on which blocks were freed, so that trim can return these: a driver may
     * keep a freed block until the host has synchronised with its stream. Waits a second at most
     * for each of these streams, and not for a lost GPU.
     */
    void (*see)(const ra_memory *memory, void *driver);
    /** Return idle memory that no stream uses until at most `keep_bytes` are held; never waits. */
    void (*trim)(const ra_memory *memory, void *driver, int64_t keep_bytes);
} ra_driver_ops;

typedef struct ra_memory_ops {
    const char *name;
    /** Bytes that a request of `bytes` really takes (page or granule rounding). */
    size_t (*round)(const ra_memory *memory, size_t bytes);
    /**
     * 64-byte aligned at least; `bytes` is a result of round. RA_ERR_NO_MEMORY is logged by the
     * caller, who knows what it was for; any other cause by whoever sees it.
     */
    ra_status (*alloc)(const ra_memory *memory, size_t bytes, void **ptr_out);
    /** A device may wait for all of its work first, without a deadline. */
    void (*free)(const ra_memory *memory, void *ptr, size_t bytes);
    /** Bytes that could be taken now, by this process. */
    ra_status (*available)(const ra_memory *memory, int64_t *bytes_out);
    /*
     * Order on streams; all three NULL if work is done when a call returns, as on the host. An
     * event is over once all work enqueued on its stream before it is done; `is_over` never waits.
     */
    ra_status (*event_record)(const ra_memory *memory, ra_stream *stream, void **event_out);
    bool (*event_is_over)(const ra_memory *memory, void *event);
    void (*event_free)(const ra_memory *memory, void *event);
    /* See ra_memory_write and ra_memory_read; both NULL if the host reaches this memory. */
    ra_status (*write)(const ra_memory *memory, ra_stream *stream, void *to, const void *from,
                       size_t bytes);
    ra_status (*read)(const ra_memory *memory, ra_stream *stream, void *to, const void *from,
                      size_t bytes);
    const ra_driver_ops *driver; /* NULL: no driver keeps a pool of it, as of host memory */
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

/**
 * The least limit that this process's control group and those above it set to its memory, of either
 * version of them; -1: none does.
 */
int64_t ra_memory_host_limit(void);

/** Whether the host reads and writes this memory itself: host and pinned memory. */
bool ra_memory_is_host(const ra_memory *memory);

/**
 * Copy from host memory into a block of `memory`, and from such a block into host memory; the two
 * do not overlap. The copy comes after all work enqueued on `stream`, and is over when the call
 * returns, even on failure. If ra_memory_is_host, it is a memcpy, which waits for no stream.
 *
 * @return RA_ERR_CUDA  the copy failed, or something enqueued before it; one line was logged
 */
RA_CHECKED ra_status ra_memory_write(const ra_memory *memory, ra_stream *stream, void *to,
                                     const void *from, size_t bytes);
RA_CHECKED ra_status ra_memory_read(const ra_memory *memory, ra_stream *stream, void *to,
                                    const void *from, size_t bytes);

/* ---- pool: who serves requests ------------------------------------------------------------- */

typedef enum ra_pool_mode {
    RA_POOL_OFF, /* every request goes to the memory, every free returns to it */
    /*
     * Freed blocks are kept and used again. Sizes are rounded up to 64 bytes; from 4 KiB to 1 MiB
     * to one of 64 sub-classes between powers of two (at most 1.6 % more); from 64 KiB on also to
     * pages of 4 KiB. The smallest block that fits, of 64 that are looked at, is taken, cut, and
     * joined with its neighbours again when it is freed. A segment is as large as the request; for
     * blocks below 64 KiB it may be larger, at most a sixteenth of all segments of such blocks.
     */
    RA_POOL_SIZE_CLASS,
    /*
     * A device driver's own pool (cudaMallocFromPoolAsync); host memory has none. What it holds is
     * read back after each request and charged, idle bytes as pool_idle. It grows by units of its
     * own, so it may exceed what automatic trim allows by one of them. A request that makes it
     * exceed the limit is refused; what the driver took for it is returned as soon as streams
     * permit, and is charged until then. Segments and idle parts are not known: their counts are 0.
     */
    RA_POOL_DRIVER
} ra_pool_mode;

const char *ra_pool_mode_name(ra_pool_mode mode);

typedef struct ra_pool_log ra_pool_log; /* ringattn/pool_log.h */

typedef struct ra_pool_config {
    ra_pool_mode mode;
    ra_memory memory;  /* copied; what `self` points to is borrowed until destroy */
    ra_ledger *ledger; /* borrowed until destroy */
    /*
     * Most idle bytes that SIZE_CLASS may hold at any moment, in unused segments and in unused
     * parts of others; if the bound is too tight for that, blocks do not share segments. Memory
     * that work on a stream still uses cannot be returned, and may exceed it. 0: automatic, as many
     * as fit below the highest number of bytes in use so far, so that keeping unused segments never
     * raises a peak. But a segment that small blocks share stays while one of them is in use.
     */
    int64_t trim_bytes;
    bool measures_time; /* of each allocation, for ra_pool_stats: two clock readings */
    ra_pool_log *log;   /* records every block, borrowed until destroy; NULL: none */
} ra_pool_config;

typedef struct ra_pool ra_pool;

/* One piece of memory that the holder owns; {0} is the empty block. */
typedef struct ra_block {
    void *data;
    size_t bytes;          /* as asked */
    size_t reserved_bytes; /* as counted */
    ra_category category;
    struct ra_chunk *chunk; /* the pool's own */
    int64_t id;             /* its number in the log; 0 without one, -1 if the log lost it */
} ra_block;

/**
 * @return RA_ERR_NO_MEMORY    or, of DRIVER, one line logged:
 *         RA_ERR_UNSUPPORTED  the memory's driver has no pool
 *         RA_ERR_CUDA         it failed
 */
RA_CHECKED ra_status ra_pool_create(const ra_pool_config *config, ra_pool **pool_out);
/** Every block must have been freed, and be out of use on its stream. NULL is fine. */
void ra_pool_destroy(ra_pool *pool);

/**
 * Take `bytes` (0 gives an empty block and RA_OK) for `category`, any but POOL_IDLE, which is the
 * pool's own; thread-safe. Contents are undefined. `stream` is where the memory is first used: a
 * block last used on another stream is not given out before that use is over.
 *
 * With SIZE_CLASS, a request that limit or machine refuse is tried once more after idle segments
 * have been returned; the first refusal is not logged. A hit costs less than 200 ns.
 *
 * @return RA_ERR_NO_MEMORY  limit or machine refused, one line was logged; *block_out is empty
 *         RA_ERR_CUDA       the device failed, likewise
 *         or why a communicator whose memory the pool is over (ra_comm_memory) has none
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
/** As ra_pool_charge, but optional: a refusal is no error and not logged, nothing is evicted. */
bool ra_pool_try_charge(ra_pool *pool, ra_category category, int64_t bytes);
void ra_pool_release(ra_pool *pool, ra_category category, int64_t bytes);
/** Count charged bytes towards another category; the sum does not change, so nothing can fail. */
void ra_pool_move(ra_pool *pool, ra_category from, ra_category to, int64_t bytes);

/**
 * Return idle segments, the longest idle first, until at most `keep_bytes` idle bytes are left, or
 * only those in segments in use. Waits for nothing but the memory's `free`. @return bytes returned
 */
int64_t ra_pool_trim(ra_pool *pool, int64_t keep_bytes);

/*
 * An evictor: it has charged memory to the pool for what it can give up, as the pattern cache has
 * for unused maps. If limit or machine refuse a request when idle segments are gone, pieces are
 * evicted one by one, and the request is tried again after each. Called on the requesting thread,
 * without the pool's lock.
 */
typedef struct ra_pool_keeper {
    void *context;
    int64_t (*spare_bytes)(void *context); /* that could be given up */
    int64_t (*give_up)(void *context);     /* releases a piece: its bytes; 0: there is none */
} ra_pool_keeper;

/** One at a time, copied; NULL: none. Must not meet other calls with this pool. */
void ra_pool_set_keeper(ra_pool *pool, const ra_pool_keeper *keeper);

/** Bytes that a request of `bytes`, at most 2^61, would be counted as. */
size_t ra_pool_round(const ra_pool *pool, size_t bytes);
/** The same in any pool of mode size_class, whatever its memory. */
size_t ra_pool_class_bytes(size_t bytes);
/** Bytes that may still be requested, with idle segments and what a keeper would give up: the
    smaller of what the ledger's limit and the memory allow. Fails as `available` of the memory. */
RA_CHECKED ra_status ra_pool_available(const ra_pool *pool, int64_t *bytes_out);
ra_ledger *ra_pool_ledger(const ra_pool *pool);
/** ra_ledger_mark_now of the pool's ledger. */
void ra_pool_mark(ra_pool *pool, const char *name, int32_t group, int32_t step);

/* ---- statistics, in PyTorch's words ---------------------------------------------------------- */

typedef struct ra_pool_counter {
    int64_t current, peak;
    int64_t allocated; /* ever; less current: freed */
} ra_pool_counter;

typedef enum ra_pool_figure {
    RA_POOL_REQUESTED,      /* blocks that are out, as asked */
    RA_POOL_ALLOCATED,      /* blocks that are out, as rounded */
    RA_POOL_ACTIVE,         /* these, and freed ones that a stream may still use */
    RA_POOL_RESERVED,       /* segments taken from the memory */
    RA_POOL_INACTIVE_SPLIT, /* idle parts of segments that are in use: cannot be returned */
    RA_POOL_FIGURE_COUNT
} ra_pool_figure;

const char *ra_pool_figure_name(ra_pool_figure figure);

/* Only int64 inside, so that it can travel as an array of them. */
typedef struct ra_pool_stats {
    ra_pool_counter bytes[RA_POOL_FIGURE_COUNT];
    ra_pool_counter count[RA_POOL_FIGURE_COUNT]; /* of blocks, of segments, of idle parts */
    int64_t hits, misses;                        /* requests served from idle bytes, and others */
    int64_t retries, ooms;    /* tries of a request or a charge after a trim or a keeper's; requests
                                 refused for good */
    int64_t trimmed_segments; /* returned before the end */
    int64_t alloc_p50_ns;     /* median of an allocation's time; -1: not measured */
    int64_t alloc_p99_ns;     /* both are upper edges of bins that are 1/8 of a power of two */
} ra_pool_stats;

/** A consistent copy; thread-safe. */
void ra_pool_read_stats(const ra_pool *pool, ra_pool_stats *stats_out);

/*
 * Shares at the peaks; 1, 0 and 0 if nothing was taken. Utilisation is peak allocated over peak
 * reserved bytes; external fragmentation is 1 less utilisation; internal fragmentation is the share
 * of the peak of allocated bytes that nobody asked for.
 */
double ra_pool_utilisation(const ra_pool_stats *stats);
double ra_pool_internal_fragmentation(const ra_pool_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
