/* Messages between stand-in GPUs over MPI: the contract, and a rank that stops. */
#include "launch.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

enum { LIMIT_S = 100 };

static launch_result run_worker(int ranks, const char *mode, const char *a, const char *b)
{
    char count[16];
    snprintf(count, sizeof(count), "%d", ranks);
    const char *const argv[] = {MPIEXEC, "-n", count, STAGED_WORKER, mode, a, b, NULL};
    launch_result const result = launch_run(argv, LIMIT_S);
    cr_assert_not(result.timed_out, "%s on %d ranks did not end:\n%s", mode, ranks, result.output);
    return result;
}

static void expect_success(int ranks, const char *seed, const char *piece_bytes)
{
    launch_result result = run_worker(ranks, "healthy", seed, piece_bytes);
    cr_expect_eq(result.exit_code, 0, "pieces %s on %d ranks: exit %d\n%s", piece_bytes, ranks,
                 result.exit_code, result.output);
    launch_fini(&result);
}

Test(staged_mpi, keeps_the_contract)
{
    expect_success(1, "51", "0");
    expect_success(2, "52", "0");
    expect_success(4, "53", "30011");
}

Test(staged_mpi, notices_a_stopped_rank_at_the_deadline_and_says_what_was_in_flight)
{
    launch_result result = run_worker(3, "lose", "1500", "-");
    cr_expect_eq(result.exit_code, 5, "exit %d:\n%s", result.exit_code, result.output);
    cr_expect_not_null(strstr(result.output, "ringattn: error: forward keys and values timed out "
                                             "after 1.5 s (rank "),
                       "%s", result.output);
    cr_expect_not_null(strstr(result.output, ", step 3, waiting for rank 1): "), "%s",
                       result.output);
    cr_expect_not_null(strstr(result.output, "; in flight: forward keys and values, step 3, for "),
                       "%s", result.output);
    cr_expect_not_null(strstr(result.output, ", from rank 1 1048576 bytes, to rank 1 1048576 "),
                       "%s", result.output);
    launch_fini(&result);
}
