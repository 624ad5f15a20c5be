/* Matrix products of the table `standard` on a GPU, by cuBLAS. Private to src/sparse/cuda. */
#ifndef RINGATTN_PRODUCTS_CUDA_H
#define RINGATTN_PRODUCTS_CUDA_H

#include "sparse/cuda/cublas_library.h"
#include "sparse/cuda/cuda_internal.h"

/*
 * cuBLAS's workspace, which we provide so that the ledger counts it: the size that NVIDIA
 * recommends for Hopper. Otherwise cuBLAS would take one of its own from the device.
 */
enum { RA_CUDA_CUBLAS_BYTES = 32 << 20, RA_CUDA_CUBLAS_ALIGN = 256 };

typedef struct ra_cuda_products {
    const ra_cublas *library;
    cublasHandle_t handle;
    cudaStream_t stream;   /* the kernel's */
    ra_ledger *ledger;     /* of its pool */
    int64_t context_bytes; /* what it took of the device when it began; category context */
} ra_cuda_products;

/*
 * For each of `count` products: c[m][n] = factor * op(a) op(b) + keep * c, row-major, with strides
 * of rows and matrices in elements. op(a) is [m][k]: a itself, or the transpose of a [k][m];
 * likewise op(b), [k][n]. Operands of 16 bits are multiplied exactly; sums are float32.
 */
typedef struct ra_cuda_product {
    int64_t m, n, k;
    int32_t count;
    bool a_transposed, b_transposed;
    bool rounded; /* float32 operands may be read as TF32, without their last 13 bits */
    float factor, keep;
    ra_dtype dtype; /* of a and b */
    const void *a, *b;
    float *c; /* the matrices overlap neither a, nor b, nor each other */
    int64_t a_stride, b_stride, c_stride;
    int64_t a_step, b_step, c_step; /* from matrix to matrix */
} ra_cuda_product;

/**
 * Start cuBLAS on the kernel's stream and the calling thread's GPU. What it takes of the device for
 * itself is charged to the kernel's pool.
 * @return RA_ERR_NO_MEMORY, RA_ERR_CUDA, RA_ERR_UNSUPPORTED; one line was logged
 */
RA_CHECKED ra_status ra_cuda_products_init(ra_kernel *kernel, const ra_cublas *library,
                                           ra_cuda_products *products_out);
void ra_cuda_products_fini(ra_kernel *kernel, ra_cuda_products *products);

/** From now on cuBLAS works here: RA_CUDA_CUBLAS_BYTES, aligned to RA_CUDA_CUBLAS_ALIGN. */
RA_CHECKED ra_status ra_cuda_products_lend(const ra_cuda_products *products, void *memory);

/**
 * Enqueue.
 * @return RA_ERR_UNSUPPORTED  rows further apart than 2^31 - 1 elements
 *         RA_ERR_NO_MEMORY, RA_ERR_CUDA; one line was logged
 */
RA_CHECKED ra_status ra_cuda_multiply(const ra_cuda_products *products, const ra_cuda_product *p);

#endif
