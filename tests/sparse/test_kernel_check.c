/* The check at start: agrees with every kernel of this machine, and catches broken ones. */
#include "ringattn/kernel_check.h"
#include "support/refusing_memory.h"
#include "support/sealed_memory.h"

#include <criterion/criterion.h>
#include <math.h>

TestSuite(kernel_check, .timeout = 600);

static ra_kernel_verdict check(const ra_kernel_ops *ops, ra_dtype dtype, int32_t dim, bool backward)
{
    ra_kernel_verdict verdict = {0};
    ra_kernel_use const use = {.dtype = dtype, .dim = dim, .backward = backward, .threads = 1};
    cr_assert_eq(ra_kernel_check(ops, ra_kernel_cpu(RA_ISA_PORTABLE), &use, NULL, NULL, &verdict),
                 RA_OK);
    return verdict;
}

static void expect_agreement(const ra_kernel_ops *ops, ra_dtype dtype, int32_t dim)
{
    ra_kernel_verdict const v = check(ops, dtype, dim, true);
    cr_expect(v.agrees, "%s %s %d: %s is off by %g of %g", ops->name, ra_dtype_name(dtype), dim,
              v.tensor, v.error, v.allowed);
}

Test(kernel_check, agrees_with_every_kernel_of_this_machine)
{
    static const int32_t dims[] = {1, 7, 40, 64, 256};
    for (int i = RA_ISA_PORTABLE; i <= RA_ISA_NEON + 1; ++i) {
        const ra_kernel_ops *ops =
            i <= RA_ISA_NEON ? ra_kernel_cpu((ra_isa)i) : ra_kernel_standard();
        for (int dtype = RA_F32; ops != NULL && dtype <= RA_BF16; ++dtype)
            for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); ++d)
                expect_agreement(ops, (ra_dtype)dtype, dims[d]);
    }
}

/* ---- broken kernels -------------------------------------------------------------------------- */

static const ra_kernel_ops *good; /* what a broken one is made from */

static ra_kernel_ops broken_forward(ra_status (*forward)(ra_kernel *, const ra_forward_step *))
{
    good = ra_kernel_cpu(RA_ISA_AUTO);
    ra_kernel_ops ops = *good;
    ops.forward = forward;
    return ops;
}

static ra_kernel_ops broken_backward(ra_status (*backward)(ra_kernel *, const ra_backward_step *))
{
    good = ra_kernel_cpu(RA_ISA_AUTO);
    ra_kernel_ops ops = *good;
    ops.backward = backward;
    return ops;
}

static int64_t last_row(const ra_forward_step *step)
{
    return (step->map->q_rows - 1) * step->out.row_stride;
}

/* One element of the last row, by as much as it may well be. */
static ra_status element_wrong(ra_kernel *kernel, const ra_forward_step *step)
{
    ra_status const status = good->forward(kernel, step);
    if (step->last)
        ra_dtype_store(step->out.dtype, step->out.data, last_row(step),
                       1 + ra_dtype_load(step->out.dtype, step->out.data, last_row(step)));
    return status;
}

static ra_status element_nan(ra_kernel *kernel, const ra_forward_step *step)
{
    ra_status const status = good->forward(kernel, step);
    if (step->last)
        ra_dtype_store(step->out.dtype, step->out.data, last_row(step), NAN);
    return status;
}

static ra_status lse_wrong(ra_kernel *kernel, const ra_forward_step *step)
{
    ra_status const status = good->forward(kernel, step);
    if (step->last)
        step->lse[step->map->q_rows - 1] += 0.01f;
    return status;
}

static ra_status lse_nan(ra_kernel *kernel, const ra_forward_step *step)
{
    ra_status const status = good->forward(kernel, step);
    if (step->last)
        step->lse[0] = NAN;
    return status;
}

/* The state of the steps before is dropped: only a job of several steps sees it. */
static ra_status state_dropped(ra_kernel *kernel, const ra_forward_step *step)
{
    ra_forward_step copy = *step;
    copy.first = true;
    copy.state.rows = step->map->q_rows;
    copy.state.chunks = NULL;
    return good->forward(kernel, &copy);
}

