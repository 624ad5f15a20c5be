/* The CPU kernels for any machine: 128-bit vectors, which every 64-bit one has. */
#define RA_CPU_TABLE    ra_kernels_portable
#define RA_CPU_NAME     "cpu-portable"
#define RA_VEC_LANES    4
#define RA_PRODUCT_ROWS 4

#include "sparse/cpu/kernels_cpu.h"
