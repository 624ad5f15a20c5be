/* From a step to what a launch is given. Pure host arithmetic: no CUDA in it. */
#ifndef RINGATTN_CUDA_LAUNCH_ARGS_H
#define RINGATTN_CUDA_LAUNCH_ARGS_H

#include "sparse/cuda/forward_args.h"

/**
 * The arrays of a map whose map->bytes from map->layers on lie, as they are, at `base` on the
 * device.
 */
ra_cuda_map ra_cuda_map_at(const ra_tilemap *map, const void *base);

/** Workspace for `blocks` thread blocks that may meet shared rows: scratch, then the ticket. */
size_t ra_cuda_workspace_bytes(int32_t blocks, int32_t dim);

/**
 * Refuse what the kernels cannot compute: head_dim, head counts, tiles that are too large, and a
 * scale that is not a positive normal number.
 * @return RA_ERR_INVALID, RA_ERR_UNSUPPORTED; one line was logged
 */
RA_CHECKED ra_status ra_cuda_forward_check(const ra_forward_step *step);

/**
 * @param map_base   as for ra_cuda_map_at
 * @param workspace  of ra_cuda_workspace_bytes, zeroed where the ticket is
 */
ra_cuda_forward ra_cuda_forward_args(const ra_forward_step *step, const void *map_base,
                                     void *workspace, int32_t blocks);

#endif