/* The steps of chunks are host memory here. */
static ra_status with_chunks(ra_kernel *kernel, const ra_forward_step *step, int32_t by_state,
                             bool none_skipped)
{
    ra_chunk_steps chunks[8];
    ra_forward_step copy = *step;
    cr_assert_leq(step->map->chunk_count, 8);
    for (int32_t c = 0; step->state.chunks != NULL && c < step->map->chunk_count; ++c) {
        chunks[c] = step->state.chunks[c];
        chunks[c].state_row += by_state;
        if (none_skipped && chunks[c].first == chunks[c].last)
            chunks[c].first = chunks[c].last = step->pair.step;
    }
    if (step->state.chunks != NULL)
        copy.state.chunks = chunks;
    return good->forward(kernel, &copy);
}

/* The last step reads the state of the next row. */
static ra_status state_misplaced(ra_kernel *kernel, const ra_forward_step *step)
{
    return with_chunks(kernel, step, step->last ? 1 : 0, false);
}

/* A chunk that an earlier step has finished is written again. */
static ra_status chunk_not_skipped(ra_kernel *kernel, const ra_forward_step *step)
{
    return with_chunks(kernel, step, 0, true);
}

static ra_status mask_ignored(ra_kernel *kernel, const ra_forward_step *step)
{
    for (uint32_t i = 0; i < step->map->run_count; ++i)
        if (step->map->runs[i].hi != RA_RUN_NONE_HI)
            step->map->runs[i].hi += 1; /* one key more than the pattern has */
    return good->forward(kernel, step);
}

static ra_status gradient_wrong(ra_kernel *kernel, const ra_backward_step *step)
{
    ra_status const status = good->backward(kernel, step);
    ((float *)step->dk.data)[0] += 1;
    return status;
}

static ra_status half_done(ra_kernel *kernel, const ra_backward_step *step)
{
    ra_backward_step copy = *step;
    copy.ends_only = true;
    return good->backward(kernel, &copy);
}

/* Of gather and add. */
static ra_status rows_left(ra_kernel *kernel, const ra_kernel_shape *shape, const ra_rowset *rows,
                           const ra_view *from, const ra_view *to)
{
    (void)kernel, (void)shape, (void)rows, (void)from, (void)to;
    return RA_OK;
}

static ra_status nothing_stored(ra_kernel *kernel, const ra_kernel_shape *shape, int64_t count,
                                const ra_view *from, const ra_view *to)
{
    (void)kernel, (void)shape, (void)count, (void)from, (void)to;
    return RA_OK;
}

static ra_status delta_wrong(ra_kernel *kernel, const ra_kernel_shape *shape, int64_t q_rows,
                             const ra_view *out, const ra_view *dout, float *delta_out)
{
    ra_status const status = good->delta(kernel, shape, q_rows, out, dout, delta_out);
    delta_out[0] += 1;
    return status;
}

/* What a GPU has kernels of its own for, which are loaded when they are first used. */
Test(kernel_check, uses_all_that_moves_rows_and_catches_what_is_broken)
{
    good = ra_kernel_cpu(RA_ISA_AUTO);
    ra_kernel_ops cases[4] = {*good, *good, *good, *good};
    cases[0].gather = rows_left;
    cases[1].add = rows_left;
    cases[2].store = nothing_stored;
    cases[3].delta = delta_wrong;
    for (int i = 0; i < 4; ++i)
        for (int dtype = RA_F32; dtype <= RA_BF16; ++dtype) {
            ra_kernel_verdict const v = check(&cases[i], (ra_dtype)dtype, 64, true);
            cr_expect_not(v.agrees, "case %d, %s", i, ra_dtype_name((ra_dtype)dtype));
            if (i < 3)
                cr_expect_str_eq(v.tensor, i == 0 ? "o" : "dq", "case %d: %s", i, v.tensor);
        }
}

