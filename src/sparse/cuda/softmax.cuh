/*
 * The table `standard` between its matrix products: a warp per row of a matrix, bound by memory.
 * Includers bring the primitives first: lanes.cuh on a GPU, an emulation of it in tests.
 */
#ifndef RINGATTN_CUDA_SOFTMAX_CUH
#define RINGATTN_CUDA_SOFTMAX_CUH

#include "sparse/cuda/heads.cuh"
#include "sparse/cuda/softmax_args.h"
#include "sparse/run_band.h"

#include <math.h>

/* exp(score - base); 0 if the pair is not live, whatever base is. */
LANE_CODE float weight_of(float score, float base)
{
    return score == -INFINITY ? 0.0f : exp2_fast((score - base) * 1.44269504f);
}

/* If nothing is live, any finite base will do: -Inf - -Inf must not become NaN. */
LANE_CODE float base_of(float top)
{
    return top == -INFINITY ? 0.0f : top;
}

LANE_CODE int64_t warps_begin()
{
    return block_index() * (thread_count() / 32) + warp_index();
}

LANE_CODE int64_t warps_count()
{
    return block_count() * (thread_count() / 32);
}

/* ---- multiplicities -------------------------------------------------------------------------- */

/* Keys within a run are distinct; the next run may have the same keys. */
LANE_CODE void count_run(const ra_run &run, int32_t q_count, int32_t a, float *counts)
{
    ra_run_band const band = ra_run_band_of(&run, q_count);
    ra_run_keys const seen = ra_run_band_seen(band, a, a + 1, 0, run.k_count);
    float *const at = counts + run.k_begin;
    for (int64_t b = seen.begin + lane_index(); b < seen.end; b += 32)
        at[b * run.k_stride] += 1;
    warp_barrier(); /* the next run may add to what other lanes have written */
}

