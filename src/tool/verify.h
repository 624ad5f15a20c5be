/*
 * `--verify`: sampled rows recomputed in float64 from the inputs, pair by pair from the pattern's
 * definition, sharing no code with slices, tile maps or kernels.
 */
#ifndef RINGATTN_TOOL_VERIFY_H
#define RINGATTN_TOOL_VERIFY_H

#include "tensors.h"

enum { RA_RESULT_COUNT = 5 };
extern const char *const ra_result_names[RA_RESULT_COUNT]; /* "o", "lse", "dq", "dk", "dv" */

/*
 * Relative errors over the sampled rows, which count about alike: root sum of squares of the
 * errors over that of the rows' sizes, both divided by those of the rows' terms; lse: largest
 * absolute error. -1: not checked. INFINITY: a NaN where the inputs give none, or anything but 0 in
 * a row that sees nothing, so compare as !(error <= bound).
 *
 * A row's size is its norm, or more where right arithmetic leaves a larger error: if terms cancel
 * (a query that sees one key has dq = 0), 1/4 of the root sum of squares of the terms that kernels
 * round to 16 bits; and what float32's bound allows in proportion to all terms and, above
 * RA_VERIFY_SCORE (a few weights: below it, too), to the scores. lse's error is divided by as much
 * as float32's bound of such scores passes the dtype's.
 */
typedef struct ra_errors {
    union {
        struct {
            double o, lse, dq, dk, dv;
        };
        double of[RA_RESULT_COUNT];
    };
    int64_t query_count, key_count; /* compared rows that see a key, or are seen, over all ranks */
    int64_t skipped_count;          /* sampled rows not compared: NaN or Inf in what they see */
    int64_t blurred_count;          /* so, too, but for NaN: float32 keeps no digit of them */
    int32_t key_heads;              /* (batch, kv head) of the keys that were sampled */
    int32_t lse_from_run; /* of so many the run's own lse and o were used, see ra_verify */
} ra_errors;

/*
 * The score above which float32's errors grow: it rounds in proportion to scores, once for each of
 * the products that a score is the sum of. So above RA_VERIFY_DIM they grow with the root of
 * head_dim, too, and begin to at a score that is as much lower.
 */
enum { RA_VERIFY_SCORE = 8, RA_VERIFY_DIM = 128 };
/** The bounds of the documentation for a dtype and head_dim. */
ra_errors ra_error_bounds(ra_dtype dtype, int32_t head_dim);

/**
 * Memory that ra_verify works in: 0.4 MiB and 8 KiB per element of head_dim, with backward up to
 * 0.5 MiB more, with an input file up to 1 MiB more. Needs a checked configuration.
 */
int64_t ra_verify_bytes(const ra_config *config);
/**
 * Collective; every rank returns the same errors. Rows are sampled from job.seed over the whole
 * sequence, first and last rows included, and most of the others where they see something. Their
 * number is bounded by the work they cause: about 1e9 multiply-adds per rank, or what 8 take.
 *
 * o, lse and dq of a row come from inputs alone. dk and dv of a key need lse and delta of every
 * query that sees it: those too come from inputs for as many heads as that work allows, for others
 * from the run's own lse and o (errors_out->lse_from_run).
 *
 * `inputs_finite`: neither NaN nor Inf in any rank's inputs, which would excuse them in the run's
 * lse; if they are read now, the inputs have changed, and the errors are INFINITY. `work`:
 * ra_verify_bytes, aligned to 64, borrowed. Returns RA_ERR_IO if a rank cannot read its inputs
 * again; that rank has logged it.
 */
RA_CHECKED ra_status ra_verify(const ra_config *config, const ra_pattern *pattern, ra_comm *comm,
                               const ra_tensor_source *source, bool inputs_finite,
                               const ra_rowset *rows, const ra_result_tensors *results, void *work,
                               ra_errors *errors_out);

#endif