Test(kernel_check, catches_broken_kernels)
{
    const struct {
        const char *what, *tensor; /* NULL: any */
        ra_kernel_ops ops;
    } cases[] = {{"an element", "o", broken_forward(element_wrong)},
                 {"a NaN", "o", broken_forward(element_nan)},
                 {"an lse", "lse", broken_forward(lse_wrong)},
                 {"an lse that is NaN", "lse", broken_forward(lse_nan)},
                 {"the state", NULL, broken_forward(state_dropped)},
                 {"a state's place", NULL, broken_forward(state_misplaced)},
                 {"a chunk that is over", NULL, broken_forward(chunk_not_skipped)},
                 {"a mask", NULL, broken_forward(mask_ignored)},
                 {"a gradient", "dk", broken_backward(gradient_wrong)}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i)
        for (int dtype = RA_F32; dtype <= RA_BF16; ++dtype) {
            ra_kernel_verdict const v = check(&cases[i].ops, (ra_dtype)dtype, 64, true);
            cr_expect_not(v.agrees, "%s, %s", cases[i].what, ra_dtype_name((ra_dtype)dtype));
            if (cases[i].tensor != NULL)
                cr_expect_str_eq(v.tensor, cases[i].tensor, "%s, %s: %s", cases[i].what,
                                 ra_dtype_name((ra_dtype)dtype), v.tensor);
        }
}

Test(kernel_check, looks_at_what_the_job_will_use)
{
    ra_kernel_ops const ops = broken_backward(half_done);
    cr_expect(check(&ops, RA_BF16, 64, false).agrees);
    ra_kernel_ops const dropped = broken_forward(state_dropped);
    cr_expect_not(check(&dropped, RA_BF16, 64, false).agrees);
}

/* What tiles with strides come to, and those of several branches on a row. */
static ra_status stride_wrong(ra_kernel *kernel, const ra_forward_step *step)
{
    return step->map->tiles[0].q_stride > 1 ? element_wrong(kernel, step)
                                            : good->forward(kernel, step);
}

static ra_status shared_wrong(ra_kernel *kernel, const ra_forward_step *step)
{
    return step->map->shared_rows ? element_wrong(kernel, step) : good->forward(kernel, step);
}

Test(kernel_check, looks_at_branches_if_the_job_has_some)
{
    ra_kernel_ops const stride = broken_forward(stride_wrong),
                        shared = broken_forward(shared_wrong);
    for (int i = 0; i < 8; ++i) {
        ra_kernel_use const use = {.dtype = RA_BF16,
                                   .dim = 64,
                                   .threads = 1,
                                   .dilated = i % 2 != 0,
                                   .shares_rows = i / 2 % 2 != 0,
                                   .shares_keys = i / 4 != 0};
        ra_kernel_verdict found;
        cr_assert_eq(
            ra_kernel_check(&stride, ra_kernel_cpu(RA_ISA_PORTABLE), &use, NULL, NULL, &found),
            RA_OK);
        cr_expect_eq(found.agrees, !use.dilated, "%d", i);
        cr_assert_eq(
            ra_kernel_check(&shared, ra_kernel_cpu(RA_ISA_PORTABLE), &use, NULL, NULL, &found),
            RA_OK);
        cr_expect_eq(found.agrees, !(use.dilated && use.shares_rows && use.shares_keys), "%d", i);
    }
}

/* ---- errors ---------------------------------------------------------------------------------- */

static ra_status refuses(ra_kernel *kernel, const ra_forward_step *step)
{
    (void)kernel, (void)step;
    return RA_ERR_INTERNAL;
}

Test(kernel_check, passes_on_what_a_kernel_returns)
{
    ra_kernel_ops const ops = broken_forward(refuses);
    ra_kernel_use const use = {.dtype = RA_F32, .dim = 16, .threads = 1};
    ra_kernel_verdict verdict = {.tensor = "untouched"};
    cr_expect_eq(ra_kernel_check(&ops, ra_kernel_cpu(RA_ISA_PORTABLE), &use, NULL, NULL, &verdict),
                 RA_ERR_INTERNAL);
    cr_expect_str_eq(verdict.tensor, "untouched");
}

static refusing_memory refusing;

static ra_memory memory_refusing(void)
{
    return ra_memory_refusing(&refusing);
}