/* Add to counts how often the map lets a row of a (global) head see each key. */
LANE_CODE void count_pairs(const ra_cuda_map &map, int32_t head, int64_t row, float *counts)
{
    int32_t const chunk = (int32_t)row / map.chunk_rows;
    for (int32_t i = 0; i < map.layer_count; ++i) {
        if (!layer_has(map.layers[i], head))
            continue;
        const uint32_t *const tiles = map.chunk_tile + (int64_t)i * (map.chunk_count + 1) + chunk;
        for (uint32_t t = tiles[0]; t < tiles[1]; ++t) {
            ra_tile const tile = map.tiles[t];
            int32_t const off = (int32_t)row - tile.q_begin, a = off / tile.q_stride;
            if (off < 0 || off != a * tile.q_stride || a >= tile.q_count)
                continue;
            uint32_t const end = map.tiles[t + 1].run_begin;
            for (uint32_t r = tile.run_begin; r < end; ++r)
                count_run(map.runs[r], tile.q_count, a, counts);
        }
    }
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Mask the scores of a row by the counts that its weights hold; the largest score, NaN excluded. */
LANE_CODE float mask_row(float *scores, const float *counts, int64_t keys)
{
    float top = -INFINITY;
    for (int64_t k = lane_index(); k < keys; k += 32) {
        float const count = counts[k];
        float score = count == 0 ? -INFINITY : scores[k];
        if (count > 1)
            score += logf(count);
        scores[k] = score;
        top = fmaxf(top, score);
    }
    return warp_max(top);
}

LANE_CODE float sum_weights(const float *scores, int64_t keys, float base)
{
    float sum = 0;
    for (int64_t k = lane_index(); k < keys; k += 32)
        sum += weight_of(scores[k], base);
    return warp_sum(sum);
}

/* A weight of 0 stays, whatever the factor. */
LANE_CODE void write_weights(const float *scores, float *weights, int64_t keys, float base,
                             float factor)
{
    for (int64_t k = lane_index(); k < keys; k += 32) {
        float const weight = weight_of(scores[k], base);
        weights[k] = weight != 0 ? weight * factor : 0.0f;
    }
}

/* Fold a step's keys into the state of a row: the sums so far are rescaled to the new top. */
LANE_CODE float carry_state(const ra_cuda_softmax &f, int64_t at, float own, const float *scores)
{
    float const before = f.first ? -INFINITY : f.top[at], sum_before = f.first ? 0.0f : f.sum[at];
    float const top = fmaxf(own, before), base = base_of(top);
    float const factor = before == top ? 1.0f : weight_of(before, base);
    float const sum = sum_weights(scores, f.keys, base);
    float *const acc = f.acc + at * f.dim;
    for (int32_t d = lane_index(); d < f.dim; d += 32)
        acc[d] = f.first ? 0.0f : acc[d] * factor;
    warp_barrier(); /* all lanes have read top and sum */
    if (lane_index() == 0) {
        f.top[at] = top;
        f.sum[at] = sum_before * factor + sum;
    }
    return base;
}

LANE_CODE void softmax_row(const ra_cuda_softmax &f, const ra_cuda_line &line)
{
    int64_t const at = line.lane * f.map.q_rows + line.row;
    float *const scores = f.scores + at * f.keys, *const weights = f.weights + at * f.keys;
    for (int64_t k = lane_index(); k < f.keys; k += 32)
        weights[k] = 0;
    warp_barrier(); /* counting begins at 0 everywhere */
    count_pairs(f.map, f.q_head_begin + line.head, line.row, weights);
    float const own = mask_row(scores, weights, f.keys);
    if (f.acc != NULL) {
        write_weights(scores, weights, f.keys, carry_state(f, at, own, scores), 1.0f);
        return;
    }
    float const base = base_of(own), sum = sum_weights(scores, f.keys, base);
    write_weights(scores, weights, f.keys, base, sum == 0 ? 0.0f : 1.0f / sum);
    if (f.lse != NULL && lane_index() == 0)
        f.lse[line.batch * f.lse_batch_stride + line.head * (int64_t)f.map.q_rows + line.row] =
            sum == 0 ? -INFINITY : own + logf(sum);
}

LANE_CODE void softmax_all(const ra_cuda_softmax &f)
{
    for (int64_t i = warps_begin(); i < f.lines; i += warps_count())
        softmax_row(f, ra_cuda_line_of(&f.span, f.q_heads, i));
}

/* ---- backward -------------------------------------------------------------------------------- */

LANE_CODE void softgrad_row(const ra_cuda_softgrad &f, const ra_cuda_line &line)
{
    int64_t const at = line.lane * f.span.rows + line.row;
    int64_t const row = line.batch * f.lse_batch_stride + line.head * f.span.rows + line.row;
    float const base = base_of(f.lse[row]), delta = f.delta[row];
    const float *const scores = f.scores + at * f.stride, *const dweights =
                                                              f.dweights + at * f.keys;
    float *const weights = f.weights + at * f.stride, *const dscores = f.dscores + at * f.keys;
    for (int64_t k = lane_index(); k < f.keys; k += 32) {
        float const weight = f.makes_weights ? weight_of(scores[k], base) : weights[k];
        if (f.makes_weights)
            weights[k] = weight;
        dscores[k] = weight != 0 ? weight * (dweights[k] - delta) : 0.0f;
    }
}

LANE_CODE void softgrad_all(const ra_cuda_softgrad &f)
{
    for (int64_t i = warps_begin(); i < f.lines; i += warps_count())
        softgrad_row(f, ra_cuda_line_of(&f.span, f.q_heads, i));
}

/* ---- rows ------------------------------------------------------------------------------------ */

template <class Element> LANE_CODE void outputs_row(const ra_cuda_outputs &f, int64_t i, int64_t x)
{
    int32_t const head = f.head_begin + f.head_step * (int32_t)i;
    int64_t const row = f.row_begin + x, at = head * f.q_rows + row;
    const float *const sums = f.sums + i * f.head_floats + x * f.dim;
    int64_t const out = ra_view_at(&f.out, f.batch, row, head);
    int64_t const dout = ra_view_at(&f.dout, f.batch, row, head);
    float const sum = f.sum != NULL ? f.sum[at] : 1.0f;
    float const factor = sum == 0 ? 0.0f : 1.0f / sum;
    float delta = 0;
    for (int32_t d = lane_index(); d < f.dim; d += 32) {
        float const value = sum == 0 ? 0.0f : sums[d] * factor;
        Element::store((char *)f.out.data, out + d, value);
        if (f.delta != NULL)
            delta = fmaf(value, Element::load((const char *)f.dout.data, dout + d), delta);
    }
    delta = warp_sum(delta);
    if (lane_index() != 0)
        return;
    if (f.delta != NULL)
        f.delta[at] = delta;
    if (f.lse != NULL && f.sum != NULL)
        f.lse[at] = sum == 0 ? -INFINITY : f.top[at] + logf(sum);
}

template <class Element> LANE_CODE void outputs_all(const ra_cuda_outputs &f)
{
    for (int64_t line = warps_begin(); line < f.lines; line += warps_count())
        outputs_row<Element>(f, line / f.rows, line % f.rows);
}

template <class Element> LANE_CODE void widen_all(const ra_cuda_widen &f)
{
    int64_t const step = block_count() * thread_count();
    for (int64_t i = block_index() * thread_count() + thread_index(); i < f.units; i += step) {
        int64_t const line = i / f.row_units, head = line / f.rows, row = line - head * f.rows;
        int32_t const element = (int32_t)(i - line * f.row_units) * f.elements;
        int64_t const from = ra_view_at(&f.from, f.batch, f.row_begin + row,
                                        f.head_begin + f.head_step * (int32_t)head) +
                             element;
        float *const to = f.to + i * f.elements;
        float values[4];
        if (f.elements == 1) {
            *to = Element::load((const char *)f.from.data, from);
            continue;
        }
#pragma unroll
        for (int j = 0; j < 4; ++j)
            values[j] = Element::load((const char *)f.from.data, from + j);
        store_floats((char *)to, values);
    }
}

#endif
