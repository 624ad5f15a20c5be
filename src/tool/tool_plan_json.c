/* A prediction as JSON, in the form of what runs report. */
#include "json_build.h"
#include "report.h"
#include "tool_plan.h"

/* The host's memory beside a GPU's; null if the CPU computes. */
static json_t *device_to_json(const ra_plan_point *point)
{
    const ra_prediction *p = &point->prediction;
    if (!point->request.on_device)
        return json_null();
    return json_pack("{s:i, s:I, s:o}", "multiprocessors", point->threads, "host_peak_bytes",
                     (json_int_t)p->host_peak_bytes, "host_memory_bytes",
                     ra_json_memory(p->host_memory_bytes));
}

static json_t *step_to_json(const ra_predicted_step *s, bool has_times, bool backward)
{
    json_t *object = json_pack(
        "{s:i, s:o, s:o, s:I, s:I, s:s}", "step", s->step, "held_from", ra_json_known(s->held_from),
        "live_pairs", ra_json_count(s->pairs), "fetched_bytes", (json_int_t)s->held_bytes,
        "sent_bytes", (json_int_t)s->sent_bytes, "link", s->crosses_nodes ? "network" : "node");
    if (backward)
        object = ra_json_extend(object, json_pack("{s:I, s:I}", "grad_in_bytes",
                                                  (json_int_t)s->grad_in_bytes, "grad_out_bytes",
                                                  (json_int_t)s->grad_out_bytes));
    if (has_times)
        object = ra_json_extend(
            object, json_pack("{s:o, s:o}", "forward_compute_ms", ra_json_number(s->forward_ms[0]),
                              "forward_comm_ms", ra_json_number(s->forward_ms[1])));
    if (has_times && backward)
        object =
            ra_json_extend(object, json_pack("{s:o, s:o}", "backward_compute_ms",
                                             ra_json_number(s->backward_ms[0]), "backward_comm_ms",
                                             ra_json_number(s->backward_ms[1])));
    return object;
}

static json_t *steps_to_json(const ra_prediction *p, bool backward)
{
    json_t *list = json_array();
    for (int s = 0; list != NULL && s < p->step_count; s++)
        list = ra_json_append(list, step_to_json(&p->steps[s], p->has_times, backward));
    return list;
}

static json_t *pass_to_json(const ra_predicted_pass *pass)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "total_ms", ra_json_number(pass->total_ms),
                     "compute_ms", ra_json_number(pass->compute_ms), "comm_ms",
                     ra_json_number(pass->comm_ms), "exposed_comm_ms",
                     ra_json_number(pass->exposed_ms), "overlap", ra_json_number(pass->overlap));
}

/* Under the names of a run, whose times are three numbers. */
static json_t *median_to_json(const ra_predicted_pass *pass)
{
    return json_pack("{s:o}", "median", ra_json_number(pass->total_ms));
}

static json_t *times_to_json(const ra_plan_point *point)
{
    const ra_prediction *p = &point->prediction;
    json_t *object = json_pack(
        "{s:s, s:i, s:o, s:o, s:o}", "hardware", point->request.hardware->name, "slowest_rank",
        p->slowest_rank, "forward_ms", median_to_json(&p->forward), "forward",
        pass_to_json(&p->forward), "overlap_from_rows", ra_json_number(p->balance_rows));
    if (point->config.backward)
        object = ra_json_extend(object,
                                json_pack("{s:o, s:o}", "backward_ms", median_to_json(&p->backward),
                                          "backward", pass_to_json(&p->backward)));
    return object;
}

static json_t *work_to_json(const ra_prediction *p)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "live_pairs",
                     ra_json_count(p->live_pairs), "forward_flops", ra_json_count(p->forward.flops),
                     "backward_flops", ra_json_count(p->backward.flops), "imbalance",
                     ra_json_number(p->imbalance), "sent_bytes", ra_json_count(p->sent_bytes),
                     "sent_network_bytes", ra_json_count(p->sent_network_bytes), "full_ring_bytes",
                     ra_json_count(p->full_ring_bytes));
}

json_t *ra_plan_point_to_json(const ra_plan_point *point)
{
    const ra_prediction *p = &point->prediction;
    int64_t const limit = point->request.memory_bytes;
    bool const fits = p->peak_bytes <= limit;
    json_t *object = json_pack(
        "{s:o, s:s?, s:o, s:s, s:i, s:i, s:s, s:s, s:s, s:b, s:I, s:i, s:i, s:b, s:b, s:b, s:i}",
        "config", ra_config_to_json(&point->config), "variant", point->variant, "sweep",
        ra_json_swept(&point->config), "status", fits ? "ok" : "oom", "ranks", p->ranks, "threads",
        point->threads, "kernel", point->kernel_name, "layout", ra_layout_name(p->layout),
        "schedule", ra_schedule_name(p->schedule), "hops_left_out", p->hops_left_out,
        "layout_chunk", (json_int_t)p->chunk, "head_groups", p->head_groups, "rounds", p->rounds,
        "exact", p->exact, "counted", p->counted, "may_keep_idle", p->may_keep_idle,
        "ranks_followed", p->ranks_followed);
    object = ra_json_extend(object, work_to_json(p));
    object = ra_json_extend(object, json_pack("{s:i, s:I, s:I, s:o, s:I, s:I}", "fullest_rank",
                                              p->fullest_rank, "rows", (json_int_t)p->rows,
                                              "peak_bytes", (json_int_t)p->peak_bytes,
                                              "memory_bytes", ra_json_memory(p->memory_bytes),
                                              "floor_bytes", (json_int_t)p->floor_bytes,
                                              "tilemap_bytes", (json_int_t)p->tilemap_bytes));
    object = ra_json_extend(object, json_pack("{s:o}", "device", device_to_json(point)));
    if (limit < INT64_MAX)
        object = ra_json_extend(object, json_pack("{s:I}", "limit_bytes", (json_int_t)limit));
    if (point->has_longest)
        object = ra_json_extend(object, json_pack("{s:I, s:i, s:i}", "longest_seq",
                                                  (json_int_t)point->longest_seq,
                                                  "longest_head_groups", point->longest_head_groups,
                                                  "longest_rounds", point->longest_rounds));
    if (p->has_times)
        object = ra_json_extend(object, times_to_json(point));
    return ra_json_extend(object,
                          json_pack("{s:o}", "steps", steps_to_json(p, point->config.backward)));
}
