#include "limits.h"

#include "internal.h"
#include "ringattn/blas.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum {
    SLICES = 3, /* the median of them counts */
    SLICE_MS = 40,
    SETTLE_MS = 60, /* OpenBLAS's threads spin for about half of that after their last work */
    LOOP_ROUNDS = 10000,
    MATRIX_ROWS = 1536,
    PIECE_BYTES = 4 << 20,
    ARRAYS_MIN_BYTES = 4 * PIECE_BYTES,
    ARRAYS_MAX_BYTES = 512 << 20 /* of all ranks of a host; beyond most last-level caches */
};

/* Some work of one thread; returns how much it was, in operations or bytes. */
typedef double limit_work(void *context, int thread);

/* One thread's work per millisecond over one slice. */
static double thread_rate(limit_work *work, void *context, int thread)
{
    int64_t const begin_ns = ra_clock_ns();
    double done = 0, elapsed_ms;
    do {
        done += work(context, thread);
        elapsed_ms = 1e-6 * (double)(ra_clock_ns() - begin_ns);
    } while (elapsed_ms < SLICE_MS);
    return done / elapsed_ms;
}

/* The same of all threads together; they begin together. */
static double slice_rate(int threads, limit_work *work, void *context)
{
    double total = 0;
#ifdef _OPENMP
#pragma omp parallel num_threads(threads) reduction(+ : total)
    {
#pragma omp barrier
        total += thread_rate(work, context, omp_get_thread_num());
    }
#else
    RA_ASSERT(threads >= 1);
    total = thread_rate(work, context, 0);
#endif
    return total;
}

/* Work per second of this rank. */
static double rate_measure(int threads, limit_work *work, void *context)
{
    double rates[SLICES];
    (void)work(context, 0); /* touches memory first, and lets the clock rise */
    for (int i = 0; i < SLICES; i++)
        rates[i] = slice_rate(threads, work, context);
    qsort(rates, SLICES, sizeof(rates[0]), ra_compare_f64);
    return 1e3 * rates[SLICES / 2];
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

static volatile float sink; /* so that no work is found useless */

static double loop_work(void *context, int thread)
{
    const ra_limit_loop *loop = context;
    RA_ASSERT(loop != NULL);
    float const value = loop->run(LOOP_ROUNDS);
    if (thread == 0)
        sink = value;
    return loop->round_flops * LOOP_ROUNDS;
}

static double loop_measure(int threads, const ra_limit_loop *loop)
{
    union {
        const ra_limit_loop *from;
        void *to;
    } const pointer = {loop}; /* a context is not const, but this one is only read */
    return loop != NULL ? 1e-12 * rate_measure(threads, loop_work, pointer.to) : 0;
}

typedef struct matrices {
    int threads; /* of OpenBLAS */
    float *data; /* three matrices */
} matrices;

static double sgemm_work(void *context, int thread)
{
    const matrices *m = context;
    size_t const count = (size_t)MATRIX_ROWS * MATRIX_ROWS;
    (void)thread;
    ra_blas_multiply_square(m->threads, MATRIX_ROWS, m->data, m->data + count, m->data + 2 * count);
    return 2.0 * MATRIX_ROWS * (double)count;
}

static ra_status sgemm_measure(int threads, ra_pool *pool, double *tflops_out)
{
    size_t const count = (size_t)MATRIX_ROWS * MATRIX_ROWS;
    struct timespec const settle = {.tv_nsec = SETTLE_MS * 1000000L};
    ra_block block = {0};
    if (ra_blas_name() == NULL)
        return RA_OK;
    if (!ra_blas_reserve(1, threads - 1))
        return RA_OK; /* not measured, as without it */
    ra_status const status =
        ra_pool_alloc(pool, RA_MEM_WORKSPACE, 3 * count * sizeof(float), NULL, &block);
    if (status != RA_OK)
        return status;
    matrices m = {.threads = threads, .data = block.data};
    for (size_t i = 0; i < 2 * count; i++)
        m.data[i] = 1.0f / (float)(1 + i % 97);
    *tflops_out = 1e-12 * rate_measure(1, sgemm_work, &m);
    ra_pool_free(pool, NULL, &block);
    nanosleep(&settle, NULL);
    return RA_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Two halves; each thread cycles through its own share, piece by piece. */
typedef struct arrays {
    int threads;
    uint64_t *data;
    size_t half_bytes; /* a multiple of threads * PIECE_BYTES */
    struct {
        size_t at;
        char apart[56]; /* threads do not write to one cache line */
    } cursor[];
} arrays;

/* Offset of the thread's next piece in a half. */
static size_t piece_next(arrays *a, int thread)
{
    size_t const share = a->half_bytes / (size_t)a->threads;
    size_t const at = a->cursor[thread].at;
    a->cursor[thread].at = at + PIECE_BYTES < share ? at + PIECE_BYTES : 0;
    return share * (size_t)thread + at;
}

static uint64_t piece_sum(const uint64_t *from)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < PIECE_BYTES / sizeof(*from); i++)
        sum += from[i];
    return sum;
}

