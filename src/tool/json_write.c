#include "tool_info.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ra_status file_write(const char *text, const char *path)
{
    char temporary[4096];
    if (snprintf(temporary, sizeof(temporary), "%s.tmp-%ld", path, (long)getpid()) >=
        (int)sizeof(temporary)) {
        ra_log(RA_LOG_ERROR, "%s: the path is too long", path);
        return RA_ERR_IO;
    }
    FILE *file = fopen(temporary, "w");
    if (file == NULL)
        goto err;
    bool const written = fputs(text, file) >= 0 && fputc('\n', file) != EOF && fflush(file) == 0 &&
                         fsync(fileno(file)) == 0;
    int const cause = errno;
    if ((fclose(file) != 0 || !written)) {
        errno = written ? errno : cause;
        goto err_unlink;
    }
    if (rename(temporary, path) != 0)
        goto err_unlink;
    return RA_OK;

err_unlink:
    ra_log(RA_LOG_ERROR, "%s: cannot write the report: %s", path, strerror(errno));
    unlink(temporary);
    return RA_ERR_IO;
err:
    ra_log(RA_LOG_ERROR, "%s: cannot create the report: %s", path, strerror(errno));
    return RA_ERR_IO;
}

ra_status ra_json_write(json_t *root, const char *path)
{
    ra_status status = RA_OK;
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(root);
    if (text == NULL) {
        ra_log(RA_LOG_ERROR, "out of memory while writing the report");
        return RA_ERR_NO_MEMORY;
    }
    if (path != NULL) {
        status = file_write(text, path);
    } else if (puts(text) < 0 || fflush(stdout) != 0) {
        ra_log(RA_LOG_ERROR, "cannot write the report to standard output: %s", strerror(errno));
        status = RA_ERR_IO;
    }
    free(text);
    return status;
}
