/*
 * The kernel table `standard` for GPUs: S = scale Q K^T, P = softmax(S), O = P V, each materialised
 * for all heads of a step, products by cuBLAS, the work between them by our own kernels. It takes,
 * keeps and computes what the CPU's table does.
 *
 * Two tensors of 16 bits are multiplied as they are. A float32 matrix is multiplied with widened
 * rows: in float32 jobs exactly, in others by tensor cores that read 10 bits of the fraction, which
 * is all that the rows had, and as many as a float16 weight would have.
 */
#include "sparse/cuda/standard_cuda.h"

#include "internal.h"
#include "sparse/kernel_request.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- workspace: what cuBLAS works in, widened rows, sums, the watch's mark ------------------- */

static size_t rows_bytes(int64_t rows, int32_t dim)
{
    return (size_t)(rows * dim) * sizeof(float);
}

static size_t standard_workspace_bytes(const ra_kernel_use *use)
{
    return RA_CUDA_CUBLAS_BYTES + RA_CUDA_CUBLAS_ALIGN +
           rows_bytes(RA_CUDA_STANDARD_DEPTH * RA_CUDA_STANDARD_HEADS, use->dim) +
           rows_bytes(RA_CUDA_STANDARD_SUMS, use->dim) + RA_CUDA_MARK_BYTES;
}

static char *products_memory(const ra_kernel *kernel)
{
    uintptr_t const at = (uintptr_t)kernel->workspace.data;
    return (char *)kernel->workspace.data +
           (RA_CUDA_CUBLAS_ALIGN - at % RA_CUDA_CUBLAS_ALIGN) % RA_CUDA_CUBLAS_ALIGN;
}

static float *widened_rows(const ra_kernel *kernel)
{
    return (float *)(void *)(products_memory(kernel) + RA_CUDA_CUBLAS_BYTES);
}

float *ra_cuda_standard_sums(const ra_kernel *kernel, int32_t dim)
{
    return widened_rows(kernel) + (int64_t)RA_CUDA_STANDARD_DEPTH * RA_CUDA_STANDARD_HEADS * dim;
}

ra_status ra_cuda_standard_enter(ra_kernel *kernel, const ra_kernel_shape *shape)
{
    ra_cuda_standard *const self = ra_cuda_standard_of(kernel);
    ra_status status = ra_kernel_validate_shape(kernel, shape);
    if (status == RA_OK)
        status = ra_cuda_enter(kernel);
    if (status != RA_OK || self->lent == kernel->workspace.data)
        return status;
    status = ra_cuda_products_lend(&self->products, products_memory(kernel));
    if (status == RA_OK)
        self->lent = kernel->workspace.data;
    return status;
}

/* ---- products -------------------------------------------------------------------------------- */

ra_status ra_cuda_standard_each(const ra_cuda_standard_step *step, ra_cuda_standard_work *work,
                                const void *context)
{
    const ra_kernel_shape *const shape = step->shape;
    ra_cuda_some_heads heads = {.ratio = shape->q_heads / shape->kv_heads};
    ra_status status = RA_OK;
    for (heads.batch = 0; heads.batch < shape->batch; ++heads.batch) {
        for (heads.kv_begin = 0; heads.kv_begin < shape->kv_heads; heads.kv_begin += heads.count) {
            heads.count = shape->kv_heads - heads.kv_begin < RA_CUDA_STANDARD_HEADS
                              ? shape->kv_heads - heads.kv_begin
                              : RA_CUDA_STANDARD_HEADS;
            for (heads.turn = 0; heads.turn < heads.ratio; ++heads.turn) {
                status = ra_cuda_watch_note(step->kernel);
                if (status == RA_OK)
                    status = work(step, &heads, context);
                if (status != RA_OK)
                    return status;
            }
        }
    }
    return status;
}

static ra_status multiply(const ra_cuda_standard_step *step, const ra_cuda_product *product)
{
    ra_cuda_standard *const self = ra_cuda_standard_of(step->kernel);
    if (++self->ahead > RA_CUDA_STANDARD_AHEAD) {
        ra_status const status = ra_cuda_finish(step->kernel);
        if (status != RA_OK)
            return status;
        self->ahead = 1;
    }
    return ra_cuda_multiply(&self->products, product);
}

/* Rows of some query heads or kv heads, as operand of a product. */
typedef struct operand {
    const void *data;
    int64_t stride, step;
} operand;

static operand operand_at(const ra_view *view, const ra_cuda_some_heads *heads, bool of_queries,
                          int64_t row)
{
    int32_t const head = of_queries ? ra_cuda_standard_query_head(heads) : heads->kv_begin;
    return (operand){.data = (const char *)view->data + ra_view_at(view, heads->batch, row, head) *
                                                            (int64_t)ra_dtype_bytes(view->dtype),
                     .stride = view->row_stride,
                     .step = view->head_stride * (of_queries ? heads->ratio : 1)};
}

