/*
 * How near the CPU kernels are to what a core can do: thread time of one thread against loops of
 * nothing but FMA, or bf16 dot products, in registers. All take turns, so that what else the
 * machine does meets them alike. Shares are of the best of each over the rounds, which a busy
 * machine disturbs least, and medians of the rounds' own.
 *
 *     kernel_bench [-b] [-d DIM] [-n TOKENS] [-h HEADS] [-g KV_HEADS] [-t f32|f16|bf16]
 *                  [-p PATTERN] [-r ROUNDS] [-c KIB] [-i ISA]…
 *
 * PATTERN: dense, causal, window (1024, causal), blocks (dilated_sparse, 128 tokens), dilated
 * (segments of 8192 at rate 4). -b: backward. -c: a first cache of so many KiB, whatever the
 * machine has. Without -i: every table that this machine can run.
 */
#include "ringattn/kernel.h"
#include "tool/limits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS_MAX = 101, TABLES_MAX = 8, LIMIT_ROUNDS = 200000, BLOCKS_MAX = 10 };

typedef struct bench {
    bool backward;
    int32_t dim, heads, kv_heads;
    int64_t n;
    ra_caches caches;
    ra_dtype dtype;
    const char *pattern_name;
    int rounds, table_count;
    const ra_kernel_ops *tables[TABLES_MAX];
    ra_ledger *ledger;
    ra_pool *pool;
    ra_pattern *pattern;
    ra_rowset rows;
    ra_tilemap map;
    float *lse, *delta;
    ra_view q, k, v, out, dout, dq, dk, dv;
    ra_block blocks[BLOCKS_MAX]; /* what the views and arrays lie in */
    int block_count;
} bench;

static void fail(const char *what)
{
    fprintf(stderr, "kernel_bench: %s\n", what);
    exit(2);
}

static void require(ra_status status)
{
    if (status != RA_OK)
        fail("the case could not be set up");
}

static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* FLOP/s of a loop; 0 where the machine lacks it. The sum is used, or there would be no loop. */
static double limit_rate(const ra_limit_loop *loop)
{
    if (loop == NULL)
        return 0;
    double const begin = thread_seconds();
    float const sum = loop->run(LIMIT_ROUNDS);
    double const seconds = thread_seconds() - begin;
    if (isnan(sum))
        fail("a limit loop made NaN");
    return loop->round_flops * LIMIT_ROUNDS / seconds;
}

/* ---- the case ---------------------------------------------------------------------------------
 */

static ra_pattern_config pattern_of(const char *name)
{
    static const int64_t segment = 8192, rate = 4;
    ra_pattern_config config = ra_pattern_config_dense();
    if (strcmp(name, "causal") == 0 || strcmp(name, "window") == 0) {
        config.causal = true;
    } else if (strcmp(name, "blocks") == 0) {
        config.blocks_kind = RA_BLOCKS_DILATED_SPARSE;
        config.block_size = 128;
        config.block_density = 0.02;
    } else if (strcmp(name, "dilated") == 0) {
        config.segments = &segment;
        config.rates = &rate;
        config.branch_count = 1;
    } else if (strcmp(name, "dense") != 0) {
        fail("-p takes dense, causal, window, blocks or dilated");
    }
    if (strcmp(name, "window") == 0)
        config.window_left = 1023;
    return config;
}

/* Memory as a run has it: rows that begin within a cache line cost a tenth. */
static void *take(bench *b, size_t bytes)
{
    if (b->block_count == BLOCKS_MAX)
        fail("too many blocks");
    ra_block *block = &b->blocks[b->block_count++];
    require(ra_pool_alloc(b->pool, RA_MEM_QKV, bytes, NULL, block));
    memset(block->data, 0, bytes);
    return block->data;
}

static ra_view random_view(bench *b, ra_dtype dtype, int32_t heads, uint64_t seed)
{
    int64_t const count = b->n * heads * b->dim;
    void *data = take(b, (size_t)count * ra_dtype_bytes(dtype));
    for (int64_t i = 0; seed != 0 && i < count; ++i) {
        float sum = 0; /* of four even ones: near enough to normal */
        for (int x = 0; x < 4; ++x) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            sum += (float)(seed >> 40) * 0x1p-24f - 0.5f;
        }
        ra_dtype_store(dtype, data, i, sum * 1.7320508f);
    }
    return ra_view_dense(data, dtype, b->n, heads, b->dim, 0);
}

