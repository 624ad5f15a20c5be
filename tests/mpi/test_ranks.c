/* Beginning and end of a job: calls of MPI that wait for every rank end at a deadline of ours. */
#include "launch.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(ranks, .timeout = 120);

static launch_result run_worker(const char *call)
{
    const char *const argv[] = {MPIEXEC, "-n", "3", RANKS_WORKER, call, NULL};
    return launch_run(argv, 60);
}

/* A rank that has said so has ended. mpirun may wait for itself after all ranks have (seen in
   PMIx_server_finalize of PMIx 4.2.2): then there is no exit code. */
static void check_stopped(const char *call, int after_s)
{
    char line[96];
    launch_result result = run_worker(call);
    snprintf(line, sizeof(line), "%s has not returned after %d s", call, after_s);
    cr_expect_not_null(strstr(result.output, line), "%s", result.output);
    if (!result.timed_out)
        cr_expect_eq(result.exit_code, 5, "%s: exit %d\n%s", call, result.exit_code, result.output);
    launch_fini(&result);
}

Test(ranks, one_that_is_stopped_before_mpi_begins_ends_the_job)
{
    check_stopped("MPI_Init_thread", 2);
}

Test(ranks, one_that_is_stopped_before_mpi_ends_ends_the_job)
{
    check_stopped("MPI_Finalize", 12);
}

Test(ranks, join_and_leave)
{
    launch_result result = run_worker("none");
    cr_assert_not(result.timed_out, "%s", result.output);
    cr_expect_eq(result.exit_code, 0, "exit %d\n%s", result.exit_code, result.output);
    launch_fini(&result);
}
