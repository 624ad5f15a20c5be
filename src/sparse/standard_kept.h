/* What the kernel tables `standard` keep from a forward pass until the backward pass is over. */
#ifndef RINGATTN_STANDARD_KEPT_H
#define RINGATTN_STANDARD_KEPT_H

#include "ringattn/kernel.h"

/* What is kept for a pair of shards. S and P belong to its first part; each part has its own
   gradients, which may be made part by part. */
typedef struct ra_standard_kept {
    ra_block scores, weights, dscores, dweights;
    int64_t keys;
    bool is_normal; /* weights are those of the whole softmax */
} ra_standard_kept;

typedef struct ra_standard_pass {
    int32_t groups, steps, parts;
    uint64_t owner;
    ra_standard_kept pairs[]; /* [groups][steps][parts] */
} ra_standard_pass;

/** Bytes of the list for a pass, which the host reads and writes. */
size_t ra_standard_pass_bytes(const ra_kernel_pass *pass);
/** Begin it with nothing kept. */
void ra_standard_pass_init(ra_standard_pass *kept, const ra_kernel_pass *pass);
/** Whether nothing is kept, or what is kept is this pass's to read and to give back. */
bool ra_standard_pass_owns(const ra_kernel_pass *pass, const ra_standard_pass *kept);
/** RA_ERR_INVALID and one line if a backward pass does not own what is kept. */
RA_CHECKED ra_status ra_standard_pass_check(const ra_kernel *kernel, const ra_kernel_pass *pass,
                                            const ra_standard_pass *kept);
/** What is kept for a part of a pair of shards; NULL if `kept` is NULL: the pass keeps nothing. */
ra_standard_kept *ra_standard_pass_pair(ra_standard_pass *kept, ra_kernel_pair pair, int32_t part);
/** Give all matrices back to the kernel's pool. */
void ra_standard_pass_free_pairs(ra_kernel *kernel, ra_standard_pass *kept);

/**
 * One float per query and key, in every lane: category scores of the kernel's pool.
 * @return RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_standard_take(ra_kernel *kernel, const ra_kernel_shape *shape,
                                      int64_t queries, int64_t keys, ra_block *block);
/** As ra_kernel_ops.step_bytes: two of these. */
size_t ra_standard_step_bytes(const ra_kernel *kernel, const ra_kernel_shape *shape,
                              int64_t queries, int64_t keys);
void ra_standard_free_pair(ra_kernel *kernel, ra_standard_kept *pair);

#endif
