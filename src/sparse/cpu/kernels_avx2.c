/* The CPU kernels for AVX2 with FMA and F16C: 8 of 16 registers are sums. */
#define RA_CPU_TABLE    ra_kernels_avx2
#define RA_CPU_NAME     "cpu-avx2"
#define RA_VEC_LANES    8
#define RA_PRODUCT_ROWS 4

#include "sparse/cpu/kernels_cpu.h"
