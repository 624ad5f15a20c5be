/* Gradients of 16 bits that a step of the CUDA kernels stores in their dtype; the kernels' own
   source, run on the CPU. */
#include "ringattn/kernel_check.h"
#include "sparse/cuda/launch_args.h"
#include "sparse/cuda_emulated_ops.h"
#include "sparse/kernel_case.h"
#include "support/captured_log.h"
#include "support/random_pattern.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(cuda_stored, .timeout = 6000);

/* A single step that stores gradients rounds the same sums as one that adds them to zeros. */
static void check_stored(const kernel_case *c, const char *what)
{
    ra_kernel_ops const ops = cuda_emulated_ops();
    const oracle_shape *s = &c->shape;
    size_t const row = (size_t)(s->batch * s->n * s->dim) * ra_dtype_bytes(c->dtype);
    kernel_problem p = kernel_problem_make(c);
    kernel_result stored = kernel_run(&ops, &p);
    p.c.summed = true;
    kernel_result summed = kernel_run(&ops, &p);
    size_t const queries = row * (size_t)s->heads, keys = row * (size_t)s->kv_heads;
    cr_expect_eq(memcmp(stored.dq, summed.dq, queries), 0, "%s: dq, dim %d", what, s->dim);
    cr_expect_eq(memcmp(stored.dk, summed.dk, keys), 0, "%s: dk, dim %d", what, s->dim);
    cr_expect_eq(memcmp(stored.dv, summed.dv, keys), 0, "%s: dv, dim %d", what, s->dim);
    kernel_result_free(&stored);
    kernel_result_free(&summed);
    kernel_problem_free(&p);
}

static kernel_case base_case(void)
{
    return (kernel_case){.shape = {.batch = 1, .n = 100, .heads = 2, .kv_heads = 1, .dim = 16},
                         .pattern = ra_pattern_config_dense(),
                         .seed = 1,
                         .dout_factor = 1,
                         .threads = 1,
                         .steps = 1,
                         .deterministic = true};
}

Test(cuda_stored, gradients_are_the_rounded_sums_for_every_dim_and_dtype)
{
    static const int32_t dims[] = {32, 17, 64, 128, 192, 256, 1};
    static const int64_t segment = 100, rate = 3;
    for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); ++d) {
        kernel_case c = base_case();
        c.dtype = d % 2 == 0 ? RA_BF16 : RA_F16;
        c.shape.dim = dims[d];
        c.padded = d % 3 == 1;
        c.pattern.causal = true;
        check_stored(&c, "causal");
        c.dtype = d % 2 == 0 ? RA_F16 : RA_BF16;
        c.shape.kv_heads = 2;
        c.pattern.segments = &segment;
        c.pattern.rates = &rate;
        c.pattern.branch_count = 1;
        check_stored(&c, "dilated");
    }
}

/* Whatever is stored, and what is not; rows without a live pair stay zero. */
Test(cuda_stored, gradients_are_the_rounded_sums_for_random_patterns)
{
    uint64_t const seed = 20261123;
    for (uint64_t i = 0; i < 6; ++i) {
        test_rng rng = {seed + i};
        kernel_case c = base_case();
        test_pattern pattern;
        char text[512];
        c.seed = seed + i;
        c.dtype = test_rng_chance(&rng, 0.5) ? RA_BF16 : RA_F16;
        c.shape.n = test_rng_between(&rng, 1, 100);
        c.shape.kv_heads = (int32_t)test_rng_between(&rng, 1, 2);
        c.shape.heads = c.shape.kv_heads * (int32_t)test_rng_between(&rng, 1, 2);
        c.padded = test_rng_chance(&rng, 0.5);
        c.dense_mask = test_rng_chance(&rng, 0.3);
        c.ends_only = test_rng_chance(&rng, 0.2);
        test_pattern_draw(&rng, c.shape.n, &pattern);
        c.pattern = pattern.config;
        test_pattern_print(&pattern.config, text, sizeof(text));
        check_stored(&c, text);
    }
}

/* dq in the order in which thread blocks come is summed up in float32; branches that meet on rows
   have all gradients so. */
