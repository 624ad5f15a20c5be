/*
 * When work on a GPU's streams really ran: spans between two points of a stream, each with numbers
 * by which whoever asked for it knows it, read when the work is over.
 *
 * A timeline belongs to one rank and one GPU, and is used by one thread at a time. Its spans are
 * fixed in number and made at create; where they are used up, or where the GPU's runtime refuses
 * one, there is no span, which is no error: nothing that is computed depends on it. NULL is a
 * timeline that has no spans. Not yet run on a device.
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

/* Nanoseconds of the host's CLOCK_MONOTONIC; begin <= end. */
typedef struct ra_span {
    int64_t begin_ns, end_ns;
    int64_t first; /* numbers [first, first + count) of whoever asked for it */
    int32_t count;
} ra_span;

/* What an exchange is to be timed as; a NULL line: it is not. */
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
 * Forget all spans, and fix the GPU's clock to the host's: a point of `stream`, which has nothing
 * to do, between two looks at the host's clock. All later times are as far off as half of what lies
 * between them, some microseconds. Waits for the stream, at most a second.
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
 * @return false where it has none: it was not ended, or the GPU's runtime failed
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
