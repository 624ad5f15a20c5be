/*
 * Reports as points of series. Files may have any origin: missing or mistyped values are skipped.
 */
#include "bytes_text.h"
#include "config_yaml.h"
#include "internal.h"
#include "json_build.h"
#include "json_text.h"
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

/* A label is cut, so numbers made of whole texts tell series apart. */
static uint64_t id_extend(uint64_t id, const char *text)
{
    for (id = ra_mix64(id); *text != '\0'; text++) /* the first step is what lies between texts */
        id = ra_mix64(id ^ (unsigned char)*text);
    return id;
}

static void label_add(ra_plot_series *series, const char *text)
{
    ra_text_append(series->label, RA_PLOT_LABEL_MAX, ", ", "%s", text);
    series->id = id_extend(series->id, text);
}

/* "head_dim=64, ring.layout=zigzag": the length of a sequence is an axis, not a name. Its number is
   0 if there is none. */
static ra_status setting_of(const json_t *point, char setting[RA_PLOT_LABEL_MAX], uint64_t *id_out)
{
    static const char shape[] = "shape.";
    const char *key;
    json_t *value;
    uint64_t id = 0;
    setting[0] = '\0';
    json_object_foreach(json_object_get(point, "sweep"), key, value)
    {
        /* As many digits as a report has. */
        char *text = ra_json_dump(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
        if (text == NULL)
            return ra_refuse_memory("the name of a series");
        size_t const length = strlen(text);
        if (strcmp(key, "shape.seq") != 0) {
            bool const quoted = length >= 2 && text[0] == '"';
            bool const is_shape = strncmp(key, shape, sizeof(shape) - 1) == 0;
            text[quoted ? length - 1 : length] = '\0';
            ra_text_append(setting, RA_PLOT_LABEL_MAX, ", ", "%s=%s",
                           is_shape ? key + sizeof(shape) - 1 : key, text + quoted);
            id = id_extend(id_extend(id, key), text + quoted);
        }
        free(text);
    }
    *id_out = id;
    return RA_OK;
}

/* "variant, head_dim=64, 4 ranks". Where there are no variants, settings are compared with each
   other. */
static ra_status series_of(const json_t *point, const char *command, ra_plot_series *series_out)
{
    ra_plot_series series = {.label = ""};
    char setting[RA_PLOT_LABEL_MAX];
    const char *variant = json_string_value(json_object_get(point, "variant"));
    json_int_t const ranks = json_integer_value(json_object_get(point, "ranks"));
    ra_status const status = setting_of(point, setting, &series.setting_id);
    if (status != RA_OK)
        return status;
    if (variant != NULL)
        label_add(&series, variant);
    if (setting[0] != '\0')
        label_add(&series, setting);
    if (series.label[0] == '\0')
        label_add(&series, "job");
    if (ranks > 1) {
        char text[40];
        snprintf(text, sizeof(text), "%lld ranks", (long long)ranks);
        label_add(&series, text);
    }
    if (strcmp(command, "plan") == 0) /* what was measured is another series */
        label_add(&series, "planned");
    series.id ^= series.setting_id;
    if (variant == NULL)
        series.setting_id = 0;
    ra_text_mend(series.label); /* half a character would spoil the whole picture */
    *series_out = series;
    return RA_OK;
}

/* Its index; -1: there is no room for another one. */
static int series_add(const ra_plot_series *series, ra_plot_data *data)
{
    int at = 0, first = 0;
    while (at < data->series_count && data->series[at].id != series->id)
        at++;
    if (at < data->series_count)
        return at;
    if (at == RA_PLOT_SERIES_MAX)
        return -1;
    while (first < at && data->series[first].setting_id != series->setting_id)
        first++;
    data->series[at] = *series;
    data->series[at].compared_with = first;
    return data->series_count++;
}

static void values_read(const json_t *from, const char *command, ra_plot_point *point)
{
    bool const probe = strcmp(command, "probe") == 0;
    const json_t *config = json_object_get(from, "config");
    const json_t *memory = json_object_get(from, "memory_bytes");
    const char *status = json_string_value(json_object_get(from, "status"));
    point->probed = probe;
    point->tokens =
        member(probe ? from : json_object_get(config, "shape"), probe ? "tokens" : "seq");
    point->ok = status == NULL || strcmp(status, "ok") == 0;
    /* What was refused for another reason, or verified wrong, has met no limit. */
    bool const lacked_memory = status != NULL && strcmp(status, "oom") == 0;
    double const limit = member(json_object_get(config, "memory"), "limit");
    double *value = point->value;
    value[RA_PLOT_PEAK_MIB] = point->ok ? member(from, "peak_bytes") / ra_plot_mib : (double)NAN;
    value[RA_PLOT_THEORY_MIB] = member(from, "theory_bytes") / ra_plot_mib;
    value[RA_PLOT_FLOOR_MIB] = member(from, "floor_bytes") / ra_plot_mib;
    value[RA_PLOT_FAILED_MIB] = lacked_memory ? limit / ra_plot_mib : (double)NAN;
    value[RA_PLOT_FORWARD_MS] = point->ok ? median(from, "forward_ms") : (double)NAN;
    value[RA_PLOT_BACKWARD_MS] = point->ok ? median(from, "backward_ms") : (double)NAN;
    value[RA_PLOT_SAVINGS] = NAN;
    for (int i = 0; i < RA_MEM_CATEGORY_COUNT; i++)
        point->memory_bytes[i] = member(memory, ra_category_name((ra_category)i));
}

/* There is room for it. */
static ra_status point_add(const json_t *from, const char *command, ra_plot_data *data)
{
    ra_plot_series named;
    ra_status const status = series_of(from, command, &named);
    if (status != RA_OK)
        return status;
    int const series = series_add(&named, data);
    if (series < 0) {
        data->left_out_count++;
        return RA_OK;
    }
    ra_plot_point *point = &data->points[data->count++];
    point->series = series;
    values_read(from, command, point);
    data->series[series].count++;
    return RA_OK;
}

static ra_status points_add(const char *file, const json_t *root, ra_plot_data *data)
{
    const json_t *points = json_object_get(root, "points");
    const char *command = json_string_value(json_object_get(root, "command"));
    size_t const count = json_array_size(points);
    if (json_object_get(root, "ringattn") == NULL || !json_is_array(points))
        return ra_json_refuse(file, "is no report of ringattn");
    if (count > POINTS_MAX - (size_t)(data->count + data->left_out_count))
        return ra_json_refuse(file, "more than 100000 points");
    if (count == 0)
        return RA_OK;
    ra_plot_point *more =
        realloc(data->points, ((size_t)data->count + count) * sizeof(*data->points));
    if (more == NULL)
        return ra_refuse_memory("the points of a picture");
    data->points = more;
    ra_status status = RA_OK;
    for (size_t i = 0; i < count && status == RA_OK; i++)
        status = point_add(json_array_get(points, i), command != NULL ? command : "", data);
    return status;
}

static ra_status file_add(const char *file, ra_plot_data *data)
{
    json_t *root;
    ra_status status = ra_json_read(file, RA_JSON_WAIT_MS, &root);
    if (status != RA_OK)
        return status;
    status = points_add(file, root, data);
    if (status == RA_OK)
        ra_json_mention_incomplete(file, root);
    json_decref(root);
    return status;
}

/* By series, from short to long, those without a length last; equal ones in their order. */
static int compare_points(const void *a, const void *b)
{
    const ra_plot_point *x = *(const ra_plot_point *const *)a;
    const ra_plot_point *y = *(const ra_plot_point *const *)b;
    double const lengths[] = {isnan(x->tokens) ? (double)INFINITY : x->tokens,
                              isnan(y->tokens) ? (double)INFINITY : y->tokens};
    int const by_length = ra_compare_f64(&lengths[0], &lengths[1]);
    if (x->series != y->series)
        return x->series < y->series ? -1 : 1;
    return by_length != 0 ? by_length : (x > y) - (x < y);
}

/* A line goes from short to long, whatever the order of files and sweeps. */
static ra_status points_sort(ra_plot_data *data)
{
    RA_ASSERT(data->count >= 1);
    ra_plot_point **points = calloc((size_t)data->count, sizeof(ra_plot_point *));
    if (points == NULL)
        return ra_refuse_memory("the points of a picture");
    for (int i = 0; i < data->count; i++)
        points[i] = &data->points[i];
    qsort(points, (size_t)data->count, sizeof(ra_plot_point *), compare_points);
    data->by_series = points;
    for (int s = 0; s < data->series_count; s++) {
        data->series[s].points = points;
        points += data->series[s].count;
    }
    return RA_OK;
}

/* At the same length; a series saves nothing over itself. */
static void savings_set(const ra_plot_series *series, const ra_plot_series *first)
{
    for (int i = 0, j = 0; i < series->count && series != first; i++) {
        ra_plot_point *p = series->points[i];
        while (j < first->count && (first->points[j]->tokens < p->tokens || !first->points[j]->ok))
            j++;
        if (j < first->count && first->points[j]->tokens == p->tokens)
            p->value[RA_PLOT_SAVINGS] =
                first->points[j]->value[RA_PLOT_PEAK_MIB] / p->value[RA_PLOT_PEAK_MIB];
    }
}

/* Several points of one length are of jobs that no name tells apart. */
static void mention_twins(const ra_plot_data *data)
{
    for (int s = 0; s < data->series_count; s++) {
        const ra_plot_series *series = &data->series[s];
        char shown[48];
        int i = 1;
        while (i < series->count && series->points[i - 1]->tokens != series->points[i]->tokens)
            i++;
        if (i >= series->count)
            continue;
        ra_log(RA_LOG_WARNING,
               "several points of %.0f tokens are of the series '%s': variants or a sweep of one "
               "report give jobs names of their own",
               series->points[i]->tokens, ra_text_shown(series->label, shown));
        return;
    }
}

ra_status ra_plot_read(const char *const *files, int file_count, ra_plot_data *data_out)
{
    ra_plot_data data = {0};
    ra_status status = RA_OK;
    for (int i = 0; i < file_count && status == RA_OK; i++)
        status = file_add(files[i], &data);
    if (status == RA_OK && data.count < 1)
        status = ra_json_refuse(files[0], "has no points to draw");
    if (status == RA_OK)
        status = points_sort(&data);
    if (status != RA_OK) {
        ra_plot_fini(&data);
        return status;
    }
    for (int s = 0; s < data.series_count; s++)
        savings_set(&data.series[s], &data.series[data.series[s].compared_with]);
    mention_twins(&data);
    if (data.left_out_count > 0)
        ra_log(RA_LOG_WARNING,
               "pictures show the first %d series: %d point%s of others %s left out",
               RA_PLOT_SERIES_MAX, data.left_out_count, ra_plural(data.left_out_count),
               data.left_out_count == 1 ? "is" : "are");
    *data_out = data;
    return RA_OK;
}

void ra_plot_fini(ra_plot_data *data)
{
    free(data->points);
    free(data->by_series);
    *data = (ra_plot_data){0};
}
