/* `ringattn plan`: predictions for every combination of a sweep and every variant. */
#include "tool_plan.h"

#include "bytes_text.h"
#include "config_table.h"
#include "console.h"
#include "internal.h"
#include "job.h"
#include "job_source.h"
#include "json_build.h"
#include "output_file.h"
#include "ranks.h"

#include <stdio.h>

typedef struct planner {
    const ra_options *options;
    ra_comm *comm; /* NULL: this process is alone */
    ra_job_text text;
    ra_config base;
    ra_hardware hardware;
    bool has_hardware, told_threads, told_backend, told_links;
    int ranks;
    int64_t job_count;
    int point_count, none_fits; /* points, and those of --longest in which no length fits */
    json_t *points;
    json_t *longest; /* what --longest has found, by all that is swept but for the length */
} planner;

/* Points that differ in their length alone have one longest sequence. */
static ra_status longest_take(planner *p, ra_plan_point *point)
{
    size_t i;
    json_int_t tokens = 0;
    json_t *earlier, *swept = ra_json_swept(&point->config), *found;
    json_object_del(swept, "shape.seq");
    json_t *job = json_pack("{s:s?, s:o}", "variant", point->variant, "sweep", swept);
    json_array_foreach(p->longest, i, earlier)
    {
        point->longest_shown = json_equal(json_object_get(earlier, "job"), job) == 1;
        if (!point->longest_shown)
            continue;
        point->has_longest = true;
        json_unpack(earlier, "{s:I, s:i, s:i}", "tokens", &tokens, "head_groups",
                    &point->longest_head_groups, "rounds", &point->longest_rounds);
        point->longest_seq = tokens;
        json_decref(job);
        return RA_OK;
    }
    ra_status const status = ra_plan_point_longest(point);
    found = json_pack("{s:o, s:I, s:i, s:i}", "job", job, "tokens", (json_int_t)point->longest_seq,
                      "head_groups", point->longest_head_groups, "rounds", point->longest_rounds);
    return json_array_append_new(p->longest, found) == 0 ? status : ra_refuse_memory("the report");
}

/* Once, though a sweep has many points. */
static void tell_threads(planner *p, const ra_plan_point *point)
{
    int const known = p->has_hardware ? p->hardware.threads : 0;
    if (known == 0 || p->told_threads || point->request.on_device || point->threads == known)
        return;
    p->told_threads = true;
    ra_log(RA_LOG_WARNING,
           "speeds of this machine are those of %d thread%s per rank, and compute.threads is %d: "
           "times are as if it were %d",
           known, ra_plural(known), point->threads, known);
}

/* Once, too: times are of the machine's GPUs, and all else of this build's kernels for CPUs. */
static void tell_backend(planner *p, const ra_plan_point *point)
{
    if (p->told_backend || point->note[0] == '\0')
        return;
    p->told_backend = true;
    ra_log(RA_LOG_WARNING,
           "the CPU is planned, though the hardware has GPUs, whose times these are: %s",
           point->note);
}

/* Once, too: over a link of unknown rate a message takes its latency alone. */
static void tell_links(planner *p, const ra_plan_point *point)
{
    const ra_prediction *found = &point->prediction;
    double const within = found->sent_bytes - found->sent_network_bytes;
    bool const node = within >= 1 && p->hardware.node.gb_per_s == 0;
    bool const network = found->sent_network_bytes >= 1 && p->hardware.network.gb_per_s == 0;
    if (!found->has_times || p->told_links || !(node || network))
        return;
    p->told_links = true;
    ra_log(RA_LOG_WARNING, "the hardware has no %s: times leave out what moving bytes %s takes",
           node && network ? "node.gb_per_s and network.gb_per_s"
           : node          ? "node.gb_per_s"
                           : "network.gb_per_s",
           node && network ? "from rank to rank"
           : node          ? "within a node"
                           : "between nodes");
}

static ra_status point_plan(planner *p, const ra_config_pick *pick)
{
    ra_plan_point point = {.variant = pick->variant, .comm = p->comm};
    ra_status status = ra_job_text_parse(&p->text, NULL, pick, &point.config);
    if (status == RA_OK)
        status = ra_plan_point_init(&point, p->ranks, p->has_hardware ? &p->hardware : NULL);
    if (status == RA_OK) {
        tell_threads(p, &point);
        tell_backend(p, &point);
        status = ra_predict(&point.request, &point.prediction);
    }
    if (status == RA_OK)
        tell_links(p, &point);
    if (status == RA_OK && p->options->longest)
        status = longest_take(p, &point);
    p->none_fits += point.has_longest && point.longest_seq == 0;
    ++p->point_count;
    if (status == RA_OK && p->options->json &&
        json_array_append_new(p->points, ra_plan_point_to_json(&point)) != 0)
        status = ra_refuse_memory("the report");
    if (status == RA_OK && ra_options_shows_text(p->options))
        ra_plan_point_print(&point);
    ra_plan_point_fini(&point);
    return status;
}

