/* The table that materialises its scores: what it holds when, and what it refuses. */
#include "ringattn/blas.h"
#include "ringattn/kernel.h"
#include "sparse/cpu/standard_rows.h"
#include "sparse/mapped.h"
#include "support/captured_log.h"

#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { ROWS = 300, DIM = 16, HEADS = 3, MATRIX_BYTES = HEADS * ROWS * ROWS * (int)sizeof(float) };

/* A causal job of one step. */
typedef struct fixture {
    mapped m;
    ra_kernel kernel;
    float *data;
    ra_forward_step forward;
    ra_backward_step backward;
} fixture;

static fixture fixture_make(int64_t limit_bytes)
{
    const ra_kernel_ops *const ops = ra_kernel_standard();
    ra_kernel_use const use = {.dim = DIM, .threads = 2};
    ra_pattern_config pattern = ra_pattern_config_dense();
    pattern.causal = true;
    if (ops == NULL)
        cr_skip_test("OpenBLAS is not installed");
    fixture f = {.m = mapped_make(&(mapped_config){.pattern = &pattern,
                                                   .rows = ROWS,
                                                   .heads = HEADS,
                                                   .tile_rows = ops->tile_rows(RA_F32, DIM),
                                                   .limit_bytes = limit_bytes})};
    cr_assert_eq(ra_kernel_init(ops, &use, f.m.pool, &f.kernel), RA_OK);
    int64_t const count = ROWS * HEADS * DIM;
    f.data = calloc((size_t)(8 * count + 2 * ROWS * HEADS), sizeof(float));
    cr_assert_not_null(f.data);
    ra_view view[8];
    for (int i = 0; i < 8; ++i)
        view[i] = ra_view_dense(f.data + i * count, RA_F32, ROWS, HEADS, DIM, 0);
    float *lse = f.data + 8 * count, *delta = lse + ROWS * HEADS;
    ra_kernel_shape const shape = {
        .batch = 1, .q_heads = HEADS, .kv_heads = HEADS, .dim = DIM, .scale = 0.25f};
    f.forward = (ra_forward_step){.shape = shape,
                                  .q = view[0],
                                  .k = view[1],
                                  .v = view[2],
                                  .out = view[4],
                                  .lse = lse,
                                  .dout = view[3],
                                  .delta = delta,
                                  .first = true,
                                  .last = true};
    f.backward = (ra_backward_step){.shape = shape,
                                    .q = view[0],
                                    .k = view[1],
                                    .v = view[2],
                                    .dout = view[3],
                                    .lse = lse,
                                    .delta = delta,
                                    .dq = view[5],
                                    .dk = view[6],
                                    .dv = view[7]};
    return f;
}

static void fixture_free(fixture *f)
{
    free(f->data);
    ra_kernel_fini(&f->kernel);
    mapped_free(&f->m);
}

static const ra_kernel_pass forward_only = {.groups = 1, .steps = 1, .parts = 1};
static const ra_kernel_pass forward_kept = {.keeps = true, .groups = 1, .steps = 1, .parts = 1};
static const ra_kernel_pass backward_pass = {.backward = true, .groups = 1, .steps = 1, .parts = 1};

static ra_status forward(fixture *f, const ra_kernel_pass *pass)
{
    f->forward.map = &f->m.map;
    ra_status status = ra_kernel_begin(&f->kernel, pass);
    if (status == RA_OK)
        status = f->kernel.ops->forward(&f->kernel, &f->forward);
    ra_kernel_end(&f->kernel, pass, status != RA_OK);
    return status;
}

static ra_status backward_of(fixture *f, const ra_kernel_pass *pass)
{
    f->backward.map = &f->m.map;
    ra_status status = ra_kernel_begin(&f->kernel, pass);
    if (status == RA_OK)
        status = f->kernel.ops->backward(&f->kernel, &f->backward);
    ra_kernel_end(&f->kernel, pass, status != RA_OK);
    return status;
}

static ra_status backward(fixture *f)
{
    return backward_of(f, &backward_pass);
}

/* Matrices of scores that are held, and that were held at most; rounding to pages left out. */
static void expect_matrices(const fixture *f, int now, int most)
{
    ra_ledger_snapshot snapshot;
    int64_t const round = (int64_t)ra_pool_round(f->m.pool, MATRIX_BYTES);
    ra_ledger_read(f->m.ledger, &snapshot);
    cr_assert_eq(snapshot.current_bytes[RA_MEM_SCORES], now * round);
    cr_assert_eq(snapshot.peak_bytes[RA_MEM_SCORES], most * round);
}

