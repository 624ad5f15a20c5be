#include "support/standin_cublas.h"

#include "ringattn/kernel.h"
#include "sparse/cuda/cublas_library.h"
#include "support/standin_cudart.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKSPACE_ALIGN = 256 };

standin_cublas_state standin_cublas = {.taken_bytes = 1 << 20};

struct cublasContext {
    struct cublasContext *next;
    int device;
    cudaStream_t stream;
    void *workspace;
    size_t workspace_bytes;
};

/* All, so that what could not be returned is no leak of the test's. */
static struct cublasContext *handles;

void standin_cublas_reset(void)
{
    for (struct cublasContext *h = handles, *next; h != NULL; h = next) {
        next = h->next;
        free(h);
    }
    handles = NULL;
    standin_cublas = (standin_cublas_state){.taken_bytes = 1 << 20};
}

__attribute__((constructor)) static void standin_begin(void)
{
    const char *text = getenv("RA_STANDIN_NO_CUBLAS");
    standin_cublas.absent = text != NULL && text[0] == '1';
}

/* A call: it may be the one to fail, or the runtime beneath it fails. */
static cublasStatus_t enter(void)
{
    if (++standin_cublas.calls == standin_cublas.fail_call)
        return standin_cublas.fail_status;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t fake_get_property(libraryPropertyType type, int *value)
{
    *value = type == MAJOR_VERSION ? CUBLAS_VER_MAJOR : 0;
    return CUBLAS_STATUS_SUCCESS;
}

static const char *fake_error_string(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? "nothing" : "an injected status";
}

static cublasStatus_t fake_create(cublasHandle_t *handle)
{
    cublasStatus_t const status = enter();
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    *handle = calloc(1, sizeof(**handle));
    if (*handle == NULL)
        return CUBLAS_STATUS_ALLOC_FAILED;
    bool const full = standin.used_bytes + standin_cublas.taken_bytes > standin.memory_bytes;
    if (standin_enter() != cudaSuccess || full) {
        free(*handle);
        (void)standin_leave(full ? cudaErrorMemoryAllocation : cudaErrorUnknown);
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    (*handle)->next = handles;
    (*handle)->device = standin_current();
    handles = *handle;
    standin.used_bytes += standin_cublas.taken_bytes;
    standin_cublas.handles++;
    (void)standin_leave(cudaSuccess);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t fake_destroy(cublasHandle_t handle)
{
    cublasStatus_t const status = enter();
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    standin_require(handle->device);
    struct cublasContext **at = &handles;
    while (*at != handle)
        at = &(*at)->next;
    *at = handle->next;
    standin.used_bytes -= standin_cublas.taken_bytes;
    standin_cublas.handles--;
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

/* As by cuBLAS, another stream takes the workspace away. */
static cublasStatus_t fake_set_stream(cublasHandle_t handle, cudaStream_t stream)
{
    cublasStatus_t const status = enter();
    if (status == CUBLAS_STATUS_SUCCESS)
        *handle = (struct cublasContext){
            .next = handle->next, .device = handle->device, .stream = stream};
    return status;
}

static cublasStatus_t fake_set_workspace(cublasHandle_t handle, void *workspace, size_t bytes)
{
    cublasStatus_t const status = enter();
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if ((uintptr_t)workspace % WORKSPACE_ALIGN != 0 || !standin_is_device(workspace, bytes))
        return CUBLAS_STATUS_INVALID_VALUE;
    handle->workspace = workspace;
    handle->workspace_bytes = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- products -------------------------------------------------------------------------------- */

typedef struct operand {
    const void *data;
    cudaDataType type;
    int rows, columns, is_transposed, stride; /* rows and columns as stored: columns are apart */
    long long step;
} operand;

/* c[n][m] of columns, of each of a batch. */
typedef struct product {
    int m, n, k, count, rounds;
    float alpha, beta;
    operand a, b;
    float *c;
    int c_stride;
    long long c_step;
    void *workspace;
    size_t workspace_bytes;
} product;

static size_t element_bytes(cudaDataType type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

/* All of a batch lie in device memory; the last column ends with its last row. */
static int is_there(const void *data, size_t element, int rows, int columns, int stride,
                    long long step, int count)
{
    if (rows > stride || step < 0 || (uintptr_t)data % element != 0)
        return 0;
    size_t const each = (size_t)(columns - 1) * (size_t)stride + (size_t)rows;
    return standin_is_device(data, ((size_t)(count - 1) * (size_t)step + each) * element);
}

static float element_at(const operand *o, int batch, int row, int column, int rounds)
{
    int64_t const at = batch * o->step + (int64_t)column * o->stride + row;
    ra_dtype const dtype = o->type == CUDA_R_32F   ? RA_F32
                           : o->type == CUDA_R_16F ? RA_F16
                                                   : RA_BF16;
    float const value = ra_dtype_load(dtype, o->data, at);
    uint32_t bits;
    if (!rounds)
        return value;
    memcpy(&bits, &value, sizeof(bits));
    bits &= ~(uint32_t)0x1fff;
    float cut;
    memcpy(&cut, &bits, sizeof(cut));
    return cut;
}

/* op(x) of one of a batch, dense: [outer][inner]. */
static float *unpacked(const operand *o, int batch, int outer, int inner, int outer_is_row,
                       int rounds)
{
    float *const to = malloc(sizeof(float) * (size_t)outer * (size_t)inner);
    if (to == NULL)
        abort();
    for (int x = 0; x < outer; x++)
        for (int y = 0; y < inner; y++) {
            int const row = outer_is_row ? x : y, column = outer_is_row ? y : x;
            to[(size_t)x * (size_t)inner + (size_t)y] = element_at(
                o, batch, o->is_transposed ? column : row, o->is_transposed ? row : column, rounds);
        }
    return to;
}

static void multiply_one(const product *p, int batch)
{
    float *const a = unpacked(&p->a, batch, p->k, p->m, 0, p->rounds); /* [k][m] */
    float *const b = unpacked(&p->b, batch, p->n, p->k, 0, p->rounds); /* [n][k] */
    float *const sums = malloc(sizeof(float) * (size_t)p->m);
    if (sums == NULL)
        abort();
    for (int column = 0; column < p->n; column++) {
        float *const c = p->c + batch * p->c_step + (int64_t)column * p->c_stride;
        memset(sums, 0, sizeof(float) * (size_t)p->m);
        for (int k = 0; k < p->k; k++) {
            float const factor = b[(size_t)column * (size_t)p->k + (size_t)k];
            const float *const from = a + (size_t)k * (size_t)p->m;
            for (int row = 0; row < p->m; row++)
                sums[row] += factor * from[row];
        }
        for (int row = 0; row < p->m; row++)
            c[row] = p->alpha * sums[row] + (p->beta != 0 ? p->beta * c[row] : 0);
    }
    free(a);
    free(b);
    free(sums);
}

static void run_product(void *context)
{
    const product *const p = context;
    for (int i = 0; i < p->count; i++)
        multiply_one(p, i);
    memset(p->workspace, 0xff, p->workspace_bytes < 4096 ? p->workspace_bytes : 4096);
}

/* Types that go together; float32 sums either way. */
static int types_fit(cudaDataType a, cudaDataType b, cudaDataType c, cublasComputeType_t compute)
{
    int const is_float = a == CUDA_R_32F;
    if (a != b || c != CUDA_R_32F)
        return 0;
    if (is_float)
        return compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
               compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    return (a == CUDA_R_16F || a == CUDA_R_16BF) &&
           (compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_PEDANTIC);
}

static cublasStatus_t enqueue(cublasHandle_t handle, const product *p)
{
    cudaError_t error = standin_enter();
    int const there = is_there(p->a.data, element_bytes(p->a.type), p->a.rows, p->a.columns,
                               p->a.stride, p->a.step, p->count) &&
                      is_there(p->b.data, element_bytes(p->b.type), p->b.rows, p->b.columns,
                               p->b.stride, p->b.step, p->count) &&
                      is_there(p->c, sizeof(float), p->m, p->n, p->c_stride, p->c_step, p->count);
    if (error == cudaSuccess && !there)
        error = cudaErrorIllegalAddress;
    if (error == cudaSuccess)
        error = standin_enqueue_launch(handle->stream, run_product, p, sizeof(*p));
    standin_cublas.products += error == cudaSuccess ? p->count : 0;
    return standin_leave(error) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                               : CUBLAS_STATUS_EXECUTION_FAILED;
}

static cublasStatus_t fake_multiply(cublasHandle_t handle, cublasOperation_t transpose_a,
                                    cublasOperation_t transpose_b, int m, int n, int k,
                                    const void *alpha, const void *a, cudaDataType a_type, int lda,
                                    long long a_step, const void *b, cudaDataType b_type, int ldb,
                                    long long b_step, const void *beta, void *c,
                                    cudaDataType c_type, int ldc, long long c_step, int count,
                                    cublasComputeType_t compute, cublasGemmAlgo_t algorithm)
{
    cublasStatus_t const status = enter();
    int const a_turned = transpose_a == CUBLAS_OP_T, b_turned = transpose_b == CUBLAS_OP_T;
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (m < 1 || n < 1 || k < 1 || count < 1 || algorithm != CUBLAS_GEMM_DEFAULT ||
        handle->workspace == NULL || handle->stream == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!types_fit(a_type, b_type, c_type, compute))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    product const p = {.m = m,
                       .n = n,
                       .k = k,
                       .count = count,
                       .rounds = compute == CUBLAS_COMPUTE_32F_FAST_TF32,
                       .alpha = *(const float *)alpha,
                       .beta = *(const float *)beta,
                       .a = {a, a_type, a_turned ? k : m, a_turned ? m : k, a_turned, lda, a_step},
                       .b = {b, b_type, b_turned ? n : k, b_turned ? k : n, b_turned, ldb, b_step},
                       .c = c,
                       .c_stride = ldc,
                       .c_step = c_step,
                       .workspace = handle->workspace,
                       .workspace_bytes = handle->workspace_bytes};
    return enqueue(handle, &p);
}

const ra_cublas *ra_cublas_open(char *why_not, size_t bytes)
{
    static const ra_cublas library = {.get_property = fake_get_property,
                                      .create = fake_create,
                                      .destroy = fake_destroy,
                                      .set_stream = fake_set_stream,
                                      .set_workspace = fake_set_workspace,
                                      .multiply = fake_multiply,
                                      .error_string = fake_error_string};
    snprintf(why_not, bytes, "%s",
             standin_cublas.absent ? "there is no libcublas.so on this machine" : "");
    return standin_cublas.absent ? NULL : &library;
}
