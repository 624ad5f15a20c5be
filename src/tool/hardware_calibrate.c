/* Speeds from measured times: least squares over what predictions say of the same points. */
#include "hardware.h"

#include "internal.h"
#include "tool_plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TERMS = 5, SWEEPS_MAX = 20000 };

/* One measured pass: what it did, and how long that took. */
typedef struct sample {
    ra_dtype dtype;
    bool backward;
    double terms[TERMS]; /* passes, elements of rows, pairs, elements of keys, flops */
    double ns, peak_tflops;
} sample;

typedef struct samples {
    sample *items;
    size_t count;
} samples;

static ra_status refuse(const char *path, const char *what)
{
    ra_log(RA_LOG_ERROR, "%s: %s", path, what);
    return RA_ERR_IO;
}

/* The configuration of a point, which JSON writes as YAML could. */
static ra_status point_parse(const char *path, const json_t *config, ra_config *config_out)
{
    ra_config_source const source = {0};
    char *text = json_dumps(config, JSON_INDENT(1));
    if (text == NULL)
        return refuse(path, "a point has no configuration");
    ra_status const status = ra_config_parse(path, text, strlen(text), &source, config_out);
    free(text);
    return status;
}

static void sample_add(samples *to, const ra_plan_point *point, const json_t *json, bool backward)
{
    const json_t *times = json_object_get(json, backward ? "backward_ms" : "forward_ms");
    double const ms = json_number_value(json_object_get(times, "median"));
    double const peak_tflops = json_number_value(json_object_get(json, "limit_tflops"));
    const ra_prediction *p = &point->prediction;
    if (!(ms > 0) || !(peak_tflops > 0)) /* of a GPU no limit is measured */
        return;
    sample *s = &to->items[to->count++];
    *s = (sample){.dtype = point->config.dtype,
                  .backward = backward,
                  .ns = ms * 1e6,
                  .peak_tflops = peak_tflops};
    s->terms[0] = p->head_groups;
    for (int i = 0; i < p->step_count; i++) {
        s->terms[1] += p->steps[i].rows * point->config.head_dim;
        s->terms[2] += p->steps[i].pairs;
        s->terms[3] += p->steps[i].keys * point->config.head_dim;
    }
    s->terms[4] = backward ? p->backward.flops : p->forward.flops;
}

static ra_status point_learn(const char *path, const json_t *json, samples *to)
{
    ra_plan_point point = {0};
    bool const measured = json_integer_value(json_object_get(json, "ranks")) == 1 &&
                          json_is_object(json_object_get(json, "forward_ms"));
    if (!measured)
        return RA_OK;
    ra_status status = point_parse(path, json_object_get(json, "config"), &point.config);
    if (status == RA_OK)
        status = ra_plan_point_init(&point, 1, NULL);
    if (status == RA_OK)
        status = ra_plan_point_predict(&point);
    if (status == RA_OK)
        sample_add(to, &point, json, false);
    if (status == RA_OK && point.config.backward)
        sample_add(to, &point, json, true);
    ra_plan_point_fini(&point);
    return status;
}

/*
 * Terms x >= least that minimise the sum of (terms . x / ns - 1)^2: coordinate by coordinate, which
 * for a convex function on a box ends at the minimum.
 */
static void fit(const samples *from, ra_dtype dtype, bool backward, const double least[TERMS],
                double x[TERMS])
{
    double gram[TERMS][TERMS] = {{0}}, right[TERMS] = {0};
    for (size_t i = 0; i < from->count; i++) {
        const sample *s = &from->items[i];
        for (int a = 0; a < TERMS && s->dtype == dtype && s->backward == backward; a++) {
            right[a] += s->terms[a] / s->ns;
            for (int b = 0; b < TERMS; b++)
                gram[a][b] += s->terms[a] / s->ns * (s->terms[b] / s->ns);
        }
    }
    memcpy(x, least, TERMS * sizeof(*x));
    for (int sweep = 0; sweep < SWEEPS_MAX; sweep++)
        for (int a = 0; a < TERMS; a++) {
            double rest = right[a];
            for (int b = 0; b < TERMS; b++)
                rest -= b != a ? gram[a][b] * x[b] : 0;
            x[a] = gram[a][a] > 0 ? fmax(least[a], rest / gram[a][a]) : 0;
        }
}