static ra_status widen(const ra_cuda_standard_step *step, const ra_view *view,
                       const ra_cuda_some_heads *heads, bool of_queries, int64_t row, int64_t count,
                       operand *operand_out)
{
    int32_t const dim = step->shape->dim, elements = dim % 4 == 0 ? 4 : 1;
    ra_cuda_widen const w = {.from = *view,
                             .to = widened_rows(step->kernel),
                             .row_begin = row,
                             .rows = count,
                             .units = heads->count * count * (dim / elements),
                             .batch = heads->batch,
                             .head_begin =
                                 of_queries ? ra_cuda_standard_query_head(heads) : heads->kv_begin,
                             .head_step = of_queries ? heads->ratio : 1,
                             .elements = elements,
                             .row_units = dim / elements};
    *operand_out = (operand){.data = w.to, .stride = dim, .step = count * dim};
    return ra_cuda_kernel_status(
        step->kernel,
        ra_cuda_widen_launch(&w,
                             ra_cuda_block_count(step->kernel, w.units, RA_CUDA_SOFTMAX_THREADS),
                             ra_cuda_self(step->kernel)->stream),
        "kernel cuda-standard: widening rows");
}

/* Where a row begins in the matrix of the first of some heads. */
static int64_t matrix_row(const ra_cuda_standard_step *step, const ra_cuda_some_heads *heads,
                          int64_t stride, int64_t row)
{
    int64_t const lane =
        (int64_t)heads->batch * step->shape->q_heads + ra_cuda_standard_query_head(heads);
    return (lane * step->span.rows + row) * stride;
}

ra_status ra_cuda_standard_multiply(const ra_cuda_standard_step *step,
                                    const ra_cuda_some_heads *heads, float factor,
                                    const ra_view *queries, const ra_view *keys, float *matrix,
                                    int64_t stride)
{
    ra_status status = RA_OK;
    for (int i = 0; i < 2 && status == RA_OK; ++i) {
        int64_t begin, end;
        ra_cuda_standard_range(step, i, &begin, &end);
        operand const a = operand_at(queries, heads, true, begin);
        operand const b = operand_at(keys, heads, false, 0);
        ra_cuda_product const p = {.m = end - begin,
                                   .n = step->keys,
                                   .k = step->shape->dim,
                                   .count = heads->count,
                                   .b_transposed = true,
                                   .factor = factor,
                                   .dtype = step->dtype,
                                   .a = a.data,
                                   .b = b.data,
                                   .c = matrix + matrix_row(step, heads, stride, begin),
                                   .a_stride = a.stride,
                                   .b_stride = b.stride,
                                   .c_stride = stride,
                                   .a_step = a.step,
                                   .b_step = b.step,
                                   .c_step = heads->ratio * step->span.rows * stride};
        status = multiply(step, &p);
    }
    return status;
}

