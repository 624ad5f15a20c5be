/* The emulator's launches of linear attention. */
#include "sparse/cuda_lanes_emulated.h"

#include "sparse/cuda/linear_backward.cuh"
#include "sparse/cuda/linear_forward.cuh"
#include "sparse/cuda/linear_rowwise.cuh"
#include "sparse/cuda/linear_segments.cuh"

using namespace emulated;

template <class Work> static void run(const void *f, char *shared)
{
    linear_all<Work>(*(const ra_cuda_linear *)f, shared);
}

static void run_segments(const void *f, char *shared)
{
    (void)shared;
    segments_all(*(const ra_cuda_segments *)f);
}

typedef void run_function(const void *f, char *shared);

template <int DIM> static run_function *function_of(ra_cuda_linear_work work)
{
    static run_function *const functions[RA_CUDA_LINEAR_WORKS] = {
        run<linear_sum<DIM>>, run<linear_forward<DIM>>, run<linear_rowwise>,
        run<linear_queries<DIM>>, run<linear_keys<DIM>>};
    return functions[work];
}

void cuda_emulate_linear(ra_cuda_linear_work work, const ra_cuda_linear *f, int blocks,
                         uint64_t seed)
{
    cuda_emulation ignored = {};
    ra_cuda_tile const tile = ra_cuda_linear_tile_of(work, f->dim);
    kernel const k = {tile.dim == 64    ? function_of<64>(work)
                      : tile.dim == 128 ? function_of<128>(work)
                                        : function_of<256>(work),
                      f, tile, 0};
    launch(k, blocks, seed, &ignored);
}

/* Two warps, where a GPU has more: the number is no part of what is computed. */
void cuda_emulate_segments(const ra_cuda_segments *f, int blocks, uint64_t seed)
{
    cuda_emulation ignored = {};
    ra_cuda_tile tile = {};
    tile.warps = 2;
    tile.shared_bytes = PIECE_BYTES;
    kernel const k = {run_segments, f, tile, 0};
    launch(k, blocks, seed, &ignored);
}
