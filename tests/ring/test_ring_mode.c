/* Passes that only compute or only communicate: what the other half of them leaves undone. */
#include "ring/ring_job.h"

#include <criterion/criterion.h>
#include <string.h>

enum { SEQ = 120, HEADS = 2, DIM = 8, ELEMENTS = SEQ * HEADS * DIM };

static float in[ELEMENTS], out[4][ELEMENTS], lse[SEQ * HEADS];

static ring_job make_job(int ranks, ra_schedule schedule, int buffers, ra_ring_mode mode)
{
    ring_job job = {.config = {.batch = 1,
                               .seq = SEQ,
                               .heads = HEADS,
                               .kv_heads = HEADS,
                               .dim = DIM,
                               .dtype = RA_F32,
                               .layout = RA_LAYOUT_ZIGZAG,
                               .schedule = schedule,
                               .comm_buffers = buffers,
                               .backward = true},
                    .pattern = ra_pattern_config_dense(),
                    .ranks = ranks,
                    .mode = mode,
                    .q = in,
                    .k = in,
                    .v = in,
                    .dout = in,
                    .out = out[0],
                    .dq = out[1],
                    .dk = out[2],
                    .dv = out[3],
                    .lse = lse};
    job.pattern.causal = true;
    for (int i = 0; i < ELEMENTS; ++i)
        in[i] = (float)(i % 13 - 6) / 8;
    return job;
}

static int64_t sent_bytes(int ranks, ra_schedule schedule, int buffers, ra_ring_mode mode)
{
    ring_job job = make_job(ranks, schedule, buffers, mode);
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK, "%d ranks, %s, %d buffers, mode %d: %s", ranks,
                 ra_schedule_name(schedule), buffers, mode, ra_status_name(job.status));
    cr_assert_eq(job.leaked_bytes, 0);
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
            memset(out, 0, sizeof(out));
            int64_t const sent = sent_bytes(ranks, schedules[i], 2, RA_RING_BOTH);
            memcpy(both, out[0], sizeof(both));
            memset(out, 0, sizeof(out));
            cr_expect_eq(sent_bytes(ranks, schedules[i], 2, RA_RING_ENDS_ONLY), sent);
            /* Shards of up to 120 rows are one chunk: its ends are all of it. */
            cr_expect_eq(memcmp(both, out[0], sizeof(both)), 0, "%d ranks, %s", ranks,
                         ra_schedule_name(schedules[i]));
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
    memcpy(both, out, sizeof(both));
    memset(out, 0, sizeof(out));
    cr_expect_eq(sent_bytes(1, RA_SCHEDULE_DIRECT, 2, RA_RING_COMPUTE_ONLY), 0);
    cr_expect_not(is_zero(both[0], ELEMENTS) || is_zero(both[1], ELEMENTS));
    cr_expect_eq(memcmp(both, out, sizeof(both)), 0);
    cr_expect_eq(sent_bytes(1, RA_SCHEDULE_DIRECT, 2, RA_RING_COMM_ONLY), 0);
    cr_expect(is_zero(out[1], ELEMENTS), "a kernel has computed dq");
}
