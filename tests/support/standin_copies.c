/* Copies of the stand-in runtime, which are work of a stream. */
#include "support/standin_cudart.h"

#include <string.h>

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
