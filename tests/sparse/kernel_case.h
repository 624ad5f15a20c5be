/* One attention problem run through a kernel table in steps, and checked against the oracle. */
#ifndef TESTS_SPARSE_KERNEL_CASE_H
#define TESTS_SPARSE_KERNEL_CASE_H

#include "support/oracle.h"

typedef struct kernel_case {
    oracle_shape shape;
    ra_pattern_config pattern; /* what it points to is borrowed */
    ra_dtype dtype;
    uint64_t seed;
    double dout_factor; /* 0: no backward */
    int threads;        /* at least 1 */
    ra_caches caches;   /* as in ra_kernel */
    int steps;          /* key rows are dealt into so many sets, one step each */
    bool striped;       /* sets are j mod steps, and queries are numbered even ones first */
    bool padded;        /* views have gaps between rows and between heads */
    bool backwards;     /* rows of views lie in memory from the last to the first */
    bool dense_mask;    /* maps come from block masks */
    bool deterministic; /* as in ra_kernel */
    bool ends_only;     /* of each head only the first and last chunk; other results stay 0 */
    bool yields;        /* as in steps */
    bool all_rows;      /* state is carried for all rows, even if steps of chunks are possible */
    bool summed;        /* gradients are summed in float32, even if one step could store them */
} kernel_case;

/* Inputs of a case, dense and in the order of the sequence, and what the oracle makes of them. */
typedef struct kernel_problem {
    kernel_case c;
    void *q, *k, *v, *dout; /* stored in the dtype */
    oracle_outputs want;
    double *memory[9];
    int shift; /* of dq and dk against dout, by kernel_problem_shift: a power of two */
} kernel_problem;

/* What a table made of it, in the order of the sequence and in the dtype; lse float32. */
typedef struct kernel_result {
    void *o, *dq, *dk, *dv;
    float *lse;
    int32_t chunk_rows; /* of the first step's map */
    ra_status status;
} kernel_result;

/* Tables for an instruction set each, and after them the one that materialises. */
enum { KERNEL_ISA_COUNT = 6, KERNEL_TABLE_COUNT };
/* Blocks of a table's memory, of which the host may reach none. */
enum { KERNEL_BLOCKS_MAX = 200 };

/* What a GPU's 16-bit kernels go through at once; see kernel_problem_rise. */
enum { KERNEL_RISE_KEYS = 64 };
/* Of kernel_long_pattern. */
enum { KERNEL_LONG_TOKENS = 1160 };

typedef struct kernel_block {
    void *data;
    size_t bytes;
} kernel_block;

typedef struct kernel_memory {
    ra_memory memory;
    kernel_block blocks[KERNEL_BLOCKS_MAX];
    int count;
} kernel_memory;

/** Zeros in host memory; the caller frees them. */
void *kernel_zeros(int64_t bytes);
/** A block with what is at `from`, or zeros. */
void *kernel_take(kernel_memory *memory, const void *from, int64_t bytes);
/** What is at `from` when all is done that the kernel was asked for; the caller frees it. */
void *kernel_read(const ra_kernel *kernel, const kernel_memory *memory, const void *from,
                  int64_t bytes);
void kernel_give_all(kernel_memory *memory);

/** The i-th table, or NULL where this machine lacks it (of the CPU's, portable, 0, is always
   there). Which there are, a program says: kernel_tables_*.c. */
const ra_kernel_ops *kernel_table(int i);
/* Of suites on a GPU: what their table takes that this machine or build has not; NULL: nothing. */
const char *kernel_table_lacks(void);

/** 140 rows of 2 heads of 32, float32, dense, forward and backward; to be changed. */
kernel_case kernel_base_case(void);
/** Inputs alone, which may be changed before the oracle is asked. */
kernel_problem kernel_problem_draw(const kernel_case *c);
void kernel_problem_solve(kernel_problem *problem);
/** Both. */
kernel_problem kernel_problem_make(const kernel_case *c);
/** A list of blocks of 128 tokens: the first of KERNEL_LONG_TOKENS sees all, the others themselves.
 */
ra_pattern_config kernel_long_pattern(void);
/** Make scores rise from each block of KERNEL_RISE_KEYS keys to the next, of five at most: in base
   2 by 3, 9, 5 and 23, and a little more or less in each row. The scale becomes ln 2. */
void kernel_problem_rise(kernel_problem *problem);
/** Multiply queries and keys by 2^qk, values by 2^v and output gradients by 2^dout, and the scale
   so that scores stay as they are. */
void kernel_problem_shift(kernel_problem *problem, int qk, int v, int dout);
void kernel_problem_free(kernel_problem *problem);

/** Forward and, where the case has a dout, delta, backward, add and store. */
kernel_result kernel_run(const ra_kernel_ops *ops, const kernel_problem *problem);
void kernel_result_free(kernel_result *result);

/** Within the bounds of the documentation; `what` is for the message. */
void kernel_check(const ra_kernel_ops *ops, const kernel_problem *problem,
                  const kernel_result *result, const char *what);
/** kernel_run and kernel_check; and again, of several steps with state for all rows, of a GPU's
    table by its other way backward, and in 16 bits forward only, as if no gradients were wanted. */
void kernel_check_table(const ra_kernel_ops *ops, kernel_problem *problem, const char *what);
/** Every table of this machine on one problem, or one case. */
void kernel_check_problem(kernel_problem *problem, const char *what);
void kernel_check_case(const kernel_case *c, const char *what);

#endif
