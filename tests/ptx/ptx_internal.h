/* A kernel as it is run. */
#ifndef RINGATTN_TESTS_PTX_INTERNAL_H
#define RINGATTN_TESTS_PTX_INTERNAL_H

#include "ptx/ptx.h"

#include <stdbool.h>

enum { PTX_LANES = 32, PTX_OPERANDS_MAX = 73, PTX_THREADS_MAX = 1024, PTX_GROUP_WARPS = 4 };

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
    PTX_PUBLISH,      /* fence.proxy.async */
    PTX_FENCE,        /* of device memory, which all see at once here */
    PTX_SIGNAL_BEGIN, /* mbarrier: it is there, */
    PTX_SIGNAL_ARRIVE,
    PTX_SIGNAL_COPIED, /* cp.async.mbarrier.arrive.noinc */
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
    PTX_SIGNAL_WAIT,
    PTX_REGISTERS, /* setmaxnreg */
    PTX_BARRIER
} ptx_kind;

typedef enum ptx_space { PTX_GENERIC, PTX_GLOBAL, PTX_SHARED, PTX_PARAM } ptx_space;

/* What an instruction makes of bytes that were not written: not allowed, or some of its result was
   not written, either. */
typedef enum ptx_use {
    PTX_WHOLE,
    PTX_MOVES,       /* byte by byte */
    PTX_MOVES_LOW_4, /* the lower half, */
    PTX_MOVES_LOW_2,
    PTX_MOVES_UP, /* 16 bits, by as many bits as are whole bytes */
    PTX_MOVES_DOWN,
    PTX_CLEARS, /* and: where one has zeros, the other does not matter */
    PTX_UNITES, /* or: where one is true, likewise */
    PTX_TELLS   /* something about all bytes */
} ptx_use;

/* How it is spelled, and what it is. */
typedef struct ptx_opcode {
    const char *name;
    ptx_kind kind;
    ptx_compute *compute;
    ptx_use use;
} ptx_opcode;

typedef struct ptx_instruction {
    ptx_kind kind;
    ptx_compute *compute;
    ptx_use use;
    int line;  /* of the module */
    int guard; /* register, or -1; `unless`: taken where it is false */
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
    bool arrives; /* at a barrier, without waiting there */
    bool takes;   /* registers; else it leaves some */
} ptx_instruction;

/* Registers that a kernel finds filled. */
enum {
    PTX_TID,
    PTX_NTID,
    PTX_CTAID,
    PTX_NCTAID,
    PTX_PARAMS,
    PTX_SHARED_BASE,
    PTX_ZERO,
    PTX_SPECIALS
};

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

/* Which of a register's eight bytes each lane has written, by bits; those above a narrow one's own
   count as written. Structures are copied with the holes in them. */
typedef struct ptx_known {
    uint8_t lane[PTX_LANES];
} ptx_known;

/* A wgmma product that its warp has begun and not waited for. */
typedef struct ptx_pending {
    const ptx_instruction *in;
    uint64_t left_shared, right; /* descriptors */
    ptx_row left[4];             /* or registers */
    int64_t group;               /* of those that its warp has committed, or is to */
} ptx_pending;

/* The n-th product of a group's warps, which is one. */
typedef struct ptx_group_product {
    int64_t number, line; /* from 1 */
    uint64_t left, right;
} ptx_group_product;

enum { PTX_PENDING_MAX = 64, PTX_GROUP_PRODUCTS_KEPT = 256, PTX_GROUPS_MAX = 8 };

/* What a warp waits for; a warp that polls is looked at again once something has happened. */
typedef enum ptx_wait_for {
    PTX_NOTHING,
    PTX_FOR_BARRIER,
    PTX_FOR_SIGNAL,
    PTX_FOR_REGISTERS
} ptx_wait_for;

/* A warp, and where its lanes are. Active ones are at `at`; others that are alive wait at `pc` for
   the rest of the warp, or to be run. */
