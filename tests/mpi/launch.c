#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what)
{
    perror(what);
    abort();
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* In a process group of its own, so that all of it can be ended; output goes to a file, so that a
   child that outlives the launcher cannot keep us waiting on a pipe. What mpirun keeps goes to a
   folder of its own: of two at once release 4 may remove what the other is about to use. */
static pid_t begin(const char *const *argv, int output, const char *folder)
{
    pid_t const pid = fork();
    if (pid < 0)
        fail("fork");
    if (pid > 0)
        return pid;
    int const nothing = open("/dev/null", O_RDONLY);
    if (setenv("OMPI_MCA_orte_tmpdir_base", folder, 1) != 0 || setpgid(0, 0) != 0 || nothing < 0 ||
        dup2(nothing, 0) < 0 || dup2(output, 1) < 0 || dup2(output, 2) < 0)
        _exit(126);
    execvp(argv[0], (char *const *)argv);
    _exit(127);
}

static char *read_all(int file)
{
    off_t const bytes = lseek(file, 0, SEEK_END);
    char *const text = calloc(1, (size_t)bytes + 1);
    if (bytes < 0 || text == NULL || pread(file, text, (size_t)bytes, 0) != bytes)
        fail("read output");
    return text;
}

launch_result launch_run(const char *const *argv, int limit_s)
{
    char path[] = "/tmp/ringattn_launch_XXXXXX", folder[] = "/tmp/ringattn_mpirun_XXXXXX";
    char remove[64];
    launch_result result = {0};
    int state = 0;
    int const output = mkstemp(path);
    if (output < 0)
        fail(path);
    unlink(path);
    if (mkdtemp(folder) == NULL)
        fail(folder);

    pid_t const pid = begin(argv, output, folder);
    double const end_s = now_s() + limit_s;
    for (;;) {
        pid_t const ended = waitpid(pid, &state, WNOHANG);
        if (ended == pid)
            break;
        if (ended < 0 && errno != EINTR)
            fail("waitpid");
        if (now_s() > end_s) {
            result.timed_out = true;
            kill(-pid, SIGKILL);
            waitpid(pid, &state, 0);
            break;
        }
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    result.exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    result.output = read_all(output);
    close(output);
    snprintf(remove, sizeof(remove), "rm -rf %s", folder);
    if (system(remove) != 0 && !result.timed_out) /* what outlives mpirun may write there still */
        fail(remove);
    return result;
}

void launch_fini(launch_result *result)
{
    free(result->output);
    result->output = NULL;
}
