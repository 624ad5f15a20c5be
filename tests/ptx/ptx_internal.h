/* A kernel as it is run. */
#ifndef RINGATTN_TESTS_PTX_INTERNAL_H
#define RINGATTN_TESTS_PTX_INTERNAL_H

#include "ptx/ptx.h"

#include <stdbool.h>

enum { PTX_LANES = 32, PTX_OPERANDS_MAX = 73, PTX_THREADS_MAX = 1024 };

/* A register of a warp: a value per lane, as bits; narrow ones fill the low end. */
typedef uint64_t ptx_row[PTX_LANES];

/* What an instruction without effect on others computes, for all lanes; unused inputs are zeros. */
typedef void ptx_compute(uint64_t *restrict out, const uint64_t *x, const uint64_t *y,
                         const uint64_t *z, const uint64_t *w);

typedef enum ptx_kind {
    PTX_COMPUTE,
    PTX_PACK,   /* mov of two halves to one register */
    PTX_UNPACK, /* and back */
    PTX_LOAD,
    PTX_STORE,
    PTX_ADD,  /* atom and red */
    PTX_COPY, /* cp.async */
    PTX_COMMIT,
    PTX_WAIT,
    PTX_PUBLISH, /* fence.proxy.async */
    PTX_FENCE,   /* of device memory, which all see at once here */
    PTX_BRANCH,
    PTX_RETURN,
    /* What all lanes of a warp do together: */
    PTX_SHUFFLE,
    PTX_VOTE,
    PTX_WARP_BARRIER,
    PTX_MATRICES,    /* ldmatrix */
    PTX_PRODUCT,     /* mma */
    PTX_GROUP_FENCE, /* wgmma, */
    PTX_GROUP_PRODUCT,
    PTX_GROUP_COMMIT,
    PTX_GROUP_WAIT, /* until here */
    PTX_BARRIER
} ptx_kind;

typedef enum ptx_space { PTX_GENERIC, PTX_GLOBAL, PTX_SHARED, PTX_PARAM } ptx_space;

/* How it is spelled, and what it is. */
typedef struct ptx_opcode {
    const char *name;
    ptx_kind kind;
    ptx_compute *compute;
    bool is_lax; /* may read what was not written: then its result was not, either */
} ptx_opcode;

typedef struct ptx_instruction {
    ptx_kind kind;
    ptx_compute *compute;
    bool is_lax, is_narrow; /* narrow: reads the lower 32 bits */
    int line;               /* of the module */
    int guard;              /* register, or -1; `unless`: taken where it is false */
    bool unless;
    int operands[PTX_OPERANDS_MAX]; /* registers; constants have some of their own */
    int count, first;               /* operands, and the lengths of the first list of them */
    int64_t offset;                 /* of an address */
    int target;                     /* of a branch */
    ptx_space space;
    int bytes, vector; /* of an access: each element's */
    bool is_signed, is_float;
    bool returns; /* what was there before an addition */
    bool turned;  /* matrices */
    bool half;    /* products of float16 */
    bool indexed; /* a shuffle from a lane of that number; else by XOR */
} ptx_instruction;

/* Registers that a kernel finds filled. */
enum { PTX_TID, PTX_NTID, PTX_CTAID, PTX_NCTAID, PTX_PARAMS, PTX_ZERO, PTX_SPECIALS };

struct ptx_kernel {
    ptx_kernel *next;
    char *name;
    const char *file;
    int target, threads, blocks;
    size_t param_bytes;
    ptx_instruction *code;
    int length;
    int registers;       /* with specials, which come first, and constants, which come last */
    uint64_t *constants; /* of registers [registers - constant_count, registers) */
    int constant_count;
};

/** The kernel whose parameters begin at `at`, in the text of a file. Owned by the caller, for good.
 */
ptx_kernel *ptx_parse(const char *file, const char *text, const char *at, const char *name);

/** NULL: not known. `name` need not end with a NUL. */
const ptx_opcode *ptx_opcode_find(const char *name, size_t length);

/* Lanes that wrote a register: its lower 32 bits, and those above. Structures are copied with the
   holes in them, 64 bits at a time. */
typedef struct ptx_lanes {
    uint32_t low, high;
} ptx_lanes;

/* A wgmma product that its warp has begun and not waited for. */
typedef struct ptx_pending {
    const ptx_instruction *in;
    uint64_t left_shared, right; /* descriptors */
    ptx_row left[4];             /* or registers */
    bool committed;
} ptx_pending;

/* The n-th product of a group's warps, which is one. */
typedef struct ptx_group_product {
    int64_t number, line; /* from 1 */
    uint64_t left, right;
} ptx_group_product;

