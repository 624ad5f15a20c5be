/* Launches of the table `standard` on the stand-in runtime, as those of standin_launches.c. */
#include "sparse/cuda/softmax_launch.h"
#include "sparse/cuda_emulator.h"
#include "support/standin_cudart.h"

typedef struct launch {
    union {
        ra_cuda_softmax softmax;
        ra_cuda_softgrad softgrad;
        ra_cuda_outputs outputs;
        ra_cuda_widen widen;
    } args;
    int blocks;
} launch;

static uint64_t order_seed = 1;

static cudaError_t enqueue(const launch *l, const void *const *pointers, int count,
                           void (*run)(void *context), cudaStream_t stream)
{
    cudaError_t error = standin_enter();
    for (int i = 0; i < count && error == cudaSuccess; ++i)
        if (pointers[i] != NULL && !standin_is_device(pointers[i], 1))
            error = cudaErrorIllegalAddress;
    if (error == cudaSuccess && l->blocks < 1)
        error = cudaErrorInvalidConfiguration;
    if (error == cudaSuccess)
        error = standin_enqueue_launch(stream, run, l, sizeof(*l));
    return standin_leave(error);
}

static void run_softmax(void *context)
{
    const launch *const l = context;
    cuda_emulate_softmax(&l->args.softmax, l->blocks, order_seed++);
}

cudaError_t ra_cuda_softmax_launch(const ra_cuda_softmax *f, int blocks, cudaStream_t stream)
{
    /* Matrices without a key are no memory. */
    const void *const pointers[] = {f->lse,
                                    f->acc,
                                    f->top,
                                    f->sum,
                                    f->map.layers,
                                    f->map.chunk_tile,
                                    f->map.tiles,
                                    f->map.runs,
                                    f->keys > 0 ? f->scores : NULL,
                                    f->keys > 0 ? f->weights : NULL};
    launch const l = {.args.softmax = *f, .blocks = blocks};
    return enqueue(&l, pointers, sizeof(pointers) / sizeof(pointers[0]), run_softmax, stream);
}

static void run_softgrad(void *context)
{
    const launch *const l = context;
    cuda_emulate_softgrad(&l->args.softgrad, l->blocks, order_seed++);
}

cudaError_t ra_cuda_softgrad_launch(const ra_cuda_softgrad *f, int blocks, cudaStream_t stream)
{
    const void *const pointers[] = {f->scores,  f->weights, f->dweights,
                                    f->dscores, f->lse,     f->delta};
    launch const l = {.args.softgrad = *f, .blocks = blocks};
    return enqueue(&l, pointers, sizeof(pointers) / sizeof(pointers[0]), run_softgrad, stream);
}

static void run_outputs(void *context)
{
    const launch *const l = context;
    cuda_emulate_outputs(&l->args.outputs, l->blocks, order_seed++);
}

cudaError_t ra_cuda_outputs_launch(const ra_cuda_outputs *f, int blocks, cudaStream_t stream)
{
    const void *const pointers[] = {f->sums, f->top, f->sum, f->out.data, f->lse, f->delta};
    launch const l = {.args.outputs = *f, .blocks = blocks};
    return enqueue(&l, pointers, sizeof(pointers) / sizeof(pointers[0]), run_outputs, stream);
}

static void run_widen(void *context)
{
    const launch *const l = context;
    cuda_emulate_widen(&l->args.widen, l->blocks, order_seed++);
}

cudaError_t ra_cuda_widen_launch(const ra_cuda_widen *f, int blocks, cudaStream_t stream)
{
    const void *const pointers[] = {f->from.data, f->to};
    launch const l = {.args.widen = *f, .blocks = blocks};
    return enqueue(&l, pointers, sizeof(pointers) / sizeof(pointers[0]), run_widen, stream);
}
