/* The table of a probe, row by row as variants end; memory side by side and JSON at the end. */
#include "bytes_text.h"
#include "config_yaml.h"
#include "internal.h"
#include "json_build.h"
#include "memory_table.h"
#include "output_file.h"
#include "tool_probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static double bytes_per_token(const ra_probe_point *point)
{
    return (double)point->report.peak_bytes_sum / (double)point->tokens;
}

/* The tokens found over those that memory would hold if it held nothing but the floor. */
static double floor_share(const ra_probe_point *point)
{
    double const most = (double)point->report.limit_bytes_sum / (double)point->floor_bytes;
    return (double)point->tokens / most;
}

/* The tokens found over the first variant's; NAN: there is nothing to compare with. */
static double reference_share(const ra_probe *probe, const ra_probe_point *point)
{
    int64_t const tokens = probe->points[0].tokens;
    return tokens > 0 ? (double)point->tokens / (double)tokens : (double)NAN;
}

/* The prediction, and how it compares with what was found. */
static void prediction_print(const ra_probe_point *point)
{
    char tokens[32], bytes[32];
    if (!point->predicted) {
        printf("  predicted: %s\n", point->unpredicted);
        return;
    }
    printf("  predicted: %s tokens (found %.4f of them), %s at the peak of what was found (%.4f of "
           "it)\n",
           ra_count_text(point->predicted_tokens, tokens),
           (double)point->tokens / (double)point->predicted_tokens,
           ra_bytes_text(point->predicted_peak_bytes, bytes),
           (double)point->predicted_peak_bytes / (double)point->report.peak_bytes);
}

void ra_probe_report_point(ra_probe *probe, const ra_probe_point *point)
{
    char tokens[32], shown[48], share[16] = "-";
    const char *name = ra_text_shown(point->variant, shown);
    if (!ra_options_shows_text(probe->series.options))
        return;
    ra_console_show("");
    ra_series_tell_backend(&probe->series, point->backend, NULL);
    if (point == &probe->points[0])
        printf("%-16s %15s %11s %11s %9s %9s %9s\n", "variant", "tokens", "bytes/token", "floor",
               "of floor", "of first", "seconds");
    if (point->status != RA_OK) {
        printf("%-16s %15s  %s\n", name, ra_job_status_text(point->status, &point->report),
               point->held_back);
    } else {
        if (isfinite(reference_share(probe, point)))
            snprintf(share, sizeof(share), "%.4f", reference_share(probe, point));
        printf("%-16s %15s %11.2f %11lld %8.2f%% %9s %9.1f%s\n", name,
               ra_count_text(point->tokens, tokens), bytes_per_token(point),
               (long long)point->floor_bytes, 100 * floor_share(point), share, point->seconds,
               ra_report_passes(&point->report) ? "" : "  VERIFICATION FAILED");
        if (point->refused_tokens > 0)
            printf("  held back at %s: %s\n", ra_count_text(point->refused_tokens, tokens),
                   point->held_back);
        else
            printf("  held back: %s\n", point->held_back);
        if (probe->series.options->predict)
            prediction_print(point);
    }
    ra_stdout_flush();
}

/* What stands beside tokens and peak_bytes; null if nothing could be predicted. */
static json_t *prediction_to_json(const ra_probe_point *point)
{
    if (!point->predicted)
        return json_pack("{s:n, s:n, s:s}", "predicted_tokens", "predicted_peak_bytes",
                         "unpredicted", point->unpredicted);
    return json_pack("{s:I, s:I}", "predicted_tokens", (json_int_t)point->predicted_tokens,
                     "predicted_peak_bytes", (json_int_t)point->predicted_peak_bytes);
}

/* Less than 0 where the process has shrunk; null if unknown. */
static json_t *rss_growth_to_json(const ra_probe_point *point)
{
    if (point->rss_before_bytes < 0 || point->rss_after_bytes < 0)
        return json_null();
    return json_integer(point->rss_after_bytes - point->rss_before_bytes);
}

json_t *ra_probe_point_to_json(ra_probe *probe, const ra_probe_point *point)
{
    bool const found = point->status == RA_OK;
    const char *held_back = point->held_back[0] != '\0' ? point->held_back : NULL;
    json_t *object = found ? json_incref(probe->report_json) : json_object();
    json_decref(probe->report_json); /* also that of a run after which something failed */
    probe->report_json = NULL;
    object = ra_json_extend(
        object,
        json_pack("{s:s, s:s, s:s?, s:i, s:I, s:s?, s:o, s:i, s:f, s:o}", "variant", point->variant,
                  "status", ra_job_status_text(point->status, &point->report), "message",
                  found ? NULL : held_back, "ranks", ra_comm_size(probe->series.comm), "tokens",
                  (json_int_t)point->tokens, "held_back", held_back, "refused_tokens",
                  ra_json_known(point->refused_tokens > 0 ? point->refused_tokens : -1), "tries",
                  point->try_count, "seconds", point->seconds, "rss_growth_bytes",
                  rss_growth_to_json(point)));
    if (found)
        object = ra_json_extend(object, json_pack("{s:f, s:I, s:f, s:o}", "bytes_per_token",
                                                  bytes_per_token(point), "floor_bytes_per_token",
                                                  (json_int_t)point->floor_bytes, "floor_ratio",
                                                  floor_share(point), "first_ratio",
                                                  ra_json_number(reference_share(probe, point))));
    if (found && probe->series.options->predict)
        object = ra_json_extend(object, prediction_to_json(point));
    return object;
}

static ra_status memory_print(const ra_probe *probe)
{
    ra_memory_column *columns = calloc((size_t)probe->point_count, sizeof(*columns));
    int count = 0;
    if (columns == NULL)
        return ra_refuse_memory("the report");
    for (int i = 0; i < probe->point_count; i++) {
        const ra_probe_point *point = &probe->points[i];
        if (point->status == RA_OK)
            columns[count++] = (ra_memory_column){point->variant, &point->report};
    }
    if (count > 0) {
        printf("\nat the peak%s\n", ra_comm_size(probe->series.comm) > 1
                                        ? " of the fullest rank, whole run"
                                        : ", whole run");
        ra_memory_table_print(columns, count);
        (void)ra_memory_table_print_host(columns, count);
    }
    free(columns);
    return RA_OK;
}

ra_status ra_probe_report_end(void *command)
{
    const ra_probe *probe = command;
    if (!ra_options_shows_text(probe->series.options))
        return RA_OK;
    ra_status const status = memory_print(probe);
    return status == RA_OK ? ra_stdout_check(" the table") : status;
}
