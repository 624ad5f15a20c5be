/* The CUDA kernels' own source going backward, run on the CPU: gradients by the contract of all
   kernel tables. */
#include "sparse/cuda/launch_args.h"
#include "sparse/cuda_emulated_ops.h"
#include "sparse/kernel_case.h"
#include "support/captured_log.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static kernel_case base_case(void)
{
    return (kernel_case){.shape = {.batch = 1, .n = 140, .heads = 1, .kv_heads = 1, .dim = 16},
                         .pattern = ra_pattern_config_dense(),
                         .dtype = RA_BF16,
                         .seed = 1,
                         .dout_factor = 1,
                         .threads = 1,
                         .steps = 1};
}

static const ra_dtype dtypes[] = {RA_BF16, RA_F16, RA_F32};

TestSuite(cuda_backward, .timeout = 6000);

/* Branches of rates 1, 2 and 3 meet on rows of dq, dk and dv, and each head has its own of them. */
Test(cuda_backward, branches_of_grouped_heads_add_up)
{
    static const int64_t segments[] = {50, 100, 210}, rates[] = {1, 2, 3};
    kernel_case c = base_case();
    c.shape.n = 260;
    c.shape.heads = 3;
    c.dtype = RA_F16;
    c.pattern.segments = segments;
    c.pattern.rates = rates;
    c.pattern.branch_count = 3;
    c.pattern.causal = true;
    c.pattern.dilated_heads = RA_HEADS_GROUPED;
    kernel_check_case(&c, "dilated");
}

/* More than RA_CUDA_KEY_STRIDE_MAX: blocks have another stride than runs. */
Test(cuda_backward, keys_far_apart_are_found_by_the_mask)
{
    static const int64_t segment = 560, rate = 70;
    for (int t = 0; t < 3; ++t) {
        kernel_case c = base_case();
        c.shape.n = 600;
        c.shape.dim = 8;
        c.dtype = dtypes[t];
        c.pattern.segments = &segment;
        c.pattern.rates = &rate;
        c.pattern.branch_count = 1;
        kernel_check_case(&c, "far apart");
    }
}

/* Blocks of two rows: a block of keys meets more runs than its list holds. */
Test(cuda_backward, long_lists_of_runs_are_gone_through_in_parts)
{
    kernel_case c = base_case();
    c.shape.n = 200;
    c.shape.dim = 4;
    c.dtype = RA_F32;
    c.pattern.blocks_kind = RA_BLOCKS_RANDOM;
    c.pattern.block_size = 2;
    c.pattern.block_density = 0.5;
    kernel_check_case(&c, "long lists");
    c.dtype = RA_F16;
    c.shape.n = 64;
    kernel_check_case(&c, "long lists");
}

/* No query sees the first half of the keys: looking for runs is over for them before it has begun.
 */
Test(cuda_backward, keys_in_front_of_all_runs_have_no_gradient)
{
    static const int32_t pairs[][2] = {{0, 1}, {1, 1}};
    for (int t = 0; t < 3; ++t) {
        kernel_case c = base_case();
        c.shape.n = 256;
        c.dtype = dtypes[t];
        c.pattern.blocks_kind = RA_BLOCKS_LIST;
        c.pattern.block_size = 128;
        c.pattern.block_pairs = pairs;
        c.pattern.block_pair_count = 2;
        kernel_check_case(&c, "keys in front");
    }
}

/* ---- float16 --------------------------------------------------------------------------------- */

/* LSE of causal rows. */
static void causal_lse(ra_dtype dtype, const void *q, const void *k, int n, int dim, double scale,
                       float *lse)
{
    for (int a = 0; a < n; ++a) {
        double sum = 0;
        for (int b = 0; b <= a; ++b) {
            double score = 0;
            for (int d = 0; d < dim; ++d)
                score += (double)ra_dtype_load(dtype, q, a * dim + d) *
                         (double)ra_dtype_load(dtype, k, b * dim + d);
            sum += exp(score * scale);
        }
        lse[a] = (float)log(sum);
    }
}

/* Of one step, float32 as the kernels leave it, with dout times `factor`: what results are of
   `factor` 1, times it. */
