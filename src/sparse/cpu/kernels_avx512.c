/* The CPU kernels for AVX-512 F, BW, DQ and VL: 16 of 32 registers are sums. */
#define RA_CPU_TABLE    ra_kernels_avx512
#define RA_CPU_NAME     "cpu-avx512"
#define RA_VEC_LANES    16
#define RA_PRODUCT_ROWS 8

#include "sparse/cpu/kernels_cpu.h"
