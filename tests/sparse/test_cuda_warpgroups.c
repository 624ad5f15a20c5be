/* Kernels by warpgroups, their own source run by the emulator, where they part with the others:
   copies that are not aligned, of strided rows and of short blocks, what warpgroups tell each
   other, and tasks that are cut. */
#include "sparse/cuda_emulated_ops.h"
#include "sparse/kernel_case.h"
#include "support/random_pattern.h"

#include <criterion/criterion.h>
#include <math.h>

TestSuite(cuda_warpgroups, .timeout = 6000);

static const ra_dtype dtypes[] = {RA_BF16, RA_F16};

static kernel_case forward_case(void)
{
    kernel_case c = kernel_base_case();
    c.dtype = RA_BF16;
    c.shape.dim = 64;
    c.dout_factor = 0;
    return c;
}

/* @return the columns of products that warpgroups made of it, counted by warps */
static int64_t check(const kernel_case *c, const char *what)
{
    ra_kernel_ops const ops = cuda_emulated_sm90a_ops();
    kernel_problem problem = kernel_problem_make(c);
    int64_t const before = cuda_emulated_stats.group_columns;
    kernel_check_table(&ops, &problem, what);
    kernel_problem_free(&problem);
    return cuda_emulated_stats.group_columns - before;
}

enum { DIM_CASES = 8 };

/* Every second dim is padded; of these some have rows that are not aligned. */
static kernel_case dim_case(size_t i)
{
    static const int32_t dims[DIM_CASES] = {64, 33, 128, 40, 64, 97, 128, 120};
    kernel_case c = forward_case();
    c.shape.dim = dims[i];
    c.shape.n = 200;
    c.padded = i % 3 == 0;
    c.pattern.causal = i % 4 < 3;
    c.pattern.window_left = i % 4 == 1 ? 90 : -1;
    c.pattern.sinks = i % 4 == 1 ? 5 : 0;
    return c;
}

/* A few heads of up to 300 rows, and any pattern, in up to three steps. */
static kernel_case random_case(uint64_t seed, test_pattern *pattern, char *text, size_t bytes)
{
    static const int32_t dims[] = {40, 64, 100, 128};
    test_rng rng = {seed};
    kernel_case c = forward_case();
    c.seed = seed;
    c.shape.n = test_rng_between(&rng, 1, 300);
    c.shape.kv_heads = (int32_t)test_rng_between(&rng, 1, 2);
    c.shape.heads = c.shape.kv_heads == 2 ? 2 : (int32_t)test_rng_between(&rng, 1, 2);
    c.shape.dim = dims[test_rng_between(&rng, 0, 3)];
    c.dtype = dtypes[test_rng_between(&rng, 0, 1)];
    c.steps = (int)test_rng_between(&rng, 1, 3);
    c.striped = test_rng_chance(&rng, 0.4);
    c.padded = test_rng_chance(&rng, 0.5);
    c.yields = test_rng_chance(&rng, 0.3);
    test_pattern_draw(&rng, c.shape.n, pattern);
    c.pattern = pattern->config;
    test_pattern_print(&pattern->config, text, bytes);
    return c;
}

/* With a backward pass tops have no slack. */
Test(cuda_warpgroups, agree_with_the_oracle_for_every_dim_that_they_have)
{
    for (size_t i = 0; i < DIM_CASES; ++i) {
        kernel_case c = dim_case(i);
        c.dtype = dtypes[i / 2 % 2];
        c.dout_factor = i < 2 ? 1 : 0;
        cr_assert_gt(check(&c, "dims"), 0, "dim %d", c.shape.dim);
    }
}

Test(cuda_warpgroups, other_dims_and_float32_are_not_theirs)
{
    static const int32_t dims[] = {32, 96, 192};
    kernel_case c = forward_case();
    c.shape.n = 70;
    for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); ++d) {
        c.shape.dim = dims[d];
        cr_assert_eq(check(&c, "other dims"), 0, "dim %d", dims[d]);
    }
    c.shape.dim = 64;
    c.dtype = RA_F32;
    cr_assert_eq(check(&c, "float32"), 0);
}

