/* The text of a file that somebody wrote. */
#include "config.h"

#include "input_file.h"
#include "internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Refuse pipes, which may never send anything, and devices, which may never end. */
static ra_status open_regular(const char *what, const char *path, FILE **file_out)
{
    struct stat info;
    int const fd = ra_input_open(path, &info);
    if (fd >= 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
        ra_log(RA_LOG_ERROR, "%s: is a device or pipe: give a file with the %s", path, what);
        close(fd);
        return RA_ERR_CONFIG;
    }
    *file_out = fd >= 0 ? fdopen(fd, "rb") : NULL;
    if (*file_out != NULL)
        return RA_OK;
    ra_log(RA_LOG_ERROR, "%s: cannot open the %s: %s", path, what, strerror(errno));
    if (fd >= 0)
        close(fd);
    return RA_ERR_IO;
}

ra_status ra_config_read_file(const char *what, const char *path, char **text_out,
                              size_t *bytes_out)
{
    FILE *file = NULL;
    ra_status status = open_regular(what, path, &file);
    if (status != RA_OK)
        return status;
    char *text = malloc(RA_CONFIG_BYTES_MAX + 1); /* what is not written takes no memory */
    size_t const used = text != NULL ? fread(text, 1, RA_CONFIG_BYTES_MAX + 1, file) : 0;
    if (text == NULL) {
        status = ra_refuse_memory(path);
    } else if (ferror(file)) {
        ra_log(RA_LOG_ERROR, "%s: cannot read the %s: %s", path, what, strerror(errno));
        status = RA_ERR_IO;
    } else if (used > RA_CONFIG_BYTES_MAX) {
        ra_log(RA_LOG_ERROR, "%s: larger than 16 MiB: is it a %s?", path, what);
        status = RA_ERR_CONFIG;
    }
    fclose(file);
    if (status != RA_OK) {
        free(text);
        return status;
    }
    text[used] = '\0';
    *text_out = text;
    *bytes_out = used;
    return RA_OK;
}
