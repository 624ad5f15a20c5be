/*
 * Reports as points of series. Files may have any origin: missing or mistyped values are skipped.
 */
#include "internal.h"
#include "json_build.h"
#include "plot.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POINTS_MAX = 100000 };

static double number_of(const json_t *value)
{
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static double member(const json_t *object, const char *name)
{
    return number_of(json_object_get(object, name));
}

/* Times have min, median and max. */
static double median(const json_t *point, const char *name)
{
    return member(json_object_get(point, name), "median");
}

static void label_add(char *label, const char *text, const char *value)
{
    size_t const used = strlen(label);
    snprintf(label + used, RA_PLOT_LABEL_MAX - used, "%s%s%s", used > 0 ? ", " : "", text, value);
}

/* "head_dim=64, ring.layout=zigzag": the length of a sequence is an axis, not a name. */
static void setting_of(const json_t *point, char *label)
{
    static const char shape[] = "shape.";
    const char *key;
    json_t *value;
    label[0] = '\0';
    json_object_foreach(json_object_get(point, "sweep"), key, value)
    {
        char name[64];
        char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        size_t const length = text != NULL ? strlen(text) : 0;
        if (text != NULL && strcmp(key, "shape.seq") != 0) {
            bool const quoted = length >= 2 && text[0] == '"';
            bool const is_shape = strncmp(key, shape, sizeof(shape) - 1) == 0;
            text[quoted ? length - 1 : length] = '\0';
            snprintf(name, sizeof(name), "%s=", is_shape ? key + sizeof(shape) - 1 : key);
            label_add(label, name, text + quoted);
        }
        free(text);
    }
}

/* "variant, head_dim=64". Where there are no variants, settings are compared with each other. */
static void names_read(const json_t *from, const char *command, ra_plot_point *point)
{
    const char *variant = json_string_value(json_object_get(from, "variant"));
    setting_of(from, point->setting);
    point->series[0] = '\0';
    if (variant != NULL)
        label_add(point->series, "", variant);
    if (point->setting[0] != '\0')
        label_add(point->series, "", point->setting);
    if (point->series[0] == '\0')
        label_add(point->series, "", "job");
    if (strcmp(command, "plan") == 0) /* what was measured is another series */
        label_add(point->series, "", "planned");
    if (variant == NULL)
        point->setting[0] = '\0';
}

static void point_read(const json_t *from, const char *command, ra_plot_point *point)
{
    bool const probe = strcmp(command, "probe") == 0;
    const json_t *config = json_object_get(from, "config");
    const json_t *memory = json_object_get(from, "memory_bytes");
    const char *status = json_string_value(json_object_get(from, "status"));
    names_read(from, command, point);
    point->probed = probe;
    point->tokens =
        member(probe ? from : json_object_get(config, "shape"), probe ? "tokens" : "seq");
    point->ok = status == NULL || strcmp(status, "ok") == 0;
    double const limit = member(json_object_get(config, "memory"), "limit");
    double *value = point->value;
    value[RA_PLOT_PEAK_MIB] = point->ok ? member(from, "peak_bytes") / ra_plot_mib : (double)NAN;
    value[RA_PLOT_THEORY_MIB] = member(from, "theory_bytes") / ra_plot_mib;
    value[RA_PLOT_FLOOR_MIB] = member(from, "floor_bytes") / ra_plot_mib;
    value[RA_PLOT_FAILED_MIB] = point->ok ? (double)NAN : limit / ra_plot_mib;
    value[RA_PLOT_FORWARD_MS] = point->ok ? median(from, "forward_ms") : (double)NAN;
    value[RA_PLOT_BACKWARD_MS] = point->ok ? median(from, "backward_ms") : (double)NAN;
    for (int i = 0; i < RA_MEM_CATEGORY_COUNT; i++)
        point->memory_bytes[i] = member(memory, ra_category_name((ra_category)i));
}

static ra_status refuse(const char *file, const char *what)
{
    ra_log(RA_LOG_ERROR, "%s: %s", file, what);
    return RA_ERR_IO;
}

static ra_status no_memory(void)
{
    ra_log(RA_LOG_ERROR, "out of memory for the points of a picture");
    return RA_ERR_NO_MEMORY;
}

static ra_status points_add(const char *file, const json_t *root, ra_plot_data *data)
{
    const json_t *points = json_object_get(root, "points");
    const char *command = json_string_value(json_object_get(root, "command"));
    size_t const count = json_array_size(points);
    if (json_object_get(root, "ringattn") == NULL || !json_is_array(points))
        return refuse(file, "is no report of ringattn: it has no \"points\"");
    if (count > POINTS_MAX - (size_t)data->count)
        return refuse(file, "more than 100000 points");
    if (count == 0)
        return RA_OK;
    ra_plot_point *more =
        realloc(data->points, ((size_t)data->count + count) * sizeof(*data->points));
    if (more == NULL)
        return no_memory();
    data->points = more;
    for (size_t i = 0; i < count; i++)
        point_read(json_array_get(points, i), command != NULL ? command : "",
                   &data->points[data->count++]);
    return RA_OK;
}

static ra_status file_add(const char *file, ra_plot_data *data)
{
    json_t *root;
    ra_status status = ra_json_read(file, &root);
    if (status != RA_OK)
        return status;
    status = points_add(file, root, data);
    if (status == RA_OK)
        ra_json_mention_incomplete(file, root);
    json_decref(root);
    return status;
}

static ra_status series_gather(ra_plot_data *data)
{
    data->series = calloc((size_t)data->count + 1, sizeof(*data->series));
    if (data->series == NULL)
        return no_memory();
    for (int i = 0; i < data->count; i++) {
        int at = 0;
        while (at < data->series_count && strcmp(data->series[at], data->points[i].series) != 0)
            at++;
        if (at == data->series_count)
            memcpy(data->series[data->series_count++], data->points[i].series, RA_PLOT_LABEL_MAX);
    }
    return RA_OK;
}

typedef struct by_length {
    double tokens;
    int index;
} by_length;

/* Those without a length last; equal ones in their order. */
static int compare_lengths(const void *a, const void *b)
{
    const by_length *x = a, *y = b;
    if (isnan(x->tokens) || isnan(y->tokens)) {
        int const later = isnan(x->tokens) - isnan(y->tokens);
        return later != 0 ? later : x->index - y->index;
    }
    if (x->tokens != y->tokens)
        return x->tokens < y->tokens ? -1 : 1;
    return x->index - y->index;
}

/* A line goes from short to long, whatever the order of files and sweeps. */
static ra_status lengths_sort(ra_plot_data *data)
{
    by_length *const all = calloc((size_t)data->count, sizeof(*all));
    data->by_length = calloc((size_t)data->count, sizeof(*data->by_length));
    if (all == NULL || data->by_length == NULL) {
        free(all);
        return no_memory();
    }
    for (int i = 0; i < data->count; i++)
        all[i] = (by_length){data->points[i].tokens, i};
    qsort(all, (size_t)data->count, sizeof(*all), compare_lengths);
    for (int i = 0; i < data->count; i++)
        data->by_length[i] = all[i].index;
    free(all);
    return RA_OK;
}

/* The first series that differs from this one in its variant alone, or is it. */
static const char *compared_with(const ra_plot_data *data, const ra_plot_point *p)
{
    int i = 0;
    while (strcmp(data->points[i].setting, p->setting) != 0)
        i++;
    return data->points[i].series;
}

/* At the same length; a series saves nothing over itself. */
static double savings_of(const ra_plot_data *data, const ra_plot_point *p)
{
    const char *first = compared_with(data, p);
    bool const is_first = strcmp(p->series, first) == 0;
    for (int i = 0; i < data->count && !is_first; i++) {
        const ra_plot_point *q = &data->points[i];
        if (strcmp(q->series, first) == 0 && q->ok && q->tokens == p->tokens)
            return q->value[RA_PLOT_PEAK_MIB] / p->value[RA_PLOT_PEAK_MIB];
    }
    return NAN;
}

ra_status ra_plot_read(const char *const *files, int file_count, ra_plot_data *data_out)
{
    ra_plot_data data = {0};
    ra_status status = RA_OK;
    for (int i = 0; i < file_count && status == RA_OK; i++)
        status = file_add(files[i], &data);
    if (status == RA_OK && data.count < 1)
        status = refuse(files[0], "has no points to draw");
    for (int i = 0; i < data.count && status == RA_OK; i++)
        data.points[i].value[RA_PLOT_SAVINGS] = savings_of(&data, &data.points[i]);
    if (status == RA_OK)
        status = series_gather(&data);
    if (status == RA_OK)
        status = lengths_sort(&data);
    if (status != RA_OK) {
        ra_plot_fini(&data);
        return status;
    }
    *data_out = data;
    return RA_OK;
}

void ra_plot_fini(ra_plot_data *data)
{
    free(data->points);
    free(data->series);
    free(data->by_length);
    *data = (ra_plot_data){0};
}
