/* One point of a bench: a job like run's, whose failure may be a result. */
#include "console.h"
#include "internal.h"
#include "tool_bench.h"
#include "tool_plan.h"

#include <stdio.h>
#include <string.h>

/* The communicator was made before the first point. */
static ra_status comm_check(const ra_bench *bench, const ra_config *config)
{
    if (config->comm == bench->base.comm)
        return RA_OK;
    ra_log(RA_LOG_ERROR, "comm.backend: is the same for all points of a bench");
    return RA_ERR_CONFIG;
}

/* Collective. Of the GPUs of all ranks, each counted once; not known where one of them is not. */
static ra_status gpu_limit(ra_job *job, ra_bench_point *point)
{
    const char *name;
    double sum = ra_limits_of_gpu(&job->device, job->config.dtype, &name) / job->device_sharers;
    job->entered = true;
    ra_status const status = ra_comm_reduce_f64(job->comm, "limits of GPUs", RA_SUM, &sum, 1);
    job->entered = status != RA_OK;
    if (status == RA_OK && sum > 0) { /* NAN is not */
        point->limit_name = name;
        point->limit_tflops = sum;
    }
    return status;
}

static ra_status point_measure(ra_bench *bench, ra_job *job, ra_bench_point *point)
{
    /* One that the command line names is in the text already, as rank 0's command line has it. */
    const char *variant = bench->variant_count > 0 ? point->variant : NULL;
    ra_status status =
        ra_job_text_parse(bench->text, bench->comm, variant, point->index, &job->config);
    if (status != RA_OK)
        return status;
    ra_console_hold();
    status =
        ra_console_agree(bench->comm, "agreeing on the point", comm_check(bench, &job->config));
    if (status != RA_OK)
        return status;
    ra_comm_set_timeout(bench->comm, job->config.timeout_ms);
    ra_job_take_cores(job, &bench->cores);
    job->repeat = ra_job_repeat_of(&job->config);
    status = ra_bench_limits_refresh(bench, job->threads, false);
    ra_limits const before = bench->limits;
    if (status == RA_OK)
        status = ra_job_build(job);
    if (status == RA_OK)
        status = ra_job_passes(job);
    if (status == RA_OK)
        status = ra_job_results(job);
    if (status == RA_OK && bench->overlap && ra_comm_size(bench->comm) > 1)
        status = ra_bench_overlap_measure(job, point);
    /* A long point may see another machine at its end: the mean is its limit. */
    if (status == RA_OK)
        status = ra_bench_limits_refresh(bench, job->threads, false);
    if (status == RA_OK)
        status = ra_job_write_pool_log(job);
    if (status != RA_OK)
        return status;
    job->entered = false;
    point->report = job->report;
    if (job->backend == RA_BACKEND_CUDA)
        return gpu_limit(job, point);
    ra_dtype const dtype = job->config.dtype;
    double const after_tflops = ra_limits_of_dtype(&bench->limits, dtype, &point->limit_name);
    point->limit_tflops =
        (ra_limits_of_dtype(&before, dtype, &point->limit_name) + after_tflops) / 2;
    return RA_OK;
}

/* Against the first variant of this combination, which is remembered when it is the one at hand. */
static void reference_apply(ra_bench *bench, ra_bench_point *point)
{
    const ra_report *report = &point->report;
    ra_times const times[2] = {report->forward, report->backward};
    double const tflops[2] = {ra_report_tflops_forward(report), ra_report_tflops_backward(report)};
    if (bench->variant_count < 2)
        return;
    if (strcmp(point->variant, bench->base.variants[0]) == 0) {
        memcpy(bench->reference, times, sizeof(times));
        memcpy(bench->reference_tflops, tflops, sizeof(tflops));
        bench->has_reference = true;
    }
    point->has_reference = bench->has_reference;
    for (int i = 0; i < 2 && bench->has_reference; i++) {
        point->time_ratio[i] = times[i].median_ms / bench->reference[i].median_ms;
        point->rate_ratio[i] = tflops[i] / bench->reference_tflops[i];
    }
}

/*
 * The peak that `plan` predicts for this job, if it is the same one: what is automatic must have
 * been decided alike. A job that is not predicted has none, which is nothing to complain about.
 */
static int64_t theory_bytes(const ra_bench *bench, const ra_bench_point *point)
{
    char unsaid[RA_CONSOLE_LINE_MAX];
    ra_plan_point plan = {.comm = bench->comm};
    const ra_ring_info *ring = &point->report.ring;
    const ra_prediction *told = &plan.prediction;
    const char *variant = bench->variant_count > 0 ? point->variant : NULL;
    ra_console_defer();
    ra_status status = ra_job_text_parse(bench->text, NULL, variant, point->index, &plan.config);
    if (status == RA_OK) {
        if (plan.config.threads == 0)
            plan.config.threads = bench->cores.threads;
        plan.config.repeat = ra_job_repeat_of(&plan.config).most;
        status = ra_plan_point_settle_backend(&plan, ra_comm_size(bench->comm));
    }
    if (status == RA_OK)
        status = ra_plan_point_init(&plan, ra_comm_size(bench->comm), NULL);
    if (status == RA_OK) {
        if (point->status == RA_OK) /* measured, not predicted */
            plan.request.context_bytes = point->report.memory_bytes[RA_MEM_CONTEXT];
        plan.request.ranks_per_node = ra_comm_local_size(bench->comm);
        status = ra_plan_point_predict(&plan);
    }
    bool const alike = point->status != RA_OK ||
                       (told->layout == ring->layout && told->chunk == ring->chunk &&
                        told->schedule == ring->schedule && told->head_groups == ring->head_groups);
    int64_t const bytes = status == RA_OK && alike ? told->peak_bytes : 0;
    ra_plan_point_fini(&plan);
    (void)ra_console_take(unsaid);
    return bytes;
}

/* Collective. What became of a point that has not ended the bench. */
static ra_status point_settle(ra_bench *bench, ra_job *job, ra_bench_point *point, bool kept)
{
    char label[512], line[2 * RA_CONSOLE_LINE_MAX];
    ra_status const status = ra_job_share_message(bench->comm, kept, point->message);
    if (status != RA_OK)
        return status;
    ra_job_outcomes_add(&bench->outcomes, point->status,
                        point->status == RA_OK && ra_report_passes(&point->report));
    if (point->status == RA_OK)
        reference_apply(bench, point);
    if (ra_comm_rank(bench->comm) != 0)
        return RA_OK;
    point->theory_bytes = theory_bytes(bench, point);
    ra_bench_point_label(point, &job->config, label, sizeof(label));
    snprintf(line, sizeof(line), "%s%s%s", label, label[0] != '\0' ? ": " : "", point->message);
    if (point->message[0] != '\0')
        ra_console_warn(line);
    ra_bench_report_point(bench, point, &job->config);
    return RA_OK;
}

ra_status ra_bench_point_run(ra_bench *bench, const char *variant, int64_t index)
{
    ra_job job = {.options = bench->options,
                  .comm = bench->comm,
                  .progress = bench->progress,
                  .writes_pool_log = true,
                  .pool_log_number = ++bench->point_count,
                  .cache = &bench->cache};
    ra_bench_point point = {.variant = variant, .index = index};
    ra_console_defer();
    ra_status status = point_measure(bench, &job, &point);
    bool const kept = ra_console_take(point.message);
    if (status == RA_OK || ra_job_failure_is_result(&job, status)) {
        point.status = status;
        status = point_settle(bench, &job, &point, kept);
    } else if (kept) {
        ra_log(RA_LOG_ERROR, "%s", point.message);
    }
    ra_job_clear(&job);
    return status;
}
