/*
 * Who computes what, when: layouts, schedules, and the forward and backward pass over ranks.
 *
 * Each rank owns the rows that the layout gives it, as [batch, rows, heads, dim] tensors in the
 * order of ra_ring_rows. A pass is a sequence of steps: step 0 against the rank's own keys, or with
 * schedule shared those of all ranks of its host, then against those of others. With one rank there
 * is one step, no state, no buffer.
 *
 * A ring belongs to one rank and is used by one thread at a time, which is the one that uses its
 * communicator and its kernel. Collective calls are made by all ranks in the same order.
 * SPDX-License-Identifier: BSD-3-Clause
 */
#ifndef RINGATTN_RING_H
#define RINGATTN_RING_H

#include "ringattn/comm.h"
#include "ringattn/linear.h"
#include "ringattn/pattern_cache.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ra_layout_kind {
    RA_LAYOUT_CONTIGUOUS, /* rank r owns rows [N r / R, N (r + 1) / R) */
    RA_LAYOUT_ZIGZAG,     /* 2 R equal pieces; rank r owns pieces r and 2 R - 1 - r */
    RA_LAYOUT_STRIPED,    /* rank r owns rows r, r + R, r + 2 R, … */
    RA_LAYOUT_BALANCED,   /* chunks dealt to the least loaded rank by live pairs */
    RA_LAYOUT_AUTO        /* fewest sent bytes with imbalance <= 1.05, else least imbalance */
} ra_layout_kind;

typedef struct ra_layout {
    ra_layout_kind kind; /* never AUTO */
    int ranks;
    int64_t chunk;    /* balanced: rows per chunk, else 0 */
    ra_rowset *rows;  /* [ranks] */
    double imbalance; /* largest rank's live pairs, of linear attention rows, / mean; 1 where
                         nothing is live */
    ra_block block;
} ra_layout;

/**
 * Deterministic: every rank that asks gets the same. Pieces of a rank's rows ascend. Visits all
 * live pairs, which may take long: heartbeats go to `comm` (NULL: none), whose ranks wait.
 *
 * @param kind  not AUTO, which a ring settles by what its schedule sends: to ranks that share
 *              memory once, and with schedule ring from rank to rank
 * @return RA_ERR_UNSUPPORTED  too many pairs to be counted (ra_pairs_fit)
 *         RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_layout_init(ra_layout_kind kind, const ra_pattern *pattern, int ranks,
                                    ra_comm *comm, ra_pool *pool, ra_layout *layout_out);
/** Give back what ra_layout_init took of that pool; of zeroes, nothing. */
void ra_layout_fini(ra_pool *pool, ra_layout *layout);
const char *ra_layout_name(ra_layout_kind kind);

typedef enum ra_schedule {
    RA_SCHEDULE_RING,   /* blocks hop from neighbour to neighbour */
    RA_SCHEDULE_DIRECT, /* needed rows only, straight from their owners, nearest ranks first */
    RA_SCHEDULE_SHARED, /* ranks of one host read each other's keys where they lie; direct, with a
                           warning, if no two of them can */
    RA_SCHEDULE_AUTO,   /* shared if possible, else ring if every rank needs every row and one
                           round does, else direct */
    RA_SCHEDULE_SCAN    /* linear attention: sums of states; chosen by the kind, not configured */
} ra_schedule;

const char *ra_schedule_name(ra_schedule schedule);

enum { RA_ROUNDS_MAX = 64, RA_QUERY_PARTS_MAX = 64 };

/* What a command line takes by default is not what a zeroed one says: layout and schedule AUTO, and
   two buffers. */
