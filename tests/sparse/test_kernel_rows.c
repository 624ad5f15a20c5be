/* gather, add, store, zero and delta of every kernel table but the one that materialises. */
#include "sparse/kernel_case.h"
#include "support/poison_memory.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct fixture {
    ra_ledger *ledger;
    ra_pool *pool, *kernel_pool;
    kernel_memory memory;
    ra_kernel kernel;
} fixture;

static fixture fixture_make(const ra_kernel_ops *ops, int threads, int32_t dim)
{
    fixture f = {.memory = {.memory = ops->memory()}};
    cr_assert_eq(ra_ledger_create(INT64_MAX, &f.ledger), RA_OK);
    ra_pool_config const config = {.memory = ra_memory_poison(), .ledger = f.ledger};
    cr_assert_eq(ra_pool_create(&config, &f.pool), RA_OK);
    ra_pool_config const there = {.memory = f.memory.memory, .ledger = f.ledger};
    cr_assert_eq(ra_pool_create(&there, &f.kernel_pool), RA_OK);
    cr_assert_eq(ra_kernel_init(ops, &(ra_kernel_use){.dim = dim, .threads = threads},
                                f.kernel_pool, &f.kernel),
                 RA_OK);
    return f;
}

static void fixture_free(fixture *f)
{
    kernel_give_all(&f->memory);
    ra_kernel_fini(&f->kernel);
    ra_pool_destroy(f->kernel_pool);
    ra_pool_destroy(f->pool);
    ra_ledger_destroy(f->ledger);
}

/* Where the kernel reaches it. */
static void *there(fixture *f, const void *from, size_t bytes)
{
    return kernel_take(&f->memory, from, (int64_t)bytes);
}

static void *back(fixture *f, const void *from, size_t bytes)
{
    return kernel_read(&f->kernel, &f->memory, from, (int64_t)bytes);
}

enum { ROWS = 40, HEADS = 3, BATCH = 2, PACKED = 1 + 7 + 4 };

/* Rows that begin anywhere, and rows that begin at multiples of 16 bytes. */
typedef struct gaps {
    int32_t dim;
    int64_t row, head;
} gaps;

static const gaps all_gaps[] = {{19, 80, 23}, {16, 96, 24}};

/* Backwards, strided, and a single row. */
static const ra_range pieces[] = {{39, 1, 1}, {2, 4, 7}, {30, 1, 4}};

static ra_kernel_shape shape_of(const gaps *g)
{
    return (ra_kernel_shape){.batch = BATCH, .q_heads = 6, .kv_heads = HEADS, .dim = g->dim};
}

