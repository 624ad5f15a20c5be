/*
 * Primitives for what a warpgroup does together: four warps, of which the first one's number is a
 * multiple of 4, multiply 64 rows with 64 or 128 columns, 16 deep, by wgmma (PTX ISA, "Asynchronous
 * Warpgroup Level Matrix Instructions"). sm_90a alone has it. And for warpgroups that do different
 * things: registers, barriers of some threads, mbarriers.
 *
 * Products run on while the warps do something else, in order. Between warpgroup_begin and
 * warpgroup_wait registers that they use must not be touched, nor shared memory that they read be
 * written. A lane's sums c[n] are those of mma.m16n8k16 (fragments.h) for the warp's 16 rows and
 * columns 8 n on, and its left operand a has the same registers. Others lie in shared memory as
 * wgmma_layout.h says.
 *
 * All 128 threads of a warpgroup take part in all of these but shared_publish, warpgroup_pin, and
 * those of barriers and mbarriers, which say who does.
 */
#ifndef RINGATTN_CUDA_WARPGROUP_CUH
#define RINGATTN_CUDA_WARPGROUP_CUH

#include "sparse/cuda/lanes.cuh"

/* x, which all lanes of a warp have alike. Compilers learn that from the shuffle, and keep what is
   computed from x once per warp, where products look for their operands' places: else each product
   waits until those are brought there. */
LANE_CODE uint32_t warp_uniform(uint32_t x)
{
    return __shfl_sync(0xffffffffu, x, 0);
}

/* The warp's group. */
LANE_CODE int warpgroup_index()
{
    return (int)warp_uniform((uint32_t)warp_index() >> 2);
}

/* What this thread wrote to shared memory, its copies that have arrived too, is for products to
   read, after a barrier: they read by another way than threads do. */
LANE_CODE void shared_publish()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Registers are ready for products. */
LANE_CODE void warpgroup_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* After the last product that is to be waited for. */
LANE_CODE void warpgroup_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Wait for all products that were committed, but for the last so many times. */
template <int LATEST> LANE_CODE void warpgroup_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LATEST) : "memory");
}

/*
 * No instruction. The steps above name no registers, so compilers might move past them what
 * computes or uses some, but not past this: for what products use it comes before warpgroup_begin,
 * for their sums after warpgroup_wait.
 */
template <int TILES> LANE_CODE void warpgroup_pin(float (&c)[TILES][4])
{
#pragma unroll
    for (int i = 0; i < 4 * TILES; ++i)
        asm volatile("" : "+f"(c[i / 4][i % 4])::"memory");
}

template <int STEPS> LANE_CODE void warpgroup_pin(uint32_t (&a)[STEPS][4])
{
#pragma unroll
    for (int i = 0; i < 4 * STEPS; ++i)
        asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

/* ---- warpgroups that do different things ----------------------------------------------------- */

/* From here on this warpgroup has so many registers per thread, fewer than before, or more, once
   others have left them. */
template <int REGISTERS> LANE_CODE void registers_leave()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> LANE_CODE void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* Barrier `number`, 1 to 15, of so many threads, whole warps. */
LANE_CODE void threads_barrier(int number, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* Likewise, without waiting for the others. By all lanes of a warp. */
LANE_CODE void threads_arrive(int number, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/*
 * A signal in shared memory (mbarrier): each time that as many have arrived as mbarrier_begin says,
 * a phase ends. Who waits for one sees what those who arrived wrote before.
 */
typedef uint64_t mbarrier;

/* By one thread; a barrier must follow. */
LANE_CODE void mbarrier_begin(mbarrier &m, int arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(&m)), "r"(arrivals)
                 : "memory");
}

LANE_CODE void mbarrier_arrive(mbarrier &m)
{
    asm volatile(
        "{.reg .b64 phase; mbarrier.arrive.shared.b64 phase, [%0];}" ::"r"(shared_address(&m))
        : "memory");
}

/* Once all copies have arrived that this thread has begun. */
LANE_CODE void mbarrier_arrive_copied(mbarrier &m)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(&m))
                 : "memory");
}

/* Until a phase has ended, of the two last ones the one whose number is odd or even, as `parity`
   says; before the first one, an odd one has. All 32 lanes take part. */
LANE_CODE void mbarrier_wait(mbarrier &m, uint32_t parity)
{
    uint32_t ended;
    do
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; "
                     "selp.u32 %0, 1, 0, p;}"
                     : "=r"(ended)
                     : "r"(shared_address(&m)), "r"(parity)
                     : "memory");
    while (ended == 0);
    __syncwarp();
}

