/* Which tasks of a forward launch are cut: host code, pure. */
#ifndef RINGATTN_CUDA_FORWARD_CUTS_H
#define RINGATTN_CUDA_FORWARD_CUTS_H

#include "ringattn/kernel.h"
#include "sparse/cuda/forward_args.h"

/** Memory for as many parts as there are thread blocks. */
size_t ra_cuda_cuts_bytes(int32_t blocks, int32_t dim);

/**
 * Chunks whose tasks take longer than half of what all tasks take, if `blocks` thread blocks share
 * them evenly: each is cut into parts of a quarter of that, but into no more than a part has steps,
 * and fewer where `room` has no more bytes. None where chunks carry state or rows are shared, or
 * where heads have layers of their own.
 *
 * @param k_rows  of a task's step
 * @param room    on the device, of `bytes`; borrowed by the launch
 */
ra_cuda_cuts ra_cuda_cuts_of(const ra_forward_step *step, int32_t blocks, int32_t k_rows,
                             void *room, size_t bytes);

#endif
