/* gather, add, store, zero and delta of every CPU kernel table. */
#include "sparse/kernel_case.h"
#include "support/poison_memory.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct fixture {
    ra_ledger *ledger;
    ra_pool *pool;
    ra_kernel kernel;
} fixture;

static fixture fixture_make(const ra_kernel_ops *ops, int threads, int32_t dim)
{
    fixture f;
    cr_assert_eq(ra_ledger_create(INT64_MAX, &f.ledger), RA_OK);
    ra_pool_config const config = {.memory = ra_memory_poison(), .ledger = f.ledger};
    cr_assert_eq(ra_pool_create(&config, &f.pool), RA_OK);
    cr_assert_eq(ra_kernel_init(ops, threads, dim, f.pool, &f.kernel), RA_OK);
    return f;
}

static void fixture_free(fixture *f)
{
    ra_kernel_fini(&f->kernel);
    ra_pool_destroy(f->pool);
    ra_ledger_destroy(f->ledger);
}

enum { ROWS = 40, HEADS = 3, DIM = 19, BATCH = 2, ROW = 80, HEAD = 23, PACKED = 1 + 7 + 4 };

/* Backwards, strided, and a single row. */
static const ra_range pieces[] = {{39, 1, 1}, {2, 4, 7}, {30, 1, 4}};
static ra_kernel_shape const shape = {.batch = BATCH, .q_heads = 6, .kv_heads = HEADS, .dim = DIM};

static ra_view gapped(void *data, ra_dtype dtype, int64_t rows)
{
    return (ra_view){.data = data,
                     .dtype = dtype,
                     .batch_stride = rows * ROW,
                     .row_stride = ROW,
                     .head_stride = HEAD};
}

/* Local row of packed row x; -1 beyond. */
static int64_t listed(int64_t x)
{
    for (int i = 0; i < 3; ++i) {
        if (x < pieces[i].count)
            return pieces[i].begin + pieces[i].stride * x;
        x -= pieces[i].count;
    }
    return -1;
}

static void check_gather(const ra_kernel_ops *ops, ra_dtype dtype, int threads)
{
    fixture f = fixture_make(ops, threads, DIM);
    ra_rowset rows;
    cr_assert_eq(ra_rowset_init(f.pool, pieces, 3, &rows), RA_OK);
    size_t const element = ra_dtype_bytes(dtype);
    size_t const from_bytes = BATCH * ROWS * ROW * element;
    size_t const to_bytes = BATCH * PACKED * HEADS * DIM * element;
    unsigned char *from = malloc(from_bytes), *to = malloc(to_bytes);
    for (size_t i = 0; i < from_bytes; ++i)
        from[i] = (unsigned char)(i * 2654435761u >> 13);
    ra_view const source = gapped(from, dtype, ROWS);
    ra_view const target = ra_view_dense(to, dtype, PACKED, HEADS, DIM, 0);
    cr_assert_eq(ops->gather(&f.kernel, &shape, &rows, &source, &target), RA_OK);
    for (int64_t b = 0; b < BATCH; ++b) {
        for (int64_t x = 0; x < PACKED; ++x) {
            for (int64_t h = 0; h < HEADS; ++h) {
                int64_t const at = (b * ROWS + listed(x)) * ROW + h * HEAD;
                cr_assert_arr_eq(to + (size_t)((b * PACKED + x) * HEADS + h) * DIM * element,
                                 from + (size_t)at * element, DIM * element);
            }
        }
    }
    free(from);
    free(to);
    ra_rowset_fini(f.pool, &rows);
    fixture_free(&f);
}

Test(kernel_rows, gather_packs_the_listed_rows_in_their_order)
{
    for (int i = 0; i < KERNEL_ISA_COUNT; ++i) {
        for (int threads = 1; threads <= 5 && kernel_table(i) != NULL; threads += 2) {
            check_gather(kernel_table(i), RA_F32, threads);
            check_gather(kernel_table(i), RA_F16, threads);
        }
    }
}

static void check_add(const ra_kernel_ops *ops, int threads)
{
    fixture f = fixture_make(ops, threads, DIM);
    ra_rowset rows;
    cr_assert_eq(ra_rowset_init(f.pool, pieces, 3, &rows), RA_OK);
    float *to = malloc(sizeof(float) * BATCH * ROWS * ROW);
    float *want = malloc(sizeof(float) * BATCH * ROWS * ROW);
    float *from = malloc(sizeof(float) * BATCH * PACKED * HEADS * DIM);
    for (int i = 0; i < BATCH * ROWS * ROW; ++i)
        to[i] = want[i] = (float)i;
    for (int i = 0; i < BATCH * PACKED * HEADS * DIM; ++i)
        from[i] = 0.5f * (float)i;
    for (int64_t b = 0; b < BATCH; ++b) {
        for (int64_t x = 0; x < PACKED; ++x) {
            for (int64_t h = 0; h < HEADS; ++h) {
                for (int64_t d = 0; d < DIM; ++d)
                    want[(b * ROWS + listed(x)) * ROW + h * HEAD + d] +=
                        from[((b * PACKED + x) * HEADS + h) * DIM + d];
            }
        }
    }
    ra_view const source = ra_view_dense(from, RA_F32, PACKED, HEADS, DIM, 0);
    ra_view const target = gapped(to, RA_F32, ROWS);
    cr_assert_eq(ops->add(&f.kernel, &shape, &rows, &source, &target), RA_OK);
    cr_assert_arr_eq(to, want, sizeof(float) * BATCH * ROWS * ROW);
    free(to);
    free(want);
    free(from);
    ra_rowset_fini(f.pool, &rows);
    fixture_free(&f);
}

