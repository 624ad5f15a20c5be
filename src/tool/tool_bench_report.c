/* The table of a bench, line by line as points end; CSV at the end. */
#include "bytes_text.h"
#include "config_yaml.h"
#include "console.h"
#include "duration.h"
#include "internal.h"
#include "json_text.h"
#include "output_file.h"
#include "ringattn/blas.h"
#include "tool_bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

ra_status ra_bench_report_begin(ra_bench *bench)
{
    bench->limits_list = json_array();
    return bench->limits_list != NULL ? RA_OK : ra_refuse_memory("the report");
}

void ra_bench_report_fini(ra_bench *bench)
{
    json_decref(bench->limits_list);
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* "0.103", or "-" where it was not measured. */
static const char *rate_text(double rate, char text[16])
{
    snprintf(text, 16, rate > 0 ? "%.3g" : "-", rate);
    return text;
}

static void header_print(ra_bench *bench)
{
    bench->has_header = true;
    printf("\n%-9s %10s %10s %10s %4s %7s %8s %8s", "pass", "min", "median", "max", "n", "spread",
           "TFLOP/s", "of limit");
    if (bench->variant_count > 1)
        printf(" %7s %7s", "time x", "rate x");
    printf(" %12s  point\n", "memory");
}

static const char *sgemm_text(const ra_limits *limits)
{
    if (limits->sgemm_tflops > 0)
        return ra_blas_name();
    return ra_blas_name() != NULL || ra_blas_is_refused()
               ? "OpenBLAS is refused address space: not measured"
               : "OpenBLAS is not installed: not measured";
}

static void limits_print(const ra_bench *bench)
{
    const ra_limits *l = &bench->limits;
    char text[6][16];
    printf("%slimits of %d rank%s x %d thread%s: fma (%s) %s, dpbf16 %s, amx %s, sgemm %s TFLOP/s; "
           "memory read %s, copy %s GB/s\n",
           bench->has_header ? "\n" : "", l->ranks, ra_plural(l->ranks), l->threads,
           ra_plural(l->threads), ra_limit_fma()->name, rate_text(l->fma_tflops, text[0]),
           rate_text(l->dpbf16_tflops, text[1]), rate_text(l->amx_tflops, text[2]),
           rate_text(l->sgemm_tflops, text[3]), rate_text(l->read_gb_per_s, text[4]),
           rate_text(l->copy_gb_per_s, text[5]));
    if (json_array_size(bench->limits_list) == 1)
        printf("sgemm: %s\n", sgemm_text(l));
}

void ra_bench_report_limits(ra_bench *bench, bool shown)
{
    if (json_array_append_new(bench->limits_list, ra_limits_to_json(&bench->limits)) != 0)
        bench->lacked_memory = true;
    if (!shown || !ra_options_shows_text(bench->series.options))
        return;
    ra_console_show("");
    limits_print(bench);
    ra_stdout_flush();
}

void ra_bench_report_gpu_limits(ra_bench *bench, const ra_gpu_limits *limits)
{
    const ra_gpu_limits *shown = &bench->gpu_limits;
    char text[2][16];
    bool const same = shown->count == limits->count && shown->fma_tflops == limits->fma_tflops &&
                      shown->tensor_tflops == limits->tensor_tflops;
    if (same || !ra_options_shows_text(bench->series.options))
        return;
    ra_console_show("");
    printf("%slimits of %.0f GPU%s: tensor (f16, bf16) %s, fma (f32) %s TFLOP/s, by clock and "
           "multiprocessors, not measured\n",
           bench->has_header ? "\n" : "", limits->count, ra_plural(llround(limits->count)),
           rate_text(limits->tensor_tflops, text[0]), rate_text(limits->fma_tflops, text[1]));
    ra_stdout_flush();
}

/* ---- points ---------------------------------------------------------------------------------- */

void ra_bench_point_label(const ra_bench_point *point, const ra_config *config, char *text,
                          size_t bytes)
{
    char shown[48];
    snprintf(text, bytes, "%s",
             point->pick.variant != NULL ? ra_text_shown(point->pick.variant, shown) : "");
    for (int i = 0; i < config->sweep_key_count; i++) {
        json_t *value = ra_config_swept_to_json(config, i);
        char *encoded =
            value != NULL ? ra_json_dump(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9)) : NULL;
        const char *plain = json_is_string(value) ? json_string_value(value) : encoded;
        ra_text_append(text, bytes, ", ", "%s=%.60s", ra_config_swept_path(config, i),
                       plain != NULL ? plain : "?");
        free(encoded);
        json_decref(value);
    }
    ra_text_mend(text); /* values and the whole are cut at a byte */
}

