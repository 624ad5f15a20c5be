/*
 * Kernels as the compiler made them, without a GPU: an interpreter of the PTX that nvcc gives to
 * ptxas, as far as this project's kernels use it. The emulator (sparse/cuda_emulator.h) runs their
 * source; this runs what became of it: addresses, branches, registers and inline assembly.
 *
 * Thread blocks of a launch are there at the same time, as many as fit; their warps take turns in
 * an order drawn from a seed, and lanes that went different ways run apart until they meet. What is
 * undefined on a GPU ends the process with a message that names kernel and line: an address that is
 * not aligned, or outside of what was allocated; a register or shared memory that is read before it
 * was written; shared memory that two threads touch, one of which writes, where nothing orders them
 * (a barrier, of all or some warps, or a signal, mbarrier), or that a copy is still on its way to;
 * device memory that a thread reads, adds to or writes after another one of its block has written
 * it, where nothing orders them;
 * lanes that never meet where all must, and warps that all wait; what products of warpgroups
 * (wgmma) use before they are waited for, or read before it was published to them; registers that
 * no other warpgroup has left (setmaxnreg).
 *
 * Warps learn as a whole: after one lane has waited, others need no barrier to see what it may see,
 * and all lanes have to wait for a signal together.
 *
 * Of device memory it is not seen what thread blocks do to each other's, what is touched after an
 * addition or written after a read, and what a copy under way is to bring. There an element has two
 * bytes at least.
 *
 * What ptxas makes of PTX, time, and rounding inside tensor cores (tensor_core.h) are not seen.
 */
#ifndef RINGATTN_TESTS_PTX_H
#define RINGATTN_TESTS_PTX_H

#include <stddef.h>
#include <stdint.h>

typedef struct ptx_kernel ptx_kernel;

/**
 * A kernel of the modules (*.ptx for that target, as compute_90) in a folder, by its mangled name;
 * read when it is first asked for, and kept.
 * @return NULL: no module has it
 */
const ptx_kernel *ptx_kernel_find(const char *folder, int target, const char *name);

/** What .maxntid and .minnctapersm say; 0: nothing. */
int ptx_kernel_threads(const ptx_kernel *kernel);
int ptx_kernel_blocks(const ptx_kernel *kernel);
/** Of the one parameter. */
size_t ptx_kernel_param_bytes(const ptx_kernel *kernel);

/* What warps did; for a look at where a kernel's time goes. */
typedef struct ptx_counts {
    int64_t instructions, products, group_products; /* of warps; of these mma; wgmma */
    int64_t shared, shared_passes;  /* accesses to shared memory; times that banks were busy */
    int64_t global, global_sectors; /* accesses to global memory; sectors of 32 bytes */
    int64_t barriers, divergent;    /* of warps; instructions that not all lanes took part in */
} ptx_counts;

typedef struct ptx_launch {
    unsigned blocks, threads;
    size_t shared_bytes;
    const void *params; /* the one parameter, by value */
    unsigned resident;  /* most blocks at the same time, at least 1 */
    uint64_t seed;
    /* Where the allocation that holds an address begins and ends; 0: there is none. */
    int (*find)(uintptr_t address, uintptr_t *begin, uintptr_t *end);
} ptx_launch;

/** Run a launch to its end; adds to `counts`, which may be NULL: counting takes its time. */
void ptx_run(const ptx_kernel *kernel, const ptx_launch *launch, ptx_counts *counts);

#endif
