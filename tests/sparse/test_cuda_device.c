/* The CUDA kernels on a GPU, held to the contract of all kernel tables. Skipped where there is no
   GPU: what the emulator cannot say is said only here. */
#include "pool/cuda_error.h"
#include "ringattn/device.h"
#include "sparse/cuda/backward_launch.h"
#include "sparse/cuda/forward_launch.h"
#include "sparse/cuda/launch_args.h"
#include "sparse/kernel_case.h"
#include "support/random_pattern.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ra_devices devices;

static void check(cudaError_t error, const char *what)
{
    cr_assert_eq(ra_cuda_status(error, what), RA_OK, "%s: CUDA error %d", what, (int)error);
}

static void find_gpu(void)
{
    ra_devices_read(&devices);
    cr_assert_gt(devices.usable_count, 0, "%s", devices.why_not);
}

enum { SKIPPED = 77 };

/* Without a GPU nothing passes: CTest is told that everything was skipped, and a person why. */
int main(int argc, char **argv)
{
    ra_devices_read(&devices);
    if (devices.usable_count == 0) {
        printf("skipped: %s\n", devices.why_not);
        return SKIPPED;
    }
    struct criterion_test_set *const tests = criterion_initialize();
    int const code = criterion_handle_args(argc, argv, true) && !criterion_run_all_tests(tests);
    criterion_finalize(tests);
    return code;
}

/* ---- a step whose tensors are copied to the device and back ---------------------------------- */

enum { BUFFERS_MAX = 16 };

typedef struct device_buffer {
    void *host, *device;
    size_t bytes;
    bool comes_back;
} device_buffer;

static device_buffer buffers[BUFFERS_MAX];
static int buffer_count;

static void *to_device(const void *host, int64_t bytes, bool comes_back)
{
    if (host == NULL || bytes == 0)
        return NULL;
    union {
        const void *from;
        void *to;
    } const pointer = {host};
    cr_assert_lt(buffer_count, BUFFERS_MAX);
    device_buffer *const b = &buffers[buffer_count++];
    *b = (device_buffer){pointer.to, NULL, (size_t)bytes, comes_back};
    check(cudaMalloc(&b->device, b->bytes), "taking device memory");
    check(cudaMemcpy(b->device, host, b->bytes, cudaMemcpyHostToDevice), "copying to the device");
    return b->device;
}

static void view_to_device(ra_view *view, int64_t batch, bool comes_back)
{
    int64_t const bytes = batch * view->batch_stride * (int64_t)ra_dtype_bytes(view->dtype);
    view->data = to_device(view->data, bytes, comes_back);
}

static void all_back(void)
{
    while (buffer_count > 0) {
        device_buffer *const b = &buffers[--buffer_count];
        if (b->comes_back)
            check(cudaMemcpy(b->host, b->device, b->bytes, cudaMemcpyDeviceToHost),
                  "copying from the device");
        check(cudaFree(b->device), "giving device memory back");
    }
}

static cudaError_t launch(const ra_cuda_forward *f, int blocks)
{
    switch (f->q.dtype) {
    case RA_F32:
        return ra_cuda_forward_f32(f, blocks, NULL);
    case RA_F16:
        return ra_cuda_forward_f16(f, blocks, NULL);
    case RA_BF16:
        return ra_cuda_forward_bf16(f, blocks, NULL);
    }
    return cudaErrorInvalidValue;
}

