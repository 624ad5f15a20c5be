#include "doomed_file.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char doomed[PATH_MAX];
static volatile sig_atomic_t is_set;

/* Remove the file by calls that a handler may make; then the signal has its default effect. */
static void remove_and_end(int number)
{
    if (is_set)
        unlink(doomed);
    signal(number, SIG_DFL);
    raise(number);
}

void ra_doomed_file_set(const char *path)
{
    /* What terminals, shells and batch systems end a process with, and no errors of write, as
       SIGXFSZ and SIGPIPE are. */
    static const int numbers[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGALRM,
                                  SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU};
    if (is_set) {
        if (strcmp(doomed, path) == 0)
            return; /* at no time may a signal find it forgotten */
        is_set = 0;
    }
    if (snprintf(doomed, sizeof(doomed), "%s", path) >= (int)sizeof(doomed))
        return; /* no system call takes such a path either */
    is_set = 1;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); ++i) {
        struct sigaction action;
        /* Leave signals that are ignored, or that somebody handles. */
        if (sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler == SIG_DFL)
            signal(numbers[i], remove_and_end);
    }
}

void ra_doomed_file_clear(void)
{
    is_set = 0;
}
