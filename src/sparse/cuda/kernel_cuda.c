/*
 * The table for GPUs: each call enqueues work on the kernel's stream and returns. One process works
 * on one GPU (ra_device_use); a kernel has a stream of its own.
 */
#include "internal.h"
#include "pause.h"
#include "pool/timeline_cuda.h"
#include "ringattn/device.h"
#include "sparse/cuda/attention_launch.h"
#include "sparse/cuda/cuda_internal.h"
#include "sparse/cuda/forward_cuts.h"
#include "sparse/cuda/launch_args.h"
#include "sparse/kernel_request.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static ra_memory cuda_memory(void)
{
    ra_memory memory = {0};
    ra_status const ignored = ra_memory_device(ra_device_used(), &memory);
    (void)ignored; /* the cause was logged, and memory without operations is none */
    return memory;
}

/* The GPU in use, or the one that will be; *index_out says which. NULL: there is none. */
static const ra_device *device_of(ra_devices *devices, int *index_out)
{
    int index = ra_device_used();
    ra_devices_read(devices);
    if (index < devices->count && !devices->list[index].usable)
        index = ra_devices_first(devices); /* none has been chosen yet */
    *index_out = index;
    return index < devices->count ? &devices->list[index] : NULL;
}

/* Whether thread blocks of the GPU have so many bytes of shared memory. */
static bool has_shared(const ra_kernel_use *use, int32_t needed, char *why_not, size_t bytes)
{
    ra_devices devices;
    int index;
    const ra_device *const device = device_of(&devices, &index);
    if (device != NULL && needed <= device->shared_bytes)
        return true;
    if (device == NULL)
        snprintf(why_not, bytes, "GPU %d: %s", index, devices.why_not);
    else
        snprintf(why_not, bytes,
                 "%s of head_dim %d in %s%s takes %d bytes of shared memory per thread block, and "
                 "GPU %d (%s) has %lld",
                 use->linear == RA_LINEAR_NONE ? "attention" : "linear attention", (int)use->dim,
                 ra_dtype_name(use->dtype), use->backward ? " with a backward pass" : "",
                 (int)needed, index, device->name, (long long)device->shared_bytes);
    return false;
}

static bool cuda_serves(const ra_kernel_use *use, char *why_not, size_t bytes)
{
    return has_shared(use, ra_cuda_shared_bytes(use), why_not, bytes);
}

static int32_t cuda_tile_rows(ra_dtype dtype, int32_t dim)
{
    return ra_cuda_tile_of(dtype, dim).q_rows;
}

/* ---- life ------------------------------------------------------------------------------------ */

ra_status ra_cuda_enter(ra_kernel *kernel)
{
    ra_status const status = ra_cuda_kernel_status(
        kernel, cudaSetDevice(ra_cuda_self(kernel)->index), "kernel cuda: its GPU");
    return status == RA_OK ? ra_cuda_watch_note(kernel) : status;
}

static ra_status read_device(ra_cuda_kernel *self, int *multiprocessors_out)
{
    ra_devices devices;
    ra_devices_read(&devices);
    if (self->index >= devices.count || !devices.list[self->index].usable) {
        if (ra_cuda_has_lost(NULL, "kernel cuda: asking what its GPU is"))
            return RA_ERR_CUDA;
        ra_log(RA_LOG_ERROR, "kernel cuda: GPU %d: %s", self->index,
               devices.usable_count == 0 ? devices.why_not : "it is not there, or too old");
        return RA_ERR_UNSUPPORTED;
    }
    *multiprocessors_out = devices.list[self->index].multiprocessors;
    self->shared_bytes = devices.list[self->index].shared_bytes;
    return ra_memory_device(self->index, &self->memory);
}

static ra_status make_stream(const ra_kernel *kernel, ra_cuda_kernel *self)
{
    return ra_cuda_kernel_status(kernel,
                                 cudaStreamCreateWithFlags(&self->stream, cudaStreamNonBlocking),
                                 "kernel cuda: its stream");
}

