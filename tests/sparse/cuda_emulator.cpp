#include "sparse/cuda_lanes_emulated.h"

#include "sparse/cuda/forward_16.cuh"
#include "sparse/cuda/forward_32.cuh"

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
    now->run(*now->f, now->shared);
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

static void init_block(block &b, int threads)
{
    init_group(b.all, threads);
    b.all.round = 1; /* nothing was read or written in it */
    b.warps.resize((size_t)(threads / WARP));
    for (group &warp : b.warps)
        init_group(warp, WARP);
    b.pieces.assign((size_t)(b.shared_bytes / PIECE_BYTES), access{-1, -1, 0, 0, false});
    b.fibers.resize((size_t)threads);
    for (fiber &f : b.fibers) {
        f.stack.resize(STACK_BYTES);
        f.done = false;
        f.here.begun = false;
        f.waits_for = NULL;
        getcontext(&f.here.context);
        f.here.context.uc_stack.ss_sp = f.stack.data();
        f.here.context.uc_stack.ss_size = f.stack.size();
        f.here.context.uc_link = NULL;
        makecontext(&f.here.context, enter, 0);
    }
}

template <class Block>
static void launch(const ra_cuda_forward &f, int blocks, uint64_t seed, cuda_emulation *stats)
{
    ra_cuda_tile const tile = ra_cuda_tile_of(f.q.dtype, f.dim);
    for (int i = 0; i < blocks; ++i) {
        block b = {};
        b.shared_bytes = tile.shared_bytes;
        b.shared = (char *)aligned_alloc(128, ((size_t)tile.shared_bytes + 127) / 128 * 128);
        memset(b.shared, 0xff, (size_t)tile.shared_bytes);
        b.index = i;
        b.count = blocks;
        b.seed = seed + (uint64_t)i;
        b.run = forward_all<Block>;
        b.f = &f;
        b.stats = stats;
        init_block(b, 32 * tile.warps);
        run_block(b);
        free(b.shared);
    }
}

template <template <int> class Block>
static void launch_dim(const ra_cuda_forward &f, int blocks, uint64_t seed, cuda_emulation *stats)
{
    switch (ra_cuda_tile_of(f.q.dtype, f.dim).dim) {
    case 64:
        return launch<Block<64>>(f, blocks, seed, stats);
    case 128:
        return launch<Block<128>>(f, blocks, seed, stats);
    default:
        return launch<Block<256>>(f, blocks, seed, stats);
    }
}

template <int DIM> using forward_bf16 = forward_16<element_bf16, DIM>;
template <int DIM> using forward_f16 = forward_16<element_f16, DIM>;

} // namespace emulated

void cuda_emulate_forward(const ra_cuda_forward *f, int blocks, uint64_t seed,
                          cuda_emulation *stats)
{
    switch (f->q.dtype) {
    case RA_F32:
        return emulated::launch_dim<forward_32>(*f, blocks, seed, stats);
    case RA_F16:
        return emulated::launch_dim<emulated::forward_f16>(*f, blocks, seed, stats);
    default:
        return emulated::launch_dim<emulated::forward_bf16>(*f, blocks, seed, stats);
    }
}
