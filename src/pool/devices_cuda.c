/* Which GPUs there are. */
#include "cuda_error.h"
#include "internal.h"
#include "ringattn/device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

/* ---- one GPU --------------------------------------------------------------------------------- */

/* 0 where the driver does not tell: the peak that follows from it is not known then. */
static int32_t clock_of(int index)
{
    int khz = 0;
    cudaError_t const error = cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, index);
    return ra_cuda_forget(error) == cudaSuccess ? khz : 0;
}

static cudaError_t describe(int index, ra_device *device)
{
    struct cudaDeviceProp properties;
    cudaError_t const error = cudaGetDeviceProperties(&properties, index);
    if (error != cudaSuccess)
        return error;
    device->memory_bytes = (int64_t)properties.totalGlobalMem;
    device->clock_khz = clock_of(index);
    snprintf(device->name, sizeof(device->name), "%.63s", properties.name);
    snprintf(device->bus_id, sizeof(device->bus_id), "%04x:%02x:%02x.0", properties.pciDomainID,
             properties.pciBusID, properties.pciDeviceID);
    return cudaSuccess;
}

/* Properties, and the clock, take drivers a millisecond or more by what others measured, since they
   ask the GPU itself; other attributes take nothing to speak of. They do not change, and so are
   asked for once. */
static cudaError_t describe_once(int index, ra_device *device)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static ra_device known[RA_DEVICES_MAX];
    cudaError_t error = cudaSuccess;
    if (index >= RA_DEVICES_MAX)
        return describe(index, device);
    pthread_mutex_lock(&lock);
    if (known[index].memory_bytes == 0)
        error = describe(index, &known[index]);
    *device = known[index];
    pthread_mutex_unlock(&lock);
    return error;
}

static cudaError_t device_read(int index, ra_device *device)
{
    int major = 0, minor = 0, multiprocessors = 0, shared_bytes = 0, mode = cudaComputeModeDefault;
    const struct {
        enum cudaDeviceAttr attribute;
        int *value;
    } asked[] = {{cudaDevAttrComputeCapabilityMajor, &major},
                 {cudaDevAttrComputeCapabilityMinor, &minor},
                 {cudaDevAttrMultiProcessorCount, &multiprocessors},
                 {cudaDevAttrMaxSharedMemoryPerBlockOptin, &shared_bytes},
                 {cudaDevAttrComputeMode, &mode}};
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]) && error == cudaSuccess; i++)
        error = cudaDeviceGetAttribute(asked[i].value, asked[i].attribute, index);
    if (error == cudaSuccess)
        error = describe_once(index, device);
    device->major = major;
    device->minor = minor;
    device->multiprocessors = multiprocessors;
    device->shared_bytes = shared_bytes;
    device->usable =
        error == cudaSuccess && major >= RA_DEVICE_MAJOR_MIN && mode != cudaComputeModeProhibited;
    return error;
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* Why a GPU that was read is not usable. */
static void explain_unusable(const ra_device *device, char *text, size_t bytes)
{
    if (device->major >= RA_DEVICE_MAJOR_MIN)
        snprintf(text, bytes, "%s is in compute mode Prohibited", device->name);
    else
        snprintf(text, bytes,
                 "%s has compute capability %d.%d, and %d.0 is the least that is supported",
                 device->name, device->major, device->minor, RA_DEVICE_MAJOR_MIN);
}

static void explain(cudaError_t error, ra_devices *devices)
{
    if (ra_cuda_is_absent(error))
        ra_cuda_explain_absent(error, devices->why_not, sizeof(devices->why_not));
    else
        snprintf(devices->why_not, sizeof(devices->why_not), "%s (CUDA error %d)",
                 cudaGetErrorString(error), (int)error);
}

void ra_devices_read(ra_devices *devices_out)
{
    ra_devices *d = devices_out;
    int count = 0;
    *d = (ra_devices){0};
    if (cudaRuntimeGetVersion(&d->runtime_version) != cudaSuccess)
        d->runtime_version = 0;
    if (cudaDriverGetVersion(&d->driver_version) != cudaSuccess)
        d->driver_version = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count == 0)
        error = cudaErrorNoDevice;
    for (int i = 0; i < count && i < RA_DEVICES_MAX; i++) {
        cudaError_t const one = ra_cuda_forget(device_read(i, &d->list[i]));
        error = error == cudaSuccess ? one : error; /* the first, if there is no other GPU */
        d->usable_count += d->list[i].usable;
        d->count++;
    }
    (void)ra_cuda_forget(error);
    if (d->usable_count > 0)
        return;
    if (error != cudaSuccess)
        explain(error, d);
    else
        explain_unusable(&d->list[0], d->why_not, sizeof(d->why_not));
}

/* ---- the one in use -------------------------------------------------------------------------- */

static int used_index;
static atomic_bool lost, is_shared;

static ra_status refuse(int index, const ra_device *device)
{
    char why[160];
    explain_unusable(device, why, sizeof(why));
    ra_log(RA_LOG_ERROR, "GPU %d: %s", index, why);
    return RA_ERR_UNSUPPORTED;
}

ra_status ra_cuda_check_index(int index)
{
    int count = 0;
    ra_status const status = ra_cuda_status(cudaGetDeviceCount(&count), "looking for GPUs");
    if (status != RA_OK || (index >= 0 && index < count))
        return status;
    ra_log(RA_LOG_ERROR, "GPU %d: there are %d, numbered from 0", index, count);
    return RA_ERR_UNSUPPORTED;
}

/* From the first question on, so that a line about a GPU that is lost meanwhile names this one. */
ra_status ra_device_use(int index)
{
    int const before = used_index;
    ra_device device = {0};
    used_index = index;
    ra_status status = ra_cuda_check_index(index);
    if (status == RA_OK)
        status = ra_cuda_status(device_read(index, &device), "asking what a GPU is");
    if (status == RA_OK && !device.usable)
        status = refuse(index, &device);
    if (status == RA_OK)
        status = ra_cuda_status(cudaSetDevice(index), "choosing a GPU");
    if (status != RA_OK)
        used_index = before;
    return status;
}

int ra_device_used(void)
{
    return used_index;
}

bool ra_device_lose(void)
{
    return !atomic_exchange(&lost, true);
}

bool ra_device_is_lost(void)
{
    return atomic_load(&lost);
}

void ra_device_share(bool shared)
{
    atomic_store(&is_shared, shared);
}

/* Choosing the device creates the context, if there is none yet. */
ra_status ra_device_taken(int64_t *bytes_out)
{
    size_t free_bytes = 0, total_bytes = 0;
    cudaError_t error = cudaSetDevice(used_index);
    if (error == cudaSuccess)
        error = cudaMemGetInfo(&free_bytes, &total_bytes);
    ra_status const status = ra_cuda_status(error, "asking what a context costs");
    if (status == RA_OK)
        *bytes_out = atomic_load(&is_shared) ? 0 : (int64_t)(total_bytes - free_bytes);
    return status;
}
