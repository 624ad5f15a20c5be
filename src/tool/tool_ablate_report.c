/* An ablation as a table, a column per set of features, and as JSON. */
#include "bytes_text.h"
#include "internal.h"
#include "json_build.h"
#include "memory_table.h"
#include "output_file.h"
#include "tool_ablate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The set that others are compared with: base, or on several ranks (base has one) the ring. */
static const ra_ablate_point *reference_of(const ra_ablate *ablate)
{
    for (int i = 0; i < ablate->point_count; i++) {
        if (ablate->points[i].outcome.status == RA_OK)
            return &ablate->points[i];
    }
    return NULL;
}

/* ---- the table ------------------------------------------------------------------------------- */

enum { COLUMNS_MAX = 16 };

static void columns_make(const ra_ablate *ablate, ra_memory_column columns[COLUMNS_MAX])
{
    RA_ASSERT(ra_feature_set_count <= COLUMNS_MAX);
    for (int i = 0; i < ra_feature_set_count; i++) {
        const ra_ablate_point *point = &ablate->points[i];
        columns[i] = (ra_memory_column){point->set->name,
                                        point->outcome.status == RA_OK ? &point->report : NULL};
    }
}

/* "+1.5 MiB", "-64 B", "0 B" */
static const char *difference_text(int64_t bytes, char text[40])
{
    char amount[32];
    ra_bytes_text(llabs(bytes), amount);
    snprintf(text, 40, "%s%s", bytes > 0 ? "+" : bytes < 0 ? "-" : "", amount);
    return text;
}

/* Whether both have memory of the host beside a GPU's. */
static bool has_host(const ra_report *mine, const ra_report *theirs)
{
    return mine->host_peak_bytes > 0 && theirs->host_peak_bytes > 0;
}

/* Forward and backward together. */
static double time_ratio(const ra_report *mine, const ra_report *theirs)
{
    return (mine->forward.median_ms + mine->backward.median_ms) /
           (theirs->forward.median_ms + theirs->backward.median_ms);
}

typedef enum row_kind {
    ROW_PEAK, /* difference from the reference, as is the next */
    ROW_HOST_PEAK,
    ROW_FORWARD,
    ROW_BACKWARD,
    ROW_TIME_RATIO,
    ROW_SPREAD, /* of the pass whose repetitions are furthest apart */
    ROW_ALLOCATIONS
} row_kind;

static const char *cell_text(row_kind row, const ra_report *mine, const ra_report *theirs,
                             char text[40])
{
    switch (row) {
    case ROW_PEAK:
        return difference_text(mine->peak_bytes - theirs->peak_bytes, text);
    case ROW_HOST_PEAK:
        return has_host(mine, theirs)
                   ? difference_text(mine->host_peak_bytes - theirs->host_peak_bytes, text)
                   : "-";
    case ROW_FORWARD:
        snprintf(text, 40, "%.2f", mine->forward.median_ms);
        return text;
    case ROW_BACKWARD:
        snprintf(text, 40, "%.2f", mine->backward.median_ms);
        return text;
    case ROW_TIME_RATIO:
        snprintf(text, 40, "%.3f", time_ratio(mine, theirs));
        return text;
    case ROW_SPREAD:
        if (mine->forward.count < 2)
            return "-";
        snprintf(text, 40, "%.0f %%", 100 * fmax(mine->forward.spread, mine->backward.spread));
        return text;
    case ROW_ALLOCATIONS:
        return ra_count_text(mine->alloc_count, text);
    }
    return "-";
}

static void row_print(const ra_ablate *ablate, const char *name, const ra_report *reference,
                      row_kind row)
{
    char text[40];
    ra_memory_table_begin(name);
    for (int i = 0; i < ra_feature_set_count; i++) {
        const ra_ablate_point *point = &ablate->points[i];
        bool const done = point->outcome.status == RA_OK;
        ra_memory_table_cell(done ? cell_text(row, &point->report, reference, text) : "-");
    }
    ra_memory_table_end();
}

/* A row for all sets, and one with a set's name where it differs from the sets before. */
static void backends_print(ra_ablate *ablate)
{
    bool others = false;
    for (int i = 0; i < ablate->point_count; i++) {
        const ra_ablate_point *point = &ablate->points[i];
        ra_series_tell_backend(&ablate->series, point->backend, others ? point->set->name : NULL);
        others = others || point->backend[0] != '\0';
    }
}