Test(standard, forward_alone_takes_scores_and_weights_and_gives_them_back)
{
    fixture f = fixture_make(INT64_MAX);
    cr_assert_eq(forward(&f, &forward_only), RA_OK);
    expect_matrices(&f, 0, 2);
    fixture_free(&f);
}

Test(standard, four_matrices_are_held_until_backward_is_over)
{
    fixture f = fixture_make(INT64_MAX);
    for (int again = 0; again < 2; ++again) {
        cr_assert_eq(forward(&f, &forward_kept), RA_OK);
        expect_matrices(&f, 2, again == 0 ? 2 : 4);
        cr_assert_eq(backward(&f), RA_OK);
        expect_matrices(&f, 0, 4);
    }
    fixture_free(&f);
}

Test(standard, a_forward_pass_that_none_followed_is_forgotten)
{
    fixture f = fixture_make(INT64_MAX);
    cr_assert_eq(forward(&f, &forward_kept), RA_OK);
    cr_assert_eq(forward(&f, &forward_kept), RA_OK);
    expect_matrices(&f, 2, 2);
    cr_assert_eq(forward(&f, &forward_only), RA_OK);
    expect_matrices(&f, 0, 2);
    cr_assert_eq(forward(&f, &forward_kept), RA_OK);
    fixture_free(&f); /* the kernel gives back what it kept */
}

Test(standard, a_backward_step_without_its_forward_step_is_refused)
{
    captured_log said;
    fixture f = fixture_make(INT64_MAX);
    captured_log_begin(&said);
    cr_assert_eq(backward(&f), RA_ERR_INVALID);
    cr_assert_eq(forward(&f, &forward_only), RA_OK);
    cr_assert_eq(backward(&f), RA_ERR_INVALID);
    f.forward.shape.dim = 257;
    cr_assert_eq(forward(&f, &forward_only), RA_ERR_INVALID);
    f.forward.shape.dim = 64; /* the workspace was made for 16 */
    cr_assert_eq(forward(&f, &forward_only), RA_ERR_INVALID);
    f.forward.shape.dim = DIM;
    f.forward.shape.q_heads = HEADS + 1;
    cr_assert_eq(forward(&f, &forward_only), RA_ERR_INVALID);
    cr_assert_eq(said.count, 5);
    fixture_free(&f);
}

/* Two rings on one kernel, whose pairs have the same numbers. */
Test(standard, a_backward_pass_after_another_rings_forward_pass_is_refused)
{
    captured_log said;
    fixture f = fixture_make(INT64_MAX);
    ra_kernel_pass forwards[2] = {forward_kept, forward_kept};
    ra_kernel_pass backwards[2] = {backward_pass, backward_pass};
    for (int i = 0; i < 2; ++i)
        forwards[i].owner = backwards[i].owner = (uint64_t)i + 1;
    captured_log_begin(&said);
    cr_assert_eq(forward(&f, &forwards[0]), RA_OK);
    cr_assert_eq(forward(&f, &forwards[1]), RA_OK);
    cr_assert_eq(backward_of(&f, &backwards[0]), RA_ERR_INVALID);
    cr_assert_eq(said.count, 1);
    cr_expect_not_null(strstr(said.line, "of another ring"), "%s", said.line);
    expect_matrices(&f, 2, 2);
    cr_assert_eq(backward_of(&f, &backwards[1]), RA_OK, "its own are kept");
    expect_matrices(&f, 0, 4);
    cr_assert_eq(forward(&f, &forwards[0]), RA_OK);
    cr_assert_eq(backward_of(&f, &backwards[0]), RA_OK);
    cr_assert_eq(forward(&f, &forwards[0]), RA_OK);
    cr_assert_eq(said.count, 1);
    fixture_free(&f); /* whoever owns it, the kernel gives it back */
}

/* Rows of the n-th tensor, q, k, v or dout, that overlap: each begins `stride` floats after the one
   before, in every head alike; or copies of these rows, dense. */
static void fill_rows(ra_view *view, int n, int64_t stride, bool as_copies)
{
    float *const data = view->data;
    for (int64_t i = 0; i < ROWS * stride + DIM && !as_copies; ++i)
        data[i] = sinf((float)(i * (n + 3) + n));
    for (int64_t row = 0; row < ROWS && as_copies; ++row)
        for (int64_t head = 0; head < HEADS; ++head)
            for (int64_t d = 0; d < DIM; ++d)
                data[(row * HEADS + head) * DIM + d] =
                    sinf((float)((row * stride + d) * (n + 3) + n));
    if (!as_copies)
        view->row_stride = stride, view->head_stride = 0;
}

