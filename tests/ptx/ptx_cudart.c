/*
 * The part of the CUDA runtime that compiled kernels and their launches call, on the stand-in's
 * streams: host code as nvcc compiled it asks for the kernel that its PTX then is.
 *
 *     RA_PTX_COUNTS  1: at the end, a line on stderr says what each kernel's warps did
 */
#include "ptx/ptx.h"
#include "support/standin_cudart.h"

#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KERNELS_MAX = 512, PARAM_BYTES_MAX = 4096, SHARED_WITHOUT_ASKING = 48 << 10 };

/* A kernel as host code knows it. */
typedef struct known_kernel {
    const void *host;
    const char *name;
    int shared_most; /* that it asked for */
    int64_t launches;
    ptx_counts counts;
} known_kernel;

static known_kernel known[KERNELS_MAX];
static int known_count;
static uint64_t order_seed = 1;

static known_kernel *known_of(const void *host)
{
    for (int i = 0; i < known_count; ++i)
        if (known[i].host == host)
            return &known[i];
    return NULL;
}

/* ---- what static constructors of compiled files call ----------------------------------------- */

void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                            int thread_limit, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid,
                            int *warp);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                               size_t shared, cudaStream_t stream);

/* Each launch takes megabytes for its thread blocks: to get them from the system and give them back
   every time takes longer than most launches. */
void **__cudaRegisterFatBinary(void *binary)
{
    enum { KEPT_BYTES = 1 << 30 };
    (void)binary;
    mallopt(M_MMAP_THRESHOLD, KEPT_BYTES);
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES);
    return NULL;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

void __cudaUnregisterFatBinary(void **handle)
{
    (void)handle;
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                            int thread_limit, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid,
                            int *warp)
{
    (void)handle, (void)device, (void)thread_limit, (void)tid, (void)bid, (void)block, (void)grid;
    (void)warp;
    if (known_count == KERNELS_MAX)
        abort();
    known[known_count++] =
        (known_kernel){.host = host, .name = name, .shared_most = SHARED_WITHOUT_ASKING};
}

/* ---- launches -------------------------------------------------------------------------------- */

static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} configured;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream)
{
    configured.grid = grid;
    configured.block = block;
    configured.shared = shared;
    configured.stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    *grid = configured.grid;
    *block = configured.block;
    *shared = configured.shared;
    *(cudaStream_t *)stream = configured.stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host)
{
    *kernel = (cudaKernel_t)(void *)known_of(host);
    return cudaSuccess;
}

typedef struct launch {
    const ptx_kernel *kernel;
    known_kernel *known;
    unsigned blocks, threads, resident;
    size_t shared_bytes;
    _Alignas(16) char params[PARAM_BYTES_MAX];
} launch;

static void run(void *context)
{
    const launch *const l = context;
    ptx_launch const in = {.blocks = l->blocks,
                           .threads = l->threads,
                           .shared_bytes = l->shared_bytes,
                           .params = l->params,
                           .resident = l->resident,
                           .seed = order_seed++,
                           .find = standin_find_device};
    ptx_run(l->kernel, &in, getenv("RA_PTX_COUNTS") != NULL ? &l->known->counts : NULL);
    l->known->launches++;
}

__attribute__((destructor)) static void print_counts(void)
{
    for (int i = 0; i < known_count && getenv("RA_PTX_COUNTS") != NULL; ++i) {
        ptx_counts const *const c = &known[i].counts;
        if (known[i].launches > 0)
            fprintf(stderr,
                    "%s: %lld launches, of warps %lld instructions (%lld divergent), %lld mma, "
                    "%lld wgmma, "
                    "%lld barriers, %lld accesses to shared memory in %lld passes, %lld to device "
                    "memory of %lld sectors\n",
                    known[i].name, (long long)known[i].launches, (long long)c->instructions,
                    (long long)c->divergent, (long long)c->products, (long long)c->group_products,
                    (long long)c->barriers, (long long)c->shared, (long long)c->shared_passes,
                    (long long)c->global, (long long)c->global_sectors);
    }
}

static const ptx_kernel *kernel_of(const known_kernel *k)
{
    int const target = 10 * (standin.major[standin_current()] < 9 ? 8 : 9);
    const ptx_kernel *const kernel = ptx_kernel_find(RA_PTX_FOLDER, target, k->name);
    if (kernel == NULL) {
        fprintf(stderr, "ptx: no module for sm_%d in %s has %s\n", target, RA_PTX_FOLDER, k->name);
        abort();
    }
    return kernel;
}

/* What a multiprocessor holds of it: as many as it was compiled for. */
static int blocks_held(const ptx_kernel *kernel)
{
    int const most = ptx_kernel_blocks(kernel) > 0 ? ptx_kernel_blocks(kernel) : 1;
    return standin.blocks_held > 0 ? standin.blocks_held : most;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                               size_t shared, cudaStream_t stream)
{
    known_kernel *const k = (void *)kernel;
    cudaError_t error = standin_enter();
    launch l = {.kernel = kernel_of(k),
                .known = k,
                .blocks = grid.x,
                .threads = block.x,
                .shared_bytes = shared};
    bool const fits = grid.x > 0 && grid.y == 1 && grid.z == 1 && block.y == 1 && block.z == 1 &&
                      (int)block.x == ptx_kernel_threads(l.kernel) &&
                      shared <= (size_t)k->shared_most;
    if (error == cudaSuccess && !fits)
        error = cudaErrorInvalidConfiguration;
    l.resident = (unsigned)(standin.multiprocessors * blocks_held(l.kernel));
    if (error == cudaSuccess)
        memcpy(l.params, args[0], ptx_kernel_param_bytes(l.kernel));
    standin.single_passes += strstr(k->name, "backward_single") != NULL;
    if (error == cudaSuccess)
        error = standin_enqueue_launch(stream, run, &l, sizeof(l));
    return standin_leave(error);
}

/* As compilers before CUDA 13 have it. */
cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream)
{
    return __cudaLaunchKernel((cudaKernel_t)(void *)known_of(host), grid, block, args, shared,
                              stream);
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute, int value)
{
    cudaError_t error = standin_enter();
    if (error == cudaSuccess)
        error = standin.code_error;
    if (error == cudaSuccess && attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value > standin.shared_bytes)
            error = cudaErrorInvalidValue;
        else
            known_of(host)->shared_most = value;
    }
    return standin_leave(error);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *host,
                                                                   int threads, size_t shared,
                                                                   unsigned flags)
{
    cudaError_t const error = standin_enter();
    (void)threads, (void)shared, (void)flags;
    if (error == cudaSuccess)
        *blocks = blocks_held(kernel_of(known_of(host)));
    return standin_leave(error);
}