static bool has_dtype(const samples *from, ra_dtype dtype)
{
    for (size_t i = 0; i < from->count; i++)
        if (from->items[i].dtype == dtype)
            return true;
    return false;
}

/* What the bench measured, or where it did not, the fastest point. */
static double peak_of(const samples *from, ra_dtype dtype)
{
    double most = 0, fastest = 0;
    for (size_t i = 0; i < from->count; i++) {
        const sample *s = &from->items[i];
        if (s->dtype != dtype)
            continue;
        most = fmax(most, s->peak_tflops);
        fastest = fmax(fastest, s->terms[TERMS - 1] / s->ns * 1e-3);
    }
    return most > 0 ? most : fastest;
}

/* The largest number of a name among the limits that a bench has measured. */
static double limit_of(const json_t *root, const char *name)
{
    const json_t *limits = json_object_get(root, "limits");
    double most = 0;
    for (size_t i = 0; i < json_array_size(limits); i++)
        most = fmax(most, json_number_value(json_object_get(json_array_get(limits, i), name)));
    return most;
}

/* No operation is faster than the peak. */
static void speeds_set(const samples *from, const json_t *root, ra_hardware *hardware)
{
    double const read_gb_per_s = limit_of(root, "read_gb_per_s");
    if (read_gb_per_s > 0)
        hardware->memory_gb_per_s = read_gb_per_s;
    for (int dtype = 0; dtype < 3; dtype++) {
        double const peak =
            fmax(peak_of(from, (ra_dtype)dtype),
                 has_dtype(from, (ra_dtype)dtype) ? limit_of(root, "fma_tflops") : 0);
        hardware->peak_tflops[dtype] = peak;
        for (int backward = 0; backward < 2; backward++) {
            double x[TERMS], least[TERMS] = {0};
            least[TERMS - 1] = peak > 0 ? 1e-3 / peak : 0;
            fit(from, (ra_dtype)dtype, backward != 0, least, x);
            ra_pass_speed *speed =
                backward ? &hardware->backward[dtype] : &hardware->forward[dtype];
            *speed = (ra_pass_speed){0};
            if (x[TERMS - 1] > 0) /* or nothing was measured of it */
                *speed = (ra_pass_speed){.efficiency = least[TERMS - 1] / x[TERMS - 1],
                                         .start_us = 1e-3 * x[0],
                                         .row_element_ns = x[1],
                                         .pair_ns = x[2],
                                         .key_element_ns = x[3]};
        }
    }
}

ra_status ra_hardware_calibrate(const char *path, ra_hardware *hardware)
{
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        ra_log(RA_LOG_ERROR, "%s: cannot be read as JSON: %s", path, error.text);
        return RA_ERR_IO;
    }
    const json_t *points = json_object_get(root, "points");
    samples all = {calloc(2 * json_array_size(points) + 1, sizeof(*all.items)), 0};
    ra_status status = all.items != NULL ? RA_OK : RA_ERR_NO_MEMORY;
    if (status != RA_OK)
        ra_log(RA_LOG_ERROR, "out of memory while calibrating");
    for (size_t i = 0; i < json_array_size(points) && status == RA_OK; i++)
        status = point_learn(path, json_array_get(points, i), &all);
    if (status == RA_OK && all.count == 0)
        status = refuse(path, "no point that was measured on one rank; write it with "
                              "'ringattn bench --json=FILE'");
    if (status == RA_OK)
        speeds_set(&all, root, hardware);
    free(all.items);
    json_decref(root);
    return status;
}
