/* Placement as users meet it: what the command warns of, and what `info` advises. */
#include "tool/command_runner.h"

#include <criterion/criterion.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

TestSuite(placed_command, .init = command_folder_make, .fini = command_folder_remove,
          .timeout = 120);

#define SMALL "run --set shape.seq=256 --set shape.heads=2 --set shape.head_dim=16 "

static command_result result;

static int usable_hardware_threads(int *first)
{
    cpu_set_t set;
    cr_assert_eq(sched_getaffinity(0, sizeof(set), &set), 0);
    for (*first = 0; *first < CPU_SETSIZE && !CPU_ISSET(*first, &set);)
        ++*first;
    return CPU_COUNT(&set);
}

static int count_warnings(const char *part)
{
    cr_assert_eq(result.code, 0, "%s", result.err);
    cr_assert_eq(command_count_lines(result.err, "rank -"), 0);
    return command_count_lines(result.err, part);
}

Test(placed_command, warns_of_too_many_threads_unless_quiet)
{
    char line[256];
    int first, count = usable_hardware_threads(&first);
    if (count > 64)
        cr_skip("more than 64 threads are too many for a test");
    snprintf(line, sizeof(line), SMALL "--set compute.threads=%d", count + 1);
    command_run(&result, 0, line);
    /* Where the test itself is bound to some of the cores it is the binding that is wrong. */
    cr_expect_eq(count_warnings("ringattn: warning: 1 rank with ") + count_warnings("is bound to "),
                 1, "%s", result.err);
    snprintf(line, sizeof(line), SMALL "--quiet --set compute.threads=%d", count + 1);
    command_run(&result, 0, line);
    cr_expect_eq(count_warnings("warning"), 0, "%s", result.err);
    command_run(&result, 0, SMALL "--set compute.threads=1");
    cr_expect_eq(count_warnings("warning"), 0, "%s", result.err);
}

Test(placed_command, warns_of_ranks_bound_to_one_core)
{
    char line[512];
    int first, count = usable_hardware_threads(&first);
    if (!command_has_mpi())
        cr_skip("this build has no MPI");
    snprintf(line, sizeof(line),
             "\"$MPIEXEC\" -n 2 taskset -c %d \"$RINGATTN\" " SMALL "--set compute.threads=1",
             first);
    command_shell(&result, line);
    /* On a machine with one core it is the number of ranks that is wrong. */
    cr_expect_eq(count_warnings("are bound to the same core") + count_warnings("2 ranks with 2"), 1,
                 "%d usable: %s", count, result.err);
}

Test(placed_command, binding_by_openmp_hides_no_core)
{
    int first, count = usable_hardware_threads(&first);
    if (count < 2)
        cr_skip("one hardware thread cannot be hidden");
    command_shell(&result, "\"$RINGATTN\" info | grep usable");
    static char plain[OUTPUT_BYTES_MAX];
    strcpy(plain, result.out);
    cr_assert_str_not_empty(plain);
    command_shell(&result, "OMP_PROC_BIND=true \"$RINGATTN\" info | grep usable");
    cr_expect_str_eq(result.out, plain);
    command_shell(&result, "OMP_PROC_BIND=true \"$RINGATTN\" " SMALL);
    cr_expect_eq(count_warnings("warning"), 0, "%s", result.err);
}

Test(placed_command, warns_of_copies_where_keys_are_sent)
{
    static const char mpi[] = "OMPI_MCA_btl_vader_single_copy_mechanism=none \"$MPIEXEC\" -n 2 "
                              "\"$RINGATTN\" " SMALL "--set compute.threads=1 ";
    char line[512];
    if (!command_has_mpi())
        cr_skip("this build has no MPI");
    command_shell(&result, "\"$MPIEXEC\" --version");
    if (strstr(result.out, "(Open MPI) 4.") == NULL) {
        command_folder_remove();
        cr_skip("another MPI, which does not say how it copies");
    }
    snprintf(line, sizeof(line), "%s--set ring.schedule=ring", mpi);
    command_shell(&result, line);
    cr_expect_eq(count_warnings("copy messages twice"), 1, "%s", result.err);
    snprintf(line, sizeof(line), "%s--set ring.schedule=shared", mpi);
    command_shell(&result, line);
    cr_expect_eq(count_warnings("copy messages twice"), 0, "%s", result.err);
}

Test(placed_command, warns_of_ranks_that_do_not_yield)
{
    char line[512];
    int first, count = usable_hardware_threads(&first);
    if (!command_has_mpi() || count > 7)
        cr_skip("no MPI, or too many cores to have more ranks");
    for (int yields = 0; yields < 2; yields++) {
        snprintf(line, sizeof(line),
                 "OMPI_MCA_mpi_yield_when_idle=%d \"$MPIEXEC\" -n %d \"$RINGATTN\" " SMALL
                 "--set compute.threads=1",
                 yields, count + 1);
        command_shell(&result, line);
        bool const is_bound = count_warnings("are bound to the same core") > 0; /* as the test is */
        cr_expect_eq(count_warnings("without yielding"), is_bound ? 0 : 1 - yields, "%s",
                     result.err);
    }
}

/* Open MPI prints what it was told by the environment. */
Test(placed_command, lets_messages_over_tcp_pass_each_other)
{
    static const char *const settings[] = {"", "OMPI_MCA_btl_tcp_rdma_pipeline_frag_size=65536"};
    static const char *const wanted[] = {"btl_tcp_rdma_pipeline_frag_size=262144",
                                         "btl_tcp_rdma_pipeline_frag_size=65536"};
    if (!command_has_mpi())
        cr_skip("no MPI");
    for (int i = 0; i < 2; i++) {
        char line[512];
        snprintf(line, sizeof(line),
                 "OMPI_MCA_btl=self,tcp %s OMPI_MCA_mpi_show_mca_params=enviro \"$MPIEXEC\" -n 1 "
                 "\"$RINGATTN\" " SMALL,
                 settings[i]);
        command_shell(&result, line);
        cr_expect_eq(command_count_lines(result.err, wanted[i]), 1, "%s", result.err);
    }
}

Test(placed_command, advises_in_info)
{
    command_run(&result, 0, "info");
    cr_expect_eq(result.code, 0, "%s", result.err);
    cr_expect_eq(command_count_lines(result.out, "advice  "), 1, "%s", result.out);
    cr_expect_eq(command_count_lines(result.out, "ringattn run --config FILE"), 1, "%s",
                 result.out);
}
