/*
 * Streams and events of the stand-in runtime: work waits until something asks whether it is done,
 * or is done at once, where that is wanted.
 *
 * Each stream has a time of its own: a piece of work begins when it was enqueued, or when the work
 * before it was done, whichever is later, and takes standin.work_ns, or peer_ns. So streams overlap
 * in time though one thread does all of it, whenever it comes to it. What a thread enqueues when it
 * has seen something to be over comes after that.
 */
#include "support/standin_cudart.h"
#include "support/standin_time.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct work {
    struct work *next;
    void (*run)(void *context);
    int (*is_over)(void *context); /* instead of run */
    int64_t enqueued_ns;
    _Alignas(max_align_t) char context[];
} work;

typedef struct CUstream_st {
    struct CUstream_st *next;
    int64_t id;
    int device; /* its maker's */
    pthread_t owner;
    int64_t begun, done; /* pieces of work, ever */
    int at_work;
    int64_t time_ns; /* when what is done was done */
    work *first, *last;
} stream;

/* Over when the stream of this number has done so much. */
typedef struct CUevent_st {
    struct CUevent_st *next;
    int64_t stream_id, begun;
    int64_t time_ns; /* not before it was recorded */
    int64_t record;  /* of all that were made, which one this is; 0: none */
    int is_timed;
    int device; /* its maker's */
} event;

static stream *streams;
static event *events; /* all, so that what could not be returned is no leak of the test's */
static int64_t next_id = 1, records;
static _Thread_local int64_t seen_ns; /* the latest time of what this thread knows to be over */

static stream *stream_of(int64_t id)
{
    stream *s = streams;
    while (s != NULL && s->id != id)
        s = s->next;
    return s;
}

/* Of what the calling thread does now. */
static int64_t now_ns(void)
{
    return later(clock_ns(), seen_ns);
}

int standin_device_of(cudaStream_t s)
{
    return s != NULL ? s->device : standin_current();
}

static int event_is_over(void *context);

/* A piece of work is done: the stream's time, and that of the events behind it. */
static void pass_time(stream *s, const work *w)
{
    s->time_ns = later(s->time_ns, w->enqueued_ns);
    if (w->is_over == event_is_over)
        s->time_ns = later(s->time_ns, ((const event *)(const void *)w->context)->time_ns);
    else if (w->is_over != NULL) /* a peer was waited for */
        s->time_ns = later(s->time_ns + standin.peer_ns, clock_ns());
    else
        s->time_ns += standin.work_ns;
    for (event *e = events; e != NULL; e = e->next) {
        if (e->stream_id == s->id && e->begun == s->done)
            e->time_ns = later(e->time_ns, s->time_ns);
    }
}

static void do_work(work *w)
{
    struct timespec const nap = {.tv_sec = standin.nap_ns / 1000000000,
                                 .tv_nsec = (long)(standin.nap_ns % 1000000000)};
    if (standin.nap_ns > 0)
        nanosleep(&nap, NULL);
    w->run(w->context);
}

/* Whether the stream has done so much: work that waits for a peer ends in its own time. */
static int run_until(stream *s, int64_t begun)
{
    for (work *w = s->first; s->done < begun && w != NULL && !s->at_work; w = s->first) {
        int over = 1;
        s->at_work = 1; /* what it waits for may ask for this stream */
        if (w->is_over != NULL)
            over = w->is_over(w->context);
        else
            do_work(w);
        s->at_work = 0;
        if (!over)
            return 0;
        s->first = w->next;
        if (s->first == NULL)
            s->last = NULL;
        s->done++;
        pass_time(s, w);
        free(w);
    }
    return s->done >= begun;
}

int standin_run_all(void)
{
    int over = 1;
    standin_refuse_to_hang();
    for (stream *s = streams; s != NULL; s = s->next)
        over = (run_until(s, s->begun) || !pthread_equal(s->owner, pthread_self())) && over;
    return over;
}

