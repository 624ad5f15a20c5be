/* A whole job on ranks that are threads of this process, for ring tests. */
#ifndef TESTS_RING_RING_JOB_H
#define TESTS_RING_RING_JOB_H

#include "ringattn/trace.h"
#include "support/refusing_memory.h"
#include "support/test_rng.h"

enum { RING_JOB_RANKS_MAX = 8, RING_JOB_VICTIM = 1 };

/* What to run. Tensors are global: [batch, seq, heads, dim] in the job's dtype. */
typedef struct ring_job {
    ra_ring_config config;
    ra_pattern_config pattern;
    int ranks, threads;
    const ra_kernel_ops *kernel; /* NULL: the CPU's best */
    bool two_pools;              /* plans and maps come from another pool than the kernel's */
    ra_memory kernel_memory;     /* with two pools, where the kernel computes; zeros: on the host */
    int hosts[RING_JOB_RANKS_MAX]; /* of each rank, as ra_comm_hosts gives them; zeros: one host */
    int64_t limit_bytes;           /* per rank; 0: none */
    ra_pool_mode pool_mode;
    const void *q, *k, *v, *dout;
    void *out, *dq, *dk, *dv; /* written; gradients where config.backward */
    float *lse;               /* [batch, heads, seq] */
    int64_t timeout_ms;
    ra_ring_mode mode; /* 0: both, with results */
    /* Bits of ranks that do not use the ring's memory, forward and backward: even ranks not for
       keys, odd ones not for values. */
    unsigned stray_keys[2];

    /* Wraps a rank's communicator before use; NULL: none. */
    ra_comm *(*wrap_comm)(void *context, int rank, ra_comm *comm);
    void *wrap_context;
    refusing_memory *refusing; /* the victim's memory; its inner one is set; NULL: none */
    bool refuses_rank_0;       /* whose memory it is instead, as it decides for all */

    /* Of each rank, attached to its pool for the job; NULL: none. */
    ra_pattern_cache *caches[RING_JOB_RANKS_MAX];

    /* Set in the kernel before the passes, with the job for its context; NULL: none. */
    ra_kernel_poll *poll;

    /* Called on every rank's thread after the passes of a trace of so many events; 0: none. */
    int64_t trace_capacity;
    void (*take_trace)(void *context, const ra_ring *ring, int rank, const ra_trace *trace);
    void *trace_context;

    ra_ledger_snapshot *standing; /* [ranks] written: what is held after the passes; or NULL */

    /* Results, sums or maxima over ranks. */
    ra_status status;  /* the first that is not RA_OK, lowest rank first */
    bool same_status;  /* on all ranks */
    ra_ring_info info; /* rank 0's */
    int64_t sent_bytes, live_pairs, peak_bytes, leaked_bytes, tilemap_bytes;
    bool poll_stayed; /* in the kernel, on all ranks, after every pass */
    bool left_comm;   /* an ended ring leaves nothing of its kernel and trace in the communicator */
    bool in_pass;     /* it ended in a pass, on a rank at least */
    /* All ranks knew that a pass had failed (ra_ring_failed_together), and met then. */
    bool failed_together;
} ring_job;

/* Runs the job; every rank takes part to its end or its error. */
void ring_job_run(ring_job *job);

/* Takes memory for the tensors of its configuration: zeros, and one tensor for all four inputs. */
void ring_job_take_tensors(ring_job *job);
void ring_job_free(ring_job *job); /* only of one that has taken it so, or is all zeros */

/* A dense f32 job of one head with zeros for inputs and memory of its own, to be changed at will.
 */
ring_job ring_job_plain(int ranks, int64_t seq, int32_t dim);
/* The same of several heads, with sines for all four inputs, causal, zigzag and with a deadline. */
ring_job ring_job_heads(int ranks, int64_t seq, int32_t heads, int32_t kv_heads, int32_t dim,
                        ra_dtype dtype);
/* The same of one head in f32; linear attention where the schedule is that of scans, which only
   this takes. */
ring_job ring_job_waves(int ranks, int64_t seq, int32_t dim, int buffers, ra_schedule schedule);
/* A number of head groups that the configuration can be computed in, parts of queries among them.
 */
int32_t ring_job_draw_groups(test_rng *rng, const ra_ring_config *config);
/* A layout without a ring; auto is chosen for ranks that share nothing. */
ra_status ring_job_layout(ra_layout_kind kind, const ra_pattern *pattern, int ranks, ra_pool *pool,
                          ra_layout *layout_out);

#endif
