/* The CUDA kernels' own source, run on the CPU and held to the contract of all kernel tables. */
#include "sparse/cuda/launch_args.h"
#include "sparse/cuda_emulated_ops.h"
#include "sparse/kernel_case.h"
#include "support/captured_log.h"
#include "support/random_pattern.h"

#include <criterion/criterion.h>
#include <math.h>

static kernel_case base_case(void)
{
    return (kernel_case){.shape = {.batch = 1, .n = 140, .heads = 2, .kv_heads = 2, .dim = 64},
                         .pattern = ra_pattern_config_dense(),
                         .dtype = RA_BF16,
                         .seed = 1,
                         .dout_factor = 1,
                         .threads = 1,
                         .steps = 1};
}

/* ---- the emulator itself: fragments as the PTX ISA has them, element by element ---------------
 */

static uint32_t bf16_pair(float low, float high)
{
    uint16_t halves[2];
    ra_dtype_store(RA_BF16, halves, 0, low);
    ra_dtype_store(RA_BF16, halves, 1, high);
    return halves[0] | (uint32_t)halves[1] << 16;
}

/* "Matrix Fragments for mma.m16n8k16 with floating point type": of lane 4 group + thread, elements
   a0 to a7, b0 to b3 and c0 to c3, two to a register of a and b. Sums of small integers are exact.
 */
Test(cuda_emulated, products_have_the_fragments_of_mma)
{
    static cuda_warp warp;
    float a[16][16], b[16][8], c[16][8];
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) {
            a[i][j] = (float)((5 * i + 3 * j * j + i * j) % 17 - 8);
            b[i][j % 8] = (float)((7 * i + 2 * (j % 8) + i * i * (j % 8)) % 13 - 6);
            c[i][j % 8] = (float)(i * 8 + j % 8);
        }
    for (int lane = 0; lane < 32; ++lane) {
        int const group = lane >> 2, thread = lane & 3;
        for (int i = 0; i < 8; i += 2) {
            int const row = i < 2 || (4 <= i && i < 6) ? group : group + 8;
            int const column = thread * 2 + (i < 4 ? 0 : 8);
            warp.a[lane][i / 2] = bf16_pair(a[row][column], a[row][column + 1]);
        }
        for (int i = 0; i < 4; i += 2) {
            int const row = thread * 2 + (i < 2 ? 0 : 8);
            warp.b[lane][i / 2] = bf16_pair(b[row][group], b[row + 1][group]);
        }
        for (int i = 0; i < 4; ++i)
            warp.c[lane][i] = c[i < 2 ? group : group + 8][thread * 2 + (i & 1)];
    }
    cuda_emulate_warp(&warp, 1);
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i) {
            int const row = (lane >> 2) + (i < 2 ? 0 : 8), column = (lane & 3) * 2 + (i & 1);
            float sum = c[row][column];
            for (int k = 0; k < 16; ++k)
                sum += a[row][k] * b[k][column];
            cr_assert_eq(warp.c[lane][i], sum, "lane %d element %d", lane, i);
        }
}

/* ldmatrix.x4: lanes 8 m to 8 m + 7 give the rows of matrix m; of each, lane 4 r + t gets elements
   2 t and 2 t + 1 of row r, or, transposed, of column r. */
Test(cuda_emulated, matrices_are_read_as_by_ldmatrix)
{
    static cuda_warp warp;
    for (int row = 0; row < 32; ++row)
        for (int e = 0; e < 8; ++e)
            warp.rows[row][e] = (uint16_t)(8 * row + e);
    cuda_emulate_warp(&warp, 2);
    for (int lane = 0; lane < 32; ++lane)
        for (int m = 0; m < 4; ++m) {
            uint16_t(*const matrix)[8] = warp.rows + 8 * m;
            int const r = lane >> 2, t = lane & 3;
            cr_assert_eq(warp.loaded[lane][m],
                         matrix[r][2 * t] | (uint32_t)matrix[r][2 * t + 1] << 16);
            cr_assert_eq(warp.transposed[lane][m],
                         matrix[2 * t][r] | (uint32_t)matrix[2 * t + 1][r] << 16);
        }
}

/* ---- the kernels ------------------------------------------------------------------------------
 */

static const ra_dtype dtypes[] = {RA_BF16, RA_F16, RA_F32};

