/*
 * Memory for buffers that NCCL sends from and receives into: its own, which it can map into other
 * GPUs, registered with the communicator, so that nothing is copied on the way within a host.
 * Between hosts NCCL copies all the same while PXN is enabled, which it is unless NCCL_PXN_DISABLE
 * is 1. NCCL asks that all ranks of an exchange register their buffers, or none: what is sent comes
 * from here on every rank.
 */
#include "comm_nccl.h"

#include <stdio.h>
#include <stdlib.h>

static ra_nccl_comm *comm_of(const ra_memory *memory)
{
    return memory->self;
}

static size_t nccl_round(const ra_memory *memory, size_t bytes)
{
    (void)memory;
    return ra_round_up(bytes, RA_NCCL_UNIT_BYTES);
}

static ra_status nccl_available(const ra_memory *memory, int64_t *bytes_out)
{
    const ra_memory *const device = &comm_of(memory)->base.device.memory;
    return device->ops->available(device, bytes_out);
}

/*
 * NCCL has one error for all that a driver refuses. What it refuses of a request for memory is that
 * memory, however much is free by its own count, of which some may be in pieces, or another rank's
 * by now; unless the GPU is lost, or the communicator has failed.
 */
static ra_status explain(ra_nccl_comm *nccl, const char *operation, ncclResult_t error)
{
    bool busy = false;
    (void)cudaGetLastError(); /* of a call that NCCL made */
    if (error != ncclUnhandledCudaError || ra_cuda_has_lost(nccl->stream, NULL))
        return ra_nccl_fail(nccl, operation, -1, error);
    ra_status const status = ra_nccl_look(nccl, operation, -1, &busy);
    return status == RA_OK ? RA_ERR_NO_MEMORY : status;
}

/* Fill a block: its data, and the handle of their registration. */
static ra_status take(ra_nccl_comm *nccl, size_t bytes, ra_nccl_block *block_out)
{
    static const char taking[] = "taking memory for messages",
                      registering[] = "registering memory for messages";
    void *data = NULL, *handle = NULL;
    if (nccl->handle == NULL)
        return RA_ERR_PEER; /* it was aborted, which was said */
    cudaError_t const chosen = cudaSetDevice(ra_device_used());
    if (chosen != cudaSuccess)
        return ra_device_status(&nccl->base, NULL, taking, chosen);
    ncclResult_t error = nccl->api->mem_alloc(&data, bytes);
    if (error != ncclSuccess)
        return explain(nccl, taking, error);
    error = nccl->api->comm_register(nccl->handle, data, bytes, &handle);
    ra_status const status = error == ncclSuccess || error == ncclInProgress
                                 ? ra_nccl_wait_idle(nccl, registering)
                                 : explain(nccl, registering, error);
    if (status != RA_OK) {
        if (!ra_device_is_lost()) /* else NCCL would wait for it */
            (void)nccl->api->mem_free(data);
        return status;
    }
    *block_out = (ra_nccl_block){.data = data, .handle = handle};
    return RA_OK;
}

static ra_status nccl_alloc(const ra_memory *memory, size_t bytes, void **ptr_out)
{
    ra_nccl_comm *const nccl = comm_of(memory);
    ra_nccl_block *const block = calloc(1, sizeof(*block));
    if (block == NULL)
        return RA_ERR_NO_MEMORY;
    ra_status const status = take(nccl, bytes, block);
    if (status != RA_OK) {
        free(block);
        return status;
    }
    block->next = nccl->blocks;
    nccl->blocks = block;
    *ptr_out = block->data;
    return RA_OK;
}

/* Take the block out of the list. @return the handle of its registration */
static void *forget(ra_nccl_comm *nccl, const void *data)
{
    ra_nccl_block **at = &nccl->blocks;
    while (*at != NULL && (*at)->data != data)
        at = &(*at)->next;
    ra_nccl_block *const block = *at;
    RA_ASSERT(block != NULL);
    void *const handle = block->handle;
    *at = block->next;
    free(block);
    return handle;
}

static ncclResult_t deregister(const ra_nccl *api, ncclComm_t handle, void *registration)
{
    return api->comm_deregister(handle, registration);
}

/* A communicator that was aborted has forgotten what was registered with it. A peer maps what was
   registered, and is asked to let go. */
static void nccl_free(const ra_memory *memory, void *ptr, size_t bytes)
{
    ra_nccl_comm *const nccl = comm_of(memory);
    void *const handle = forget(nccl, ptr);
    if (ra_device_is_lost())
        return; /* NCCL would wait for it */
    /* A thread may have chosen none. */
    (void)ra_cuda_forget(cudaSetDevice(ra_device_used()));
    ncclResult_t error = ncclSuccess;
    if (nccl->handle != NULL && handle != NULL) /* NULL: registering is off */
        error = ra_nccl_call_last(nccl, "deregistering memory", deregister, nccl->handle, handle);
    if (ra_device_is_lost())
        return;
    ncclResult_t const freed = nccl->api->mem_free(ptr);
    if (error == ncclSuccess || error == ncclInProgress)
        error = freed;
    char what[80];
    snprintf(what, sizeof(what), "%zu bytes of memory for messages could not be returned", bytes);
    ra_nccl_warn(nccl, error, what);
}

static const ra_memory_ops nccl_memory_ops = {
    .name = "nccl",
    .round = nccl_round,
    .alloc = nccl_alloc,
    .free = nccl_free,
    .available = nccl_available,
};

bool ra_nccl_has_memory(void)
{
    char why_not[240];
    const ra_nccl *const api = ra_nccl_open(why_not, sizeof(why_not));
    return api != NULL && api->mem_alloc != NULL;
}

bool ra_nccl_memory(ra_comm *comm, ra_memory *memory_out)
{
    ra_nccl_comm *const nccl = (ra_nccl_comm *)comm;
    if (nccl->api->mem_alloc == NULL)
        return false;
    *memory_out = (ra_memory){.ops = &nccl_memory_ops, .self = nccl};
    return true;
}