static double read_work(void *context, int thread)
{
    arrays *a = context;
    size_t const at = piece_next(a, thread);
    uint64_t const first = piece_sum(a->data + at / sizeof(uint64_t));
    uint64_t const second = piece_sum(a->data + (a->half_bytes + at) / sizeof(uint64_t));
    if (thread == 0)
        sink = (float)(first + second);
    return 2.0 * PIECE_BYTES;
}

static double copy_work(void *context, int thread)
{
    arrays *a = context;
    size_t const at = piece_next(a, thread);
    memcpy((char *)a->data + a->half_bytes + at, (char *)a->data + at, PIECE_BYTES);
    return PIECE_BYTES;
}

/* Bytes of both halves: far beyond the caches, within what there is. 0: too little room. */
static ra_status arrays_size(ra_comm *comm, int threads, const ra_pool *pool, size_t *half_out)
{
    int64_t available, bytes = ARRAYS_MAX_BYTES / ra_comm_local_size(comm);
    ra_status const status = ra_pool_available(pool, &available);
    if (status != RA_OK)
        return status;
    bytes = ra_min_i64(bytes, available / 4 / ra_comm_local_size(comm));
    int64_t const unit = (int64_t)PIECE_BYTES * threads;
    int64_t const least = ra_max_i64(ARRAYS_MIN_BYTES, 2 * unit);
    if (bytes < least && available / 4 / ra_comm_local_size(comm) >= least)
        bytes = least;
    *half_out = (size_t)(bytes / 2 / unit * unit);
    return RA_OK;
}