/* Which OpenBLAS does not take, and would say on its own. */
Test(standard, rows_that_overlap_are_those_that_they_are)
{
    static int64_t const strides[] = {0, 1, 7, DIM - 1};
    enum { RESULTS = ROWS * HEADS * DIM };
    for (size_t s = 0; s < sizeof(strides) / sizeof(strides[0]); ++s) {
        fixture f[2];
        for (int as_copies = 0; as_copies < 2; ++as_copies) {
            fixture *const own = &f[as_copies];
            *own = fixture_make(INT64_MAX);
            ra_view *const views[] = {&own->forward.q, &own->forward.k, &own->forward.v,
                                      &own->forward.dout};
            for (int n = 0; n < 4; ++n)
                fill_rows(views[n], n, strides[s], as_copies == 1);
            own->backward.q = own->forward.q, own->backward.k = own->forward.k;
            own->backward.v = own->forward.v, own->backward.dout = own->forward.dout;
            cr_assert_eq(forward(own, &forward_kept), RA_OK);
            cr_assert_eq(backward(own), RA_OK);
        }
        cr_expect_arr_eq(f[0].forward.out.data, f[1].forward.out.data, RESULTS * sizeof(float));
        cr_expect_arr_eq(f[0].forward.lse, f[1].forward.lse, ROWS * HEADS * sizeof(float));
        cr_expect_arr_eq(f[0].backward.dq.data, f[1].backward.dq.data, RESULTS * sizeof(float));
        cr_expect_arr_eq(f[0].backward.dk.data, f[1].backward.dk.data, RESULTS * sizeof(float));
        cr_expect_arr_eq(f[0].backward.dv.data, f[1].backward.dv.data, RESULTS * sizeof(float));
        for (int i = 0; i < 2; ++i)
            fixture_free(&f[i]);
    }
}

Test(standard, gradients_may_lie_backwards)
{
    enum { ROW = HEADS * DIM, MOST = ROWS * ROW };
    static float want[3][MOST];
    float most = 0;
    for (int backwards = 0; backwards < 2; ++backwards) {
        fixture f = fixture_make(INT64_MAX);
        ra_view *const in[] = {&f.forward.q, &f.forward.k, &f.forward.v, &f.forward.dout};
        ra_view *const grads[] = {&f.backward.dq, &f.backward.dk, &f.backward.dv};
        for (int n = 0; n < 4; ++n)
            fill_rows(in[n], n, 5, true);
        for (int n = 0; n < 3 && backwards == 1; ++n) {
            grads[n]->data = (float *)grads[n]->data + (ROWS - 1) * ROW;
            grads[n]->row_stride = -ROW;
        }
        cr_assert_eq(forward(&f, &forward_kept), RA_OK);
        cr_assert_eq(backward(&f), RA_OK);
        for (int n = 0; n < 3; ++n) {
            for (int i = 0; i < MOST; ++i) {
                const float *const data = grads[n]->data;
                float const got = data[i / ROW * grads[n]->row_stride + i % ROW];
                want[n][i] = backwards == 0 ? got : want[n][i];
                most = fmaxf(most, fabsf(got));
                cr_assert(fabsf(got - want[n][i]) <= 1e-5f, "%d: %g, not %g", i, (double)got,
                          (double)want[n][i]);
            }
        }
        fixture_free(&f);
    }
    cr_expect_gt(most, 0.01f, "else it says nothing");
}

/* OpenBLAS itself writes elsewhere, where it has AVX-512. */
Test(standard, sums_may_lie_far_apart)
{
    enum { COUNT = 40, WIDTH = 8 };
    static int64_t const far = 150000000;
    static float weights[COUNT * COUNT], values[COUNT * WIDTH], scratch[COUNT * WIDTH];
    size_t const bytes = COUNT * (size_t)far * sizeof(float);
    float *const to = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (ra_kernel_standard() == NULL || to == MAP_FAILED)
        cr_skip_test("OpenBLAS is not installed, or there is no address space");
    cr_assert(ra_blas_reserve(1, 0));
    for (int i = 0; i < COUNT * COUNT; ++i)
        weights[i] = (float)(i % 7);
    for (int i = 0; i < COUNT * WIDTH; ++i)
        values[i] = (float)(i % 5 - 2);
    ra_score_block const block = {weights, COUNT, COUNT, COUNT};
    ra_operand const rows = {values, WIDTH, COUNT, WIDTH};
    for (int transposed = 0; transposed < 2; ++transposed) {
        for (int i = 0; i < COUNT * WIDTH; ++i)
            to[i / WIDTH * far + i % WIDTH] = 1;
        ra_standard_fold(&block, transposed == 1, 2, &rows, to, far, scratch);
        for (int i = 0; i < COUNT * WIDTH; ++i) {
            float want = 1; /* of small integers, exact */
            for (int x = 0; x < COUNT; ++x)
                want += 2 * weights[transposed ? x * COUNT + i / WIDTH : i / WIDTH * COUNT + x] *
                        values[x * WIDTH + i % WIDTH];
            cr_assert_eq(to[i / WIDTH * far + i % WIDTH], want, "%d", i);
        }
    }
    munmap(to, bytes);
}