static void pass_print(const ra_bench *bench, const ra_bench_point *point, bool backward,
                       const char *label)
{
    const ra_report *report = &point->report;
    const ra_times *times = backward ? &report->backward : &report->forward;
    double const rate =
        backward ? ra_report_tflops_backward(report) : ra_report_tflops_forward(report);
    char text[3][32], bytes[32], spread[16] = "-", share[16] = "-"; /* what is not known */
    if (times->count > 1)
        snprintf(spread, sizeof(spread), "%.1f%%", 100 * times->spread);
    if (point->limit_tflops > 0)
        snprintf(share, sizeof(share), "%.1f%%", 100 * rate / point->limit_tflops);
    printf("%-9s %10s %10s %10s %4d %7s %8.3g %8s", backward ? "backward" : "forward",
           ra_duration_text(times->min_ms, text[0]), ra_duration_text(times->median_ms, text[1]),
           ra_duration_text(times->max_ms, text[2]), times->count, spread, rate, share);
    if (bench->variant_count > 1 && point->has_reference)
        printf(" %7.3f %7.3f", point->time_ratio[backward], point->rate_ratio[backward]);
    else if (bench->variant_count > 1)
        printf(" %7s %7s", "-", "-");
    printf(" %12s  %s%s\n", ra_bytes_text(report->peak_bytes, bytes), label,
           ra_report_passes(report) ? "" : " (VERIFICATION FAILED)");
}

static void overlap_print(const ra_overlap *overlap, const char *pass)
{
    char text[96], compute[32], comm[32], wall[32];
    ra_overlap_text(overlap, text, sizeof(text));
    printf("  %s: computing alone %s, communication alone %s, both %s: %s\n", pass,
           ra_duration_text(overlap->compute_ms, compute), ra_duration_text(overlap->comm_ms, comm),
           ra_duration_text(overlap->wall_ms, wall), text);
}

static void point_print(const ra_bench *bench, const ra_bench_point *point, const ra_config *config,
                        const char *label)
{
    if (point->outcome.status != RA_OK) {
        printf("%-9s %s\n", ra_job_status_text(point->outcome.status, &point->report), label);
        return;
    }
    pass_print(bench, point, false, label);
    if (config->backward)
        pass_print(bench, point, true, label);
    if (point->has_overlap)
        overlap_print(&point->forward, "forward");
    if (point->has_overlap && config->backward)
        overlap_print(&point->backward, "backward");
}

void ra_bench_report_point(ra_bench *bench, const ra_bench_point *point, const ra_config *config,
                           const char *label)
{
    int const ranks = ra_comm_size(bench->series.comm);
    ra_series_add(&bench->series, ra_bench_point_to_json(point, config, ranks));
    if (!ra_options_shows_text(bench->series.options))
        return;
    ra_console_show("");
    if (!bench->has_header)
        header_print(bench);
    point_print(bench, point, config, label);
    ra_stdout_flush();
}

/* ---- the end --------------------------------------------------------------------------------- */

static ra_status csv_lines(const ra_series *series, FILE *file)
{
    ra_status status = ra_bench_csv_line(file, &series->base, NULL);
    for (size_t i = 0; i < json_array_size(series->points) && status == RA_OK; i++)
        status = ra_bench_csv_line(file, &series->base, json_array_get(series->points, i));
    return status;
}

static ra_status csv_write(const ra_series *series)
{
    const char *path = series->options->csv_path;
    ra_output output;
    if (series->points == NULL)
        return ra_refuse_memory("the report");
    if (path == NULL) {
        ra_status const written = csv_lines(series, stdout);
        ra_status const shown = ra_stdout_check(" the report");
        return written != RA_OK ? written : shown;
    }
    ra_status status = ra_output_open(&output, path, "", "cannot write the report");
    if (status != RA_OK)
        return status;
    status = csv_lines(series, output.stream);
    ra_status const closed = ra_output_close(&output, status == RA_OK);
    return status != RA_OK ? status : closed;
}

ra_status ra_bench_report_end(void *command)
{
    ra_bench *bench = command;
    const ra_options *options = bench->series.options;
    ra_status status = RA_OK;
    if (bench->lacked_memory)
        status = ra_refuse_memory("the report");
    else if (ra_options_shows_text(options))
        status = ra_stdout_check(" the table");
    if (status == RA_OK && options->csv)
        status = csv_write(&bench->series);
    return status;
}

json_t *ra_bench_to_json(const void *command)
{
    const ra_bench *bench = command;
    return json_pack("{s:s?, s:O}", "blas", ra_blas_name(), "limits", bench->limits_list);
}
