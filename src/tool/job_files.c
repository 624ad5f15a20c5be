/* All files that a command reads and writes: none of them may take the place of another. */
#include "bytes_text.h"
#include "durable.h"
#include "job.h"
#include "output_file.h"
#include "ranks.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* The folder that a path is in; false: its name is too long for files with temporary names. */
static bool folder_read(const char *path, char folder[PATH_MAX])
{
    return ra_folder_of(path, PATH_MAX, folder) + 1 + RA_TEMPORARY_NAME_BYTES < PATH_MAX;
}

/* The same of the file that a symbolic link leads to. */
static bool target_folder_read(const char *path, char folder[PATH_MAX])
{
    char target[PATH_MAX];
    return folder_read(realpath(path, target) != NULL ? target : path, folder);
}

/*
 * Find out before the work, not after it, that an output cannot be written. `renamed`: the file is
 * replaced when it is complete, which must not happen to a device. A symbolic link stands for its
 * target.
 */
static ra_status output_check(const char *key, const char *path, bool renamed)
{
    char folder[PATH_MAX];
    struct stat info;
    if (!target_folder_read(path, folder)) {
        ra_log(RA_LOG_ERROR, "%s: %.100s...: the path is too long", key, path);
        return RA_ERR_IO;
    }
    bool const exists = stat(path, &info) == 0;
    if (!exists && (errno != ENOENT || lstat(path, &info) == 0)) {
        ra_log(RA_LOG_ERROR, "%s: %s: cannot write there: %s", key, path, strerror(errno));
        return RA_ERR_IO;
    }
    if (exists && (S_ISDIR(info.st_mode) || (renamed && !S_ISREG(info.st_mode)))) {
        ra_log(RA_LOG_ERROR, "%s: %s: is %s, not a file", key, path,
               S_ISDIR(info.st_mode) ? "a folder" : "a device or pipe");
        return RA_ERR_IO;
    }
    if (exists && !S_ISREG(info.st_mode))
        return RA_OK; /* a device or pipe is written in place */
    int const own = ra_output_own_stream(path);
    /* It would be replaced, or what is printed would stand in it, too. */
    if (own == STDOUT_FILENO || (own == STDERR_FILENO && renamed)) {
        ra_log(RA_LOG_ERROR, "%s: %s: is the file of standard %s, too: give another path", key,
               path, own == STDOUT_FILENO ? "output" : "error");
        return RA_ERR_IO;
    }
    if (access(folder, W_OK | X_OK) != 0 || (exists && access(path, W_OK) != 0)) {
        ra_log(RA_LOG_ERROR, "%s: %s: cannot write there: %s", key, path, strerror(errno));
        return RA_ERR_IO;
    }
    return RA_OK;
}

typedef struct named_file {
    const char *key, *path; /* path NULL: none */
    bool renamed;
    bool numbered; /* files of ranks and points have its name with numbers behind it */
} named_file;

/* Whether two names or links are one file; a device or pipe may be read and written by all. */
bool ra_is_one_file(const char *a, const char *b)
{
    struct stat at_a, at_b;
    return stat(a, &at_a) == 0 && stat(b, &at_b) == 0 && S_ISREG(at_a.st_mode) &&
           at_a.st_dev == at_b.st_dev && at_a.st_ino == at_b.st_ino;
}

static bool is_one_folder(const char *a, const char *b)
{
    char folder_a[PATH_MAX], folder_b[PATH_MAX];
    struct stat in_a, in_b;
    return folder_read(a, folder_a) && folder_read(b, folder_b) && stat(folder_a, &in_a) == 0 &&
           stat(folder_b, &in_b) == 0 && in_a.st_dev == in_b.st_dev && in_a.st_ino == in_b.st_ino;
}

static const char *name_in_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* The same name in the same folder, where there need not be a file yet. */
static bool is_one_name(const char *a, const char *b)
{
    struct stat info;
    return strcmp(name_in_folder(a), name_in_folder(b)) == 0 &&
           (stat(a, &info) != 0 || S_ISREG(info.st_mode)) && is_one_folder(a, b);
}

/* Whether a path is NAME.NUMBER or NAME.NUMBER.NUMBER beside a file called NAME. */
static bool has_number(const char *path, const char *file)
{
    const char *rest = name_in_folder(path), *name = name_in_folder(file);
    int numbers = 0;
    if (strncmp(rest, name, strlen(name)) != 0)
        return false;
    for (rest += strlen(name); rest[0] == '.' && strspn(rest + 1, "0123456789") > 0; numbers++)
        rest += 1 + strspn(rest + 1, "0123456789");
    return rest[0] == '\0' && (numbers == 1 || numbers == 2) && is_one_folder(path, file);
}

/* Whether a rank or a point may write its file of `output` to a path, or to where that one leads.
   How many there will be is not asked. */