Test(cuda_stored, stores_what_one_task_computes)
{
    ra_kernel_use use = {.dtype = RA_BF16, .dim = 128, .threads = 1};
#define EXPECT(DQ, DKV)                                                                            \
    do {                                                                                           \
        ra_stored_grads const is = ra_cuda_stores_grads(&use);                                     \
        cr_expect(is.dq == (DQ) && is.dkv == (DKV));                                               \
    } while (0)
    EXPECT(false, true);
    use.dim = 129;
    EXPECT(true, true);
    use.dim = 64;
    use.deterministic = true;
    EXPECT(true, true);
    use.shares_rows = true;
    EXPECT(false, true);
    use.shares_keys = true;
    EXPECT(false, false);
    use = (ra_kernel_use){.dtype = RA_F16, .dim = 64, .shares_keys = true, .threads = 1};
    EXPECT(true, false);
    use.linear = RA_LINEAR_CAUSAL;
    EXPECT(false, false);
    use = (ra_kernel_use){.dtype = RA_F32, .dim = 64, .threads = 1};
    EXPECT(false, false);
#undef EXPECT
}

/* A row that two tiles or two layers have would be stored twice. */
Test(cuda_stored, refuses_rows_that_it_cannot_store)
{
    uint32_t none = 0;
    ra_tile_layer layers[] = {{{0, 2, 2}, NULL}, {{1, 2, 2}, NULL}}; /* heads 0 and 2; 1 and 3 */
    ra_tilemap const map = {.tile_rows = 32, .by_keys = &none, .layers = layers, .layer_count = 2},
                     shared = {.tile_rows = 32, .by_keys = &none, .shared_rows = true};
    ra_view const summed = {.dtype = RA_F32}, stored = {.dtype = RA_BF16};
    struct {
        const ra_tilemap *map;
        ra_view dq, dk, dv;
        int32_t q_heads, kv_heads, begin;
        bool refused;
    } const cases[] = {
        {&map, stored, stored, stored, 4, 4, 0, false},
        {&map, stored, stored, stored, 4, 2, 0, true},
        {&map, stored, stored, summed, 4, 2, 0, true},
        {&map, stored, summed, stored, 4, 2, 0, true},
        {&map, stored, summed, summed, 4, 2, 0, false},
        {&map, summed, stored, stored, 2, 1, 3, false}, /* heads 3 and 4, which is in no layer */
        {&shared, stored, summed, summed, 1, 1, 0, true},
        {&shared, summed, stored, stored, 1, 1, 0, false},
        {&map, {.dtype = RA_F16}, summed, summed, 4, 4, 0, true}, /* but elements are bfloat16 */
        {&map, summed, summed, {.dtype = RA_F16}, 4, 4, 0, true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
        ra_backward_step const step = {.map = cases[i].map,
                                       .shape = {.batch = 1,
                                                 .q_heads = cases[i].q_heads,
                                                 .kv_heads = cases[i].kv_heads,
                                                 .q_head_begin = cases[i].begin,
                                                 .dim = 64,
                                                 .scale = 1},
                                       .q = stored,
                                       .dq = cases[i].dq,
                                       .dk = cases[i].dk,
                                       .dv = cases[i].dv};
        captured_log said;
        captured_log_begin(&said);
        ra_status const status = ra_cuda_backward_check(&step);
        ra_log_set_handler(NULL, NULL);
        cr_expect_eq(status, cases[i].refused ? RA_ERR_INVALID : RA_OK, "case %zu", i);
        cr_expect_eq(said.errors, (int)cases[i].refused, "case %zu", i);
    }
}

/* ---- the check at start ---------------------------------------------------------------------- */

static ra_kernel_ops good;

/* Sums are right. */
static ra_status stored_wrongly(ra_kernel *kernel, const ra_backward_step *step)
{
    ra_status const status = good.backward(kernel, step);
    const ra_view *const dk = &step->dk;
    if (dk->dtype != RA_F32)
        ra_dtype_store(dk->dtype, dk->data, 0, 1 + ra_dtype_load(dk->dtype, dk->data, 0));
    return status;
}

Test(cuda_stored, gradients_are_looked_at_before_a_job)
{
    ra_kernel_use const use = {.dtype = RA_BF16, .dim = 32, .backward = true, .threads = 1};
    good = cuda_emulated_ops();
    ra_kernel_ops bad = good;
    bad.backward = stored_wrongly;
    ra_kernel_verdict v;
    cr_assert_eq(ra_kernel_check(&good, ra_kernel_cpu(RA_ISA_PORTABLE), &use, NULL, NULL, &v),
                 RA_OK);
    cr_expect(v.agrees, "%s is off by %g", v.tensor, v.error);
    cr_assert_eq(ra_kernel_check(&bad, ra_kernel_cpu(RA_ISA_PORTABLE), &use, NULL, NULL, &v),
                 RA_OK);
    cr_expect(!v.agrees && strcmp(v.tensor, "dk") == 0);
}
