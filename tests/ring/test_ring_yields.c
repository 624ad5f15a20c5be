/* Kernels are told of exchanges that are under way, and of no others, and say that they work. */
#include "ring/ring_job.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ = 90, DIM = 4, FORWARD = 0, BACKWARD = 1 };

/* ---- what is under way, of a rank, which is a thread ----------------------------------------- */

static _Thread_local int under_way;

ra_status __real_ra_comm_start(ra_comm *comm, const ra_exchange *exchange,
                               ra_transfer **transfer_out);
ra_status __wrap_ra_comm_start(ra_comm *comm, const ra_exchange *exchange,
                               ra_transfer **transfer_out);
ra_status __real_ra_comm_wait(ra_comm *comm, ra_transfer *transfer);
ra_status __wrap_ra_comm_wait(ra_comm *comm, ra_transfer *transfer);

ra_status __wrap_ra_comm_start(ra_comm *comm, const ra_exchange *exchange,
                               ra_transfer **transfer_out)
{
    under_way++;
    return __real_ra_comm_start(comm, exchange, transfer_out);
}

ra_status __wrap_ra_comm_wait(ra_comm *comm, ra_transfer *transfer)
{
    under_way--;
    return __real_ra_comm_wait(comm, transfer);
}

/* ---- who hears of work ----------------------------------------------------------------------- */

static _Thread_local int beats;
static atomic_int polls, silent_polls;

void __real_ra_comm_beat(ra_comm *comm);
void __wrap_ra_comm_beat(ra_comm *comm);

void __wrap_ra_comm_beat(ra_comm *comm)
{
    beats++;
    __real_ra_comm_beat(comm);
}

/* As kernels do it while they compute. */
static void poll(const ra_kernel *kernel)
{
    int const before = beats;
    kernel->poll(kernel->poll_context);
    atomic_fetch_add(&polls, 1);
    atomic_fetch_add(&silent_polls, beats == before);
}

static ra_status poll_forward(ra_kernel *kernel, const ra_forward_step *step)
{
    poll(kernel);
    return ra_kernel_cpu(RA_ISA_AUTO)->forward(kernel, step);
}

static ra_status poll_backward(ra_kernel *kernel, const ra_backward_step *step)
{
    poll(kernel);
    return ra_kernel_cpu(RA_ISA_AUTO)->backward(kernel, step);
}

/* Else the others, who may wait, would give a rank up that computes for long. */
Test(ring_yields, whatever_polls_tells_others_of_work)
{
    for (int schedule = RA_SCHEDULE_RING; schedule <= RA_SCHEDULE_SHARED; ++schedule) {
        ra_kernel_ops ops = *ra_kernel_cpu(RA_ISA_AUTO);
        ops.forward = poll_forward;
        ops.backward = poll_backward;
        ring_job job = ring_job_waves(3, SEQ, DIM, 2, (ra_schedule)schedule);
        job.kernel = &ops;
        polls = silent_polls = 0;
        ring_job_run(&job);
        cr_assert_eq(job.status, RA_OK, "%s", ra_status_name(job.status));
        cr_expect_geq(polls, 2 * 3, "schedule %d", schedule);
        cr_expect_eq(silent_polls, 0, "schedule %d", schedule);
        ring_job_free(&job);
    }
}

/* ---- what kernels are told ------------------------------------------------------------------- */

static atomic_int wrong;                          /* steps that were told otherwise */
static atomic_int told[2][RING_JOB_RANKS_MAX][2]; /* [pass][step]: steps that stay, and yield */

static void record(int pass, const ra_kernel_pair *pair, bool yields)
{
    atomic_fetch_add(&wrong, yields != (under_way > 0));
    atomic_fetch_add(&told[pass][pair->step][yields], 1);
}

static ra_status record_forward(ra_kernel *kernel, const ra_forward_step *step)
{
    record(FORWARD, &step->pair, step->yields);
    return ra_kernel_cpu(RA_ISA_AUTO)->forward(kernel, step);
}

static ra_status record_backward(ra_kernel *kernel, const ra_backward_step *step)
{
    record(BACKWARD, &step->pair, step->yields);
    return ra_kernel_cpu(RA_ISA_AUTO)->backward(kernel, step);
}

static void run(int ranks, int buffers, ra_schedule schedule, ra_layout_kind layout)
{
    ra_kernel_ops ops = *ra_kernel_cpu(RA_ISA_AUTO);
    ops.forward = record_forward;
    ops.backward = record_backward;
    ring_job job = ring_job_waves(ranks, SEQ, DIM, buffers, schedule);
    job.kernel = &ops;
    job.config.layout = layout;
    wrong = 0;
    memset(told, 0, sizeof(told));
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK, "%s", ra_status_name(job.status));
    cr_expect_eq(wrong, 0, "%d ranks, %d buffers, schedule %d, layout %d", ranks, buffers,
                 (int)schedule, (int)layout);
    ring_job_free(&job);
}

static void expect_step(int ranks, int pass, int step, bool yields)
{
    cr_expect_eq(told[pass][step][yields], ranks, "%d ranks, pass %d, step %d", ranks, pass, step);
    cr_expect_eq(told[pass][step][!yields], 0, "%d ranks, pass %d, step %d", ranks, pass, step);
}

static const ra_schedule schedules[] = {RA_SCHEDULE_RING, RA_SCHEDULE_DIRECT};

/* Keys of the next step, and gradients of the one before, which step 0 has none of. */
Test(ring_yields, while_the_next_keys_or_the_last_gradients_travel)
{
    for (int ranks = 1; ranks <= 4; ++ranks)
        for (int i = 0; i < 2; ++i) {
            run(ranks, 2, schedules[i], RA_LAYOUT_ZIGZAG);
            for (int s = 0; s < ranks; ++s) {
                expect_step(ranks, FORWARD, s, s + 1 < ranks);
                expect_step(ranks, BACKWARD, s, s + 1 < ranks || s > 1);
            }
        }
}

Test(ring_yields, never_where_what_travels_is_waited_for_at_once)
{
    for (int buffers = 0; buffers <= 1; ++buffers)
        for (int i = 0; i < 2; ++i) {
            run(3, buffers, schedules[i], RA_LAYOUT_ZIGZAG);
            for (int s = 0; s < 3; ++s) {
                expect_step(3, FORWARD, s, false);
                expect_step(3, BACKWARD, s, false);
            }
        }
}

/* Rank 1 of three is sent none of rank 2, and sends rank 0 none, whose rows come first. */
Test(ring_yields, only_on_ranks_that_have_a_message)
{
    run(3, 2, RA_SCHEDULE_DIRECT, RA_LAYOUT_CONTIGUOUS);
    expect_step(3, FORWARD, 0, true);
    cr_expect_eq(told[FORWARD][1][false], 1); /* rank 1, before a step without it */
    cr_expect_eq(told[FORWARD][1][true], 1);  /* rank 2; rank 0 has nothing to compute */
}
