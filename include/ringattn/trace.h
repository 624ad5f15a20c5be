/*
 * What a rank did, and when: events of the forward and backward pass, for a picture on a time line.
 *
 * A trace is an array of events of fixed length. What comes when it is full is counted, not kept;
 * nothing is allocated after create. A ring without a trace pays one branch per event and never
 * reads a clock; results do not depend on it.
 *
 * Events lie on tracks. On one track any two events are apart or one contains the other, and their
 * order in the array is that of their beginnings, the containing one first. Kernel calls of the CPU
 * are over when they return. A transfer of host memory lasts from its posting until the wait for it
 * returns: one that arrived while kernels ran shows as a wait of length 0.
 *
 * On a GPU, computing and transfers have the device's times (timeline.h), from when the stream came
 * to them until it was through, read after each pass and right to some microseconds; waits have the
 * host's. If the device gave no time, an event has the host's, of when it was handed on: `device`
 * is 0, and ra_trace_untimed counts it.
 *
 * Times count nanoseconds of CLOCK_MONOTONIC from an origin that ra_trace_align makes common.
 * SPDX-License-Identifier: BSD-3-Clause
 */
#ifndef RINGATTN_TRACE_H
#define RINGATTN_TRACE_H

#include "ringattn/ring.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ra_trace_kind {
    RA_TRACE_FORWARD, /* passes; they contain all that follows */
    RA_TRACE_BACKWARD,
    RA_TRACE_GROUP, /* one head group of a pass */
    RA_TRACE_STEP,  /* one step of it; its keys are those of `peer`. Backward, step 0 may come
                       twice, with some of the heads, or none, each time */
    RA_TRACE_FORWARD_KERNEL,
    RA_TRACE_BACKWARD_KERNEL,
    RA_TRACE_DELTA, /* sum of out * dout per row */
    RA_TRACE_ZERO,  /* accumulators begin at 0 */
    RA_TRACE_PACK,  /* gather those of our rows that `peer` needs */
    RA_TRACE_ADD,   /* add the gradients that came from `peer` */
    RA_TRACE_STORE, /* round gradients into the outputs */
    RA_TRACE_BARRIER,
    RA_TRACE_SEND_KEYS, /* from posting to arrival */
    RA_TRACE_RECEIVE_KEYS,
    RA_TRACE_WAIT_KEYS,
    RA_TRACE_SEND_GRADS,
    RA_TRACE_RECEIVE_GRADS,
    RA_TRACE_WAIT_GRADS,
    RA_TRACE_SCAN, /* linear attention: states of the ranks before, or after */
    RA_TRACE_KIND_COUNT
} ra_trace_kind;

typedef enum ra_trace_track {
    RA_TRACK_COMPUTE,
    RA_TRACK_KEYS,  /* keys and values on their way */
    RA_TRACK_GRADS, /* gradients on their way; they overlap with keys */
    RA_TRACK_WAITS, /* the host, waiting for either, in barriers and scans */
    RA_TRACK_COUNT
} ra_trace_track;

/* Plain numbers, so that events travel between processes. -1: does not apply. */
typedef struct ra_trace_event {
    int64_t begin_ns, end_ns; /* end >= begin */
    int64_t bytes, rows;      /* what is moved, or read as keys */
    int32_t step;
    int32_t group; /* head group */
    int32_t peer;  /* a wait for both directions names the rank that it receives from */
    int32_t repetition;
    int32_t kind;     /* ra_trace_kind */
    int16_t backward; /* 1: of a backward pass */
    int16_t device;   /* 1: its times are a GPU's */
} ra_trace_event;

RA_STATIC_ASSERT(sizeof(ra_trace_event) == 56, "events cross between processes");

typedef struct ra_trace ra_trace;

/** Static text: "forward kernel", "send keys"; and of a track: "compute". */
const char *ra_trace_kind_name(ra_trace_kind kind);
const char *ra_trace_track_name(ra_trace_track track);
ra_trace_track ra_trace_kind_track(ra_trace_kind kind);

/**
 * Take memory (category io) for `capacity` (>= 1) events. A trace belongs to one rank.
 *
 * @param first_repetition  what the first forward pass is called, the next ones counting on; a
 *                          negative one is a warm-up
 * @return RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_trace_create(ra_pool *pool, int64_t capacity, int32_t first_repetition,
                                     ra_trace **trace_out);
/** The ring that was given the trace must not run a pass any more. NULL is fine. */
void ra_trace_destroy(ra_trace *trace);

/**
 * Collective, before the first pass: one origin for the times of all ranks. Ranks of one host share
 * its clock, and agree exactly. Across hosts, ranks note when they leave a few barriers: the median
 * difference between a host's first rank and rank 0 is its clock's offset, right to about the time
 * that a barrier takes. Errors of collectives.
 */
RA_CHECKED ra_status ra_trace_align(ra_trace *trace, ra_comm *comm);

/** The events so far; borrowed until the next pass. */
const ra_trace_event *ra_trace_events(const ra_trace *trace, int64_t *count_out);
/** Events that came when the array was full. */
int64_t ra_trace_lost(const ra_trace *trace);
/** Events of a GPU's work that have the host's times. */
int64_t ra_trace_untimed(const ra_trace *trace);

/**
 * Record later passes in `trace`, which is borrowed; NULL: no more. If kernels run on a device, the
 * first call makes events there, two for each event of a pass that the trace has room for
 * (ra_ring_trace_bound, capacity) and at most 2^15; if that fails, a warning says so, and times are
 * the host's.
 */
void ra_ring_set_trace(ra_ring *ring, ra_trace *trace);
/** Most events that one forward pass, and one backward pass where it is configured, make here. */
int64_t ra_ring_trace_bound(const ra_ring *ring);

#ifdef __cplusplus
}
#endif
#endif
