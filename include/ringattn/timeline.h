/*
 * GPU intervals ("spans"), each measured by a pair of CUDA events on a stream and tagged by the
 * caller with a range of numbers, that of trace events; read when the work is over.
 *
 * A timeline belongs to one rank and one GPU, and is used by one thread at a time. All spans are
 * made at create; if they are used up, or the GPU's runtime refuses one, there is no span. That is
 * no error: no result depends on it. NULL is a timeline without spans, but to ra_timeline_read.
 * SPDX-License-Identifier: BSD-3-Clause
 */
#ifndef RINGATTN_TIMELINE_H
#define RINGATTN_TIMELINE_H

#include "ringattn/status.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ra_stream ra_stream; /* pool.h */
typedef struct ra_timeline ra_timeline;

/* A GPU interval in nanoseconds of the host's CLOCK_MONOTONIC; begin <= end. */
typedef struct ra_span {
    int64_t begin_ns, end_ns;
    int64_t first; /* the caller's tag: events [first, first + count) of its trace */
    int32_t count;
} ra_span;

/* The timeline and the tag for the interval of an exchange; a NULL line: it is not timed. */
typedef struct ra_timed {
    ra_timeline *line; /* borrowed */
    int64_t first;
    int32_t count;
} ra_timed;

typedef struct ra_timeline_ops {
    void (*anchor)(ra_timeline *line, ra_stream *stream);
    int32_t (*begin)(ra_timeline *line, ra_stream *stream, int64_t first, int32_t count);
    void (*end)(ra_timeline *line, ra_stream *stream, int32_t span);
    bool (*read)(ra_timeline *line, int32_t span, ra_span *span_out);
    void (*destroy)(ra_timeline *line);
} ra_timeline_ops;

/* The head of every timeline; a maker's own struct begins with it. */
struct ra_timeline {
    const ra_timeline_ops *ops;
    int32_t count; /* spans begun since the anchor */
};

/**
 * Forget all spans, and align the GPU's clock with the host's: an event on `stream`, which must be
 * idle, between two readings of the host's clock. All later times are off by at most half of the
 * time between these, some microseconds. Waits for the stream, at most a second.
 */
static inline void ra_timeline_anchor(ra_timeline *line, ra_stream *stream)
{
    if (line != NULL)
        line->ops->anchor(line, stream);
}

/** Begin a span behind what is on the stream. @return for ra_timeline_end; -1: there is none */
static inline int32_t ra_timeline_begin(ra_timeline *line, ra_stream *stream, int64_t first,
                                        int32_t count)
{
    return line != NULL ? line->ops->begin(line, stream, first, count) : -1;
}

/** End it behind what is on the stream now, which may be another one of the GPU. -1: nothing. */
static inline void ra_timeline_end(ra_timeline *line, ra_stream *stream, int32_t span)
{
    if (span >= 0)
        line->ops->end(line, stream, span);
}

/**
 * The times of span 0, 1, … count - 1. To be called when its work is known to be done; waits up to
 * a second for what the runtime has not noticed yet.
 * @return false: it has none, because it was not ended or the GPU's runtime failed
 */
static inline bool ra_timeline_read(ra_timeline *line, int32_t span, ra_span *span_out)
{
    return line->ops->read(line, span, span_out);
}

static inline void ra_timeline_destroy(ra_timeline *line)
{
    if (line != NULL)
        line->ops->destroy(line);
}

#ifdef __cplusplus
}
#endif
#endif