Test(standard, no_batch_is_no_work)
{
    fixture f = fixture_make(INT64_MAX);
    f.forward.shape.batch = f.backward.shape.batch = 0;
    cr_expect_eq(forward(&f, &forward_kept), RA_OK);
    cr_expect_eq(backward(&f), RA_OK);
    fixture_free(&f);
}

/* Whichever matrix no longer fits: one line, nothing kept, and the next try may be smaller. */
Test(standard, a_matrix_that_passes_the_limit_fails_its_pass_and_leaves_nothing)
{
    captured_log said;
    for (int fitting = 0; fitting <= 4; ++fitting) {
        fixture probe = fixture_make(INT64_MAX);
        ra_ledger_snapshot before;
        ra_ledger_read(probe.m.ledger, &before);
        int64_t const round = (int64_t)ra_pool_round(probe.m.pool, MATRIX_BYTES);
        fixture_free(&probe);
        fixture f = fixture_make(before.reserved_bytes + 4096 + fitting * round);
        captured_log_begin(&said);
        ra_status status = forward(&f, &forward_kept);
        cr_assert_eq(status, fitting >= 2 ? RA_OK : RA_ERR_NO_MEMORY);
        if (status == RA_OK)
            status = backward(&f);
        cr_assert_eq(status, fitting >= 4 ? RA_OK : RA_ERR_NO_MEMORY);
        cr_assert_eq(said.count, fitting < 4);
        expect_matrices(&f, 0, fitting);
        fixture_free(&f);
    }
}

enum { CALLERS = 3, ROUNDS = 100, N = 192 }; /* smaller products may need no buffer */

static pthread_barrier_t round_begins;

static void *multiply_at_once(void *matrices)
{
    float *const c = matrices;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_barrier_wait(&round_begins);
        ra_blas_multiply(&(ra_blas_product){.m = N,
                                            .n = N,
                                            .k = N,
                                            .factor = 1,
                                            .a = c + N * N,
                                            .b = c + 2 * N * N,
                                            .c = c,
                                            .a_stride = N,
                                            .b_stride = N,
                                            .c_stride = N});
    }
    return NULL;
}

/* From here on the system refuses memory; or as before. @return the limit until now */
static rlim_t limit_address_space(rlim_t bytes)
{
    struct rlimit limit;
    cr_assert_eq(getrlimit(RLIMIT_AS, &limit), 0);
    rlim_t const before = limit.rlim_cur;
    limit.rlim_cur = bytes;
    cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
    return before;
}

/* Else OpenBLAS asks for a buffer for ever, in the middle of a pass. How many it needs at a time
   depends on timing. */
Test(standard, products_at_once_ask_for_no_more_memory_than_was_reserved, .timeout = 300)
{
    enum { TOO_MANY = 1 << 21 }; /* 256 TiB */
    static float matrices[CALLERS][3 * N * N];
    pthread_t threads[CALLERS];
    if (RA_TEST_SANITIZED)
        cr_skip_test("a sanitizer asks for memory of its own");
    if (ra_kernel_standard() == NULL)
        cr_skip_test("OpenBLAS is not installed");
    cr_assert_not(ra_blas_reserve(TOO_MANY, 0));
    cr_assert(ra_blas_reserve(CALLERS, 0));
    cr_assert_eq(pthread_barrier_init(&round_begins, NULL, CALLERS), 0);
    for (int i = 1; i < CALLERS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, multiply_at_once, matrices[i]), 0);
    rlim_t const before = limit_address_space(0);
    multiply_at_once(matrices[0]);
    for (int i = 1; i < CALLERS; i++)
        pthread_join(threads[i], NULL);
    bool const more = ra_blas_reserve(CALLERS + 1, 0);
    (void)limit_address_space(before);
    cr_assert_not(more);
    cr_assert(ra_blas_reserve(CALLERS + 1, 0));
}
