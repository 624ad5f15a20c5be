/* What the pool's own files share. */
#ifndef RINGATTN_POOL_INTERNAL_H
#define RINGATTN_POOL_INTERNAL_H

#include "internal.h"
#include "ringattn/pool_log.h"

#include <pthread.h>

/*
 * A charge in two halves, around a request to the memory: promised bytes count towards the limit,
 * so that two threads cannot both take the last ones, but are in no snapshot or peak until they are
 * settled. So what the memory refuses never shows as held.
 */
/** Promise so many bytes, if the limit leaves room for them; nothing is logged. */
bool ra_ledger_promise(ra_ledger *ledger, int64_t bytes);
/** Count promised bytes that were taken: `idle_bytes` as pool_idle, the rest as `category`. */
void ra_ledger_settle(ra_ledger *ledger, ra_category category, int64_t bytes, int64_t idle_bytes);
void ra_ledger_break(ra_ledger *ledger, int64_t bytes); /* promised, but not taken */
/** Count bytes that were taken already without asking, whatever the limit. */
void ra_ledger_admit(ra_ledger *ledger, ra_category category, int64_t bytes);
/** Count bytes of one category towards another. The total stays, so no limit is asked. */
void ra_ledger_move(ra_ledger *ledger, ra_category from, ra_category to, int64_t bytes);

/** What the limit leaves; INT64_MAX without a limit. */
int64_t ra_ledger_headroom(const ra_ledger *ledger);

/* ---- event log ------------------------------------------------------------------------------- */

/** Record a block; its id, or -1 if there was no memory for that, which the log counts. */
int64_t ra_pool_log_taken(ra_pool_log *log, ra_category category, size_t bytes);
void ra_pool_log_given(ra_pool_log *log, int64_t id);

/* ---- statistics ------------------------------------------------------------------------------ */

/** Add to a counter's current value, or take from it. */
void ra_pool_count(ra_pool_stats *stats, ra_pool_figure figure, int64_t bytes, int64_t count);

enum { RA_POOL_TIME_BINS = 8 * 41 }; /* eight per power of two, up to 2^43 ns: 2.4 hours */

typedef struct ra_pool_times {
    int64_t count[RA_POOL_TIME_BINS];
    int64_t total;
} ra_pool_times;

void ra_pool_times_add(ra_pool_times *times, int64_t ns);
/** Upper edge of the bin that contains this quantile of allocations; -1: there were none. */
int64_t ra_pool_times_quantile(const ra_pool_times *times, double share);

/* ---- chunks: pieces of segments, in bins by size when idle ----------------------------------- */

typedef struct ra_segment ra_segment;

/*
 * Where on a stream a chunk was last used. Chunks cut from one share its use; while the use stands,
 * only its stream may use them.
 */
typedef struct ra_use {
    ra_stream *stream;
    void *event;
    int64_t order; /* of recording: of two uses on one stream the later covers both */
    int references;
} ra_use;

typedef struct ra_chunk {
    char *data;
    size_t bytes;
    ra_segment *segment;
    struct ra_chunk *before, *after;      /* neighbours in the segment */
    struct ra_chunk *bin_prev, *bin_next; /* of those in a bin */
    ra_use *use;                          /* NULL: anyone may have it */
    bool idle;
    bool lost; /* idle, but its last use could not be recorded: nobody gets it before the end */
} ra_chunk;

/* Sizes below 4 KiB are 64 bins, powers of two up to 1 MiB have 64 each, those above 8 each. */
enum {
    RA_POOL_UNIT_BYTES = 64,
    RA_POOL_PAGE_BYTES = 4096,
    RA_POOL_FINE_SHIFT = 20, /* 1 MiB */
    RA_POOL_BINS = 64 + 8 * 64 + 42 * 8,
    RA_POOL_BIN_WORDS = (RA_POOL_BINS + 63) / 64
};

typedef struct ra_bins {
    ra_chunk *first[RA_POOL_BINS];
    uint64_t filled[RA_POOL_BIN_WORDS]; /* one bit per bin */
} ra_bins;

/** The bin of a size: every chunk of a later bin is larger than all of this one. */
int ra_pool_bin(size_t bytes);
void ra_bins_add(ra_bins *bins, ra_chunk *chunk);
void ra_bins_remove(ra_bins *bins, ra_chunk *chunk);
/** The smallest chunk that `fits` accepts, of `bytes` or more; NULL: none. */
ra_chunk *ra_bins_find(const ra_bins *bins, size_t bytes,
                       bool (*fits)(void *context, ra_chunk *chunk), void *context);

/* ---- the pool -------------------------------------------------------------------------------- */

struct ra_segment {
    void *data;
    size_t bytes;
    ra_chunk *first;           /* by address */
    bool small;                /* of small blocks */
    ra_segment *prev, *next;   /* all */
    ra_segment *older, *newer; /* of wholly idle segments */
};

/* What size_class keeps; everything is guarded by the pool's mutex. */
typedef struct ra_heap {
    ra_bins small, large;
    ra_segment *segments;
    ra_segment *oldest, *newest;          /* that nobody uses any part of */
    ra_chunk *spare;                      /* unused chunk structures, linked by bin_next */
    void *slabs;                          /* memory of chunk structures, linked by the first word */
    int64_t idle_bytes, idle_count;       /* of idle chunks */
    int64_t whole_bytes, whole_count;     /* of segments that nobody uses any part of */
    int64_t pending_bytes, pending_count; /* of idle chunks with a use */
    int64_t small_bytes;                  /* of segments of small blocks */
    int64_t cut_bytes;                    /* of segments of several chunks */
    int64_t use_order;
} ra_heap;

