/*
 * The CUDA kernels' own source, run on the CPU: what a GPU's thread can do beyond C is defined in
 * cuda_lanes_emulated.h. The threads of a block are fibers of one thread, run in an order drawn
 * from a seed; what lanes do together (mma, ldmatrix, shuffles, barriers) waits for all of them and
 * is computed from the definitions of the PTX ISA. What goes wrong stops the process with a
 * message: lanes that do different things, a barrier that some never reach, shared memory read
 * before a copy has arrived, or touched by two threads, one of which writes, without a barrier in
 * between; addresses that are out of bounds or not aligned.
 *
 * It says that indices, masks and order are right. It says nothing about what compilers make of
 * the source (ptx/ptx.h does), or about time, and of rounding inside tensor cores only that sums
 * are cut.
 */
#ifndef RINGATTN_TESTS_CUDA_EMULATOR_H
#define RINGATTN_TESTS_CUDA_EMULATOR_H

#include "sparse/cuda/backward_args.h"
#include "sparse/cuda/linear_args.h"
#include "sparse/cuda/rows_args.h"
#include "sparse/cuda/softmax_args.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cuda_emulation {
    int64_t products;       /* mma instructions of warps */
    int64_t group_columns;  /* of wgmma instructions, of each of a group's warps */
    int64_t parts;          /* of tasks that were cut; whoever launches counts them */
    int64_t loads;          /* ldmatrix instructions of warps */
    int64_t bank_conflicts; /* of these: reads of 8 rows that meet in a bank */
} cuda_emulation;

/** One launch of `blocks` thread blocks; of as many as tasks, where it yields. */
void cuda_emulate_forward(const ra_cuda_forward *f, int blocks, uint64_t seed,
                          cuda_emulation *stats);
/** The two launches of a backward step, or its single one. */
void cuda_emulate_backward(const ra_cuda_backward *f, int blocks, uint64_t seed,
                           cuda_emulation *stats);

/** Likewise, of row work. */
void cuda_emulate_rows(const ra_cuda_rows *r, int blocks, uint64_t seed);
void cuda_emulate_delta(const ra_cuda_delta *d, int blocks, uint64_t seed);

/** Likewise, of linear attention: cuda_emulator_linear.cpp. */
void cuda_emulate_linear(ra_cuda_linear_work work, const ra_cuda_linear *f, int blocks,
                         uint64_t seed);
void cuda_emulate_segments(const ra_cuda_segments *f, int blocks, uint64_t seed);

/** Likewise, of what materialises its scores. */
void cuda_emulate_softmax(const ra_cuda_softmax *f, int blocks, uint64_t seed);
void cuda_emulate_softgrad(const ra_cuda_softgrad *f, int blocks, uint64_t seed);
void cuda_emulate_outputs(const ra_cuda_outputs *f, int blocks, uint64_t seed);
void cuda_emulate_widen(const ra_cuda_widen *f, int blocks, uint64_t seed);

/* What the lanes of one warp give to ldmatrix.x4 and mma.m16n8k16, and what they get. */
typedef struct cuda_warp {
    uint16_t rows[32][8];                      /* each lane's, in shared memory */
    uint32_t loaded[32][4], transposed[32][4]; /* out */
    uint32_t a[32][4], b[32][2];               /* pairs of bfloat16 */
    float c[32][4];                            /* in and out */
} cuda_warp;

void cuda_emulate_warp(cuda_warp *warp, uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
