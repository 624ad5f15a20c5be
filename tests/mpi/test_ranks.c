/* Beginning and end of a job: calls of MPI that wait for every rank end at a deadline of ours. */
#include "launch.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(ranks, .timeout = 1200);

static launch_result run_worker(const char *call, int limit_s)
{
    const char *const argv[] = {MPIEXEC, "-n", "3", RANKS_WORKER, call, NULL};
    return launch_run(argv, limit_s);
}

/* Whether mpirun itself came to its end. After all ranks have, it may wait for itself, or crash, in
   PMIx_server_finalize (seen of PMIx 4.2.2, once in 20 starts). */
static bool launcher_ended(const launch_result *result)
{
    return !result->timed_out && strstr(result->output, "PMIx_server_finalize") == NULL;
}

/* A rank that has said so has ended. A start whose mpirun has not is made again. */
static void check_stopped(const char *call, int after_s)
{
    enum { STARTS = 3, LIMIT_S = 38 };
    char line[96];
    bool ended = false;
    snprintf(line, sizeof(line), "%s has not returned after %d s", call, after_s);
    for (int i = 0; i < STARTS && !ended; i++) {
        launch_result result = run_worker(call, LIMIT_S);
        cr_assert_not_null(strstr(result.output, line), "%s", result.output);
        ended = launcher_ended(&result);
        cr_expect(!ended || result.exit_code == 5, "%s: exit %d\n%s", call, result.exit_code,
                  result.output);
        launch_fini(&result);
    }
    cr_expect(ended, "%s did not end", call);
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
    launch_result result = run_worker("none", 60);
    cr_assert_not(result.timed_out, "%s", result.output);
    cr_expect_eq(result.exit_code, 0, "exit %d\n%s", result.exit_code, result.output);
    launch_fini(&result);
}
