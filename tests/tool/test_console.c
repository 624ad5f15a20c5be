/* Lines of one rank among several. */
#include "ringattn/comm.h"
#include "tool/console.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <stdio.h>

static ra_comm *comms[2];

static void begin(void)
{
    cr_assert_eq(ra_comm_create_local(2, NULL, 60000, comms), RA_OK);
    ra_console_open(comms[1]);
    cr_redirect_stderr();
}

static void end(void)
{
    ra_log_set_handler(NULL, NULL);
    for (int i = 0; i < 2; i++)
        ra_comm_destroy(comms[i]);
}

TestSuite(console, .init = begin, .fini = end);

Test(console, a_line_names_its_rank_and_host_also_where_it_speaks_of_ranks)
{
    char wanted[512];
    const char *const host = ra_comm_host(comms[1]);
    ra_log(RA_LOG_ERROR, "it waits");
    ra_log(RA_LOG_ERROR, "a rank is stopped");
    ra_log(RA_LOG_ERROR, "/tmp/rank 0/o.safetensors: another rank created it");
    snprintf(wanted, sizeof(wanted),
             "ringattn: error: it waits (rank 1 on host %s)\n"
             "ringattn: error: a rank is stopped (rank 1 on host %s)\n"
             "ringattn: error: /tmp/rank 0/o.safetensors: another rank created it "
             "(rank 1 on host %s)\n",
             host, host, host);
    fflush(stderr);
    cr_expect_stderr_eq_str(wanted);
}

Test(console, a_line_that_names_its_rank_and_host_is_left_as_it_is)
{
    ra_log(RA_LOG_ERROR, "it waits (rank 1 on host h, waiting for rank 0): rank 0 is stopped");
    fflush(stderr);
    cr_expect_stderr_eq_str(
        "ringattn: error: it waits (rank 1 on host h, waiting for rank 0): rank 0 is stopped\n");
}