static void check_factor(ra_dtype dtype, float factor)
{
    enum { N = 96, DIM = 64, COUNT = N * DIM };
    static uint16_t q[COUNT], k[COUNT], v[COUNT], dout[2][COUNT];
    static float lse[N], delta[2][N], gradients[2][3][COUNT];
    int32_t const rows = ra_cuda_keys_of(dtype, DIM).k_rows, blocks = (N + rows - 1) / rows;
    uint32_t tickets[2];
    ra_run run = {0, 1, N, RA_RUN_NONE_LO, 0};
    uint32_t by_keys = 0;
    ra_key_span span = {0, N - 1};
    ra_tile tiles[2] = {{0, 1, N, 0}, {0, 1, 0, 1}};
    uint32_t chunk_tile[] = {0, 1};
    ra_tile_layer layer = {{0, 1, 1}, chunk_tile};
    uint64_t random = 5;
    oracle_fill(&random, dtype, 1, COUNT, q, NULL);
    oracle_fill(&random, dtype, 1, COUNT, k, NULL);
    oracle_fill(&random, dtype, 1, COUNT, v, NULL);
    oracle_fill(&random, dtype, 1, COUNT, dout[0], NULL);
    causal_lse(dtype, q, k, N, DIM, 0.125, lse);
    memset(gradients, 0, sizeof(gradients));
    for (int i = 0; i < 2; ++i) {
        for (int at = 0; at < COUNT; ++at)
            ra_dtype_store(dtype, dout[1], at, ra_dtype_load(dtype, dout[0], at) * factor);
        for (int a = 0; a < N; ++a)
            delta[i][a] = (float)(a % 7) * 0.1F * (i == 1 ? factor : 1);
        ra_view const grad = ra_view_dense(NULL, RA_F32, N, 1, DIM, 0);
        ra_view views[3] = {grad, grad, grad};
        for (int g = 0; g < 3; ++g)
            views[g].data = gradients[i][g];
        ra_cuda_backward const f = {
            .map = {&layer, chunk_tile, tiles, &run, &by_keys, &span, N, N, 1, 1, false},
            .q = ra_view_dense(q, dtype, N, 1, DIM, 0),
            .k = ra_view_dense(k, dtype, N, 1, DIM, 0),
            .v = ra_view_dense(v, dtype, N, 1, DIM, 0),
            .dout = ra_view_dense(dout[i], dtype, N, 1, DIM, 0),
            .dq = views[0],
            .dk = views[1],
            .dv = views[2],
            .lse = lse,
            .delta = delta[i],
            .lse_batch_stride = N,
            .tickets = tickets,
            .q_tasks = 1,
            .k_tasks = blocks,
            .q_order = ra_cuda_order_of(1, 1, 1, 1),
            .k_order = ra_cuda_order_of(1, 1, 1, blocks),
            .sharing = ra_divisor_of(1),
            .k_rows = N,
            .task_rows = rows,
            .parts = 1,
            .dim = DIM,
            .scale = 0.125F,
            .factor = 0.125F * 1.442695F};
        memset(tickets, 0, sizeof(tickets));
        cuda_emulate_backward(&f, 1, 9, &cuda_emulated_stats);
    }
    for (int g = 0; g < 3; ++g) {
        double off = 0, norm = 0;
        for (int at = 0; at < COUNT; ++at) {
            double const want = gradients[0][g][at], got = (double)gradients[1][g][at] / factor;
            off += (got - want) * (got - want);
            norm += want * want;
        }
        cr_assert(sqrt(off / norm) <= 1e-3, "factor %g: gradient %d is off by %g", (double)factor,
                  g, sqrt(off / norm));
    }
}

/* Powers of two, so that dout loses next to nothing: what becomes of small and large ds is seen. */
Test(cuda_backward, float16_neither_loses_small_gradients_nor_overflows)
{
    check_factor(RA_F16, 0x1p-12F);
    check_factor(RA_F16, 0x1p13F);
}

Test(cuda_backward, small_output_gradients_keep_their_accuracy)
{
    for (int t = 0; t < 3; ++t) {
        kernel_case c = base_case();
        c.dtype = dtypes[t];
        c.dout_factor = 1e-4;
        c.pattern.causal = t == 1;
        c.shape.n = 300;
        kernel_check_case(&c, "small dout");
    }
}

static int32_t tile_rows_of_cuda(ra_dtype dtype, int32_t dim)
{
    return ra_cuda_tile_of(dtype, dim).q_rows;
}

/* Of each head the queries of the first and last chunk, as the CPU has them of the same tiles. */
Test(cuda_backward, ends_only_visits_the_first_and_last_chunk)
{
    ra_kernel_ops const ops = cuda_emulated_ops();
    ra_kernel_ops cpu = *ra_kernel_cpu(RA_ISA_PORTABLE);
    cpu.tile_rows = tile_rows_of_cuda;
    for (int t = 0; t < 3; ++t) {
        kernel_case c = base_case();
        c.dtype = dtypes[t];
        c.pattern.causal = true;
        c.shape.n = 400;
        c.shape.dim = 8;
        c.ends_only = true;
        kernel_problem p = kernel_problem_make(&c);
        kernel_result got = kernel_run(&ops, &p), want = kernel_run(&cpu, &p);
        double const bound = 2 * oracle_gradient_bound(c.dtype, c.shape.dim);
        const void *const pairs[3][2] = {{got.dq, want.dq}, {got.dk, want.dk}, {got.dv, want.dv}};
        for (int g = 0; g < 3; ++g) {
            double exact[400 * 8];
            oracle_load(c.dtype, pairs[g][1], 400 * 8, exact);
            double const error = oracle_relative_error(c.dtype, pairs[g][0], exact, 400 * 8);
            cr_assert(error <= bound, "dtype %d gradient %d is off by %g", c.dtype, g, error);
        }
        kernel_result_free(&got);
        kernel_result_free(&want);
        kernel_problem_free(&p);
    }
}

