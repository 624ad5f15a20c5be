/*
 * A stand-in for the CUDA runtime, linked in its place: "device" memory is the heap's, work on
 * streams is over when a test says so, and any call can be made to fail. For tests only; it
 * computes nothing on a GPU and proves nothing about one.
 */
#ifndef RINGATTN_TESTS_STANDIN_CUDART_H
#define RINGATTN_TESTS_STANDIN_CUDART_H

#include <cuda_runtime_api.h>
#include <stdint.h>

enum { STANDIN_DEVICES_MAX = 70 };

typedef struct standin_cudart {
    int device_count, driver_version;
    cudaError_t absent; /* what every call but those for versions returns; cudaSuccess: none */
    int major[STANDIN_DEVICES_MAX];
    int64_t memory_bytes, used_bytes; /* of all devices together */
    int64_t blocks, pinned_blocks, events;
    int64_t calls;     /* so far */
    int64_t fail_call; /* the call of this number, from 1, fails; 0: none */
    cudaError_t fail_error;
    cudaError_t last_error;
    int current;
    int stream_is_over; /* what recorded events say */
} standin_cudart;

extern standin_cudart standin;

/** Two devices of capability 9.0 with 1 GiB, nothing taken, no failures. */
void standin_reset(void);

#endif