Test(cuda_emulated, agrees_with_the_oracle_for_every_dim_and_dtype, .timeout = 6000)
{
    /* By turns those that kernels are compiled for, and others that are padded to them. */
    static const int32_t dims[] = {32, 17, 64, 40, 96, 72, 128, 100, 192, 136, 256, 200, 1};
    for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); ++d) {
        for (int t = (int)d % 2; t < 3; t += 2 - (int)d % 2) {
            kernel_case c = base_case();
            c.shape.dim = dims[d];
            c.shape.heads = c.shape.kv_heads = 1;
            c.dtype = dtypes[t];
            c.pattern.causal = (d + (size_t)t) % 3 != 0;
            c.seed = 100 + d;
            kernel_check_case(&c, c.pattern.causal ? "causal" : "dense");
        }
    }
    cr_assert_eq(cuda_emulated_stats.bank_conflicts, 0);
    cr_assert_gt(cuda_emulated_stats.products, 0);
}

/* The state of earlier steps is read back, and gradients add up. Striped steps see keys and queries
   at strides of their own. */
Test(cuda_emulated, keys_in_steps_are_the_same_softmax, .timeout = 6000)
{
    for (int steps = 1; steps <= 3; ++steps) {
        for (int t = steps == 1; t < 3; ++t) {
            kernel_case c = base_case();
            c.steps = steps;
            c.striped = (t + steps) % 2 == 1;
            c.padded = steps % 2 == 1;
            c.shape.dim = t == 0 ? 32 : 80;
            c.dtype = dtypes[t];
            c.pattern.causal = true;
            c.pattern.window_left = t == 0 ? -1 : 37;
            c.pattern.sinks = 3;
            c.shape.scale = 0.3;
            kernel_check_case(&c, "steps");
        }
    }
}

Test(cuda_emulated, random_patterns_agree_with_the_oracle, .timeout = 6000)
{
    uint64_t const seed = 20240607;
    static const int32_t dims[] = {5, 16, 40, 64, 72};
    for (uint64_t i = 0; i < 20; ++i) {
        test_rng rng = {seed + i};
        kernel_case c = base_case();
        c.seed = seed + i;
        c.shape.n = test_rng_between(&rng, 1, 180);
        c.shape.kv_heads = (int32_t)test_rng_between(&rng, 1, 2);
        c.shape.heads = c.shape.kv_heads * (int32_t)test_rng_between(&rng, 1, 2);
        c.shape.dim = dims[test_rng_between(&rng, 0, 4)];
        c.dtype = dtypes[test_rng_between(&rng, 0, 2)];
        c.dout_factor = test_rng_chance(&rng, 0.7) ? 1 : 0;
        c.steps = (int)test_rng_between(&rng, 1, 3);
        c.striped = test_rng_chance(&rng, 0.4);
        c.padded = test_rng_chance(&rng, 0.5);
        test_pattern pattern;
        test_pattern_draw(&rng, c.shape.n, &pattern);
        c.pattern = pattern.config;
        char text[512];
        test_pattern_print(&pattern.config, text, sizeof(text));
        kernel_check_case(&c, text);
    }
}

/* ---- tops of rows in 16 bits ------------------------------------------------------------------
 */

enum { TOPS_ROWS = 5 * KERNEL_RISE_KEYS };

/* What became of a causal problem's tops, over steps of one block of keys each. */
static struct tops_seen {
    const kernel_problem *problem;
    float top[TOPS_ROWS]; /* as the steps so far left it */
    int kept, raised;     /* rows whose highest score rose: below the top's slack, and above it */
} tops;

static double base2_score(const kernel_problem *p, int64_t i, int64_t j)
{
    int32_t const dim = p->c.shape.dim;
    double score = 0;
    for (int32_t d = 0; d < dim; ++d)
        score += p->memory[0][i * dim + d] * p->memory[1][j * dim + d];
    return score; /* the scale is ln 2 */
}

/* Row i after a step over keys [begin, end). */
static void see_top(int64_t i, int64_t begin, int64_t end, double slack, float got)
{
    double const before = (double)tops.top[i];
    double most = before;
    for (int64_t j = begin; j < end && j <= i; ++j)
        most = fmax(most, base2_score(tops.problem, i, j));
    bool const raised = most > before + slack;
    if (fabs(most - before - slack) > 1e-3) /* else rounding decides */
        cr_assert_float_eq((double)got, raised ? most : before, 1e-3, "row %lld", (long long)i);
    tops.raised += raised && before > -INFINITY;
    tops.kept += !raised && most > before;
    tops.top[i] = got;
}

static ra_status watched_forward(ra_kernel *kernel, const ra_forward_step *step)
{
    ra_status const status = cuda_emulated_ops().forward(kernel, step);
    int64_t const begin = step->pair.step * (int64_t)KERNEL_RISE_KEYS;
    double const slack = (double)ra_cuda_forward_args(step, NULL, NULL, NULL).slack;
    for (int64_t i = begin; i < TOPS_ROWS && !step->last; ++i) {
        tops.top[i] = step->first ? -INFINITY : tops.top[i];
        see_top(i, begin, begin + KERNEL_RISE_KEYS, slack, step->state.top[i]);
    }
    return status;
}