typedef struct ptx_warp {
    struct ptx_block *block;
    int index;
    uint32_t alive, active, waiting;
    int at, pc[PTX_LANES];
    ptx_wait_for waits;
    const ptx_instruction *waits_in;
    int waits_on;          /* number of the barrier, or of the signal */
    int32_t epoch, *clock; /* ptx_order.c */
    int registers;         /* per lane, that it may use */
    int64_t register_steps;
    ptx_row *rows;
    ptx_known *known;          /* per register */
    int64_t commits, products; /* of wgmma, so far; those under way: */
    int pending_count;
    int32_t fences;   /* of wgmma, so far */
    int32_t *touched; /* per register: how many there had been when it was last read or written */
    ptx_pending pending[PTX_PENDING_MAX];
} ptx_warp;

/* A piece that cp.async is to bring, and when: with its thread's next wait, or as a signal says
   that this many of its thread's pieces have arrived. */
typedef struct ptx_piece {
    int thread;
    int32_t number;           /* of its thread's, from 1 */
    uint32_t to, room, bytes; /* zeros follow */
    uintptr_t from;
} ptx_piece;

/* Who wrote a word of shared memory last, at which of its epochs (ptx_order.c), and who has read it
   since. */
typedef struct ptx_word {
    int32_t epoch;
    int16_t writer;   /* agent; -1: nobody */
    uint16_t in_use;  /* by products under way */
    uint32_t readers; /* bits: warps */
    uint8_t filled;   /* bits: bytes that have a value */
    bool awaited;     /* a copy is on its way */
    bool is_signal;
} ptx_word;

/* When a warp has read a word last: these lanes; none: a product. */
typedef struct ptx_reading {
    int32_t epoch;
    uint32_t lanes;
} ptx_reading;

/* Which of a block's threads wrote each half of a word of device memory last, at which of its
   warp's epochs. */
enum { PTX_LINE_BYTES = 128, PTX_LINE_HALVES = 64 };

typedef struct ptx_line {
    uintptr_t at;
    int16_t thread[PTX_LINE_HALVES]; /* -1: none */
    int32_t epoch[PTX_LINE_HALVES];
} ptx_line;

/* A barrier of some of the block's threads, which reach it by whole warps. */
typedef struct ptx_barrier {
    int threads, line;         /* 0: nobody has reached it yet */
    bool whole;                /* of all threads that have not ended */
    uint32_t arrived, waiting; /* bits: warps; the first ones include the second ones */
    int32_t *clock;
} ptx_barrier;

/* An mbarrier: its phase of that number, from 0, lacks so many arrivals. */
typedef struct ptx_signal {
    uint32_t at;
    int count, lacks;
    int64_t phase;
    int32_t *clock, *ended; /* what arrived with this phase, and with the one before */
} ptx_signal;

/* The last setmaxnreg that a warpgroup's warps have executed, and how many of them. */
typedef struct ptx_register_step {
    int64_t number;
    int line, warps;
} ptx_register_step;

enum { PTX_BARRIERS = 16, PTX_SIGNALS_MAX = 64 };

typedef struct ptx_block {
    const ptx_kernel *kernel;
    const ptx_launch *launch;
    ptx_counts *counts;
    bool is_there;
    unsigned index;
    int warp_count, done; /* warps */
    ptx_warp *warps;
    char *shared;
    ptx_word *words;
    ptx_reading *readings; /* per word, of each warp */
    ptx_piece *pieces;
    int piece_count, piece_room;
    int32_t pieces_begun[PTX_THREADS_MAX], pieces_committed[PTX_THREADS_MAX];
    ptx_line *lines; /* that the block wrote: ptx_device.c */
    uint32_t *line_slots, line_found;
    size_t line_count, line_room;
    uintptr_t line_last;
    ptx_barrier barriers[PTX_BARRIERS];
    ptx_signal signals[PTX_SIGNALS_MAX];
    int signal_count;
    /* Arrivals and ends so far, what there were when all warps waited, and how often they have then
       been looked at again. */
    int64_t events, events_idle;
    int polls_idle;
    ptx_register_step register_steps[PTX_GROUPS_MAX];
    ptx_group_product products[PTX_GROUPS_MAX][PTX_GROUP_PRODUCTS_KEPT];
    uintptr_t found_begin, found_end; /* of the allocation that was last looked for */
} ptx_block;

