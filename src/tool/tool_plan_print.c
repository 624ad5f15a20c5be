/* A prediction as a table for people. */
#include "bytes_text.h"
#include "documents.h"
#include "duration.h"
#include "report.h"
#include "tool_plan.h"

#include <math.h>
#include <stdio.h>

enum { LABEL_WIDTH = 10 };
#define row(...) ra_report_row(LABEL_WIDTH, __VA_ARGS__)

static int64_t whole(double amount)
{
    return amount < 0x1p63 ? (int64_t)amount : INT64_MAX;
}

static const char *bytes_of(double amount, char text[32])
{
    return ra_bytes_text(whole(amount), text);
}

static void job_print(const ra_plan_point *point)
{
    const ra_config *c = &point->config;
    const ra_prediction *p = &point->prediction;
    ra_ring_info const chosen = {.layout = p->layout,
                                 .schedule = p->schedule,
                                 .chunk = p->chunk,
                                 .head_groups = p->head_groups,
                                 .rounds = p->rounds,
                                 .imbalance = p->imbalance};
    if (point->variant != NULL)
        row("variant", "%s", point->variant);
    ra_report_shape(LABEL_WIDTH, c);
    double const all = (double)c->seq * (double)c->seq * (double)c->batch * c->heads;
    if (ra_config_linear(c) != RA_LINEAR_NONE)
        row("work", "a state of %d x %d for each batch and key/value head; %.4g FLOP forward",
            c->head_dim, c->head_dim, p->forward.flops);
    else
        row("work", "%.4g query-key pairs, %.3g %% of all; %.4g FLOP forward", p->live_pairs,
            100 * p->live_pairs / all, p->forward.flops);
    if (c->backward)
        row("", "%.4g FLOP backward", p->backward.flops);
    row("ranks", "%d, %d %s%s each, kernel %s", p->ranks, point->threads,
        point->request.on_device ? "multiprocessor" : "thread", ra_plural(point->threads),
        point->kernel_name);
    ra_report_plan(LABEL_WIDTH, c, &chosen);
    if (p->blocks_expected)
        row("", "random blocks are too many to be drawn: what is to be expected of them");
    if (!p->counted && (!p->blocks_expected || p->ranks_followed < p->ranks))
        row("", "estimated from %d of %d ranks and from evenly spread chunks of queries",
            p->ranks_followed, p->ranks);
    for (int kind = 0; kind < RA_LAYOUT_AUTO; kind++)
        if (p->left_out[kind])
            row("", "layout %s was not looked at: too much to count",
                ra_layout_name((ra_layout_kind)kind));
    if (p->hops_left_out)
        row("",
            "a run takes schedule ring, which is planned for up to %d ranks: it sends as much, "
            "but less between nodes",
            RA_PREDICT_RANKS_ALL);
}

static void memory_print(const ra_plan_point *point)
{
    const ra_prediction *p = &point->prediction;
    char text[32], rows[32], groups[RA_GROUPS_TEXT_MAX];
    printf("\n");
    row("memory", "%12s  on the fullest rank%s, %d, with %s quer%s",
        ra_bytes_text(p->peak_bytes, text), point->request.on_device ? "'s GPU" : "",
        p->fullest_rank, ra_count_text(p->rows, rows), p->rows == 1 ? "y" : "ies");
    ra_report_categories(LABEL_WIDTH, p->memory_bytes);
    if (point->request.on_device) {
        row("host", "%12s  beside it", ra_bytes_text(p->host_peak_bytes, text));
        ra_report_categories(LABEL_WIDTH, p->host_memory_bytes);
    }
    if (p->may_keep_idle)
        row("", "%12s  pool_idle comes on top: what the pool keeps for other blocks", "unknown");
    row("floor", "%12s  tensors alone; the peak is %.4f times that",
        ra_bytes_text(p->floor_bytes, text), (double)p->peak_bytes / (double)p->floor_bytes);
    if (point->request.memory_bytes < INT64_MAX)
        row("limit", "%12s  %s", ra_bytes_text(point->request.memory_bytes, text),
            p->peak_bytes <= point->request.memory_bytes ? "fits" : "does not fit");
    if (!point->has_longest || point->longest_shown)
        return;
    bool const is_most = point->longest_seq == ra_documents_tokens_max(&point->config.pattern);
    row("longest", "%12s tokens fit%s, other keys as they are",
        ra_count_text(point->longest_seq, rows),
        !is_most                          ? ""
        : point->longest_seq == INT32_MAX ? ", the most that shape.seq takes"
                                          : ", the most that such documents can be repeated for");
    if (point->longest_seq > 0)
        row("", "%12s in %s and %d round%s", "",
            ra_report_groups(point->config.heads, point->longest_head_groups, groups),
            point->longest_rounds, ra_plural(point->longest_rounds));
}

