/* Passes that only compute or only communicate: what the other half of them leaves undone. */
#include "ring/ring_job.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { SEQ = 120, HEADS = 2, DIM = 8, ELEMENTS = SEQ * HEADS * DIM };

/* out dq dk dv of the last job. */
static float results[4][ELEMENTS];

static int64_t sent_bytes(int ranks, ra_schedule schedule, int buffers, ra_ring_mode mode)
{
    ring_job job = ring_job_heads(ranks, SEQ, HEADS, HEADS, DIM, RA_F32);
    const void *const outputs[] = {job.out, job.dq, job.dk, job.dv};
    job.config.schedule = schedule;
    job.config.comm_buffers = buffers;
    job.mode = mode;
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK, "%d ranks, %s, %d buffers, mode %d: %s", ranks,
                 ra_schedule_name(schedule), buffers, mode, ra_status_name(job.status));
    cr_assert_eq(job.leaked_bytes, 0);
    for (int i = 0; i < 4; ++i)
        memcpy(results[i], outputs[i], sizeof(results[i]));
    ring_job_free(&job);
    return job.sent_bytes;
}

Test(ring_mode, communication_alone_sends_what_both_send_and_computing_alone_sends_nothing)
{
    static const ra_schedule schedules[] = {RA_SCHEDULE_RING, RA_SCHEDULE_DIRECT};
    for (int i = 0; i < 2; ++i)
        for (int buffers = 0; buffers <= 2; ++buffers)
            for (int ranks = 2; ranks <= 4; ++ranks) {
                int64_t const both = sent_bytes(ranks, schedules[i], buffers, RA_RING_BOTH);
                cr_expect_gt(both, 0);
                cr_expect_eq(sent_bytes(ranks, schedules[i], buffers, RA_RING_COMM_ONLY), both);
                cr_expect_eq(sent_bytes(ranks, schedules[i], buffers, RA_RING_COMPUTE_ONLY), 0);
            }
}

/* Trying out memory sends what a whole pass sends. */
Test(ring_mode, the_ends_of_a_pass_send_all_and_compute_the_rows_at_the_ends)
{
    static const ra_schedule schedules[] = {RA_SCHEDULE_RING, RA_SCHEDULE_DIRECT,
                                            RA_SCHEDULE_SHARED};
    static float both[ELEMENTS];
    for (int i = 0; i < 3; ++i)
        for (int ranks = 1; ranks <= 3; ++ranks) {
            int64_t const sent = sent_bytes(ranks, schedules[i], 2, RA_RING_BOTH);
            memcpy(both, results[0], sizeof(both));
            cr_expect_eq(sent_bytes(ranks, schedules[i], 2, RA_RING_ENDS_ONLY), sent);
            /* Shards of up to 120 rows are one chunk: its ends are all of it. */
            cr_expect_eq(memcmp(both, results[0], sizeof(both)), 0, "%d ranks, %s", ranks,
                         ra_schedule_name(schedules[i]));
        }
}

/* The rows of a tile at either end. Others of the output are left as memory was, full of NaN, and
   sums of gradients as they begin. */
Test(ring_mode, the_ends_of_a_long_pass_leave_what_is_between)
{
    enum { LONG_SEQ = 2000, ROW = HEADS * DIM };
    static float both[2][LONG_SEQ * ROW];
    for (int ends = 0; ends < 2; ++ends) {
        ring_job job = ring_job_heads(1, LONG_SEQ, HEADS, HEADS, DIM, RA_F32);
        int64_t const rows = ra_kernel_cpu(RA_ISA_AUTO)->tile_rows(RA_F32, DIM);
        int64_t const last = (LONG_SEQ - 1) / rows * rows;
        const float *const outputs[] = {job.out, job.dq};
        job.mode = ends ? RA_RING_ENDS_ONLY : RA_RING_BOTH;
        ring_job_run(&job);
        cr_assert_eq(job.status, RA_OK);
        cr_assert_gt(last, rows);
        for (int t = 0; t < 2 && ends; ++t)
            for (int64_t i = 0; i < (int64_t)LONG_SEQ * ROW; ++i) {
                bool const at_end = i / ROW < rows || i / ROW >= last;
                float const found = outputs[t][i];
                cr_assert(at_end   ? found == both[t][i]
                          : t == 0 ? isnan(found)
                                   : found == 0,
                          "output %d, row %lld: %g", t, (long long)(i / ROW), (double)found);
            }
        for (int t = 0; t < 2; ++t)
            memcpy(both[t], outputs[t], sizeof(both[t]));
        ring_job_free(&job);
    }
}

static bool is_zero(const float *values, int count)
{
    for (int i = 0; i < count; ++i)
        if (values[i] != 0)
            return false;
    return true;
}

/* On one rank there is nothing to communicate: computing alone is all of it. */
Test(ring_mode, on_one_rank_computing_alone_gives_the_results_and_communication_alone_none)
{
    static float both[4][ELEMENTS];
    cr_expect_eq(sent_bytes(1, RA_SCHEDULE_DIRECT, 2, RA_RING_BOTH), 0);
    memcpy(both, results, sizeof(both));
    cr_expect_eq(sent_bytes(1, RA_SCHEDULE_DIRECT, 2, RA_RING_COMPUTE_ONLY), 0);
    cr_expect_not(is_zero(both[0], ELEMENTS) || is_zero(both[1], ELEMENTS));
    cr_expect_eq(memcmp(both, results, sizeof(both)), 0);
    cr_expect_eq(sent_bytes(1, RA_SCHEDULE_DIRECT, 2, RA_RING_COMM_ONLY), 0);
    cr_expect(is_zero(results[1], ELEMENTS), "a kernel has computed dq");
}
