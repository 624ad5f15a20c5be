/* Which instruction set the CPU's kernels use. */
#include "sparse/cpu/cpu_internal.h"

#ifdef RA_CPU_X86
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* clang 14's __builtin_cpu_supports has no name for it. */
static bool has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

/* To be asked with AVX-512 F, which tells that the operating system saves the registers. */
static bool has_avx512_bf16(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & 1u << 5) != 0;
}

/* Linux keeps the tiles of a process, 8 KiB a thread, only once it has asked for that. */
static bool may_use_amx(void)
{
#ifdef __linux__
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* asm/prctl.h; a bit of XCR0 */
    unsigned const wanted = 1u << 22 | 1u << 24;          /* bf16, tiles */
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & wanted) == wanted &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}
#endif

/* __builtin_cpu_supports counts what the operating system saves (XCR0), not the chip alone. */
static const ra_kernel_ops *if_avx2(void)
{
#ifdef RA_CPU_X86
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
        return &ra_kernels_avx2;
#endif
    return NULL;
}

static const ra_kernel_ops *if_avx512(void)
{
#ifdef RA_CPU_X86
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return &ra_kernels_avx512;
#endif
    return NULL;
}

static const ra_kernel_ops *if_avx512bf16(void)
{
#ifdef RA_CPU_X86
    if (if_avx512() != NULL && has_avx512_bf16())
        return &ra_kernels_avx512bf16;
#endif
    return NULL;
}

/* Measured: on Emerald Rapids tiles multiply some thirteen times as much per cycle as FMA. */
static const ra_kernel_ops *if_amx(void)
{
#ifdef RA_CPU_X86
    if (if_avx512bf16() != NULL && may_use_amx())
        return &ra_kernels_amx;
#endif
    return NULL;
}

static const ra_kernel_ops *if_neon(void)
{
#ifdef RA_CPU_ARM
    return &ra_kernels_neon;
#else
    return NULL;
#endif
}

/*
 * Whether vdpbf16ps is faster than FMA, which does half as much per instruction. Measured: Zen 4
 * has one vdpbf16ps and one FMA per cycle; Emerald Rapids one vdpbf16ps in two cycles and two FMAs
 * per cycle. A rule rather than a measurement at start, so that runs agree bit for bit.
 */
static bool pairs_are_faster(void)
{
#ifdef RA_CPU_X86
    return __builtin_cpu_is("amd") && if_avx512bf16() != NULL;
#else
    return false;
#endif
}

const ra_kernel_ops *ra_kernel_cpu(ra_isa isa)
{
    switch (isa) {
    case RA_ISA_AUTO:
        if (if_amx() != NULL)
            return if_amx();
        if (pairs_are_faster())
            return if_avx512bf16();
        if (if_avx512() != NULL)
            return if_avx512();
        if (if_avx2() != NULL)
            return if_avx2();
        return if_neon() != NULL ? if_neon() : &ra_kernels_portable;
    case RA_ISA_PORTABLE:
        return &ra_kernels_portable;
    case RA_ISA_AVX2:
        return if_avx2();
    case RA_ISA_AVX512:
        return if_avx512();
    case RA_ISA_AVX512BF16:
        return if_avx512bf16();
    case RA_ISA_AMX:
        return if_amx();
    case RA_ISA_NEON:
        return if_neon();
    case RA_ISA_SM80:
    case RA_ISA_SM90A:
    case RA_ISA_SM90A_BACKWARD:
        break;
    }
    return NULL;
}
