/*
 * `--verify`: sampled rows recomputed in float64 from the inputs, pair by pair from the pattern's
 * definition, sharing no code with slices, tile maps or kernels.
 */
#ifndef RINGATTN_TOOL_VERIFY_H
#define RINGATTN_TOOL_VERIFY_H

#include "tensors.h"

/*
 * Relative errors over the sampled rows: root sum of squares of the errors over that of the rows,
 * each row divided by the root sum of squares of its terms; lse: largest absolute error. -1: not
 * checked. INFINITY: a NaN where the inputs give none, or anything but 0 in a row that sees
 * nothing, so compare as !(error <= bound).
 *
 * Where terms cancel (a query that sees one key has dq = 0), the error is divided by the larger of
 * the result's norm and a share of the terms': 1/4 for o and dv, for f32 and with lse_from_run; for
 * dq and dk of 16 bits it is what allows the same absolute error as f32, at least 1/1000.
 */
typedef struct ra_errors {
    double o, lse, dq, dk, dv;
    int64_t query_count, key_count; /* compared rows that see a key, or are seen, over all ranks */
    int64_t skipped_count;          /* sampled rows not compared: NaN or Inf in what they see */
    double score;                   /* softmax: the largest |score| among the rows' highest ones */
    bool lse_from_run; /* dk and dv were recomputed with the run's own lse and o, see ra_verify */
} ra_errors;

/* The score above which float32's bounds grow. */
enum { RA_VERIFY_SCORE = 8 };
/**
 * The bounds of the documentation for a dtype and head_dim. `score`: of the errors. float32 rounds
 * in proportion to the score, and weights, exponentials of scores, have the same relative error:
 * above RA_VERIFY_SCORE float32's bounds grow in proportion, and the others are at least these.
 */
ra_errors ra_error_bounds(ra_dtype dtype, int32_t head_dim, double score);

/**
 * Memory that ra_verify works in: 0.4 MiB and 8 KiB per element of head_dim, with backward up to
 * 0.4 MiB more, with an input file up to 1 MiB more. Needs a checked configuration.
 */
int64_t ra_verify_bytes(const ra_config *config);
/**
 * Collective; every rank returns the same errors. Rows are sampled from job.seed over the whole
 * sequence, first and last rows included, and most of the others where they see something. Their
 * number is bounded by the work they cause: about 1e9 multiply-adds per rank, or what 8 take.
 *
 * o, lse and dq of a row come from inputs alone. dk and dv of a key need lse and delta of every
 * query that sees it: those too come from inputs if that work is affordable, else from the run's
 * own lse and o (errors_out->lse_from_run).
 *
 * `work`: ra_verify_bytes, aligned to 64, borrowed. Returns RA_ERR_IO if a rank cannot read its
 * inputs again; that rank has logged it.
 */
RA_CHECKED ra_status ra_verify(const ra_config *config, const ra_pattern *pattern, ra_comm *comm,
                               const ra_tensor_source *source, const ra_rowset *rows,
                               const ra_result_tensors *results, void *work, ra_errors *errors_out);

#endif