/* ---- arguments ------------------------------------------------------------------------------- */

static ra_kernel_shape const one_head = {
    .batch = 1, .q_heads = 1, .kv_heads = 1, .dim = 64, .scale = 1};

static ra_view rows_of_64(void *data, ra_dtype dtype)
{
    return (ra_view){
        .data = data, .batch_stride = 64, .row_stride = 64, .head_stride = 64, .dtype = dtype};
}

/* Up to four floats of a row of gradients are read and written at once only where all rows allow
   it. */
Test(cuda_backward, gradients_are_whole_where_all_their_rows_are)
{
    static _Alignas(16) float rows[8];
    uint32_t tickets[2];
    ra_tilemap const map = {.tile_rows = 32};
    ra_view const view = rows_of_64(rows, RA_F32);
    ra_backward_step const good = {
        .map = &map, .shape = one_head, .dq = view, .dk = view, .dv = view};
    cr_assert(ra_cuda_backward_args(&good, NULL, false, tickets).whole);
    for (int i = 0; i < 3; ++i) {
        ra_backward_step bad[5] = {good, good, good, good, good};
#define VIEW(STEP) (i == 0 ? &(STEP).dq : i == 1 ? &(STEP).dk : &(STEP).dv)
        VIEW(bad[0])->data = rows + 2;
        VIEW(bad[1])->batch_stride = 66;
        VIEW(bad[2])->row_stride = 66;
        VIEW(bad[3])->head_stride = 66;
        bad[4].shape.dim = 62;
        for (int j = 0; j < 5; ++j)
            cr_expect_not(ra_cuda_backward_args(&bad[j], NULL, false, tickets).whole, "%d %d", i,
                          j);
    }
}

static void spoil(int how, ra_view *view)
{
    int64_t *const strides[] = {&view->batch_stride, &view->row_stride, &view->head_stride};
    if (how < 3)
        *strides[how] += 4;
    else
        view->data = (char *)view->data + 8;
}

/* Likewise pieces of 16 bytes of 16-bit tensors. */
Test(cuda_backward, tensors_are_aligned_where_all_their_rows_are)
{
    static _Alignas(16) uint16_t rows[16];
    uint32_t tickets[2];
    ra_tilemap const map = {.tile_rows = 128};
    ra_view const view = rows_of_64(rows, RA_BF16);
    for (int tensor = 0; tensor < 5; ++tensor)
        for (int how = 0; how < 4; ++how) {
            ra_view views[5] = {view, view, view, view, view};
            spoil(how, &views[tensor]);
            ra_forward_step const forward = {.map = &map,
                                             .shape = one_head,
                                             .q = views[0],
                                             .k = views[1],
                                             .v = views[2],
                                             .out = views[3],
                                             .dout = views[4]};
            ra_backward_step const backward = {.map = &map,
                                               .shape = one_head,
                                               .q = views[0],
                                               .k = views[1],
                                               .v = views[2],
                                               .dout = views[4]};
            ra_cuda_forward const f = ra_cuda_forward_args(&forward, NULL, NULL, tickets);
            ra_cuda_backward const b = ra_cuda_backward_args(&backward, NULL, false, tickets);
            cr_expect_eq(f.aligned, tensor > 2, "%d %d", tensor, how);
            cr_expect_eq(f.out_aligned, tensor != 3, "%d %d", tensor, how);
            cr_expect_eq(f.dout_aligned, tensor != 4, "%d %d", tensor, how);
            cr_expect_eq(b.aligned, tensor == 3, "%d %d", tensor, how);
        }
}

/* ---- refusals -------------------------------------------------------------------------------- */

Test(cuda_backward, refuses_steps_that_it_cannot_compute)
{
    uint32_t none = 0;
    ra_tilemap const map = {.tile_rows = 32, .by_keys = &none},
                     large = {.tile_rows = 33, .by_keys = &none},
                     endless = {.tile_rows = 32, .k_rows = INT32_MAX, .by_keys = &none},
                     unlisted = {.tile_rows = 32};
    ra_backward_step const good = {
        .map = &map,
        .shape = {.batch = 1, .q_heads = 2, .kv_heads = 1, .dim = 64, .scale = 1},
        .q = {.dtype = RA_F32}};
    ra_backward_step bad[6] = {good, good, good, good, good, good};
    bad[0].shape.dim = 0;
    bad[1].shape.kv_heads = 3;
    bad[2].shape.scale = NAN;
    bad[3].map = &large;
    bad[4].map = &endless;
    bad[5].map = &unlisted;
    captured_log said;
    cr_assert_eq(ra_cuda_backward_check(&good), RA_OK);
    for (int i = 0; i < 6; ++i) {
        captured_log_begin(&said);
        cr_assert_neq(ra_cuda_backward_check(&bad[i]), RA_OK, "%d", i);
        cr_assert_eq(said.count, 1);
    }
}
