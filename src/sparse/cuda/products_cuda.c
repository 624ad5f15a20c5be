#include "sparse/cuda/products_cuda.h"

#include "internal.h"
#include "pool/cuda_error.h"
#include "ringattn/device.h"

#include <stdio.h>

/* What a handle may take of a GPU: its own workspace, 32 MiB on Hopper, and the code of kernels,
   which the driver loads at their first launch. */
enum { ENOUGH_BYTES = 64 << 20 };

/*
 * cublasCreate says that it is not initialised where it finds no memory, and a product that its
 * kernel could not be run, or nothing in particular: then what is free of the GPU, the thread's
 * current one, tells.
 */
static bool lacks_memory(cublasStatus_t result)
{
    size_t free_bytes = SIZE_MAX, total_bytes = 0;
    if (result != CUBLAS_STATUS_NOT_INITIALIZED && result != CUBLAS_STATUS_EXECUTION_FAILED &&
        result != CUBLAS_STATUS_INTERNAL_ERROR)
        return result == CUBLAS_STATUS_ALLOC_FAILED;
    (void)ra_cuda_forget(cudaMemGetInfo(&free_bytes, &total_bytes));
    return free_bytes < ENOUGH_BYTES;
}

static ra_status status_of(const ra_cuda_products *products, cublasStatus_t result,
                           const char *what)
{
    if (result == CUBLAS_STATUS_SUCCESS)
        return RA_OK;
    if (ra_cuda_has_lost(products->stream, what))
        return RA_ERR_CUDA; /* which was said */
    if (lacks_memory(result)) {
        char who[80];
        snprintf(who, sizeof(who), "kernel cuda-standard: %s: cuBLAS", what);
        ra_ledger_log_refusal(products->ledger, who, RA_MEM_CONTEXT, 0);
        return RA_ERR_NO_MEMORY;
    }
    ra_log(RA_LOG_ERROR, "kernel cuda-standard: %s: cuBLAS says %s", what,
           products->library->error_string(result));
    return RA_ERR_CUDA;
}

/* ---- life ------------------------------------------------------------------------------------ */

static ra_status charge(ra_kernel *kernel, int64_t bytes, ra_cuda_products *products)
{
    if (bytes <= 0)
        return RA_OK;
    ra_status const status = ra_pool_charge(kernel->pool, RA_MEM_CONTEXT, bytes);
    if (status == RA_OK)
        products->context_bytes = bytes;
    return status;
}

ra_status ra_cuda_products_init(ra_kernel *kernel, const ra_cublas *library,
                                ra_cuda_products *products_out)
{
    ra_cuda_products products = {.library = library,
                                 .stream = ra_cuda_self(kernel)->stream,
                                 .ledger = ra_pool_ledger(kernel->pool)};
    int64_t before = 0, after = 0;
    ra_status status = ra_device_taken(&before);
    if (status != RA_OK)
        return status;
    status = status_of(&products, library->create(&products.handle), "beginning");
    if (status != RA_OK)
        return status;
    status =
        status_of(&products, library->set_stream(products.handle, products.stream), "its stream");
    if (status == RA_OK)
        status = ra_device_taken(&after);
    if (status == RA_OK)
        status = charge(kernel, after - before, &products);
    if (status == RA_OK)
        *products_out = products;
    else
        ra_cuda_products_fini(kernel, &products);
    return status;
}

void ra_cuda_products_fini(ra_kernel *kernel, ra_cuda_products *products)
{
    cublasStatus_t result = CUBLAS_STATUS_SUCCESS;
    if (!ra_device_is_lost()) { /* it waits for the device, which must be this thread's */
        (void)ra_cuda_forget(cudaSetDevice(ra_cuda_self(kernel)->index));
        result = products->library->destroy(products->handle);
    }
    if (result != CUBLAS_STATUS_SUCCESS && !ra_cuda_has_lost(products->stream, NULL))
        ra_log(RA_LOG_WARNING, "kernel cuda-standard: cuBLAS could not be ended: it says %s",
               products->library->error_string(result));
    ra_pool_release(kernel->pool, RA_MEM_CONTEXT, products->context_bytes);
}

ra_status ra_cuda_products_lend(const ra_cuda_products *products, void *memory)
{
    return status_of(
        products, products->library->set_workspace(products->handle, memory, RA_CUDA_CUBLAS_BYTES),
        "its workspace");
}

/* ---- products -------------------------------------------------------------------------------- */

static cudaDataType type_of(ra_dtype dtype)
{
    return dtype == RA_F32 ? CUDA_R_32F : dtype == RA_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

static cublasComputeType_t compute_of(const ra_cuda_product *p)
{
    if (p->dtype != RA_F32)
        return CUBLAS_COMPUTE_32F;
    return p->rounded ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F_PEDANTIC;
}

static bool fits(int64_t x)
{
    return x >= 0 && x <= INT32_MAX;
}

/* A matrix whose rows are at least as far apart as they are long. */
static bool is_taken(int64_t rows, int64_t columns, int64_t stride)
{
    return fits(rows) && stride >= columns && fits(stride);
}

/* cuBLAS is column-major: it computes the transposed c, whose left operand is b. */
ra_status ra_cuda_multiply(const ra_cuda_products *products, const ra_cuda_product *p)
{
    cudaDataType const type = type_of(p->dtype);
    if (p->m == 0 || p->n == 0 || p->k == 0 || p->count == 0)
        return RA_OK;
    if (!is_taken(p->a_transposed ? p->k : p->m, p->a_transposed ? p->m : p->k, p->a_stride) ||
        !is_taken(p->b_transposed ? p->n : p->k, p->b_transposed ? p->k : p->n, p->b_stride) ||
        !is_taken(p->m, p->n, p->c_stride)) {
        ra_log(RA_LOG_ERROR, "kernel cuda-standard: rows are more than 2^31 - 1 elements apart, "
                             "overlap, or lie backwards, which is beyond cuBLAS: use more ranks, "
                             "or views of other strides");
        return RA_ERR_UNSUPPORTED;
    }
    return status_of(products,
                     products->library->multiply(
                         products->handle, p->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                         p->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, (int)p->n, (int)p->m,
                         (int)p->k, &p->factor, p->b, type, (int)p->b_stride, p->b_step, p->a, type,
                         (int)p->a_stride, p->a_step, &p->keep, p->c, CUDA_R_32F, (int)p->c_stride,
                         p->c_step, p->count, compute_of(p), CUBLAS_GEMM_DEFAULT),
                     "a product");
}
