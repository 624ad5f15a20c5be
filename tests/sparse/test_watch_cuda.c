/* A GPU that hangs is told from one that takes long, on the stand-in runtime. */
#include "ringattn/device.h"
#include "ringattn/kernel.h"
#include "sparse/cuda/cuda_internal.h"
#include "support/captured_log.h"
#include "support/standin_cudart.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TIMEOUT_MS = 64 };

TestSuite(watch_cuda, .timeout = 100);

static captured_log said;
static int64_t set_ns; /* what the clock says; 0: the time */

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    if (set_ns == 0)
        return __real_clock_gettime(clock, time);
    *time = (struct timespec){.tv_sec = set_ns / 1000000000, .tv_nsec = set_ns % 1000000000};
    return 0;
}

typedef struct job {
    ra_ledger *ledger;
    ra_pool *pool;
    ra_kernel kernel;
    ra_block data;
} job;

static void begin(job *j, ra_pool_mode mode)
{
    ra_memory memory = {0};
    standin_reset();
    captured_log_begin(&said);
    cr_assert_eq(ra_memory_device(0, &memory), RA_OK);
    cr_assert_eq(ra_ledger_create(INT64_MAX, &j->ledger), RA_OK);
    ra_pool_config const config = {.mode = mode, .memory = memory, .ledger = j->ledger};
    cr_assert_eq(ra_pool_create(&config, &j->pool), RA_OK);
    cr_assert_eq(ra_kernel_init(ra_kernel_cuda(), &(ra_kernel_use){.dim = 16, .threads = 1},
                                j->pool, &j->kernel),
                 RA_OK);
    cr_assert_eq(ra_pool_alloc(j->pool, RA_MEM_QKV, 4096, j->kernel.stream, &j->data), RA_OK);
    j->kernel.timeout_ms = TIMEOUT_MS;
}

static void end(job *j)
{
    ra_pool_free(j->pool, j->kernel.stream, &j->data);
    ra_kernel_fini(&j->kernel);
    ra_pool_destroy(j->pool);
    ra_ledger_destroy(j->ledger);
}

static void hang_on(cudaStream_t stream)
{
    cr_assert_eq(standin_enter(), cudaSuccess);
    cr_assert_eq(standin_leave(standin_enqueue_hang(stream)), cudaSuccess);
}

static void hang(job *j)
{
    hang_on((cudaStream_t)j->kernel.stream);
}

/* The stand-in ends the process where giving back would wait. */
static void expect_lost(ra_pool_mode mode)
{
    job j = {0};
    begin(&j, mode);
    cr_assert_eq(j.kernel.ops->zero(&j.kernel, j.data.data, 64), RA_OK);
    hang(&j);
    cr_assert_eq(j.kernel.ops->zero(&j.kernel, j.data.data, 64), RA_OK);
    cr_expect_eq(ra_kernel_finish(&j.kernel), RA_ERR_TIMEOUT);
    cr_expect_eq(said.errors, 1);
    cr_expect_not_null(strstr(said.line, "GPU 0 hangs"), "%s", said.line);
    cr_expect_not_null(strstr(said.line, "0.064 s"), "%s", said.line);
    cr_expect(ra_device_is_lost());
    end(&j);
    cr_expect_eq(said.errors, 1, "%s", said.line);
}

Test(watch_cuda, loses_a_gpu_that_hangs)
{
    expect_lost(RA_POOL_OFF);
}

Test(watch_cuda, loses_one_whose_memory_is_kept)
{
    expect_lost(RA_POOL_SIZE_CLASS);
}

Test(watch_cuda, loses_one_whose_driver_has_a_pool)
{
    expect_lost(RA_POOL_DRIVER);
}

/* Work that is over after many questions, far more than the deadline has room for. */
typedef struct slow {
    uint32_t *ticket; /* NULL: it draws none */
    int *asked;
    int most;
} slow;

static int slow_is_over(void *context)
{
    const slow *const s = context;
    if (s->ticket != NULL)
        ++*s->ticket;
    return ++*s->asked >= s->most;
}

static void enqueue_on(cudaStream_t stream, int (*is_over)(void *context), const void *context,
                       size_t bytes)
{
    cr_assert_eq(standin_enter(), cudaSuccess);
    cr_assert_eq(standin_enqueue_wait(stream, is_over, context, bytes), cudaSuccess);
    cr_assert_eq(standin_leave(cudaSuccess), cudaSuccess);
}

static void enqueue(job *j, const slow *work)
{
    enqueue_on((cudaStream_t)j->kernel.stream, slow_is_over, work, sizeof(*work));
}

/* But for the first, every question takes 20 us at least: so many last several deadlines. */
enum { QUESTIONS = 5 * TIMEOUT_MS * 1000 / 20 };