typedef struct ra_ring_config {
    int64_t batch, seq;
    int32_t heads, kv_heads, dim;
    ra_dtype dtype;
    float scale; /* 0: 1 / sqrt(dim) */
    ra_layout_kind layout;
    ra_schedule schedule;
    int comm_buffers;    /* 0: taken per step; 1: they stand; 2: and transfer overlaps compute */
    int32_t head_groups; /* 1 to kv_heads; or, but for linear attention, a multiple of kv_heads up
                            to heads, or of heads up to RA_QUERY_PARTS_MAX times: then keys travel
                            up to once for each group of their query heads, or each part of every
                            rank's queries of one head. A kernel that materialises scores takes no
                            parts. 0: up to kv_heads as many as save much of what is sent, or the
                            fewest that fit the memory there is; more only if no number of rounds
                            fits. What they need is an upper bound where buffers do not stand, and
                            an estimate where they have tile maps of their own, as keys that are
                            sent differ by head, or in parts; plans that do not fit are given back,
                            and others are tried, a few times */
    int32_t rounds;      /* in which rows travel between ranks that do not share memory, a part of
                            every exchange in each; 1 to RA_ROUNDS_MAX. 0: the first of 1, 2, 4, 8,
                            ... that fits with up to kv_heads groups, or those asked for, else the
                            first of those that need the fewest. More than 1 not with schedule ring,
                            nor for linear attention */
    bool backward;       /* whether ra_ring_backward will be called */
    /* Linear attention instead of softmax: the pattern plays no part, layout contiguous or auto,
       schedule auto, scale 0; no lse; head groups bound the states that exist at a time (linear.h
       has their bytes). The causal methods recurrent and cumsum have no backward pass. */
    ra_linear_kind linear;
    ra_linear_method linear_method;
    /* Cache that tile maps are taken from, attached to the host pool; borrowed until destroy. NULL:
       maps are made. Results are the same bit for bit. */
    ra_pattern_cache *cache;
    /* Tile maps are made from block masks (block_mask.h), which live as long as the ring: one for
       our queries against the rows held in each step and, with schedule shared and backward, one
       against each owner's part of them. The cache is not used. */
    bool dense_mask;
    /* After the ring is made, the caller takes the tensors of ra_ring_tensors from the kernel's
       pool: head_groups 0 leaves room for them, but not for what a pool in mode size_class holds
       idle between small blocks. lse_follows: lse too, though no backward pass needs it, but for
       linear attention, which has none; follow_bytes: and blocks of so many bytes, 0 to 2^60
       each. */
    bool tensors_follow, lse_follows;
    int64_t follow_bytes[2];
} ra_ring_config;

typedef struct ra_ring ra_ring;

/**
 * Collective. Decides layout and schedule (rank 0, for all) and groups (as many as any rank wants),
 * and takes all memory that passes need: what kernels read and write from `pool`, which is the
 * kernel's; layout, plans and tile maps from `host_pool`, the same pool if kernels compute in host
 * memory. All that is handed over is borrowed until destroy. A rank whose configuration is wrong
 * returns at once; if a rank fails later, all return its status. Each cause is one logged line.
 *
 * @return RA_ERR_INVALID      shape, pattern, schedule, buffers, groups and rounds do not go
 *                             together; an enumerator is none of its kind; the scale is not
 *                             finite (it may be negative); too large to count
 *                             (ra_elements_fit and, but for linear attention, ra_pairs_fit)
 *         RA_ERR_UNSUPPORTED  schedule shared between GPUs, or where a host's ranks have a window
 *                             for keys, and the system refuses them another; the kernel has no
 *                             linear attention; more than 2^31 - 1 rows on a side, or 2^32 - 2 runs
 *                             of a map
 *         RA_ERR_NO_MEMORY    limit or machine refused
 *         RA_ERR_IO           the machine does not say what memory it has
 *         RA_ERR_CUDA         a GPU failed
 *         RA_ERR_PEER, RA_ERR_TIMEOUT, RA_ERR_MPI, RA_ERR_NCCL  as ra_comm_start
 */
RA_CHECKED ra_status ra_ring_create(const ra_ring_config *config, const ra_pattern *pattern,
                                    ra_comm *comm, ra_kernel *kernel, ra_pool *pool,
                                    ra_pool *host_pool, ra_ring **ring_out);
void ra_ring_destroy(ra_ring *ring); /* NULL is fine */

/** This rank's rows, in the order of its tensors; borrowed. */
const ra_rowset *ra_ring_rows(const ra_ring *ring);

/*
 * Where this rank's keys and values must lie. With schedule shared that is memory of the ring, in
 * which the rows of a batch are dense and batches lie batch_rows rows apart; the other schedules
 * take any memory: k and v are NULL, batch_rows is this rank's rows.
 */
typedef struct ra_ring_keys {
    void *k, *v;
    int64_t batch_rows;
} ra_ring_keys;

ra_ring_keys ra_ring_key_memory(const ra_ring *ring);

