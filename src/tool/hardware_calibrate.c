/* Speeds from measured times: least squares over the predicted terms of the same points. */
#include "hardware.h"

#include "bytes_text.h"
#include "internal.h"
#include "json_build.h"
#include "json_text.h"
#include "tool_plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TERMS = 5, SWEEPS_MAX = 20000 };

/* One measured pass: what it did, and how long that took. */
typedef struct sample {
    ra_work work;
    ra_dtype dtype;
    bool backward;
    double terms[TERMS]; /* starts, rows, pairs, keys, flops: see ra_pass_terms */
    double ns, peak_tflops;
} sample;

/* What is learned from: passes that the CPU computed, or on a GPU those of flash attention alone.
   The efficiency of other kinds is a share of the peak of f32, and cuBLAS may be above it. */
typedef struct samples {
    sample *items;
    size_t count;
    bool on_gpu;
    int32_t threads; /* of all points; of a GPU: its multiprocessors; 0: the report has not said */
    int left_out_count, other_count; /* points: measured, but not learned from; of those, a GPU's */
} samples;

/* The configuration of a point: its JSON is valid YAML. It has the shape of a file that was read;
   only pairs of blocks have to be read again. */
static ra_status point_parse(const char *name, const json_t *config, ra_config *config_out)
{
    if (!json_is_object(config))
        return ra_json_refuse(name, "it has no configuration");
    char *text = ra_json_dump(config, JSON_COMPACT);
    if (text == NULL)
        return ra_refuse_memory("the configuration of a point");
    ra_status const status = ra_config_parse(name, false, text, strlen(text), NULL, config_out);
    free(text);
    if (status == RA_OK && config_out->pattern.blocks_kind != RA_BLOCKS_LIST) {
        free(config_out->input);
        config_out->input = NULL;
    }
    return status == RA_ERR_CONFIG ? RA_ERR_IO : status;
}

static void sample_add(samples *to, const ra_plan_point *point, const json_t *json, bool backward)
{
    const json_t *times = json_object_get(json, backward ? "backward_ms" : "forward_ms");
    double const ms = json_number_value(json_object_get(times, "median"));
    double const peak_tflops = json_number_value(json_object_get(json, "limit_tflops"));
    const ra_prediction *p = &point->prediction;
    if (!(ms > 0) || !(peak_tflops > 0 || to->on_gpu)) /* that of a GPU may not be known */
        return;
    sample *s = &to->items[to->count++];
    const ra_pass_terms *terms = backward ? &p->backward.terms : &p->forward.terms;
    *s = (sample){.work = p->work,
                  .dtype = point->config.dtype,
                  .backward = backward,
                  .terms = {terms->starts, terms->rows, terms->pairs, terms->keys, terms->flops},
                  .ns = ms * 1e6,
                  .peak_tflops = peak_tflops};
}

static bool is_measured(const json_t *json)
{
    const char *const status = json_string_value(json_object_get(json, "status"));
    return json_integer_value(json_object_get(json, "ranks")) == 1 &&
           json_is_object(json_object_get(json, "forward_ms")) &&
           (status == NULL || strcmp(status, "ok") == 0);
}

static bool is_of_gpu(const json_t *json)
{
    return json_is_object(json_object_get(json, "device"));
}

static bool is_flash(const json_t *json)
{
    const json_t *attention = json_object_get(json_object_get(json, "config"), "attention");
    const char *kind = json_string_value(json_object_get(attention, "kind"));
    return kind == NULL || strcmp(kind, "flash") == 0;
}

/* If a GPU has computed any point to learn from, then the others, which auto may have left to the
   CPU, are not of the machine that is described. */
static void samples_choose(const json_t *points, samples *to)
{
    for (size_t i = 0; i < json_array_size(points); i++) {
        const json_t *json = json_array_get(points, i);
        to->on_gpu |= is_measured(json) && is_of_gpu(json) && is_flash(json);
    }
}

/* The speed of some threads is not that of others. */
static ra_status threads_learn(const char *path, const json_t *json, samples *to)
{
    const json_t *const threads = json_object_get(json, "threads");
    int64_t const count = json_integer_value(threads);
    if (threads == NULL)
        return RA_OK;
    if (to->on_gpu && (count < 1 || count > 1 << 16)) /* as in files of hardware */
        return ra_json_refuse(path, "threads of a point of a GPU, its multiprocessors, are not "
                                    "from 1 to 65536");
    if (!to->on_gpu && (count < 1 || count > 4096))
        return ra_json_refuse(path, "threads of a point are not from 1 to 4096");
    if (to->threads != 0 && to->threads != count)
        return ra_json_refuse(path,
                              "points differ in their threads; name these to the bench, as in "
                              "'--set compute.threads=1'");
    to->threads = (int32_t)count;
    return RA_OK;
}