Test(kernel_check, survives_any_request_being_refused)
{
    ra_kernel_ops ops = *ra_kernel_cpu(RA_ISA_AUTO);
    ra_kernel_use const use = {.dtype = RA_BF16, .dim = 16, .backward = true, .threads = 1};
    ops.memory = memory_refusing;
    refusing.inner = ra_memory_host();
    for (long n = 0;; ++n) {
        ra_kernel_verdict verdict = {0};
        atomic_store(&refusing.countdown, n);
        atomic_store(&refusing.refused, false);
        ra_status const status =
            ra_kernel_check(&ops, ra_kernel_cpu(RA_ISA_PORTABLE), &use, NULL, NULL, &verdict);
        if (!atomic_load(&refusing.refused)) {
            cr_expect_eq(status, RA_OK);
            cr_expect(verdict.agrees);
            cr_expect_gt(n, 10);
            return;
        }
        cr_expect_eq(status, RA_ERR_NO_MEMORY, "request %ld", n);
        cr_expect_null(verdict.tensor);
    }
}

/* ---- signs of work --------------------------------------------------------------------------- */

static int polls, with_poll;

static void count_poll(void *context)
{
    cr_assert_eq(context, &polls);
    ++polls;
}

static ra_status polled(ra_kernel *kernel, const ra_forward_step *step)
{
    with_poll += kernel->poll == count_poll && kernel->poll_context == &polls;
    kernel->poll(kernel->poll_context);
    return good->forward(kernel, step);
}

/* As a device's kernel polls while it waits; both sides do. */
Test(kernel_check, has_both_kernels_give_signs_of_work)
{
    ra_kernel_ops const ops = broken_forward(polled), plain = ops;
    ra_kernel_use const use = {.dtype = RA_F32, .dim = 16, .threads = 1};
    ra_kernel_verdict verdict;
    cr_assert_eq(ra_kernel_check(&ops, &plain, &use, count_poll, &polls, &verdict), RA_OK);
    cr_expect_eq(with_poll, 2 * (1 + 1 + 2), "two problems, in one step and in one and two");
    cr_expect_geq(polls, with_poll);
}

/* ---- memory that the host does not reach ----------------------------------------------------- */

static sealed_memory sealed;
static int finishes, maps_taken;

static ra_memory memory_sealed(void)
{
    return ra_memory_sealed(&sealed);
}

static ra_status sealed_forward(ra_kernel *kernel, const ra_forward_step *step)
{
    sealed_memory_open(&sealed);
    ra_status const status = good->forward(kernel, step);
    sealed_memory_seal(&sealed);
    return status;
}

static ra_status sealed_backward(ra_kernel *kernel, const ra_backward_step *step)
{
    sealed_memory_open(&sealed);
    ra_status const status = good->backward(kernel, step);
    sealed_memory_seal(&sealed);
    return status;
}

static ra_status sealed_zero(ra_kernel *kernel, void *data, size_t bytes)
{
    sealed_memory_open(&sealed);
    ra_status const status = good->zero(kernel, data, bytes);
    sealed_memory_seal(&sealed);
    return status;
}

static ra_status sealed_gather(ra_kernel *kernel, const ra_kernel_shape *shape,
                               const ra_rowset *rows, const ra_view *from, const ra_view *to)
{
    sealed_memory_open(&sealed);
    ra_status const status = good->gather(kernel, shape, rows, from, to);
    sealed_memory_seal(&sealed);
    return status;
}

static ra_status sealed_add(ra_kernel *kernel, const ra_kernel_shape *shape, const ra_rowset *rows,
                            const ra_view *from, const ra_view *to)
{
    sealed_memory_open(&sealed);
    ra_status const status = good->add(kernel, shape, rows, from, to);
    sealed_memory_seal(&sealed);
    return status;
}

static ra_status sealed_store(ra_kernel *kernel, const ra_kernel_shape *shape, int64_t count,
                              const ra_view *from, const ra_view *to)
{
    sealed_memory_open(&sealed);
    ra_status const status = good->store(kernel, shape, count, from, to);
    sealed_memory_seal(&sealed);
    return status;
}

