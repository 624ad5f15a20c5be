/*
 * Recording events. An event takes its place when it begins and gets its end later, so the array is
 * in order of beginnings, and if it is full, lost events lie inside kept ones.
 */
#include "internal.h"
#include "ring/ring_internal.h"

#include <stdlib.h>

enum { ALIGN_ROUNDS = 9, SPANS_MAX = 1 << 14, OPEN_MAX = 8 };

/* A compute event that has begun. */
typedef struct open_event {
    int64_t mark;
    int32_t span; /* -1: it is not timed on a device */
} open_event;

struct ra_trace {
    ra_pool *pool;
    ra_block block;
    ra_trace_event *events;
    int64_t capacity, count, lost;
    int64_t origin_ns;
    /* Where the passes are. */
    int32_t next_repetition, repetition, group;
    int16_t backward;
    /* On a device: its stream, and the compute events that have begun there, outermost first. */
    ra_stream *stream;
    ra_timeline *line; /* NULL: there is no device, or it gives no times */
    bool on_device;
    int64_t pass_first, untimed;
    open_event open[OPEN_MAX];
    int open_count;
};

static const struct {
    const char *name;
    ra_trace_track track;
} kinds[RA_TRACE_KIND_COUNT] = {
    [RA_TRACE_FORWARD] = {"forward", RA_TRACK_COMPUTE},
    [RA_TRACE_BACKWARD] = {"backward", RA_TRACK_COMPUTE},
    [RA_TRACE_GROUP] = {"head group", RA_TRACK_COMPUTE},
    [RA_TRACE_STEP] = {"step", RA_TRACK_COMPUTE},
    [RA_TRACE_FORWARD_KERNEL] = {"forward kernel", RA_TRACK_COMPUTE},
    [RA_TRACE_BACKWARD_KERNEL] = {"backward kernel", RA_TRACK_COMPUTE},
    [RA_TRACE_DELTA] = {"delta", RA_TRACK_COMPUTE},
    [RA_TRACE_ZERO] = {"zero", RA_TRACK_COMPUTE},
    [RA_TRACE_PACK] = {"pack", RA_TRACK_COMPUTE},
    [RA_TRACE_ADD] = {"add", RA_TRACK_COMPUTE},
    [RA_TRACE_STORE] = {"store", RA_TRACK_COMPUTE},
    [RA_TRACE_BARRIER] = {"barrier", RA_TRACK_WAITS},
    [RA_TRACE_SEND_KEYS] = {"send keys", RA_TRACK_KEYS},
    [RA_TRACE_RECEIVE_KEYS] = {"receive keys", RA_TRACK_KEYS},
    [RA_TRACE_WAIT_KEYS] = {"wait for keys", RA_TRACK_WAITS},
    [RA_TRACE_SEND_GRADS] = {"send gradients", RA_TRACK_GRADS},
    [RA_TRACE_RECEIVE_GRADS] = {"receive gradients", RA_TRACK_GRADS},
    [RA_TRACE_WAIT_GRADS] = {"wait for gradients", RA_TRACK_WAITS},
    [RA_TRACE_SCAN] = {"scan states", RA_TRACK_WAITS},
};

const char *ra_trace_kind_name(ra_trace_kind kind)
{
    RA_ASSERT((size_t)kind < RA_TRACE_KIND_COUNT);
    return kinds[kind].name;
}

ra_trace_track ra_trace_kind_track(ra_trace_kind kind)
{
    RA_ASSERT((size_t)kind < RA_TRACE_KIND_COUNT);
    return kinds[kind].track;
}

const char *ra_trace_track_name(ra_trace_track track)
{
    static const char *const names[RA_TRACK_COUNT] = {
        [RA_TRACK_COMPUTE] = "compute",
        [RA_TRACK_KEYS] = "communication: keys and values",
        [RA_TRACK_GRADS] = "communication: gradients",
        [RA_TRACK_WAITS] = "waits",
    };
    RA_ASSERT((size_t)track < RA_TRACK_COUNT);
    return names[track];
}

/* ---- the trace ------------------------------------------------------------------------------- */

