/* One point of a bench: a job like run's, whose failure may be a result. */
#include "console.h"
#include "job_memory.h"
#include "tool_bench.h"
#include "tool_plan.h"

#include <string.h>

/* Collective. The limits of all ranks' GPUs, each counted once; unknown if one of them is. */
static ra_status gpu_limits_gather(ra_job *job, ra_gpu_limits *limits_out)
{
    const char *name;
    double const share = 1.0 / job->gpu.sharers;
    double sums[] = {share, share * ra_limits_of_gpu(&job->device, RA_F32, &name),
                     share * ra_limits_of_gpu(&job->device, RA_BF16, &name)};
    ra_status const status = ra_comm_reduce_f64(job->comm, "limits of GPUs", RA_SUM, sums, 3);
    if (status == RA_OK) /* NAN is not above 0 */
        *limits_out =
            (ra_gpu_limits){sums[0], sums[1] > 0 ? sums[1] : 0, sums[2] > 0 ? sums[2] : 0};
    return status;
}

/* The limits of what computes, before the passes. `measured`: whether the CPU's were, before the
   job took memory, as measuring would be part of its resident peak. */
static ra_status build(ra_bench *bench, ra_job *job, bool *measured_out)
{
    char backend[RA_BACKEND_TEXT_MAX];
    ra_gpu_limits limits;
    ra_status status = ra_job_choose_backend(job);
    *measured_out = job->backend == RA_BACKEND_CPU;
    if (status == RA_OK && *measured_out)
        status = ra_bench_limits_refresh(bench, job->threads, false);
    if (status == RA_OK)
        status = ra_job_build(job);
    if (status == RA_OK && ra_series_is_first(&bench->series))
        ra_series_tell_backend(&bench->series, ra_job_describe_backend(job, backend), NULL);
    if (status != RA_OK || job->backend != RA_BACKEND_CUDA)
        return status;
    status = gpu_limits_gather(job, &limits);
    if (status == RA_OK && ra_series_is_first(&bench->series))
        ra_bench_report_gpu_limits(bench, &limits);
    if (status == RA_OK)
        bench->gpu_limits = limits;
    return status;
}

/* What a point is compared with. During a long one the CPU's speed may change: the mean of before
   and after is its limit; `before` NULL: they were not measured before. */
static void limit_set(const ra_bench *bench, ra_job *job, const ra_limits *before,
                      ra_bench_point *point)
{
    /* On the CPU all kinds but flash multiply in float32. */
    bool const is_flash = job->config.attention_kind == RA_ATTENTION_FLASH;
    ra_dtype const dtype = is_flash || job->backend == RA_BACKEND_CUDA ? job->config.dtype : RA_F32;
    if (job->backend == RA_BACKEND_CUDA) {
        const ra_gpu_limits *gpu = &bench->gpu_limits;
        point->limit_tflops = dtype == RA_F32 ? gpu->fma_tflops : gpu->tensor_tflops;
        if (point->limit_tflops > 0)
            (void)ra_limits_of_gpu(&job->device, dtype, &point->limit_name);
        return;
    }
    double const after = ra_limits_of_dtype(&bench->limits, dtype, &point->limit_name);
    point->limit_tflops = before != NULL
                              ? (ra_limits_of_dtype(before, dtype, &point->limit_name) + after) / 2
                              : after;
}

static ra_status point_measure(ra_bench *bench, ra_job *job, ra_bench_point *point)
{
    bool measured = false;
    ra_status status = ra_series_configure(&bench->series, &point->pick, job);
    if (status != RA_OK)
        return status;
    job->repeat = ra_job_repeat_of(&job->config);
    status = build(bench, job, &measured);
    ra_limits const before = bench->limits;
    if (status == RA_OK)
        status = ra_job_passes(job);
    if (status == RA_OK)
        status = ra_job_results(job);
    if (status == RA_OK && bench->series.options->overlap)
        status = ra_bench_overlap_measure(job, point);
    if (status == RA_OK && job->backend == RA_BACKEND_CPU)
        status = ra_bench_limits_refresh(bench, job->threads, false);
    if (status != RA_OK)
        return status;
    point->report = job->report;
    limit_set(bench, job, measured ? &before : NULL, point);
    return RA_OK;
}

