#include "sparse/cuda_lanes_emulated.h"

#include "sparse/cuda/backward_32.cuh"
#include "sparse/cuda/backward_keys_16.cuh"
#include "sparse/cuda/backward_queries_16.cuh"
#include "sparse/cuda/backward_single_16.cuh"
#include "sparse/cuda/forward_16.cuh"
#include "sparse/cuda/forward_32.cuh"
#include "sparse/cuda/rows.cuh"
#include "sparse/cuda/softmax.cuh"

#include <sanitizer/asan_interface.h>

namespace emulated
{

block *now;

[[noreturn]] __attribute__((noinline, no_sanitize("address"))) static void go(place &to)
{
    if (to.begun)
        __builtin_longjmp(to.at, 1);
    setcontext(&to.context);
    abort();
}

void leave(place &from, place &to)
{
    from.begun = true;
    if (__builtin_setjmp(from.at) == 0)
        go(to);
}

static void enter()
{
    now->run(now->f, now->shared);
    fiber &self = now->fibers[(size_t)now->current];
    expect(self.begun.empty(), "copies were begun and never committed");
    self.done = true;
    leave(self.here, now->scheduler);
}

/* A permutation of the threads, another one every time. */
static void shuffle_order(std::vector<int> &order, uint64_t &seed)
{
    for (size_t i = order.size() - 1; i > 0; --i) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        std::swap(order[i], order[(seed >> 33) % (i + 1)]);
    }
}

static void run_block(block &b)
{
    std::vector<int> order;
    for (int i = 0; i < b.all.members; ++i)
        order.push_back(i);
    now = &b;
    for (size_t done = 0; done < order.size();) {
        bool moved = false;
        shuffle_order(order, b.seed);
        done = 0;
        for (int i : order) {
            fiber &f = b.fibers[(size_t)i];
            if (f.waits_for != NULL && f.waits_for->round == f.waits_round)
                continue;
            if (f.done) {
                ++done;
                continue;
            }
            f.waits_for = NULL;
            moved = true;
            b.current = i;
            leave(b.scheduler, f.here);
        }
        expect(moved || done == order.size(), "lanes wait for others that never come");
    }
}

static void init_group(group &g, int members)
{
    g = group();
    g.members = members;
    g.offers[0].resize((size_t)members);
    g.offers[1].resize((size_t)members);
}

/* Stacks are made once: blocks run one after the other, and to clear theirs takes longer than most
   of what they do. */
static char *stack_of(size_t thread)
{
    static std::vector<std::vector<char>> stacks;
    while (stacks.size() <= thread)
        stacks.emplace_back((size_t)STACK_BYTES);
    ASAN_UNPOISON_MEMORY_REGION(stacks[thread].data(), STACK_BYTES); /* frames that were left */
    return stacks[thread].data();
}

static void init_block(block &b, int threads)
{
    init_group(b.all, threads);
    b.all.round = 1; /* nothing was read or written in it */
    b.warps.resize((size_t)(threads / WARP));
    for (group &warp : b.warps)
        init_group(warp, WARP);
    b.pieces.assign((size_t)(b.shared_bytes / PIECE_BYTES), access{-1, -1, 0, 0, false});
    b.fibers.resize((size_t)threads);
    for (size_t i = 0; i < b.fibers.size(); ++i) {
        fiber &f = b.fibers[i];
        f.done = false;
        f.here.begun = false;
        f.waits_for = NULL;
        getcontext(&f.here.context);
        f.here.context.uc_stack.ss_sp = stack_of(i);
        f.here.context.uc_stack.ss_size = STACK_BYTES;
        f.here.context.uc_link = NULL;
        makecontext(&f.here.context, enter, 0);
    }
}

void launch(const kernel &k, int blocks, uint64_t seed, cuda_emulation *stats)
{
    for (int i = 0; i < blocks; ++i) {
        block b = {};
        b.shared_bytes = k.tile.shared_bytes;
        b.shared = (char *)aligned_alloc(128, ((size_t)b.shared_bytes + 127) / 128 * 128);
        memset(b.shared, 0xff, (size_t)b.shared_bytes);
        b.index = i;
        b.count = blocks;
        b.seed = seed + (uint64_t)i;
        b.run = k.run;
        b.f = k.f;
        b.tasks = k.tasks;
        b.stats = stats;
        init_block(b, 32 * k.tile.warps);
        run_block(b);
        free(b.shared);
    }
}

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
