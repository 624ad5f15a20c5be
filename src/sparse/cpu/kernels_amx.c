/* As kernels_avx512bf16.c, and products of bf16 by tiles. */
#define RA_CPU_TABLE    ra_kernels_amx
#define RA_CPU_NAME     "cpu-amx"
#define RA_VEC_LANES    16
#define RA_PRODUCT_ROWS 8
#define RA_PAIRS        1
#define RA_AMX          1

#include "sparse/cpu/kernels_cpu.h"