Test(watch_cuda, waits_for_a_kernel_whose_tasks_move)
{
    job j = {0};
    int asked = 0;
    begin(&j, RA_POOL_OFF);
    slow const work = {.ticket = j.data.data, .asked = &asked, .most = QUESTIONS};
    ra_cuda_watch_launch(&j.kernel, "test", &(ra_kernel_pair){0}, j.data.data);
    enqueue(&j, &work);
    cr_expect_eq(ra_kernel_finish(&j.kernel), RA_OK, "%s", said.line);
    cr_expect_eq(asked, QUESTIONS);
    cr_expect_not(ra_device_is_lost());
    end(&j);
    cr_expect_eq(said.errors, 0);
}

/* Short ones that draw no tickets: each is over before it was looked at often enough. */
Test(watch_cuda, waits_for_many_calls)
{
    enum { CALLS = QUESTIONS / 4 };
    static int asked[CALLS];
    job j = {0};
    begin(&j, RA_POOL_OFF);
    for (int i = 0; i < CALLS; i++) {
        slow const work = {.asked = &asked[i], .most = 4};
        enqueue(&j, &work);
        cr_assert_eq(ra_cuda_enter(&j.kernel), RA_OK);
    }
    cr_expect_eq(ra_kernel_finish(&j.kernel), RA_OK, "%s", said.line);
    cr_expect_not(ra_device_is_lost());
    end(&j);
    cr_expect_eq(said.errors, 0);
}

/* Work that is over when a look is on its way. */
static int is_looked_at(void *context)
{
    return (*(const ra_cuda_watch **)context)->asked;
}

static ra_cuda_watch *enqueue_until_look(job *j)
{
    ra_cuda_watch *const watch = &ra_cuda_self(&j->kernel)->watch;
    enqueue_on((cudaStream_t)j->kernel.stream, is_looked_at, &watch, sizeof(watch));
    return watch;
}

/* It reads the workspace, which may be given back then. */
Test(watch_cuda, ends_with_no_look_on_its_way)
{
    enum { LOOK_QUESTIONS = 3 };
    job j = {0};
    int asked = 0;
    begin(&j, RA_POOL_OFF);
    j.kernel.timeout_ms = 8000; /* for few questions, of which the machine may be late with any */
    slow const before = {.asked = &asked, .most = LOOK_QUESTIONS};
    const ra_cuda_watch *const watch = enqueue_until_look(&j);
    enqueue_on(watch->stream, slow_is_over, &before, sizeof(before));
    cr_expect_eq(ra_kernel_finish(&j.kernel), RA_OK, "%s", said.line);
    cr_expect_eq(asked, LOOK_QUESTIONS);
    cr_expect_not(watch->asked);
    cr_expect_not(ra_device_is_lost());
    end(&j);
    cr_expect_eq(said.errors, 0);
}

Test(watch_cuda, loses_a_gpu_whose_last_look_hangs)
{
    job j = {0};
    begin(&j, RA_POOL_OFF);
    hang_on(enqueue_until_look(&j)->stream);
    cr_expect_eq(ra_kernel_finish(&j.kernel), RA_ERR_TIMEOUT);
    cr_expect_eq(said.errors, 1);
    cr_expect_not_null(strstr(said.line, "GPU 0 hangs"), "%s", said.line);
    cr_expect(ra_device_is_lost());
    end(&j);
    cr_expect_eq(said.errors, 1, "%s", said.line);
}

/* Rows in so many pieces take more launches than a queue does, of which the next one would wait. */
Test(watch_cuda, moving_rows_in_many_pieces_waits_with_a_deadline)
{
    enum { PIECES = 96 * 2 * RA_CUDA_QUEUE };
    job j = {0};
    begin(&j, RA_POOL_OFF);
    ra_kernel_shape const shape = {.batch = 1, .kv_heads = 1, .q_heads = 1, .dim = 16};
    ra_view const all = {.data = j.data.data, .dtype = RA_F32}; /* one row, again and again */
    ra_rowset rows = {.piece_count = PIECES, .row_count = PIECES};
    rows.pieces = calloc(PIECES, sizeof(*rows.pieces));
    cr_assert_not_null(rows.pieces);
    for (int64_t i = 0; i < PIECES; i++)
        rows.pieces[i] = (ra_row_piece){{0, 1, 1}, i};
    int64_t const before = standin.launches;
    hang(&j);
    cr_expect_eq(j.kernel.ops->gather(&j.kernel, &shape, &rows, &all, &all), RA_ERR_TIMEOUT);
    cr_expect_leq(standin.launches - before, RA_CUDA_QUEUE / 4);
    cr_expect(ra_device_is_lost());
    free(rows.pieces);
    end(&j);
    cr_expect_eq(said.errors, 1, "%s", said.line);
}

/* ---- by a clock that is set ------------------------------------------------------------------ */

#define TIMEOUT_NS ((int64_t)TIMEOUT_MS * 1000000)
#define LOOK_NS    (TIMEOUT_NS / 8)

static ra_status look_after(job *j, int64_t ns)
{
    set_ns += ns;
    return j->kernel.ops->watch(&j->kernel);
}