static void traffic_print(const ra_prediction *p)
{
    char sent[32], full[32], network[32], percent[32];
    double const share = 100 * p->sent_bytes / fmax(p->full_ring_bytes, 1);
    if (p->ranks == 1)
        return;
    row("sent", "%s, %s %% of the %s of a full ring; %s of it between nodes",
        bytes_of(p->sent_bytes, sent), ra_percent_text(share, percent),
        bytes_of(p->full_ring_bytes, full), bytes_of(p->sent_network_bytes, network));
}

static void pass_print(const char *name, const ra_predicted_pass *pass)
{
    char overlap[32] = "-", text[4][32];
    if (isfinite(pass->overlap))
        snprintf(overlap, sizeof(overlap), "%.0f %%", 100 * pass->overlap);
    row(name, "%12s  %12s  %12s  %12s  %8s  %10.3g", ra_duration_text(pass->total_ms, text[0]),
        ra_duration_text(pass->compute_ms, text[1]), ra_duration_text(pass->comm_ms, text[2]),
        ra_duration_text(pass->exposed_ms, text[3]), overlap,
        pass->total_ms > 0 ? pass->flops / (pass->total_ms * 1e9) : 0);
}

/* What a step takes; "-" if the machine's speed is unknown. */
static const char *step_time(const ra_prediction *p, double ms, char text[32])
{
    return p->has_times ? ra_duration_text(ms, text) : "-";
}

static void step_print(const ra_prediction *p, const ra_predicted_step *s, bool backward)
{
    char held[32], text[2][32], from[16] = "several";
    if (s->held_from >= 0)
        snprintf(from, sizeof(from), "%d", s->held_from);
    printf("%-10s%5d  %8s  %12.4g  %10s  %8s", "", s->step, from, s->pairs,
           ra_bytes_text(s->held_bytes, held), s->crosses_nodes ? "network" : "node");
    printf("  %10s  %10s", step_time(p, s->forward_ms[0], text[0]),
           step_time(p, s->forward_ms[1], text[1]));
    if (backward)
        printf("  %10s  %10s", step_time(p, s->backward_ms[0], text[0]),
               step_time(p, s->backward_ms[1], text[1]));
    printf("\n");
}

/* The first steps and the last one; JSON has them all. */
static void steps_print(const ra_plan_point *point)
{
    enum { SHOWN = 8 };
    const ra_prediction *p = &point->prediction;
    bool const backward = point->config.backward;
    if (p->step_count <= 1) /* linear attention has none */
        return;
    printf("\n%-10s%5s  %8s  %12s  %10s  %8s  %10s  %10s", "steps", "step", "of rank", "pairs",
           "fetched", "by", "forward", "moving");
    printf(backward ? "  %10s  %10s\n" : "\n", "backward", "moving");
    for (int s = 0; s < p->step_count; s++) {
        if (s < SHOWN || s + 1 == p->step_count)
            step_print(p, &p->steps[s], backward);
        else if (s == SHOWN)
            printf("%-10s  ...  %d more\n", "", p->step_count - SHOWN - 1);
    }
}

static void times_print(const ra_plan_point *point)
{
    const ra_prediction *p = &point->prediction;
    if (!p->has_times) {
        row("time", "unknown: %s",
            point->request.hardware == NULL ? "give --hardware or --calibrate"
                                            : "the hardware has no speed for this kind and dtype");
        return;
    }
    printf("\n");
    row("time", "%12s  %12s  %12s  %12s  %8s  %10s", "total", "computing", "moving", "exposed",
        "overlap", "TFLOP/s");
    pass_print("forward", &p->forward);
    if (point->config.backward)
        pass_print("backward", &p->backward);
    const char *const machine = point->request.hardware->name;
    row("", "of rank %d, the slowest%s%s", p->slowest_rank, machine[0] != '\0' ? ", on " : "",
        machine);
    if (isfinite(p->balance_rows)) {
        char rows[32];
        bool const hidden = (double)p->rows >= p->balance_rows;
        row("overlap", "computing covers a step's transfer from %s rows per rank on: %s here",
            ra_count_text(whole(p->balance_rows), rows), hidden ? "it does" : "it does not");
    }
}

void ra_plan_point_print(const ra_plan_point *point)
{
    job_print(point);
    memory_print(point);
    traffic_print(&point->prediction);
    times_print(point);
    steps_print(point);
    printf("\n");
}