static ra_status device_forward(ra_kernel *kernel, const ra_forward_step *host_step)
{
    ra_forward_step step = *host_step;
    int64_t const batch = step.shape.batch, rows = batch * step.shape.q_heads * step.map->q_rows;
    int64_t const lines = batch * step.lse_batch_stride * (int64_t)sizeof(float);
    int const blocks = devices.list[0].multiprocessors *
                       ra_cuda_tile_of(step.q.dtype, step.shape.dim).blocks_per_sm;
    size_t const workspace_bytes = ra_cuda_workspace_bytes(blocks, step.shape.dim);
    ra_status const status = ra_cuda_forward_check(&step);
    (void)kernel;
    if (status != RA_OK)
        return status;
    view_to_device(&step.q, batch, false);
    view_to_device(&step.k, batch, false);
    view_to_device(&step.v, batch, false);
    view_to_device(&step.dout, batch, false);
    view_to_device(&step.out, batch, true);
    step.lse = to_device(step.lse, lines, true);
    step.delta = to_device(step.delta, lines, true);
    step.state.acc =
        to_device(step.state.acc, rows * step.shape.dim * (int64_t)sizeof(float), true);
    step.state.top = to_device(step.state.top, rows * (int64_t)sizeof(float), true);
    step.state.sum = to_device(step.state.sum, rows * (int64_t)sizeof(float), true);
    void *const map = to_device(step.map->layers, step.map->bytes, false);
    void *workspace = NULL;
    check(cudaMalloc(&workspace, workspace_bytes), "taking workspace");
    check(cudaMemset(workspace, 0xff, workspace_bytes), "filling workspace");
    ra_cuda_forward const f = ra_cuda_forward_args(&step, map, workspace, blocks);
    check(cudaMemset(f.ticket, 0, sizeof(*f.ticket)), "resetting the ticket");
    check(launch(&f, blocks), "launching");
    check(cudaDeviceSynchronize(), "computing");
    check(cudaFree(workspace), "giving workspace back");
    all_back();
    return RA_OK;
}

static cudaError_t launch_backward(const ra_cuda_backward *f)
{
    int const multiprocessors = devices.list[0].multiprocessors;
    switch (f->q.dtype) {
    case RA_F32:
        return ra_cuda_backward_f32(f, multiprocessors, NULL);
    case RA_F16:
        return ra_cuda_backward_f16(f, multiprocessors, NULL);
    case RA_BF16:
        return ra_cuda_backward_bf16(f, multiprocessors, NULL);
    }
    return cudaErrorInvalidValue;
}

static ra_status device_backward(ra_kernel *kernel, const ra_backward_step *host_step)
{
    static const uint32_t zeros[2];
    ra_backward_step step = *host_step;
    int64_t const batch = step.shape.batch;
    int64_t const lines = batch * step.lse_batch_stride * (int64_t)sizeof(float);
    ra_status const status = ra_cuda_backward_check(&step);
    (void)kernel;
    if (status != RA_OK)
        return status;
    ra_view *const inputs[] = {&step.q, &step.k, &step.v, &step.dout};
    ra_view *const gradients[] = {&step.dq, &step.dk, &step.dv};
    for (int i = 0; i < 4; i++)
        view_to_device(inputs[i], batch, false);
    for (int i = 0; i < 3; i++)
        view_to_device(gradients[i], batch, true);
    step.lse = to_device(step.lse, lines, false);
    step.delta = to_device(step.delta, lines, false);
    ra_cuda_backward const f =
        ra_cuda_backward_args(&step, to_device(step.map->layers, step.map->bytes, false),
                              to_device(zeros, sizeof(zeros), false));
    check(launch_backward(&f), "launching");
    check(cudaDeviceSynchronize(), "computing");
    all_back();
    return RA_OK;
}

static int32_t device_tile_rows(ra_dtype dtype, int32_t dim)
{
    return ra_cuda_tile_of(dtype, dim).q_rows;
}

/* Again, in whatever order thread blocks happen to run. */
static void check_repeats(const ra_kernel_ops *ops, const kernel_problem *p,
                          const kernel_result *first, const char *what)
{
    const oracle_shape *s = &p->c.shape;
    size_t const row = (size_t)(s->batch * s->n * s->dim) * ra_dtype_bytes(p->c.dtype);
    kernel_result next = kernel_run(ops, p);
    cr_assert_eq(memcmp(first->o, next.o, row * (size_t)s->heads), 0, "%s", what);
    if (p->c.dout_factor != 0) {
        cr_assert_eq(memcmp(first->dq, next.dq, row * (size_t)s->heads), 0, "%s", what);
        cr_assert_eq(memcmp(first->dk, next.dk, row * (size_t)s->kv_heads), 0, "%s", what);
        cr_assert_eq(memcmp(first->dv, next.dv, row * (size_t)s->kv_heads), 0, "%s", what);
    }
    kernel_result_free(&next);
}

