/*
 * Linear attention: from segments' own sums to what each of them sees; bound by memory. Each thread
 * has some floats of a state, and goes through the segments with them: every float is summed in the
 * order of the segments, whatever the number of threads.
 */
#include "sparse/cpu/cpu_internal.h"

/* Floats of a state with which a thread goes through a lane's segments: whole cache lines, and sums
   that stay in the cache. */
enum { PART_FLOATS = 64 };

typedef struct lanes {
    size_t count, floats; /* (batch, kv head) pairs, each with a state */
    size_t parts;         /* of a state */
    int32_t segments;
} lanes;

/* Some floats of one lane's states. */
typedef struct part {
    size_t lane, begin, count;
} part;

static lanes lanes_of(const ra_linear_pass *pass)
{
    size_t const floats = (size_t)ra_linear_state_floats(pass->shape.dim);
    return (lanes){.count = (size_t)(pass->shape.batch * pass->shape.kv_heads),
                   .floats = floats,
                   .parts = (floats + PART_FLOATS - 1) / PART_FLOATS,
                   .segments = pass->segments};
}

static part part_of(const lanes *l, size_t index)
{
    size_t const begin = index % l->parts * PART_FLOATS, left = l->floats - begin;
    return (part){index / l->parts, begin, left < PART_FLOATS ? left : PART_FLOATS};
}

static float *segment_at(float *states, const lanes *l, const part *p, int32_t segment)
{
    return states + (p->lane * (size_t)l->segments + (size_t)segment) * l->floats + p->begin;
}

static void begin_sums(const lanes *l, const part *p, const float *from, float *sums)
{
    for (size_t i = 0; i < p->count; ++i)
        sums[i] = from != NULL ? from[p->lane * l->floats + p->begin + i] : 0;
}

static void add_floats(const float *from, size_t count, float *sums)
{
    for (size_t i = 0; i < count; ++i)
        sums[i] += from[i];
}

/* States are read from end to end, which is faster than by parts; a total stays in the cache. */
ra_status ra_linear_total_cpu(ra_kernel *kernel, const ra_linear_pass *pass, const float *states,
                              float *totals_out)
{
    lanes const l = lanes_of(pass);
    (void)kernel;
    RA_OMP(omp parallel for schedule(static) num_threads(kernel->threads))
    for (size_t lane = 0; lane < l.count; ++lane) {
        const float *const from = states + lane * (size_t)l.segments * l.floats;
        float *const to = totals_out + lane * l.floats;
        for (size_t i = 0; i < l.floats; ++i)
            to[i] = 0;
        for (int32_t x = 0; x < l.segments; ++x)
            add_floats(from + l.floats * (size_t)x, l.floats, to);
    }
    return RA_OK;
}

/* Each segment's own state becomes the sum of those before it in scan order, up or down. */
static void replace_by_prefix(float *states, const lanes *l, const part *p, bool up,
                              const float *before)
{
    float sums[PART_FLOATS];
    begin_sums(l, p, before, sums);
    for (int32_t x = 0; x < l->segments; ++x) {
        float *const at = segment_at(states, l, p, up ? x : l->segments - 1 - x);
        for (size_t i = 0; i < p->count; ++i) {
            float const own = at[i];
            at[i] = sums[i];
            sums[i] += own;
        }
    }
}

/* Each segment's own state becomes that of all segments and ranks. */
static void replace_by_total(float *states, const lanes *l, const part *p, const float *before,
                             const float *after)
{
    float sums[PART_FLOATS], rest[PART_FLOATS];
    begin_sums(l, p, before, sums);
    begin_sums(l, p, after, rest);
    for (int32_t x = 0; x < l->segments; ++x)
        add_floats(segment_at(states, l, p, x), p->count, sums);
    add_floats(rest, p->count, sums);
    for (int32_t x = 0; x < l->segments; ++x) {
        float *const at = segment_at(states, l, p, x);
        for (size_t i = 0; i < p->count; ++i)
            at[i] = sums[i];
    }
}

ra_status ra_linear_spread_cpu(ra_kernel *kernel, const ra_linear_pass *pass, ra_linear_reach reach,
                               const float *before, const float *after, float *states)
{
    lanes const l = lanes_of(pass);
    (void)kernel;
    RA_OMP(omp parallel for schedule(static) num_threads(kernel->threads))
    for (size_t index = 0; index < l.count * l.parts; ++index) {
        part const p = part_of(&l, index);
        if (reach == RA_LINEAR_ALL)
            replace_by_total(states, &l, &p, before, after);
        else
            replace_by_prefix(states, &l, &p, reach == RA_LINEAR_BEFORE, before);
    }
    return RA_OK;
}
