/* A point as JSON, and that as a line of comma-separated values. */
#include "internal.h"
#include "json_build.h"
#include "json_text.h"
#include "tool_bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *identity_to_json(const ra_bench_point *point, const ra_config *config)
{
    return json_pack("{s:s?, s:o, s:s, s:s?}", "variant", point->pick.variant, "sweep",
                     ra_json_swept(config), "status",
                     ra_job_status_text(point->outcome.status, &point->report), "message",
                     point->outcome.message[0] != '\0' ? point->outcome.message : NULL);
}

/* Times are the slowest rank's, so shares are of what all ranks could do together. */
static json_t *speed_to_json(const ra_bench_point *point, bool backward)
{
    const ra_report *report = &point->report;
    double const limit = point->limit_tflops > 0 ? point->limit_tflops : (double)NAN; /* null */
    json_t *object =
        json_pack("{s:i, s:o, s:s?, s:o, s:o}", "repetitions", report->forward.count,
                  "forward_spread", ra_json_number(report->forward.spread), "limit",
                  point->limit_name, "limit_tflops", ra_json_number(limit), "share_forward",
                  ra_json_number(ra_report_tflops_forward(report) / limit));
    if (backward)
        object = ra_json_extend(
            object,
            json_pack("{s:o, s:o}", "backward_spread", ra_json_number(report->backward.spread),
                      "share_backward", ra_json_number(ra_report_tflops_backward(report) / limit)));
    return object;
}

static json_t *reference_to_json(const ra_bench_point *point, bool backward)
{
    json_t *object =
        json_pack("{s:o, s:o}", "time_ratio_forward", ra_json_number(point->time_ratio[0]),
                  "rate_ratio_forward", ra_json_number(point->rate_ratio[0]));
    if (backward)
        object = ra_json_extend(object, json_pack("{s:o, s:o}", "time_ratio_backward",
                                                  ra_json_number(point->time_ratio[1]),
                                                  "rate_ratio_backward",
                                                  ra_json_number(point->rate_ratio[1])));
    return object;
}

static json_t *overlap_to_json(const ra_overlap *overlap)
{
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o}", "both_ms", ra_json_number(overlap->wall_ms), "compute_ms",
        ra_json_number(overlap->compute_ms), "comm_ms", ra_json_number(overlap->comm_ms),
        "exposed_comm_ms", ra_json_number(ra_overlap_exposed_ms(overlap)), "overlap",
        ra_json_number(ra_overlap_share(overlap)), "spread_ms", ra_json_number(overlap->spread_ms));
}

json_t *ra_bench_point_to_json(const ra_bench_point *point, const ra_config *config, int ranks)
{
    json_t *object =
        point->outcome.status == RA_OK
            ? ra_report_to_json(&point->report)
            : json_pack("{s:o, s:i}", "config", ra_config_to_json(config), "ranks", ranks);
    object = ra_json_extend(object, identity_to_json(point, config));
    if (point->theory_bytes > 0)
        object = ra_json_extend(
            object, json_pack("{s:I}", "theory_bytes", (json_int_t)point->theory_bytes));
    if (point->floor_bytes > 0)
        object = ra_json_extend(object,
                                json_pack("{s:I}", "floor_bytes", (json_int_t)point->floor_bytes));
    if (point->outcome.status != RA_OK)
        return object;
    object = ra_json_extend(object, speed_to_json(point, config->backward));
    if (point->has_reference)
        object = ra_json_extend(object, reference_to_json(point, config->backward));
    if (point->has_overlap)
        object = ra_json_extend(
            object, json_pack("{s:o}", "overlap_forward", overlap_to_json(&point->forward)));
    if (point->has_overlap && config->backward)
        object = ra_json_extend(
            object, json_pack("{s:o}", "overlap_backward", overlap_to_json(&point->backward)));
    return object;
}

/* ---- comma-separated values ------------------------------------------------------------------ */

/* Name of a column, and where its value is: a member, or a member of a member. */
typedef struct column {
    const char *name, *member, *inner;
} column;

