/*
 * `ringattn ablate`: one job under base, under the ring with everything on, with each feature off
 * in turn, with all off, and under the other form of the mask. If this build, or this number of
 * ranks, lacks a set, its row says so.
 */
#include "tool_ablate.h"

#include "internal.h"

#include <stdlib.h>

static ra_status point_measure(const ra_series *series, ra_job *job, ra_ablate_point *point)
{
    ra_config_pick const pick = {.features = point->set};
    ra_status status = ra_series_configure(series, &pick, job);
    if (status != RA_OK)
        return status;
    job->repeat = ra_job_repeat_of(&job->config);
    status = ra_job_build(job);
    if (status == RA_OK)
        status = ra_job_passes(job);
    if (status == RA_OK)
        status = ra_job_results(job);
    if (status != RA_OK)
        return status;
    point->report = job->report;
    return RA_OK;
}

static ra_status point_run(ra_ablate *ablate, ra_ablate_point *point)
{
    ra_series *series = &ablate->series;
    ra_job job = {.options = series->options, .comm = series->comm, .progress = series->progress};
    ra_progress_about(series->progress, point->set->name);
    ra_console_defer();
    ra_status status = point_measure(series, &job, point);
    status = ra_series_share_outcome(&job, status, true, &point->outcome);
    (void)ra_job_describe_backend(&job, point->backend);
    ra_series_count(series, point->outcome.status, &point->report);
    if (status == RA_OK) {
        ablate->point_count++;
        if (ra_series_is_first(series))
            ra_series_add(series, ra_ablate_point_to_json(ablate, point));
    }
    ra_job_clear(&job);
    if (status == RA_OK)
        ra_series_save(series, ablate); /* takes memory, of which the job has left more now */
    return status;
}

static ra_status prepare(void *command)
{
    ra_ablate *ablate = command;
    ablate->points = calloc((size_t)ra_feature_set_count, sizeof(*ablate->points));
    if (ablate->points == NULL)
        return ra_refuse_memory("the sets of features");
    for (int i = 0; i < ra_feature_set_count; i++)
        ablate->points[i].set = &ra_feature_sets[i];
    return RA_OK;
}

static ra_status run(void *command)
{
    ra_ablate *ablate = command;
    const ra_series *series = &ablate->series;
    ra_status status = RA_OK;
    ra_job_mention_variants(&series->base, series->options, series->comm);
    for (int i = 0; i < ra_feature_set_count && status == RA_OK; i++)
        status = point_run(ablate, &ablate->points[i]);
    return status;
}

static void fini(void *command)
{
    ra_ablate *ablate = command;
    free(ablate->points);
}

int ra_command_ablate(const ra_options *options, ra_comm *comm)
{
    static const ra_series_ops ops = {.name = "ablate",
                                      .agreeing = "agreeing on the sets",
                                      .jobs = "sets of an ablation",
                                      .prepare = prepare,
                                      .run = run,
                                      .report = ra_ablate_report,
                                      .fini = fini};
    ra_ablate ablate = {.series = {.options = options, .comm = comm}};
    return ra_series_command(&ablate.series, &ops, &ablate);
}