int standin_is_busy(void)
{
    for (const stream *s = streams; s != NULL; s = s->next) {
        for (const work *w = s->first; w != NULL && pthread_equal(s->owner, pthread_self());
             w = w->next) {
            if (w->is_over != event_is_over && w->run != standin_run_free)
                return 1;
        }
    }
    return 0;
}

int standin_waits_for_peer(void)
{
    for (const stream *s = streams; s != NULL; s = s->next) {
        for (const work *w = s->first; w != NULL && pthread_equal(s->owner, pthread_self());
             w = w->next) {
            if (w->is_over != NULL && w->is_over != event_is_over)
                return 1;
        }
    }
    return 0;
}

static void free_stream(stream *s)
{
    for (work *w = s->first, *next; w != NULL; w = next) {
        next = w->next;
        free(w);
    }
    free(s);
}

void standin_reset_streams(void)
{
    for (stream *s = streams, *next; s != NULL; s = next) {
        next = s->next;
        free_stream(s);
    }
    streams = NULL;
    for (event *e = events, *next; e != NULL; e = next) {
        next = e->next;
        free(e);
    }
    events = NULL;
    seen_ns = 0;
}

static work *make_work(const void *context, size_t bytes)
{
    work *const w = malloc(sizeof(*w) + bytes);
    if (w == NULL)
        return NULL;
    memset(w, 0, sizeof(*w));
    if (bytes > 0)
        memcpy(w->context, context, bytes);
    w->enqueued_ns = now_ns();
    return w;
}

/* A full queue blocks who enqueues until the oldest work is done: as if it were, here; behind a
   kernel that hangs that is never. What waits for a peer or an event passes for room. */
static void make_room(stream *s)
{
    if (s->begun - s->done < STANDIN_QUEUE_DEPTH)
        return;
    standin_refuse_to_hang();
    (void)run_until(s, s->done + 1);
}

static void append_work(stream *s, work *w)
{
    make_room(s);
    if (s->last != NULL)
        s->last->next = w;
    else
        s->first = w;
    s->last = w;
    s->begun++;
    if (standin.is_eager)
        (void)run_until(s, s->begun);
}

static int never(void *context)
{
    (void)context;
    return 0;
}

cudaError_t standin_enqueue(cudaStream_t s, void (*run)(void *context), const void *context,
                            size_t bytes)
{
    work *const w = make_work(context, bytes);
    if (w == NULL)
        return cudaErrorMemoryAllocation;
    w->run = run;
    if (s != NULL) {
        append_work(s, w);
        return cudaSuccess;
    }
    run(w->context);
    free(w);
    return cudaSuccess;
}

cudaError_t standin_enqueue_hang(cudaStream_t s)
{
    standin.hangs = 1;
    return standin_enqueue_wait(s, never, NULL, 0);
}

cudaError_t standin_enqueue_wait(cudaStream_t s, int (*is_over)(void *context), const void *context,
                                 size_t bytes)
{
    if (s == NULL)
        return cudaErrorInvalidValue;
    work *const w = make_work(context, bytes);
    if (w == NULL)
        return cudaErrorMemoryAllocation;
    w->is_over = is_over;
    append_work(s, w);
    return cudaSuccess;
}