ra_status ra_trace_create(ra_pool *pool, int64_t capacity, int32_t first_repetition,
                          ra_trace **trace_out)
{
    RA_ASSERT(capacity >= 1 && capacity <= INT64_MAX / (int64_t)sizeof(ra_trace_event));
    ra_trace *trace = calloc(1, sizeof(*trace));
    if (trace == NULL)
        return ra_refuse_memory("a trace");
    ra_status const status = ra_pool_alloc(
        pool, RA_MEM_IO, (size_t)capacity * sizeof(*trace->events), NULL, &trace->block);
    if (status != RA_OK)
        goto err_free_trace;
    trace->pool = pool;
    trace->events = trace->block.data;
    trace->capacity = capacity;
    trace->next_repetition = first_repetition;
    trace->origin_ns = ra_clock_ns();
    *trace_out = trace;
    return RA_OK;

err_free_trace:
    free(trace);
    return status;
}

void ra_trace_destroy(ra_trace *trace)
{
    if (trace == NULL)
        return;
    ra_timeline_destroy(trace->line);
    ra_pool_free(trace->pool, NULL, &trace->block);
    free(trace);
}

ra_status ra_trace_align(ra_trace *trace, ra_comm *comm)
{
    static const char operation[] = "agreeing on the trace's clock";
    int64_t mine[ALIGN_ROUNDS], first[ALIGN_ROUNDS];
    ra_status status = RA_OK;
    for (int i = 0; i < ALIGN_ROUNDS && status == RA_OK; ++i) {
        status = ra_comm_barrier(comm, operation);
        first[i] = mine[i] = ra_clock_ns();
    }
    if (status == RA_OK)
        status = ra_comm_broadcast(comm, operation, 0, first, sizeof(first));
    if (status != RA_OK)
        return status;
    /* The first round is the origin, so all that follows the last has a time above 0. */
    trace->origin_ns = first[0];
    for (int i = 0; i < ALIGN_ROUNDS; ++i)
        mine[i] -= first[i];
    qsort(mine, ALIGN_ROUNDS, sizeof(mine[0]), ra_compare_i64);
    /* How far the clock of this rank's host is ahead of rank 0's, as its first rank has it. */
    int64_t shift_ns = mine[ALIGN_ROUNDS / 2];
    status = ra_comm_broadcast_by_host(comm, operation, &shift_ns, sizeof(shift_ns));
    trace->origin_ns += shift_ns;
    return status;
}

const ra_trace_event *ra_trace_events(const ra_trace *trace, int64_t *count_out)
{
    *count_out = trace->count;
    return trace->events;
}

int64_t ra_trace_lost(const ra_trace *trace)
{
    return trace->lost;
}

int64_t ra_trace_untimed(const ra_trace *trace)
{
    return trace->untimed;
}

/* ---- events ---------------------------------------------------------------------------------- */

int64_t ra_trace_begin(ra_trace *trace, ra_trace_kind kind, int step, int peer, int64_t bytes,
                       int64_t rows)
{
    if (trace->count == trace->capacity) {
        ++trace->lost;
        return -1;
    }
    int64_t const now_ns = ra_clock_ns() - trace->origin_ns;
    trace->events[trace->count] = (ra_trace_event){.begin_ns = now_ns,
                                                   .end_ns = now_ns,
                                                   .bytes = bytes,
                                                   .rows = rows,
                                                   .step = step,
                                                   .group = trace->group,
                                                   .peer = peer,
                                                   .repetition = trace->repetition,
                                                   .kind = kind,
                                                   .backward = trace->backward};
    if (trace->line != NULL && kinds[kind].track == RA_TRACK_COMPUTE) {
        RA_ASSERT(trace->open_count < OPEN_MAX);
        trace->open[trace->open_count++] =
            (open_event){.mark = trace->count,
                         .span = ra_timeline_begin(trace->line, trace->stream, trace->count, 1)};
    }
    return trace->count++;
}

void ra_trace_end(ra_trace *trace, int64_t mark)
{
    trace->events[mark].end_ns = ra_clock_ns() - trace->origin_ns;
    if (trace->open_count == 0 || trace->open[trace->open_count - 1].mark != mark)
        return; /* not work of a device, or the device times nothing */
    ra_timeline_end(trace->line, trace->stream, trace->open[--trace->open_count].span);
}

void ra_ring_set_trace(ra_ring *ring, ra_trace *trace)
{
    ra_kernel *const kernel = ring->kernel;
    ring->trace = trace;
    if (trace == NULL || trace->on_device || kernel->ops->timeline == NULL)
        return;
    int64_t const spans = ra_min_i64(ra_ring_trace_bound(ring), SPANS_MAX);
    trace->on_device = true;
    trace->stream = kernel->stream;
    trace->line = kernel->ops->timeline(kernel, (int32_t)ra_min_i64(spans, trace->capacity));
}

