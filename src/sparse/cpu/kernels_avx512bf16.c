/* As kernels_avx512.c, and products of bf16 by vdpbf16ps: a lane adds two products at once. */
#define RA_CPU_TABLE    ra_kernels_avx512bf16
#define RA_CPU_NAME     "cpu-avx512bf16"
#define RA_VEC_LANES    16
#define RA_PRODUCT_ROWS 8
#define RA_PAIRS        1

#include "sparse/cpu/kernels_cpu.h"
