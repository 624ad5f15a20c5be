#include "output_file.h"

#include "doomed_file.h"
#include "durable.h"
#include "internal.h"
#include "output_pipe.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- names ----------------------------------------------------------------------------------- */

/* Choose a temporary name that no killed process has left behind: process numbers are reused. A
   dangling link is refused: its target may be wanted. */
static int names_find(ra_output *output)
{
    struct stat info;
    char id[48];
    bool link = lstat(output->path, &info) == 0 && S_ISLNK(info.st_mode);
    int bytes = RA_OUTPUT_PATH_BYTES - 1;
    if (link && realpath(output->path, output->target) == NULL) {
        int const cause = errno;
        if (stat(output->path, &info) != 0 || S_ISREG(info.st_mode))
            return cause;
        link = false; /* to a pipe without a name, as /dev/fd/3 may be */
    }
    if (!link)
        bytes = snprintf(output->target, RA_OUTPUT_PATH_BYTES, "%s", output->path);
    snprintf(id, sizeof(id), "%ld-%" PRId64, (long)getpid(), ra_clock_ns());
    if (bytes < RA_OUTPUT_PATH_BYTES)
        bytes = ra_temporary_path(output->target, id, RA_OUTPUT_PATH_BYTES, output->temporary);
    return bytes < RA_OUTPUT_PATH_BYTES ? 0 : ENAMETOOLONG;
}

/* ---- opening --------------------------------------------------------------------------------- */

static ra_status refuse(const ra_output *output)
{
    bool const unread = output->in_place && output->cause == ETIMEDOUT;
    ra_log(RA_LOG_ERROR, "%s%s: %s: %s", output->option, output->path, output->complaint,
           unread ? "nobody has read from it for an hour" : strerror(output->cause));
    return RA_ERR_IO;
}

int ra_output_own_stream(const char *path)
{
    struct stat info, own;
    if (stat(path, &info) != 0)
        return -1;
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fstat(fd, &own) == 0 && own.st_dev == info.st_dev && own.st_ino == info.st_ino)
            return fd;
    }
    return -1;
}

bool ra_output_is_replaced(const char *path)
{
    struct stat info;
    return ra_output_own_stream(path) < 0 && (stat(path, &info) != 0 || S_ISREG(info.st_mode));
}

/*
 * The stream, or NULL and errno; the caller removes the temporary file. A file that replaces
 * another is closed to others until it has that one's mode.
 */
static FILE *stream_open(const ra_output *output, int own, mode_t mode)
{
    int const flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd;
    if (own >= 0)
        fd = fcntl(own, F_DUPFD_CLOEXEC, 0);
    else if (output->in_place)
        fd = ra_pipe_open(output->target);
    else
        fd = open(output->temporary, flags, output->replaces ? 0600 : 0666);
    if (fd < 0)
        return NULL;
    FILE *stream = NULL;
    if (output->in_place)
        stream = ra_pipe_stream(fd);
    else if (!output->replaces || fchmod(fd, mode) == 0)
        stream = fdopen(fd, "w");
    if (stream == NULL) {
        int const cause = errno;
        close(fd);
        errno = cause;
    }
    return stream;
}

ra_status ra_output_open(ra_output *output, const char *path, const char *option,
                         const char *complaint)
{
    struct stat info = {0};
    *output = (ra_output){.path = path, .option = option, .complaint = complaint};
    int const own = ra_output_own_stream(path);
    if (own < 0)
        output->cause = names_find(output);
    else if (fflush(NULL) != 0) /* what was printed comes first */
        output->cause = errno;
    if (output->cause != 0)
        return refuse(output);
    bool const exists = own < 0 && stat(output->target, &info) == 0;
    output->in_place = own >= 0 || (exists && !S_ISREG(info.st_mode));
    output->replaces = exists && S_ISREG(info.st_mode);
    if (!output->in_place)
        ra_doomed_file_set(output->temporary);
    output->stream = stream_open(output, own, info.st_mode & 07777);
    if (output->stream != NULL)
        return RA_OK;
    output->cause = errno;
    if (!output->in_place)
        unlink(output->temporary);
    ra_doomed_file_clear();
    return refuse(output);
}

void ra_output_put(ra_output *output, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (output->cause == 0 && vfprintf(output->stream, format, args) < 0)
        output->cause = errno;
    va_end(args);
}

/* ---- closing --------------------------------------------------------------------------------- */

ra_status ra_output_close(ra_output *output, bool keep)
{
    if (output->stream == NULL)
        return RA_OK;
    if (output->cause == 0 && fflush(output->stream) != 0)
        output->cause = errno;
    if (output->cause == 0 && ferror(output->stream))
        output->cause = EIO; /* the writer to the stream has not said why */
    if (output->cause == 0 && keep && !output->in_place && ra_flush(fileno(output->stream)) != 0)
        output->cause = errno;
    if (fclose(output->stream) != 0 && output->cause == 0)
        output->cause = errno;
    output->stream = NULL;
    bool named = false;
    if (output->cause == 0 && keep && !output->in_place)
        output->cause = ra_publish(output->temporary, output->target, &named);
    if (named && output->cause != 0)
        output->complaint = "is whole, but a crash may undo its name: cannot flush the folder";
    if (!output->in_place && !named)
        unlink(output->temporary);
    ra_doomed_file_clear();
    return output->cause != 0 && keep ? refuse(output) : RA_OK;
}

ra_status ra_output_write(const char *path, const char *complaint, const char *text)
{
    ra_output output;
    ra_status const status = ra_output_open(&output, path, "", complaint);
    if (status != RA_OK)
        return status;
    if (fputs(text, output.stream) < 0) /* may be longer than what a format may give */
        output.cause = errno;
    return ra_output_close(&output, true);
}

/* ---- standard output ------------------------------------------------------------------------- */

/* errno of its first failure: later calls do not know it any more. */
static int stdout_cause;

void ra_stdout_flush(void)
{
    if ((fflush(stdout) != 0 || ferror(stdout)) && stdout_cause == 0)
        stdout_cause = errno != 0 ? errno : EIO;
}

ra_status ra_stdout_check(const char *what)
{
    ra_stdout_flush();
    if (stdout_cause == 0)
        return RA_OK;
    ra_log(RA_LOG_ERROR, "cannot write%s to standard output: %s", what, strerror(stdout_cause));
    return RA_ERR_IO;
}

ra_status ra_text_write(const char *text, const char *path)
{
    if (path != NULL)
        return ra_output_write(path, "cannot write the report", text);
    fputs(text, stdout); /* a failure stays with the stream */
    return ra_stdout_check(" the report");
}
