/* A job whose results are right, for tests of verification to pass on or to spoil. */
#ifndef RINGATTN_TESTS_VERIFY_JOB_H
#define RINGATTN_TESTS_VERIFY_JOB_H

#include "tool/tensor_fixture.h"
#include "tool/tensors.h"
#include "tool/verify.h"

enum { VERIFY_RANKS_MAX = 4 };

/* A job whose results are the oracle's, rounded to the dtype. Tensors are of the whole job. */
typedef struct verify_job {
    ra_config config;
    ra_tensor_source *source;
    ra_pattern *pattern;
    int ranks;
    bool inputs_nonfinite;
    void *o, *dq, *dk, *dv;
    float *lse;
    ra_rowset rows[VERIFY_RANKS_MAX];
    ra_errors errors[VERIFY_RANKS_MAX];
    ra_status status[VERIFY_RANKS_MAX];
} verify_job;

/* Open what job->config names, in the fixture's pool, and compute its results. */
void verify_job_open(verify_job *job);
/* Give back all but the configuration. */
void verify_job_close(verify_job *job);
/* Verify on `ranks` ranks, every second time with strided rows; all ranks must agree. */
ra_errors verify_job_run(verify_job *job, int ranks);

#endif