static void begin_to_hang(job *j)
{
    begin(j, RA_POOL_OFF);
    set_ns = 1000000000;
    hang(j);
    for (int i = 0; i < 2; i++) /* that what was given before is over is nothing new then */
        cr_assert_eq(look_after(j, LOOK_NS), RA_OK);
    cr_assert_eq(ra_cuda_enter(&j->kernel), RA_OK);
}

/* The ninth, as the first may tell what was before the call. */
Test(watch_cuda, loses_a_gpu_that_nine_looks_find_where_it_was)
{
    job j = {0};
    begin_to_hang(&j);
    for (int i = 0; i < 8; i++) {
        cr_expect_eq(look_after(&j, LOOK_NS), RA_OK, "look %d", i);
        cr_expect_eq(look_after(&j, 0), RA_OK, "too soon to be a look");
    }
    cr_expect_eq(look_after(&j, LOOK_NS - 1), RA_OK);
    cr_expect_not(ra_device_is_lost());
    cr_expect_eq(look_after(&j, 1), RA_ERR_TIMEOUT);
    cr_expect(ra_device_is_lost());
    end(&j);
}

/* As is one whose machine slept. */
Test(watch_cuda, loses_none_for_a_process_that_was_suspended)
{
    job j = {0};
    begin_to_hang(&j);
    for (int i = 0; i < 8; i++)
        cr_expect_eq(look_after(&j, 10 * TIMEOUT_NS), RA_OK, "look %d", i);
    cr_expect_eq(look_after(&j, LOOK_NS - 1), RA_OK);
    cr_expect_eq(look_after(&j, 1), RA_ERR_TIMEOUT);
    end(&j);
}

/* Though nothing that was given before it is over. */
Test(watch_cuda, a_call_has_the_whole_deadline)
{
    job j = {0};
    begin_to_hang(&j);
    for (int call = 0; call < 3; call++) {
        for (int i = 0; i < 8; i++)
            cr_expect_eq(look_after(&j, LOOK_NS), RA_OK, "call %d, look %d", call, i);
        set_ns += LOOK_NS;
        cr_assert_eq(ra_cuda_enter(&j.kernel), RA_OK);
        cr_expect_eq(look_after(&j, 0), RA_OK, "it is not looked for at once");
    }
    for (int i = 0; i < 8; i++)
        cr_expect_eq(look_after(&j, LOOK_NS), RA_OK, "look %d", i);
    cr_expect_eq(look_after(&j, LOOK_NS), RA_ERR_TIMEOUT);
    end(&j);
}

/* Polls until the deadline has passed, and no longer. */
static void pass_a_quarter(void *context)
{
    ++*(int *)context;
    set_ns += TIMEOUT_NS / 4;
}

Test(watch_cuda, waits_for_its_last_look_as_long_as_for_work)
{
    job j = {0};
    int polls = 0;
    begin(&j, RA_POOL_OFF);
    ra_cuda_watch *const watch = enqueue_until_look(&j);
    hang_on(watch->stream);
    set_ns = 1000000000;
    cr_assert_eq(ra_cuda_enter(&j.kernel), RA_OK);
    cr_assert_eq(look_after(&j, LOOK_NS), RA_OK);
    cr_assert(watch->asked);
    j.kernel.poll = pass_a_quarter;
    j.kernel.poll_context = &polls;
    cr_expect_eq(ra_cuda_watch_wait(&j.kernel), RA_ERR_TIMEOUT);
    cr_expect_eq(polls, 5);
    cr_expect_eq(said.errors, 1);
    end(&j);
}

/* However long a deadline is, it is one. */
Test(watch_cuda, waits_for_a_gpu_without_end_where_it_may)
{
    enum { LOOKS = 400 };
    int asked = 0;
    slow const work = {.asked = &asked, .most = LOOKS};
    ra_kernel_use const use = {.dim = 16, .threads = 1, .timeout_ms = INT64_MAX};
    ra_kernel patient;
    job j = {0};
    begin(&j, RA_POOL_OFF);
    cr_assert_eq(ra_kernel_init(ra_kernel_cuda(), &use, j.pool, &patient), RA_OK);
    enqueue_on((cudaStream_t)patient.stream, slow_is_over, &work, sizeof(work));
    cr_expect_eq(ra_kernel_finish(&patient), RA_OK, "%s", said.line);
    cr_expect_eq(asked, LOOKS);
    ra_kernel_fini(&patient);
    end(&j);
}

Test(watch_cuda, names_the_step_that_was_given_last)
{
    job j = {0};
    begin(&j, RA_POOL_OFF);
    ra_cuda_watch_launch(&j.kernel, "backward kernel", &(ra_kernel_pair){.group = 2, .step = 7},
                         j.data.data);
    hang(&j);
    cr_expect_eq(ra_kernel_finish(&j.kernel), RA_ERR_TIMEOUT);
    cr_expect_not_null(strstr(said.line, "backward kernel of step 7, head group 2"), "%s",
                       said.line);
    end(&j);
}
