#include "support/standin_cudart.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

standin_cudart standin;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* What is taken, so that addresses can be told apart: before each block lies one of these. */
typedef struct header {
    struct header *next, *previous;
    size_t bytes;
    int is_device;
    int device; /* the thread's when it was taken */
} header;

enum { HEADER_BYTES = 64, PATIENCE_MS = 5000 };
_Static_assert(sizeof(header) <= HEADER_BYTES, "blocks stay aligned");

static header *taken;

static _Thread_local cudaError_t last_error; /* the runtime keeps one per host thread */
static _Thread_local bool thread_chose;
static _Thread_local int current;

void standin_reset(void)
{
    standin_reset_pools();
    last_error = cudaSuccess;
    current = 0;
    standin = (standin_cudart){.device_count = 2,
                               .driver_version = 13000,
                               .multiprocessors = 132,
                               .shared_bytes = 232448,
                               .memory_bytes = (int64_t)1 << 30,
                               .stream_is_over = 1};
    for (int i = 0; i < STANDIN_DEVICES_MAX; i++)
        standin.major[i] = 9;
    standin_reset_streams();
}

static cudaError_t enter(int is_question)
{
    pthread_mutex_lock(&lock);
    standin.acts += !is_question;
    if (++standin.calls != standin.fail_call && (is_question || standin.acts != standin.fail_act))
        return standin.absent;
    if (standin.fails_for_good)
        standin.absent = standin.fail_error;
    return standin.fail_error;
}

cudaError_t standin_enter(void)
{
    return enter(0);
}

cudaError_t standin_enter_question(void)
{
    return enter(1);
}

cudaError_t standin_leave(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    pthread_mutex_unlock(&lock);
    return error;
}

cudaError_t standin_enqueue_launch(cudaStream_t s, void (*run)(void *context), const void *context,
                                   size_t bytes)
{
    if (standin.code_error != cudaSuccess)
        return standin.code_error;
    if (standin_device_of(s) != current)
        return cudaErrorInvalidResourceHandle;
    if (++standin.launches == standin.hang_launch)
        return standin_enqueue_hang(s);
    if (standin.launches == standin.fault_launch) {
        standin.fails_for_good = 1;
        standin.absent = cudaErrorIllegalAddress;
    }
    return standin_enqueue(s, run, context, bytes);
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
    pthread_mutex_lock(&lock);
    cudaError_t const error = last_error;
    last_error = standin.fails_for_good ? standin.absent : cudaSuccess;
    pthread_mutex_unlock(&lock);
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaSuccess                 ? "no error"
           : error == cudaErrorMemoryAllocation ? "out of memory"
                                                : "an injected error";
}

cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t const error = standin_enter();
    if (error == cudaSuccess)
        *count = standin.device_count;
    return standin_leave(error);
}

static int is_there(int device)
{
    return device >= 0 && device < standin.device_count;
}

static int shared_bytes_of(int device)
{
    return standin.major[device] < 8 ? 49152 : (int)standin.shared_bytes;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    cudaError_t error = standin_enter();
    standin.descriptions++;
    if (error == cudaSuccess && !is_there(device))
        error = cudaErrorInvalidDevice;
    if (error == cudaSuccess) {
        memset(properties, 0, sizeof(*properties));
        snprintf(properties->name, sizeof(properties->name), "stand-in %d", device);
        properties->major = standin.major[device];
        properties->multiProcessorCount = standin.multiprocessors;
        properties->totalGlobalMem = (size_t)standin.memory_bytes;
        properties->sharedMemPerBlockOptin = (size_t)shared_bytes_of(device);
        properties->pciBusID = 0x3b + device;
    }
    return standin_leave(error);
}

static cudaError_t attribute_of(enum cudaDeviceAttr attribute, int device, int *value)
{
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
        *value = standin.major[device];
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = standin.multiprocessors;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = shared_bytes_of(device);
        return cudaSuccess;
    case cudaDevAttrComputeMode:
        *value = standin.compute_mode;
        return cudaSuccess;
    case cudaDevAttrClockRate:
        *value = STANDIN_CLOCK_KHZ;
        return cudaSuccess;
    case cudaDevAttrMemoryPoolsSupported:
        *value = !standin.has_no_pools;
        return cudaSuccess;
    default:
        return cudaErrorInvalidValue;
    }
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    cudaError_t error = standin_enter();
    if (error == cudaSuccess)
        error = is_there(device) ? attribute_of(attribute, device, value) : cudaErrorInvalidDevice;
    return standin_leave(error);
}

/* Contexts of other processes. */
static int64_t count_others(void)
{
    if (standin.contexts_file == NULL)
        return 0;
    FILE *const file = fopen(standin.contexts_file, "a+");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0)
        abort();
    int64_t const count = ftell(file);
    fclose(file);
    return count - standin.has_context;
}

static void make_context(void)
{
    struct timespec const nap = {.tv_sec = standin.context_ns / 1000000000,
                                 .tv_nsec = standin.context_ns % 1000000000};
    if (standin.contexts_file == NULL || standin.has_context)
        return;
    nanosleep(&nap, NULL);
    FILE *const file = fopen(standin.contexts_file, "a");
    if (file == NULL || fputc('c', file) == EOF || fclose(file) != 0)
        abort();
    standin.has_context = 1;
}

cudaError_t cudaSetDevice(int device)
{
    cudaError_t error = standin_enter();
    if (error == cudaSuccess)
        error = is_there(device) ? standin.taken_error : cudaErrorInvalidDevice;
    if (error == cudaSuccess)
        make_context();
    if (error == cudaSuccess)
        current = device;
    thread_chose = true;
    return standin_leave(error);
}