Test(kernel_rows, add_reaches_the_listed_rows_and_nothing_else)
{
    for (int i = 0; i < KERNEL_ISA_COUNT; ++i) {
        for (int threads = 1; threads <= 5 && kernel_table(i) != NULL; threads += 2)
            check_add(kernel_table(i), threads);
    }
}

/* Vectors and the odd values after them round as single values do, bit for bit. */
static void check_store(const ra_kernel_ops *ops, ra_dtype dtype)
{
    enum { COUNT = 1024, WIDE = 61 };
    fixture f = fixture_make(ops, 2, WIDE);
    ra_kernel_shape const wide = {.batch = 1, .q_heads = 1, .kv_heads = 1, .dim = WIDE};
    size_t const element = ra_dtype_bytes(dtype);
    float *from = malloc(sizeof(float) * COUNT * WIDE);
    char *to = malloc(COUNT * WIDE * element), *want = malloc(COUNT * WIDE * element);
    uint64_t random = 5;
    for (int i = 0; i < COUNT * WIDE; ++i) {
        uint32_t bits = (uint32_t)oracle_random(&random);
        if (i % 3 == 0) /* float16's range, halfway cases among them */
            bits = (bits & 0x87fff000u) | 0x38000000u;
        else if (i % 3 == 1) /* its subnormals */
            bits = (bits & 0x83ffffffu) | 0x30000000u;
        memcpy(&from[i], &bits, sizeof(bits));
        ra_dtype_store(dtype, want, i, from[i]);
    }
    ra_view const source = ra_view_dense(from, RA_F32, COUNT, 1, WIDE, 0);
    ra_view const target = ra_view_dense(to, dtype, COUNT, 1, WIDE, 0);
    cr_assert_eq(ops->store(&f.kernel, &wide, COUNT, &source, &target), RA_OK);
    cr_assert_arr_eq(to, want, COUNT * WIDE * element);
    free(from);
    free(to);
    free(want);
    fixture_free(&f);
}

Test(kernel_rows, store_rounds_vectors_like_single_values)
{
    for (int i = 0; i < KERNEL_ISA_COUNT; ++i) {
        for (int t = 0; t < 3 && kernel_table(i) != NULL; ++t)
            check_store(kernel_table(i), (ra_dtype)t);
    }
}

static void check_delta(const ra_kernel_ops *ops, ra_dtype dtype, int32_t dim)
{
    enum { N = 33, H = 3 };
    fixture f = fixture_make(ops, 2, dim);
    ra_kernel_shape const wide = {.batch = BATCH, .q_heads = H, .kv_heads = 1, .dim = dim};
    int64_t const count = BATCH * N * H * (int64_t)dim;
    void *out = malloc((size_t)count * 4), *dout = malloc((size_t)count * 4);
    double *a = malloc(sizeof(double) * (size_t)count), *b = malloc(sizeof(double) * (size_t)count);
    float delta[BATCH * H * N];
    uint64_t random = 9;
    oracle_fill(&random, dtype, 1, count, out, a);
    oracle_fill(&random, dtype, 1, count, dout, b);
    ra_view const x = ra_view_dense(out, dtype, N, H, dim, 0);
    ra_view const y = ra_view_dense(dout, dtype, N, H, dim, 0);
    cr_assert_eq(ops->delta(&f.kernel, &wide, N, &x, &y, delta), RA_OK);
    for (int64_t row = 0; row < BATCH * H * N; ++row) {
        int64_t const lane = row / N, i = row % N;
        double want = 0;
        for (int32_t d = 0; d < dim; ++d) {
            int64_t const at = (((lane / H) * N + i) * H + lane % H) * dim + d;
            want += a[at] * b[at];
        }
        cr_assert(fabs((double)delta[row] - want) <= 1e-5 * sqrt(dim), "%s dim %d", ops->name, dim);
    }
    free(out);
    free(dout);
    free(a);
    free(b);
    fixture_free(&f);
}

Test(kernel_rows, delta_is_the_sum_of_out_times_dout)
{
    for (int i = 0; i < KERNEL_ISA_COUNT; ++i) {
        for (int t = 0; t < 3 && kernel_table(i) != NULL; ++t) {
            check_delta(kernel_table(i), (ra_dtype)t, 1);
            check_delta(kernel_table(i), (ra_dtype)t, 48);
            check_delta(kernel_table(i), (ra_dtype)t, 251);
        }
    }
}

Test(kernel_rows, zero_clears_the_bytes_given_and_no_more)
{
    for (int i = 0; i < KERNEL_ISA_COUNT; ++i) {
        if (kernel_table(i) == NULL)
            continue;
        fixture f = fixture_make(kernel_table(i), 2, 8);
        char bytes[100];
        memset(bytes, 7, sizeof(bytes));
        cr_assert_eq(f.kernel.ops->zero(&f.kernel, bytes + 1, 98), RA_OK);
        cr_assert_eq(f.kernel.ops->zero(&f.kernel, NULL, 0), RA_OK);
        for (int b = 1; b < 99; ++b)
            cr_assert_eq(bytes[b], 0);
        cr_assert(bytes[0] == 7 && bytes[99] == 7);
        fixture_free(&f);
    }
}
