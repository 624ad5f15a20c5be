#include "job_series.h"

#include "bytes_text.h"
#include "internal.h"
#include "json_build.h"
#include "output_file.h"
#include "ranks.h"
#include "tool_info.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- one job --------------------------------------------------------------------------------- */

enum {
    REPEAT_MAX = 50, /* if job.repeat is not given */
    REPEAT_MS = 10000,
    STEADY_COUNT = 5
};

ra_repeat ra_job_repeat_of(const ra_config *config)
{
    bool const given = ra_config_was_given(config, "job.repeat");
    return (ra_repeat){.warmup = ra_config_was_given(config, "job.warmup") ? config->warmup : 1,
                       .most = given ? config->repeat : REPEAT_MAX,
                       .steady_count = STEADY_COUNT,
                       .most_ms = given ? (double)INFINITY : REPEAT_MS};
}

/* Whether the command would read and write the files that a configuration names. */
static ra_status files_check(const ra_series_ops *ops, const ra_config *config)
{
    if (config->output != NULL)
        ra_log(RA_LOG_ERROR, "job.output: '%s' writes no tensors; leave it to 'run'", ops->name);
    else if (config->input != NULL && ops->makes_tensors)
        ra_log(RA_LOG_ERROR,
               "job.input: '%s' makes its own tensors of many lengths; leave it to 'run'",
               ops->name);
    else if (config->pool_log != NULL && !ops->writes_pool_log)
        ra_log(RA_LOG_ERROR, "memory.pool.log: is for 'run' and 'bench'");
    else
        return RA_OK;
    return RA_ERR_CONFIG;
}

/* All ranks have the same text, so they need not agree. */
ra_status ra_series_configure(const ra_series *series, const ra_config_pick *pick, ra_job *job)
{
    ra_status status = ra_job_text_parse(&series->text, series->comm, pick, &job->config);
    if (status == RA_OK)
        status = files_check(series->ops, &job->config);
    if (status != RA_OK)
        return status;
    if (job->config.comm != series->base.comm) {
        ra_log(RA_LOG_ERROR, "comm.backend: is the same for all %s", series->ops->jobs);
        return RA_ERR_CONFIG;
    }
    ra_comm_set_timeout(series->comm, job->config.timeout_ms);
    ra_job_take_cores(job, &series->cores);
    return RA_OK;
}

ra_status ra_series_configure_alone(const ra_series *series, const ra_config_pick *pick,
                                    ra_config *config_out)
{
    ra_status const status = ra_job_text_parse(&series->text, NULL, pick, config_out);
    if (status == RA_OK && config_out->threads == 0)
        config_out->threads = series->cores.threads;
    return status;
}

/* Share the line of the first rank that has one with all. */
static ra_status message_share(ra_comm *comm, bool kept, char line[RA_CONSOLE_LINE_MAX])
{
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int64_t first = kept ? rank : size;
    ra_status const status = ra_comm_reduce_i64(comm, "sharing a message", RA_MIN, &first, 1);
    if (status != RA_OK || first == size)
        return status;
    return ra_comm_broadcast(comm, "sharing a message", (int)first, line, RA_CONSOLE_LINE_MAX);
}

/* A failure that all ranks see is a result: then the next job has a chance. */
static bool is_result(const ra_job *job, ra_status status)
{
    return status == RA_OK || (!ra_job_failed_alone(job, status) &&
                               (status == RA_ERR_CONFIG || status == RA_ERR_UNSUPPORTED ||
                                status == RA_ERR_NO_MEMORY || status == RA_ERR_IO));
}

ra_status ra_series_share_outcome(const ra_job *job, ra_status status, bool says,
                                  ra_job_outcome *outcome_out)
{
    bool const kept = ra_console_take(outcome_out->message);
    outcome_out->status = status;
    if (kept && (status == RA_OK ? says : !is_result(job, status)))
        ra_log(RA_LOG_ERROR, "%s", outcome_out->message);
    return is_result(job, status) ? message_share(job->comm, kept, outcome_out->message) : status;
}