/* Learn from a point the machine's cache. The terms of a GPU's are those of its kernels. */
static ra_status point_learn(const char *path, size_t index, const json_t *json, ra_comm *comm,
                             int64_t cache_bytes, samples *to)
{
    ra_plan_point point = {.comm = comm};
    char name[640];
    if (!is_measured(json))
        return RA_OK;
    if (is_of_gpu(json) != to->on_gpu || (to->on_gpu && !is_flash(json))) {
        to->left_out_count++;
        to->other_count += is_of_gpu(json);
        return RA_OK;
    }
    snprintf(name, sizeof(name), "%.600s: points[%zu]", path, index);
    ra_status status = threads_learn(path, json, to);
    ra_hardware const known = {.ranks = 1,
                               .ranks_per_node = 1,
                               .cache_bytes = cache_bytes,
                               .threads = to->on_gpu ? 0 : to->threads,
                               .multiprocessors = to->on_gpu ? to->threads : 0};
    if (status == RA_OK)
        status = point_parse(name, json_object_get(json, "config"), &point.config);
    if (to->on_gpu) /* where it may be auto */
        point.config.backend = RA_BACKEND_CUDA;
    if (status == RA_OK)
        status = ra_plan_point_init(&point, 1, &known);
    if (status == RA_OK)
        status = ra_predict(&point.request, &point.prediction);
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
static void fit(const samples *from, ra_work work, ra_dtype dtype, bool backward,
                const double least[TERMS], double x[TERMS])
{
    double gram[TERMS][TERMS] = {{0}}, right[TERMS] = {0};
    for (size_t i = 0; i < from->count; i++) {
        const sample *s = &from->items[i];
        if (s->work != work || s->dtype != dtype || s->backward != backward)
            continue;
        for (int a = 0; a < TERMS; a++) {
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

/* The type that a pass multiplies in. */
static ra_dtype product_dtype(ra_work work, ra_dtype dtype)
{
    return work == RA_WORK_FLASH ? dtype : RA_F32;
}

static bool has_products(const samples *from, ra_dtype dtype)
{
    for (size_t i = 0; i < from->count; i++)
        if (product_dtype(from->items[i].work, from->items[i].dtype) == dtype)
            return true;
    return false;
}

/* The peak that the bench measured, or, if it did not, that of the fastest point. */
static double peak_of(const samples *from, ra_dtype dtype)
{
    double most = 0, fastest = 0;
    for (size_t i = 0; i < from->count; i++) {
        const sample *s = &from->items[i];
        if (product_dtype(s->work, s->dtype) != dtype)
            continue;
        if (s->dtype == dtype) /* what it multiplies in is what its limit is of */
            most = fmax(most, s->peak_tflops);
        fastest = fmax(fastest, s->terms[TERMS - 1] / s->ns * 1e-3);
    }
    return most > 0 ? most : fastest;
}

/* The largest number of a name among the limits that a bench has measured, which are the CPU's. */
static double limit_of(const samples *from, const json_t *root, const char *name)
{
    const json_t *limits = from->on_gpu ? NULL : json_object_get(root, "limits");
    double most = 0;
    for (size_t i = 0; i < json_array_size(limits); i++)
        most = fmax(most, json_number_value(json_object_get(json_array_get(limits, i), name)));
    return most;
}

static ra_pass_speed speed_of(const samples *from, ra_work work, ra_dtype dtype, bool backward,
                              double peak)
{
    /* No operation is faster than the peak. */
    double x[TERMS], least[TERMS] = {[TERMS - 1] = peak > 0 ? 1e-3 / peak : 0};
    fit(from, work, dtype, backward, least, x);
    if (!(x[TERMS - 1] > 0)) /* there is no measurement of it */
        return (ra_pass_speed){0};
    return (ra_pass_speed){.efficiency = least[TERMS - 1] / x[TERMS - 1],
                           .start_us = 1e-3 * x[0],
                           .row_element_ns = x[1],
                           .pair_ns = x[2],
                           .key_element_ns = x[3]};
}

static void speeds_set(const samples *from, const json_t *root, ra_hardware *hardware)
{
    double const read_gb_per_s = limit_of(from, root, "read_gb_per_s");
    if (read_gb_per_s > 0)
        hardware->memory_gb_per_s = read_gb_per_s;
    for (int dtype = 0; dtype < 3; dtype++)
        hardware->peak_tflops[dtype] =
            fmax(peak_of(from, (ra_dtype)dtype),
                 has_products(from, (ra_dtype)dtype) ? limit_of(from, root, "fma_tflops") : 0);
    for (int work = 0; work < RA_WORK_COUNT; work++)
        for (int dtype = 0; dtype < 3; dtype++)
            for (int backward = 0; backward < 2; backward++)
                hardware->speeds[work][backward][dtype] =
                    speed_of(from, (ra_work)work, (ra_dtype)dtype, backward != 0,
                             hardware->peak_tflops[product_dtype((ra_work)work, (ra_dtype)dtype)]);
}

/* The largest cache of the machine that a bench ran on; 0: it has not said. */
static int64_t cache_of(const json_t *root)
{
    static const char *const names[] = {"l1_bytes", "l2_bytes", "l3_bytes"};
    const json_t *processor = json_object_get(json_object_get(root, "machine"), "processor");
    const json_t *caches = json_object_get(processor, "caches");
    int64_t most = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        most = ra_max_i64(most, json_integer_value(json_object_get(caches, names[i])));
    return most;
}

/* Of the GPU that computed the first point of any; 0: the report has not said. */
static double capability_of(const json_t *root)
{
    const json_t *machine = json_object_get(root, "machine");
    const json_t *list = json_object_get(json_object_get(machine, "cuda"), "devices");
    const json_t *points = json_object_get(root, "points"), *gpu = NULL;
    for (size_t i = 0; i < json_array_size(points) && gpu == NULL; i++)
        if (is_measured(json_array_get(points, i)) && is_of_gpu(json_array_get(points, i)))
            gpu = json_object_get(json_array_get(points, i), "device");
    json_int_t const index = json_integer_value(json_object_get(gpu, "index"));
    const json_t *device = index >= 0 ? json_array_get(list, (size_t)index) : NULL;
    const char *text = json_string_value(json_object_get(device, "compute_capability"));
    double const found = text != NULL ? strtod(text, NULL) : 0;
    return found > 0 && found <= 100 ? found : 0; /* as in files of hardware */
}

/* Whether anything was learned, and what was not. */
static ra_status judge(const char *path, const samples *all)
{
    if (all->count == 0 && all->other_count > 0)
        return ra_json_refuse(path,
                              "of a GPU only flash attention is learned, and no point of it was "
                              "measured on one rank");
    if (all->count == 0)
        return ra_json_refuse(path, "no point that was measured on one rank; write it with "
                                    "'ringattn bench --json=FILE'");
    if (all->on_gpu && all->left_out_count > 0)
        ra_log(RA_LOG_INFO, "%s: %d point%s of other kinds than flash, or of the CPU, %s left out",
               path, all->left_out_count, ra_plural(all->left_out_count),
               all->left_out_count == 1 ? "is" : "are");
    return RA_OK;
}

static void become_gpus(const samples *all, const json_t *root, ra_hardware *hardware)
{
    if (all->threads > 0)
        hardware->multiprocessors = all->threads;
    hardware->compute_capability = capability_of(root);
}

/* Whatever it was. */
static void become_cpus(const samples *all, const char *path, int64_t cache_bytes,
                        ra_hardware *hardware)
{
    if (hardware->multiprocessors > 0)
        ra_log(RA_LOG_WARNING,
               "%s: was measured on a CPU: the GPUs of --hardware are left out, and the CPU is "
               "planned",
               path);
    hardware->threads = all->threads;
    hardware->multiprocessors = 0;
    hardware->compute_capability = 0;
    hardware->context_bytes = 0;
    if (cache_bytes > 0)
        hardware->cache_bytes = cache_bytes;
}

ra_status ra_hardware_calibrate(const char *path, ra_comm *comm, ra_hardware *hardware)
{
    json_t *root;
    ra_status status = ra_json_read(path, RA_JSON_WAIT_MS, &root);
    if (status != RA_OK)
        return status;
    const json_t *points = json_object_get(root, "points");
    int64_t const cache = cache_of(root);
    samples all = {.items = calloc(2 * json_array_size(points) + 1, sizeof(*all.items))};
    if (all.items == NULL)
        status = ra_refuse_memory("the points of a calibration");
    samples_choose(points, &all);
    for (size_t i = 0; i < json_array_size(points) && status == RA_OK; i++)
        status = point_learn(path, i, json_array_get(points, i), comm, cache, &all);
    if (status == RA_OK)
        status = judge(path, &all);
    if (status == RA_OK) {
        speeds_set(&all, root, hardware);
        if (all.on_gpu)
            become_gpus(&all, root, hardware);
        else
            become_cpus(&all, path, cache, hardware);
        status = ra_hardware_check(path, hardware);
        ra_json_mention_incomplete(path, root);
    }
    free(all.items);
    json_decref(root);
    return status;
}
