/* Private to tensors*.c: what a source holds. */
#ifndef RINGATTN_TENSOR_SOURCE_H
#define RINGATTN_TENSOR_SOURCE_H

#include "tensors.h"

enum { RA_TENSOR_NAMES = RA_TENSOR_DO + 1, RA_TENSOR_MAX_HEADS = 65536 };

struct ra_tensor_source {
    ra_pool *pool;                                /* borrowed */
    int threads;                                  /* that draw, and look for NaN and Inf */
    ra_comm *comm;                                /* told of work; NULL: nobody yet */
    ra_tensor_file *file;                         /* NULL: random */
    const ra_tensor_info *infos[RA_TENSOR_NAMES]; /* of the file; do: NULL without backward */
    ra_block pairs;                               /* of `kind: list` */
};

/** Query heads for q and do, kv heads for k and v. */
static inline int32_t ra_tensor_heads(const ra_config *config, ra_tensor_name name)
{
    return name == RA_TENSOR_K || name == RA_TENSOR_V ? config->kv_heads : config->heads;
}

/* Which results a job has: a rank without rows has no data, but must know what the others have. */
typedef struct ra_result_presence {
    int64_t o, lse, dq, dk, dv; /* 0 or 1 */
} ra_result_presence;

/** Collective: what any rank has, all have. */
RA_CHECKED ra_status ra_result_agree_presence(ra_comm *comm, const ra_result_tensors *results,
                                              ra_result_presence *presence_out);

/* "F32", "F16", "BF16" */
const char *ra_tensor_dtype_text(ra_dtype dtype);

#endif
