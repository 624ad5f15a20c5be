/*
 * The oracle of linear attention: float64, pair by pair from the definition, without any state.
 * Tensors and errors are those of oracle.h.
 */
#ifndef RINGATTN_TESTS_ORACLE_LINEAR_H
#define RINGATTN_TESTS_ORACLE_LINEAR_H

#include "support/oracle.h"

/** Everything, O(n^2 dim); the scale of the shape plays no part and there is no lse. */
void oracle_linear(const oracle_shape *shape, bool causal, const oracle_inputs *in,
                   const oracle_outputs *out);

/** One query row of o for long sequences, O(n dim). */
void oracle_linear_row(const oracle_shape *shape, bool causal, const oracle_inputs *in,
                       int64_t batch, int32_t head, int64_t row, double *o);

#endif
