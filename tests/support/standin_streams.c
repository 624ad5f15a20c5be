/* Streams and events of the stand-in runtime: work waits until something asks whether it is done.
 */
#include "support/standin_cudart.h"

#include <stdlib.h>
#include <string.h>

typedef struct work {
    struct work *next;
    void (*run)(void *context);
    _Alignas(max_align_t) char context[];
} work;

typedef struct CUstream_st {
    struct CUstream_st *next;
    int64_t id;
    int64_t begun, done; /* pieces of work, ever */
    work *first, *last;
} stream;

/* Over when the stream of this number has done so much. */
typedef struct CUevent_st {
    int64_t stream_id, begun;
} event;

static stream *streams;
static int64_t next_id = 1;

static stream *stream_of(int64_t id)
{
    stream *s = streams;
    while (s != NULL && s->id != id)
        s = s->next;
    return s;
}

static void run_until(stream *s, int64_t begun)
{
    for (work *w = s->first; s->done < begun && w != NULL; w = s->first) {
        s->first = w->next;
        if (s->first == NULL)
            s->last = NULL;
        s->done++; /* before it runs: waiting for oneself ends */
        w->run(w->context);
        free(w);
    }
}

void standin_run_all(void)
{
    for (stream *s = streams; s != NULL; s = s->next)
        run_until(s, s->begun);
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
}

cudaError_t standin_enqueue(cudaStream_t s, void (*run)(void *context), const void *context,
                            size_t bytes)
{
    work *const w = malloc(sizeof(*w) + bytes);
    if (w == NULL)
        return cudaErrorMemoryAllocation;
    w->next = NULL;
    w->run = run;
    memcpy(w->context, context, bytes);
    if (s == NULL) {
        run(w->context);
        free(w);
        return cudaSuccess;
    }
    if (s->last != NULL)
        s->last->next = w;
    else
        s->first = w;
    s->last = w;
    s->begun++;
    return cudaSuccess;
}

/* ---- streams --------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream_out, unsigned flags)
{
    cudaError_t error = standin_enter();
    if (error == cudaSuccess && flags != cudaStreamNonBlocking)
        error = cudaErrorInvalidValue;
    stream *const s = error == cudaSuccess ? calloc(1, sizeof(*s)) : NULL;
    if (s != NULL) {
        s->id = next_id++;
        s->next = streams;
        streams = s;
        standin.streams++;
        *stream_out = s;
    } else if (error == cudaSuccess) {
        error = cudaErrorMemoryAllocation;
    }
    return standin_leave(error);
}

/* What is enqueued is still done, as by the runtime. */
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    cudaError_t const error = standin_enter();
    if (error == cudaSuccess) {
        stream **at = &streams;
        run_until(s, s->begun);
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
    if (error == cudaSuccess && s != NULL)
        run_until(s, s->begun);
    return standin_leave(error);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    cudaError_t const error = standin_enter();
    if (error == cudaSuccess && s != NULL)
        run_until(s, s->begun);
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
    if (error == cudaSuccess)
        *e = s != NULL ? (event){s->id, s->begun} : (event){0, 0};
    return standin_leave(error);
}

static void run_event(const event *e)
{
    stream *const s = stream_of(e->stream_id);
    if (s != NULL)
        run_until(s, e->begun);
}

static void wait_for_event(void *context)
{
    run_event(context);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    cudaError_t error = standin_enter();
    if (error == cudaSuccess && flags != 0)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        error = standin_enqueue(s, wait_for_event, e, sizeof(*e));
    return standin_leave(error);
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    cudaError_t error = standin_enter();
    if (error == cudaSuccess && !standin.stream_is_over)
        error = cudaErrorNotReady;
    if (error == cudaSuccess)
        run_event(e);
    return standin_leave(error);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    cudaError_t const error = standin_enter();
    if (error == cudaSuccess) {
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

/* Either side is where the kind says it is, or the call is refused. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
    cudaError_t error = standin_enter();
    int const to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    int const from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (error == cudaSuccess && (standin_is_device(to, bytes) != to_device ||
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
