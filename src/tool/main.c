/* ringattn: which command, for how many ranks. */
#include "console.h"
#include "options.h"
#include "output_file.h"
#include "ranks.h"

#include "ringattn/device.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* What help asks for; printed by rank 0. */
static int help_print(const ra_options *options, const ra_comm *comm)
{
    if (comm != NULL && ra_comm_rank(comm) != 0)
        return 0;
    if (options->command == RA_COMMAND_HELP_CONFIG)
        ra_config_print_help(options->markdown);
    else
        ra_options_print_help(options);
    return ra_exit_code(ra_stdout_check(""));
}

int main(int argc, char **argv)
{
    ra_comm *comm = NULL;
    ra_options options = {0};
    /* A file that grows past its limit is then an error of write, with a line and a clean end. */
    signal(SIGXFSZ, SIG_IGN);
    ra_status status = ra_ranks_join(&argc, &argv, RA_RANKS_JOIN_MS, &comm);
    if (status != RA_OK)
        return ra_exit_code(status);
    ra_console_open(comm);
    ra_console_hold();
    status = ra_options_parse(argc, argv, &options);
    status = ra_console_agree(comm, "agreeing on the command", status);
    if (status == RA_OK)
        status = ra_ranks_compare(comm, argc, argv);
    if (status != RA_OK) {
        ra_options_fini(&options);
        ra_ranks_leave(comm);
        return ra_exit_code(status);
    }
    ra_console_set_quiet(options.quiet);
    int code = 0;
    switch (options.command) {
    case RA_COMMAND_RUN:
        code = ra_command_run(&options, comm);
        break;
    case RA_COMMAND_INFO:
        code = ra_command_info(&options, comm);
        break;
    case RA_COMMAND_BENCH:
        code = ra_command_bench(&options, comm);
        break;
    case RA_COMMAND_PLOT:
        code = ra_command_plot(&options, comm);
        break;
    case RA_COMMAND_PROBE:
        code = ra_command_probe(&options, comm);
        break;
    case RA_COMMAND_ABLATE:
        code = ra_command_ablate(&options, comm);
        break;
    case RA_COMMAND_PLAN:
        code = ra_command_plan(&options, comm);
        break;
    case RA_COMMAND_HELP:
    case RA_COMMAND_HELP_CONFIG:
        code = help_print(&options, comm);
        ra_ranks_leave(comm);
        break;
    }
    ra_options_fini(&options);
    if (ra_device_is_lost()) { /* exit would wait for it */
        fflush(NULL);
        _exit(code);
    }
    return code;
}
