#include "ring/trace_record.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

void trace_record_take(void *context, const ra_ring *ring, int rank, const ra_trace *trace)
{
    trace_record *mine = (trace_record *)context + rank;
    const ra_trace_event *events = ra_trace_events(trace, &mine->count);
    mine->lost = ra_trace_lost(trace);
    mine->untimed = ra_trace_untimed(trace);
    mine->bound = ra_ring_trace_bound(ring);
    mine->events = malloc((size_t)mine->count * sizeof(*events) + 1);
    if (mine->events != NULL)
        memcpy(mine->events, events, (size_t)mine->count * sizeof(*events));
}

void trace_records_forget(trace_record *records, int ranks)
{
    for (int r = 0; r < ranks; ++r)
        free(records[r].events);
    memset(records, 0, (size_t)ranks * sizeof(*records));
}

/* Open events of a track are a stack; what begins lies in what is open, or after it. */
static void check_track(const trace_record *record, ra_trace_track track, int64_t first,
                        int64_t end)
{
    const ra_trace_event *open[16];
    int depth = 0;
    int64_t last_ns = INT64_MIN;
    for (int64_t i = first; i < end; ++i) {
        const ra_trace_event *e = &record->events[i];
        if (ra_trace_kind_track((ra_trace_kind)e->kind) != track)
            continue;
        const char *name = ra_trace_kind_name((ra_trace_kind)e->kind);
        cr_assert_geq(e->begin_ns, last_ns, "%s is out of order", name);
        cr_assert_geq(e->end_ns, e->begin_ns, "%s ends before it begins", name);
        last_ns = e->begin_ns;
        while (depth > 0 && open[depth - 1]->end_ns <= e->begin_ns &&
               open[depth - 1]->end_ns < e->end_ns)
            --depth;
        if (depth > 0)
            cr_assert_leq(e->end_ns, open[depth - 1]->end_ns, "%s ends after the %s it began in",
                          name, ra_trace_kind_name((ra_trace_kind)open[depth - 1]->kind));
        cr_assert_lt(depth, 16);
        open[depth++] = e;
    }
}

void trace_record_check(const trace_record *record, int64_t first, int64_t end)
{
    for (int track = 0; track < RA_TRACK_COUNT; ++track)
        check_track(record, (ra_trace_track)track, first, end);
}

const ra_trace_event *trace_record_find(const trace_record *record, ra_trace_kind kind,
                                        int backward, int group, int step)
{
    const ra_trace_event *found = NULL;
    for (int64_t i = 0; i < record->count; ++i) {
        const ra_trace_event *e = &record->events[i];
        if (e->kind != (int32_t)kind || e->backward != backward || e->group != group ||
            e->step != step)
            continue;
        cr_assert_null(found, "%s of step %d twice", ra_trace_kind_name(kind), step);
        found = e;
    }
    return found;
}

int64_t trace_record_count(const trace_record *record, ra_trace_kind kind)
{
    int64_t count = 0;
    for (int64_t i = 0; i < record->count; ++i)
        count += record->events[i].kind == (int32_t)kind;
    return count;
}

int64_t trace_record_bytes(const trace_record *record, ra_trace_kind kind)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < record->count; ++i)
        if (record->events[i].kind == (int32_t)kind)
            sum += record->events[i].bytes;
    return sum;
}
