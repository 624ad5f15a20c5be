/*
 * What a job will take and do, computed without a device, without tensors and without tile maps:
 * bytes by category, live pairs, what travels in which step, and how long steps take on a machine
 * that is described by a few numbers.
 *
 * Predictions call nothing that a pass measures: sizes of tile maps, needed rows and buffers have
 * their own formulas, so that a prediction and a ledger check each other. Only decisions and
 * definitions are shared with the ring: teams and the deal of rows, the slices of a pattern, their
 * restriction and their pairs, and what a pattern's description, the key of a pattern cache and an
 * index of runs take.
 *
 * A job of up to RA_PREDICT_RANKS_ALL ranks is counted rank by rank. Of more ranks a sample is
 * counted: the first, the last and a few between, and of long shards evenly spread chunks of
 * queries. Live pairs and the imbalance are of all ranks, by looks at evenly spread parts of long
 * pieces of rows; with layout `striped`, of sampled ranks. Random blocks are drawn and counted up
 * to RA_PREDICT_VISITS visits; beyond, counts are expected values. If there is no formula for these
 * (ra_predict), blocks are drawn up to RA_PREDICT_DRAWN_ROWS rows of them. After a sample or an
 * expected value ra_prediction.counted is false.
 * SPDX-License-Identifier: BSD-3-Clause
 */
#ifndef RINGATTN_PREDICT_H
#define RINGATTN_PREDICT_H

#include "ringattn/ring.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    RA_PREDICT_RANKS_MAX = 4096,
    RA_PREDICT_RANKS_ALL = 64,
    RA_PREDICT_DRAWN_ROWS = 32768,
    RA_PREDICT_VISITS = 1 << 22
};

/* Time of one message: latency + bytes / rate; the latency alone if the rate is not known. */
typedef struct ra_link {
    double gb_per_s; /* 1e9 bytes per second and direction, of one rank */
    double latency_us;
} ra_link;

/* What computes; each has speeds of its own. */
typedef enum ra_work {
    RA_WORK_FLASH,
    RA_WORK_STANDARD,
    RA_WORK_LINEAR, /* bidirectional */
    RA_WORK_CHUNKED,
    RA_WORK_RECURRENT,
    RA_WORK_CUMSUM, /* the three methods of the causal kind */
    RA_WORK_COUNT
} ra_work;

/* What a pass does on one rank, over batch and heads: the terms that a time is made of. */
typedef struct ra_pass_terms {
    double starts; /* kernel calls: head groups, over steps that compute */
    double pairs;  /* query-key pairs: live ones (flash), all of a step (standard), none (linear
                      kinds); cumsum: floats of states stored and read, if they pass the cache */
    double rows;   /* elements of query rows */
    double keys;   /* elements of key rows, once for each tile of queries that meets them */
    double flops;  /* per live pair 4 dim forward and 10 dim backward (flash), per pair 4 and 8
                      dim (standard); linear kinds: of their states and, chunked, of chunks */
} ra_pass_terms;

/*
 * Time of one pass:
 *     start_us * starts + pair_ns * pairs + row_element_ns * rows + key_element_ns * keys
 *         + flops / (peak * efficiency)
 * The peak is that of the elements' type for flash; all others multiply in float32 and have that of
 * f32. A flash pass takes at least as long as memory needs to bring queries, keys and values in and
 * outputs out, once; a backward pass twice that.
 */
typedef struct ra_pass_speed {
    double efficiency; /* of the peak; 0: unknown, and so is the time */
    double start_us, pair_ns, row_element_ns, key_element_ns;
} ra_pass_speed;

/* A machine in numbers, per rank. 0: not known. */
typedef struct ra_hardware {
    char name[64];
    int ranks, ranks_per_node; /* ranks: of the whole machine */
    bool shares_memory;        /* ranks of a node read each other's rows in place */
    int64_t memory_bytes;
    double memory_gb_per_s;
    int64_t cache_bytes;                       /* that states of cumsum may stay in */
    double peak_tflops[3];                     /* by ra_dtype */
    ra_pass_speed speeds[RA_WORK_COUNT][2][3]; /* by ra_work, 1: backward, and ra_dtype */
    ra_link node, network;                     /* within a node, and between nodes */
    int32_t threads;                           /* per rank, that peaks and speeds are of */
    int32_t multiprocessors;                   /* of a GPU: scratch of this build grows with them */
    double compute_capability;                 /* of a GPU, such as 9.0; 0: not known */
    int64_t context_bytes;                     /* taken by a GPU's context */
} ra_hardware;

