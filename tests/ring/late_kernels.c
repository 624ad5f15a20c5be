#include "ring/late_kernels.h"

#include "pool/timeline_cuda.h"
#include "ringattn/device.h"
#include "support/standin_cudart.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef enum late_kind { FORWARD, BACKWARD, DELTA, GATHER, ADD, STORE, ZERO } late_kind;

/* A call with copies of all that it refers to but maps and views' memory. */
typedef struct late_call {
    late_kind kind;
    ra_kernel cpu; /* the kernel without its poll, which must not be called here */
    atomic_int *failed;
    ra_forward_step forward;
    ra_backward_step backward;
    ra_kernel_shape shape;
    ra_rowset rows;
    ra_view from, to;
    int64_t count;
    float *delta;
    void *data;
    size_t bytes;
    ra_row_piece pieces[];
} late_call;

static ra_status carry_out(late_call *c)
{
    const ra_kernel_ops *const ops = c->cpu.ops;
    c->rows.pieces = c->pieces;
    switch (c->kind) {
    case FORWARD:
        return ops->forward(&c->cpu, &c->forward);
    case BACKWARD:
        return ops->backward(&c->cpu, &c->backward);
    case DELTA:
        return ops->delta(&c->cpu, &c->shape, c->count, &c->from, &c->to, c->delta);
    case GATHER:
        return ops->gather(&c->cpu, &c->shape, &c->rows, &c->from, &c->to);
    case ADD:
        return ops->add(&c->cpu, &c->shape, &c->rows, &c->from, &c->to);
    case STORE:
        return ops->store(&c->cpu, &c->shape, c->count, &c->from, &c->to);
    case ZERO:
        return ops->zero(&c->cpu, c->data, c->bytes);
    }
    return RA_ERR_INTERNAL;
}

static void run(void *context)
{
    late_call *const c = context;
    if (carry_out(c) != RA_OK)
        atomic_store(c->failed, 1);
}

static ra_status enqueue(ra_kernel *kernel, late_call call, const ra_rowset *rows)
{
    size_t const pieces = rows != NULL ? (size_t)rows->piece_count * sizeof(ra_row_piece) : 0;
    late_call *const c = malloc(sizeof(*c) + pieces);
    if (c == NULL)
        return RA_ERR_NO_MEMORY;
    *c = call;
    c->cpu = *kernel;
    c->cpu.ops = ra_kernel_cpu(RA_ISA_AUTO);
    c->cpu.poll = NULL;
    c->failed = kernel->self;
    if (rows != NULL) {
        c->rows = *rows;
        memcpy(c->pieces, rows->pieces, pieces);
    }
    cudaError_t error = standin_enter();
    if (error == cudaSuccess)
        error = standin_enqueue((cudaStream_t)kernel->stream, run, c, sizeof(*c) + pieces);
    free(c);
    return standin_leave(error) == cudaSuccess ? RA_OK : RA_ERR_CUDA;
}

static ra_status late_forward(ra_kernel *kernel, const ra_forward_step *step)
{
    return enqueue(kernel, (late_call){.kind = FORWARD, .forward = *step}, NULL);
}

static ra_status late_backward(ra_kernel *kernel, const ra_backward_step *step)
{
    return enqueue(kernel, (late_call){.kind = BACKWARD, .backward = *step}, NULL);
}

static ra_status late_delta(ra_kernel *kernel, const ra_kernel_shape *shape, int64_t q_rows,
                            const ra_view *out, const ra_view *dout, float *delta_out)
{
    return enqueue(kernel,
                   (late_call){.kind = DELTA,
                               .shape = *shape,
                               .count = q_rows,
                               .from = *out,
                               .to = *dout,
                               .delta = delta_out},
                   NULL);
}

static ra_status late_gather(ra_kernel *kernel, const ra_kernel_shape *shape, const ra_rowset *rows,
                             const ra_view *from, const ra_view *to)
{
    return enqueue(kernel, (late_call){.kind = GATHER, .shape = *shape, .from = *from, .to = *to},
                   rows);
}

static ra_status late_add(ra_kernel *kernel, const ra_kernel_shape *shape, const ra_rowset *rows,
                          const ra_view *from, const ra_view *to)
{
    return enqueue(kernel, (late_call){.kind = ADD, .shape = *shape, .from = *from, .to = *to},
                   rows);
}

static ra_status late_store(ra_kernel *kernel, const ra_kernel_shape *shape, int64_t count,
                            const ra_view *from, const ra_view *to)
{
    return enqueue(
        kernel,
        (late_call){.kind = STORE, .shape = *shape, .count = count, .from = *from, .to = *to},
        NULL);
}

static ra_status late_zero(ra_kernel *kernel, void *data, size_t bytes)
{
    return enqueue(kernel, (late_call){.kind = ZERO, .data = data, .bytes = bytes}, NULL);
}

/* ---- life ------------------------------------------------------------------------------------ */

static ra_memory late_memory(void)
{
    ra_memory memory = {0};
    if (ra_memory_device(0, &memory) != RA_OK)
        abort();
    return memory;
}

static ra_status late_finish(ra_kernel *kernel)
{
    atomic_int *const failed = kernel->self;
    bool const over = cudaStreamSynchronize((cudaStream_t)kernel->stream) == cudaSuccess;
    return over && !atomic_load(failed) ? RA_OK : RA_ERR_CUDA;
}

static ra_status late_init(ra_kernel *kernel)
{
    cudaStream_t stream = NULL;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess)
        return RA_ERR_CUDA;
    kernel->self = calloc(1, sizeof(atomic_int));
    if (kernel->self == NULL)
        abort();
    kernel->stream = (ra_stream *)stream;
    return RA_OK;
}

static void late_fini(ra_kernel *kernel)
{
    (void)cudaStreamDestroy((cudaStream_t)kernel->stream);
    free(kernel->self);
}

static ra_timeline *late_timeline(ra_kernel *kernel, int32_t capacity)
{
    (void)kernel;
    return ra_timeline_create_cuda(capacity);
}

/* The map may be gone after it, and what uses it has not run. */
static void late_drop_map(ra_kernel *kernel, const ra_tilemap *map)
{
    (void)map;
    (void)cudaStreamSynchronize((cudaStream_t)kernel->stream);
}

ra_kernel_ops late_kernels(void)
{
    ra_kernel_ops ops = *ra_kernel_cpu(RA_ISA_AUTO);
    ops.name = "late";
    ops.memory = late_memory;
    ops.forward = late_forward;
    ops.backward = late_backward;
    ops.delta = late_delta;
    ops.gather = late_gather;
    ops.add = late_add;
    ops.store = late_store;
    ops.zero = late_zero;
    ops.linear = NULL;
    ops.init = late_init;
    ops.fini = late_fini;
    ops.drop_map = late_drop_map;
    ops.finish = late_finish;
    ops.timeline = late_timeline;
    return ops;
}