static ra_status memory_measure(ra_comm *comm, int threads, ra_pool *pool, ra_limits *limits)
{
    size_t half_bytes = 0;
    ra_block block = {0};
    ra_status status = arrays_size(comm, threads, pool, &half_bytes);
    if (status == RA_OK)
        status = ra_pool_alloc(pool, RA_MEM_WORKSPACE, 2 * half_bytes, NULL, &block);
    if (status != RA_OK || half_bytes == 0)
        return status;
    arrays *a = calloc(1, sizeof(*a) + (size_t)threads * sizeof(a->cursor[0]));
    if (a != NULL) {
        a->threads = threads;
        a->data = block.data;
        a->half_bytes = half_bytes;
        limits->read_gb_per_s = 1e-9 * rate_measure(threads, read_work, a);
        limits->copy_gb_per_s = 1e-9 * rate_measure(threads, copy_work, a);
    } else {
        status = ra_refuse_memory("measuring the machine");
    }
    free(a);
    ra_pool_free(pool, NULL, &block);
    return status;
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* A barrier before each, so that ranks measure the same thing at the same time. */
static ra_status all_measure(ra_comm *comm, int threads, ra_pool *pool, ra_limits *limits,
                             ra_status *local_out)
{
    static const char operation[] = "measuring the machine";
    struct {
        const ra_limit_loop *loop;
        double *tflops;
    } const loops[] = {{ra_limit_fma(), &limits->fma_tflops},
                       {ra_limit_dpbf16(), &limits->dpbf16_tflops},
                       {ra_limit_amx(), &limits->amx_tflops}};
    ra_status status = ra_comm_barrier(comm, operation);
    for (size_t i = 0; i < sizeof(loops) / sizeof(loops[0]) && status == RA_OK; i++) {
        *loops[i].tflops = loop_measure(threads, loops[i].loop);
        status = ra_comm_barrier(comm, operation);
    }
    if (status != RA_OK)
        return status;
    *local_out = memory_measure(comm, threads, pool, limits);
    status = ra_comm_barrier(comm, operation);
    if (status == RA_OK && *local_out == RA_OK)
        *local_out = sgemm_measure(threads, pool, &limits->sgemm_tflops);
    return status;
}

enum { RATES = 6 };
_Static_assert(sizeof(ra_limits) - offsetof(ra_limits, fma_tflops) == RATES * sizeof(double),
               "ranks add rates up where they lie, one after another");

ra_status ra_limits_measure(ra_comm *comm, int threads, ra_pool *pool, ra_limits *limits_out)
{
    RA_ASSERT(threads >= 1);
#ifndef _OPENMP
    threads = 1;
#endif
    ra_limits limits = {.ranks = ra_comm_size(comm), .threads = threads};
    ra_status local = RA_OK;
    ra_status status = all_measure(comm, threads, pool, &limits, &local);
    if (status == RA_OK)
        status = ra_comm_agree(comm, "gathering limits", local);
    if (status == RA_OK)
        status = ra_comm_reduce_f64(comm, "gathering limits", RA_SUM, &limits.fma_tflops, RATES);
    if (status == RA_OK)
        *limits_out = limits;
    return status;
}

double ra_limits_of_dtype(const ra_limits *limits, ra_dtype dtype, const char **name_out)
{
    if (dtype == RA_F32 && limits->sgemm_tflops > 0) {
        *name_out = "sgemm";
        return limits->sgemm_tflops;
    }
    *name_out = "fma";
    if (dtype != RA_BF16)
        return limits->fma_tflops;
    /* Some processors have vdpbf16ps, and do it slower than two multiply-adds. */
    double most = limits->fma_tflops;
    if (limits->dpbf16_tflops > most) {
        *name_out = "dpbf16";
        most = limits->dpbf16_tflops;
    }
    if (limits->amx_tflops > most) {
        *name_out = "amx";
        most = limits->amx_tflops;
    }
    return most;
}

double ra_limits_of_gpu(const ra_device *device, ra_dtype dtype, const char **name_out)
{
    static const struct {
        int32_t major, minor;
        double tensor, fma; /* operations of a multiprocessor per clock; 0: not known */
    } rates[] = {{8, 0, 2048, 128}, {8, 6, 0, 256}, {8, 9, 0, 256}, {9, 0, 4096, 256}};
    double each = 0;
    *name_out = dtype == RA_F32 ? "fma" : "tensor";
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++)
        if (rates[i].major == device->major && rates[i].minor == device->minor)
            each = dtype == RA_F32 ? rates[i].fma : rates[i].tensor;
    double const clock_thz = 1e-9 * (double)device->clock_khz;
    return each > 0 && clock_thz > 0 ? each * device->multiprocessors * clock_thz : (double)NAN;
}

/* null: not measured. */
static json_t *known(double value)
{
    return value > 0 && isfinite(value) ? json_real(value) : json_null();
}

json_t *ra_limits_to_json(const ra_limits *limits)
{
    return json_pack("{s:i, s:i, s:f, s:o, s:o, s:o, s:o, s:o, s:o}", "ranks", limits->ranks,
                     "threads", limits->threads, "begin_ms", limits->begin_ms, "fma_tflops",
                     known(limits->fma_tflops), "dpbf16_tflops", known(limits->dpbf16_tflops),
                     "amx_tflops", known(limits->amx_tflops), "sgemm_tflops",
                     known(limits->sgemm_tflops), "read_gb_per_s", known(limits->read_gb_per_s),
                     "copy_gb_per_s", known(limits->copy_gb_per_s));
}
