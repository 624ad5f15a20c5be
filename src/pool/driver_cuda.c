/* CUDA's stream-ordered allocator, as a pool of our own on one device. */
#include "driver_cuda.h"

#include "cuda_error.h"
#include "internal.h"
#include "ringattn/device.h"
#include "timeline_cuda.h"

#include <stdlib.h>
#include <string.h>

/* Blocks begin at multiples of this; a job gives them back on fewer streams than these. */
enum { ALIGN_BYTES = 512, STREAMS = 4 };

typedef struct driver {
    cudaMemPool_t pool;
    cudaStream_t streams[STREAMS]; /* that gave back blocks last, in turn */
    cudaEvent_t freed[STREAMS];    /* behind the last that each did */
    int turn;
} driver;

static int device_of(const ra_memory *memory)
{
    return (int)(intptr_t)memory->self;
}

/*
 * By default the driver returns idle memory whenever somebody waits for a stream, without the
 * ledger's knowledge. So it is told to keep all, and trimmed when the pool says so.
 */
static cudaError_t pool_make(int device, cudaMemPool_t *pool_out)
{
    struct cudaMemPoolProps properties;
    uint64_t threshold = UINT64_MAX;
    memset(&properties, 0, sizeof(properties));
    properties.allocType = cudaMemAllocationTypePinned;
    properties.handleTypes = cudaMemHandleTypeNone;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = device;
    cudaError_t const error = cudaMemPoolCreate(pool_out, &properties);
    return error == cudaSuccess
               ? cudaMemPoolSetAttribute(*pool_out, cudaMemPoolAttrReleaseThreshold, &threshold)
               : error;
}

static cudaError_t driver_make(int device, driver *d)
{
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < STREAMS && error == cudaSuccess; i++)
        error = cudaEventCreateWithFlags(&d->freed[i], cudaEventDisableTiming);
    return error == cudaSuccess ? pool_make(device, &d->pool) : error;
}

static void driver_end(driver *d)
{
    static const char what[] = "the driver's pool could not be returned";
    if (d->pool != NULL && !ra_device_is_lost()) /* which it would wait for */
        ra_cuda_warn(cudaMemPoolDestroy(d->pool), what);
    for (int i = 0; i < STREAMS && d->freed[i] != NULL; i++)
        ra_cuda_warn(cudaEventDestroy(d->freed[i]), what);
    free(d);
}

static ra_status driver_create(const ra_memory *memory, void **driver_out)
{
    int const device = device_of(memory);
    int supported = 0;
    cudaError_t error = cudaSetDevice(device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device);
    if (error == cudaSuccess && !supported) {
        ra_log(RA_LOG_ERROR, "a driver's pool needs a driver that has one: that of GPU %d has none",
               device);
        return RA_ERR_UNSUPPORTED;
    }
    driver *const d = calloc(1, sizeof(*d));
    if (d == NULL)
        return ra_refuse_memory("the driver's pool");
    if (error == cudaSuccess)
        error = driver_make(device, d);
    ra_status const status = ra_cuda_status(error, "making the driver's pool");
    if (status == RA_OK)
        *driver_out = d;
    else
        driver_end(d);
    return status;
}

/*
 * The driver may keep a freed block until the host has seen the end of the stream that freed it,
 * and only a call that waits for the stream is sure to count.
 */
static void driver_see(const ra_memory *memory, void *self)
{
    const driver *const d = self;
    (void)memory;
    for (int i = 0; i < STREAMS && !ra_device_is_lost(); i++) {
        cudaError_t error = ra_cuda_wait_briefly(d->freed[i]);
        if (error == cudaSuccess)
            error = cudaEventSynchronize(d->freed[i]);
        if (error != cudaErrorNotReady)
            ra_cuda_warn(error, "what the driver's pool was given back could not be waited for");
    }
}

static void driver_destroy(const ra_memory *memory, void *self)
{
    driver_see(memory, self);
    driver_end(self);
}

static size_t driver_round(const ra_memory *memory, size_t bytes)
{
    (void)memory;
    return ra_round_up(bytes, ALIGN_BYTES);
}

static ra_status driver_alloc(const ra_memory *memory, void *self, size_t bytes, ra_stream *stream,
                              void **ptr_out)
{
    const driver *const d = self;
    void *data = NULL;
    cudaError_t error = cudaSetDevice(device_of(memory));
    if (error == cudaSuccess)
        error = cudaMallocFromPoolAsync(&data, bytes, d->pool, (cudaStream_t)stream);
    ra_status const status =
        ra_cuda_status_of_request(error, "taking memory from the driver's pool");
    if (status == RA_OK)
        *ptr_out = data;
    return status;
}

/* The stream's event, or that of the stream which it replaces. */
static cudaEvent_t event_of(driver *d, cudaStream_t stream)
{
    for (int i = 0; i < STREAMS; i++) {
        if (d->streams[i] == stream)
            return d->freed[i];
    }
    d->turn = (d->turn + 1) % STREAMS;
    d->streams[d->turn] = stream;
    return d->freed[d->turn];
}

static void driver_free(const ra_memory *memory, void *self, void *ptr, ra_stream *ordered)
{
    cudaStream_t const stream = (cudaStream_t)ordered;
    if (ra_device_is_lost())
        return; /* the runtime would wait for room on its stream */
    cudaError_t error = cudaSetDevice(device_of(memory));
    if (error == cudaSuccess)
        error = cudaFreeAsync(ptr, stream);
    if (error == cudaSuccess)
        error = cudaEventRecord(event_of(self, stream), stream);
    ra_cuda_warn(error, "memory could not be given back to the driver's pool");
}

/* Asking takes no memory, so no failure here is RA_ERR_NO_MEMORY. */
static ra_status driver_held(const ra_memory *memory, void *self, int64_t *bytes_out)
{
    const driver *const d = self;
    uint64_t held = 0;
    (void)memory;
    cudaError_t const error =
        cudaMemPoolGetAttribute(d->pool, cudaMemPoolAttrReservedMemCurrent, &held);
    if (ra_cuda_status(error, "asking the driver's pool what it holds") != RA_OK)
        return RA_ERR_CUDA;
    *bytes_out = (int64_t)held;
    return RA_OK;
}

static void driver_trim(const ra_memory *memory, void *self, int64_t keep_bytes)
{
    const driver *const d = self;
    (void)memory;
    if (!ra_device_is_lost())
        ra_cuda_warn(cudaMemPoolTrimTo(d->pool, (size_t)keep_bytes),
                     "the driver's pool could not be trimmed");
}

const ra_driver_ops ra_driver_cuda = {
    .create = driver_create,
    .destroy = driver_destroy,
    .round = driver_round,
    .alloc = driver_alloc,
    .free = driver_free,
    .held = driver_held,
    .see = driver_see,
    .trim = driver_trim,
};
