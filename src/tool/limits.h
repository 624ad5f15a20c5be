/*
 * The machine's measured limits, the yardsticks of `ringattn bench`: arithmetic on registers only,
 * the matrix product of a tuned library, and memory bandwidth.
 */
#ifndef RINGATTN_TOOL_LIMITS_H
#define RINGATTN_TOOL_LIMITS_H

#include "ringattn/comm.h"
#include "ringattn/device.h"
#include "ringattn/kernel.h"

#include <jansson.h>

/* Sums over ranks that worked at the same time. 0: not measured, or the machine has no such thing.
 */
typedef struct ra_limits {
    int ranks, threads;   /* threads: of each rank */
    double begin_ms;      /* when; set by the caller, for drift to show */
    double fma_tflops;    /* float32 multiply-adds on registers, widest vectors there are */
    double dpbf16_tflops; /* bf16 pair products added in float32 (vdpbf16ps), on registers */
    double amx_tflops;    /* the same by tiles (tdpbf16ps) */
    double sgemm_tflops;  /* OpenBLAS, square matrices */
    double read_gb_per_s; /* 1e9 bytes */
    double copy_gb_per_s; /* bytes copied: each is read once and written once */
} ra_limits;

/**
 * Collective; takes about half a second. All ranks work at once, each with `threads` threads.
 *
 * @param pool  what matrices and arrays are taken from and given back to
 * @return RA_ERR_NO_MEMORY, or the failure of a collective
 */
RA_CHECKED ra_status ra_limits_measure(ra_comm *comm, int threads, ra_pool *pool,
                                       ra_limits *limits_out);
/**
 * The limit that a kernel of this dtype can hardly exceed: sgemm for f32 (the FMA loop if that was
 * not measured), the fastest of the three loops for bf16, the FMA loop for f16.
 */
double ra_limits_of_dtype(const ra_limits *limits, ra_dtype dtype, const char **name_out);
/**
 * The same of a GPU, which is not measured: clock rate x multiprocessors x operations per clock. Of
 * 16-bit products with float32 sums on tensor cores ("tensor"), without sparsity, a multiprocessor
 * does 2048 per clock at compute capability 8.0 (NVIDIA A100 white paper: 1024 FMA) and 4096 at 9.0
 * (H100 white paper: twice as many); others differ by product. Of float32 ("fma") two per result of
 * the CUDA C++ Programming Guide's table of arithmetic throughput. It assumes the highest clock,
 * which data sheets do not, so limits are somewhat above theirs. NAN: clock or capability is not
 * known.
 */
double ra_limits_of_gpu(const ra_device *device, ra_dtype dtype, const char **name_out);
/** NULL: no memory. */
json_t *ra_limits_to_json(const ra_limits *limits);

/* One loop on registers; run's result depends on all its work. */
typedef struct ra_limit_loop {
    const char *name; /* "avx512" */
    double round_flops;
    float (*run)(int64_t rounds);
} ra_limit_loop;

/** The widest multiply-add loop that this machine runs. */
const ra_limit_loop *ra_limit_fma(void);
/** NULL: the processor has no such instruction. */
const ra_limit_loop *ra_limit_dpbf16(void);
/** NULL: nor has it that, or the system does not let programs use it. */
const ra_limit_loop *ra_limit_amx(void);

#endif