/* ---- times of a device ----------------------------------------------------------------------- */

/* Events of a GPU's work without its time keep the host's, and are counted. */
static void count_untimed(ra_trace *trace)
{
    for (int64_t i = trace->pass_first; i < trace->count; ++i) {
        const ra_trace_event *const e = &trace->events[i];
        trace->untimed += !e->device && kinds[e->kind].track != RA_TRACK_WAITS;
    }
}

static void take_times(ra_trace *trace)
{
    int32_t const spans = trace->line != NULL ? trace->line->count : 0;
    ra_span span;
    for (int32_t i = 0; i < spans; ++i) {
        if (!ra_timeline_read(trace->line, i, &span))
            continue;
        for (int32_t n = 0; n < span.count; ++n) {
            ra_trace_event *const e = &trace->events[span.first + n];
            e->begin_ns = span.begin_ns - trace->origin_ns;
            e->end_ns = span.end_ns - trace->origin_ns;
            e->device = 1;
        }
    }
}

ra_timed ra_ring_timed(const ra_ring *ring, int64_t first, int32_t count)
{
    return ring->trace == NULL || count == 0 ? (ra_timed){0}
                                             : (ra_timed){ring->trace->line, first, count};
}

int64_t ra_ring_mark_pass(const ra_ring *ring, ra_trace_kind kind)
{
    ra_trace *trace = ring->trace;
    if (trace == NULL)
        return -1;
    trace->backward = kind == RA_TRACE_BACKWARD;
    trace->group = -1;
    if (!trace->backward)
        trace->repetition = trace->next_repetition++;
    trace->pass_first = trace->count;
    trace->open_count = 0;
    ra_timeline_anchor(trace->line, trace->stream);
    return ra_trace_begin(trace, kind, -1, -1, -1, ra_ring_local_rows(ring));
}

void ra_ring_mark_pass_end(const ra_ring *ring, int64_t mark, ra_status status)
{
    ra_trace *trace = ring->trace;
    ra_ring_mark_end(ring, mark);
    if (trace == NULL || !trace->on_device || status != RA_OK)
        return;
    take_times(trace);
    count_untimed(trace);
}

int64_t ra_ring_mark_group(const ra_ring *ring, int32_t group)
{
    if (ring->trace == NULL)
        return -1;
    ring->trace->group = group;
    return ra_trace_begin(ring->trace, RA_TRACE_GROUP, -1, -1, -1, -1);
}

int64_t ra_ring_mark_step(const ra_ring *ring, const ra_plan *plan, int s)
{
    const ra_step *step = &plan->steps[s];
    if (ring->trace == NULL)
        return -1;
    if (s > 0 && step->map.run_count == 0 && step->held_rows == 0 && step->sent_rows == 0 &&
        step->grad_rows == 0 && step->grad_in_rows == 0)
        return -1; /* nothing to do: no step */
    return ra_trace_begin(ring->trace, RA_TRACE_STEP, s, ra_step_owner(step), -1, step->map.k_rows);
}

/*
 * Per pass: the pass, two barriers around it, three outputs zeroed, delta. Per group: the group,
 * zero twice, store three times, two barriers. Per step: the step, zero, pack, add, three barriers,
 * and sending, receiving and waiting for keys and for gradients; a kernel in forward, and in
 * backward a kernel and a barrier for each turn. Backward comes to the own step twice. Linear
 * attention: the pass, and per group the group, four scans, and three kernels.
 */
int64_t ra_ring_trace_bound(const ra_ring *ring)
{
    enum { PASS = 7, GROUP = 8, FORWARD_STEP = 8, BACKWARD_STEP = 13, TURN = 2 };
    if (ring->schedule == RA_SCHEDULE_SCAN)
        return (1 + 8 * (int64_t)ring->group_count) * (ring->config.backward ? 2 : 1);
    int64_t const steps = ring->plans[0].step_count, turns = ra_ring_team_size(ring);
    int64_t const forward = PASS + ring->group_count * (GROUP + FORWARD_STEP * steps);
    int64_t const backward =
        PASS + ring->group_count * (GROUP + (BACKWARD_STEP + TURN * turns) * (steps + 1));
    return forward + (ring->config.backward ? backward : 0);
}
