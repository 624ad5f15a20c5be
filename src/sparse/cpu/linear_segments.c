/* Linear attention: from segments' own sums to what each of them sees, bound by memory. */
#include "sparse/cpu/cpu_internal.h"

typedef struct lanes {
    size_t count, floats; /* (batch, kv head) pairs, each with a state */
    int32_t segments;
} lanes;

static lanes lanes_of(const ra_linear_pass *pass)
{
    return (lanes){.count = (size_t)(pass->shape.batch * pass->shape.kv_heads),
                   .floats = (size_t)ra_linear_state_floats(pass->shape.dim),
                   .segments = pass->segments};
}

ra_status ra_linear_total_cpu(ra_kernel *kernel, const ra_linear_pass *pass, const float *states,
                              float *totals_out)
{
    lanes const l = lanes_of(pass);
    (void)kernel;
    for (size_t lane = 0; lane < l.count; ++lane) {
        const float *const from = states + lane * (size_t)l.segments * l.floats;
        float *const to = totals_out + lane * l.floats;
        for (size_t i = 0; i < l.floats; ++i)
            to[i] = 0;
        for (int32_t x = 0; x < l.segments; ++x)
            for (size_t i = 0; i < l.floats; ++i)
                to[i] += from[l.floats * (size_t)x + i];
    }
    return RA_OK;
}

/* Each segment's own state becomes the sum of what comes before it on the way, up or down. */
static void replace_by_prefix(float *lane, const lanes *l, bool up, const float *before)
{
    for (size_t i = 0; i < l->floats; ++i) {
        float sum = before != NULL ? before[i] : 0;
        for (int32_t x = 0; x < l->segments; ++x) {
            float *const at = lane + l->floats * (size_t)(up ? x : l->segments - 1 - x) + i;
            float const own = *at;
            *at = sum;
            sum += own;
        }
    }
}

/* Each segment's own state becomes that of all segments and ranks. */
static void replace_by_total(float *lane, const lanes *l, const float *before, const float *after)
{
    for (size_t i = 0; i < l->floats; ++i) {
        float sum = before != NULL ? before[i] : 0;
        for (int32_t x = 0; x < l->segments; ++x)
            sum += lane[l->floats * (size_t)x + i];
        sum += after != NULL ? after[i] : 0;
        for (int32_t x = 0; x < l->segments; ++x)
            lane[l->floats * (size_t)x + i] = sum;
    }
}

ra_status ra_linear_spread_cpu(ra_kernel *kernel, const ra_linear_pass *pass, ra_linear_reach reach,
                               const float *before, const float *after, float *states)
{
    lanes const l = lanes_of(pass);
    (void)kernel;
    for (size_t lane = 0; lane < l.count; ++lane) {
        float *const at = states + lane * (size_t)l.segments * l.floats;
        const float *const from = before != NULL ? before + lane * l.floats : NULL;
        if (reach == RA_LINEAR_ALL)
            replace_by_total(at, &l, from, after != NULL ? after + lane * l.floats : NULL);
        else
            replace_by_prefix(at, &l, reach == RA_LINEAR_BEFORE, from);
    }
    return RA_OK;
}
