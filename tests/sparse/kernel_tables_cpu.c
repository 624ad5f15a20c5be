/* The tables that a suite runs over: those of the CPU that this machine has. */
#include "sparse/kernel_case.h"

const ra_kernel_ops *kernel_table(int i)
{
    static const ra_isa isas[KERNEL_ISA_COUNT] = {RA_ISA_PORTABLE,   RA_ISA_AVX2, RA_ISA_AVX512,
                                                  RA_ISA_AVX512BF16, RA_ISA_AMX,  RA_ISA_NEON};
    return i < KERNEL_ISA_COUNT ? ra_kernel_cpu(isas[i]) : ra_kernel_standard();
}