static ra_status sealed_delta(ra_kernel *kernel, const ra_kernel_shape *shape, int64_t q_rows,
                              const ra_view *out, const ra_view *dout, float *delta_out)
{
    sealed_memory_open(&sealed);
    ra_status const status = good->delta(kernel, shape, q_rows, out, dout, delta_out);
    sealed_memory_seal(&sealed);
    return status;
}

static ra_status sealed_finish(ra_kernel *kernel)
{
    (void)kernel;
    finishes++;
    return RA_OK;
}

static ra_status sealed_take_map(ra_kernel *kernel, const ra_tilemap *map)
{
    (void)kernel, (void)map;
    maps_taken++;
    return RA_OK;
}

static void sealed_drop_map(ra_kernel *kernel, const ra_tilemap *map)
{
    (void)kernel;
    maps_taken -= map->tiles != NULL;
}

/* Maps, row sets and what is compared lie in host memory; all else comes and goes by copies. */
static ra_kernel_ops sealed_table(void)
{
    good = ra_kernel_cpu(RA_ISA_AUTO);
    ra_kernel_ops ops = *good;
    ops.memory = memory_sealed;
    ops.forward = sealed_forward;
    ops.backward = sealed_backward;
    ops.zero = sealed_zero;
    ops.gather = sealed_gather;
    ops.add = sealed_add;
    ops.store = sealed_store;
    ops.delta = sealed_delta;
    ops.finish = sealed_finish;
    ops.take_map = sealed_take_map;
    ops.drop_map = sealed_drop_map;
    return ops;
}

Test(kernel_check, reaches_memory_of_a_device_by_copies_alone)
{
    ra_kernel_ops const ops = sealed_table();
    for (int dtype = RA_F32; dtype <= RA_BF16; ++dtype) {
        ra_kernel_verdict const v = check(&ops, (ra_dtype)dtype, 40, true);
        cr_expect(v.agrees, "%s: %s is off by %g of %g", ra_dtype_name((ra_dtype)dtype), v.tensor,
                  v.error, v.allowed);
    }
    /* Two problems, each in one step and in two, which also bring the steps of chunks. */
    cr_expect_eq(finishes, 3 * (4 + 2));
    cr_expect_eq(maps_taken, 0);
    cr_expect_eq(sealed.used_bytes, 0);
}

/* Of a device that is lost once the check has begun. */
static ra_memory memory_at_first(void)
{
    static int asked;
    return ++asked == 1 ? ra_memory_sealed(&sealed) : (ra_memory){0};
}

Test(kernel_check, survives_that_a_device_has_no_memory_any_more)
{
    ra_kernel_ops ops = sealed_table();
    ra_kernel_use const use = {.dtype = RA_F32, .dim = 16, .backward = true, .threads = 1};
    ra_kernel_verdict verdict = {0};
    ops.memory = memory_at_first;
    cr_expect_eq(ra_kernel_check(&ops, ra_kernel_cpu(RA_ISA_PORTABLE), &use, NULL, NULL, &verdict),
                 RA_ERR_CUDA);
    cr_expect_null(verdict.tensor);
    cr_expect_eq(sealed.used_bytes, 0);
}

Test(kernel_check, passes_on_copies_that_fail)
{
    ra_kernel_ops const ops = sealed_table();
    ra_kernel_use const use = {.dtype = RA_F32, .dim = 16, .backward = true, .threads = 1};
    for (long n = 1;; ++n) {
        ra_kernel_verdict verdict = {0};
        sealed.copies = 0;
        sealed.fail_copy = n;
        ra_status const status =
            ra_kernel_check(&ops, ra_kernel_cpu(RA_ISA_PORTABLE), &use, NULL, NULL, &verdict);
        if (sealed.copies < n) {
            cr_expect_eq(status, RA_OK);
            cr_expect_eq(n, 2 * 4 + 2 + 1); /* to and fro, and the steps of chunks */
            return;
        }
        cr_expect_eq(status, RA_ERR_CUDA, "copy %ld", n);
        cr_expect_null(verdict.tensor);
    }
}
