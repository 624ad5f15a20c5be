/*
 * In place of measuring the machine's limits, for tests of `bench` that ask for no limit: to
 * measure them takes a second at least twice in each, and the jobs of these tests take
 * milliseconds. Each call adds a line to the file that RA_STANDIN_LIMITS names.
 *
 * With RA_STANDIN_LIMITS_GROW the n-th call finds n times as much, and passes take longer than
 * limits are taken for fresh.
 */
#include "job.h"
#include "limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static bool grows(void)
{
    return getenv("RA_STANDIN_LIMITS_GROW") != NULL;
}

ra_status __real_ra_job_passes(ra_job *job);
ra_status __wrap_ra_job_passes(ra_job *job);
ra_status __wrap_ra_job_passes(ra_job *job)
{
    ra_status const status = __real_ra_job_passes(job);
    if (grows())
        nanosleep(&(struct timespec){.tv_sec = 2, .tv_nsec = 1000000}, NULL);
    return status;
}

ra_status __wrap_ra_limits_measure(ra_comm *comm, int threads, ra_pool *pool,
                                   ra_limits *limits_out);

ra_status __wrap_ra_limits_measure(ra_comm *comm, int threads, ra_pool *pool, ra_limits *limits_out)
{
    static int calls;
    int const times = grows() ? ++calls : 1;
    const char *path = getenv("RA_STANDIN_LIMITS");
    FILE *file = path != NULL ? fopen(path, "a") : NULL;
    (void)pool;
    if (file != NULL) {
        fprintf(file, "%d threads\n", threads);
        fclose(file);
    }
    *limits_out = (ra_limits){.ranks = ra_comm_size(comm),
                              .threads = threads,
                              .fma_tflops = 0.1 * times,
                              .dpbf16_tflops = 0.2 * times,
                              .amx_tflops = 0.2 * times,
                              .sgemm_tflops = 0.1 * times,
                              .read_gb_per_s = 10,
                              .copy_gb_per_s = 5};
    return RA_OK;
}