typedef struct ra_predict_request {
    ra_ring_config ring; /* layout, schedule, groups and rounds may be auto; its cache is not used.
                            Of follow_bytes, [0] are held during the passes and [1] from the inputs
                            on; with on_device both are the host's */
    bool standard;       /* scores and weights are materialised, as the table `standard` does */
    const ra_pattern_config *pattern; /* borrowed for the call */
    int ranks;                        /* 1 to RA_PREDICT_RANKS_MAX */
    int ranks_per_node;               /* at least 1 */
    bool may_share;                   /* ranks of one node can share memory */
    int32_t tile_rows;
    bool maps_by_keys;      /* of the kernel table, as tile_rows; see ra_kernel_ops */
    ra_stored_grads stores; /* likewise, for what the job uses */
    int64_t workspace_bytes;
    int threads;         /* of a rank; what linear attention is cut for */
    ra_pool_mode pool;   /* whose classes blocks are rounded to; idle bytes are not predicted */
    ra_cache_mode cache; /* eager: maps count where they are kept */
    int64_t cache_entries, cache_bytes;
    int64_t pair_bytes;          /* pairs of blocks, held from the beginning */
    int64_t staging_bytes;       /* held while inputs are read, and given back before the passes;
                                    of layout striped alone */
    int64_t drawn_rows_max;      /* bounds of the work with random blocks, see above; */
    int64_t visits_max;          /* 0: RA_PREDICT_DRAWN_ROWS and RA_PREDICT_VISITS */
    int64_t memory_bytes;        /* what head_groups 0 and rounds 0 must fit into; INT64_MAX:
                                    anything does */
    bool on_device;              /* a GPU computes: tensors, state, buffers and copies of tile maps
                                    are in its memory, all else in the host's, without a pool */
    int64_t context_bytes;       /* of a GPU, held from the beginning */
    int64_t buffer_unit_bytes;   /* standing buffers are whole units of so many bytes, apart from
                                    the pool; 0: as all that the pool gives */
    int64_t window_bytes;        /* most host memory through which rows go to a GPU */
    const ra_hardware *hardware; /* borrowed; NULL: no times */
    ra_comm *comm;               /* borrowed; whose other ranks wait meanwhile, and get heartbeats;
                                    NULL: nobody waits */
} ra_predict_request;

/* One step of the rank that the times are of, all head groups together; 2^60 bytes at most. */
typedef struct ra_predicted_step {
    int step;                              /* its number in the plan */
    int held_from;                         /* -1: several ranks */
    double pairs;                          /* live ones, over batch and heads */
    int64_t held_bytes, sent_bytes;        /* keys and values, one pass */
    int64_t grad_in_bytes, grad_out_bytes; /* backward */
    bool crosses_nodes;
    double forward_ms[2], backward_ms[2]; /* computing, communication */
} ra_predicted_step;

typedef struct ra_predicted_pass {
    double total_ms, compute_ms, comm_ms, exposed_ms;
    double overlap;      /* (compute + comm - total) / min(compute, comm); NAN if that is 0 */
    double flops;        /* of all ranks */
    ra_pass_terms terms; /* of the slowest rank, with or without times */
} ra_predicted_pass;

typedef struct ra_prediction {
    bool exact;         /* bytes are those of a ledger: all was counted, no pool keeps memory idle,
                           no pattern cache evicts maps or keeps those of other numbers of rounds,
                           tried before these, or shares those of parts without queries, or gives
                           way to a limit, no other plans were made that did not fit, and tensors
                           are there at the peak: it is neither where blocks are drawn or listed,
                           nor where tile maps are cut, whose scratch is not predicted */
    bool counted;       /* every rank and every chunk was followed, and every block, of all layouts
                           that were compared */
    bool may_keep_idle; /* a pool is on, and what it keeps idle comes on top, category pool_idle */
    bool blocks_expected; /* random blocks were not drawn: counts are expected values */
    int ranks, ranks_followed;
    ra_layout_kind layout;
    bool left_out[RA_LAYOUT_AUTO]; /* layouts that auto did not try: too much to count */
    ra_schedule schedule;
    bool hops_left_out; /* more ranks than hops are planned for: direct stands for ring, and says
                           too much of what is sent between nodes */
    int64_t chunk;
    int32_t head_groups, rounds;
    double imbalance;
    double live_pairs; /* of all ranks, batch and query heads */

    /* Of the rank that holds most. */
    int fullest_rank;
    int64_t rows; /* its queries */
    /* Of its GPU's memory, if one computes. Scores and states of cumsum count for 2^60 at most. */
    int64_t memory_bytes[RA_MEM_CATEGORY_COUNT], peak_bytes;
    int64_t host_memory_bytes[RA_MEM_CATEGORY_COUNT], host_peak_bytes; /* beside a GPU's; else 0 */
    int64_t floor_bytes;   /* q, k, v and o in their dtype; with backward lse, do and gradients */
    int64_t tilemap_bytes; /* of the largest rank's maps, as ra_ring_info has them */

    /* Of all ranks, one forward pass and, where configured, one backward pass. */
    double sent_bytes, sent_network_bytes, full_ring_bytes;

    ra_work work;
    bool has_times;
    int slowest_rank;
    int step_count;           /* 0: linear attention, whose states take turns over the ranks */
    ra_predicted_step *steps; /* of that rank; owned */
    ra_predicted_pass forward, backward;
    double balance_rows; /* rows per shard from which communication hides behind computing; NAN */
} ra_prediction;

/**
 * Predict a job. Time and memory grow with ranks, not rows: seconds for 4,096 ranks and 1e9 rows,
 * but with rows where dilated branches need some rows of an owner and not others.
 * Jobs with more pairs than a ring can count are planned, too.
 *
 * @return RA_ERR_CONFIG       what ra_pattern_create refuses, already logged
 *         RA_ERR_INVALID      a configuration that no ring has, whatever its pattern; one line
 *         RA_ERR_UNSUPPORTED  too large to be followed: layout balanced over too many chunks,
 *                             schedule ring over too many ranks; dilated branches, a dense mask or
 *                             layout balanced with more rows of random blocks than are drawn; a
 *                             layout that cuts the pattern into too many pieces (striped over some
 *                             hundreds of ranks, where it is strided or much cut); one logged line
 *         RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_predict(const ra_predict_request *request, ra_prediction *prediction_out);
void ra_prediction_fini(ra_prediction *prediction); /* a zeroed one is fine */

#ifdef __cplusplus
}
#endif
#endif
