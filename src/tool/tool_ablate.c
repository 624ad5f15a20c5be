/*
 * `ringattn ablate`: one job under base, under the ring with everything on, with each feature off
 * in turn, with all off, and under the other form of the mask. A set that this build, or this
 * number of ranks, does not have is a row that says so.
 */
#include "tool_ablate.h"

#include "internal.h"
#include "ranks.h"

#include <stdlib.h>

static bool is_first(const ra_ablate *ablate)
{
    return ra_comm_rank(ablate->comm) == 0;
}

static ra_status comm_check(const ra_ablate *ablate, const ra_config *config)
{
    if (config->comm == ablate->base.comm)
        return RA_OK;
    ra_log(RA_LOG_ERROR, "comm.backend: is the same for all sets of an ablation");
    return RA_ERR_CONFIG;
}

static ra_status point_measure(ra_ablate *ablate, ra_job *job, ra_ablate_point *point)
{
    ra_status status =
        ra_job_text_parse_with(ablate->text, ablate->comm, NULL, 0, point->set, &job->config);
    if (status != RA_OK)
        return status;
    ra_console_hold();
    status =
        ra_console_agree(ablate->comm, "agreeing on the set", comm_check(ablate, &job->config));
    if (status != RA_OK)
        return status;
    ra_comm_set_timeout(ablate->comm, job->config.timeout_ms);
    ra_job_take_cores(job, &ablate->cores);
    job->repeat = ra_job_repeat_of(&job->config);
    status = ra_job_build(job);
    if (status == RA_OK)
        status = ra_job_passes(job);
    if (status == RA_OK)
        status = ra_job_results(job);
    if (status != RA_OK)
        return status;
    job->entered = false;
    point->report = job->report;
    point->passes = ra_report_passes(&job->report);
    if (is_first(ablate))
        point->report_json = ra_report_to_json(&job->report); /* NULL is found when printed */
    return RA_OK;
}

static ra_status point_run(ra_ablate *ablate, ra_ablate_point *point)
{
    ra_job job = {.options = ablate->options, .comm = ablate->comm, .progress = ablate->progress};
    ra_progress_about(ablate->progress, point->set->name);
    ra_console_defer();
    ra_status status = point_measure(ablate, &job, point);
    bool const kept = ra_console_take(point->message);
    if (status != RA_OK && ra_job_failure_is_result(&job, status)) {
        point->status = status;
        status = ra_job_share_message(ablate->comm, kept, point->message);
    } else if (kept) {
        ra_log(RA_LOG_ERROR, "%s", point->message);
    }
    ra_job_clear(&job);
    return status;
}

static ra_status alone_prepare(ra_ablate *ablate)
{
    ra_job const job = {.options = ablate->options, .comm = ablate->comm, .config = ablate->base};
    if (ablate->base.output != NULL) {
        ra_log(RA_LOG_ERROR, "job.output: 'ablate' writes no tensors; leave it to 'run'");
        return RA_ERR_CONFIG;
    }
    ra_status status = ra_job_refuse_pool_log(&ablate->base);
    if (status == RA_OK)
        status = ra_job_check_outputs(&job);
    if (status != RA_OK)
        return status;
    ablate->points = calloc((size_t)ra_feature_set_count, sizeof(*ablate->points));
    if (ablate->points == NULL) {
        ra_log(RA_LOG_ERROR, "out of memory (sets of features)");
        return RA_ERR_NO_MEMORY;
    }
    for (int i = 0; i < ra_feature_set_count; i++)
        ablate->points[i].set = &ra_feature_sets[i];
    return RA_OK;
}

static ra_status prepare(ra_ablate *ablate)
{
    ra_status status = ra_job_text_share(ablate->options, ablate->comm, &ablate->text);
    if (status == RA_OK)
        status = ra_job_text_parse(ablate->text, ablate->comm, NULL, 0, &ablate->base);
    if (status == RA_OK)
        status = ra_job_connect(&ablate->base, &ablate->comm);
    if (status == RA_OK)
        status = ra_job_share_cores(ablate->comm, &ablate->cores);
    if (status != RA_OK)
        return status;
    ra_console_hold();
    status = ra_console_agree(ablate->comm, "agreeing on the sets", alone_prepare(ablate));
    if (status == RA_OK)
        ra_job_mention_sweep(&ablate->base, ablate->comm);
    if (status == RA_OK)
        status = ra_progress_create(is_first(ablate) && !ablate->options->quiet, &ablate->progress);
    return status;
}

static void fini(ra_ablate *ablate)
{
    ra_progress_destroy(ablate->progress);
    for (int i = 0; i < ra_feature_set_count && ablate->points != NULL; i++)
        json_decref(ablate->points[i].report_json);
    free(ablate->points);
    ra_config_fini(&ablate->base);
    ra_job_text_destroy(ablate->text);
    ra_ranks_leave(ablate->comm);
}

/* Of all sets together: every rank comes to the same. */
static int points_code(const ra_ablate *ablate)
{
    ra_job_outcomes outcomes = {0};
    for (int i = 0; i < ra_feature_set_count; i++)
        ra_job_outcomes_add(&outcomes, ablate->points[i].status, ablate->points[i].passes);
    return ra_job_outcomes_code(&outcomes, is_first(ablate));
}

int ra_command_ablate(const ra_options *options, ra_comm *comm)
{
    ra_ablate ablate = {.options = options, .comm = comm};
    ra_status status = prepare(&ablate);
    bool const entered = status == RA_OK;
    for (int i = 0; entered && i < ra_feature_set_count && status == RA_OK; i++)
        status = point_run(&ablate, &ablate.points[i]);
    /* Whoever fails between two sets fails alone: the others would wait for it. */
    if (entered && status != RA_OK && ra_comm_size(ablate.comm) > 1)
        ra_comm_abort(ablate.comm, ra_exit_code(status));
    if (status == RA_OK) {
        ra_progress_destroy(ablate.progress);
        ablate.progress = NULL;
        ra_console_hold();
        ra_status const written = is_first(&ablate) ? ra_ablate_report(&ablate) : RA_OK;
        status = ra_console_agree(ablate.comm, "agreeing on the report", written);
    }
    int const code = status == RA_OK ? points_code(&ablate) : ra_exit_code(status);
    fini(&ablate);
    return code;
}