/* Compare with the combination's first variant; if this is the first, remember it. */
static void reference_apply(ra_bench *bench, ra_bench_point *point)
{
    const ra_report *report = &point->report;
    double const ms[2] = {report->forward.median_ms, report->backward.median_ms};
    double const tflops[2] = {ra_report_tflops_forward(report), ra_report_tflops_backward(report)};
    if (bench->variant_count < 2)
        return;
    if (strcmp(point->pick.variant, bench->series.base.variants[0]) == 0) {
        memcpy(bench->reference_ms, ms, sizeof(ms));
        memcpy(bench->reference_tflops, tflops, sizeof(tflops));
        bench->reference_point = point->pick.sweep_point;
    }
    point->has_reference = bench->reference_point == point->pick.sweep_point;
    for (int i = 0; i < 2 && point->has_reference; i++) {
        point->time_ratio[i] = ms[i] / bench->reference_ms[i];
        point->rate_ratio[i] = tflops[i] / bench->reference_tflops[i];
    }
}

/*
 * The peak that `plan` predicts for this job, if it is the same one: automatic settings must be
 * resolved alike. A job that cannot be predicted has none; that is no error. After a failure the
 * predicted floor, too.
 */
static void theory_note(const ra_bench *bench, ra_bench_point *point)
{
    const ra_series *series = &bench->series;
    bool const ran = point->outcome.status == RA_OK;
    char unsaid[RA_CONSOLE_LINE_MAX];
    ra_plan_point plan = {.comm = series->comm};
    const ra_ring_info *ring = &point->report.ring;
    const ra_prediction *told = &plan.prediction;
    ra_console_defer();
    ra_status status = ra_series_configure_alone(series, &point->pick, &plan.config);
    if (status == RA_OK) {
        plan.config.repeat = ra_job_repeat_of(&plan.config).most;
        status = ra_plan_point_init_here(&plan);
    }
    if (status == RA_OK) {
        if (ran) /* measured, not predicted */
            plan.request.context_bytes = point->report.memory_bytes[RA_MEM_CONTEXT];
        status = ra_predict(&plan.request, &plan.prediction);
    }
    bool const alike =
        !ran || (told->layout == ring->layout && told->chunk == ring->chunk &&
                 told->schedule == ring->schedule && told->head_groups == ring->head_groups &&
                 told->rounds == ring->rounds);
    if (status == RA_OK && alike)
        point->theory_bytes = told->peak_bytes;
    if (status == RA_OK && !ran)
        point->floor_bytes = told->floor_bytes;
    ra_plan_point_fini(&plan);
    (void)ra_console_take(unsaid);
}

/* Report the outcome of a point, on rank 0. */
static void point_tell(ra_bench *bench, ra_bench_point *point, const ra_config *config)
{
    char label[512];
    const char *message = point->outcome.message;
    theory_note(bench, point);
    ra_bench_point_label(point, config, label, sizeof(label));
    if (message[0] != '\0')
        ra_console_tell(RA_LOG_WARNING, "%s%s%s", label, label[0] != '\0' ? ": " : "", message);
    ra_bench_report_point(bench, point, config, label);
}

ra_status ra_bench_point_run(ra_bench *bench, const ra_config_pick *pick)
{
    ra_series *series = &bench->series;
    ra_job job = {.options = series->options,
                  .comm = series->comm,
                  .progress = series->progress,
                  .pool_log_number = ++bench->point_count,
                  .cache = &bench->cache};
    ra_bench_point point = {.pick = *pick};
    ra_console_defer();
    ra_status status = point_measure(bench, &job, &point);
    status = ra_series_share_outcome(&job, status, false, &point.outcome);
    if (status == RA_OK && point.outcome.status == RA_OK)
        status = ra_series_lack(series, &job, ra_job_write_pool_log(&job));
    if (status == RA_OK) {
        ra_series_count(series, point.outcome.status, &point.report);
        if (point.outcome.status == RA_OK)
            reference_apply(bench, &point);
        if (ra_series_is_first(series))
            point_tell(bench, &point, &job.config);
    }
    ra_job_clear(&job);
    if (status == RA_OK)
        ra_series_save(series, bench); /* takes memory, of which the job has left more now */
    return status;
}
