/*
 * `--verify`: sampled rows recomputed in float64 from the inputs, pair by pair from the pattern's
 * definition, sharing no code with slices, tile maps or kernels.
 */
#ifndef RINGATTN_TOOL_VERIFY_H
#define RINGATTN_TOOL_VERIFY_H

#include "tensors.h"

/* Relative Frobenius errors over the sampled rows; lse: largest absolute error. -1: not checked. */
typedef struct ra_errors {
    double o, lse, dq, dk, dv;
} ra_errors;

/** The bounds of the documentation for a dtype and head_dim. */
ra_errors ra_error_bounds(ra_dtype dtype, int32_t head_dim);

/**
 * Collective; every rank returns the same errors. Rows are sampled from job.seed over the whole
 * sequence, first and last rows included, their number bounded by the work they cause.
 */
RA_CHECKED ra_status ra_verify(const ra_config *config, const ra_pattern *pattern, ra_comm *comm,
                               const ra_tensor_source *source, const ra_rowset *rows,
                               const ra_result_tensors *results, ra_errors *errors_out);

#endif
