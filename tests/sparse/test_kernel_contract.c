/* What every kernel table must do, over all that this machine can run. */
#include "sparse/kernel_case.h"
#include "support/random_pattern.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The emulator takes its time; a GPU has tiles to fill. */
#ifdef RA_KERNEL_CASES_DEVICE
enum { RANDOM_CASES = 200, RANDOM_ROWS = 700 };
static const int32_t random_dims[] = {1, 5, 40, 64, 100, 128, 190, 256};
#else
#ifdef RA_KERNEL_CASES_CUDA
enum { RANDOM_CASES = 5, RANDOM_ROWS = 220 };
#else
enum { RANDOM_CASES = 100, RANDOM_ROWS = 220 };
#endif
static const int32_t random_dims[] = {1, 5, 16, 31, 40, 64};
#endif

/* Warpgroups compute dims of 33 to 64 and of 97 to 128, in 16 bits; what else is their table's is
   another's. */
#ifdef RA_KERNEL_CASES_SM90A
static const ra_dtype dtypes[] = {RA_BF16, RA_F16, RA_BF16};
static const int32_t all_dims[] = {33, 34, 40, 63, 64, 97, 112, 128};
#else
static const ra_dtype dtypes[] = {RA_F32, RA_F16, RA_BF16};
static const int32_t all_dims[] = {1, 2, 3, 8, 16, 17, 31, 32, 64, 80, 96, 128, 192, 256};
#endif

/* @return dim, or one of those instead, aligned as it is */
static int32_t served(int32_t dim)
{
#ifdef RA_KERNEL_CASES_SM90A
    return (dim - 1) % 32 + (dim <= 64 ? 33 : 97);
#else
    return dim;
#endif
}

static kernel_case base_case(void)
{
    kernel_case c = kernel_base_case();
    c.dtype = dtypes[0];
    c.shape.dim = served(c.shape.dim);
    return c;
}

Test(kernel, agrees_with_the_oracle_for_every_dim_and_dtype, .timeout = 6000)
{
    for (size_t d = 0; d < sizeof(all_dims) / sizeof(all_dims[0]); ++d) {
        for (int t = 0; t < 3; ++t) {
            kernel_case c = base_case();
            c.shape.dim = all_dims[d];
            c.dtype = dtypes[t];
            c.pattern.causal = (d + (size_t)t) % 2 == 1;
            c.seed = 100 * d + (size_t)t;
            kernel_check_case(&c, c.pattern.causal ? "causal" : "dense");
        }
    }
}

Test(kernel, every_length_around_tiles_and_blocks_is_exact)
{
    static const int64_t lengths[] = {1,   2,   7,   15,  16,  17,  31,  33,
                                      127, 128, 129, 255, 256, 257, 300, 513};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); ++i) {
        kernel_case c = base_case();
        c.shape.n = lengths[i];
        c.shape.heads = c.shape.kv_heads = 1;
        c.shape.dim = served(24);
        c.pattern.causal = i % 2 == 0;
        c.seed = i;
        kernel_check_case(&c, "length");
    }
}

/* Of a dilated segment a head sees every fourth row. */
Test(kernel, rows_that_see_no_key_are_zero_in_every_dim)
{
    static const int64_t segments[] = {150}, rates[] = {4};
    for (int t = 0; t < 6; ++t) {
        kernel_case c = base_case();
        c.shape.n = 300;
        c.shape.dim = served(t < 3 ? 20 : 40);
        c.dtype = dtypes[t % 3];
        c.padded = t % 2 == 1;
        c.pattern.segments = segments;
        c.pattern.rates = rates;
        c.pattern.branch_count = 1;
        kernel_check_case(&c, "rows without a key");
    }
}

Test(kernel, query_heads_share_kv_heads_in_groups)
{
    static const int32_t kv_heads[] = {1, 2, 3, 6};
    for (size_t i = 0; i < 4; ++i) {
        for (int t = 0; t < 3; ++t) {
            kernel_case c = base_case();
            c.shape.batch = 2;
            c.shape.heads = 6;
            c.shape.kv_heads = kv_heads[i];
            c.shape.n = 70;
            c.dtype = dtypes[t];
            c.padded = i % 2 == 1;
            c.pattern.window_left = 40;
            c.threads = 1 + (int)i;
            kernel_check_case(&c, "groups");
        }
    }
}

