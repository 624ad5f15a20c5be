/*
 * The contract over MPI, and what only processes can do: be stopped, be killed, end the job. These
 * tests are serial themselves: each starts mpirun on comm_worker and looks at how that ended.
 */
#include "comm/contract.h"
#include "launch.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LIMIT_S = 100, FOLDER_BYTES = 64 };

static launch_result run_worker(int ranks, const char *mode, const char *a, const char *b,
                                const char *c)
{
    char count[16];
    snprintf(count, sizeof(count), "%d", ranks);
    const char *const argv[] = {MPIEXEC, "-n", count, COMM_WORKER, mode, a, b, c, NULL};
    launch_result const result = launch_run(argv, LIMIT_S);
    cr_assert_not(result.timed_out, "%s on %d ranks did not end:\n%s", mode, ranks, result.output);
    return result;
}

static void expect_success(int ranks, const char *mode, const char *a, const char *b, const char *c)
{
    launch_result result = run_worker(ranks, mode, a, b, c);
    cr_expect_eq(result.exit_code, 0, "%s %s %s on %d ranks: exit %d\n%s", mode, a ? a : "",
                 b ? b : "", ranks, result.exit_code, result.output);
    launch_fini(&result);
}

static void make_folder(char folder[FOLDER_BYTES])
{
    snprintf(folder, FOLDER_BYTES, "/tmp/ringattn_comm_XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
}

/* The number in FOLDER/what.rank, which is removed; -1 where there is none. */
static long long take_number(const char *folder, const char *what, int rank)
{
    char path[256];
    long long number = -1;
    snprintf(path, sizeof(path), "%s/%s.%d", folder, what, rank);
    FILE *const file = fopen(path, "r");
    if (file == NULL)
        return -1;
    if (fscanf(file, "%lld", &number) != 1)
        number = -1;
    fclose(file);
    unlink(path);
    return number;
}

Test(comm_mpi, keeps_the_contract_on_1_to_8_ranks)
{
    static const int sizes[] = {1, 2, 3, 8};
    for (int i = 0; i < 4; i++)
        expect_success(sizes[i], "healthy", "31", "0", "0");
}

/* Messages of more than 1,000 bytes in pieces, and two or three tags for all messages of a pair. */
Test(comm_mpi, keeps_the_contract_with_messages_in_pieces)
{
    expect_success(1, "healthy", "32", "1000", "2");
    expect_success(4, "healthy", "33", "1000", "3");
    expect_success(5, "healthy", "34", "4097", "2"); /* lengths that are whole pieces too */
}

/* All breaking cases whose names begin with `prefix`, in one job. */
static void expect_broken(const char *prefix, int ranks, const char *piece_bytes)
{
    char folder[FOLDER_BYTES], destroyed[128], found[128];
    make_folder(folder);
    launch_result result = run_worker(ranks, "break", prefix, piece_bytes, folder);
    for (int i = 0; i < contract_breaking_count; i++) {
        const contract_case *const broken = &contract_breaking[i];
        if (broken->ends_job || strncmp(broken->name, prefix, strlen(prefix)) != 0)
            continue;
        snprintf(destroyed, sizeof(destroyed), "%s_destroyed", broken->name);
        snprintf(found, sizeof(found), "%s_found", broken->name);
        take_number(folder, found, 0);
        for (int rank = 0; rank < ranks; rank++) {
            cr_expect_eq(take_number(folder, broken->name, rank), 0,
                         "%s, rank %d of %d, pieces %s:\n%s", broken->name, rank, ranks,
                         piece_bytes, result.output);
            cr_expect_eq(take_number(folder, destroyed, rank), 1, "%s, rank %d of %d", broken->name,
                         rank, ranks);
        }
    }
    launch_fini(&result);
    cr_expect_eq(rmdir(folder), 0);
}

Test(comm_mpi, fails_as_the_contract_says)
{
    expect_broken("", 3, "0");
}

Test(comm_mpi, refuses_lengths_that_differ_in_whole_pieces)
{
    expect_broken("refuses_", 2, "1000");
    expect_broken("refuses_", 2, "1048576");
    expect_broken("finds_different_broadcasts", 3, "40");
}

Test(comm_mpi, ends_the_job_with_the_code_of_the_rank_that_gives_up)
{
    launch_result result = run_worker(4, "abort", "5", NULL, NULL);
    cr_expect_eq(result.exit_code, 5, "%s", result.output);
    launch_fini(&result);
    result = run_worker(2, "abort", "4", NULL, NULL);
    cr_expect_eq(result.exit_code, 4, "%s", result.output);
    launch_fini(&result);
}

/* Nothing but our own deadline notices a stopped process. */
Test(comm_mpi, notices_a_stopped_rank_at_the_deadline)
{
    char folder[FOLDER_BYTES], number[16];
    make_folder(folder);
    snprintf(number, sizeof(number), "%d", SIGSTOP);
    launch_result result = run_worker(3, "lose", number, "1500", folder);
    cr_expect_eq(result.exit_code, 5, "exit %d:\n%s", result.exit_code, result.output);
    cr_expect_not_null(strstr(result.output, "ringattn: error: forward keys and values timed out "
                                             "after 1.5 s (rank "),
                       "%s", result.output);
    cr_expect_not_null(strstr(result.output, ", step 3, waiting for rank 1): "), "%s",
                       result.output);
    launch_fini(&result);

    pid_t const pid = (pid_t)take_number(folder, "pid", 1);
    cr_assert_gt(pid, 1);
    for (int tries = 0; kill(pid, 0) == 0 && tries < 2000; tries++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    cr_expect(kill(pid, 0) != 0 && errno == ESRCH, "the stopped rank is still there");
    rmdir(folder);
}

/* The deadline is ten minutes here: it is the launcher that notices. */
Test(comm_mpi, ends_when_a_rank_is_killed)
{
    char folder[FOLDER_BYTES], number[16];
    make_folder(folder);
    snprintf(number, sizeof(number), "%d", SIGKILL);
    launch_result result = run_worker(3, "lose", number, "600000", folder);
    cr_expect_neq(result.exit_code, 0);
    cr_expect_not(result.timed_out, "the others went on");
    cr_expect_null(strstr(result.output, "timed out"), "%s", result.output);
    launch_fini(&result);
    take_number(folder, "pid", 1);
    rmdir(folder);
}

Test(comm_mpi, does_not_hang_in_destroy_when_a_rank_stays_away)
{
    char folder[FOLDER_BYTES];
    make_folder(folder);
    launch_result result = run_worker(3, "leave", folder, NULL, NULL);
    cr_expect_neq(result.exit_code, 0);
    cr_expect_not_null(strstr(result.output, "end of the job timed out after 0.5 s (rank 0 on "),
                       "%s", result.output);
    cr_expect_not_null(strstr(result.output, ", waiting for rank 1): "), "%s", result.output);
    for (int rank = 0; rank < 3; rank++)
        cr_expect_eq(take_number(folder, "destroyed", rank), 1);
    launch_fini(&result);
    rmdir(folder);
}

Test(comm_mpi, leaves_mpi_to_a_caller_who_initialised_it)
{
    expect_success(2, "guest", NULL, NULL, NULL);
}

Test(comm_mpi, does_not_take_an_mpi_without_threads)
{
    expect_success(1, "single", NULL, NULL, NULL);
}

Test(comm_mpi, ends_well_though_mpi_refused_a_heartbeat)
{
    expect_success(3, "hoarse", NULL, NULL, NULL);
}

Test(comm_mpi, keeps_what_mpi_may_still_write_when_a_rank_joins_too_late)
{
    char folder[FOLDER_BYTES];
    make_folder(folder);
    expect_success(3, "late", folder, NULL, NULL);
    for (int rank = 0; rank < 2; rank++)
        cr_expect_eq(take_number(folder, "gave up", rank), 0);
    rmdir(folder);
}

Test(comm_mpi, has_no_result_on_any_rank_if_mpi_fails_on_rank_0)
{
    expect_success(3, "deaf", NULL, NULL, NULL);
}

Test(comm_mpi, says_when_memory_is_missing)
{
    expect_success(1, "memory", NULL, NULL, NULL);
    expect_success(3, "memory", NULL, NULL, NULL);
}
