/*
 * Rings whose messages go the way of those between GPUs, over stand-ins for the CUDA runtime and
 * for NCCL. Exchanges are carried out in order there and nothing is buffered: a schedule that
 * relied on either would stand still. The kernels are the CPU's, so that results are the same bit
 * for bit.
 */
#include "comm/comm_internal.h"
#include "ring/late_kernels.h"
#include "ring/on_gpus.h"
#include "ring/ring_job.h"
#include "support/captured_log.h"
#include "support/own_hosts.h"
#include "support/standin_cudart.h"
#include "support/standin_nccl.h"
#include "support/thin_sweep.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SEQ = 90, DIM = 4 };

static captured_log said;

static void begin(void)
{
    standin_reset();
    standin_nccl_reset();
    own_hosts_begin(); /* all ranks have the first GPU */
    captured_log_begin(&said);
}

TestSuite(ring_device, .init = begin);

static ring_job make_job(int ranks, int buffers, ra_schedule schedule)
{
    return ring_job_waves(ranks, SEQ, DIM, buffers, schedule);
}

/* Runs both, and gives them back. */
static void expect_same(ring_job *a, ring_job *b, const char *name)
{
    size_t const bytes = sizeof(float) * SEQ * DIM;
    ring_job_run(a);
    ring_job_run(b);
    cr_assert_eq(a->status, RA_OK, "%s: %s", name, ra_status_name(a->status));
    cr_assert_eq(b->status, RA_OK);
    cr_expect_eq(a->leaked_bytes, 0);
    cr_expect(a->left_comm, "%s", name);
    cr_expect_eq(memcmp(a->out, b->out, bytes), 0, "%s: out", name);
    cr_expect_eq(memcmp(a->dq, b->dq, bytes), 0, "%s: dq", name);
    cr_expect_eq(memcmp(a->dk, b->dk, bytes), 0, "%s: dk", name);
    cr_expect_eq(memcmp(a->dv, b->dv, bytes), 0, "%s: dv", name);
    cr_expect_eq(a->sent_bytes, b->sent_bytes, "%s: %lld and %lld bytes", name,
                 (long long)a->sent_bytes, (long long)b->sent_bytes);
    ring_job_free(a);
    ring_job_free(b);
}

static void compare(device_maker *make, int ranks, int buffers, ra_schedule schedule, int window)
{
    char name[80];
    ring_job device = make_job(ranks, buffers, schedule), host = make_job(ranks, buffers, schedule);
    device.wrap_comm = wrap_on_gpu;
    device.wrap_context = &make;
    if (window > 0)
        device.pattern.window_left = host.pattern.window_left = window;
    snprintf(name, sizeof(name), "%d ranks, %d buffers, schedule %d, window %d", ranks, buffers,
             (int)schedule, window);
    expect_same(&device, &host, name);
}

static void compare_all(device_maker *make)
{
    for (int ranks = 2; ranks <= 4; ++ranks)
        for (int buffers = 0; buffers <= 2; ++buffers) {
            compare(make, ranks, buffers, RA_SCHEDULE_RING, 0);
            compare(make, ranks, buffers, RA_SCHEDULE_DIRECT, 0);
            compare(make, ranks, buffers, RA_SCHEDULE_DIRECT, 11);
        }
    compare(make, 3, 0, RA_SCHEDULE_SCAN, 0);
    cr_expect_eq(said.errors, 0);
}

Test(ring_device, gives_the_same_over_nccl)
{
    compare_all(ra_comm_create_nccl);
}

Test(ring_device, gives_the_same_through_pinned_memory)
{
    compare_all(ra_comm_create_staged);
}

/* Nothing is sent before it has been packed, and nothing used before it has come. */
static void compare_late(device_maker *make, int buffers, ra_schedule schedule)
{
    ra_kernel_ops const ops = late_kernels();
    char name[80];
    ring_job device = make_job(4, buffers, schedule), host = make_job(4, buffers, schedule);
    device.wrap_comm = wrap_on_gpu;
    device.wrap_context = &make;
    device.kernel = &ops;
    device.two_pools = true;
    cr_assert_eq(ra_memory_device(0, &device.kernel_memory), RA_OK);
    snprintf(name, sizeof(name), "late, %d buffers, schedule %d", buffers, (int)schedule);
    expect_same(&device, &host, name);
}

Test(ring_device, orders_messages_and_kernels)
{
    for (int buffers = 0; buffers <= 2; ++buffers) {
        compare_late(ra_comm_create_nccl, buffers, RA_SCHEDULE_RING);
        compare_late(ra_comm_create_nccl, buffers, RA_SCHEDULE_DIRECT);
        compare_late(ra_comm_create_staged, buffers, RA_SCHEDULE_RING);
        compare_late(ra_comm_create_staged, buffers, RA_SCHEDULE_DIRECT);
    }
    cr_expect_eq(said.errors, 0);
    cr_expect_eq(standin.late_frees, 0);
    cr_expect_eq(standin.blocks + standin.pinned_blocks + standin.events + standin.streams, 0);
}

