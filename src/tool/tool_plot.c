/* `ringattn plot`: pictures of what the other commands have measured. */
#include "console.h"
#include "gnuplot.h"
#include "internal.h"
#include "job.h"
#include "options.h"
#include "output_file.h"
#include "plot.h"
#include "ranks.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A pipe, or a link of the system to what is open: nobody would look for pictures beside it. */
static bool is_stream(const char *path)
{
    struct stat info;
    if (stat(path, &info) == 0 && S_ISFIFO(info.st_mode))
        return true;
    bool const of_system = strncmp(path, "/dev/", 5) == 0 || strncmp(path, "/proc/", 6) == 0;
    return of_system && lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
}

/* "results.json" gives "results": pictures lie beside what they show. */
static ra_status prefix_choose(const ra_options *options, char *prefix, size_t bytes)
{
    const char *from = options->prefix != NULL ? options->prefix : options->files[0];
    size_t length = strlen(from);
    if (options->prefix == NULL && is_stream(from)) {
        ra_log(RA_LOG_ERROR, "%.100s: is not a file's own name: give pictures one by --prefix",
               from);
        return RA_ERR_CONFIG;
    }
    if (options->prefix == NULL && length > 5 && strcmp(from + length - 5, ".json") == 0)
        length -= 5;
    if (length < bytes) {
        memcpy(prefix, from, length);
        prefix[length] = '\0';
        return RA_OK;
    }
    ra_log(RA_LOG_ERROR, "%.100s...: the path is too long", from);
    return RA_ERR_IO;
}

static ra_status picture_draw(const ra_plot_kind *kind, const ra_plot_data *data, ra_comm *comm,
                              const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *script = open_memstream(&text, &bytes);
    if (script != NULL)
        kind->write(script, data);
    bool const whole = script != NULL && ferror(script) == 0;
    if (script == NULL || fclose(script) != 0 || !whole) {
        free(text);
        return ra_refuse_memory("a picture");
    }
    ra_status const status = ra_gnuplot_draw(text, path, comm);
    free(text);
    return status;
}

/* No picture takes the place of a report. */
static ra_status picture_check(const ra_options *options, const char *path)
{
    for (int i = 0; i < options->file_count; i++) {
        if (!ra_is_one_file(path, options->files[i]))
            continue;
        ra_log(RA_LOG_ERROR, "--prefix: %s: is the input file %s: give another prefix", path,
               options->files[i]);
        return RA_ERR_CONFIG;
    }
    return RA_OK;
}

static ra_status pictures_draw(const ra_options *options, const ra_plot_data *data, ra_comm *comm,
                               const char *prefix)
{
    char path[PATH_MAX];
    int drawn = 0;
    ra_status status = RA_OK;
    for (const ra_plot_kind *kind = ra_plot_kinds; kind->name != NULL && status == RA_OK; kind++) {
        if (!kind->applies(data))
            continue;
        snprintf(path, sizeof(path), "%s-%s.svg", prefix, kind->name);
        status = picture_check(options, path);
        if (status == RA_OK)
            status = picture_draw(kind, data, comm, path);
        if (status == RA_OK && !options->quiet)
            printf("%s\n", path);
        drawn++;
    }
    if (status == RA_OK && drawn == 0) {
        ra_log(RA_LOG_ERROR, "%s: nothing in it can be drawn", options->files[0]);
        return RA_ERR_IO;
    }
    return status == RA_OK ? ra_stdout_check("") : status;
}

static ra_status plot(const ra_options *options, ra_comm *comm)
{
    ra_plot_data data;
    char prefix[PATH_MAX - 32];
    ra_status status = prefix_choose(options, prefix, sizeof(prefix)); /* a pipe may take long */
    if (status == RA_OK)
        status = ra_plot_read(options->files, options->file_count, &data);
    if (status != RA_OK)
        return status;
    status = pictures_draw(options, &data, comm, prefix);
    ra_plot_fini(&data);
    return status;
}

int ra_command_plot(const ra_options *options, ra_comm *comm)
{
    /* One is enough, and the others learn what became of it. */
    ra_console_hold();
    ra_status const status = ra_console_agree(
        comm, "drawing pictures", ra_ranks_is_first(comm) ? plot(options, comm) : RA_OK);
    ra_ranks_leave(comm);
    return ra_exit_code(status);
}