static ra_status points_plan(planner *p)
{
    const char *named = p->options->source.pick.variant;
    ra_status status = RA_OK;
    for (int64_t i = 0; i < p->job_count && status == RA_OK; i++) {
        ra_config_pick const pick = ra_config_pick_job(&p->base, named, i);
        status = point_plan(p, &pick);
    }
    return status;
}

/* --ranks, else the hardware's, else as many as were started. */
static ra_status ranks_take(planner *p)
{
    static const ra_config_key key = {.type = RA_KEY_INT32, .min = 1, .max = RA_PREDICT_RANKS_MAX};
    ra_yaml_node const node = {.kind = RA_YAML_SCALAR, .text = p->options->ranks};
    const ra_yaml_node *at;
    ra_config_value value = {0};
    char problem[RA_VALUE_PROBLEM_MAX];
    p->ranks = p->hardware.ranks > 0 ? p->hardware.ranks : ra_ranks_count(p->comm);
    if (node.text == NULL)
        return RA_OK;
    ra_status const status = ra_config_value_read(&key, &node, &value, &at, problem);
    if (status == RA_OK)
        p->ranks = value.narrow;
    else
        ra_log(RA_LOG_ERROR, "--ranks: %s", problem);
    return status;
}

static ra_status save(const planner *p)
{
    const ra_options *o = p->options;
    char comment[200];
    if (!p->has_hardware) {
        ra_log(RA_LOG_ERROR,
               "--save: there is no machine to write: give --calibrate or --hardware");
        return RA_ERR_CONFIG;
    }
    snprintf(comment, sizeof(comment), "Written by 'ringattn plan --save'%s.",
             o->calibrate_path != NULL ? " from what 'ringattn bench --json' has measured" : "");
    return ra_hardware_save(o->save_path, comment, &p->hardware);
}

/* If no length fits, it fails as a probe does in which nothing ran. */
static ra_status judge(const planner *p)
{
    if (p->none_fits < p->point_count)
        return RA_OK;
    ra_log(RA_LOG_ERROR, "--longest: not a single token fits the memory there is: "
                         "raise memory.limit");
    return RA_ERR_NO_MEMORY;
}

static ra_status prepare(planner *p)
{
    const ra_options *o = p->options;
    ra_config_pick const first = {.sweep_point = 1};
    ra_status status = RA_OK;
    p->has_hardware = o->hardware_path != NULL || o->calibrate_path != NULL;
    p->hardware = (ra_hardware){.name = "this machine", .shares_memory = true};
    if (o->hardware_path != NULL)
        status = ra_hardware_load(o->hardware_path, &p->hardware);
    if (status == RA_OK && o->calibrate_path != NULL)
        status = ra_hardware_calibrate(o->calibrate_path, p->comm, &p->hardware);
    if (status == RA_OK)
        status = ranks_take(p);
    if (status == RA_OK)
        status = ra_job_text_share(o, NULL, &p->text);
    if (status == RA_OK)
        status = ra_job_text_parse(&p->text, NULL, &first, &p->base);
    if (status == RA_OK)
        status = ra_config_count_jobs(&p->base, o->source.pick.variant, &p->job_count);
    if (status == RA_OK)
        status = ra_job_check_outputs(o, &p->base, p->comm, false);
    if (status == RA_OK && o->save_path != NULL)
        status = save(p);
    return status;
}

static ra_status plan(const ra_options *options, ra_comm *comm)
{
    planner p = {.options = options, .comm = comm, .points = json_array(), .longest = json_array()};
    ra_status status =
        p.points != NULL && p.longest != NULL ? prepare(&p) : ra_refuse_memory("the report");
    if (status == RA_OK)
        status = points_plan(&p);
    if (status == RA_OK && options->json)
        status = ra_json_report("plan", json_pack("{s:O}", "points", p.points), options->json_path);
    if (status == RA_OK)
        status = ra_stdout_check(" the report");
    if (status == RA_OK)
        status = judge(&p);
    json_decref(p.points);
    json_decref(p.longest);
    ra_config_fini(&p.base);
    ra_job_text_fini(&p.text);
    return status;
}

int ra_command_plan(const ra_options *options, ra_comm *comm)
{
    /* One is enough, and the others learn what became of it. */
    ra_console_hold();
    ra_status const status =
        ra_console_agree(comm, "planning", ra_ranks_is_first(comm) ? plan(options, comm) : RA_OK);
    ra_ranks_leave(comm);
    return ra_exit_code(status);
}