bool standin_thread_chose(void)
{
    return thread_chose;
}

int standin_current(void)
{
    return current;
}

void standin_require(int device)
{
    if (device == current)
        return;
    fprintf(stderr, "the stand-in runtime: a thread that means GPU %d works on GPU %d\n", current,
            device);
    abort();
}

cudaError_t standin_take(void **data, size_t bytes, int is_device)
{
    header *const block =
        aligned_alloc(HEADER_BYTES, (bytes + 2 * HEADER_BYTES - 1) / HEADER_BYTES * HEADER_BYTES);
    if (block == NULL)
        return cudaErrorMemoryAllocation;
    *block = (header){.next = taken, .bytes = bytes, .is_device = is_device, .device = current};
    if (taken != NULL)
        taken->previous = block;
    taken = block;
    *data = (char *)block + HEADER_BYTES;
    memset(*data, 0xff, bytes);
    return cudaSuccess;
}

static header *header_of(void *data)
{
    return (header *)(void *)((char *)data - HEADER_BYTES);
}

size_t standin_give(void *data)
{
    header *const block = header_of(data);
    size_t const bytes = block->bytes;
    if (block->next != NULL)
        block->next->previous = block->previous;
    if (block->previous != NULL)
        block->previous->next = block->next;
    else
        taken = block->next;
    free(block);
    return bytes;
}

int standin_find_device(uintptr_t address, uintptr_t *begin, uintptr_t *end)
{
    for (const header *block = taken; block != NULL; block = block->next) {
        *begin = (uintptr_t)block + HEADER_BYTES;
        *end = *begin + block->bytes;
        if (block->is_device && address >= *begin && address <= *end)
            return 1;
    }
    return 0;
}

int standin_is_device(const void *data, size_t bytes)
{
    uintptr_t begin, end;
    return standin_find_device((uintptr_t)data, &begin, &end) && bytes <= end - (uintptr_t)data;
}

int standin_has_device(const void *data, size_t bytes)
{
    pthread_mutex_lock(&lock);
    int const has = standin_is_device(data, bytes);
    pthread_mutex_unlock(&lock);
    return has;
}

void standin_refuse_to_hang(void)
{
    static const char text[] = "the stand-in runtime: this call would wait for a GPU that hangs\n";
    if (!standin.hangs)
        return;
    fputs(text, stderr);
    abort();
}

/* Waits for all that is enqueued, as the runtime does to free memory, and may do to take some: for
   messages of a peer too. */
static void wait_for_all(void)
{
    for (int i = 0; !standin_run_all(); i++) {
        pthread_mutex_unlock(&lock);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        pthread_mutex_lock(&lock);
        if (i == PATIENCE_MS) {
            fputs("the stand-in runtime: this call would wait for what never ends\n", stderr);
            abort();
        }
    }
}

cudaError_t cudaMalloc(void **data, size_t bytes)
{
    cudaError_t error = standin_enter();
    if (error == cudaSuccess)
        wait_for_all();
    bool const full = ++standin.requests == standin.full_at ||
                      standin.used_bytes + (int64_t)bytes > standin.memory_bytes;
    if (error == cudaSuccess && full)
        error = cudaErrorMemoryAllocation;
    if (error == cudaSuccess)
        error = standin_take(data, bytes, 1);
    if (error == cudaSuccess) {
        standin.used_bytes += (int64_t)bytes;
        standin.blocks++;
    }
    return standin_leave(error);
}

static void wait_to_free(void)
{
    standin.late_frees += standin_waits_for_peer();
    wait_for_all();
}

static cudaError_t free_after(void (*waiting)(void), void *data)
{
    cudaError_t const error = standin_enter();
    if (error == cudaSuccess) {
        waiting();
        standin.used_bytes -= (int64_t)standin_give(data);
        standin.blocks--;
    }
    return standin_leave(error);
}

cudaError_t cudaFree(void *data)
{
    return free_after(wait_to_free, data);
}

static void refuse_if_busy(void)
{
    if (!standin_is_busy())
        return;
    fputs("the stand-in runtime: memory is freed that a stream may still use\n", stderr);
    abort();
}

cudaError_t standin_free_unused(void *data)
{
    standin_require(header_of(data)->device);
    return free_after(refuse_if_busy, data);
}

cudaError_t cudaHostAlloc(void **data, size_t bytes, unsigned flags)
{
    cudaError_t error = standin_enter();
    if (error == cudaSuccess && flags != cudaHostAllocPortable)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        wait_for_all();
    if (error == cudaSuccess)
        error = standin_take(data, bytes, 0);
    if (error == cudaSuccess)
        standin.pinned_blocks++;
    return standin_leave(error);
}

cudaError_t cudaFreeHost(void *data)
{
    cudaError_t const error = standin_enter();
    if (error == cudaSuccess) {
        wait_to_free();
        (void)standin_give(data);
        standin.pinned_blocks--;
    }
    return standin_leave(error);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    cudaError_t const error = standin_enter();
    if (error == cudaSuccess) {
        int64_t const others_bytes = count_others() * standin.context_bytes;
        *free_bytes = (size_t)(standin.memory_bytes - standin.used_bytes - others_bytes);
        *total_bytes = (size_t)standin.memory_bytes;
    }
    return standin_leave(error);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    cudaError_t const error = standin_enter();
    if (error == cudaSuccess) {
        *least = STANDIN_LEAST_PRIORITY;
        *greatest = STANDIN_GREATEST_PRIORITY;
    }
    return standin_leave(error);
}