static const column columns[] = {
    {"ranks", "ranks", NULL},
    {"threads", "threads", NULL},
    {"kernel", "kernel", NULL},
    {"layout", "layout", NULL},
    {"schedule", "schedule", NULL},
    {"repetitions", "repetitions", NULL},
    {"forward_min_ms", "forward_ms", "min"},
    {"forward_median_ms", "forward_ms", "median"},
    {"forward_max_ms", "forward_ms", "max"},
    {"forward_spread", "forward_spread", NULL},
    {"backward_min_ms", "backward_ms", "min"},
    {"backward_median_ms", "backward_ms", "median"},
    {"backward_max_ms", "backward_ms", "max"},
    {"backward_spread", "backward_spread", NULL},
    {"tflops_forward", "tflops_forward", NULL},
    {"tflops_backward", "tflops_backward", NULL},
    {"limit", "limit", NULL},
    {"limit_tflops", "limit_tflops", NULL},
    {"share_forward", "share_forward", NULL},
    {"share_backward", "share_backward", NULL},
    {"time_ratio_forward", "time_ratio_forward", NULL},
    {"rate_ratio_forward", "rate_ratio_forward", NULL},
    {"time_ratio_backward", "time_ratio_backward", NULL},
    {"rate_ratio_backward", "rate_ratio_backward", NULL},
    {"live_pairs", "live_pairs", NULL},
    {"imbalance", "imbalance", NULL},
    {"sent_bytes", "sent_bytes", NULL},
    {"waiting_ms", "waiting_ms", NULL},
    {"overlap_forward", "overlap_forward", "overlap"},
    {"overlap_backward", "overlap_backward", "overlap"},
    {"exposed_forward_ms", "overlap_forward", "exposed_comm_ms"},
    {"exposed_backward_ms", "overlap_backward", "exposed_comm_ms"},
    {"peak_bytes", "peak_bytes", NULL},
    {"theory_bytes", "theory_bytes", NULL},
    {"tilemap_bytes", "tilemap_bytes", NULL},
    {"message", "message", NULL},
};

static void text_write(FILE *file, const char *text)
{
    if (strpbrk(text, ",\"\r\n") == NULL) {
        fputs(text, file);
        return;
    }
    fputc('"', file);
    for (; *text != '\0'; text++)
        fprintf(file, *text == '"' ? "\"\"" : "%c", *text);
    fputc('"', file);
}

/* Nothing where there is no value. */
static ra_status value_write(FILE *file, const json_t *value)
{
    if (json_is_string(value)) {
        text_write(file, json_string_value(value));
    } else if (json_is_integer(value)) {
        fprintf(file, "%lld", (long long)json_integer_value(value));
    } else if (json_is_real(value)) {
        fprintf(file, "%.9g", json_real_value(value));
    } else if (json_is_boolean(value)) {
        fputs(json_is_true(value) ? "true" : "false", file);
    } else if (json_is_array(value)) {
        char *text = ra_json_dump(value, JSON_COMPACT);
        if (text == NULL)
            return ra_refuse_memory("the report");
        text_write(file, text);
        free(text);
    }
    return RA_OK;
}

/* A column's name in the header, its value in the line of a point. */
static ra_status cell_write(FILE *file, const json_t *point, const char *name, const json_t *value)
{
    if (point != NULL)
        return value_write(file, value);
    text_write(file, name);
    return RA_OK;
}

ra_status ra_bench_csv_line(FILE *file, const ra_config *config, const json_t *point)
{
    const json_t *swept = json_object_get(point, "sweep");
    ra_status status = cell_write(file, point, "variant", json_object_get(point, "variant"));
    fputc(',', file);
    if (status == RA_OK)
        status = cell_write(file, point, "status", json_object_get(point, "status"));
    for (int i = 0; i < config->sweep_key_count && status == RA_OK; i++) {
        const char *path = ra_config_swept_path(config, i);
        fputc(',', file);
        status = cell_write(file, point, path, json_object_get(swept, path));
    }
    for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]) && status == RA_OK; i++) {
        const column *c = &columns[i];
        const json_t *member = json_object_get(point, c->member);
        fputc(',', file);
        status = cell_write(file, point, c->name,
                            c->inner != NULL ? json_object_get(member, c->inner) : member);
    }
    fputc('\n', file);
    return status;
}
