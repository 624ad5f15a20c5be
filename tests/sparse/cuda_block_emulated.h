/*
 * A thread block on a CPU, as cuda_emulator.h has it: its fibers, what they wait for, and which of
 * them touched shared memory between which barriers. C++ only.
 */
#ifndef RINGATTN_TESTS_CUDA_BLOCK_EMULATED_H
#define RINGATTN_TESTS_CUDA_BLOCK_EMULATED_H

#include "sparse/cuda_emulator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <vector>

namespace emulated
{

enum { WARP = 32, STACK_BYTES = 64 << 10, PIECE_BYTES = 16, WORD_BYTES = 4 };
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
    OP_BARRIER
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

/* Contexts begin fibers; from then on jumps, which save no signals, go between them much faster. */
struct place {
    ucontext_t context;
    void *at[5]; /* of __builtin_setjmp */
    bool begun;
};

struct fiber {
    place here;
    bool done;
    group *waits_for; /* NULL: ready */
    int64_t waits_round;
    std::vector<copy> begun, committed;
};

struct block {
    std::vector<fiber> fibers;
    std::vector<group> warps;
    group all;
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

/* A lane's part of what its warp multiplies, added to c; apart from kernels, because compilers
   slow down what they tell every access of. */
void add_products(const std::vector<offer> &offers, int lane, float c[4]);

/*
 * Every word of shared memory knows who last wrote and read it. Stop where another thread did, one
 * of both writes, and no barrier is in between, of the block or of the warp that both are in;
 * shuffles and votes order nothing. Primitives note what they touch; plain accesses are seen where
 * PTX is run (tests/ptx).
 */
void note_write(const void *at, int bytes);
void note_read(const void *at, int bytes);
/* A copy is on its way there; it has arrived. */
void note_copy(const void *at, int bytes);
void note_arrival(const void *at, int bytes);

inline bool is_shared(const void *at)
{
    return now != NULL && (uintptr_t)at - (uintptr_t)now->shared < (uintptr_t)now->shared_bytes;
}

} // namespace emulated

#endif
