#include "ring/ring_tensors.h"

#include "support/oracle.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* Elements of a tensor, by its place in `data`. */
static int64_t count_of(const tensors *t, int i)
{
    return i == 1 || i == 2 || i >= 6 ? t->narrow : t->wide;
}

void tensors_init(tensors *t, const ra_ring_config *c, uint64_t seed, double dout_factor)
{
    *t = (tensors){.wide = c->batch * c->seq * c->heads * c->dim,
                   .narrow = c->batch * c->seq * c->kv_heads * c->dim,
                   .lines = c->batch * c->seq * c->heads};
    for (int i = 0; i < 8; ++i) {
        int64_t const count = count_of(t, i);
        t->data[i] = calloc((size_t)count, ra_dtype_bytes(c->dtype));
        double **const values = i < 4 ? &t->in[i] : &t->want[i - 4];
        *values = calloc((size_t)count, sizeof(double));
        if (i < 4)
            oracle_fill(&seed, c->dtype, i == 3 ? dout_factor : 1, count, t->data[i], t->in[i]);
    }
    t->lse = calloc((size_t)t->lines, sizeof(float));
    t->want[4] = calloc((size_t)t->lines, sizeof(double));
}

void tensors_fini(tensors *t)
{
    for (int i = 0; i < 8; ++i)
        free(t->data[i]);
    for (int i = 0; i < 4; ++i)
        free(t->in[i]);
    for (int i = 0; i < 5; ++i)
        free(t->want[i]);
    free(t->lse);
}

ring_job job_for(tensors *t, const ra_ring_config *c, const ra_pattern_config *pattern, int ranks)
{
    return (ring_job){.config = *c,
                      .pattern = pattern != NULL ? *pattern : ra_pattern_config_dense(),
                      .ranks = ranks,
                      .q = t->data[0],
                      .k = t->data[1],
                      .v = t->data[2],
                      .dout = t->data[3],
                      .out = t->data[4],
                      .dq = t->data[5],
                      .dk = t->data[6],
                      .dv = t->data[7],
                      .lse = t->lse};
}

void expect_wanted(const tensors *t, const ra_ring_config *c, double dq_dk_floor, double dv_floor,
                   const char *about)
{
    static const char *const names[] = {"o", "dq", "dk", "dv"};
    double const floors[] = {0, dq_dk_floor, dq_dk_floor, dv_floor};
    for (int i = 0; i < (c->backward ? 4 : 1); ++i) {
        double const error = oracle_floored_error(c->dtype, t->data[4 + i], t->want[i],
                                                  count_of(t, 4 + i), floors[i]);
        double const bound =
            i == 0 ? oracle_output_bound(c->dtype) : oracle_gradient_bound(c->dtype, c->dim);
        cr_assert(error <= bound, "%s, %s: %s is off by %g, allowed are %g", about,
                  ra_dtype_name(c->dtype), names[i], error, bound);
    }
}

void expect_same(const tensors *a, const tensors *b, ra_dtype dtype)
{
    for (int i = 4; i < 8; ++i) {
        size_t const bytes = (size_t)count_of(a, i) * ra_dtype_bytes(dtype);
        cr_expect_eq(memcmp(a->data[i], b->data[i], bytes), 0, "output %d", i - 4);
    }
}