static void make_case(bench *b)
{
    ra_pattern_config const config = pattern_of(b->pattern_name);
    ra_range const all = {0, 1, b->n};
    ra_pool_config pool = {.memory = ra_memory_host()};
    require(ra_ledger_create(INT64_MAX, &b->ledger));
    pool.ledger = b->ledger;
    require(ra_pool_create(&pool, &b->pool));
    require(ra_pattern_create(&config, b->n, b->heads, b->pool, &b->pattern));
    require(ra_rowset_init(b->pool, &all, 1, &b->rows));
    require(ra_tilemap_init(&(ra_map_request){b->pattern, (ra_heads){0, 1, b->heads}, &b->rows,
                                              &b->rows, b->tables[0]->tile_rows(b->dtype, b->dim),
                                              b->tables[0]->maps_by_keys},
                            b->pool, &b->map));
    b->q = random_view(b, b->dtype, b->heads, 1);
    b->k = random_view(b, b->dtype, b->kv_heads, 2);
    b->v = random_view(b, b->dtype, b->kv_heads, 3);
    b->out = random_view(b, b->dtype, b->heads, 0);
    b->lse = take(b, (size_t)(b->n * b->heads) * sizeof(float));
    if (!b->backward)
        return;
    b->dout = random_view(b, b->dtype, b->heads, 4);
    b->dq = random_view(b, RA_F32, b->heads, 0);
    b->dk = random_view(b, RA_F32, b->kv_heads, 0);
    b->dv = random_view(b, RA_F32, b->kv_heads, 0);
    b->delta = take(b, (size_t)(b->n * b->heads) * sizeof(float));
}

static ra_kernel_shape shape_of(const bench *b)
{
    return (ra_kernel_shape){.batch = 1,
                             .q_heads = b->heads,
                             .kv_heads = b->kv_heads,
                             .dim = b->dim,
                             .scale = 1 / sqrtf((float)b->dim)};
}

static double forward_seconds(const bench *b, ra_kernel *kernel)
{
    ra_forward_step const step = {.map = &b->map,
                                  .shape = shape_of(b),
                                  .q = b->q,
                                  .k = b->k,
                                  .v = b->v,
                                  .out = b->out,
                                  .lse = b->lse,
                                  .lse_batch_stride = b->n * b->heads,
                                  .first = true,
                                  .last = true};
    double const begin = thread_seconds();
    require(kernel->ops->forward(kernel, &step));
    return thread_seconds() - begin;
}

static double backward_seconds(const bench *b, ra_kernel *kernel)
{
    ra_backward_step const step = {.map = &b->map,
                                   .shape = shape_of(b),
                                   .q = b->q,
                                   .k = b->k,
                                   .v = b->v,
                                   .dout = b->dout,
                                   .lse = b->lse,
                                   .lse_batch_stride = b->n * b->heads,
                                   .delta = b->delta,
                                   .dq = b->dq,
                                   .dk = b->dk,
                                   .dv = b->dv};
    double const begin = thread_seconds();
    require(kernel->ops->backward(kernel, &step));
    return thread_seconds() - begin;
}

static double rate_of(const bench *b, const ra_kernel_ops *ops)
{
    ra_kernel kernel;
    require(ra_kernel_init(ops, &(ra_kernel_use){.dim = b->dim, .threads = 1}, b->pool, &kernel));
    kernel.caches = b->caches;
    double const seconds = b->backward ? backward_seconds(b, &kernel) : forward_seconds(b, &kernel);
    ra_kernel_fini(&kernel);
    double const flops = (b->backward ? 10.0 : 4.0) * b->dim * (double)b->map.live_pairs;
    return flops / seconds;
}

/* ---- rounds -----------------------------------------------------------------------------------
 */

static int compare_double(const void *a, const void *b)
{
    double const x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, int count)
{
    double sorted[ROUNDS_MAX];
    memcpy(sorted, values, sizeof(double) * (size_t)count);
    qsort(sorted, (size_t)count, sizeof(double), compare_double);
    return sorted[count / 2];
}

static double greatest(const double *values, int count)
{
    double most = values[0];
    for (int i = 1; i < count; ++i)
        most = values[i] > most ? values[i] : most;
    return most;
}

/* The loops that tables are compared with: multiply-adds, and products of pairs. */
enum { FMA, DPBF16, AMX, LOOP_COUNT };