/* State is read back; striped steps see keys and queries at strides of their own. */
Test(cuda_warpgroups, keys_in_steps_are_the_same_softmax)
{
    for (int steps = 1; steps <= 3; ++steps) {
        kernel_case c = forward_case();
        c.shape.dim = steps == 2 ? 128 : 64;
        c.shape.n = 300;
        c.shape.kv_heads = 1;
        c.dtype = dtypes[steps % 2];
        c.steps = steps;
        c.striped = steps > 1;
        c.pattern.causal = true;
        c.pattern.window_left = 120;
        cr_assert_gt(check(&c, "steps"), 0);
    }
}

Test(cuda_warpgroups, random_patterns_agree_with_the_oracle)
{
    uint64_t const seed = 20261126;
    for (uint64_t i = 0; i < 18; ++i) {
        test_pattern pattern;
        char text[512];
        kernel_case const c = random_case(seed + i, &pattern, text, sizeof(text));
        (void)check(&c, text);
    }
}

/* Causal attention over whole tiles, within a window of so many keys. @return how many halves of
   blocks have keys that one of 64 queries sees */
static int64_t halves_of(int64_t n, int64_t window)
{
    int64_t halves = 0;
    for (int64_t first = 0; first < n; first += 64) {
        int64_t const tile = first / 128 * 128;
        int64_t const tile_from = tile - window + 1 > 0 ? tile - window + 1 : 0;
        int64_t const from = first - window + 1 > 0 ? first - window + 1 : 0;
        for (int64_t b = tile_from; b < tile + 128; b += 128)
            halves += first + 63 < b + 64 || from >= b + 64 ? 1 : 2;
    }
    return halves;
}

Test(cuda_warpgroups, halves_of_blocks_that_no_query_sees_are_not_multiplied)
{
    static const int64_t windows[] = {1000, 256, 257, 258, 300, 64, 1};
    for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); ++i) {
        kernel_case c = forward_case();
        c.shape.n = 512;
        c.shape.dim = i % 2 == 0 ? 64 : 128;
        c.dtype = dtypes[i / 2 % 2];
        c.pattern.causal = true;
        c.pattern.window_left = windows[i] - 1;
        /* Four warps, in steps of 16: scores over dims, and values over keys. */
        int64_t const half = 4 * (c.shape.dim / 16 * 64 + 64 / 16 * c.shape.dim);
        cr_expect_eq(check(&c, "halves"),
                     c.shape.batch * c.shape.heads * halves_of(c.shape.n, windows[i]) * half,
                     "window %lld", (long long)windows[i]);
    }
}

/* ---- backward, after a forward pass of the CPU ----------------------------------------------- */

static kernel_case backward_case(void)
{
    kernel_case c = forward_case();
    c.dout_factor = 1;
    return c;
}

/* @return the columns of products that warpgroups made of it, counted by warps */
static int64_t check_backward(const kernel_case *c, const char *what)
{
    ra_kernel_ops ops = cuda_emulated_sm90a_ops();
    kernel_problem problem = kernel_problem_make(c);
    int64_t const before = cuda_emulated_stats.group_columns;
    ops.forward = ra_kernel_cpu(RA_ISA_PORTABLE)->forward;
    kernel_result result = kernel_run(&ops, &problem);
    kernel_check(&ops, &problem, &result, what);
    kernel_result_free(&result);
    kernel_problem_free(&problem);
    return cuda_emulated_stats.group_columns - before;
}

/* The last block of keys is short, and so is a tile's last step of queries. */
Test(cuda_warpgroups, gradients_agree_with_the_oracle_for_every_dim_that_they_have)
{
    for (size_t i = 0; i < DIM_CASES; ++i) {
        kernel_case c = dim_case(i);
        c.dout_factor = 1;
        c.shape.n = i % 2 == 0 ? 200 : 150;
        c.summed = i % 4 == 2;
        cr_assert_gt(check_backward(&c, "gradients"), 0, "dim %d", c.shape.dim);
    }
}