/* Shard tensors, row-major, in the kernel's memory. n = this rank's rows. */
typedef struct ra_ring_tensors {
    const void *q;      /* [batch, n, heads, dim] */
    const void *k, *v;  /* [batch, n, kv_heads, dim]; where ra_ring_key_memory has any, these
                           must be its k and v, filled by the caller: nothing else is read */
    void *out;          /* [batch, n, heads, dim]; read by backward */
    float *lse;         /* [batch, heads, n]; may be NULL in forward, not in backward */
    const void *dout;   /* backward: [batch, n, heads, dim]; may be NULL in forward: given there
                           too, gradients do not suffer from the rounding of 16-bit outputs */
    void *dq, *dk, *dv; /* backward: written, not added to */
} ra_ring_tensors;

/**
 * Collective. Writes out and, if not NULL, lse.
 *
 * Streams: on a GPU the pass runs on kernel->stream, which is not ordered after the default stream.
 * Writes to the inputs must be over, or enqueued on kernel->stream, when this is called. The call
 * waits for the GPU: once it has returned RA_OK, any stream may read the outputs.
 *
 * On failure the outputs are undefined, and a GPU may still be at work on the tensors: give blocks
 * back with kernel->stream, or wait with ra_kernel_finish first. The communicator can be used again
 * only if all ranks know of the failure: ra_ring_failed_together.
 *
 * @return RA_ERR_NO_MEMORY    what a step takes was refused: comm_buffers 0, scores of `standard`,
 *                             pinned memory
 *         RA_ERR_INVALID      on all ranks: k and v of a rank that has rows are not those of
 *                             ra_ring_key_memory, where it has any
 *         RA_ERR_INVALID, RA_ERR_UNSUPPORTED  the kernel was made for another use than this; with
 *                             `standard`, another ring's forward pass came before a backward one
 *         RA_ERR_UNSUPPORTED  schedule shared, comm_buffers 0: the system refuses another window
 *         RA_ERR_CUDA         a GPU failed, or is lost (ra_device_is_lost)
 *         RA_ERR_TIMEOUT      a rank, or this rank's GPU, came no further for the deadline
 *         RA_ERR_PEER, RA_ERR_MPI, RA_ERR_NCCL  as ra_comm_start
 */
RA_CHECKED ra_status ra_ring_forward(ra_ring *ring, const ra_ring_tensors *tensors);
/**
 * Collective. Follows a forward pass on the same inputs, and dout if it was given then; needs its
 * out and lse. Writes dq, dk, dv. Streams, failures and errors as of ra_ring_forward.
 */
RA_CHECKED ra_status ra_ring_backward(ra_ring *ring, const ra_ring_tensors *tensors);

/**
 * Whether the last pass ran out of memory and every rank knows: all have returned the same status
 * at the same step, and can use the communicator. That is so with tables that take memory in their
 * steps (ra_kernel_standard), and with comm_buffers 0; another rank's failure elsewhere is known by
 * deadline or abort only.
 */
bool ra_ring_failed_together(const ra_ring *ring);

typedef enum ra_ring_mode {
    RA_RING_BOTH,
    RA_RING_COMPUTE_ONLY, /* no row is packed, sent or added on arrival; memory as in BOTH */
    RA_RING_COMM_ONLY,    /* no kernel computes */
    RA_RING_ENDS_ONLY     /* kernels compute the first and last chunk of queries of each head; all
                             else is as in BOTH: what memory a pass needs, it needs here too */
} ra_ring_mode;

/**
 * What later passes do, to measure how well computing and communication overlap, or to try out
 * memory; the same on every rank. Only BOTH gives results: after the others, outputs are
 * meaningless.
 */
void ra_ring_set_mode(ra_ring *ring, ra_ring_mode mode);

typedef struct ra_ring_info {
    ra_layout_kind layout;
    ra_schedule schedule;
    int64_t chunk; /* balanced: rows per chunk */
    int32_t head_groups, rounds;
    int step_count; /* this rank's steps with a live pair, one head group */
    double imbalance;
    int64_t live_pairs;      /* this rank's, over batch and query heads; linear: 0, has no pairs */
    int64_t tilemap_bytes;   /* of the forward map: all steps */
    int64_t full_ring_bytes; /* what all ranks together would send if every block went round:
                                forward, plus backward where it is configured */
} ra_ring_info;

/** What was decided when the ring was made; the same before, between and after passes. */
void ra_ring_read_info(const ra_ring *ring, ra_ring_info *info_out);

#ifdef __cplusplus
}
#endif
#endif
