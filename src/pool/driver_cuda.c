/* CUDA's stream-ordered allocator, as a pool of our own on one device. */
#include "driver_cuda.h"

#include "cuda_error.h"
#include "internal.h"
#include "ringattn/device.h"

#include <string.h>

/* Blocks begin at multiples of this. */
enum { ALIGN_BYTES = 512 };

static int device_of(const ra_memory *memory)
{
    return (int)(intptr_t)memory->self;
}

/*
 * Left to itself the driver returns idle memory whenever somebody waits for a stream, and the
 * ledger would not hear of it: it is told to keep all, and trimmed when the pool says so.
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
    cudaError_t error = cudaMemPoolCreate(pool_out, &properties);
    if (error != cudaSuccess)
        return error;
    error = cudaMemPoolSetAttribute(*pool_out, cudaMemPoolAttrReleaseThreshold, &threshold);
    if (error != cudaSuccess)
        (void)cudaMemPoolDestroy(*pool_out);
    return error;
}

static ra_status driver_create(const ra_memory *memory, void **driver_out)
{
    int const device = device_of(memory);
    int supported = 0;
    cudaMemPool_t pool = NULL;
    cudaError_t error = cudaSetDevice(device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device);
    if (error == cudaSuccess && !supported) {
        ra_log(RA_LOG_ERROR, "a driver's pool needs a driver that has one: that of GPU %d has none",
               device);
        return RA_ERR_UNSUPPORTED;
    }
    if (error == cudaSuccess)
        error = pool_make(device, &pool);
    ra_status const status = ra_cuda_status(error, "making the driver's pool");
    if (status == RA_OK)
        *driver_out = pool;
    return status;
}

static void driver_destroy(const ra_memory *memory, void *driver)
{
    (void)memory;
    if (!ra_device_is_lost()) /* which it would wait for */
        ra_cuda_warn(cudaMemPoolDestroy(driver), "the driver's pool could not be returned");
}

static size_t driver_round(const ra_memory *memory, size_t bytes)
{
    (void)memory;
    return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

static ra_status driver_alloc(const ra_memory *memory, void *driver, size_t bytes,
                              ra_stream *stream, void **ptr_out)
{
    void *data = NULL;
    cudaError_t error = cudaSetDevice(device_of(memory));
    if (error == cudaSuccess)
        error = cudaMallocFromPoolAsync(&data, bytes, driver, (cudaStream_t)stream);
    ra_status const status =
        ra_cuda_status_of_request(error, "taking memory from the driver's pool");
    if (status == RA_OK)
        *ptr_out = data;
    return status;
}

static void driver_free(const ra_memory *memory, void *driver, void *ptr, ra_stream *stream)
{
    cudaError_t error = cudaSetDevice(device_of(memory));
    (void)driver; /* memory knows its pool */
    if (error == cudaSuccess)
        error = cudaFreeAsync(ptr, (cudaStream_t)stream);
    ra_cuda_warn(error, "memory could not be given back to the driver's pool");
}

/* A question takes no memory: whatever the answer is, it is not that of a request. */
static ra_status driver_held(const ra_memory *memory, void *driver, int64_t *bytes_out)
{
    uint64_t held = 0;
    (void)memory;
    cudaError_t const error =
        cudaMemPoolGetAttribute(driver, cudaMemPoolAttrReservedMemCurrent, &held);
    if (ra_cuda_status(error, "asking the driver's pool what it holds") != RA_OK)
        return RA_ERR_CUDA;
    *bytes_out = (int64_t)held;
    return RA_OK;
}

static void driver_trim(const ra_memory *memory, void *driver, int64_t keep_bytes)
{
    (void)memory;
    if (!ra_device_is_lost())
        ra_cuda_warn(cudaMemPoolTrimTo(driver, (size_t)keep_bytes),
                     "the driver's pool could not be trimmed");
}

const ra_driver_ops ra_driver_cuda = {
    .create = driver_create,
    .destroy = driver_destroy,
    .round = driver_round,
    .alloc = driver_alloc,
    .free = driver_free,
    .held = driver_held,
    .trim = driver_trim,
};