/* ---- streams --------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream_out, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream_out, flags, STANDIN_LEAST_PRIORITY);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream_out, unsigned flags, int priority)
{
    cudaError_t error = standin_enter();
    if (error == cudaSuccess &&
        (flags != cudaStreamNonBlocking || priority > STANDIN_LEAST_PRIORITY ||
         priority < STANDIN_GREATEST_PRIORITY))
        error = cudaErrorInvalidValue;
    stream *const s = error == cudaSuccess ? calloc(1, sizeof(*s)) : NULL;
    if (s != NULL) {
        s->id = next_id++;
        s->device = standin_current();
        s->owner = pthread_self();
        s->next = streams;
        streams = s;
        standin.streams++;
        standin.urgent_streams += priority == STANDIN_GREATEST_PRIORITY;
        *stream_out = s;
    } else if (error == cudaSuccess) {
        error = cudaErrorMemoryAllocation;
    }
    return standin_leave(error);
}

/* What is enqueued is still done, as by the runtime, if it does not wait for a peer. */
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    cudaError_t const error = standin_enter();
    if (error == cudaSuccess) {
        stream **at = &streams;
        (void)run_until(s, s->begun);
        while (*at != s)
            at = &(*at)->next;
        *at = s->next;
        free_stream(s);
        standin.streams--;
    }
    return standin_leave(error);
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    cudaError_t error = standin_enter_question();
    if (error == cudaSuccess && !standin.stream_is_over)
        error = cudaErrorNotReady;
    if (error == cudaSuccess && s != NULL && !run_until(s, s->begun))
        error = cudaErrorNotReady;
    if (error == cudaSuccess && s != NULL)
        seen_ns = later(seen_ns, s->time_ns);
    return standin_leave(error);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    cudaError_t error = standin_enter();
    if (error == cudaSuccess && s != NULL && !run_until(s, s->begun)) {
        standin_refuse_to_hang();
        error = cudaErrorLaunchTimeout; /* a GPU would hang here, with the lock that we hold */
    }
    if (error == cudaSuccess && s != NULL)
        seen_ns = later(seen_ns, s->time_ns);
    if (error == cudaSuccess)
        standin_see_pieces();
    return standin_leave(error);
}

/* ---- events ---------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event_out, unsigned flags)
{
    cudaError_t error = standin_enter();
    if (error == cudaSuccess && flags != cudaEventDisableTiming &&
        (flags != cudaEventDefault || standin.is_untimed))
        error = cudaErrorInvalidValue;
    event *const e = error == cudaSuccess ? calloc(1, sizeof(*e)) : NULL;
    if (e != NULL) {
        e->next = events;
        events = e;
        e->device = standin_current();
        e->is_timed = flags == cudaEventDefault;
        standin.events++;
        standin.timed_events += e->is_timed;
        *event_out = e;
    } else if (error == cudaSuccess) {
        error = cudaErrorMemoryAllocation;
    }
    return standin_leave(error);
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    cudaError_t error = standin_enter();
    if (error == cudaSuccess && e->device != standin_device_of(s))
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess) {
        e->stream_id = s != NULL ? s->id : 0;
        e->begun = s != NULL ? s->begun : 0;
        e->record = ++records;
        e->time_ns = now_ns();
        if (s != NULL && s->done == s->begun)
            e->time_ns = later(e->time_ns, s->time_ns);
    }
    return standin_leave(error);
}

/* Of the event, or of a copy from when it was waited for, which learns when it was over. */
static int event_is_over(void *context)
{
    event *const e = context;
    stream *const s = stream_of(e->stream_id);
    int const over = s == NULL || run_until(s, e->begun);
    for (const event *of = events; over && of != NULL; of = of->next) {
        if (of->record == e->record)
            e->time_ns = of->time_ns;
    }
    return over;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    cudaError_t error = standin_enter();
    if (error == cudaSuccess && flags != 0)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        error = standin_enqueue_wait(s, event_is_over, e, sizeof(*e));
    return standin_leave(error);
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    cudaError_t error = standin_enter_question();
    if (error == cudaSuccess && !standin.stream_is_over)
        error = cudaErrorNotReady;
    if (error == cudaSuccess && !event_is_over(e))
        error = cudaErrorNotReady;
    if (error == cudaSuccess)
        seen_ns = later(seen_ns, e->time_ns);
    return standin_leave(error);
}

/* In floating point as the runtime's; not of events that tell no time, or are not over. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    cudaError_t error = standin_enter();
    if (error == cudaSuccess &&
        (!from->is_timed || !to->is_timed || from->record == 0 || to->record == 0))
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess && (!event_is_over(from) || !event_is_over(to)))
        error = cudaErrorNotReady;
    if (error == cudaSuccess)
        *ms = (float)((double)(to->time_ns - from->time_ns) / 1e6);
    return standin_leave(error);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    cudaError_t const error = standin_enter();
    if (error == cudaSuccess) {
        event **at = &events;
        while (*at != e)
            at = &(*at)->next;
        *at = e->next;
        free(e);
        standin.events--;
    }
    return standin_leave(error);
}