Test(kernel, keys_in_steps_are_the_same_softmax)
{
    for (int steps = 1; steps <= 4; ++steps) {
        for (int t = 0; t < 6; ++t) {
            kernel_case c = base_case();
            c.steps = steps;
            c.striped = t % 2 == 1;
            c.padded = t % 3 == 1;
            c.dtype = dtypes[t % 3];
            c.pattern.causal = true;
            c.pattern.window_left = t < 3 ? -1 : 37;
            c.pattern.sinks = 3;
            c.shape.scale = 0.3;
            kernel_check_case(&c, "steps");
        }
    }
}

Test(kernel, maps_from_block_masks_are_the_same_attention)
{
    static const int64_t segments[] = {150, 300}, rates[] = {1, 2};
    for (int t = 0; t < 8; ++t) {
        kernel_case c = base_case();
        c.shape.n = 500;
        c.shape.dim = served(24);
        c.steps = 1 + t % 3;
        c.striped = t % 2 == 1;
        c.dense_mask = true;
        c.seed = 4000 + (uint64_t)t;
        c.dtype = dtypes[t % 3];
        c.pattern.causal = t != 2 && t != 5;
        c.pattern.window_left = t == 3 || t == 4 ? 140 : -1;
        c.pattern.sinks = t == 4 ? 5 : 0;
        c.pattern.segments = t >= 5 ? segments : NULL;
        c.pattern.rates = t >= 5 ? rates : NULL;
        c.pattern.branch_count = t >= 5 ? 2 : 0;
        c.pattern.dilated_heads = t == 7 ? RA_HEADS_GROUPED : RA_HEADS_ALL;
        kernel_check_case(&c, "block mask");
    }
}

/* Branches of rates 1, 2 and 3 meet on query rows, in one step and in several. */
Test(kernel, tiles_that_share_rows_are_one_softmax)
{
    static const int64_t segments[] = {50, 100, 200}, rates[] = {1, 2, 3};
    for (int steps = 1; steps <= 3; ++steps) {
        for (int t = 0; t < 3; ++t) {
            kernel_case c = base_case();
            c.shape.n = 260;
            c.shape.heads = 4;
            c.steps = steps;
            c.dtype = dtypes[t];
            c.pattern.segments = segments;
            c.pattern.rates = rates;
            c.pattern.branch_count = 3;
            c.pattern.causal = t == 1;
            kernel_check_case(&c, "dilated");
        }
    }
}

#ifndef RA_KERNEL_CASES_STANDARD /* the table of cuBLAS refuses them */
/* A stride that is an int or a size somewhere is another one. */
Test(kernel, rows_may_lie_backwards)
{
    for (int t = 0; t < 3; ++t) {
        for (int padded = 0; padded < 2; ++padded) {
            for (int steps = 1; steps <= 2; ++steps) {
                kernel_case c = base_case();
                c.dtype = dtypes[t];
                c.pattern.causal = true;
                c.steps = steps;
                c.padded = padded == 1;
                c.backwards = true;
                kernel_check_case(&c, "backwards");
            }
        }
    }
}
#endif

/* More than one chunk, whose partial results each thread keeps in turn. */
Test(kernel, shared_rows_of_several_chunks_do_not_meet)
{
    static const int64_t segments[] = {64, 128}, rates[] = {1, 4};
    for (int steps = 1; steps <= 2; ++steps) {
        kernel_case c = base_case();
        c.shape.n = 2200;
        c.shape.heads = c.shape.kv_heads = 1;
        c.shape.dim = served(8);
        c.steps = steps;
        c.pattern.segments = segments;
        c.pattern.rates = rates;
        c.pattern.branch_count = 2;
        kernel_check_case(&c, "chunks");
    }
}

