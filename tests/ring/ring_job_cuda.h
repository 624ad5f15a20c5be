/* Jobs of ring tests with the table for GPUs, on the stand-in for the runtime. */
#ifndef TESTS_RING_RING_JOB_CUDA_H
#define TESTS_RING_RING_JOB_CUDA_H

#include "ring/ring_job.h"

/** A stand-in GPU of one multiprocessor, anew. */
void ring_job_begin_cuda(void);

/** Kernels of the table for GPUs, memory of the stand-in, and messages through pinned memory. */
void ring_job_on_cuda(ring_job *job);

#endif