ra_status ra_cuda_standard_fold(const ra_cuda_standard_step *step, const ra_cuda_some_heads *heads,
                                const ra_cuda_fold *fold)
{
    int64_t const rows = fold->row_end - fold->row_begin;
    int64_t const depth = fold->transposed ? rows : step->keys;
    ra_status status = RA_OK;
    for (int64_t at = 0; at < depth && status == RA_OK; at += RA_CUDA_STANDARD_DEPTH) {
        int64_t const count = ra_min_i64(RA_CUDA_STANDARD_DEPTH, depth - at);
        int64_t const row = fold->transposed ? fold->row_begin + at : fold->row_begin;
        int64_t const first = fold->transposed ? row : at;
        operand b = operand_at(fold->rows, heads, fold->transposed, first);
        if (step->dtype != RA_F32)
            status = widen(step, fold->rows, heads, fold->transposed, first, count, &b);
        ra_cuda_product const p = {.m = fold->transposed ? step->keys : rows,
                                   .n = step->shape->dim,
                                   .k = count,
                                   .count = heads->count,
                                   .a_transposed = fold->transposed,
                                   .rounded = step->dtype != RA_F32,
                                   .factor = fold->factor,
                                   .keep = 1,
                                   .a = fold->matrix + matrix_row(step, heads, fold->stride, row) +
                                        (fold->transposed ? 0 : at),
                                   .b = b.data,
                                   .c = fold->to,
                                   .a_stride = fold->stride,
                                   .b_stride = b.stride,
                                   .c_stride = fold->to_stride,
                                   .a_step = heads->ratio * step->span.rows * fold->stride,
                                   .b_step = b.step,
                                   .c_step = fold->to_step};
        if (status == RA_OK)
            status = multiply(step, &p);
    }
    return status;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void forget_pass(ra_kernel *kernel)
{
    ra_cuda_standard *const self = ra_cuda_standard_of(kernel);
    if (self->kept == NULL)
        return;
    ra_standard_pass_free_pairs(kernel, self->kept);
    free(self->kept);
    self->kept = NULL;
}

static ra_status standard_begin(ra_kernel *kernel, const ra_kernel_pass *pass)
{
    ra_cuda_standard *const self = ra_cuda_standard_of(kernel);
    if (pass->backward)
        return ra_standard_pass_check(kernel, pass, self->kept);
    forget_pass(kernel); /* left from a forward pass without a backward one */
    if (!pass->keeps)
        return RA_OK;
    self->kept = malloc(ra_standard_pass_bytes(pass));
    if (self->kept == NULL)
        return ra_refuse_memory("kernel cuda-standard's list of kept matrices");
    ra_standard_pass_init(self->kept, pass);
    return RA_OK;
}

/*
 * Returning matrices waits, without a deadline, for the work that uses them, if any is left: a pass
 * that was complete has been waited for, and what the GPU says since then is for whoever needs it
 * next, as an error that is logged here would be of no call.
 */
static void wait_for_matrices(ra_kernel *kernel)
{
    cudaError_t const error = ra_cuda_forget(cudaStreamQuery(ra_cuda_self(kernel)->stream));
    if (error == cudaErrorNotReady) {
        ra_status const ignored = ra_cuda_finish(kernel);
        (void)ignored; /* whoever finishes more work meets it again; a failed pass has its own */
    }
}

static void standard_end(ra_kernel *kernel, const ra_kernel_pass *pass, bool failed)
{
    const ra_standard_pass *const kept = ra_cuda_standard_of(kernel)->kept;
    if (kept == NULL || !(pass->backward || failed) || !ra_standard_pass_owns(pass, kept))
        return;
    wait_for_matrices(kernel);
    forget_pass(kernel);
}

static ra_status take_products(ra_kernel *kernel)
{
    char why_not[240];
    const ra_cublas *const library = ra_cublas_open(why_not, sizeof(why_not));
    if (library == NULL) {
        ra_log(RA_LOG_ERROR, "kernel cuda-standard: %s", why_not);
        return RA_ERR_UNSUPPORTED;
    }
    ra_cuda_standard *const self = calloc(1, sizeof(*self));
    if (self == NULL)
        return ra_refuse_memory("kernel cuda-standard");
    ra_status status = ra_cuda_enter(kernel);
    if (status == RA_OK)
        status = ra_cuda_products_init(kernel, library, &self->products);
    if (status == RA_OK)
        ra_cuda_self(kernel)->standard = self;
    else
        free(self);
    return status;
}

static ra_status standard_init(ra_kernel *kernel)
{
    ra_status status = ra_cuda_ops.init(kernel);
    if (status != RA_OK)
        return status;
    status = take_products(kernel);
    if (status != RA_OK)
        ra_cuda_ops.fini(kernel);
    return status;
}

static void standard_fini(ra_kernel *kernel)
{
    ra_cuda_standard *const self = ra_cuda_standard_of(kernel);
    ra_cuda_products_fini(kernel, &self->products);
    free(self);
    ra_cuda_ops.fini(kernel);
}

static ra_kernel_ops the_table;
static pthread_once_t table_made = PTHREAD_ONCE_INIT;

static void make_table(void)
{
    the_table = ra_cuda_ops;
    the_table.name = "cuda-standard";
    the_table.serves = NULL;        /* its kernels take little */
    the_table.maps_by_keys = false; /* its rows find their runs by chunks */
    the_table.takes_chunk_steps = false;
    the_table.stores_grads = NULL;
    the_table.workspace_bytes = standard_workspace_bytes;
    the_table.forward = ra_cuda_standard_forward;
    the_table.backward = ra_cuda_standard_backward;
    the_table.step_bytes = ra_standard_step_bytes;
    the_table.begin = standard_begin;
    the_table.end = standard_end;
    the_table.init = standard_init;
    the_table.fini = standard_fini;
    the_table.linear = NULL;
}

const ra_kernel_ops *ra_kernel_cuda_standard(void)
{
    RA_ASSERT(pthread_once(&table_made, make_table) == 0);
    return &the_table;
}

bool ra_cublas_describe(char *text, size_t bytes)
{
    int version[3] = {0};
    const ra_cublas *const library = ra_cublas_open(text, bytes);
    if (library == NULL)
        return false;
    for (int i = 0; i < 3; ++i) /* MAJOR_VERSION is 0, then come MINOR_VERSION and PATCH_LEVEL */
        if (library->get_property((libraryPropertyType)i, &version[i]) != CUBLAS_STATUS_SUCCESS) {
            snprintf(text, bytes, "of an unknown version");
            return true;
        }
    snprintf(text, bytes, "version %d.%d.%d (built with %d.%d.%d)", version[0], version[1],
             version[2], CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_PATCH);
    return true;
}
