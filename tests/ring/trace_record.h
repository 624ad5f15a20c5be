/* What a rank's trace held at the end of a job, and what holds of all of them; for ring tests. */
#ifndef TESTS_RING_TRACE_RECORD_H
#define TESTS_RING_TRACE_RECORD_H

#include "ringattn/trace.h"

typedef struct trace_record {
    ra_trace_event *events;
    int64_t count, lost, untimed, bound;
} trace_record;

/* As ring_job.take_trace: keeps it in ((trace_record *)context)[rank]. */
void trace_record_take(void *context, const ra_ring *ring, int rank, const ra_trace *trace);
void trace_records_forget(trace_record *records, int ranks);

/* Events [first, end): each track is in order, and on it they are apart or nested. */
void trace_record_check(const trace_record *record, int64_t first, int64_t end);

/* The one of a kind of a step; NULL: none. Two fail the test. */
const ra_trace_event *trace_record_find(const trace_record *record, ra_trace_kind kind,
                                        int backward, int group, int step);
int64_t trace_record_count(const trace_record *record, ra_trace_kind kind);
int64_t trace_record_bytes(const trace_record *record, ra_trace_kind kind);

#endif
