/* Private to src/sparse/cpu: what the translation units of the instruction sets share. */
#ifndef RINGATTN_CPU_INTERNAL_H
#define RINGATTN_CPU_INTERNAL_H

#include "internal.h"
#include "ringattn/linear.h"

/* Most queries of a tile, and keys that are packed at a time. */
enum { RA_TILE_ROWS_MAX = 256, RA_KEY_BLOCK = 128 };

#ifdef _OPENMP
#include <omp.h>
static inline int thread_index(void)
{
    return omp_get_thread_num();
}
static inline int thread_count(void)
{
    return omp_get_num_threads();
}
#else
static inline int thread_index(void)
{
    return 0;
}
static inline int thread_count(void)
{
    return 1;
}
#endif

/* Let transfers progress; MPI may serve the calling thread only. */
static inline void poll_now(const ra_kernel *kernel)
{
    if (kernel->poll != NULL && thread_index() == 0)
        kernel->poll(kernel->poll_context);
}

/* Operations of every table; see ra_linear_ops. */
RA_CHECKED ra_status ra_linear_total_cpu(ra_kernel *kernel, const ra_linear_pass *pass,
                                         const float *states, float *totals_out);
RA_CHECKED ra_status ra_linear_spread_cpu(ra_kernel *kernel, const ra_linear_pass *pass,
                                          ra_linear_reach reach, const float *before,
                                          const float *after, float *states);

/* One table per instruction set that the compiler can make; select.c asks the machine. */
extern const ra_kernel_ops ra_kernels_portable;
#ifdef RA_CPU_X86
extern const ra_kernel_ops ra_kernels_avx2;
extern const ra_kernel_ops ra_kernels_avx512;
extern const ra_kernel_ops ra_kernels_avx512bf16;
extern const ra_kernel_ops ra_kernels_amx;
#endif
#ifdef RA_CPU_ARM
extern const ra_kernel_ops ra_kernels_neon;
#endif

#endif
