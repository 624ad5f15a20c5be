/*
 * What a ring asks of a table whose memory is not the host's: maps are taken before they are used
 * and dropped after, a pass ends when the kernel has finished, and what kernels never see comes
 * from the host's pool.
 */
#include "ring/ring_job.h"
#include "support/captured_log.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, SEQ = 90, DIM = 8, MAPS_MAX = 64 };

/* Of all ranks together; a rank's own by its kernel. */
static struct {
    atomic_int inits, finis, takes, drops, finishes, forwards, backwards, by_chunks;
    int fail_take; /* the one of this number, from 1 */
    int fail_finish;
    bool fail_init;
    atomic_int busy_takes, busy_gives; /* of memory, by a rank whose kernels may run */
} seen;

/* This rank's kernel may have work that was not waited for. */
static _Thread_local bool is_busy;

typedef struct own {
    const ra_tilemap *maps[MAPS_MAX];
    int map_count;
    bool by_chunks; /* its steps have steps of chunks, which were brought when it was idle */
} own;

static ra_status hook_init(ra_kernel *kernel)
{
    if (seen.fail_init) {
        ra_log(RA_LOG_ERROR, "test: no kernel");
        return RA_ERR_CUDA;
    }
    kernel->self = calloc(1, sizeof(own));
    cr_assert_not_null(kernel->self);
    ++seen.inits;
    return RA_OK;
}

static void hook_fini(ra_kernel *kernel)
{
    own *self = kernel->self;
    for (int i = 0; i < self->map_count; ++i)
        cr_expect_null(self->maps[i], "a map was not dropped");
    seen.by_chunks += self->by_chunks;
    free(self);
    ++seen.finis;
}

static int find(const own *self, const ra_tilemap *map)
{
    for (int i = 0; i < self->map_count; ++i)
        if (self->maps[i] == map)
            return i;
    return -1;
}

static ra_status hook_take_map(ra_kernel *kernel, const ra_tilemap *map)
{
    own *self = kernel->self;
    if (++seen.takes == seen.fail_take) {
        ra_log(RA_LOG_ERROR, "test: no room for a map");
        return RA_ERR_NO_MEMORY;
    }
    cr_assert_lt(self->map_count, MAPS_MAX);
    cr_assert_eq(find(self, map), -1, "taken once");
    self->maps[self->map_count++] = map;
    return RA_OK;
}

static void hook_drop_map(ra_kernel *kernel, const ra_tilemap *map)
{
    own *self = kernel->self;
    int const at = find(self, map);
    if (at < 0)
        return;
    self->maps[at] = NULL;
    ++seen.drops;
}

static ra_status hook_finish(ra_kernel *kernel)
{
    (void)kernel;
    is_busy = false;
    if (++seen.finishes == seen.fail_finish) {
        ra_log(RA_LOG_ERROR, "test: a kernel failed");
        return RA_ERR_CUDA;
    }
    return RA_OK;
}

static ra_status hook_forward(ra_kernel *kernel, const ra_forward_step *step)
{
    own *self = kernel->self;
    cr_assert_geq(find(self, step->map), 0, "a step's map was taken");
    self->by_chunks = self->by_chunks || step->state.chunks != NULL;
    ++seen.forwards;
    is_busy = true;
    return ra_kernel_cpu(RA_ISA_PORTABLE)->forward(kernel, step);
}

static ra_status hook_backward(ra_kernel *kernel, const ra_backward_step *step)
{
    own *self = kernel->self;
    cr_assert_geq(find(self, step->map), 0, "a step's map was taken");
    ++seen.backwards;
    is_busy = true;
    return ra_kernel_cpu(RA_ISA_PORTABLE)->backward(kernel, step);
}

static ra_kernel_ops hooked(void)
{
    ra_kernel_ops ops = *ra_kernel_cpu(RA_ISA_PORTABLE);
    ops.name = "hooked";
    ops.forward = hook_forward;
    ops.backward = hook_backward;
    ops.init = hook_init;
    ops.fini = hook_fini;
    ops.take_map = hook_take_map;
    ops.drop_map = hook_drop_map;
    ops.finish = hook_finish;
    return ops;
}

static captured_log said;

static void begin(void)
{
    memset(&seen, 0, sizeof(seen));
    captured_log_begin(&said);
}

TestSuite(ring_pools, .init = begin);

static ring_job make_job(const ra_kernel_ops *ops, ra_schedule schedule)
{
    ring_job job = ring_job_waves(RANKS, SEQ, DIM, 2, schedule);
    job.config.layout = RA_LAYOUT_CONTIGUOUS;
    job.kernel = ops;
    job.two_pools = true;
    return job;
}

static const ra_schedule schedules[] = {RA_SCHEDULE_RING, RA_SCHEDULE_DIRECT, RA_SCHEDULE_SHARED};