static void run_rounds(bench *b)
{
    static const char *const names[LOOP_COUNT] = {"fma", "dpbf16", "amx"};
    const ra_limit_loop *const loops[LOOP_COUNT] = {ra_limit_fma(), ra_limit_dpbf16(),
                                                    ra_limit_amx()};
    static double rates[TABLES_MAX][ROUNDS_MAX], limits[LOOP_COUNT][ROUNDS_MAX];
    static double shares[TABLES_MAX][LOOP_COUNT][ROUNDS_MAX];
    if (b->backward) { /* it needs the lse; delta may be anything, here 0 */
        ra_kernel kernel;
        require(ra_kernel_init(b->tables[0], &(ra_kernel_use){.dim = b->dim, .threads = 1}, b->pool,
                               &kernel));
        (void)forward_seconds(b, &kernel);
        ra_kernel_fini(&kernel);
    }
    for (int r = 0; r < b->rounds; ++r) {
        for (int l = 0; l < LOOP_COUNT; ++l)
            limits[l][r] = limit_rate(loops[l]);
        for (int t = 0; t < b->table_count; ++t) {
            rates[t][r] = rate_of(b, b->tables[t]);
            for (int l = 0; l < LOOP_COUNT; ++l)
                shares[t][l][r] = limits[l][r] > 0 ? rates[t][r] / limits[l][r] : NAN;
        }
    }
    printf("%s %s %s n %lld heads %d/%d dim %d: at best", b->pattern_name,
           b->backward ? "backward" : "forward", ra_dtype_name(b->dtype), (long long)b->n, b->heads,
           b->kv_heads, b->dim);
    for (int l = 0; l < LOOP_COUNT; ++l)
        printf("%s %s loop %.1f", l == 0 ? "" : ",", names[l],
               greatest(limits[l], b->rounds) * 1e-9);
    printf(" GFLOP/s\n");
    for (int t = 0; t < b->table_count; ++t) {
        double const best = greatest(rates[t], b->rounds);
        printf("  %-16s best %6.1f GFLOP/s, in %% of the best loop (median of rounds):",
               b->tables[t]->name, best * 1e-9);
        for (int l = 0; l < LOOP_COUNT; ++l)
            if (loops[l] != NULL)
                printf("%s %s %.1f (%.1f)", l == 0 ? "" : ",", names[l],
                       100 * best / greatest(limits[l], b->rounds),
                       100 * median(shares[t][l], b->rounds));
        printf("\n");
    }
}

static const ra_kernel_ops *table_named(const char *name)
{
    for (int isa = RA_ISA_PORTABLE; isa <= RA_ISA_NEON; ++isa) {
        const ra_kernel_ops *ops = ra_kernel_cpu((ra_isa)isa);
        if (ops != NULL && strcmp(ops->name + strlen("cpu-"), name) == 0)
            return ops;
    }
    fail("-i takes portable, avx2, avx512, avx512bf16, amx or neon, where this machine has it");
    return NULL;
}

static ra_dtype dtype_named(const char *name)
{
    for (int t = RA_F32; t <= RA_BF16; ++t)
        if (strcmp(ra_dtype_name((ra_dtype)t), name) == 0)
            return (ra_dtype)t;
    fail("-t takes f32, f16 or bf16");
    return RA_F32;
}

static int32_t number(const char *text, int32_t most)
{
    char *end;
    long const value = strtol(text, &end, 10);
    if (*text == 0 || *end != 0 || value < 1 || value > most)
        fail("a number is out of range");
    return (int32_t)value;
}

static void read_options(int argc, char **argv, bench *b)
{
    for (int c; (c = getopt(argc, argv, "bd:n:h:g:t:p:r:c:i:")) != -1;) {
        switch (c) {
        case 'b':
            b->backward = true;
            break;
        case 'd':
            b->dim = number(optarg, 256);
            break;
        case 'n':
            b->n = number(optarg, 1 << 24);
            break;
        case 'h':
            b->heads = number(optarg, 1024);
            break;
        case 'g':
            b->kv_heads = number(optarg, 1024);
            break;
        case 't':
            b->dtype = dtype_named(optarg);
            break;
        case 'p':
            b->pattern_name = optarg;
            break;
        case 'r':
            b->rounds = number(optarg, ROUNDS_MAX);
            break;
        case 'c':
            b->caches.first_bytes = (int64_t)number(optarg, 1 << 20) << 10;
            break;
        case 'i':
            if (b->table_count == TABLES_MAX)
                fail("too many -i");
            b->tables[b->table_count++] = table_named(optarg);
            break;
        default:
            fail("see the top of tests/sparse/kernel_bench.c");
        }
    }
    for (int isa = RA_ISA_PORTABLE, given = b->table_count; given == 0 && isa <= RA_ISA_NEON; ++isa)
        if (ra_kernel_cpu((ra_isa)isa) != NULL)
            b->tables[b->table_count++] = ra_kernel_cpu((ra_isa)isa);
    if (b->kv_heads == 0)
        b->kv_heads = b->heads;
}

int main(int argc, char **argv)
{
    bench b = {
        .dim = 128, .heads = 1, .n = 4096, .dtype = RA_BF16, .pattern_name = "dense", .rounds = 5};
    b.caches.first_bytes = sysconf(_SC_LEVEL1_DCACHE_SIZE);
    read_options(argc, argv, &b);
    make_case(&b);
    run_rounds(&b);
    for (int i = 0; i < b.block_count; ++i)
        ra_pool_free(b.pool, NULL, &b.blocks[i]);
    ra_tilemap_fini(b.pool, &b.map);
    ra_rowset_fini(b.pool, &b.rows);
    ra_pattern_destroy(b.pattern);
    ra_pool_destroy(b.pool);
    ra_ledger_destroy(b.ledger);
    return 0;
}