ra_status ra_series_lack(ra_series *series, const ra_job *job, ra_status status)
{
    if (!is_result(job, status))
        return status;
    if (series->lacked == RA_OK)
        series->lacked = status;
    return RA_OK;
}

const char *ra_job_status_text(ra_status status, const ra_report *report)
{
    switch (status) {
    case RA_OK:
        return ra_report_passes(report) ? "ok" : "verification failed";
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

void ra_series_count(ra_series *series, ra_status status, const ra_report *report)
{
    if (status == RA_OK) {
        series->ran++;
        series->wrong += !ra_report_passes(report);
    } else if (status == RA_ERR_NO_MEMORY) {
        series->oom++;
    } else if (status == RA_ERR_IO) {
        series->files++;
    } else {
        series->refused++;
    }
}

void ra_series_tell_backend(ra_series *series, const char *backend, const char *whose)
{
    enum { LABEL_WIDTH = 12 }; /* as in a run's table */
    const char *told = series->backend[0] != '\0' ? series->backend : "the CPU";
    if (backend[0] == '\0' || strcmp(backend, told) == 0 || !ra_options_shows_text(series->options))
        return;
    ra_console_show("");
    ra_report_row(LABEL_WIDTH, "backend", "%s%s%s", whose != NULL ? whose : "",
                  whose != NULL ? ": " : "", backend);
    ra_stdout_flush();
    snprintf(series->backend, sizeof(series->backend), "%s", backend);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

void ra_series_add(ra_series *series, json_t *point)
{
    if (series->options->json || series->options->csv)
        series->points = ra_json_append(series->points, point);
    else
        json_decref(point);
}

/* All but the version and the command; NULL: no memory. */
static json_t *members(ra_series *series, const void *command, bool complete)
{
    if (series->machine == NULL)
        series->machine = ra_machine_json();
    json_t *object = json_pack("{s:b, s:O}", "complete", complete, "machine", series->machine);
    if (series->ops->to_json != NULL)
        object = ra_json_extend(object, series->ops->to_json(command));
    return ra_json_extend(object, json_pack("{s:O}", "points", series->points));
}

static ra_status json_write(ra_series *series, const void *command, bool complete)
{
    ra_comm_beat(series->comm); /* a file may take long, and the others wait */
    ra_status const status = ra_json_report(series->ops->name, members(series, command, complete),
                                            series->options->json_path);
    ra_comm_beat(series->comm);
    return status;
}

static void save(ra_series *series, const void *command)
{
    int64_t const begin_ns = ra_clock_ns();
    char line[RA_CONSOLE_LINE_MAX];
    series->behind = false;
    ra_console_defer();
    ra_status const status = json_write(series, command, false);
    series->saved_ns = ra_clock_ns();
    series->save_ns = series->saved_ns - begin_ns;
    if (ra_console_take(line) && status != RA_OK && !series->unsaved) {
        ra_console_tell(RA_LOG_WARNING, "%s", line);
        series->unsaved = true;
    }
}

void ra_series_save(ra_series *series, const void *command)
{
    const char *path = series->options->json_path;
    if (!ra_series_is_first(series) || path == NULL || !ra_output_is_replaced(path))
        return;
    series->behind = true;
    if (ra_clock_ns() - series->saved_ns >= 10 * series->save_ns)
        save(series, command);
}

/* ---- all of them ----------------------------------------------------------------------------- */

bool ra_series_is_first(const ra_series *series)
{
    return ra_comm_rank(series->comm) == 0;
}

static ra_status prepare(ra_series *series, void *command)
{
    const ra_options *options = series->options;
    const ra_series_ops *ops = series->ops;
    ra_config_pick const pick = {.sweep_point = ops->base_point};
    ra_status status = ra_job_text_share(options, series->comm, &series->text);
    if (status == RA_OK)
        status = ra_job_text_parse(&series->text, series->comm, &pick, &series->base);
    if (status == RA_OK)
        status = ra_job_connect(&series->base, &series->comm);
    if (status == RA_OK)
        status = ra_job_share_cores(series->comm, &series->cores);
    if (status != RA_OK)
        return status;
    if (ra_series_is_first(series) && (options->json || options->csv))
        series->points = json_array();
    ra_console_hold();
    status = files_check(ops, &series->base);
    if (status == RA_OK)
        status = ops->prepare(command);
    if (status == RA_OK)
        status = ra_job_check_outputs(options, &series->base, series->comm, true);
    status = ra_console_agree(series->comm, ops->agreeing, status);
    if (status != RA_OK)
        return status;
    if (ra_series_is_first(series) && !options->quiet)
        series->progress = ra_progress_create();
    if (ops->base_point == 0)
        ra_job_mention_sweep(&series->base, series->comm);
    return RA_OK;
}

static ra_status finish(ra_series *series, void *command)
{
    ra_progress_destroy(series->progress);
    series->progress = NULL;
    ra_console_hold();
    ra_status reported = RA_OK, written = RA_OK;
    if (ra_series_is_first(series))
        reported = series->ops->report(command);
    /* A table that could not be written costs no point, but what lacked memory is missing. */
    if (ra_series_is_first(series) && series->options->json)
        written = json_write(series, command, reported != RA_ERR_NO_MEMORY);
    return ra_console_agree(series->comm, "agreeing on the report",
                            reported != RA_OK ? reported : written);
}

/* "2 of 3 out of memory, 1 refused" */
static void failures_say(const ra_series *s, int all)
{
    struct {
        int count;
        const char *what;
    } const kinds[] = {
        {s->oom, "out of memory"}, {s->refused, "refused"}, {s->files, "with a bad file"}};
    char text[128] = "";
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        char of[24] = "";
        if (kinds[i].count == 0)
            continue;
        if (text[0] == '\0')
            snprintf(of, sizeof(of), " of %d", all);
        ra_text_append(text, sizeof(text), ", ", "%d%s %s", kinds[i].count, of, kinds[i].what);
    }
    ra_console_tell(RA_LOG_ERROR, "nothing ran: %s: see what is said of each", text);
}

static int code_of(const ra_series *s)
{
    int const all = s->ran + s->oom + s->files + s->refused;
    bool const speaks = ra_series_is_first(s);
    if (s->wrong > 0 && speaks)
        ra_console_tell(RA_LOG_ERROR, "verification failed: %d of %d", s->wrong, all);
    if (s->wrong > 0)
        return RA_EXIT_VERIFY;
    if (s->ran > 0)
        return ra_exit_code(s->lacked);
    if (speaks)
        failures_say(s, all);
    return ra_exit_code(s->oom > 0 ? RA_ERR_NO_MEMORY : s->files > 0 ? RA_ERR_IO : RA_ERR_CONFIG);
}

int ra_series_command(ra_series *series, const ra_series_ops *ops, void *command)
{
    series->ops = ops;
    ra_status status = prepare(series, command);
    bool const entered = status == RA_OK;
    if (entered)
        status = ops->run(command);
    if (status != RA_OK && series->behind)
        save(series, command);
    /* A rank that fails between two jobs fails alone: the others would wait for it. */
    if (entered && status != RA_OK && ra_comm_size(series->comm) > 1)
        ra_comm_abort(series->comm, ra_exit_code(status));
    if (status == RA_OK)
        status = finish(series, command);
    int const code = status == RA_OK ? code_of(series) : ra_exit_code(status);
    ra_progress_destroy(series->progress);
    ops->fini(command);
    json_decref(series->points);
    json_decref(series->machine);
    ra_config_fini(&series->base);
    ra_job_text_fini(&series->text);
    ra_ranks_leave(series->comm);
    return code;
}