static void table_print(const ra_ablate *ablate)
{
    const ra_ablate_point *reference = reference_of(ablate);
    char name[32];
    ra_memory_column columns[COLUMNS_MAX] = {0};
    columns_make(ablate, columns);
    ra_memory_table_print(columns, ra_feature_set_count);
    if (reference != NULL) {
        const ra_report *theirs = &reference->report;
        snprintf(name, sizeof(name), "less %.8s", reference->set->name);
        row_print(ablate, name, theirs, ROW_PEAK);
        if (ra_memory_table_print_host(columns, ra_feature_set_count))
            row_print(ablate, name, theirs, ROW_HOST_PEAK);
        row_print(ablate, "forward ms", theirs, ROW_FORWARD);
        if (theirs->backward.count > 0)
            row_print(ablate, "backward ms", theirs, ROW_BACKWARD);
        snprintf(name, sizeof(name), "time / %.6s", reference->set->name);
        row_print(ablate, name, theirs, ROW_TIME_RATIO);
        row_print(ablate, "spread", theirs, ROW_SPREAD);
        row_print(ablate, "allocations", theirs, ROW_ALLOCATIONS);
    }
    for (int i = 0; i < ra_feature_set_count; i++) {
        const ra_ablate_point *point = &ablate->points[i];
        const ra_job_outcome *outcome = &point->outcome;
        if (outcome->status != RA_OK)
            printf("%s: %s: %s\n", point->set->name,
                   ra_job_status_text(outcome->status, &point->report), outcome->message);
        else if (!ra_report_passes(&point->report))
            printf("%s: VERIFICATION FAILED\n", point->set->name);
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *differences_to_json(const int64_t mine[RA_MEM_CATEGORY_COUNT],
                                   const int64_t theirs[RA_MEM_CATEGORY_COUNT])
{
    int64_t bytes[RA_MEM_CATEGORY_COUNT];
    for (int i = 0; i < RA_MEM_CATEGORY_COUNT; i++)
        bytes[i] = mine[i] - theirs[i];
    return ra_json_memory(bytes);
}

/* Null if the CPU computes: then there is no other memory than the host's. */
static json_t *host_to_json(const ra_report *mine, const ra_report *theirs)
{
    if (!has_host(mine, theirs))
        return json_pack("{s:n, s:n}", "host_difference_bytes", "host_peak_difference_bytes");
    return json_pack("{s:o, s:I}", "host_difference_bytes",
                     differences_to_json(mine->host_memory_bytes, theirs->host_memory_bytes),
                     "host_peak_difference_bytes",
                     (json_int_t)(mine->host_peak_bytes - theirs->host_peak_bytes));
}

json_t *ra_ablate_point_to_json(const ra_ablate *ablate, const ra_ablate_point *point)
{
    const ra_ablate_point *reference = reference_of(ablate);
    bool const done = point->outcome.status == RA_OK;
    json_t *object = done ? ra_report_to_json(&point->report) : json_object();
    object = ra_json_extend(
        object, json_pack("{s:s, s:s, s:s?, s:i}", "variant", point->set->name, "status",
                          ra_job_status_text(point->outcome.status, &point->report), "message",
                          point->outcome.message[0] != '\0' ? point->outcome.message : NULL,
                          "ranks", ra_comm_size(ablate->series.comm)));
    if (done && reference != NULL)
        object = ra_json_extend(
            object,
            json_pack(
                "{s:s, s:o, s:I, s:f}", "reference", reference->set->name, "difference_bytes",
                differences_to_json(point->report.memory_bytes, reference->report.memory_bytes),
                "peak_difference_bytes",
                (json_int_t)(point->report.peak_bytes - reference->report.peak_bytes), "time_ratio",
                time_ratio(&point->report, &reference->report)));
    if (done && reference != NULL)
        object = ra_json_extend(object, host_to_json(&point->report, &reference->report));
    return object;
}

ra_status ra_ablate_report(void *command)
{
    ra_ablate *ablate = command;
    if (!ra_options_shows_text(ablate->series.options))
        return RA_OK;
    backends_print(ablate);
    table_print(ablate);
    return ra_stdout_check(" the table");
}