static ra_status cuda_init(ra_kernel *kernel)
{
    ra_cuda_kernel *const self = calloc(1, sizeof(*self));
    if (self == NULL)
        return ra_refuse_memory("kernel cuda");
    self->index = ra_device_used();
    int multiprocessors = 0;
    ra_status status = read_device(self, &multiprocessors);
    if (status == RA_OK)
        status = make_stream(kernel, self);
    if (status != RA_OK)
        goto err;
    kernel->self = self;
    kernel->stream = (ra_stream *)self->stream;
    kernel->threads = multiprocessors;
    status = ra_cuda_watch_init(kernel);
    if (status != RA_OK)
        goto err_stream;
    return RA_OK;
err_stream:
    (void)ra_cuda_forget(cudaStreamDestroy(self->stream));
err:
    free(self);
    return status;
}

static void cuda_fini(ra_kernel *kernel)
{
    ra_cuda_kernel *const self = ra_cuda_self(kernel);
    RA_ASSERT(self->taken_count == 0);
    ra_cuda_watch_fini(kernel);
    ra_cuda_warn(cudaStreamDestroy(self->stream), "kernel cuda: its stream could not be returned");
    free(self->taken);
    free(self);
}

/* Polls instead of blocking, so that this rank can send heartbeats meanwhile. */
ra_status ra_cuda_finish(ra_kernel *kernel)
{
    int64_t const begin_ns = ra_clock_ns();
    cudaError_t error = cudaSuccess;
    ra_status status = ra_cuda_enter(kernel);
    if (status != RA_OK)
        return status;
    while ((error = ra_cuda_forget(cudaStreamQuery(ra_cuda_self(kernel)->stream))) ==
           cudaErrorNotReady) {
        status = ra_cuda_watch_look(kernel);
        if (status != RA_OK)
            return status;
        if (kernel->poll != NULL)
            kernel->poll(kernel->poll_context);
        ra_pause(ra_clock_ns() - begin_ns);
    }
    status = ra_cuda_kernel_status(kernel, error, "kernel cuda: computing");
    return status == RA_OK ? ra_cuda_watch_wait(kernel) : status;
}

