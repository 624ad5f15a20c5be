#include "standin_cudart.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

standin_cudart standin;

void standin_reset(void)
{
    standin = (standin_cudart){.device_count = 2,
                               .driver_version = 13000,
                               .memory_bytes = (int64_t)1 << 30,
                               .stream_is_over = 1};
    for (int i = 0; i < STANDIN_DEVICES_MAX; i++)
        standin.major[i] = 9;
}

static cudaError_t keep(cudaError_t error)
{
    if (error != cudaSuccess)
        standin.last_error = error;
    return error;
}

static cudaError_t enter(void)
{
    if (++standin.calls == standin.fail_call)
        return keep(standin.fail_error);
    return keep(standin.absent);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = standin.driver_version;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t const error = standin.last_error;
    standin.last_error = cudaSuccess;
    return error;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaSuccess ? "no error" : "an injected error";
}

cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t const error = enter();
    if (error == cudaSuccess)
        *count = standin.device_count;
    return error;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    cudaError_t const error = enter();
    if (error != cudaSuccess)
        return error;
    memset(properties, 0, sizeof(*properties));
    snprintf(properties->name, sizeof(properties->name), "stand-in %d", device);
    properties->major = standin.major[device];
    properties->multiProcessorCount = 132;
    properties->totalGlobalMem = (size_t)standin.memory_bytes;
    properties->sharedMemPerBlockOptin = 232448;
    properties->pciBusID = 0x3b + device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    cudaError_t const error = enter();
    if (error == cudaSuccess)
        standin.current = device;
    return error;
}

static cudaError_t take(void **data, size_t bytes)
{
    char *const block = malloc(bytes + 64);
    if (block == NULL)
        return keep(cudaErrorMemoryAllocation);
    memcpy(block, &bytes, sizeof(bytes));
    *data = block + 64;
    return cudaSuccess;
}

static size_t give(void *data)
{
    size_t bytes;
    memcpy(&bytes, (char *)data - 64, sizeof(bytes));
    free((char *)data - 64);
    return bytes;
}

cudaError_t cudaMalloc(void **data, size_t bytes)
{
    cudaError_t error = enter();
    if (error == cudaSuccess && standin.used_bytes + (int64_t)bytes > standin.memory_bytes)
        error = keep(cudaErrorMemoryAllocation);
    if (error == cudaSuccess)
        error = take(data, bytes);
    if (error != cudaSuccess)
        return error;
    standin.used_bytes += (int64_t)bytes;
    standin.blocks++;
    return cudaSuccess;
}

cudaError_t cudaFree(void *data)
{
    cudaError_t const error = enter();
    if (error != cudaSuccess)
        return error;
    standin.used_bytes -= (int64_t)give(data);
    standin.blocks--;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **data, size_t bytes, unsigned flags)
{
    cudaError_t error = enter();
    if (error == cudaSuccess && flags != cudaHostAllocPortable)
        error = keep(cudaErrorInvalidValue);
    if (error == cudaSuccess)
        error = take(data, bytes);
    if (error == cudaSuccess)
        standin.pinned_blocks++;
    return error;
}

cudaError_t cudaFreeHost(void *data)
{
    cudaError_t const error = enter();
    if (error != cudaSuccess)
        return error;
    (void)give(data);
    standin.pinned_blocks--;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    cudaError_t const error = enter();
    if (error != cudaSuccess)
        return error;
    *free_bytes = (size_t)(standin.memory_bytes - standin.used_bytes);
    *total_bytes = (size_t)standin.memory_bytes;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    cudaError_t const error = enter();
    if (error != cudaSuccess)
        return error;
    if (flags != cudaEventDisableTiming)
        return keep(cudaErrorInvalidValue);
    *event = malloc(1);
    if (*event == NULL)
        return keep(cudaErrorMemoryAllocation);
    standin.events++;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    (void)event, (void)stream;
    return enter();
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    (void)event;
    cudaError_t const error = enter();
    if (error != cudaSuccess)
        return error;
    return standin.stream_is_over ? cudaSuccess : keep(cudaErrorNotReady);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    cudaError_t const error = enter();
    if (error != cudaSuccess)
        return error;
    free(event);
    standin.events--;
    return cudaSuccess;
}
