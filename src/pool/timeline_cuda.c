/*
 * Spans between events of the CUDA runtime. Events of all streams of a GPU share its clock, so one
 * event whose host time is known serves all.
 */
#include "timeline_cuda.h"
#include "cuda_error.h"
#include "internal.h"
#include "ringattn/device.h"

#include <math.h>
#include <stdlib.h>

enum { ANCHORS = 4 }; /* the one that the host has seen soonest counts */

static int64_t const patience_ns = 1000000000;

typedef struct cuda_span {
    cudaEvent_t begin, end;
    int64_t first;
    int32_t count;
    bool ended;
} cuda_span;

typedef struct cuda_timeline {
    ra_timeline base;
    int device;
    bool failed; /* logged; the runtime is not asked any more */
    int32_t capacity;
    cudaEvent_t anchors[ANCHORS], anchor;
    int64_t anchor_ns;
    cuda_span spans[];
} cuda_timeline;

/* The first failure is logged; after it the runtime is not asked any more. */
static bool is_good(cuda_timeline *t, cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return true;
    if (!t->failed)
        ra_cuda_warn(error, "times of the GPU's work are not to be had: %s failed", what);
    t->failed = true;
    return false;
}

/* ---- the host's clock ------------------------------------------------------------------------ */

cudaError_t ra_cuda_wait_briefly(cudaEvent_t event)
{
    int64_t const begin_ns = ra_clock_ns();
    cudaError_t error = cudaSuccess;
    do {
        error = ra_cuda_forget(cudaEventQuery(event));
    } while (error == cudaErrorNotReady && ra_clock_ns() - begin_ns < patience_ns);
    return error;
}

static void cuda_anchor(ra_timeline *line, ra_stream *stream)
{
    cuda_timeline *const t = (cuda_timeline *)line;
    int64_t best_ns = INT64_MAX;
    line->count = 0;
    if (t->failed)
        return;
    cudaError_t error = cudaSetDevice(t->device);
    for (int i = 0; i < ANCHORS && error == cudaSuccess; i++) {
        int64_t const before_ns = ra_clock_ns();
        error = cudaEventRecord(t->anchors[i], (cudaStream_t)stream);
        if (error == cudaSuccess)
            error = ra_cuda_wait_briefly(t->anchors[i]);
        int64_t const took_ns = ra_clock_ns() - before_ns;
        if (took_ns >= best_ns)
            continue;
        best_ns = took_ns;
        t->anchor = t->anchors[i];
        t->anchor_ns = before_ns + took_ns / 2;
    }
    (void)is_good(t, error, "comparing its clock");
}

/* ---- spans ----------------------------------------------------------------------------------- */

static int32_t cuda_begin(ra_timeline *line, ra_stream *stream, int64_t first, int32_t count)
{
    cuda_timeline *const t = (cuda_timeline *)line;
    cuda_span *const span = &t->spans[line->count];
    if (t->failed || line->count == t->capacity)
        return -1;
    if (!is_good(t, cudaEventRecord(span->begin, (cudaStream_t)stream), "recording an event"))
        return -1;
    span->first = first;
    span->count = count;
    span->ended = false;
    return line->count++;
}

static void cuda_end(ra_timeline *line, ra_stream *stream, int32_t index)
{
    cuda_timeline *const t = (cuda_timeline *)line;
    cuda_span *const span = &t->spans[index];
    if (!t->failed)
        span->ended =
            is_good(t, cudaEventRecord(span->end, (cudaStream_t)stream), "recording an event");
}

/* Milliseconds in a float: to half a microsecond in the first seconds after the anchor. */
static cudaError_t time_of(const cuda_timeline *t, cudaEvent_t event, int64_t *ns_out)
{
    float ms = 0;
    cudaError_t error = ra_cuda_wait_briefly(event);
    if (error == cudaSuccess)
        error = cudaEventElapsedTime(&ms, t->anchor, event);
    *ns_out = t->anchor_ns + llround((double)ms * 1e6);
    return error;
}

static bool cuda_read(ra_timeline *line, int32_t index, ra_span *span_out)
{
    cuda_timeline *const t = (cuda_timeline *)line;
    const cuda_span *const span = &t->spans[index];
    ra_span s = {.first = span->first, .count = span->count};
    RA_ASSERT(index < line->count);
    if (t->failed || !span->ended)
        return false;
    cudaError_t error = time_of(t, span->begin, &s.begin_ns);
    if (error == cudaSuccess)
        error = time_of(t, span->end, &s.end_ns);
    if (!is_good(t, error, "reading the time of an event"))
        return false;
    s.end_ns = ra_max_i64(s.begin_ns, s.end_ns);
    *span_out = s;
    return true;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void end_event(cudaEvent_t event)
{
    if (event != NULL)
        (void)ra_cuda_forget(cudaEventDestroy(event));
}

static void cuda_destroy(ra_timeline *line)
{
    cuda_timeline *const t = (cuda_timeline *)line;
    for (int i = 0; i < ANCHORS; i++)
        end_event(t->anchors[i]);
    for (int32_t i = 0; i < t->capacity; i++) {
        end_event(t->spans[i].begin);
        end_event(t->spans[i].end);
    }
    free(t);
}

static const ra_timeline_ops cuda_ops = {.anchor = cuda_anchor,
                                         .begin = cuda_begin,
                                         .end = cuda_end,
                                         .read = cuda_read,
                                         .destroy = cuda_destroy};

static cudaError_t make_events(cuda_timeline *t)
{
    cudaError_t error = cudaSetDevice(t->device);
    for (int i = 0; i < ANCHORS && error == cudaSuccess; i++)
        error = cudaEventCreateWithFlags(&t->anchors[i], cudaEventDefault);
    for (int32_t i = 0; i < t->capacity && error == cudaSuccess; i++) {
        error = cudaEventCreateWithFlags(&t->spans[i].begin, cudaEventDefault);
        if (error == cudaSuccess)
            error = cudaEventCreateWithFlags(&t->spans[i].end, cudaEventDefault);
    }
    return error;
}

ra_timeline *ra_timeline_create_cuda(int32_t capacity)
{
    RA_ASSERT(capacity >= 1);
    cuda_timeline *const t = calloc(1, sizeof(*t) + (size_t)capacity * sizeof(t->spans[0]));
    if (t == NULL) {
        ra_log(RA_LOG_WARNING, "times of the GPU's work are not to be had: out of memory");
        return NULL;
    }
    t->base.ops = &cuda_ops;
    t->device = ra_device_used();
    t->capacity = capacity;
    if (is_good(t, make_events(t), "making events"))
        return &t->base;
    cuda_destroy(&t->base);
    return NULL;
}
