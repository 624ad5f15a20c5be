/* The files of memory.pool.log: every rank writes its own, for every point of a bench. */
#include "console.h"
#include "job.h"
#include "output_file.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Names with numbers were not looked at before the work. A link, or a file that is printed to, may
   be one that somebody wants. */
static bool is_taken(const char *path)
{
    struct stat info;
    return (lstat(path, &info) == 0 && S_ISLNK(info.st_mode)) || ra_output_own_stream(path) >= 0;
}

static ra_status own_write(const ra_job *job)
{
    char path[PATH_MAX];
    ra_output output;
    const char *given = job->config.pool_log;
    int64_t const lost = ra_pool_log_lost(job->pool_log);
    char number[16] = "", rank[16] = "";
    if (job->pool_log_number > 0)
        snprintf(number, sizeof(number), ".%d", job->pool_log_number);
    if (ra_comm_size(job->comm) > 1)
        snprintf(rank, sizeof(rank), ".%d", ra_comm_rank(job->comm));
    int const length = snprintf(path, sizeof(path), "%s%s%s", given, number, rank);
    if (length < 0 || length >= (int)sizeof(path)) {
        ra_log(RA_LOG_ERROR, "memory.pool.log: %.100s...: the path is too long", given);
        return RA_ERR_IO;
    }
    if (strcmp(path, given) != 0 && is_taken(path)) {
        ra_log(RA_LOG_ERROR,
               "memory.pool.log: %s: is a link, or a file that is printed to: give another path",
               path);
        return RA_ERR_IO;
    }
    ra_status const status = ra_output_open(&output, path, "", "cannot write the log");
    if (status != RA_OK)
        return status;
    if (lost > 0)
        ra_log(RA_LOG_WARNING, "memory.pool.log: %s: %lld events did not fit in memory", path,
               (long long)lost);
    ra_pool_log_write(job->pool_log, output.stream);
    return ra_output_close(&output, true);
}

ra_status ra_job_write_pool_log(ra_job *job)
{
    if (job->pool_log == NULL)
        return RA_OK;
    ra_console_hold();
    return ra_console_agree(job->comm, "agreeing on the pool's log", own_write(job));
}