Test(cuda_warpgroups, gradients_of_other_dims_of_float16_and_that_repeat_are_not_theirs)
{
    static const int32_t dims[] = {32, 96, 192};
    kernel_case c = backward_case();
    c.shape.n = 70;
    for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); ++d) {
        c.shape.dim = dims[d];
        cr_assert_eq(check_backward(&c, "other dims"), 0, "dim %d", dims[d]);
    }
    c.shape.dim = 64;
    c.dtype = RA_F16;
    cr_assert_eq(check_backward(&c, "float16"), 0);
    c.dtype = RA_BF16;
    c.deterministic = true;
    cr_assert_eq(check_backward(&c, "repeating"), 0);
}

Test(cuda_warpgroups, gradients_of_random_patterns_agree_with_the_oracle)
{
    uint64_t const seed = 20261127;
    for (uint64_t i = 0; i < 12; ++i) {
        test_pattern pattern;
        char text[512];
        kernel_case c = random_case(seed + i, &pattern, text, sizeof(text));
        c.dtype = RA_BF16;
        c.dout_factor = 1;
        c.summed = i % 2 == 1;
        (void)check_backward(&c, text);
    }
}

/* All scores of a query may be far below zero: then weights of keys that are not there would be
   infinite, were they not masked. */
Test(cuda_warpgroups, gradients_of_low_scores_are_finite_beside_a_short_block)
{
    ra_kernel_ops const tables[] = {cuda_emulated_sm90a_ops(), cuda_emulated_ops()};
    for (int t = 0; t < 2; ++t) {
        kernel_case c = backward_case();
        c.shape.n = 150;
        c.shape.heads = c.shape.kv_heads = 1;
        kernel_problem p = kernel_problem_make(&c);
        for (int64_t i = 0; i < c.shape.batch * c.shape.n * c.shape.dim; ++i) {
            ra_dtype_store(c.dtype, p.q, i, 4);
            ra_dtype_store(c.dtype, p.k, i, -4);
        }
        ra_kernel_ops ops = tables[t];
        ops.forward = ra_kernel_cpu(RA_ISA_PORTABLE)->forward;
        kernel_result r = kernel_run(&ops, &p);
        for (int64_t i = 0; i < c.shape.batch * c.shape.n * c.shape.dim; ++i)
            cr_assert(isfinite(ra_dtype_load(c.dtype, r.dq, i)), "%s, row %lld", ops.name,
                      (long long)(i / c.shape.dim));
        kernel_result_free(&r);
        kernel_problem_free(&p);
    }
}

/* ---- long tasks ------------------------------------------------------------------------------ */

/* The first block of 128 tokens sees all, the others themselves: most of what three thread blocks
   do is that block's task. With heads that share keys, in batches, and with gradients, for which
   tops are as high as the highest score; the last part of a task is short, and its last block of
   keys. One task per thread block, too: those of tasks that are cut have nothing to do. */
Test(cuda_warpgroups, long_tasks_are_cut_and_their_parts_are_one_softmax)
{
    for (int i = 0; i < 4; ++i) {
        kernel_case c = forward_case();
        c.shape.batch = i == 2 ? 2 : 1;
        c.shape.n = KERNEL_LONG_TOKENS;
        c.shape.heads = i == 3 ? 2 : 1;
        c.shape.kv_heads = 1;
        c.shape.dim = i == 3 ? 128 : 50;
        c.dtype = dtypes[i % 2];
        c.dout_factor = i == 1 ? 1 : 0;
        c.yields = i % 2 == 1;
        c.pattern = kernel_long_pattern();
        int64_t const before = cuda_emulated_stats.parts;
        (void)check(&c, "long tasks");
        cr_expect_geq(cuda_emulated_stats.parts - before, 3 * c.shape.batch * c.shape.heads,
                      "case %d", i);
    }
}