static ra_view gapped(const gaps *g, void *data, ra_dtype dtype, int64_t rows)
{
    return (ra_view){.data = data,
                     .dtype = dtype,
                     .batch_stride = rows * g->row,
                     .row_stride = g->row,
                     .head_stride = g->head};
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

static void check_gather(const ra_kernel_ops *ops, const gaps *g, ra_dtype dtype, int threads)
{
    fixture f = fixture_make(ops, threads, g->dim);
    ra_kernel_shape const shape = shape_of(g);
    ra_rowset rows;
    cr_assert_eq(ra_rowset_init(f.pool, pieces, 3, &rows), RA_OK);
    size_t const element = ra_dtype_bytes(dtype), width = (size_t)g->dim * element;
    size_t const from_bytes = (size_t)(BATCH * ROWS * g->row) * element;
    size_t const to_bytes = BATCH * PACKED * HEADS * width;
    unsigned char *from = malloc(from_bytes);
    for (size_t i = 0; i < from_bytes; ++i)
        from[i] = (unsigned char)(i * 2654435761u >> 13);
    ra_view const source = gapped(g, there(&f, from, from_bytes), dtype, ROWS);
    ra_view const target =
        ra_view_dense(there(&f, NULL, to_bytes), dtype, PACKED, HEADS, g->dim, 0);
    cr_assert_eq(ops->gather(&f.kernel, &shape, &rows, &source, &target), RA_OK);
    unsigned char *to = back(&f, target.data, to_bytes);
    for (int64_t b = 0; b < BATCH; ++b) {
        for (int64_t x = 0; x < PACKED; ++x) {
            for (int64_t h = 0; h < HEADS; ++h) {
                int64_t const at = (b * ROWS + listed(x)) * g->row + h * g->head;
                cr_assert_arr_eq(to + (size_t)((b * PACKED + x) * HEADS + h) * width,
                                 from + (size_t)at * element, width);
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
            for (int g = 0; g < 2; ++g) {
                check_gather(kernel_table(i), &all_gaps[g], RA_F32, threads);
                check_gather(kernel_table(i), &all_gaps[g], RA_F16, threads);
            }
        }
    }
}

static void check_add(const ra_kernel_ops *ops, const gaps *g, int threads)
{
    fixture f = fixture_make(ops, threads, g->dim);
    ra_kernel_shape const shape = shape_of(g);
    ra_rowset rows;
    cr_assert_eq(ra_rowset_init(f.pool, pieces, 3, &rows), RA_OK);
    int64_t const count = BATCH * ROWS * g->row, packed = BATCH * PACKED * HEADS * g->dim;
    size_t const bytes = sizeof(float) * (size_t)count;
    float *want = malloc(bytes), *from = malloc(sizeof(float) * (size_t)packed);
    for (int64_t i = 0; i < count; ++i)
        want[i] = (float)i;
    void *const target_data = there(&f, want, bytes);
    for (int64_t i = 0; i < packed; ++i)
        from[i] = 0.5f * (float)i;
    for (int64_t b = 0; b < BATCH; ++b) {
        for (int64_t x = 0; x < PACKED; ++x) {
            for (int64_t h = 0; h < HEADS; ++h) {
                for (int64_t d = 0; d < g->dim; ++d)
                    want[(b * ROWS + listed(x)) * g->row + h * g->head + d] +=
                        from[((b * PACKED + x) * HEADS + h) * g->dim + d];
            }
        }
    }
    ra_view const source = ra_view_dense(there(&f, from, sizeof(float) * (size_t)packed), RA_F32,
                                         PACKED, HEADS, g->dim, 0);
    ra_view const target = gapped(g, target_data, RA_F32, ROWS);
    cr_assert_eq(ops->add(&f.kernel, &shape, &rows, &source, &target), RA_OK);
    float *to = back(&f, target_data, bytes);
    cr_assert_arr_eq(to, want, bytes);
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
            for (int g = 0; g < 2; ++g)
                check_add(kernel_table(i), &all_gaps[g], threads);
    }
}

/* First value that differs in a bit, or `count`. Where any_nan, a NaN is any NaN: a GPU stores one
   of its own where the host keeps the payload. */
static int64_t first_other(ra_dtype dtype, bool any_nan, const char *got, const char *want,
                           int64_t count)
{
    size_t const element = ra_dtype_bytes(dtype);
    for (int64_t i = 0; i < count; ++i) {
        size_t const at = (size_t)i * element;
        bool const nans =
            any_nan && isnan(ra_dtype_load(dtype, got, i)) && isnan(ra_dtype_load(dtype, want, i));
        if (!nans && memcmp(got + at, want + at, element) != 0)
            return i;
    }
    return count;
}

/* Vectors and the odd values after them round as single values do. */
static void check_store(const ra_kernel_ops *ops, int32_t dim, ra_dtype dtype)
{
    enum { COUNT = 512 };
    fixture f = fixture_make(ops, 2, dim);
    ra_kernel_shape const wide = {.batch = 1, .q_heads = 1, .kv_heads = 1, .dim = dim};
    size_t const values = (size_t)(COUNT * dim), bytes = values * ra_dtype_bytes(dtype);
    float *from = malloc(sizeof(float) * values);
    char *want = malloc(bytes);
    uint64_t random = 5;
    for (int i = 0; i < COUNT * dim; ++i) {
        uint32_t bits = (uint32_t)oracle_random(&random);
        if (i % 3 == 0) /* float16's range, halfway cases among them */
            bits = (bits & 0x87fff000u) | 0x38000000u;
        else if (i % 3 == 1) /* its subnormals */
            bits = (bits & 0x83ffffffu) | 0x30000000u;
        memcpy(&from[i], &bits, sizeof(bits));
        ra_dtype_store(dtype, want, i, from[i]);
    }
    ra_view const source =
        ra_view_dense(there(&f, from, sizeof(float) * values), RA_F32, COUNT, 1, dim, 0);
    ra_view const target = ra_view_dense(there(&f, NULL, bytes), dtype, COUNT, 1, dim, 0);
    cr_assert_eq(ops->store(&f.kernel, &wide, COUNT, &source, &target), RA_OK);
    char *to = back(&f, target.data, bytes);
    bool const on_gpu = strncmp(ops->name, "cuda", 4) == 0;
    int64_t const other = first_other(dtype, on_gpu, to, want, (int64_t)values);
    cr_assert_eq(other, (int64_t)values, "%s, %s, dim %d: value %lld of %a", ops->name,
                 ra_dtype_name(dtype), dim, (long long)other, (double)from[other % (COUNT * dim)]);
    free(from);
    free(to);
    free(want);
    fixture_free(&f);
}

Test(kernel_rows, store_rounds_vectors_like_single_values)
{
    for (int i = 0; i < KERNEL_ISA_COUNT; ++i) {
        for (int t = 0; t < 3 && kernel_table(i) != NULL; ++t) {
            check_store(kernel_table(i), 61, (ra_dtype)t);
            check_store(kernel_table(i), 64, (ra_dtype)t);
        }
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
    uint64_t random = 9;
    oracle_fill(&random, dtype, 1, count, out, a);
    oracle_fill(&random, dtype, 1, count, dout, b);
    size_t const bytes = (size_t)count * ra_dtype_bytes(dtype);
    size_t const delta_bytes = BATCH * H * N * sizeof(float);
    ra_view const x = ra_view_dense(there(&f, out, bytes), dtype, N, H, dim, 0);
    ra_view const y = ra_view_dense(there(&f, dout, bytes), dtype, N, H, dim, 0);
    float *const delta_there = there(&f, NULL, delta_bytes);
    cr_assert_eq(ops->delta(&f.kernel, &wide, N, &x, &y, delta_there), RA_OK);
    float *const delta = back(&f, delta_there, delta_bytes);
    for (int64_t row = 0; row < BATCH * H * N; ++row) {
        int64_t const lane = row / N, i = row % N;
        double want = 0;
        for (int32_t d = 0; d < dim; ++d) {
            int64_t const at = (((lane / H) * N + i) * H + lane % H) * dim + d;
            want += a[at] * b[at];
        }
        cr_assert(fabs((double)delta[row] - want) <= 1e-5 * sqrt(dim), "%s dim %d", ops->name, dim);
    }
    free(delta);
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
        char *const data = there(&f, bytes, sizeof(bytes));
        cr_assert_eq(f.kernel.ops->zero(&f.kernel, data + 1, 98), RA_OK);
        cr_assert_eq(f.kernel.ops->zero(&f.kernel, NULL, 0), RA_OK);
        char *const after = back(&f, data, sizeof(bytes));
        for (int b = 1; b < 99; ++b)
            cr_assert_eq(after[b], 0);
        cr_assert(after[0] == 7 && after[99] == 7);
        free(after);
        fixture_free(&f);
    }
}