/* Only rate 3: most rows of a head have no key. Then a list that leaves whole blocks out. */
Test(kernel, rows_without_a_key_are_zero_with_lse_minus_infinity)
{
    static const int64_t segment = 120, rate = 3;
    static const int32_t pairs[][2] = {{0, 0}, {2, 1}};
    for (int kind = 0; kind < 2; ++kind) {
        for (int steps = 1; steps <= 3; ++steps) {
            kernel_case c = base_case();
            c.steps = steps;
            if (kind == 0) {
                c.pattern.segments = &segment;
                c.pattern.rates = &rate;
                c.pattern.branch_count = 1;
            } else {
                c.pattern.blocks_kind = RA_BLOCKS_LIST;
                c.pattern.block_size = 50;
                c.pattern.block_pairs = pairs;
                c.pattern.block_pair_count = 2;
            }
            kernel_problem p = kernel_problem_make(&c);
            for (int i = 0; i < KERNEL_TABLE_COUNT; ++i) {
                const ra_kernel_ops *ops = kernel_table(i);
                if (ops == NULL)
                    continue;
                kernel_result r = kernel_run(ops, &p);
                kernel_check(ops, &p, &r, "empty rows");
                int empty = 0;
                for (int64_t row = 0; row < 2 * c.shape.n; ++row) {
                    if (p.want.lse[row] != -INFINITY)
                        continue;
                    ++empty;
                    cr_assert(r.lse[row] == -INFINITY);
                    int64_t const head = row / c.shape.n, at = row % c.shape.n;
                    for (int32_t d = 0; d < c.shape.dim; ++d) {
                        int64_t const x = (at * 2 + head) * c.shape.dim + d;
                        cr_assert(ra_dtype_load(c.dtype, r.o, x) == 0 &&
                                  ra_dtype_load(c.dtype, r.dq, x) == 0);
                    }
                }
                cr_assert_gt(empty, 80);
                kernel_result_free(&r);
            }
            kernel_problem_free(&p);
        }
    }
}

Test(kernel, small_output_gradients_keep_their_accuracy)
{
    for (int t = 0; t < 3; ++t) {
        for (int causal = 0; causal < 2; ++causal) {
            kernel_case c = base_case();
            c.dtype = dtypes[t];
            c.dout_factor = 1e-4;
            c.pattern.causal = causal == 1;
            c.shape.dim = served(64);
            c.shape.n = 400;
            c.shape.heads = c.shape.kv_heads = 1;
            kernel_check_case(&c, "small dout");
        }
    }
}

/* Output gradients times the scale are subnormal, or infinite; the results are ordinary numbers. */
Test(kernel, gradients_do_not_pass_through_numbers_that_float32_does_not_hold)
{
    static const ra_dtype wide[] = {RA_F32, RA_BF16};
    static const int shifts[][3] = {{46, 0, -50}, {-20, -92, 92}};
    for (int i = 0; i < 4; ++i) {
        const int *const by = shifts[i / 2];
        kernel_case c = base_case();
        c.dtype = wide[i % 2];
        c.pattern.causal = true;
        kernel_problem p = kernel_problem_draw(&c);
        kernel_problem_shift(&p, by[0], by[1], by[2]);
        kernel_problem_solve(&p);
        kernel_check_problem(&p, "shifted exponents");
        kernel_problem_free(&p);
    }
}

/* In 16 bits, where a GPU's kernels rescale sums only if the top rises by more than 8 bits, unless
   gradients are wanted; for every dim that they are compiled for. */
Test(kernel, rows_whose_scores_rise_late_are_one_softmax, .timeout = 6000)
{
    static const int32_t dims[] = {32, 64, 96, 128, 192, 256};
    for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); ++d) {
        for (int t = 1; t < 3; ++t) {
            kernel_case c = base_case();
            c.shape.n = 5 * KERNEL_RISE_KEYS;
            c.shape.heads = c.shape.kv_heads = 1;
            c.shape.dim = served(dims[d]);
            c.dtype = dtypes[t];
            c.dout_factor = 0;
            c.steps = 1 + (int)(d + (size_t)t) % 2;
            c.pattern.causal = true; /* so that some rows end with each block */
            kernel_problem p = kernel_problem_draw(&c);
            kernel_problem_rise(&p);
            kernel_problem_solve(&p);
            kernel_check_problem(&p, "rising scores");
            kernel_problem_free(&p);
        }
    }
}