typedef struct ra_keeping ra_keeping;

struct ra_pool {
    ra_pool_config config;
    const ra_keeping *keeping; /* what the mode does */
    pthread_mutex_t mutex;     /* of everything below */
    ra_pool_stats stats;
    ra_pool_times times;
    ra_pool_keeper keeper;     /* its functions NULL: none */
    int64_t outside_bytes;     /* charged, not allocated */
    int64_t in_use_peak_bytes; /* of allocated and outside bytes together */
    ra_heap heap;              /* of size_class */
    void *driver;              /* of mode driver: the driver's pool */
};

/** A pool's lock; const because readers take it too. */
void ra_pool_lock(const ra_pool *pool);
void ra_pool_unlock(const ra_pool *pool);

/** Who refused a request for good, for the one line about it. */
typedef struct ra_refusal {
    const char *who;
    int64_t bytes;
} ra_refusal;

/* How a mode serves requests and keeps what is freed; as the functions of heaps below. */
struct ra_keeping {
    ra_status (*init)(ra_pool *pool); /* NULL: there is nothing to make */
    ra_status (*alloc)(ra_pool *pool, ra_category category, size_t bytes, ra_stream *stream,
                       ra_block *block_out, ra_refusal *refusal);
    void (*free)(ra_pool *pool, ra_stream *stream, const ra_block *block);
    /* Return idle bytes until so many are back, or there are none that can be; bytes returned.
       refused: somebody will be otherwise, so first look at what streams have finished with. */
    int64_t (*give_back)(ra_pool *pool, int64_t wanted, bool refused);
    int64_t (*idle)(const ra_pool *pool);  /* bytes */
    int64_t (*spare)(const ra_pool *pool); /* those of them that a trim may return */
    void (*fini)(ra_pool *pool);
};

/* Everything below is called with the lock held. */

/** Give back until `keep_bytes` of idle bytes are left. */
int64_t ra_keeping_trim(ra_pool *pool, int64_t keep_bytes);
/** Give back until the limit leaves `bytes`, which are refused otherwise. */
int64_t ra_keeping_trim_for(ra_pool *pool, int64_t bytes);
/** Before `bytes` more are taken, `used_bytes` of them to be used: trim so that the peak stays. */
void ra_keeping_make_room(ra_pool *pool, int64_t bytes, int64_t used_bytes);
/** The most that may be kept once `used_bytes` more are in use: if automatic, the highest use. */
int64_t ra_keeping_ceiling(const ra_pool *pool, int64_t used_bytes);

/** Make AddressSanitizer report accesses to host memory that nobody holds. */
void ra_heap_fence(const ra_pool *pool, const void *data, size_t bytes, bool closed);
/** NULL: no memory. */
ra_chunk *ra_chunk_make(ra_heap *heap);
void ra_chunk_drop(ra_heap *heap, ra_chunk *chunk);
/** NULL: no memory, or no event. */
ra_use *ra_use_record(ra_pool *pool, ra_stream *stream);
/** Set or clear (NULL) a chunk's use; an idle chunk with a use is pending. */
void ra_chunk_set_use(ra_pool *pool, ra_chunk *chunk, ra_use *use);
/** Whether any stream may have an idle chunk; queries its event, and drops it once it is over. */
bool ra_chunk_is_over(ra_pool *pool, ra_chunk *chunk);
/** Whether nobody uses any part of the chunk's segment. */
bool ra_chunk_is_whole(const ra_chunk *chunk);
/** Put an idle chunk into its bin, and its segment, if wholly idle, into their list. */
void ra_idle_add(ra_heap *heap, ra_chunk *chunk);
void ra_idle_remove(ra_heap *heap, ra_chunk *chunk);
/**
 * Take a segment of one idle chunk. The lock is open during the memory's call. The bytes are
 * promised to the ledger: the caller settles them.
 */
RA_CHECKED ra_status ra_segment_take(ra_pool *pool, size_t bytes, bool small,
                                     ra_segment **segment_out, ra_refusal *refusal);

/** Return a chunk from its user, without making it idle; it is all of its segment. */
void ra_segment_give(ra_pool *pool, ra_chunk *chunk, ra_category category);

/** As ra_pool_alloc and ra_pool_free; nothing is logged. */
RA_CHECKED ra_status ra_heap_alloc(ra_pool *pool, ra_category category, size_t bytes,
                                   ra_stream *stream, ra_block *block_out, ra_refusal *refusal);
void ra_heap_free(ra_pool *pool, ra_stream *stream, const ra_block *block);
int64_t ra_heap_give_back(ra_pool *pool, int64_t wanted, bool refused); /* idle segments */
int64_t ra_heap_idle(const ra_pool *pool);
/** Update the figures that follow from others. */
void ra_heap_refresh(ra_pool *pool);
int64_t ra_heap_spare(const ra_pool *pool);
void ra_heap_fini(ra_pool *pool);

/* ---- the driver's pool ----------------------------------------------------------------------- */

/** RA_ERR_UNSUPPORTED: the memory's driver has none; or what the driver says. */
RA_CHECKED ra_status ra_driver_init(ra_pool *pool);
RA_CHECKED ra_status ra_driver_alloc(ra_pool *pool, ra_category category, size_t bytes,
                                     ra_stream *stream, ra_block *block_out, ra_refusal *refusal);
void ra_driver_free(ra_pool *pool, ra_stream *stream, const ra_block *block);
int64_t ra_driver_give_back(ra_pool *pool, int64_t wanted, bool refused);
int64_t ra_driver_idle(const ra_pool *pool); /* all of it can be returned */
void ra_driver_fini(ra_pool *pool);

#endif
