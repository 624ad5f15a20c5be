#include "json_build.h"
#include "report.h"

#include "tool_info.h"

json_t *ra_json_memory(const int64_t bytes[RA_MEM_CATEGORY_COUNT])
{
    json_t *object = json_object();
    for (int i = 0; object != NULL && i < RA_MEM_CATEGORY_COUNT; i++)
        object = ra_json_extend(
            object, json_pack("{s:I}", ra_category_name((ra_category)i), (json_int_t)bytes[i]));
    return object;
}

static json_t *times_to_json(const ra_times *times)
{
    return json_pack("{s:o, s:o, s:o}", "min", ra_json_number(times->min_ms), "median",
                     ra_json_number(times->median_ms), "max", ra_json_number(times->max_ms));
}

/* Only what was checked. */
static json_t *errors_to_json(const ra_errors *errors, const ra_errors *checked)
{
    json_t *object = json_object();
    for (int i = 0; object != NULL && i < RA_RESULT_COUNT; i++) {
        if (checked->of[i] != -1)
            object = ra_json_extend(
                object, json_pack("{s:o}", ra_result_names[i], ra_json_number(errors->of[i])));
    }
    return object;
}

/* Sampled rows: so many were compared, and so many were not. */
static json_t *compared_to_json(const ra_errors *errors)
{
    return json_pack("{s:I, s:I, s:I, s:I}", "queries", (json_int_t)errors->query_count, "keys",
                     (json_int_t)errors->key_count, "not_finite", (json_int_t)errors->skipped_count,
                     "blurred", (json_int_t)errors->blurred_count);
}

static json_t *plan_to_json(const ra_report *report)
{
    const ra_ring_info *ring = &report->ring;
    return json_pack("{s:s, s:s, s:s?, s:i, s:s, s:s, s:I, s:i, s:i}", "comm", report->comm_name,
                     "kernel", report->kernel_name, "backend_note", report->backend_note, "threads",
                     report->threads, "layout", ra_layout_name(ring->layout), "schedule",
                     ra_schedule_name(ring->schedule), "layout_chunk", (json_int_t)ring->chunk,
                     "head_groups", ring->head_groups, "rounds", ring->rounds);
}

static json_t *work_to_json(const ra_report *report)
{
    return json_pack(
        "{s:I, s:o, s:I, s:I, s:o, s:I, s:I, s:o, s:I, s:o, s:I, s:I, s:I}", "live_pairs",
        (json_int_t)report->live_pairs, "imbalance", ra_json_number(report->ring.imbalance),
        "sent_bytes", (json_int_t)report->sent_bytes, "full_ring_bytes",
        (json_int_t)report->ring.full_ring_bytes, "waiting_ms", ra_json_number(report->waiting_ms),
        "peak_bytes", (json_int_t)report->peak_bytes, "peak_bytes_sum",
        (json_int_t)report->peak_bytes_sum, "memory_bytes", ra_json_memory(report->memory_bytes),
        "floor_bytes", (json_int_t)report->floor_bytes, "rss_peak_bytes",
        ra_json_known(report->rss_peak_bytes), "tilemap_bytes", (json_int_t)report->tilemap_bytes,
        "input_nan_count", (json_int_t)report->nonfinite.nan_count, "input_inf_count",
        (json_int_t)report->nonfinite.inf_count);
}

/* The GPU and the host's memory beside it; null if the CPU computes. */
static json_t *device_to_json(const ra_report *report)
{
    const ra_backend_gpu *gpu = &report->gpu;
    if (gpu->device == NULL)
        return json_null();
    return json_pack("{s:i, s:s, s:i, s:i, s:I, s:I, s:o}", "index", gpu->index, "name",
                     gpu->device->name, "sharers", gpu->sharers, "sharers_max", gpu->sharers_max,
                     "memory_bytes", (json_int_t)gpu->device->memory_bytes, "host_peak_bytes",
                     (json_int_t)report->host_peak_bytes, "host_memory_bytes",
                     ra_json_memory(report->host_memory_bytes));
}

static json_t *cache_to_json(const ra_report *report)
{
    const ra_cache_counts *maps = &report->pattern_cache;
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "mode",
                     ra_cache_mode_name(report->config->cache_mode), "hits", (json_int_t)maps->hits,
                     "misses", (json_int_t)maps->misses, "evictions", (json_int_t)maps->evictions,
                     "bytes", (json_int_t)maps->bytes, "entries", (json_int_t)maps->entries);
}

