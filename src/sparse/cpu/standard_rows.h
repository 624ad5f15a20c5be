/* Private to src/sparse/cpu: blocks of rows of the kernel table `standard`. */
#ifndef RINGATTN_STANDARD_ROWS_H
#define RINGATTN_STANDARD_ROWS_H

#include "sparse/view_at.h"

/* Most queries and keys of a block, which a thread converts and multiplies at a time. */
enum { RA_STANDARD_QUERIES = 256, RA_STANDARD_KEYS = 512 };

/* Rows of one head as float32, in place or in scratch. */
typedef struct ra_operand {
    const float *rows;
    int32_t stride; /* floats from row to row */
    int32_t count, dim;
} ra_operand;

/* `scratch` holds count * dim floats; it is written if the view is not float32, or if its rows are
   too far apart for OpenBLAS, overlap, or run backwards. */
ra_operand ra_standard_operand(const ra_view *view, int64_t batch, int64_t head, int64_t row,
                               int32_t count, int32_t dim, float *scratch);

/* A block of a matrix of queries against keys. */
typedef struct ra_score_block {
    float *data;
    int64_t stride; /* keys of the whole matrix: the distance from query to query */
    int32_t queries, keys;
} ra_score_block;

/* block = factor * queries * keys^T. */
void ra_standard_multiply(const ra_score_block *block, float factor, const ra_operand *queries,
                          const ra_operand *keys);
/*
 * to[query] += factor * sum over keys of block * keys, or the transposed: to[key] += factor * sum
 * over queries. A pair of weight 0 adds nothing, whatever its row holds. `scratch` holds as many
 * rows as are added to; NULL: to_stride is dim.
 */
void ra_standard_fold(const ra_score_block *block, bool transposed, float factor,
                      const ra_operand *rows, float *to, int64_t to_stride, float *scratch);

/* Add to block[q][k] how often the map lets query row + q of a (global) head see key k. */
void ra_standard_count_pairs(const ra_tilemap *map, int32_t head, int64_t row,
                             const ra_score_block *block);

/*
 * Mask one row of a softmax; weights hold multiplicities. Scores become s + ln(multiplicity), or
 * -INFINITY if the pair is not live. Returns the largest score.
 */
float ra_standard_mask_row(float *scores, const float *weights, int64_t keys);
/* weights = exp(scores - top), 0 for scores of -INFINITY; their sum is returned. */
float ra_standard_weigh_row(const float *scores, float *weights, int64_t keys, float top);
/* Multiply weights by a factor that may not be finite; weights of 0 stay 0. */
void ra_standard_scale_row(float *weights, int64_t keys, float factor);
/* dscores = weights * (dweights - delta), 0 for weights of 0. */
void ra_standard_grad_row(const float *weights, const float *dweights, float delta, float *dscores,
                          int64_t keys);

#endif
