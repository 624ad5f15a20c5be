/*
 * Random tensors by global index: what an element is depends on its place and the seed alone, so
 * any rank draws any row, and any number of ranks sees the same tensors.
 */
#ifndef RINGATTN_TOOL_RANDOM_H
#define RINGATTN_TOOL_RANDOM_H

#include <stdint.h>

/**
 * values[d] for 0 <= d < dim (at least 1): standard normal, |value| < 6.4, finite.
 *
 * `stream` is the key of a (tensor, batch) from ra_random_stream. About 3 ns per value.
 */
void ra_random_row(uint64_t stream, int64_t row, int32_t head, int32_t dim, float *values);
uint64_t ra_random_stream(uint64_t seed, uint32_t tensor, int64_t batch);

#endif