static json_t *counters_to_json(const ra_pool_counter *bytes, const ra_pool_counter *count)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "current_bytes",
                     (json_int_t)bytes->current, "peak_bytes", (json_int_t)bytes->peak,
                     "allocated_bytes", (json_int_t)bytes->allocated, "freed_bytes",
                     (json_int_t)(bytes->allocated - bytes->current), "current_count",
                     (json_int_t)count->current, "peak_count", (json_int_t)count->peak,
                     "allocated_count", (json_int_t)count->allocated, "freed_count",
                     (json_int_t)(count->allocated - count->current));
}

static json_t *pool_to_json(const ra_report *report)
{
    const ra_pool_stats *pool = &report->pool;
    double const utilisation = ra_pool_utilisation(pool);
    json_t *object = json_pack(
        "{s:s, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "mode",
        ra_pool_mode_name(report->config->pool_mode), "utilisation", ra_json_number(utilisation),
        "external_fragmentation", ra_json_number(1 - utilisation), "internal_fragmentation",
        ra_json_number(ra_pool_internal_fragmentation(pool)), "hits", (json_int_t)pool->hits,
        "misses", (json_int_t)pool->misses, "retries", (json_int_t)pool->retries, "ooms",
        (json_int_t)pool->ooms, "trimmed_segments", (json_int_t)pool->trimmed_segments,
        "alloc_p50_ns", ra_json_known(pool->alloc_p50_ns), "alloc_p99_ns",
        ra_json_known(pool->alloc_p99_ns));
    for (int i = 0; i < RA_POOL_FIGURE_COUNT; i++)
        object =
            ra_json_extend(object, json_pack("{s:o}", ra_pool_figure_name((ra_pool_figure)i),
                                             counters_to_json(&pool->bytes[i], &pool->count[i])));
    return object;
}

/* In the order of the passes. */
static json_t *phases_to_json(const ra_report *report)
{
    json_t *phases = json_array();
    for (int i = 0; phases != NULL && i < report->phase_count; i++) {
        const ra_ledger_mark *phase = &report->phases[i];
        int64_t total = 0;
        for (int c = 0; c < RA_MEM_CATEGORY_COUNT; c++)
            total += phase->current_bytes[c];
        json_t *item =
            json_pack("{s:s, s:I, s:o}", "name", phase->name, "total_bytes", (json_int_t)total,
                      "memory_bytes", ra_json_memory(phase->current_bytes));
        if (phase->step >= 0)
            item = ra_json_extend(
                item, json_pack("{s:i, s:i}", "group", phase->group, "step", phase->step));
        phases = ra_json_append(phases, item);
    }
    return phases;
}

json_t *ra_report_to_json(const ra_report *report)
{
    json_t *point =
        json_pack("{s:o, s:s, s:i, s:o, s:o}", "config", ra_config_to_json(report->config),
                  "status", ra_report_passes(report) ? "ok" : "verification failed", "ranks",
                  report->ranks, "forward_ms", times_to_json(&report->forward), "tflops_forward",
                  ra_json_number(ra_report_tflops_forward(report)));
    if (report->config->backward)
        point = ra_json_extend(point, json_pack("{s:o, s:o}", "backward_ms",
                                                times_to_json(&report->backward), "tflops_backward",
                                                ra_json_number(ra_report_tflops_backward(report))));
    point = ra_json_extend(point, plan_to_json(report));
    point = ra_json_extend(point, work_to_json(report));
    point = ra_json_extend(point, json_pack("{s:o, s:o}", "device", device_to_json(report),
                                            "pattern_cache", cache_to_json(report)));
    point =
        ra_json_extend(point, json_pack("{s:o, s:I, s:I}", "category_peak_bytes",
                                        ra_json_memory(report->category_peak_bytes), "alloc_count",
                                        (json_int_t)report->alloc_count, "limit_bytes_sum",
                                        (json_int_t)report->limit_bytes_sum));
    point = ra_json_extend(point, json_pack("{s:o}", "pool", pool_to_json(report)));
    if (report->phases != NULL)
        point = ra_json_extend(point,
                               json_pack("{s:o, s:I}", "phases", phases_to_json(report),
                                         "phases_left_out", (json_int_t)report->phases_left_out));
    if (report->verified)
        point = ra_json_extend(point, json_pack("{s:o, s:o, s:o}", "error",
                                                errors_to_json(&report->errors, &report->errors),
                                                "error_bound",
                                                errors_to_json(&report->bounds, &report->errors),
                                                "compared", compared_to_json(&report->errors)));
    return point;
}

ra_status ra_report_write_json(const ra_report *report, const char *variant, const char *path)
{
    json_t *const point =
        ra_json_extend(ra_report_to_json(report), json_pack("{s:s?}", "variant", variant));
    return ra_json_report(
        "run", json_pack("{s:o, s:[o]}", "machine", ra_machine_json(), "points", point), path);
}