/* Lazy rescaling: a top stays until a score passes it by more than the slack, and the sums with it.
   Where delta is wanted, it is the highest score. */
Test(cuda_emulated, tops_rise_only_by_more_than_their_slack)
{
    ra_kernel_ops ops = cuda_emulated_ops();
    ops.forward = watched_forward;
    for (int t = 0; t < 4; ++t) {
        kernel_case c = base_case();
        c.shape.n = TOPS_ROWS;
        c.shape.heads = c.shape.kv_heads = 1;
        c.dtype = dtypes[t % 2];
        c.dout_factor = t / 2;
        c.steps = TOPS_ROWS / KERNEL_RISE_KEYS;
        c.all_rows = true;
        c.pattern.causal = true;
        kernel_problem p = kernel_problem_draw(&c);
        kernel_problem_rise(&p);
        kernel_problem_solve(&p);
        tops = (struct tops_seen){.problem = &p};
        kernel_result r = kernel_run(&ops, &p);
        p.c.dout_factor = 0; /* gradients of such keys are sums that cancel */
        kernel_check(&ops, &p, &r, "tops");
        cr_assert_gt(tops.raised, 100);
        cr_assert(c.dout_factor != 0 ? tops.kept == 0 : tops.kept > 100, "%d kept", tops.kept);
        kernel_result_free(&r);
        kernel_problem_free(&p);
    }
}

/* A step of queries goes beyond those that see the block of keys: what these add to dq is nothing,
   even where Inf times 0 is not. */
Test(cuda_emulated, a_query_of_infinities_harms_the_dq_of_no_other)
{
    enum { ROWS = 200, DIM = 64, ROW = 170 };
    ra_kernel_ops const ops = cuda_emulated_ops();
    kernel_case c = base_case();
    c.shape.n = ROWS;
    c.shape.heads = c.shape.kv_heads = 1;
    c.shape.dim = DIM;
    c.pattern.causal = true;
    c.pattern.window_left = 20; /* queries from 148 on see none of the first 128 keys */
    kernel_problem p = kernel_problem_make(&c);
    for (int d = 0; d < DIM; ++d)
        ra_dtype_store(c.dtype, p.dout, (int64_t)ROW * DIM + d, d % 2 == 0 ? INFINITY : -INFINITY);
    kernel_result r = kernel_run(&ops, &p);
    for (int64_t i = 0; i < ROWS * DIM; ++i)
        cr_assert(i / DIM == ROW || isfinite(ra_dtype_load(c.dtype, r.dq, i)), "row %lld",
                  (long long)(i / DIM));
    kernel_result_free(&r);
    kernel_problem_free(&p);
}

/* Products of a warp whose rows see some of a block: 2 row tiles of 16, 64 keys, 64 dims, twice. */
enum { PRODUCTS = 2 * (2 * 64 / 8 * (64 / 16)) };

static int64_t count_products(int64_t n, int64_t window_left)
{
    kernel_case c = base_case();
    c.pattern.causal = true;
    c.pattern.window_left = window_left;
    c.dout_factor = 0;
    c.shape.n = n;
    c.shape.heads = c.shape.kv_heads = 1;
    int64_t const before = cuda_emulated_stats.products;
    kernel_check_case(&c, "products");
    return cuda_emulated_stats.products - before;
}

/* A tile has four warps of 32 rows. Causal, it ends with a block that the last two see; with a
   window of 193 keys it begins with one that the first two do. Of a tile of one row all warps
   compute blocks without a mask. */
Test(cuda_emulated, warps_compute_nothing_of_keys_that_none_of_their_rows_sees)
{
    cr_assert_eq(count_products(128, -1), (4 + 2) * PRODUCTS);
    cr_assert_eq(count_products(256, -1), (4 + 2 + 4 + 4 + 4 + 2) * PRODUCTS);
    cr_assert_eq(count_products(384, 192), (4 + 2 + 4 + 4 + 4 + 2 + 2 + 4 + 4 + 4 + 2) * PRODUCTS);
    cr_assert_eq(count_products(129, -1), (4 + 2 + 4 + 4 + 1) * PRODUCTS);
}

