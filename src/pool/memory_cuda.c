/* Device memory and pinned memory. */
#include "cuda_error.h"
#include "driver_cuda.h"
#include "host_available.h"
#include "internal.h"
#include "ringattn/device.h"
#include "ringattn/pool.h"

#include <unistd.h>

/* Small blocks share granules of the driver, which are 2 MiB; a large one has its own. */
enum { SMALL_ALIGN_BYTES = 512, GRANULE_BYTES = 2 << 20 };

/* The index of the device is all that there is to know about it. */
static cudaError_t make_current(const ra_memory *memory)
{
    return cudaSetDevice((int)(intptr_t)memory->self);
}

static ra_status cuda_alloc(const ra_memory *memory, size_t bytes, void **ptr_out)
{
    bool const pinned = ra_memory_is_host(memory);
    void *data = NULL;
    RA_ASSERT(bytes > 0);
    cudaError_t error = make_current(memory);
    if (error == cudaSuccess)
        error =
            pinned ? cudaHostAlloc(&data, bytes, cudaHostAllocPortable) : cudaMalloc(&data, bytes);
    ra_status const status =
        ra_cuda_status_of_request(error, pinned ? "taking pinned memory" : "taking device memory");
    if (status == RA_OK)
        *ptr_out = data;
    return status;
}

static void cuda_free(const ra_memory *memory, void *ptr, size_t bytes)
{
    if (ra_device_is_lost())
        return; /* the runtime would wait for it */
    cudaError_t error = make_current(memory);
    if (error == cudaSuccess)
        error = ra_memory_is_host(memory) ? cudaFreeHost(ptr) : cudaFree(ptr);
    ra_cuda_warn(error, "%zu bytes of %s memory could not be returned", bytes, memory->ops->name);
}

/* ---- device ---------------------------------------------------------------------------------- */

static size_t device_round(const ra_memory *memory, size_t bytes)
{
    (void)memory;
    return ra_round_up(bytes, bytes < GRANULE_BYTES ? SMALL_ALIGN_BYTES : GRANULE_BYTES);
}

static ra_status device_available(const ra_memory *memory, int64_t *bytes_out)
{
    size_t free_bytes = 0, total_bytes = 0;
    cudaError_t error = make_current(memory);
    if (error == cudaSuccess)
        error = cudaMemGetInfo(&free_bytes, &total_bytes);
    ra_status const status = ra_cuda_status(error, "asking for free device memory");
    if (status == RA_OK)
        *bytes_out = (int64_t)free_bytes;
    return status;
}

/* ---- order on streams ------------------------------------------------------------------------ */

static ra_status event_record(const ra_memory *memory, ra_stream *stream, void **event_out)
{
    cudaEvent_t event = NULL;
    if (ra_device_is_lost())
        return RA_ERR_CUDA; /* the runtime would wait for room on its stream */
    cudaError_t error = make_current(memory);
    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (error == cudaSuccess) {
        error = cudaEventRecord(event, (cudaStream_t)stream);
        if (error != cudaSuccess)
            (void)ra_cuda_forget(cudaEventDestroy(event));
    }
    if (ra_cuda_is_sticky(error))
        return RA_ERR_CUDA; /* as ra_cuda_warn: memory is being given back */
    ra_status const status = ra_cuda_status(error, "recording an event");
    if (status == RA_OK)
        *event_out = event;
    return status;
}

/* An event that cannot be queried is never over: nobody gets the memory before the end. */
static bool event_is_over(const ra_memory *memory, void *event)
{
    (void)memory;
    return ra_cuda_forget(cudaEventQuery(event)) == cudaSuccess;
}

static void event_free(const ra_memory *memory, void *event)
{
    (void)memory;
    ra_cuda_warn(cudaEventDestroy(event), "an event could not be returned");
}

/* ---- copies ---------------------------------------------------------------------------------- */

/*
 * Waiting is for this stream alone, on which nothing waits for other processes: exchanges have
 * streams of their own, and whoever needs what they bring waits on the host, under a deadline. Nor
 * do kernels run on it by then: tensors come before passes, and results after ra_kernel_finish,
 * which has found out whether one hangs.
 */
static ra_status copy(const ra_memory *memory, ra_stream *stream, void *to, const void *from,
                      size_t bytes, enum cudaMemcpyKind kind, const char *what)
{
    cudaError_t error = make_current(memory);
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(to, from, bytes, kind, (cudaStream_t)stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize((cudaStream_t)stream);
    return ra_cuda_status(error, what);
}

static ra_status device_write(const ra_memory *memory, ra_stream *stream, void *to,
                              const void *from, size_t bytes)
{
    return copy(memory, stream, to, from, bytes, cudaMemcpyHostToDevice, "copying to the GPU");
}

static ra_status device_read(const ra_memory *memory, ra_stream *stream, void *to, const void *from,
                             size_t bytes)
{
    return copy(memory, stream, to, from, bytes, cudaMemcpyDeviceToHost, "copying from the GPU");
}

static const ra_memory_ops device_ops = {
    .name = "device",
    .round = device_round,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .available = device_available,
    .event_record = event_record,
    .event_is_over = event_is_over,
    .event_free = event_free,
    .write = device_write,
    .read = device_read,
    .driver = &ra_driver_cuda,
};

/* ---- pinned ---------------------------------------------------------------------------------- */

static size_t pinned_round(const ra_memory *memory, size_t bytes)
{
    (void)memory;
    return ra_round_up(bytes, (size_t)sysconf(_SC_PAGESIZE));
}

static ra_status pinned_available(const ra_memory *memory, int64_t *bytes_out)
{
    (void)memory;
    return ra_host_available("", bytes_out);
}

static const ra_memory_ops pinned_ops = {
    .name = "pinned",
    .round = pinned_round,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .available = pinned_available,
    .event_record = event_record,
    .event_is_over = event_is_over,
    .event_free = event_free,
};

/* ---- makers ---------------------------------------------------------------------------------- */

/* Check once, here, that the device exists, rather than by the first request. */
static ra_status memory_make(const ra_memory_ops *ops, int index, ra_memory *memory_out)
{
    ra_memory const memory = {.ops = ops, .self = (void *)(intptr_t)index};
    ra_status status = ra_cuda_check_index(index);
    if (status == RA_OK)
        status = ra_cuda_status(make_current(&memory), "choosing a GPU");
    if (status == RA_OK) {
        ra_cuda_note_use();
        *memory_out = memory;
    }
    return status;
}

ra_status ra_memory_device(int index, ra_memory *memory_out)
{
    return memory_make(&device_ops, index, memory_out);
}

ra_status ra_memory_pinned(ra_memory *memory_out)
{
    return memory_make(&pinned_ops, ra_device_used(), memory_out);
}
