/* This machine's NCCL: loaded on first use, never linked. Its log goes to stderr. */
#ifndef RINGATTN_NCCL_LIBRARY_H
#define RINGATTN_NCCL_LIBRARY_H

#include <nccl.h>
#include <stddef.h>

/* The functions that we call, as nccl.h declares them. */
typedef struct ra_nccl {
    ncclResult_t (*get_version)(int *version);
    ncclResult_t (*get_unique_id)(ncclUniqueId *id);
    ncclResult_t (*init_rank)(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                              ncclConfig_t *config);
    ncclResult_t (*get_async_error)(ncclComm_t comm, ncclResult_t *error);
    ncclResult_t (*finalize)(ncclComm_t comm);
    ncclResult_t (*destroy)(ncclComm_t comm);
    ncclResult_t (*abort)(ncclComm_t comm);
    ncclResult_t (*group_start)(void);
    ncclResult_t (*group_end)(void);
    ncclResult_t (*send)(const void *data, size_t count, ncclDataType_t type, int peer,
                         ncclComm_t comm, cudaStream_t stream);
    ncclResult_t (*recv)(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                         cudaStream_t stream);
    /* mem_alloc is NULL where one of these is missing, as before 2.26.5. */
    ncclResult_t (*mem_alloc)(void **data, size_t bytes);
    ncclResult_t (*mem_free)(void *data);
    ncclResult_t (*comm_register)(ncclComm_t comm, void *data, size_t bytes, void **handle);
    ncclResult_t (*comm_deregister)(ncclComm_t comm, void *handle);
    const char *(*error_string)(ncclResult_t error);
    const char *(*last_error)(ncclComm_t comm);
} ra_nccl;

/** The library, or NULL and one sentence that says why there is none; thread-safe. */
const ra_nccl *ra_nccl_open(char *why_not, size_t bytes);

#endif