/* Every task is taken once, and with `single` too, which adds to dq as thread blocks come. */
Test(cuda_emulated, steps_that_yield_agree_with_the_oracle, .timeout = 6000)
{
    ra_kernel_ops const ops = cuda_emulated_ops();
    for (int t = 0; t < 3; ++t) {
        kernel_case c = base_case();
        c.yields = true;
        c.dtype = dtypes[t];
        c.shape.dim = 32;
        c.shape.kv_heads = 1;
        c.steps = 1 + t % 2;
        c.pattern.causal = true;
        kernel_problem problem = kernel_problem_make(&c);
        kernel_check_table(&ops, &problem, "yields");
        kernel_problem_free(&problem);
    }
}

/* Not where they have scratch, a piece each, nor where they would be more than a launch may have.
 */
Test(cuda_emulated, a_launch_yields_where_thread_blocks_may_leave)
{
    static uint32_t tickets[2];
    ra_tilemap map = {.tile_rows = 128, .k_rows = 1, .chunk_count = 3};
    ra_forward_step step = {
        .map = &map,
        .shape = {.batch = 1, .q_heads = 2, .kv_heads = 2, .dim = 64, .scale = 1},
        .first = true,
        .last = true};
    ra_backward_step backward = {.map = &map, .shape = step.shape};
    cr_assert_not(ra_cuda_forward_args(&step, NULL, NULL, tickets).yields);
    cr_assert_not(ra_cuda_backward_args(&backward, NULL, false, tickets).yields);
    step.yields = backward.yields = true;
    cr_assert(ra_cuda_forward_args(&step, NULL, NULL, tickets).yields);
    cr_assert(ra_cuda_backward_args(&backward, NULL, false, tickets).yields);
    step.shape.batch = backward.shape.batch = INT32_MAX / 6; /* two heads of three chunks each */
    cr_assert(ra_cuda_forward_args(&step, NULL, NULL, tickets).yields);
    cr_assert(ra_cuda_backward_args(&backward, NULL, false, tickets).yields);
    step.shape.batch = backward.shape.batch = INT32_MAX / 6 + 1;
    cr_assert_not(ra_cuda_forward_args(&step, NULL, NULL, tickets).yields);
    cr_assert_not(ra_cuda_backward_args(&backward, NULL, false, tickets).yields);
    map.chunk_count = 0; /* dk and dv alone have as many */
    backward.shape.batch = (int64_t)INT32_MAX;
    cr_assert_not(ra_cuda_backward_args(&backward, NULL, false, tickets).yields);
    map.chunk_count = 3;
    map.shared_rows = true;
    step.shape.batch = backward.shape.batch = 1;
    cr_assert_not(ra_cuda_forward_args(&step, NULL, NULL, tickets).yields);
    cr_assert(ra_cuda_backward_args(&backward, NULL, false, tickets).yields);
    step.last = false; /* the state is carried */
    cr_assert(ra_cuda_forward_args(&step, NULL, NULL, tickets).yields);
}

static ra_status check_step(const ra_forward_step *step)
{
    return ra_cuda_step_check(&step->shape, step->map, step->q.dtype);
}

Test(cuda_emulated, refuses_steps_that_it_cannot_compute)
{
    ra_tilemap const map = {.tile_rows = 128}, large = {.tile_rows = 129},
                     endless = {.tile_rows = 128, .k_rows = INT32_MAX},
                     many = {.tile_rows = 128, .chunk_count = 1 << 20},
                     many_keys = {.tile_rows = 128, .k_rows = (1 << 24) - 16},
                     a_task_more = {.tile_rows = 128, .k_rows = 1 << 24};
    ra_forward_step const good = {
        .map = &map,
        .shape = {.batch = 1, .q_heads = 2, .kv_heads = 1, .dim = 64, .scale = 1},
        .q = {.dtype = RA_BF16}};
    enum { BAD = 10 };
    ra_forward_step bad[BAD];
    for (int i = 0; i < BAD; ++i)
        bad[i] = good;
    bad[0].shape.dim = 257;
    bad[1].shape.kv_heads = 3;
    bad[2].shape.scale = 0;
    bad[3].shape.scale = -1;
    bad[4].shape.scale = NAN;
    bad[5].map = &large;
    bad[6].map = &endless;
    bad[7].map = &many;
    bad[8].map = &many_keys;
    bad[9].map = &a_task_more;
    bad[7].shape.batch = bad[8].shape.batch = (1 << 10) + 1;
    bad[9].shape.batch = 1 << 10;
    captured_log said;
    cr_assert_eq(check_step(&good), RA_OK);
    for (int i = 0; i < BAD; ++i) {
        captured_log_begin(&said);
        cr_assert_neq(check_step(&bad[i]), RA_OK, "%d", i);
        cr_assert_eq(said.count, 1);
        bad[i].shape.batch--; /* of the last three so many tasks that their numbers fit */
        cr_assert(i < 7 || check_step(&bad[i]) == RA_OK);
    }
}
