/*
 * Private to the kernels' check (kernel_check.c, check_linear.c): a small problem, and a kernel
 * that computes it. Its tensors lie in the kernel's own memory, wherever that is; the host has a
 * mirror of them.
 */
#ifndef RINGATTN_CHECK_SIDE_H
#define RINGATTN_CHECK_SIDE_H

#include "ringattn/kernel_check.h"

enum { CHECK_STEPS_MAX = 2 };

/* In memory order: inputs first; those up to o have the job's dtype. */
typedef enum ra_check_tensor {
    CHECK_Q,
    CHECK_K,
    CHECK_V,
    CHECK_DOUT,
    CHECK_OUT,
    CHECK_LSE,
    CHECK_DELTA,
    CHECK_ACC,
    CHECK_TOP,
    CHECK_SUM,
    CHECK_DQ,
    CHECK_DK,
    CHECK_DV,
    CHECK_TENSORS
} ra_check_tensor;

typedef struct ra_check_problem {
    int64_t rows;
    int32_t chunk_rows; /* at most, and fewer than rows: then there are several chunks */
    int32_t heads, kv_heads, dim;
    ra_dtype dtype; /* whose values the inputs have */
    bool backward;
    const ra_pattern *pattern; /* softmax attention's, else NULL */
    ra_linear_kind linear;
    ra_linear_method method;
} ra_check_problem;

/* A kernel's memory, and the ledgers that count it. Maps lie in host memory, as anywhere. */
typedef struct ra_check_place {
    ra_memory memory;
    ra_ledger *ledger;
    ra_pool *pool, *host_pool; /* the same if the host reaches the kernel's memory */
    ra_kernel kernel;
} ra_check_place;

/* One kernel at work on a problem. */
typedef struct ra_check_side {
    const ra_check_problem *p;
    ra_dtype dtype; /* of inputs and o */
    ra_check_place *where;
    ra_kernel *kernel;
    ra_rowset queries, keys[CHECK_STEPS_MAX];
    ra_tilemap maps[CHECK_STEPS_MAX];
    int steps;
    ra_block chunks; /* several steps: those of each chunk, where the table takes them */
    int64_t state_rows;
    ra_block block, mirror;    /* mirror: in host memory, if the host does not reach the block */
    size_t input_bytes;        /* of the block: those are in front */
    char *data[CHECK_TENSORS]; /* where the kernel has them, */
    char *seen[CHECK_TENSORS]; /* and where the host has them */
} ra_check_side;

/** The caller frees it, whatever is returned. */
RA_CHECKED ra_status ra_check_place_make(const ra_kernel_ops *ops, const ra_kernel_use *use,
                                         ra_check_place *where);
void ra_check_place_free(ra_check_place *where);

/**
 * Fill in inputs, compute the passes; the caller always frees it. Linear: steps are segments.
 *
 * @param like  a side of the same problem, float32 and in one step, whose inputs this one takes;
 *              NULL: they are drawn
 */
RA_CHECKED ra_status ra_check_side_run(const ra_check_problem *p, ra_check_place *where,
                                       ra_dtype dtype, int steps, const ra_check_side *like,
                                       ra_check_side *s);
void ra_check_side_free(ra_check_side *s);

int64_t ra_check_elements(const ra_check_problem *p, ra_check_tensor t);
/** Of the tensor's elements: the side's, or float32 for sums. */
ra_dtype ra_check_dtype(const ra_check_side *s, ra_check_tensor t);
/** Rows of a tensor from `row` on, where the kernel has them. */
ra_view ra_check_view(const ra_check_side *s, ra_check_tensor t, int64_t row);

/** The passes of linear attention (check_linear.c), on tensors that exist. */
RA_CHECKED ra_status ra_check_linear_run(ra_check_side *s);

#endif
