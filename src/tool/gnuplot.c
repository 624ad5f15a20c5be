#include "gnuplot.h"

#include "internal.h"
#include "output_file.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { DEADLINE_S = 60, PICTURE_BYTES_MAX = 256 << 20 };

extern char **environ;

/* A file without a name that holds `text`, at its beginning. */
static FILE *file_of(const char *text)
{
    FILE *file = tmpfile();
    if (file == NULL)
        return NULL;
    if (fputs(text, file) >= 0 && fflush(file) == 0 && fseek(file, 0, SEEK_SET) == 0)
        return file;
    fclose(file);
    return NULL;
}

static ra_status refuse(const char *what)
{
    ra_log(RA_LOG_ERROR, "gnuplot: %s", what);
    return RA_ERR_IO;
}

static size_t size_of(FILE *file)
{
    struct stat seen;
    return fstat(fileno(file), &seen) == 0 ? (size_t)seen.st_size : 0;
}

/* Wait until the program has ended. It is stopped at the deadline, and if it draws without end. */
static ra_status watch(pid_t child, FILE *drawn, ra_comm *comm, int *state_out)
{
    struct timespec const look = {.tv_nsec = 5000000};
    int64_t const begin_ns = ra_clock_ns();
    ra_status status = RA_OK;
    while (status == RA_OK && waitpid(child, state_out, WNOHANG) == 0) {
        if (ra_clock_ns() - begin_ns >= (int64_t)DEADLINE_S * 1000000000)
            status = refuse("took more than 60 s");
        else if (size_of(drawn) > PICTURE_BYTES_MAX)
            status = ra_refuse_memory("a picture");
        ra_comm_beat(comm);
        nanosleep(&look, NULL);
    }
    if (status != RA_OK) {
        kill(child, SIGKILL);
        while (waitpid(child, state_out, 0) < 0 && errno == EINTR)
            continue;
    }
    return status;
}

static ra_status picture_read(FILE *drawn, char **text_out)
{
    size_t const size = size_of(drawn);
    char *text = size <= PICTURE_BYTES_MAX ? malloc(size + 1) : NULL;
    if (text == NULL)
        return ra_refuse_memory("a picture");
    rewind(drawn);
    text[fread(text, 1, size, drawn)] = '\0';
    *text_out = text;
    return RA_OK;
}

/* 0, or why the program cannot be started. */
static int start(int script, int drawn, int complaints, pid_t *child)
{
    static char name[] = "gnuplot", own_settings[] = "-d"; /* not those of ~/.gnuplot */
    char *argv[] = {name, own_settings, NULL};
    posix_spawn_file_actions_t actions;
    int cause = posix_spawn_file_actions_init(&actions);
    if (cause != 0)
        return cause;
    cause = posix_spawn_file_actions_adddup2(&actions, script, STDIN_FILENO);
    if (cause == 0)
        cause = posix_spawn_file_actions_adddup2(&actions, drawn, STDOUT_FILENO);
    if (cause == 0)
        cause = posix_spawn_file_actions_adddup2(&actions, complaints, STDERR_FILENO);
    if (cause == 0)
        cause = posix_spawnp(child, name, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    return cause;
}

/* If gnuplot failed, log the first line that it printed and that is not empty. */
static ra_status judge(int state, FILE *complaints)
{
    char line[200] = "";
    if (WIFEXITED(state) && WEXITSTATUS(state) == 0)
        return RA_OK;
    rewind(complaints);
    while (fgets(line, sizeof(line), complaints) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (line[strspn(line, " \t^")] != '\0')
            break;
    }
    return refuse(line[0] != '\0' ? line : "ended without drawing anything");
}

static ra_status run(FILE *script, FILE *drawn, FILE *complaints, ra_comm *comm)
{
    pid_t child;
    int state = 0;
    int const cause = start(fileno(script), fileno(drawn), fileno(complaints), &child);
    if (cause != 0) {
        ra_log(RA_LOG_ERROR, "gnuplot cannot be started: %s; install gnuplot-nox", strerror(cause));
        return RA_ERR_UNSUPPORTED;
    }
    ra_status const status = watch(child, drawn, comm, &state);
    return status == RA_OK ? judge(state, complaints) : status;
}

ra_status ra_gnuplot_draw(const char *script, const char *path, ra_comm *comm)
{
    char *text = NULL;
    ra_status status = RA_ERR_IO;
    FILE *const files[] = {file_of(script), tmpfile(), tmpfile()};
    if (files[0] == NULL || files[1] == NULL || files[2] == NULL)
        ra_log(RA_LOG_ERROR, "gnuplot: no temporary file: %s", strerror(errno));
    else
        status = run(files[0], files[1], files[2], comm);
    if (status == RA_OK)
        status = picture_read(files[1], &text);
    if (status == RA_OK && strstr(text, "</svg>") == NULL)
        status = refuse("ended without drawing anything");
    if (status == RA_OK)
        status = ra_output_write(path, "cannot write the picture", text);
    free(text);
    for (int i = 0; i < 3; i++) {
        if (files[i] != NULL)
            fclose(files[i]);
    }
    return status;
}
