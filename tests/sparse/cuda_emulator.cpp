#include "sparse/cuda_warpgroup_emulated.h"

#include "sparse/cuda/backward_32.cuh"
#include "sparse/cuda/backward_keys_16.cuh"
#include "sparse/cuda/backward_queries_16.cuh"
#include "sparse/cuda/backward_single_16.cuh"
#include "sparse/cuda/backward_single_wgmma.cuh"
#include "sparse/cuda/forward_16.cuh"
#include "sparse/cuda/forward_32.cuh"
#include "sparse/cuda/forward_wgmma.cuh"
#include "sparse/cuda/rows.cuh"
#include "sparse/cuda/softmax.cuh"

namespace emulated
{

template <class Pass, class Args> static void run_pass(const void *f, char *shared)
{
    Pass::all(*(const Args *)f, shared);
}

/* The instance for a head_dim, of dims that HAS says. */
template <template <int> class Pass, bool (*HAS)(int32_t) = ra_cuda_is_dim, class Args>
static kernel kernel_of(const Args *f, int64_t tasks)
{
    kernel k = {NULL, f, {}, tasks, f->yields};
    switch (ra_cuda_dim_of(f->dim)) {
#define RA_INSTANCE(DIM)                                                                           \
    case DIM:                                                                                      \
        if constexpr (HAS(DIM)) {                                                                  \
            k.run = run_pass<Pass<DIM>, Args>;                                                     \
            k.tile = Pass<DIM>::TILE;                                                              \
        }                                                                                          \
        break;
        RA_CUDA_DIMS(RA_INSTANCE)
#undef RA_INSTANCE
    }
    return k;
}

template <int DIM> using forward_f32 = forward_pass<forward_32<DIM>>;
template <int DIM> using forward_f16 = forward_pass<forward_16<element_f16, DIM>>;
template <int DIM> using forward_bf16 = forward_pass<forward_16<element_bf16, DIM>>;
template <int DIM> using queries_f32 = queries_pass<backward_queries_32<DIM>>;
template <int DIM> using queries_f16 = queries_pass<backward_queries_16<element_f16, DIM>>;
template <int DIM> using queries_bf16 = queries_pass<backward_queries_16<element_bf16, DIM>>;
template <int DIM> using keys_f32 = keys_pass<backward_keys_32<DIM>>;
template <int DIM> using keys_f16 = keys_pass<backward_keys_16<element_f16, DIM>>;
template <int DIM> using keys_bf16 = keys_pass<backward_keys_16<element_bf16, DIM>>;
template <int DIM> using single_bf16 = keys_pass<backward_single_16<element_bf16, DIM>>;

template <int DIM> using wgmma_f16 = forward_wgmma<element_f16, DIM>;
template <int DIM> using wgmma_bf16 = forward_wgmma<element_bf16, DIM>;
template <int DIM> using single_wgmma = keys_pass<backward_single_wgmma<element_bf16, DIM>>;

/* ---- parts of tasks ---- */

static bool is_written(const float *from, int64_t count)
{
    bool all = true;
    for (int64_t i = 0; i < count; ++i)
        all &= word_at((const char *)(from + i)) != UINT32_MAX;
    return all;
}

void expect_written(const uint32_t *arrived)
{
    const ra_cuda_forward &f = *(const ra_cuda_forward *)now->f;
    int64_t const at = arrived - f.cuts.arrived, chunk_rows = f.map.chunk_rows;
    ra_cuda_part part = {at / f.cuts.count, (int32_t)(at % f.cuts.count), 0};
    ra_cuda_cut const cut = f.cuts.of[part.cut];
    int64_t const begin = forward_chunk_begin(f.map, cut.chunk);
    int64_t const rows = forward_chunk_end(f.map, begin) - begin;
    uint32_t written = 0;
    for (; part.part < cut.parts; ++part.part) {
        const float *const acc = f.cuts.states + ra_cuda_part_slot(&f.cuts, part) *
                                                     ra_cuda_part_floats(f.dim, f.map.chunk_rows);
        const float *const top = acc + chunk_rows * f.dim;
        written += is_written(acc, rows * f.dim) && is_written(top, rows) &&
                   is_written(top + chunk_rows, rows);
    }
    expect(written > *arrived, "a part is counted before all its rows are written");
}

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

/* ---- one warp ---- */

static void run_warp(const void *f, char *shared)
{
    cuda_warp &warp = **(cuda_warp *const *)f;
    int const lane = lane_index();
    char *const row = shared + lane * PIECE_BYTES;
    store_piece(row, warp.rows[lane]);
    warp_barrier();
    load_matrices(row, warp.loaded[lane]);
    load_matrices_transposed(row, warp.transposed[lane]);
    element_bf16::multiply(warp.c[lane], warp.a[lane], warp.b[lane][0], warp.b[lane][1]);
}

} // namespace emulated

using namespace emulated;

void cuda_emulate_forward(const ra_cuda_forward *f, int blocks, uint64_t seed,
                          cuda_emulation *stats)
{
    int64_t const whole = f->tasks, all = f->tasks + f->cuts.tasks;
    launch(f->warpgroups
               ? (f->q.dtype == RA_F16 ? kernel_of<wgmma_f16, ra_cuda_is_warpgroup_dim>(f, all)
                                       : kernel_of<wgmma_bf16, ra_cuda_is_warpgroup_dim>(f, all))
           : f->q.dtype == RA_F32 ? kernel_of<forward_f32>(f, whole)
           : f->q.dtype == RA_F16 ? kernel_of<forward_f16>(f, whole)
                                  : kernel_of<forward_bf16>(f, whole),
           blocks, seed, stats);
}

void cuda_emulate_backward(const ra_cuda_backward *f, int blocks, uint64_t seed,
                           cuda_emulation *stats)
{
    if (f->warpgroups) {
        launch(kernel_of<single_wgmma, ra_cuda_is_warpgroup_dim>(f, f->k_tasks), blocks, seed,
               stats);
        return;
    }
    if (f->single) {
        launch(kernel_of<single_bf16, ra_cuda_is_single_dim>(f, f->k_tasks), blocks, seed, stats);
        return;
    }
    launch(f->q.dtype == RA_F32   ? kernel_of<keys_f32>(f, f->k_tasks)
           : f->q.dtype == RA_F16 ? kernel_of<keys_f16>(f, f->k_tasks)
                                  : kernel_of<keys_bf16>(f, f->k_tasks),
           blocks, seed, stats);
    launch(f->q.dtype == RA_F32   ? kernel_of<queries_f32>(f, f->q_tasks)
           : f->q.dtype == RA_F16 ? kernel_of<queries_f16>(f, f->q_tasks)
                                  : kernel_of<queries_bf16>(f, f->q_tasks),
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

void cuda_emulate_warp(cuda_warp *warp, uint64_t seed)
{
    cuda_emulation ignored = {};
    ra_cuda_tile tile = {};
    tile.warps = 1;
    tile.shared_bytes = WARP * PIECE_BYTES;
    kernel const k = {run_warp, &warp, tile, 0};
    launch(k, 1, seed, &ignored);
}
