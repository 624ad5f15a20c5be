/* ringattn: which command, for how many ranks. */
#include "console.h"
#include "options.h"
#include "output_file.h"
#include "ranks.h"

#include "ringattn/device.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* What help asks for; printed by rank 0. */
static int help_print(const ra_options *options, ra_comm *comm)
{
    ra_status status = RA_OK;
    if (ra_ranks_is_first(comm)) {
        if (options->command == RA_COMMAND_HELP_CONFIG)
            ra_config_print_help(options->markdown);
        else
            ra_options_print_help(options);
        status = ra_stdout_check("");
    }
    ra_ranks_leave(comm);
    return ra_exit_code(status);
}

static int (*const commands[])(const ra_options *options, ra_comm *comm) = {
    [RA_COMMAND_RUN] = ra_command_run,     [RA_COMMAND_INFO] = ra_command_info,
    [RA_COMMAND_BENCH] = ra_command_bench, [RA_COMMAND_PLOT] = ra_command_plot,
    [RA_COMMAND_PROBE] = ra_command_probe, [RA_COMMAND_ABLATE] = ra_command_ablate,
    [RA_COMMAND_PLAN] = ra_command_plan,   [RA_COMMAND_HELP] = help_print,
    [RA_COMMAND_HELP_CONFIG] = help_print,
};

/* Where a standard file is closed, what is opened next would get its number, and then what is meant
   for it: a line of progress in a tensor file. Output that was closed still cannot be written. */
static void hold_standard_files(void)
{
    static const int ways[] = {O_RDONLY, O_RDONLY, O_WRONLY};
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
        if (fcntl(fd, F_GETFD) == -1 && errno == EBADF)
            (void)open("/dev/null", ways[fd]);
}

int main(int argc, char **argv)
{
    ra_comm *comm = NULL;
    ra_options options = {0};
    hold_standard_files();
    /* A file that grows past its limit, or a pipe whose reader is gone, is then an error of write,
       with a line and a clean end. */
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    /* As many queues as CUDA has: streams that share one wait for each other, and a look at a GPU
       must not wait for its kernels. It is read when CUDA begins. */
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    /* NCCL takes this for what a communicator asks for: calls that block have no deadline. */
    (void)setenv("NCCL_COMM_BLOCKING", "0", 1);
    /* Open MPI sends what a receiver has asked for over TCP as one piece, behind which our own
       request for the peer's waits: one direction at a time. It is read when MPI begins. */
    (void)setenv("OMPI_MCA_btl_tcp_rdma_pipeline_frag_size", "262144", 0);
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
    int const code = commands[options.command](&options, comm);
    ra_options_fini(&options);
    if (ra_device_is_lost()) { /* exit would wait for it */
        fflush(NULL);
        _exit(code);
    }
    return code;
}
