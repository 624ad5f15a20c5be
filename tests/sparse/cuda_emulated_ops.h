/* A kernel table whose attention is the CUDA kernels' own source, run by the emulator, and whose
   rows are moved by the CPU: the contract of all kernel tables holds for it. */
#ifndef TESTS_SPARSE_CUDA_EMULATED_OPS_H
#define TESTS_SPARSE_CUDA_EMULATED_OPS_H

#include "sparse/cuda_emulator.h"

/** Threads run in another order at every launch. */
ra_kernel_ops cuda_emulated_ops(void);

/** Likewise, by warpgroups where these can compute a step. */
ra_kernel_ops cuda_emulated_sm90a_ops(void);

/* Of all launches so far. */
extern cuda_emulation cuda_emulated_stats;

#endif
