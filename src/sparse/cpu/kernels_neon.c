/* The CPU kernels for 64-bit ARM: as portable ones, with 16 of 32 registers for sums. */
#define RA_CPU_TABLE    ra_kernels_neon
#define RA_CPU_NAME     "cpu-neon"
#define RA_VEC_LANES    4
#define RA_PRODUCT_ROWS 8

#include "sparse/cpu/kernels_cpu.h"
