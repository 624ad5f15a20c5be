#include "sparse/cuda_lanes_emulated.h"

#include "sparse/cuda/backward_32.cuh"
#include "sparse/cuda/backward_keys_16.cuh"
#include "sparse/cuda/backward_queries_16.cuh"
#include "sparse/cuda/backward_single_16.cuh"
#include "sparse/cuda/forward_16.cuh"
#include "sparse/cuda/forward_32.cuh"
#include "sparse/cuda/rows.cuh"
#include "sparse/cuda/softmax.cuh"

namespace emulated
{

template <class Block> static void run_forward(const void *f, char *shared)
{
    forward_all<Block>(*(const ra_cuda_forward *)f, shared);
}

template <class Block> static void run_queries(const void *f, char *shared)
{
    backward_queries_all<Block>(*(const ra_cuda_backward *)f, shared);
}

template <class Block> static void run_keys(const void *f, char *shared)
{
    backward_keys_all<Block>(*(const ra_cuda_backward *)f, shared);
}

/* The instance for a head_dim. */
template <template <int> class Block> static kernel forward_kernel(const ra_cuda_forward *f)
{
    kernel k = {NULL, f, ra_cuda_tile_of(f->q.dtype, f->dim), f->tasks};
#define RA_INSTANCE(DIM) k.run = k.tile.dim == DIM ? run_forward<Block<DIM>> : k.run;
    RA_CUDA_DIMS(RA_INSTANCE)
#undef RA_INSTANCE
    return k;
}

template <template <int> class Block> static kernel queries_kernel(const ra_cuda_backward *f)
{
    kernel k = {NULL, f, ra_cuda_queries_of(f->q.dtype, f->dim), f->q_tasks};
#define RA_INSTANCE(DIM) k.run = k.tile.dim == DIM ? run_queries<Block<DIM>> : k.run;
    RA_CUDA_DIMS(RA_INSTANCE)
#undef RA_INSTANCE
    return k;
}

template <template <int> class Block> static kernel keys_kernel(const ra_cuda_backward *f)
{
    kernel k = {NULL, f, ra_cuda_keys_of(f->q.dtype, f->dim), f->k_tasks};
#define RA_INSTANCE(DIM) k.run = k.tile.dim == DIM ? run_keys<Block<DIM>> : k.run;
    RA_CUDA_DIMS(RA_INSTANCE)
#undef RA_INSTANCE
    return k;
}

static kernel single_kernel(const ra_cuda_backward *f)
{
    kernel k = {NULL, f, ra_cuda_single_of(f->dim), f->k_tasks};
#define RA_INSTANCE(DIM)                                                                           \
    k.run = k.tile.dim == DIM ? run_keys<backward_single_16<element_bf16, DIM>> : k.run;
    RA_CUDA_SINGLE_DIMS(RA_INSTANCE)
#undef RA_INSTANCE
    return k;
}

template <int DIM> using forward_bf16 = forward_16<element_bf16, DIM>;
template <int DIM> using forward_f16 = forward_16<element_f16, DIM>;
template <int DIM> using queries_bf16 = backward_queries_16<element_bf16, DIM>;
template <int DIM> using queries_f16 = backward_queries_16<element_f16, DIM>;
template <int DIM> using keys_bf16 = backward_keys_16<element_bf16, DIM>;
template <int DIM> using keys_f16 = backward_keys_16<element_f16, DIM>;

/* ---- rows ---- */

template <class Move> static void run_rows(const void *f, char *shared)
{
    (void)shared;
    rows_all<Move>(*(const ra_cuda_rows *)f);
}

template <class Element> static void run_delta(const void *f, char *shared)
{
    (void)shared;
    delta_all<Element>(*(const ra_cuda_delta *)f);
}

static void run_softmax(const void *f, char *shared)
{
    (void)shared;
    softmax_all(*(const ra_cuda_softmax *)f);
}

static void run_softgrad(const void *f, char *shared)
{
    (void)shared;
    softgrad_all(*(const ra_cuda_softgrad *)f);
}

template <class Element> static void run_outputs(const void *f, char *shared)
{
    (void)shared;
    outputs_all<Element>(*(const ra_cuda_outputs *)f);
}

template <class Element> static void run_widen(const void *f, char *shared)
{
    (void)shared;
    widen_all<Element>(*(const ra_cuda_widen *)f);
}

/* Two warps, where a GPU has more: the number is no part of what is computed. */
static kernel rows_kernel(void (*run)(const void *f, char *shared), const void *f)
{
    ra_cuda_tile tile = {};
    tile.warps = 2;
    tile.shared_bytes = PIECE_BYTES;
    kernel const k = {run, f, tile, 0};
    return k;
}

} // namespace emulated

