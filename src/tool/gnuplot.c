#include "gnuplot.h"

#include "internal.h"
#include "output_file.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEADLINE_MS = 60000, LOOK_MS = 100, PICTURE_BYTES_MAX = 256 << 20 };

extern char **environ;

typedef struct picture {
    char *text;
    size_t used, size;
} picture;

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

static ra_status picture_grow(picture *p)
{
    size_t const size = p->size == 0 ? 64 << 10 : 2 * p->size;
    char *text = size <= PICTURE_BYTES_MAX ? realloc(p->text, size) : NULL;
    if (text == NULL) {
        ra_log(RA_LOG_ERROR, "out of memory for a picture");
        return RA_ERR_NO_MEMORY;
    }
    p->text = text;
    p->size = size;
    return RA_OK;
}

/* Read until the other end is closed, or until the deadline. */
static ra_status picture_read(int from, ra_comm *comm, picture *p)
{
    int64_t const deadline_ns = ra_clock_ns() + (int64_t)DEADLINE_MS * 1000000;
    for (;;) {
        if (p->used + 1 >= p->size) {
            ra_status const status = picture_grow(p);
            if (status != RA_OK)
                return status;
        }
        struct pollfd ready = {.fd = from, .events = POLLIN};
        if (ra_clock_ns() >= deadline_ns)
            return refuse("took more than 60 s");
        ra_comm_beat(comm);
        int const polled = poll(&ready, 1, LOOK_MS);
        if (polled == 0)
            continue;
        ssize_t const got = polled < 0 ? -1 : read(from, p->text + p->used, p->size - p->used - 1);
        if (got < 0 && errno != EINTR)
            return refuse(strerror(errno));
        if (got == 0)
            break;
        p->used += got > 0 ? (size_t)got : 0;
    }
    p->text[p->used] = '\0';
    return RA_OK;
}

/* 0, or why the program cannot be started. */
static int start(int script, int drawn, int complaints, pid_t *child)
{
    static char name[] = "gnuplot";
    char *argv[] = {name, NULL};
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

static ra_status run(FILE *script, FILE *complaints, ra_comm *comm, picture *drawn)
{
    int ends[2];
    pid_t child;
    if (pipe(ends) != 0)
        return refuse(strerror(errno));
    int const cause = start(fileno(script), ends[1], fileno(complaints), &child);
    close(ends[1]);
    if (cause != 0) {
        close(ends[0]);
        ra_log(RA_LOG_ERROR, "gnuplot cannot be started: %s; install gnuplot-nox", strerror(cause));
        return RA_ERR_UNSUPPORTED;
    }
    ra_status const status = picture_read(ends[0], comm, drawn);
    close(ends[0]);
    int state = 0;
    if (status != RA_OK)
        kill(child, SIGKILL);
    while (waitpid(child, &state, 0) < 0 && errno == EINTR)
        continue;
    return status != RA_OK ? status : judge(state, complaints);
}

ra_status ra_gnuplot_draw(const char *script, const char *path, ra_comm *comm)
{
    picture drawn = {0};
    ra_status status = RA_ERR_IO;
    FILE *input = file_of(script), *complaints = tmpfile();
    if (input == NULL || complaints == NULL)
        ra_log(RA_LOG_ERROR, "gnuplot: no temporary file: %s", strerror(errno));
    else
        status = run(input, complaints, comm, &drawn);
    if (status == RA_OK && strstr(drawn.text, "</svg>") == NULL)
        status = refuse("ended without drawing anything");
    if (status == RA_OK)
        status = ra_output_write(path, "cannot write the picture", drawn.text);
    free(drawn.text);
    if (input != NULL)
        fclose(input);
    if (complaints != NULL)
        fclose(complaints);
    return status;
}