/** End the process: what a warp does at an instruction is undefined. */
_Noreturn void ptx_fail(const ptx_warp *warp, const ptx_instruction *in, const char *what);

/** Memory of zeros, for the caller to free; without any the process ends. */
void *ptx_zeros(size_t count, size_t bytes);

/** The lane's thread of the block. */
static inline int ptx_thread_of(const ptx_warp *w, int lane)
{
    return w->index * PTX_LANES + lane;
}

/** The value of an operand that is one for all lanes, all of which have it. */
uint64_t ptx_uniform(const ptx_warp *w, const ptx_instruction *in, int operand);

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
/** Those pieces arrive of whose thread that many have arrived, as a clock says. */
void ptx_pieces_arrive(ptx_block *b, const int32_t *clock);
void ptx_matrices(ptx_warp *w, const ptx_instruction *in);
/** Nobody of the block has written device memory yet. */
void ptx_device_begin(ptx_block *b);

/*
 * What came before what: ptx_order.c. Agents are threads, and behind them as many again: the copies
 * that each has begun. A clock has, by agent, the epoch up to which all it did is known to have
 * been done; and then, by agent again, up to which it is published to products.
 */
static inline int ptx_agents(const ptx_block *b)
{
    return 2 * b->warp_count * PTX_LANES;
}

/** Whether what an agent did in an epoch came before what the warp does now. */
static inline bool ptx_has_heard(const ptx_warp *w, int agent, int32_t epoch)
{
    return w->clock[agent] >= epoch;
}

static inline bool ptx_is_published(const ptx_warp *w, int agent, int32_t epoch)
{
    return w->clock[ptx_agents(w->block) + agent] >= epoch;
}

/** A clock of the block, owned by the caller, that knows of nothing; make it so again. */
int32_t *ptx_clock_new(const ptx_block *b);
void ptx_clock_clear(const ptx_block *b, int32_t *clock);
/** The warp's lanes have met: each knows what the others did. */
void ptx_meet(ptx_warp *w);
/** Some lanes let whoever takes the clock know what they know and did. */
void ptx_give(ptx_warp *w, uint32_t lanes, int32_t *clock);
void ptx_take(ptx_warp *w, const int32_t *clock);
/** fence.proxy.async: what they know of, and did themselves, products may read. */
void ptx_publish(ptx_warp *w, uint32_t lanes);

/* Where warps wait for each other: ptx_barriers.c. */
void ptx_barrier_reach(ptx_warp *w, const ptx_instruction *in);
/** A warp has ended, for which nobody need wait. */
void ptx_barriers_go_on(ptx_block *b);
/** setmaxnreg. @return whether the warp has the registers; else it waits here */
bool ptx_set_registers(ptx_warp *w, const ptx_instruction *in);
/** Per thread, when a launch begins. */
int ptx_registers_at_first(const ptx_block *b);
/** All warps wait: look again at what those that poll wait for; ends the process if that is of no
    use. */
void ptx_all_wait(ptx_block *b);

/* mbarrier: ptx_signals.c. */
void ptx_signal_begin(ptx_warp *w, const ptx_instruction *in, uint32_t lanes);
void ptx_signal_arrive(ptx_warp *w, const ptx_instruction *in, uint32_t lanes);
void ptx_signal_copied(ptx_warp *w, const ptx_instruction *in, uint32_t lanes);
void ptx_signal_wait(ptx_warp *w, const ptx_instruction *in);

/* wgmma: ptx_warpgroup.c. */
void ptx_group_fence(ptx_warp *w);
void ptx_group_product_begin(ptx_warp *w, const ptx_instruction *in);
void ptx_group_commit(ptx_warp *w);
void ptx_group_wait(ptx_warp *w, const ptx_instruction *in);
/** What the block's warps, which have ended, left undone; NULL: nothing. */
const char *ptx_group_end(const ptx_block *b);

/** Note that lanes of a mask wrote all of a register. */
void ptx_know_all(ptx_warp *w, int row, uint32_t lanes);
/** Check that they did. */
void ptx_expect_known(const ptx_warp *w, const ptx_instruction *in, int row, uint32_t lanes);

#endif
