/* A job that is one of several: how often it is timed, and what becomes of its failure. */
#include "internal.h"
#include "job.h"

#include <math.h>

enum {
    REPEAT_MAX = 50, /* where job.repeat does not say */
    REPEAT_MS = 10000,
    STEADY_COUNT = 5
};

static const double steady_spread = 0.05;

/* At most job.repeat times; where the file does not say, as often as it takes, within bounds. */
ra_repeat ra_job_repeat_of(const ra_config *config)
{
    bool const given = ra_config_was_given(config, "job.repeat");
    return (ra_repeat){.warmup = ra_config_was_given(config, "job.warmup") ? config->warmup : 1,
                       .most = given ? config->repeat : REPEAT_MAX,
                       .steady_count = STEADY_COUNT,
                       .steady_spread = steady_spread,
                       .most_ms = given ? (double)INFINITY : REPEAT_MS};
}

bool ra_job_failure_is_result(const ra_job *job, ra_status status)
{
    bool const alone = job->entered && ra_comm_size(job->comm) > 1;
    return !alone && (status == RA_ERR_CONFIG || status == RA_ERR_UNSUPPORTED ||
                      status == RA_ERR_NO_MEMORY || status == RA_ERR_IO);
}

ra_status ra_job_share_message(ra_comm *comm, bool kept, char line[RA_CONSOLE_LINE_MAX])
{
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int64_t first = kept ? rank : size;
    ra_status const status = ra_comm_reduce_i64(comm, "sharing a message", RA_MIN, &first, 1);
    if (status != RA_OK || first == size)
        return status;
    return ra_comm_broadcast(comm, "sharing a message", (int)first, line, RA_CONSOLE_LINE_MAX);
}

const char *ra_job_status_text(ra_status status, bool passes)
{
    switch (status) {
    case RA_OK:
        return passes ? "ok" : "verification failed";
    case RA_ERR_NO_MEMORY:
        return "oom";
    case RA_ERR_CONFIG:
        return "config";
    case RA_ERR_UNSUPPORTED:
        return "unsupported";
    case RA_ERR_IO:
        return "io";
    default:
        return ra_status_name(status);
    }
}

void ra_job_outcomes_add(ra_job_outcomes *outcomes, ra_status status, bool passes)
{
    if (status == RA_OK) {
        outcomes->ran++;
        outcomes->wrong += !passes;
    } else if (status == RA_ERR_NO_MEMORY) {
        outcomes->oom++;
    } else if (status == RA_ERR_IO) {
        outcomes->files++;
    } else {
        outcomes->refused++;
    }
}

int ra_job_outcomes_code(const ra_job_outcomes *outcomes, bool speaks)
{
    const ra_job_outcomes *o = outcomes;
    int const all = o->ran + o->oom + o->files + o->refused;
    if (o->wrong > 0 && speaks)
        ra_log(RA_LOG_ERROR, "verification failed: %d of %d", o->wrong, all);
    if (o->wrong > 0)
        return RA_EXIT_VERIFY;
    if (o->ran > 0 || all == 0)
        return 0;
    if (speaks)
        ra_log(RA_LOG_ERROR,
               "nothing ran: %d of %d out of memory, %d refused, %d with a bad file: see what is "
               "said of each",
               o->oom, all, o->refused, o->files);
    return ra_exit_code(o->oom > 0 ? RA_ERR_NO_MEMORY : o->files > 0 ? RA_ERR_IO : RA_ERR_CONFIG);
}
