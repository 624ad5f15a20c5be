/*
 * A stand-in for cuBLAS, linked in place of the library that is loaded on a machine with GPUs:
 * plain loops, done as work on the streams of the stand-in runtime. Operands must be the stand-in's
 * device memory to their last element, types as cuBLAS's documentation lists them together, and the
 * workspace must have been set since the stream was. Sums are single chains of float32 additions,
 * and TF32 cuts 13 bits off, which is as far off as tensor cores may be. Any call can be made to
 * fail. For tests only; it proves nothing about cuBLAS.
 *
 *     RA_STANDIN_NO_CUBLAS  1: a process that starts finds no library
 */
#ifndef RINGATTN_TESTS_STANDIN_CUBLAS_H
#define RINGATTN_TESTS_STANDIN_CUBLAS_H

#include <cublas_v2.h>
#include <stdint.h>

typedef struct standin_cublas_state {
    int absent;        /* there is no library */
    int64_t calls;     /* so far */
    int64_t fail_call; /* the call of this number, from 1, fails; 0: none */
    cublasStatus_t fail_status;
    int64_t taken_bytes; /* of the device, by each handle */
    int64_t handles;     /* that there are */
    int64_t products;    /* ever enqueued, each of a batch */
} standin_cublas_state;

extern standin_cublas_state standin_cublas;

/** No failures, 1 MiB; handles that are left are gone. */
void standin_cublas_reset(void);

#endif