/* Of auto nothing is asked that GPUs do not have; shared is refused in one line. */
Test(ring_device, shares_no_memory)
{
    device_maker *make = ra_comm_create_nccl;
    ring_job job = make_job(3, 2, RA_SCHEDULE_AUTO);
    job.wrap_comm = wrap_on_gpu;
    job.wrap_context = &make;
    ring_job_run(&job);
    cr_expect_eq(job.status, RA_OK);
    cr_expect_neq(job.info.schedule, RA_SCHEDULE_SHARED);
    cr_expect_eq(said.errors, 0);
    job.config.schedule = RA_SCHEDULE_SHARED;
    ring_job_run(&job);
    cr_expect_eq(job.status, RA_ERR_UNSUPPORTED);
    cr_expect_eq(said.errors, 1);
    cr_expect_not_null(strstr(said.line, "schedule shared: "), "%s", said.line);
    ring_job_free(&job);
}

/* Wherever NCCL fails, in a pass too, every rank ends and nothing leaks. */
Test(ring_device, survives_the_failure_of_any_call_to_nccl)
{
    thin_sweep const sweep = thin_sweep_begin(3);
    device_maker *make = ra_comm_create_nccl;
    ra_status status = RA_ERR_NCCL;
    for (long at = 1 + sweep.skipped; status != RA_OK; at += sweep.every) {
        begin();
        standin_nccl.fail_call = at;
        ring_job job = make_job(3, 2, RA_SCHEDULE_DIRECT);
        job.wrap_comm = wrap_on_gpu;
        job.wrap_context = &make;
        ring_job_run(&job);
        status = standin_nccl.calls >= at ? RA_ERR_NCCL : RA_OK;
        cr_assert_eq(job.status != RA_OK, said.errors > 0, "call %ld (%s): %s", at, sweep.text,
                     ra_status_name(job.status));
        cr_assert(status != RA_OK || job.status == RA_OK);
        cr_assert_eq(job.leaked_bytes, 0, "call %ld (%s) leaks", at, sweep.text);
        cr_assert_eq(standin_nccl.communicators, 0, "call %ld (%s)", at, sweep.text);
        ring_job_free(&job);
    }
    cr_expect_gt(standin_nccl.calls, 100);
}

/* ---- a table that takes memory in its steps -------------------------------------------------- */

static ra_kernel_ops late;

static ra_status begin_nothing(ra_kernel *kernel, const ra_kernel_pass *pass)
{
    (void)kernel, (void)pass;
    return RA_OK;
}

/* Takes a block, and gives it back when the step is over. One rank in three has a nap before, and
   sends nothing meanwhile; the others have theirs on a stream. */
static ra_status forward_in_block(ra_kernel *kernel, const ra_forward_step *step)
{
    static atomic_int calls;
    ra_block block;
    ra_status status = ra_pool_alloc(kernel->pool, RA_MEM_SCORES, 1 << 16, kernel->stream, &block);
    if (status != RA_OK)
        return status;
    if (atomic_fetch_add(&calls, 1) % 3 == 0)
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    for (int i = 0; i < 50; ++i)
        kernel->poll(kernel->poll_context);
    status = late.forward(kernel, step);
    if (status == RA_OK)
        status = ra_kernel_finish(kernel);
    ra_pool_free(kernel->pool, kernel->stream, &block);
    return status;
}

/* A GPU would wait for messages too, of which a peer may send none. */
Test(ring_device, gives_no_memory_back_beside_messages)
{
    device_maker *make = ra_comm_create_nccl;
    late = late_kernels();
    ra_kernel_ops ops = late;
    ops.begin = begin_nothing;
    ops.forward = forward_in_block;
    ring_job job = make_job(3, 2, RA_SCHEDULE_DIRECT);
    job.wrap_comm = wrap_on_gpu;
    job.wrap_context = &make;
    job.kernel = &ops;
    job.two_pools = true;
    cr_assert_eq(ra_memory_device(0, &job.kernel_memory), RA_OK);
    ring_job_run(&job);
    cr_expect_eq(job.status, RA_OK);
    cr_expect_eq(standin.late_frees, 0, "%lld waited", (long long)standin.late_frees);
    ring_job_free(&job);
}

/* Leaves the kernels' pool with 32 MiB that are idle, of 40 that were in use. */
static ra_status init_and_leave_idle(ra_kernel *kernel)
{
    ra_block first, second;
    ra_status status = late.init(kernel);
    if (status != RA_OK)
        return status;
    status = ra_pool_alloc(kernel->pool, RA_MEM_WORKSPACE, 8 << 20, NULL, &first);
    if (status == RA_OK)
        status = ra_pool_alloc(kernel->pool, RA_MEM_WORKSPACE, 32 << 20, NULL, &second);
    cr_assert_eq(status, RA_OK);
    ra_pool_free(kernel->pool, NULL, &first); /* what is taken next has it returned */
    ra_pool_free(kernel->pool, NULL, &second);
    return RA_OK;
}

