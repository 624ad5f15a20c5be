#include "sparse/standard_kept.h"

#include "internal.h"

#include <math.h>
#include <string.h>

static int64_t pair_count(int32_t groups, int32_t steps, int32_t parts)
{
    return (int64_t)groups * steps * parts;
}

size_t ra_standard_pass_bytes(const ra_kernel_pass *pass)
{
    return sizeof(ra_standard_pass) +
           sizeof(ra_standard_kept) * (size_t)pair_count(pass->groups, pass->steps, pass->parts);
}

void ra_standard_pass_init(ra_standard_pass *kept, const ra_kernel_pass *pass)
{
    memset(kept, 0, ra_standard_pass_bytes(pass));
    kept->groups = pass->groups;
    kept->steps = pass->steps;
    kept->parts = pass->parts;
    kept->owner = pass->owner;
}

bool ra_standard_pass_owns(const ra_kernel_pass *pass, const ra_standard_pass *kept)
{
    return kept == NULL || pass->owner == 0 || pass->owner == kept->owner;
}

ra_status ra_standard_pass_check(const ra_kernel *kernel, const ra_kernel_pass *pass,
                                 const ra_standard_pass *kept)
{
    if (ra_standard_pass_owns(pass, kept))
        return RA_OK;
    ra_log(RA_LOG_ERROR, "kernel %s: a backward pass after the forward pass of another ring",
           kernel->ops->name);
    return RA_ERR_INVALID;
}

ra_standard_kept *ra_standard_pass_pair(ra_standard_pass *kept, ra_kernel_pair pair, int32_t part)
{
    if (kept == NULL)
        return NULL;
    RA_ASSERT(pair.group >= 0 && pair.group < kept->groups && pair.step >= 0 &&
              pair.step < kept->steps && part >= 0 && part < kept->parts);
    return &kept->pairs[((int64_t)pair.group * kept->steps + pair.step) * kept->parts + part];
}

ra_status ra_standard_take(ra_kernel *kernel, const ra_kernel_shape *shape, int64_t queries,
                           int64_t keys, ra_block *block)
{
    int64_t bytes = sizeof(float);
    if (__builtin_mul_overflow(bytes, shape->batch * shape->q_heads, &bytes) ||
        __builtin_mul_overflow(bytes, queries, &bytes) ||
        __builtin_mul_overflow(bytes, keys, &bytes))
        bytes = INT64_MAX; /* the pool refuses that, and says so */
    return ra_pool_alloc(kernel->pool, RA_MEM_SCORES, (size_t)bytes, kernel->stream, block);
}

size_t ra_standard_step_bytes(const ra_kernel *kernel, const ra_kernel_shape *shape,
                              int64_t queries, int64_t keys)
{
    double const floats = (double)shape->batch * shape->q_heads * (double)queries * (double)keys;
    double const bytes = fmin(floats * sizeof(float), 0x1p58);
    return 2 * ra_pool_round(kernel->pool, (size_t)bytes);
}

void ra_standard_free_pair(ra_kernel *kernel, ra_standard_kept *pair)
{
    ra_pool_free(kernel->pool, kernel->stream, &pair->scores);
    ra_pool_free(kernel->pool, kernel->stream, &pair->weights);
    ra_pool_free(kernel->pool, kernel->stream, &pair->dscores);
    ra_pool_free(kernel->pool, kernel->stream, &pair->dweights);
}

void ra_standard_pass_free_pairs(ra_kernel *kernel, ra_standard_pass *kept)
{
    for (int64_t i = 0; i < pair_count(kept->groups, kept->steps, kept->parts); ++i)
        ra_standard_free_pair(kernel, &kept->pairs[i]);
}
