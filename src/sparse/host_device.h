/* Arithmetic for CPUs and GPUs. GPU-only code is compiled for the CPU too, where tests check it
   against definitions. */
#ifndef RINGATTN_HOST_DEVICE_H
#define RINGATTN_HOST_DEVICE_H

#if defined(__CUDACC__)
#define RA_HD static constexpr __host__ __device__ __forceinline__
#elif defined(__cplusplus)
#define RA_HD static constexpr inline
#else
#define RA_HD static inline
#endif

RA_HD int ra_hd_min(int a, int b)
{
    return a < b ? a : b;
}

RA_HD int ra_hd_max(int a, int b)
{
    return a > b ? a : b;
}

/* The quotient rounded down; b is positive. */
RA_HD int ra_hd_div_floor(int a, int b)
{
    return a / b - (a % b < 0 ? 1 : 0);
}

#endif
