/*
 * In place of the kernels for GPUs, for tests of what goes on around them: the CPU's kernels, to
 * which alone memory is open. Whatever else touches a tensor where it lies is ended by the system.
 *
 *     RA_SEALED_BYTES    how much memory this device has; without it 64 MiB
 *     RA_SEALED_BROKEN   1: its forward pass is wrong
 *     RA_SEALED_PLAIN    1: memory is that of the stand-in runtime, which alone can send it, and
 *                        is open to all
 */
#include "ringattn/device.h"
#include "ringattn/linear.h"
#include "support/sealed_memory.h"

#include <stdio.h>
#include <stdlib.h>

static sealed_memory sealed;
static const ra_kernel_ops *inner;

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] == '1';
}

static ra_memory memory(void)
{
    ra_memory plain = {0};
    if (!is_set("RA_SEALED_PLAIN"))
        return ra_memory_sealed(&sealed);
    return ra_memory_device(ra_device_used(), &plain) == RA_OK ? plain : (ra_memory){0};
}

static ra_status seal(ra_status status)
{
    sealed_memory_seal(&sealed);
    return status;
}

static ra_status forward(ra_kernel *kernel, const ra_forward_step *step)
{
    sealed_memory_open(&sealed);
    ra_status const status = inner->forward(kernel, step);
    if (is_set("RA_SEALED_BROKEN") && step->last && step->lse != NULL)
        step->lse[0] += 1;
    return seal(status);
}

static ra_status delta(ra_kernel *kernel, const ra_kernel_shape *shape, int64_t q_rows,
                       const ra_view *out, const ra_view *dout, float *delta_out)
{
    sealed_memory_open(&sealed);
    return seal(inner->delta(kernel, shape, q_rows, out, dout, delta_out));
}

static ra_status backward(ra_kernel *kernel, const ra_backward_step *step)
{
    sealed_memory_open(&sealed);
    return seal(inner->backward(kernel, step));
}

static ra_status gather(ra_kernel *kernel, const ra_kernel_shape *shape, const ra_rowset *rows,
                        const ra_view *from, const ra_view *to)
{
    sealed_memory_open(&sealed);
    return seal(inner->gather(kernel, shape, rows, from, to));
}

static ra_status add(ra_kernel *kernel, const ra_kernel_shape *shape, const ra_rowset *rows,
                     const ra_view *from, const ra_view *to)
{
    sealed_memory_open(&sealed);
    return seal(inner->add(kernel, shape, rows, from, to));
}

static ra_status store(ra_kernel *kernel, const ra_kernel_shape *shape, int64_t count,
                       const ra_view *from, const ra_view *to)
{
    sealed_memory_open(&sealed);
    return seal(inner->store(kernel, shape, count, from, to));
}

static ra_status zero(ra_kernel *kernel, void *data, size_t bytes)
{
    sealed_memory_open(&sealed);
    return seal(inner->zero(kernel, data, bytes));
}

/* ---- linear attention ------------------------------------------------------------------------ */

static ra_status linear_sum(ra_kernel *kernel, const ra_linear_pass *pass)
{
    sealed_memory_open(&sealed);
    return seal(inner->linear->sum(kernel, pass));
}

static ra_status linear_forward(ra_kernel *kernel, const ra_linear_pass *pass)
{
    sealed_memory_open(&sealed);
    return seal(inner->linear->forward(kernel, pass));
}

static ra_status linear_backward_queries(ra_kernel *kernel, const ra_linear_pass *pass)
{
    sealed_memory_open(&sealed);
    return seal(inner->linear->backward_queries(kernel, pass));
}

static ra_status linear_backward_keys(ra_kernel *kernel, const ra_linear_pass *pass)
{
    sealed_memory_open(&sealed);
    return seal(inner->linear->backward_keys(kernel, pass));
}

static ra_status linear_total(ra_kernel *kernel, const ra_linear_pass *pass, const float *states,
                              float *totals_out)
{
    sealed_memory_open(&sealed);
    return seal(inner->linear->total(kernel, pass, states, totals_out));
}

static ra_status linear_spread(ra_kernel *kernel, const ra_linear_pass *pass, ra_linear_reach reach,
                               const float *before, const float *after, float *states)
{
    sealed_memory_open(&sealed);
    return seal(inner->linear->spread(kernel, pass, reach, before, after, states));
}

static const ra_linear_ops sealed_linear = {
    .sum = linear_sum,
    .forward = linear_forward,
    .backward_queries = linear_backward_queries,
    .backward_keys = linear_backward_keys,
    .total = linear_total,
    .spread = linear_spread,
};

const ra_kernel_ops *__wrap_ra_kernel_cuda(void);

const ra_kernel_ops *__wrap_ra_kernel_cuda(void)
{
    static ra_kernel_ops ops;
    const char *bytes = getenv("RA_SEALED_BYTES");
    inner = ra_kernel_cpu(RA_ISA_AUTO);
    ops = *inner;
    ops.name = "sealed";
    ops.memory = memory;
    ops.forward = forward;
    ops.delta = delta;
    ops.backward = backward;
    ops.gather = gather;
    ops.add = add;
    ops.store = store;
    ops.zero = zero;
    ops.linear = &sealed_linear;
    sealed.limit_bytes = bytes != NULL ? strtoll(bytes, NULL, 10) : (int64_t)64 << 20;
    return &ops;
}

const ra_kernel_ops *__wrap_ra_kernel_cuda_sm90a(void);

const ra_kernel_ops *__wrap_ra_kernel_cuda_sm90a(void)
{
    return NULL;
}

const ra_kernel_ops *__wrap_ra_kernel_cuda_sm90a_backward(void);

const ra_kernel_ops *__wrap_ra_kernel_cuda_sm90a_backward(void)
{
    return NULL;
}

const ra_kernel_ops *__wrap_ra_kernel_cuda_standard(void);

const ra_kernel_ops *__wrap_ra_kernel_cuda_standard(void)
{
    return NULL;
}

bool __wrap_ra_cublas_describe(char *text, size_t bytes);

bool __wrap_ra_cublas_describe(char *text, size_t bytes)
{
    snprintf(text, bytes, "there is no libcublas.so on this machine");
    return false;
}
