/* From a step to the arguments of a launch. Pure host arithmetic: no CUDA in it. */
#ifndef RINGATTN_CUDA_LAUNCH_ARGS_H
#define RINGATTN_CUDA_LAUNCH_ARGS_H

#include "ringattn/kernel.h"
#include "sparse/cuda/backward_args.h"

/** The arrays of a map, copied as one block (from map->layers on) to `base` on the device. */
ra_cuda_map ra_cuda_map_at(const ra_tilemap *map, const void *base);

/* Tasks taken so far by each kernel of a step; a forward step has one. */
enum { RA_CUDA_TICKETS_BYTES = 2 * sizeof(uint32_t) };

/* At the end of the workspace, behind scratch: tickets, then the progress mark (watch_cuda.h). */
enum { RA_CUDA_TAIL_BYTES = 64 };

/** Whether thread blocks need scratch: rows are shared, and not all of them carry state. */
bool ra_cuda_takes_scratch(const ra_forward_step *step);
/** Scratch of such a step. */
size_t ra_cuda_shared_scratch_bytes(int32_t blocks, int32_t dim);

/** The table's: scratch for shared rows, or for linear attention, if used; then the tail. */
size_t ra_cuda_workspace_bytes(const ra_kernel_use *use);

/** Most shared memory per thread block that any launch of a job takes. */
int32_t ra_cuda_shared_bytes(const ra_kernel_use *use);

/**
 * Refuse what the kernels cannot compute: head_dim, head counts, tiles that are too large, and a
 * scale that is not a positive normal number.
 * @return RA_ERR_INVALID, RA_ERR_UNSUPPORTED; one line was logged
 */
RA_CHECKED ra_status ra_cuda_step_check(const ra_kernel_shape *shape, const ra_tilemap *map,
                                        ra_dtype dtype);

/**
 * @param map_base  as for ra_cuda_map_at
 * @param scratch   of ra_cuda_shared_scratch_bytes; NULL where the step takes none
 * @param ticket    on the device, which must be 0 when the launch begins
 */
ra_cuda_forward ra_cuda_forward_args(const ra_forward_step *step, const void *map_base,
                                     float *scratch, uint32_t *ticket);

/** See ra_kernel_ops.stores_grads. */
ra_stored_grads ra_cuda_stores_grads(const ra_kernel_use *use);

/** Refuse, as ra_cuda_step_check does, a map without an index of runs by keys, and one that would
    have a row of 16-bit gradients stored twice. */
RA_CHECKED ra_status ra_cuda_backward_check(const ra_backward_step *step);

/** Whether a step goes through `single`, on a GPU with so much shared memory per thread block. */
bool ra_cuda_goes_single(const ra_backward_step *step, bool deterministic, int64_t shared_bytes);

/**
 * Looks at runs of the first, the last, and some chunks in the middle of step->map.
 * @param map_base  as for ra_cuda_map_at
 * @param single    of those that have it (ra_cuda_has_single): dq in the same pass as dk and dv
 * @param tickets   [2] on the device, which must be 0 when the launch begins
 */
ra_cuda_backward ra_cuda_backward_args(const ra_backward_step *step, const void *map_base,
                                       bool single, uint32_t *tickets);

#endif
