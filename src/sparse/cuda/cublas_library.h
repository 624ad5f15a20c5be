/* This machine's cuBLAS: loaded on first use, never linked. */
#ifndef RINGATTN_CUBLAS_LIBRARY_H
#define RINGATTN_CUBLAS_LIBRARY_H

#include <cublas_v2.h>
#include <stddef.h>

/* The functions that we call, as cublas_api.h declares them. */
typedef struct ra_cublas {
    cublasStatus_t (*get_property)(libraryPropertyType type, int *value);
    cublasStatus_t (*create)(cublasHandle_t *handle);
    cublasStatus_t (*destroy)(cublasHandle_t handle);
    cublasStatus_t (*set_stream)(cublasHandle_t handle, cudaStream_t stream);
    cublasStatus_t (*set_workspace)(cublasHandle_t handle, void *workspace, size_t bytes);
    cublasStatus_t (*multiply)(cublasHandle_t handle, cublasOperation_t transpose_a,
                               cublasOperation_t transpose_b, int m, int n, int k,
                               const void *alpha, const void *a, cudaDataType a_type, int lda,
                               long long a_stride, const void *b, cudaDataType b_type, int ldb,
                               long long b_stride, const void *beta, void *c, cudaDataType c_type,
                               int ldc, long long c_stride, int count, cublasComputeType_t compute,
                               cublasGemmAlgo_t algorithm);
    const char *(*error_string)(cublasStatus_t status);
} ra_cublas;

/** The library, or NULL and one sentence that says why there is none; thread-safe. */
const ra_cublas *ra_cublas_open(char *why_not, size_t bytes);

#endif