/* The first block of tokens sees all, the others themselves. Who divides the work by queries has
   one task that is most of it. */
Test(kernel, rows_that_see_all_keys_are_one_softmax, .timeout = 6000)
{
    for (int t = 0; t < 3; ++t) {
        kernel_case c = base_case();
        c.shape.n = KERNEL_LONG_TOKENS;
        c.shape.heads = t == 0 ? 2 : 1;
        c.shape.kv_heads = 1;
        c.shape.dim = served(t == 0 ? 16 : 64 * t);
        c.dtype = dtypes[t];
        c.dout_factor = t == 2 ? 1 : 0;
        c.pattern = kernel_long_pattern();
        kernel_check_case(&c, "long rows");
    }
}

/* Scores in the hundreds: without the running top, exponentials would overflow. */
Test(kernel, large_scores_do_not_overflow)
{
    kernel_case c = kernel_base_case();
    c.shape.scale = 20;
    c.dout_factor = 0;
    c.steps = 2;
    kernel_problem p = kernel_problem_make(&c);
    for (int i = 0; i < KERNEL_TABLE_COUNT; ++i) {
        const ra_kernel_ops *ops = kernel_table(i);
        if (ops == NULL)
            continue;
        kernel_result r = kernel_run(ops, &p);
        int64_t const rows = 2 * c.shape.n;
        /* float32 scores of this size are off by about 1e-4 themselves. */
        cr_assert(oracle_max_error(RA_F32, r.lse, p.want.lse, rows) <= 5e-4);
        cr_assert(oracle_relative_error(RA_F32, r.o, p.want.o, rows * c.shape.dim) <= 5e-4);
        kernel_result_free(&r);
    }
    kernel_problem_free(&p);
}

/* A process each: where cases are many, the oracle takes longer over them than over all else. */
enum { RANDOM_SHARES = RANDOM_CASES < 16 ? RANDOM_CASES : 16 };

ParameterizedTestParameters(kernel, random_patterns_agree_with_the_oracle)
{
    static int shares[RANDOM_SHARES];
    for (int i = 0; i < RANDOM_SHARES; ++i)
        shares[i] = i;
    return cr_make_param_array(int, shares, RANDOM_SHARES);
}

ParameterizedTest(int *share, kernel, random_patterns_agree_with_the_oracle, .timeout = 6000)
{
    uint64_t const seed = 20240607;
    for (uint64_t i = (uint64_t)*share; i < RANDOM_CASES; i += RANDOM_SHARES) {
        test_rng rng = {seed + i};
        int const dim_count = sizeof(random_dims) / sizeof(random_dims[0]);
        kernel_case c = base_case();
        c.seed = seed + i;
        c.shape.n = test_rng_between(&rng, 1, RANDOM_ROWS);
        c.shape.batch = test_rng_between(&rng, 1, 2);
        c.shape.kv_heads = (int32_t)test_rng_between(&rng, 1, 3);
        c.shape.heads = c.shape.kv_heads * (int32_t)test_rng_between(&rng, 1, 2);
        c.shape.dim = served(random_dims[test_rng_between(&rng, 0, dim_count - 1)]);
        c.dtype = dtypes[test_rng_between(&rng, 0, 2)];
        c.threads = (int)test_rng_between(&rng, 1, 5);
        c.steps = (int)test_rng_between(&rng, 1, 4);
        c.striped = test_rng_chance(&rng, 0.4);
        c.padded = test_rng_chance(&rng, 0.5);
        test_pattern pattern;
        test_pattern_draw(&rng, c.shape.n, &pattern);
        c.pattern = pattern.config;
        char text[512];
        test_pattern_print(&pattern.config, text, sizeof(text));
        kernel_problem p = kernel_problem_draw(&c);
        if (c.dtype != RA_F16 && test_rng_chance(&rng, 0.5)) /* all results stay normal numbers */
            kernel_problem_shift(&p, (int)test_rng_between(&rng, -30, 30),
                                 (int)test_rng_between(&rng, -40, 40),
                                 (int)test_rng_between(&rng, -40, 40));
        kernel_problem_solve(&p);
        kernel_check_problem(&p, text);
        kernel_problem_free(&p);
    }
}
