/* Primitives that kernel bodies are written in: what a GPU thread can do beyond C. */
#ifndef RINGATTN_CUDA_LANES_CUH
#define RINGATTN_CUDA_LANES_CUH

#include "ringattn/kernel.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define LANE_CODE __device__ __forceinline__

/*
 * Reads the thread's number anew at every call. Otherwise the compiler would compute all that
 * depends on it once, before the loop over keys, and have no registers left for the sums.
 */
LANE_CODE int thread_index()
{
    uint32_t x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return (int)x;
}

LANE_CODE int thread_count()
{
    return (int)blockDim.x;
}

LANE_CODE int lane_index()
{
    return thread_index() & 31;
}

LANE_CODE int warp_index()
{
    return thread_index() >> 5;
}

LANE_CODE int64_t block_index()
{
    return blockIdx.x;
}

LANE_CODE int64_t block_count()
{
    return gridDim.x;
}

LANE_CODE void block_barrier()
{
    __syncthreads();
}

/* x of lane (own lane XOR mask). All 32 lanes take part. */
LANE_CODE float shuffle_xor(float x, int mask)
{
    return __shfl_xor_sync(0xffffffffu, x, mask);
}

/* From here on all lanes of the warp see what any of them wrote. All 32 lanes take part. */
LANE_CODE void warp_barrier()
{
    __syncwarp();
}

/* One bit per lane of the warp: its `holds`. All 32 lanes take part. */
LANE_CODE uint32_t warp_vote(bool holds)
{
    return __ballot_sync(0xffffffffu, holds);
}

LANE_CODE int count_bits(uint32_t x)
{
    return __popc(x);
}

/* 2^x, off by 2 units in the last place; subnormal results become 0. */
LANE_CODE float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* What this thread wrote to device memory, or saw at a barrier, is there for all threads that see
   what it writes from now on; and what others wrote so, for it, and those that it meets. */
LANE_CODE void device_fence()
{
    __threadfence();
}

/* Add 1; @return how many had arrived before. */
LANE_CODE uint32_t count_arrival(uint32_t *arrived)
{
    return atomicAdd(arrived, 1u);
}

/* A task that no thread block has; one thread asks for it. */
LANE_CODE uint32_t draw_ticket(uint32_t *ticket)
{
    return atomicAdd(ticket, 1u);
}

/* The block's next task, told to all threads through the first word of shared memory. */
LANE_CODE int64_t take_ticket(uint32_t *ticket, char *shared)
{
    if (threadIdx.x == 0)
        *(uint32_t *)shared = draw_ticket(ticket);
    __syncthreads(); /* the ticket is written */
    uint32_t const mine = *(const uint32_t *)shared;
    __syncthreads(); /* everyone has read it: shared memory is free again */
    return mine;
}

/* ---- 16 or 8 bytes of device memory at once, aligned ----------------------------------------- */

/* `from` may be shared memory. */
LANE_CODE void copy_piece(char *to, const char *from)
{
    *(uint4 *)to = *(const uint4 *)from;
}

LANE_CODE void load_floats(const char *from, float values[4])
{
    float4 const x = *(const float4 *)from;
    values[0] = x.x, values[1] = x.y, values[2] = x.z, values[3] = x.w;
}

LANE_CODE void store_floats(char *to, const float values[4])
{
    *(float4 *)to = make_float4(values[0], values[1], values[2], values[3]);
}

LANE_CODE void load_pair(const float *from, float values[2])
{
    float2 const x = *(const float2 *)from;
    values[0] = x.x, values[1] = x.y;
}

LANE_CODE void store_pair(float *to, const float values[2])
{
    *(float2 *)to = make_float2(values[0], values[1]);
}

LANE_CODE void store_pairs(char *to, uint32_t first, uint32_t second)
{
    *(uint2 *)to = make_uint2(first, second);
}

/* Two elements of 16 bits, 4 bytes aligned. */
LANE_CODE uint32_t load_elements(const char *from)
{
    return *(const uint32_t *)from;
}

LANE_CODE void store_elements(char *to, uint32_t pair)
{
    *(uint32_t *)to = pair;
}

/* ---- sums in device memory that thread blocks add to at any time ----------------------------- */

LANE_CODE void add_atomic(float *to, float x)
{
    atomicAdd(to, x);
}

