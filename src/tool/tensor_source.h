/* Private to tensors*.c: what a source holds. */
#ifndef RINGATTN_TENSOR_SOURCE_H
#define RINGATTN_TENSOR_SOURCE_H

#include "tensors.h"

struct ra_tensor_source {
    ra_pool *pool;                                /* borrowed */
    int threads;                                  /* that draw, and look for NaN and Inf */
    ra_comm *comm;                                /* told of work; NULL: nobody yet */
    ra_tensor_file *file;                         /* NULL: random */
    const ra_tensor_info *infos[RA_TENSOR_NAMES]; /* of the file; do: NULL without backward */
    ra_block pairs;                               /* of `kind: list` */
};

/* "F32", "F16", "BF16" */
const char *ra_tensor_dtype_text(ra_dtype dtype);

#endif