Test(ring_pools, every_map_is_taken_and_dropped_and_every_pass_finished)
{
    ra_kernel_ops const ops = hooked();
    for (int i = 0; i < 3; ++i) {
        begin();
        ring_job job = make_job(&ops, schedules[i]), plain = make_job(NULL, schedules[i]);
        plain.kernel = ra_kernel_cpu(RA_ISA_PORTABLE);
        plain.two_pools = false;
        ring_job_run(&job);
        ring_job_run(&plain);
        cr_assert_eq(job.status, RA_OK);
        cr_assert_eq(plain.status, RA_OK);
        cr_assert_eq(memcmp(job.out, plain.out, sizeof(float) * SEQ * DIM), 0);
        cr_assert_eq(memcmp(job.dk, plain.dk, sizeof(float) * SEQ * DIM), 0);
        cr_assert_eq(job.leaked_bytes, 0);
        cr_assert_eq(seen.inits, RANKS);
        cr_assert_eq(seen.finis, RANKS);
        cr_assert_eq(seen.takes, seen.drops);
        cr_assert_geq(seen.takes, RANKS);
        cr_assert_eq(seen.by_chunks > 0, schedules[i] != RA_SCHEDULE_SHARED);
        cr_assert_eq(seen.finishes, 2 * RANKS + seen.by_chunks,
                     "a forward and a backward pass each, and steps of chunks");
        cr_assert_gt(seen.forwards, 0);
        cr_assert_gt(seen.backwards, 0);
        /* Maps are as large as with one pool, but not in this one. */
        cr_assert_lt(job.peak_bytes, plain.peak_bytes);
        ring_job_free(&job);
        ring_job_free(&plain);
    }
}

static ra_status take_memory(const ra_memory *memory, size_t bytes, void **data_out)
{
    seen.busy_takes += is_busy;
    return ra_memory_host().ops->alloc(memory, bytes, data_out);
}

static void give_memory(const ra_memory *memory, void *data, size_t bytes)
{
    seen.busy_gives += is_busy;
    ra_memory_host().ops->free(memory, data, bytes);
}

/* Without standing buffers. A device may wait then for all of its work, without a deadline. */
Test(ring_pools, memory_of_steps_is_taken_and_given_back_when_kernels_have_finished)
{
    ra_kernel_ops const ops = hooked();
    ra_memory const host = ra_memory_host();
    ra_memory_ops watched = *host.ops;
    watched.alloc = take_memory;
    watched.free = give_memory;
    for (int i = 0; i < 3; ++i) {
        begin();
        ring_job job = make_job(&ops, schedules[i]);
        job.config.comm_buffers = 0;
        job.kernel_memory = (ra_memory){&watched, host.self};
        ring_job_run(&job);
        cr_assert_eq(job.status, RA_OK);
        cr_expect_eq(seen.busy_takes, 0, "%s", ra_schedule_name(schedules[i]));
        cr_expect_eq(seen.busy_gives, 0, "%s", ra_schedule_name(schedules[i]));
        ring_job_free(&job);
    }
}

static void check_failure(const ring_job *job, ra_status status, const char *what, int n)
{
    cr_assert_eq(job->status, status, "%s %d: %s", what, n, ra_status_name(job->status));
    cr_assert_eq(job->leaked_bytes, 0, "%s %d", what, n);
    cr_assert_eq(seen.inits, seen.finis, "%s %d", what, n);
    cr_assert_geq(said.errors, 1, "%s %d", what, n);
}

/* Wherever it happens, every rank ends, and what was taken is given back. */
Test(ring_pools, a_failure_of_any_hook_ends_the_job_on_all_ranks)
{
    ra_kernel_ops const ops = hooked();
    ra_status status = RA_ERR_NO_MEMORY;
    for (int n = 1; status != RA_OK; ++n) {
        cr_assert_lt(n, 100);
        begin();
        seen.fail_take = n;
        ring_job job = make_job(&ops, schedules[n % 3]);
        ring_job_run(&job);
        status = job.status;
        if (status != RA_OK)
            check_failure(&job, RA_ERR_NO_MEMORY, "taking map", n);
        cr_assert_eq(seen.drops, status == RA_OK ? seen.takes : seen.takes - 1);
        ring_job_free(&job);
    }
    status = RA_ERR_CUDA;
    for (int n = 1; status != RA_OK; ++n) {
        begin();
        seen.fail_finish = n;
        ring_job job = make_job(&ops, RA_SCHEDULE_DIRECT);
        ring_job_run(&job);
        status = job.status;
        if (status != RA_OK)
            check_failure(&job, RA_ERR_CUDA, "finishing", n);
        else
            cr_assert_eq(n, seen.finishes + 1);
        ring_job_free(&job);
    }
    begin();
    seen.fail_init = true;
    ring_job job = make_job(&ops, RA_SCHEDULE_DIRECT);
    ring_job_run(&job);
    check_failure(&job, RA_ERR_CUDA, "beginning", 0);
    ring_job_free(&job);
}