static ra_timeline *cuda_timeline(ra_kernel *kernel, int32_t capacity)
{
    (void)kernel; /* any stream of the GPU will do */
    return ra_timeline_create_cuda(capacity);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static ra_cuda_grid grid_of(const ra_kernel *kernel)
{
    const ra_cuda_kernel *const self = kernel->self;
    return (ra_cuda_grid){.multiprocessors = kernel->threads, .stream = self->stream};
}

/* Logged once per kernel: results do not depend on it. */
static void say_occupancy(ra_kernel *kernel, const ra_cuda_grid *grid)
{
    ra_cuda_kernel *const self = ra_cuda_self(kernel);
    if (grid->assumed == 0 || self->said_occupancy)
        return;
    self->said_occupancy = true;
    ra_log(RA_LOG_WARNING,
           "kernel cuda: a multiprocessor of this GPU holds %d thread blocks of a kernel that is "
           "made for %d: it will be slower",
           grid->held, grid->assumed);
}

ra_status ra_cuda_check_shared(ra_kernel *kernel, const ra_cuda_tile *tile)
{
    int64_t const there = ra_cuda_self(kernel)->shared_bytes;
    if (tile->shared_bytes <= there)
        return RA_OK;
    ra_log(RA_LOG_ERROR,
           "kernel cuda: head_dim up to %d takes %d bytes of shared memory, this GPU has %lld",
           (int)tile->dim, (int)tile->shared_bytes, (long long)there);
    return RA_ERR_UNSUPPORTED;
}

static uint32_t *tickets_of(const ra_kernel *kernel)
{
    char *const end = (char *)kernel->workspace.data + kernel->workspace.bytes;
    return (uint32_t *)(void *)(end - RA_CUDA_TAIL_BYTES);
}

/* Scratch for shared rows, which this kernel may not have. */
static ra_status check_scratch(const ra_kernel *kernel, const ra_forward_step *step)
{
    int32_t const blocks = kernel->threads * ra_cuda_blocks_most(step->shape.dim);
    size_t const needed = ra_cuda_shared_scratch_bytes(blocks, step->shape.dim);
    if (!ra_cuda_takes_scratch(step) || kernel->workspace.bytes - RA_CUDA_TAIL_BYTES >= needed)
        return RA_OK;
    return ra_kernel_refuse(
        "cuda", RA_ERR_INVALID,
        "its workspace was made for maps without shared rows, or for a smaller head_dim");
}

/* For the parts of long tasks, where rows share no state. */
static ra_cuda_cuts cuts_of(const ra_kernel *kernel, const ra_forward_step *step)
{
    ra_cuda_tile const tile = ra_cuda_warpgroup_tile_of(step->shape.dim);
    size_t const bytes =
        ra_cuda_takes_scratch(step) ? 0 : kernel->workspace.bytes - RA_CUDA_TAIL_BYTES;
    return ra_cuda_cuts_of(step, kernel->threads * tile.blocks_per_sm, tile.k_rows,
                           kernel->workspace.data, bytes);
}

static ra_status enqueue_forward(ra_kernel *kernel, const ra_forward_step *step, const void *map,
                                 bool warpgroups)
{
    ra_cuda_forward f = ra_cuda_forward_args(step, map, kernel->workspace.data, tickets_of(kernel));
    ra_cuda_grid grid = grid_of(kernel);
    f.warpgroups = warpgroups;
    if (f.tasks == 0)
        return RA_OK;
    if (warpgroups)
        f.cuts = cuts_of(kernel, step);
    ra_cuda_watch_launch(kernel, "forward kernel", &step->pair, f.ticket);
    cudaError_t error = cudaMemsetAsync(f.ticket, 0, sizeof(*f.ticket), grid.stream);
    if (error == cudaSuccess && f.cuts.tasks > 0)
        error = cudaMemsetAsync(f.cuts.arrived, 0, ra_cuda_arrived_bytes(&f.cuts), grid.stream);
    if (error == cudaSuccess)
        error = ra_cuda_launch_forward(&f, &grid);
    say_occupancy(kernel, &grid);
    return ra_cuda_kernel_status(kernel, error, "kernel cuda: forward");
}

/* Warpgroups compute what they can; the other kernels compute the rest. */
static ra_status forward_by(ra_kernel *kernel, const ra_forward_step *step, bool may_use_warpgroups)
{
    bool const warpgroups =
        may_use_warpgroups && ra_cuda_has_warpgroups(step->q.dtype, step->shape.dim);
    ra_cuda_tile const tile = warpgroups ? ra_cuda_warpgroup_tile_of(step->shape.dim)
                                         : ra_cuda_tile_of(step->q.dtype, step->shape.dim);
    const void *map = NULL;
    ra_block own = {0};
    ra_status status = ra_cuda_step_check(&step->shape, step->map, step->q.dtype);
    if (status == RA_OK)
        status = ra_kernel_validate_state(kernel, step);
    if (status == RA_OK)
        status = check_scratch(kernel, step);
    if (status == RA_OK)
        status = ra_cuda_check_shared(kernel, &tile);
    if (status == RA_OK)
        status = ra_cuda_enter(kernel);
    if (status == RA_OK)
        status = ra_cuda_map_data(kernel, step->map, &own, &map);
    if (status == RA_OK)
        status = enqueue_forward(kernel, step, map, warpgroups);
    return ra_cuda_give_map(kernel, status, &own);
}

static ra_status cuda_forward(ra_kernel *kernel, const ra_forward_step *step)
{
    return forward_by(kernel, step, false);
}

static ra_status enqueue_backward(ra_kernel *kernel, const ra_backward_step *step, const void *map,
                                  bool may_use_warpgroups)
{
    bool const single =
        ra_cuda_goes_single(step, kernel->deterministic, ra_cuda_self(kernel)->shared_bytes);
    ra_cuda_backward f = ra_cuda_backward_args(step, map, single, tickets_of(kernel));
    f.warpgroups =
        may_use_warpgroups && single && ra_cuda_has_warpgroup_single(step->q.dtype, f.dim);
    ra_cuda_grid grid = grid_of(kernel);
    if (f.q_tasks == 0 || f.k_tasks == 0)
        return RA_OK;
    ra_cuda_watch_launch(kernel, "backward kernel", &step->pair, f.tickets);
    cudaError_t error = cudaMemsetAsync(f.tickets, 0, RA_CUDA_TICKETS_BYTES, grid.stream);
    if (error == cudaSuccess)
        error = ra_cuda_launch_backward(&f, &grid);
    say_occupancy(kernel, &grid);
    return ra_cuda_kernel_status(kernel, error, "kernel cuda: backward");
}

static ra_status backward_by(ra_kernel *kernel, const ra_backward_step *step,
                             bool may_use_warpgroups)
{
    ra_cuda_tile const keys = ra_cuda_keys_of(step->q.dtype, step->shape.dim);
    ra_cuda_tile const queries = ra_cuda_queries_of(step->q.dtype, step->shape.dim);
    const void *map = NULL;
    ra_block own = {0};
    ra_status status = ra_cuda_backward_check(step);
    if (status == RA_OK)
        status = ra_cuda_check_shared(kernel, &keys);
    if (status == RA_OK)
        status = ra_cuda_check_shared(kernel, &queries);
    if (status == RA_OK)
        status = ra_cuda_enter(kernel);
    if (status == RA_OK)
        status = ra_cuda_map_data(kernel, step->map, &own, &map);
    if (status == RA_OK)
        status = enqueue_backward(kernel, step, map, may_use_warpgroups);
    return ra_cuda_give_map(kernel, status, &own);
}

static ra_status cuda_backward(ra_kernel *kernel, const ra_backward_step *step)
{
    return backward_by(kernel, step, false);
}

const ra_kernel_ops ra_cuda_ops = {
    .name = "cuda",
    .memory = cuda_memory,
    .serves = cuda_serves,
    .tile_rows = cuda_tile_rows,
    .maps_by_keys = true,
    .takes_chunk_steps = true,
    .stores_grads = ra_cuda_stores_grads,
    .workspace_bytes = ra_cuda_workspace_bytes,
    .forward = cuda_forward,
    .delta = ra_cuda_delta_rows,
    .backward = cuda_backward,
    .gather = ra_cuda_gather,
    .add = ra_cuda_add,
    .store = ra_cuda_store,
    .zero = ra_cuda_zero,
    .linear = &ra_cuda_linear_ops,
    .init = cuda_init,
    .fini = cuda_fini,
    .take_map = ra_cuda_take_map,
    .drop_map = ra_cuda_drop_map,
    .finish = ra_cuda_finish,
    .watch = ra_cuda_watch_look,
    .timeline = cuda_timeline,
};

const ra_kernel_ops *ra_kernel_cuda(void)
{
    return &ra_cuda_ops;
}

/* ---- by warpgroups --------------------------------------------------------------------------- */

#ifdef RA_CUDA_SM90A
static ra_kernel_ops sm90a_ops, sm90a_backward_ops;
static pthread_once_t sm90a_made = PTHREAD_ONCE_INIT;

static bool sm90a_runs_on(int32_t major, int32_t minor)
{
    return major == 9 && minor == 0;
}

static bool sm90a_differs(const ra_kernel_use *use)
{
    return use->linear == RA_LINEAR_NONE && ra_cuda_has_warpgroups(use->dtype, use->dim);
}

static bool sm90a_backward_differs(const ra_kernel_use *use)
{
    return use->backward && !use->deterministic && use->linear == RA_LINEAR_NONE &&
           ra_cuda_has_warpgroup_single(use->dtype, use->dim);
}

/* With so many bytes of shared memory, or as many as the other table needs. */
static bool serves_with(const ra_kernel_use *use, int32_t own, char *why_not, size_t bytes)
{
    ra_devices devices;
    int index;
    const ra_device *const device = device_of(&devices, &index);
    if (device == NULL || sm90a_runs_on(device->major, device->minor))
        return has_shared(use, ra_hd_max(own, ra_cuda_shared_bytes(use)), why_not, bytes);
    snprintf(why_not, bytes,
             "code for sm_90a runs on compute capability 9.0 alone, and GPU %d (%s) has %d.%d",
             index, device->name, (int)device->major, (int)device->minor);
    return false;
}

static int32_t sm90a_shared_bytes(const ra_kernel_use *use)
{
    return sm90a_differs(use) ? ra_cuda_warpgroup_tile_of(use->dim).shared_bytes : 0;
}

static bool sm90a_serves(const ra_kernel_use *use, char *why_not, size_t bytes)
{
    return serves_with(use, sm90a_shared_bytes(use), why_not, bytes);
}

static bool sm90a_backward_serves(const ra_kernel_use *use, char *why_not, size_t bytes)
{
    int32_t const backward =
        sm90a_backward_differs(use) ? ra_cuda_warpgroup_single_of(use->dim).shared_bytes : 0;
    return serves_with(use, ra_hd_max(backward, sm90a_shared_bytes(use)), why_not, bytes);
}

static ra_status sm90a_forward(ra_kernel *kernel, const ra_forward_step *step)
{
    return forward_by(kernel, step, true);
}

static ra_status sm90a_backward(ra_kernel *kernel, const ra_backward_step *step)
{
    return backward_by(kernel, step, true);
}

/* Scratch for shared rows and for parts of long tasks is one: no step has both. */
static size_t sm90a_workspace_bytes(const ra_kernel_use *use)
{
    size_t const other = ra_cuda_workspace_bytes(use);
    ra_cuda_tile const tile = ra_cuda_warpgroup_tile_of(use->dim);
    if (!use->long_rows || !sm90a_differs(use))
        return other;
    size_t const cuts = ra_cuda_cuts_bytes(use->threads * tile.blocks_per_sm, use->dim);
    return cuts + RA_CUDA_TAIL_BYTES > other ? cuts + RA_CUDA_TAIL_BYTES : other;
}

static void make_sm90a(void)
{
    sm90a_ops = ra_cuda_ops;
    sm90a_ops.name = "cuda-sm_90a";
    sm90a_ops.serves = sm90a_serves;
    sm90a_ops.runs_on = sm90a_runs_on;
    sm90a_ops.differs = sm90a_differs;
    sm90a_ops.workspace_bytes = sm90a_workspace_bytes;
    sm90a_ops.forward = sm90a_forward;
    sm90a_backward_ops = sm90a_ops;
    sm90a_backward_ops.name = "cuda-sm_90a_backward";
    sm90a_backward_ops.serves = sm90a_backward_serves;
    sm90a_backward_ops.differs = sm90a_backward_differs;
    sm90a_backward_ops.backward = sm90a_backward;
}

static const ra_kernel_ops *sm90a_made_once(const ra_kernel_ops *ops)
{
    RA_ASSERT(pthread_once(&sm90a_made, make_sm90a) == 0);
    return ops;
}

const ra_kernel_ops *ra_kernel_cuda_sm90a(void)
{
    return sm90a_made_once(&sm90a_ops);
}

const ra_kernel_ops *ra_kernel_cuda_sm90a_backward(void)
{
    return sm90a_made_once(&sm90a_backward_ops);
}
#else
const ra_kernel_ops *ra_kernel_cuda_sm90a(void)
{
    return NULL;
}

const ra_kernel_ops *ra_kernel_cuda_sm90a_backward(void)
{
    return NULL;
}
#endif
