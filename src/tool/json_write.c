#include "tool_info.h"

#include "doomed_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool text_write(FILE *file, const char *text)
{
    bool const written = fputs(text, file) >= 0 && fflush(file) == 0;
    int const cause = errno;
    if (fclose(file) != 0)
        return false;
    errno = cause;
    return written;
}

static ra_status refuse(const char *path)
{
    ra_log(RA_LOG_ERROR, "%s: cannot write the report: %s", path, strerror(errno));
    return RA_ERR_IO;
}

/* A regular file appears when it is complete; devices and pipes are written as they are. */
static ra_status file_write(const char *text, const char *path)
{
    char temporary[4096];
    struct stat info;
    bool const in_place = stat(path, &info) == 0 && !S_ISREG(info.st_mode);
    int const length =
        in_place ? snprintf(temporary, sizeof(temporary), "%s", path)
                 : snprintf(temporary, sizeof(temporary), "%s.tmp-%ld", path, (long)getpid());
    if (length >= (int)sizeof(temporary)) {
        errno = ENAMETOOLONG;
        return refuse(path);
    }
    if (!in_place)
        ra_doomed_file_set(temporary);
    FILE *file = fopen(temporary, "w");
    ra_status status =
        file != NULL && text_write(file, text) && (in_place || rename(temporary, path) == 0)
            ? RA_OK
            : refuse(path);
    if (status != RA_OK && !in_place)
        unlink(temporary);
    ra_doomed_file_clear();
    return status;
}

ra_status ra_text_write(const char *text, const char *path)
{
    if (path != NULL)
        return file_write(text, path);
    if (fputs(text, stdout) >= 0 && fflush(stdout) == 0)
        return RA_OK;
    ra_log(RA_LOG_ERROR, "cannot write the report to standard output: %s", strerror(errno));
    return RA_ERR_IO;
}

ra_status ra_json_write(json_t *root, const char *path)
{
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    size_t const length = text != NULL ? strlen(text) : 0;
    char *line = text != NULL ? realloc(text, length + 2) : NULL; /* and a newline */
    json_decref(root);
    if (line == NULL) {
        free(text);
        ra_log(RA_LOG_ERROR, "out of memory while writing the report");
        return RA_ERR_NO_MEMORY;
    }
    memcpy(line + length, "\n", 2);
    ra_status const status = ra_text_write(line, path);
    free(line);
    return status;
}
