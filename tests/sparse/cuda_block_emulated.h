/*
 * A thread block on a CPU, as cuda_emulator.h has it: its fibers, what they wait for, and which of
 * them touched shared memory between which barriers. C++ only.
 */
#ifndef RINGATTN_TESTS_CUDA_BLOCK_EMULATED_H
#define RINGATTN_TESTS_CUDA_BLOCK_EMULATED_H

#include "sparse/cuda_emulator.h"

#include <array>
#include <map>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <vector>

namespace emulated
{

enum { WARP = 32, STACK_BYTES = 64 << 10, PIECE_BYTES = 16, WORD_BYTES = 4 };
enum { WARPS_MAX = 12, BARRIERS = 16 };
enum operation {
    OP_NONE,
    OP_SHUFFLE,
    OP_VOTE,
    OP_WARP_BARRIER,
    OP_LOAD,
    OP_LOAD_TRANSPOSED,
    OP_MULTIPLY,
    OP_GROUP_BEGIN,
    OP_GROUP_PRODUCT,
    OP_GROUP_WAIT,
    OP_ARRIVE
};

/* What a lane brings to something that lanes do together. */
struct offer {
    float x;
    int mask;
    const char *row;
    float a[4][2], b[2][2]; /* registers, two elements each */
};

/* Lanes that do things together. Offers of one thing stay until the next but one. */
struct group {
    std::vector<offer> offers[2];
    operation op;
    int members, arrived;
    int64_t round;
    int32_t barriers; /* of a warp: only these order what its lanes do to memory */
};

struct copy {
    char *to;
    const char *from;
    int bytes, room; /* zeros follow */
};

/* What is known of each warp: until which of its epochs all that its lanes did is over. An epoch
   ends when a warp lets others know. */
typedef std::array<int32_t, WARPS_MAX> knowledge;

/* A barrier of some threads of a block. What is gathered stays until the next but one. */
struct barrier {
    int members, arrived;
    unsigned warps; /* that came */
    int64_t round;
    knowledge gathering, gathered[2];
};

/* A copy that a thread began in an epoch of its warp. */
struct sent {
    copy what;
    int thread;
    int32_t epoch;
};

/* An mbarrier: a phase ends, and its copies arrive, once `left` more have. */
struct phases {
    int count, left;
    int64_t ended;
    knowledge gathering, gathered;
    std::vector<sent> copies;
};

/* Contexts begin fibers; from then on jumps, which save no signals, go between them much faster. */
struct place {
    ucontext_t context;
    void *at[5]; /* of __builtin_setjmp */
    bool begun;
};

struct fiber {
    place here;
    bool done;
    const int64_t *waits_for; /* to become another number; NULL: ready */
    int64_t waits_number;
    std::vector<copy> begun, committed;
};

struct block {
    std::vector<fiber> fibers;
    std::vector<group> warps;
    std::vector<knowledge> known; /* to each warp; of itself: its epoch */
    int32_t first_epoch;          /* what came before is of other blocks */
    barrier barriers[BARRIERS];
    std::map<const void *, phases> mbarriers;
    int64_t changes; /* barriers that were passed, phases that ended */
    int drawer;      /* the thread that draws tickets, or -1 */
    char *shared;
    int64_t shared_bytes;
    place scheduler;
    int current;
    int64_t index, next_task, tasks;
    int count;
    uint64_t seed;
    void (*run)(const void *f, char *shared);
    const void *f;
    cuda_emulation *stats;
};

extern block *now; /* NULL between launches */

[[noreturn]] void fail(const char *what);

inline void expect(bool holds, const char *what)
{
    if (!holds)
        fail(what);
}

/* A launch of a kernel, as its launcher would make it. */
struct kernel {
    void (*run)(const void *f, char *shared);
    const void *f;
    ra_cuda_tile tile;
    int64_t tasks;       /* of its tickets, if it takes any */
    bool yields = false; /* as many thread blocks as tasks */
};

void launch(const kernel &k, int blocks, uint64_t seed, cuda_emulation *stats);

/* Wait until all members of the group have brought theirs; the offers of all. */
const std::vector<offer> &together(group &g, int member, operation op, const offer &mine);

inline const std::vector<offer> &warp_together(operation op, const offer &mine)
{
    return together(now->warps[(size_t)(now->current / WARP)], now->current % WARP, op, mine);
}

/* All `threads` that take part wait for each other, at the barrier of that number. */
void meet(int number, int threads);
/* Likewise, without waiting: by all lanes of a warp. */
void arrive(int number, int threads);

void mbarrier_made(const void *at, int arrivals);
/* This thread arrives; with all copies that it has begun, where they are sent along. */
void mbarrier_arrived(const void *at, bool with_copies);
/* All lanes of a warp wait until a phase of that parity has ended. */
void mbarrier_awaited(const void *at, uint32_t parity);

/* A lane's part of what its warp multiplies, added to c; apart from kernels, because compilers
   slow down what they tell every access of. */
void add_products(const std::vector<offer> &offers, int lane, float c[4]);

/*
 * Every word of shared memory knows who last wrote it, and who of each warp last read it. Stop
 * where another thread did, one of both writes, and nothing orders them: a barrier, an mbarrier
 * that one arrived at and the other waited for, or a barrier of the warp that both are in; shuffles
 * and votes order nothing. Primitives note what they touch; plain accesses are seen where PTX is
 * run (tests/ptx).
 */
void note_write(const void *at, int bytes);
void note_read(const void *at, int bytes);
/* A copy is on its way there. */
void note_copy(const void *at, int bytes);
/* It arrives; this thread began it. */
void take_copy(const copy &c);

/* A part of a task is about to be counted as ended: its state, NaN before the launch, is written by
   then, by all warps. */
void expect_written(const uint32_t *arrived);

inline bool is_shared(const void *at)
{
    return now != NULL && (uintptr_t)at - (uintptr_t)now->shared < (uintptr_t)now->shared_bytes;
}

} // namespace emulated

#endif