/* The last of the buffers fit beside idle memory by their bytes, but not by NCCL's units. */
Test(ring_device, idle_memory_makes_way_for_whole_units_of_buffers)
{
    device_maker *make = ra_comm_create_nccl;
    late = late_kernels();
    ra_kernel_ops ops = late;
    ops.init = init_and_leave_idle;
    ring_job job = make_job(3, 2, RA_SCHEDULE_DIRECT);
    job.wrap_comm = wrap_on_gpu;
    job.wrap_context = &make;
    job.kernel = &ops;
    job.two_pools = true;
    job.pool_mode = RA_POOL_SIZE_CLASS;
    job.limit_bytes = 41 << 20;
    cr_assert_eq(ra_memory_device(0, &job.kernel_memory), RA_OK);
    ring_job_run(&job);
    cr_expect_eq(job.status, RA_OK, "%s", ra_status_name(job.status));
    cr_expect_eq(said.errors, 0, "%s", said.line);
    cr_expect_eq(job.leaked_bytes, 0);
    cr_expect_geq(job.peak_bytes, 40 << 20);
    ring_job_free(&job);
}

/* Messages in many pieces. */
static ra_comm *wrap_in_pieces(void *context, int rank, ra_comm *host)
{
    ra_comm *const comm = wrap_on_gpu(context, rank, host);
    if (strcmp(ra_comm_name(comm), "staged") == 0)
        ra_comm_staged_set_piece(comm, 100);
    return comm;
}

/*
 * Ranks agree in each step. Rank 0, whose queries come first, has no live pair from step 1 on, but
 * later ranks cannot come to the agreement before they have what it sends them.
 */
static void compare_dead_steps(device_maker *make, int ranks, int window)
{
    char name[80];
    ring_job device = make_job(ranks, 2, RA_SCHEDULE_DIRECT);
    ring_job host = make_job(ranks, 2, RA_SCHEDULE_DIRECT);
    late = late_kernels();
    ra_kernel_ops ops = late;
    ops.begin = begin_nothing;
    device.wrap_comm = wrap_in_pieces;
    device.wrap_context = &make;
    device.kernel = &ops;
    device.two_pools = true;
    device.timeout_ms = 60000;
    cr_assert_eq(ra_memory_device(0, &device.kernel_memory), RA_OK);
    device.config.layout = host.config.layout = RA_LAYOUT_CONTIGUOUS;
    if (window > 0) {
        device.pattern.window_left = host.pattern.window_left = window;
        device.pattern.sinks = host.pattern.sinks = 4;
    }
    snprintf(name, sizeof(name), "%d ranks, window %d", ranks, window);
    expect_same(&device, &host, name);
}

Test(ring_device, a_rank_without_a_live_pair_sends_on_before_it_agrees)
{
    for (int ranks = 3; ranks <= 4; ++ranks)
        for (int window = 0; window <= 11; window += 11) {
            compare_dead_steps(ra_comm_create_staged, ranks, window);
            standin_nccl.busy_polls = 200; /* a group comes late to its stream */
            compare_dead_steps(ra_comm_create_nccl, ranks, window);
        }
    cr_expect_eq(said.errors, 0);
}

/* ---- a pass that fails ----------------------------------------------------------------------- */

static void do_nothing(void *context)
{
    (void)context;
}

/* Leaves work on the stream that touches no memory: tensors are gone before the ring is. */
static ra_status forward_and_fail(ra_kernel *kernel, const ra_forward_step *step)
{
    ra_status status = late.forward(kernel, step);
    if (status != RA_OK || step->pair.step != 1)
        return status;
    status = ra_kernel_finish(kernel);
    if (standin_enter() == cudaSuccess)
        (void)standin_enqueue((cudaStream_t)kernel->stream, do_nothing, kernel, sizeof(*kernel));
    (void)standin_leave(cudaSuccess);
    return status == RA_OK ? RA_ERR_CUDA : status;
}

/* Its kernels may still use messages' memory, which NCCL unmaps at once: the stand-in ends the
   process where it would. */
Test(ring_device, waits_for_kernels_of_a_failed_pass_before_it_gives_buffers_back)
{
    device_maker *make = ra_comm_create_nccl;
    late = late_kernels();
    ra_kernel_ops ops = late;
    ops.forward = forward_and_fail;
    ops.memory = ra_kernel_cpu(RA_ISA_AUTO)->memory; /* a GPU's tensors would wait for it */
    ring_job job = make_job(3, 2, RA_SCHEDULE_DIRECT);
    job.wrap_comm = wrap_on_gpu;
    job.wrap_context = &make;
    job.kernel = &ops;
    ring_job_run(&job);
    cr_expect_eq(job.status, RA_ERR_CUDA, "%s", ra_status_name(job.status));
    cr_expect(job.in_pass);
    cr_expect_eq(job.leaked_bytes, 0);
    cr_expect_eq(standin.blocks + standin.events + standin.streams, 0);
    ring_job_free(&job);
}
