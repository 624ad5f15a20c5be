/* The tables that a suite runs over: the kernels for GPUs, emulated, with rows moved by the CPU. */
#include "sparse/cuda_emulated_ops.h"
#include "sparse/kernel_case.h"

const ra_kernel_ops *kernel_table(int i)
{
    static ra_kernel_ops ops;
    ops = cuda_emulated_ops();
    return i == 0 ? &ops : NULL;
}
