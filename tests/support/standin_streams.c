/* Streams and events of the stand-in runtime: work waits until something asks whether it is done.
 */
#include "support/standin_cudart.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct work {
    struct work *next;
    void (*run)(void *context);
    int (*is_over)(void *context); /* instead of run */
    _Alignas(max_align_t) char context[];
} work;

typedef struct CUstream_st {
    struct CUstream_st *next;
    int64_t id;
    int64_t begun, done; /* pieces of work, ever */
    int at_work;
    work *first, *last;
} stream;

/* Over when the stream of this number has done so much. */
typedef struct CUevent_st {
    struct CUevent_st *next;
    int64_t stream_id, begun;
} event;

static stream *streams;
static event *events; /* all, so that what could not be returned is no leak of the test's */
static int64_t next_id = 1;

static stream *stream_of(int64_t id)
{
    stream *s = streams;
    while (s != NULL && s->id != id)
        s = s->next;
    return s;
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
            w->run(w->context);
        s->at_work = 0;
        if (!over)
            return 0;
        s->first = w->next;
        if (s->first == NULL)
            s->last = NULL;
        s->done++;
        free(w);
    }
    return s->done >= begun;
}

/* Where a call of the runtime would never return. */
static void refuse_to_hang(void)
{
    static const char text[] = "the stand-in runtime: this call would wait for a GPU that hangs\n";
    if (!standin.hangs)
        return;
    fputs(text, stderr);
    abort();
}

void standin_run_all(void)
{
    refuse_to_hang();
    for (stream *s = streams; s != NULL; s = s->next)
        (void)run_until(s, s->begun);
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
}

static work *make_work(const void *context, size_t bytes)
{
    work *const w = malloc(sizeof(*w) + bytes);
    if (w == NULL)
        return NULL;
    memset(w, 0, sizeof(*w));
    if (bytes > 0)
        memcpy(w->context, context, bytes);
    return w;
}

static void append_work(stream *s, work *w)
{
    if (s->last != NULL)
        s->last->next = w;
    else
        s->first = w;
    s->last = w;
    s->begun++;
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

cudaError_t standin_enqueue_launch(cudaStream_t s, void (*run)(void *context), const void *context,
                                   size_t bytes)
{
    if (++standin.launches != standin.hang_launch)
        return standin_enqueue(s, run, context, bytes);
    return standin_enqueue_hang(s);
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

enum { LEAST_PRIORITY = 0, GREATEST_PRIORITY = -5 }; /* lower numbers come first */

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    cudaError_t const error = standin_enter();
    if (error == cudaSuccess) {
        *least = LEAST_PRIORITY;
        *greatest = GREATEST_PRIORITY;
    }
    return standin_leave(error);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream_out, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream_out, flags, LEAST_PRIORITY);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream_out, unsigned flags, int priority)
{
    cudaError_t error = standin_enter();
    if (error == cudaSuccess && (flags != cudaStreamNonBlocking || priority > LEAST_PRIORITY ||
                                 priority < GREATEST_PRIORITY))
        error = cudaErrorInvalidValue;
    stream *const s = error == cudaSuccess ? calloc(1, sizeof(*s)) : NULL;
    if (s != NULL) {
        s->id = next_id++;
        s->next = streams;
        streams = s;
        standin.streams++;
        standin.urgent_streams += priority == GREATEST_PRIORITY;
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
    cudaError_t error = standin_enter();
    if (error == cudaSuccess && !standin.stream_is_over)
        error = cudaErrorNotReady;
    if (error == cudaSuccess && s != NULL && !run_until(s, s->begun))
        error = cudaErrorNotReady;
    return standin_leave(error);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    cudaError_t error = standin_enter();
    if (error == cudaSuccess && s != NULL && !run_until(s, s->begun)) {
        refuse_to_hang();
        error = cudaErrorLaunchTimeout; /* a GPU would hang here, with the lock that we hold */
    }
    return standin_leave(error);
}

/* ---- events ---------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event_out, unsigned flags)
{
    cudaError_t error = standin_enter();
    if (error == cudaSuccess && flags != cudaEventDisableTiming)
        error = cudaErrorInvalidValue;
    event *const e = error == cudaSuccess ? calloc(1, sizeof(*e)) : NULL;
    if (e != NULL) {
        e->next = events;
        events = e;
        standin.events++;
        *event_out = e;
    } else if (error == cudaSuccess) {
        error = cudaErrorMemoryAllocation;
    }
    return standin_leave(error);
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    cudaError_t const error = standin_enter();
    if (error == cudaSuccess) {
        e->stream_id = s != NULL ? s->id : 0;
        e->begun = s != NULL ? s->begun : 0;
    }
    return standin_leave(error);
}

static int event_is_over(void *context)
{
    const event *const e = context;
    stream *const s = stream_of(e->stream_id);
    return s == NULL || run_until(s, e->begun);
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
    cudaError_t error = standin_enter();
    if (error == cudaSuccess && !standin.stream_is_over)
        error = cudaErrorNotReady;
    if (error == cudaSuccess && !event_is_over(e))
        error = cudaErrorNotReady;
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

/* ---- copies ---------------------------------------------------------------------------------- */

typedef struct copy {
    void *to;
    const void *from;
    size_t bytes;
    int value;
} copy;

static void run_copy(void *context)
{
    const copy *const c = context;
    memcpy(c->to, c->from, c->bytes);
}

static void run_fill(void *context)
{
    const copy *const c = context;
    memset(c->to, c->value, c->bytes);
}

/* Either side is where the kind says it is, or the call is refused; default says nothing. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
    cudaError_t error = standin_enter();
    int const to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    int const from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (error == cudaSuccess && kind != cudaMemcpyDefault &&
        (standin_is_device(to, bytes) != to_device ||
         standin_is_device(from, bytes) != from_device))
        error = cudaErrorInvalidValue;
    copy const c = {to, from, bytes, 0};
    if (error == cudaSuccess)
        error = standin_enqueue(s, run_copy, &c, sizeof(c));
    return standin_leave(error);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t s)
{
    cudaError_t error = standin_enter();
    if (error == cudaSuccess && !standin_is_device(to, bytes))
        error = cudaErrorInvalidValue;
    copy const c = {to, NULL, bytes, value};
    if (error == cudaSuccess)
        error = standin_enqueue(s, run_fill, &c, sizeof(c));
    return standin_leave(error);
}