static void check_case(const kernel_case *c, const char *what)
{
    ra_kernel_ops ops = *ra_kernel_cpu(RA_ISA_PORTABLE); /* which moves rows */
    ops.name = "cuda";
    ops.forward = device_forward;
    ops.backward = device_backward;
    ops.tile_rows = device_tile_rows;
    kernel_problem problem = kernel_problem_make(c);
    kernel_result result = kernel_run(&ops, &problem);
    kernel_check(&ops, &problem, &result, what);
    check_repeats(&ops, &problem, &result, what);
    kernel_result_free(&result);
    kernel_problem_free(&problem);
}

TestSuite(cuda_device, .init = find_gpu, .timeout = 300);

static const ra_dtype dtypes[] = {RA_F32, RA_F16, RA_BF16};

static kernel_case base_case(void)
{
    return (kernel_case){.shape = {.batch = 2, .n = 300, .heads = 4, .kv_heads = 2, .dim = 64},
                         .pattern = ra_pattern_config_dense(),
                         .dtype = RA_BF16,
                         .seed = 1,
                         .dout_factor = 1,
                         .threads = 1,
                         .steps = 1};
}

Test(cuda_device, agrees_with_the_oracle_for_every_dim_and_dtype)
{
    static const int32_t dims[] = {1, 2, 3, 8, 16, 17, 31, 32, 64, 80, 96, 128, 192, 256};
    for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); ++d)
        for (int t = 0; t < 6; ++t) {
            kernel_case c = base_case();
            c.shape.dim = dims[d];
            c.dtype = dtypes[t % 3];
            c.padded = t % 2 == 1;
            c.pattern.causal = t >= 3;
            c.seed = 100 * d + (size_t)t;
            check_case(&c, c.pattern.causal ? "causal" : "dense");
        }
}

Test(cuda_device, tiles_that_share_rows_are_one_softmax)
{
    static const int64_t segments[] = {50, 100, 200}, rates[] = {1, 2, 3};
    for (int steps = 1; steps <= 3; ++steps)
        for (int t = 0; t < 3; ++t) {
            kernel_case c = base_case();
            c.shape.n = 1300;
            c.shape.dim = 40;
            c.steps = steps;
            c.dtype = dtypes[t];
            c.pattern.segments = segments;
            c.pattern.rates = rates;
            c.pattern.branch_count = 3;
            c.pattern.causal = t == 1;
            check_case(&c, "dilated");
        }
}

Test(cuda_device, random_patterns_agree_with_the_oracle)
{
    uint64_t const seed = 20240607;
    for (uint64_t i = 0; i < 200; ++i) {
        test_rng rng = {seed + i};
        kernel_case c = base_case();
        c.seed = seed + i;
        c.shape.n = test_rng_between(&rng, 1, 700);
        c.shape.kv_heads = (int32_t)test_rng_between(&rng, 1, 2);
        c.shape.heads = c.shape.kv_heads * (int32_t)test_rng_between(&rng, 1, 3);
        c.shape.dim = (int32_t)test_rng_between(&rng, 1, 256);
        c.dtype = dtypes[test_rng_between(&rng, 0, 2)];
        c.dout_factor = test_rng_chance(&rng, 0.5) ? 1 : 0;
        c.steps = (int)test_rng_between(&rng, 1, 4);
        c.striped = test_rng_chance(&rng, 0.4);
        c.padded = test_rng_chance(&rng, 0.5);
        test_pattern pattern;
        test_pattern_draw(&rng, c.shape.n, &pattern);
        c.pattern = pattern.config;
        char text[512];
        test_pattern_print(&pattern.config, text, sizeof(text));
        check_case(&c, text);
    }
}