/* Four floats, 16 bytes aligned: one instruction from sm_90 on. */
LANE_CODE void add_four_atomic(float *to, const float x[4])
{
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]),
                 "f"(x[2]), "f"(x[3])
                 : "memory");
#else
    for (int i = 0; i < 4; ++i)
        atomicAdd(to + i, x[i]);
#endif
}

/* ---- shared memory --------------------------------------------------------------------------- */

LANE_CODE uint32_t shared_address(const void *at)
{
    return (uint32_t)__cvta_generic_to_shared(at);
}

/* Copy 16 bytes, or write zeros without reading `from` if they are not there. Both addresses are
   multiples of 16. */
LANE_CODE void copy_async(char *to, const char *from, bool there)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}

/* Copy a float, or write 0 if it is not there; `from` is a valid address either way. */
LANE_CODE void copy_float_async(float *to, const float *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(there ? 4 : 0)
                 : "memory");
}

LANE_CODE void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Wait for this thread's copies; those of others have arrived after a barrier. */
LANE_CODE void copies_wait()
{
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

LANE_CODE void store_piece(char *to, const uint16_t values[8])
{
    uint4 piece;
    piece.x = values[0] | (uint32_t)values[1] << 16;
    piece.y = values[2] | (uint32_t)values[3] << 16;
    piece.z = values[4] | (uint32_t)values[5] << 16;
    piece.w = values[6] | (uint32_t)values[7] << 16;
    *(uint4 *)to = piece;
}

/* Two elements; eight lanes' rows are pieces in different banks. */
LANE_CODE void store_pair_shared(char *to, uint32_t pair)
{
    *(uint32_t *)to = pair;
}

LANE_CODE void load_matrices(const char *row, uint32_t r[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

LANE_CODE void load_matrices_transposed(const char *row, uint32_t r[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* ---- elements -------------------------------------------------------------------------------- */

struct element_f32 {
    static constexpr int bytes = 4;

    static LANE_CODE float load(const char *data, int64_t i)
    {
        return ((const float *)data)[i];
    }

    static LANE_CODE void store(char *data, int64_t i, float value)
    {
        ((float *)data)[i] = value;
    }

    static LANE_CODE void store_four(char *to, const float values[4])
    {
        store_floats(to, values);
    }
};

struct element_bf16 {
    static constexpr int bytes = 2;

    static LANE_CODE float load(const char *data, int64_t i)
    {
        return __bfloat162float(((const __nv_bfloat16 *)data)[i]);
    }

    static LANE_CODE void store(char *data, int64_t i, float value)
    {
        ((__nv_bfloat16 *)data)[i] = __float2bfloat16_rn(value);
    }

    static LANE_CODE uint32_t pack(float low, float high)
    {
        __nv_bfloat162 const pair = __floats2bfloat162_rn(low, high);
        return *(const uint32_t *)&pair;
    }

    static LANE_CODE void widen(uint32_t pair, float values[2])
    {
        values[0] = __uint_as_float(pair << 16);
        values[1] = __uint_as_float(pair & 0xffff0000u);
    }

    static LANE_CODE void store_four(char *to, const float values[4])
    {
        store_pairs(to, pack(values[0], values[1]), pack(values[2], values[3]));
    }

    static LANE_CODE void multiply(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

struct element_f16 {
    static constexpr int bytes = 2;

    static LANE_CODE float load(const char *data, int64_t i)
    {
        return __half2float(((const __half *)data)[i]);
    }

    static LANE_CODE void store(char *data, int64_t i, float value)
    {
        ((__half *)data)[i] = __float2half_rn(value);
    }

    static LANE_CODE uint32_t pack(float low, float high)
    {
        __half2 const pair = __floats2half2_rn(low, high);
        return *(const uint32_t *)&pair;
    }

    static LANE_CODE void widen(uint32_t pair, float values[2])
    {
        values[0] = __half2float(__ushort_as_half((uint16_t)pair));
        values[1] = __half2float(__ushort_as_half((uint16_t)(pair >> 16)));
    }

    static LANE_CODE void store_four(char *to, const float values[4])
    {
        store_pairs(to, pack(values[0], values[1]), pack(values[2], values[3]));
    }

    static LANE_CODE void multiply(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

#endif
