/* A causal step of a table for GPUs on the stand-in for the runtime, forward and backward, and what
   becomes of it where one call after the other fails. */
#ifndef TESTS_SPARSE_CUDA_JOB_H
#define TESTS_SPARSE_CUDA_JOB_H

#include "ringattn/kernel.h"
#include "sparse/mapped.h"
#include "support/captured_log.h"

enum { DIM = 16, COUNT_MAX = 300 * 2 * DIM, RESULTS_MAX = 4 * COUNT_MAX };

typedef struct cuda_job {
    const ra_kernel_ops *ops;
    ra_kernel_use use; /* until the job is taken, this and mode may be changed */
    ra_pool_mode mode;
    ra_kernel_shape shape; /* one kv head */
    ra_dtype dtype;
    int32_t rows;
    int64_t count; /* elements of q, at most COUNT_MAX */
    bool ends_only;
    mapped host;
    ra_memory memory;
    ra_ledger *ledger;
    ra_pool *pool;
    ra_kernel kernel;
    ra_block tensors;           /* as cuda_job_tensor counts them, lse, delta */
    float results[RESULTS_MAX]; /* out as it is stored, dq, dk, dv */
} cuda_job;

extern captured_log said; /* a suite makes it listen */

/** What is on the host; DIM and one kv head are given. */
void cuda_job_prepare(cuda_job *j, const ra_kernel_ops *ops, ra_dtype dtype, int32_t rows,
                      int32_t heads);
/** What is on the GPU, within a limit. The job must be given back even if that fails. */
ra_status cuda_job_take(cuda_job *j, int64_t limit_bytes);
void cuda_job_give(cuda_job *j);

/** q, k, v, out, dout, dq, dk, dv: by number, from 0. */
ra_view cuda_job_tensor(const cuda_job *j, int i);
/** What lies behind them; delta follows it. */
float *cuda_job_lse(const cuda_job *j);

ra_status cuda_job_forward(cuda_job *j);
ra_status cuda_job_backward(cuda_job *j);
/** The results. */
ra_status cuda_job_read(cuda_job *j);

typedef struct cuda_job_sweep {
    const char *of; /* whose calls are to fail */
    ra_pool_mode mode;
    /* Prepares a job whose call of this number, from 1, fails; 0: none. Returns the error that this
       must become; RA_OK: any. */
    ra_status (*begin)(cuda_job *j, int64_t call);
    ra_status (*compute)(cuda_job *j);
    const int64_t *calls;   /* so far */
    const int64_t *handles; /* that are left, beside what the runtime has; NULL: none */
} cuda_job_sweep;

/** Each call fails once: that is one error, nothing is left, and a job that computes all the same
    has the same results. Returns how many calls there are. */
int64_t cuda_job_sweep_run(const cuda_job_sweep *sweep);
/** What must hold when a job was given back of which that call failed; 0: none. */
void cuda_job_check_end(const char *of, int64_t call, ra_status status, int64_t handles);

#endif