enum { PTX_PENDING_MAX = 64, PTX_GROUP_PRODUCTS_KEPT = 256, PTX_GROUPS_MAX = 8 };

/* A warp, and where its lanes are. Active ones are at `at`; others that are alive wait at `pc` for
   the rest of the warp, or to be run. */
typedef struct ptx_warp {
    struct ptx_block *block;
    int index;
    uint32_t alive, active, waiting;
    int at, pc[PTX_LANES];
    bool at_barrier;
    int64_t barriers; /* of the warp */
    ptx_row *rows;
    ptx_lanes *known; /* per register: lanes that wrote it */
    int64_t products; /* of wgmma, so far; those under way: */
    int pending_count;
    int32_t fences;   /* of wgmma, so far */
    int32_t *written; /* per register: how many there had been when it was last written */
    ptx_pending pending[PTX_PENDING_MAX];
} ptx_warp;

/* A piece that cp.async is to bring, and when: with its thread's next wait. */
typedef struct ptx_piece {
    int thread;
    uint32_t to, room, bytes; /* zeros follow */
    uintptr_t from;
    bool committed;
} ptx_piece;

/* Who touched a word of shared memory, since which barriers of block and warp. */
typedef struct ptx_touch {
    int32_t thread; /* -1: nobody; PTX_SEVERAL and beyond: several, of that warp, or of several */
    int64_t block_barriers, warp_barriers;
} ptx_touch;

enum { PTX_SEVERAL = PTX_THREADS_MAX, PTX_MANY = 2 * PTX_THREADS_MAX };

typedef struct ptx_word {
    ptx_touch written, read;
    uint8_t filled;     /* bits: bytes that have a value */
    uint8_t awaited;    /* copies on their way */
    uint16_t in_use;    /* by products under way */
    int32_t publishing; /* ptx_block.published of who wrote it, at that time */
} ptx_word;

typedef struct ptx_block {
    const ptx_kernel *kernel;
    const ptx_launch *launch;
    ptx_counts *counts;
    bool is_there;
    unsigned index;
    int warp_count, done, waiting; /* warps */
    int64_t barriers;
    ptx_warp *warps;
    char *shared;
    ptx_word *words;
    ptx_piece *pieces;
    int piece_count, piece_room;
    /* By thread: how often it has executed fence.proxy.async, and had before the last barrier. */
    int32_t published[PTX_THREADS_MAX], published_before[PTX_THREADS_MAX];
    ptx_group_product products[PTX_GROUPS_MAX][PTX_GROUP_PRODUCTS_KEPT];
    uintptr_t found_begin, found_end; /* of the allocation that was last looked for */
} ptx_block;

/** End the process: what a warp does at an instruction is undefined. */
_Noreturn void ptx_fail(const ptx_warp *warp, const ptx_instruction *in, const char *what);

/** Place a warp before the kernel's first instruction. */
void ptx_warp_begin(ptx_warp *w);
/** One instruction of the active lanes of a warp that is alive and waits for no other. */
void ptx_step(ptx_warp *w);

/* What is done to memory, for the lanes of a mask: ptx_memory.c, ptx_copies.c. */
void ptx_load(ptx_warp *w, const ptx_instruction *in, uint32_t lanes);
void ptx_store(ptx_warp *w, const ptx_instruction *in, uint32_t lanes);
void ptx_add(ptx_warp *w, const ptx_instruction *in, uint32_t lanes);
void ptx_copy(ptx_warp *w, const ptx_instruction *in, uint32_t lanes);
void ptx_commit(ptx_warp *w, uint32_t lanes);
void ptx_wait(ptx_warp *w, const ptx_instruction *in, uint32_t lanes);
void ptx_publish(ptx_warp *w, uint32_t lanes);
void ptx_matrices(ptx_warp *w, const ptx_instruction *in);

/* wgmma: ptx_warpgroup.c. */
void ptx_group_fence(ptx_warp *w);
void ptx_group_product_begin(ptx_warp *w, const ptx_instruction *in);
void ptx_group_commit(ptx_warp *w);
void ptx_group_wait(ptx_warp *w, const ptx_instruction *in);
/** What the block's warps, which have ended, left undone; NULL: nothing. */
const char *ptx_group_end(const ptx_block *b);

/** Note that a register is written. */
static inline void ptx_note_register(ptx_warp *w, int row)
{
    w->written[row] = w->fences;
}

/** Check that all lanes of a mask wrote a register. */
void ptx_expect_known(const ptx_warp *w, const ptx_instruction *in, int row, uint32_t lanes);

#endif