using namespace emulated;

void cuda_emulate_forward(const ra_cuda_forward *f, int blocks, uint64_t seed,
                          cuda_emulation *stats)
{
    launch(f->q.dtype == RA_F32   ? forward_kernel<forward_32>(f)
           : f->q.dtype == RA_F16 ? forward_kernel<forward_f16>(f)
                                  : forward_kernel<forward_bf16>(f),
           blocks, seed, stats);
}

void cuda_emulate_backward(const ra_cuda_backward *f, int blocks, uint64_t seed,
                           cuda_emulation *stats)
{
    if (f->single) {
        launch(single_kernel(f), blocks, seed, stats);
        return;
    }
    launch(f->q.dtype == RA_F32   ? keys_kernel<backward_keys_32>(f)
           : f->q.dtype == RA_F16 ? keys_kernel<keys_f16>(f)
                                  : keys_kernel<keys_bf16>(f),
           blocks, seed, stats);
    launch(f->q.dtype == RA_F32   ? queries_kernel<backward_queries_32>(f)
           : f->q.dtype == RA_F16 ? queries_kernel<queries_f16>(f)
                                  : queries_kernel<queries_bf16>(f),
           blocks, seed, stats);
}

void cuda_emulate_rows(const ra_cuda_rows *r, int blocks, uint64_t seed)
{
    ra_dtype const to = r->to.dtype;
    cuda_emulation ignored = {};
    launch(rows_kernel(r->move == RA_CUDA_ADD ? run_rows<rows_add>
                       : r->move == RA_CUDA_COPY
                           ? (to == RA_F32 ? run_rows<rows_copy<4>> : run_rows<rows_copy<2>>)
                       : to == RA_F32 ? run_rows<rows_store<element_f32>>
                       : to == RA_F16 ? run_rows<rows_store<element_f16>>
                                      : run_rows<rows_store<element_bf16>>,
                       r),
           blocks, seed, &ignored);
}

void cuda_emulate_delta(const ra_cuda_delta *d, int blocks, uint64_t seed)
{
    cuda_emulation ignored = {};
    launch(rows_kernel(d->out.dtype == RA_F32   ? run_delta<element_f32>
                       : d->out.dtype == RA_F16 ? run_delta<element_f16>
                                                : run_delta<element_bf16>,
                       d),
           blocks, seed, &ignored);
}

void cuda_emulate_softmax(const ra_cuda_softmax *f, int blocks, uint64_t seed)
{
    cuda_emulation ignored = {};
    launch(rows_kernel(run_softmax, f), blocks, seed, &ignored);
}

void cuda_emulate_softgrad(const ra_cuda_softgrad *f, int blocks, uint64_t seed)
{
    cuda_emulation ignored = {};
    launch(rows_kernel(run_softgrad, f), blocks, seed, &ignored);
}

void cuda_emulate_outputs(const ra_cuda_outputs *f, int blocks, uint64_t seed)
{
    cuda_emulation ignored = {};
    launch(rows_kernel(f->out.dtype == RA_F32   ? run_outputs<element_f32>
                       : f->out.dtype == RA_F16 ? run_outputs<element_f16>
                                                : run_outputs<element_bf16>,
                       f),
           blocks, seed, &ignored);
}

void cuda_emulate_widen(const ra_cuda_widen *f, int blocks, uint64_t seed)
{
    cuda_emulation ignored = {};
    launch(
        rows_kernel(f->from.dtype == RA_F16 ? run_widen<element_f16> : run_widen<element_bf16>, f),
        blocks, seed, &ignored);
}