template <class Element> struct warpgroup;

#define RA_WGMMA_SUMS_64                                                                           \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "   \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define RA_WGMMA_SUMS_128                                                                          \
    RA_WGMMA_SUMS_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "    \
                     "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, " \
                     "%61, %62, %63"
#define RA_WGMMA_FOUR(how, n)  how(c[n][0]), how(c[n][1]), how(c[n][2]), how(c[n][3])
#define RA_WGMMA_EIGHT(how, n) RA_WGMMA_FOUR(how, n), RA_WGMMA_FOUR(how, n + 1)
#define RA_WGMMA_OPERANDS(how, n)                                                                  \
    RA_WGMMA_EIGHT(how, n), RA_WGMMA_EIGHT(how, n + 2), RA_WGMMA_EIGHT(how, n + 4),                \
        RA_WGMMA_EIGHT(how, n + 6)

#define RA_WGMMA(COLUMNS, TYPE) "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." TYPE "." TYPE

/* Both operands in shared memory; c is what was there before, times ADDS, and their product. */
#define RA_WARPGROUP_SHARED(NAME, ADDS, HOW, TYPE)                                                 \
    template <bool ACROSS = false>                                                                 \
    static LANE_CODE void NAME(float(&c)[8][4], uint64_t left, uint64_t right)                     \
    {                                                                                              \
        asm volatile(RA_WGMMA("64", TYPE) " {" RA_WGMMA_SUMS_64 "}, %32, %33, " ADDS               \
                                          ", 1, 1, %34, %34;"                                      \
                     : RA_WGMMA_OPERANDS(HOW, 0)                                                   \
                     : "l"(left), "l"(right), "n"((int)ACROSS));                                   \
    }                                                                                              \
                                                                                                   \
    template <bool ACROSS = false>                                                                 \
    static LANE_CODE void NAME(float(&c)[16][4], uint64_t left, uint64_t right)                    \
    {                                                                                              \
        asm volatile(RA_WGMMA("128", TYPE) " {" RA_WGMMA_SUMS_128 "}, %64, %65, " ADDS             \
                                           ", 1, 1, %66, %66;"                                     \
                     : RA_WGMMA_OPERANDS(HOW, 0), RA_WGMMA_OPERANDS(HOW, 8)                        \
                     : "l"(left), "l"(right), "n"((int)ACROSS));                                   \
    }

/*
 * Products of 64 or 128 columns; c has four floats per eight of them. product, add_product: c =, or
 * +=, left * right. Rows of both operands lie along the depth, or, ACROSS, across it: those of left
 * are then columns of the product's left operand. With a in registers: c += a * right, whose rows
 * lie across the depth.
 */
#define RA_WARPGROUP(ELEMENT, TYPE)                                                                \
    template <> struct warpgroup<ELEMENT> {                                                        \
        RA_WARPGROUP_SHARED(product, "0", "=f", TYPE)                                              \
        RA_WARPGROUP_SHARED(add_product, "1", "+f", TYPE)                                          \
                                                                                                   \
        static LANE_CODE void add_product(float (&c)[8][4], const uint32_t a[4], uint64_t right)   \
        {                                                                                          \
            asm volatile(RA_WGMMA("64", TYPE) " {" RA_WGMMA_SUMS_64                                \
                                              "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"          \
                         : RA_WGMMA_OPERANDS("+f", 0)                                              \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right));                \
        }                                                                                          \
                                                                                                   \
        static LANE_CODE void add_product(float (&c)[16][4], const uint32_t a[4], uint64_t right)  \
        {                                                                                          \
            asm volatile(RA_WGMMA("128", TYPE) " {" RA_WGMMA_SUMS_128                              \
                                               "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"         \
                         : RA_WGMMA_OPERANDS("+f", 0), RA_WGMMA_OPERANDS("+f", 8)                  \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right));                \
        }                                                                                          \
    };

RA_WARPGROUP(element_bf16, "bf16")
RA_WARPGROUP(element_f16, "f16")

#undef RA_WARPGROUP
#undef RA_WARPGROUP_SHARED
#undef RA_WGMMA
#undef RA_WGMMA_OPERANDS
#undef RA_WGMMA_EIGHT
#undef RA_WGMMA_FOUR
#undef RA_WGMMA_SUMS_128
#undef RA_WGMMA_SUMS_64

#endif
