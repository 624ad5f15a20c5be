/* Timelines over the stand-in runtime: times, order, bounds, and what a runtime that fails takes.
 */
#include "pool/timeline_cuda.h"
#include "support/captured_log.h"
#include "support/standin_cudart.h"

#include <criterion/criterion.h>
#include <time.h>

static int64_t const WORK_NS = (int64_t)100 * 1000000000;

static captured_log said;

static void begin(void)
{
    standin_reset();
    captured_log_begin(&said);
}

TestSuite(timeline_cuda, .init = begin);

static int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static cudaStream_t make_stream(void)
{
    cudaStream_t stream = NULL;
    cr_assert_eq(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
}

static void work(void *context)
{
    (void)context;
}

static void enqueue(cudaStream_t stream)
{
    int nothing = 0;
    cudaError_t error = standin_enter();
    if (error == cudaSuccess)
        error = standin_enqueue(stream, work, &nothing, sizeof(nothing));
    cr_assert_eq(standin_leave(error), cudaSuccess);
}

static int32_t begin_on(ra_timeline *line, cudaStream_t stream, int64_t first)
{
    return ra_timeline_begin(line, (ra_stream *)stream, first, 1);
}

static void end_on(ra_timeline *line, cudaStream_t stream, int32_t span)
{
    ra_timeline_end(line, (ra_stream *)stream, span);
}

/* Work that takes 100 s, to within what a float of milliseconds holds. Between events on a stream
   that has nothing to do, the time that it took to enqueue what follows may have passed. */
static void expect_work(const ra_span *span, int64_t count, int64_t enqueuing_ns)
{
    int64_t const off_ns = span->end_ns - span->begin_ns - count * WORK_NS;
    cr_expect(off_ns > -100000 && off_ns < 100000 + enqueuing_ns, "%lld ns", (long long)off_ns);
}

Test(timeline_cuda, a_span_is_what_lies_between_its_ends)
{
    cudaStream_t const a = make_stream(), b = make_stream();
    ra_timeline *line = ra_timeline_create_cuda(3);
    ra_span spans[3];
    standin.work_ns = WORK_NS;
    int64_t const before_ns = clock_ns();
    ra_timeline_anchor(line, (ra_stream *)a);
    int32_t const outer = begin_on(line, a, 10);
    enqueue(a);
    int32_t const inner = begin_on(line, a, 20);
    enqueue(a);
    end_on(line, a, inner);
    enqueue(a);
    end_on(line, a, outer);
    int32_t const beside = ra_timeline_begin(line, (ra_stream *)b, 30, 2);
    enqueue(b);
    end_on(line, b, beside);
    int64_t const enqueuing_ns = clock_ns() - before_ns;
    cr_assert_eq(line->count, 3);
    for (int32_t i = 0; i < 3; i++)
        cr_assert(ra_timeline_read(line, i, &spans[i]));
    expect_work(&spans[outer], 3, enqueuing_ns);
    expect_work(&spans[inner], 1, enqueuing_ns);
    expect_work(&spans[beside], 1, enqueuing_ns);
    cr_expect_geq(spans[outer].begin_ns, before_ns);
    cr_expect_geq(spans[inner].begin_ns, spans[outer].begin_ns);
    cr_expect_leq(spans[inner].end_ns, spans[outer].end_ns);
    cr_expect_lt(spans[beside].begin_ns, spans[inner].begin_ns, "streams go side by side");
    cr_expect_eq(spans[outer].first, 10);
    cr_expect_eq(spans[beside].first, 30);
    cr_expect_eq(spans[beside].count, 2);
    ra_timeline_destroy(line);
    cr_expect_eq(standin.events, 0);
    cr_expect_eq(said.count, 0);
}

Test(timeline_cuda, is_bounded_and_begins_anew)
{
    cudaStream_t const stream = make_stream();
    ra_timeline *line = ra_timeline_create_cuda(2);
    int64_t const made = standin.events, calls = standin.calls;
    ra_span span;
    for (int round = 0; round < 2; round++) {
        ra_timeline_anchor(line, (ra_stream *)stream);
        cr_assert_eq(line->count, 0);
        int32_t const one = begin_on(line, stream, 1), two = begin_on(line, stream, 2);
        cr_assert(one == 0 && two == 1);
        cr_assert_eq(begin_on(line, stream, 3), -1, "there is room for two");
        end_on(line, stream, -1);
        end_on(line, stream, two);
        cr_expect_not(ra_timeline_read(line, one, &span), "it was not ended");
        cr_expect(ra_timeline_read(line, two, &span));
    }
    cr_expect_eq(standin.events, made, "events are made at create");
    cr_expect_gt(standin.calls, calls);
    ra_timeline_destroy(line);
    cr_expect_eq(said.count, 0);
}

Test(timeline_cuda, none_is_fine)
{
    ra_timeline_anchor(NULL, NULL);
    int32_t const span = ra_timeline_begin(NULL, NULL, 0, 1);
    cr_expect_eq(span, -1);
    ra_timeline_end(NULL, NULL, span);
    ra_timeline_destroy(NULL);
    cr_expect_eq(standin.calls, 0);
}

/* Every call fails in its turn: one line, no time that is wrong, and no event left. */
Test(timeline_cuda, any_call_that_fails_is_one_line)
{
    bool done = false;
    for (int64_t call = 1; !done; call++) {
        begin();
        cudaStream_t const stream = make_stream();
        ra_span span;
        int64_t const before = standin.calls;
        standin.fail_call = before + call;
        standin.fail_error = cudaErrorInvalidResourceHandle;
        ra_timeline *line = ra_timeline_create_cuda(1);
        ra_timeline_anchor(line, (ra_stream *)stream);
        int32_t const index = begin_on(line, stream, 7);
        end_on(line, stream, index);
        bool const known = index >= 0 && ra_timeline_read(line, index, &span);
        int64_t const used = standin.calls;
        bool const hit = standin.fail_call <= used;
        ra_timeline_destroy(line);
        cr_expect_eq(known, !hit, "call %lld", (long long)call);
        cr_expect(said.count == hit && said.warnings == hit, "call %lld: %d lines, at last: %s",
                  (long long)call, said.count, said.line);
        cr_expect_eq(cudaPeekAtLastError(), cudaSuccess, "nobody else is handed this error");
        cr_expect_leq(standin.events, hit ? 0 : 1, "only what the runtime would not take back");
        done = standin.fail_call > standin.calls;
    }
}

/* The runtime that never says that anything is over is given up, once. */
Test(timeline_cuda, a_gpu_that_never_ends_is_not_waited_for)
{
    cudaStream_t const stream = make_stream();
    ra_timeline *line = ra_timeline_create_cuda(1);
    standin.stream_is_over = 0;
    ra_timeline_anchor(line, (ra_stream *)stream);
    cr_expect_eq(begin_on(line, stream, 0), -1);
    ra_timeline_anchor(line, (ra_stream *)stream);
    cr_expect(said.count == 1 && said.warnings == 1);
    ra_timeline_destroy(line);
}