static bool is_numbered(const named_file *output, const char *path)
{
    char target[PATH_MAX];
    return output->numbered &&
           (has_number(path, output->path) ||
            (realpath(path, target) != NULL && has_number(target, output->path)));
}

#define WITH_NUMBER "with a number behind it "

/* Missing inputs are reported when they are opened. */
static ra_status inputs_check(const named_file *output, const named_file *inputs, int count)
{
    for (int i = 0; i < count; i++) {
        if (inputs[i].path == NULL)
            continue;
        bool const same = ra_is_one_file(output->path, inputs[i].path);
        if (!same && !is_numbered(output, inputs[i].path))
            continue;
        ra_log(RA_LOG_ERROR, "%s: %s: %sis the input file %s (%s): give another path", output->key,
               output->path, same ? "" : WITH_NUMBER, inputs[i].path, inputs[i].key);
        return RA_ERR_CONFIG;
    }
    return RA_OK;
}

static ra_status others_check(const named_file *output, const named_file *before, int count)
{
    for (int i = 0; i < count; i++) {
        if (before[i].path == NULL)
            continue;
        bool const numbered = is_numbered(output, before[i].path);
        if (!numbered && !is_numbered(&before[i], output->path) &&
            !is_one_name(output->path, before[i].path) &&
            !ra_is_one_file(output->path, before[i].path))
            continue;
        ra_log(RA_LOG_ERROR, "%s: %s: %sis the file of %s, too: give another path", output->key,
               output->path, numbered ? WITH_NUMBER : "", before[i].key);
        return RA_ERR_CONFIG;
    }
    return RA_OK;
}

ra_status ra_job_check_outputs(const ra_options *o, const ra_config *config, const ra_comm *comm,
                               bool tensors)
{
    named_file const inputs[] = {{.key = "job.input", .path = config->input},
                                 {.key = "--config", .path = o->source.file},
                                 {.key = "--hardware", .path = o->hardware_path},
                                 {.key = "--calibrate", .path = o->calibrate_path}};
    named_file const outputs[] = {
        {.key = "job.output", .path = tensors ? config->output : NULL, .renamed = true},
        {.key = "memory.pool.log",
         .path = tensors ? config->pool_log : NULL,
         .renamed = true,
         .numbered = true},
        {.key = "--json", .path = o->json_path},
        {.key = "--csv", .path = o->csv_path},
        {.key = "--trace", .path = o->trace_path},
        {.key = "--save", .path = o->save_path}};
    int const input_count = sizeof(inputs) / sizeof(inputs[0]);
    int const output_count = sizeof(outputs) / sizeof(outputs[0]);
    ra_status status = RA_OK;
    if (!ra_ranks_is_first(comm))
        return RA_OK;
    for (int i = 0; i < output_count && status == RA_OK; i++) {
        if (outputs[i].path == NULL)
            continue;
        status = output_check(outputs[i].key, outputs[i].path, outputs[i].renamed);
        if (status == RA_OK)
            status = inputs_check(&outputs[i], inputs, input_count);
        if (status == RA_OK)
            status = others_check(&outputs[i], outputs, i);
    }
    return status;
}

/* Of o, lse and the gradients; the file's header comes on top. */
static int64_t results_bytes(const ra_config *config)
{
    int64_t const tokens = config->batch * config->seq;
    int64_t const of_q = tokens * ra_tensor_row_bytes(config, RA_TENSOR_Q);
    int64_t const of_k = tokens * ra_tensor_row_bytes(config, RA_TENSOR_K);
    int64_t const lse = tokens * config->heads * (int64_t)sizeof(float);
    return of_q + (ra_job_wants_lse(config) ? lse : 0) + (config->backward ? of_q + 2 * of_k : 0);
}

ra_status ra_job_check_space(const ra_job *job)
{
    const char *path = job->config.output;
    char folder[PATH_MAX], needed[32], left[32];
    struct statvfs system;
    if (path == NULL || ra_comm_rank(job->comm) != 0)
        return RA_OK;
    /* A file system that cannot tell, or has no notion of room, tells when the file is written. */
    if (!target_folder_read(path, folder) || statvfs(folder, &system) != 0 || system.f_blocks == 0)
        return RA_OK;
    int64_t const bytes = results_bytes(&job->config);
    fsblkcnt_t const blocks = geteuid() == 0 ? system.f_bfree : system.f_bavail; /* root's, too */
    double const room = (double)blocks * (double)system.f_frsize;
    if ((double)bytes <= room)
        return RA_OK;
    ra_log(RA_LOG_ERROR,
           "job.output: %s: needs %s, but its file system has %s free: make room there, or give "
           "another path",
           path, ra_bytes_text(bytes, needed), ra_bytes_text((int64_t)room, left));
    return RA_ERR_IO;
}
