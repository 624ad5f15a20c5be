/*
 * Launches of the CUDA kernels on the stand-in runtime: work on its streams, done by the emulator.
 * Pointers that are not the stand-in's device memory are refused, as a device would fault on them.
 */
#include "sparse/cuda/attention_launch.h"
#include "sparse/cuda/linear_launch.h"
#include "sparse/cuda/rows_launch.h"
#include "sparse/cuda_emulator.h"
#include "support/standin_cudart.h"

typedef struct launch {
    union {
        ra_cuda_forward forward;
        ra_cuda_backward backward;
        ra_cuda_rows rows;
        ra_cuda_delta delta;
        ra_cuda_linear linear;
        ra_cuda_segments segments;
    } args;
    ra_cuda_linear_work work; /* of linear attention */
    int blocks;
} launch;

static cuda_emulation stats;
static uint64_t order_seed = 1;

static cudaError_t enqueue(cudaError_t error, cudaStream_t stream, void (*run)(void *context),
                           const launch *l)
{
    if (error == cudaSuccess)
        error = standin_enqueue_launch(stream, run, l, sizeof(*l));
    return standin_leave(error);
}

static cudaError_t check(cudaError_t error, const void *const *pointers, int count)
{
    for (int i = 0; i < count && error == cudaSuccess; ++i)
        if (pointers[i] != NULL && !standin_is_device(pointers[i], 1))
            error = cudaErrorIllegalAddress;
    return error;
}

static void run_forward(void *context)
{
    const launch *const l = context;
    cuda_emulate_forward(&l->args.forward, l->blocks, order_seed++, &stats);
}

/* Thread blocks of a step, as many as a launch on that many multiprocessors has. */
static int blocks_of(ra_cuda_grid *grid, int64_t tasks, int32_t assumed)
{
    int const held = standin.blocks_held > 0 ? standin.blocks_held : assumed;
    int64_t const most = (int64_t)grid->multiprocessors * ra_hd_min(held, assumed);
    if (held < assumed) {
        grid->held = held;
        grid->assumed = assumed;
    }
    return (int)(tasks < most ? tasks : most);
}

cudaError_t ra_cuda_launch_forward(const ra_cuda_forward *f, ra_cuda_grid *grid)
{
    const void *const pointers[] = {f->q.data,      f->k.data,         f->v.data,
                                    f->lse,         f->delta,          f->state.acc,
                                    f->state.top,   f->state.sum,      f->scratch,
                                    f->ticket,      f->map.layers,     f->map.runs,
                                    f->map.tiles,   f->map.chunk_tile, f->state.chunks,
                                    f->cuts.states, f->cuts.arrived};
    int32_t const assumed = f->warpgroups ? ra_cuda_warpgroup_tile_of(f->dim).blocks_per_sm
                                          : ra_cuda_tile_of(f->q.dtype, f->dim).blocks_per_sm;
    launch const l = {.args.forward = *f,
                      .blocks = blocks_of(grid, f->tasks + f->cuts.tasks, assumed)};
    return enqueue(check(standin_enter(), pointers, sizeof(pointers) / sizeof(pointers[0])),
                   grid->stream, run_forward, &l);
}

static void run_backward(void *context)
{
    const launch *const l = context;
    cuda_emulate_backward(&l->args.backward, l->blocks, order_seed++, &stats);
}

cudaError_t ra_cuda_launch_backward(const ra_cuda_backward *f, ra_cuda_grid *grid)
{
    const void *const pointers[] = {f->q.data,     f->k.data,        f->v.data,   f->dout.data,
                                    f->dq.data,    f->dk.data,       f->dv.data,  f->lse,
                                    f->delta,      f->tickets,       f->map.runs, f->map.tiles,
                                    f->map.layers, f->map.chunk_tile};
    standin.single_passes += f->single;
    launch const l = {.args.backward = *f, .blocks = grid->multiprocessors};
    return enqueue(check(standin_enter(), pointers, sizeof(pointers) / sizeof(pointers[0])),
                   grid->stream, run_backward, &l);
}

static void run_rows(void *context)
{
    const launch *const l = context;
    cuda_emulate_rows(&l->args.rows, l->blocks, order_seed++);
}

cudaError_t ra_cuda_rows_launch(const ra_cuda_rows *r, int blocks, cudaStream_t stream)
{
    const void *const pointers[] = {r->from.data, r->to.data};
    launch const l = {.args.rows = *r, .blocks = blocks};
    return enqueue(check(standin_enter(), pointers, 2), stream, run_rows, &l);
}

static void run_delta(void *context)
{
    const launch *const l = context;
    cuda_emulate_delta(&l->args.delta, l->blocks, order_seed++);
}

cudaError_t ra_cuda_delta_launch(const ra_cuda_delta *d, int blocks, cudaStream_t stream)
{
    const void *const pointers[] = {d->out.data, d->dout.data, d->delta};
    launch const l = {.args.delta = *d, .blocks = blocks};
    return enqueue(check(standin_enter(), pointers, 3), stream, run_delta, &l);
}

static void run_linear(void *context)
{
    const launch *const l = context;
    cuda_emulate_linear(l->work, &l->args.linear, l->blocks, order_seed++);
}

cudaError_t ra_cuda_linear_launch(ra_cuda_linear_work work, const ra_cuda_linear *f, int blocks,
                                  cudaStream_t stream)
{
    const void *const pointers[] = {f->q.data,   f->k.data,  f->v.data,    f->out.data, f->dq.data,
                                    f->dk.data,  f->dv.data, f->dout.data, f->states,   f->grads,
                                    f->prefixes, f->lines,   f->scratch};
    launch const l = {.args.linear = *f, .blocks = blocks, .work = work};
    return enqueue(check(standin_enter(), pointers, sizeof(pointers) / sizeof(pointers[0])), stream,
                   run_linear, &l);
}

static void run_segments(void *context)
{
    const launch *const l = context;
    cuda_emulate_segments(&l->args.segments, l->blocks, order_seed++);
}

cudaError_t ra_cuda_segments_launch(const ra_cuda_segments *f, int blocks, cudaStream_t stream)
{
    const void *const pointers[] = {f->before, f->after, f->states, f->totals};
    launch const l = {.args.segments = *f, .blocks = blocks};
    return enqueue(check(standin_enter(), pointers, 4), stream, run_segments, &l);
}
