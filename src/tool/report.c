#include "report.h"

#include "bytes_text.h"
#include "duration.h"

#include <stdarg.h>
#include <stdio.h>

const char *ra_percent_text(double percent, char text[32])
{
    snprintf(text, 32, percent < 1000 ? "%.3g" : "%.0f", percent);
    return text;
}

const char *ra_count_text(int64_t count, char text[32])
{
    char digits[24];
    int const length = snprintf(digits, sizeof(digits), "%lld", (long long)count);
    int at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0 && digits[i - 1] != '-')
            text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = '\0';
    return text;
}

/* Text that grows by pieces with commas between them. */
typedef struct phrase {
    char *text;
    size_t bytes;
} phrase;

#define phrase_add(out, ...) ra_text_append((out)->text, (out)->bytes, ", ", __VA_ARGS__)

static void window_describe(const ra_pattern_config *pattern, phrase *out)
{
    char left[32], right[32];
    bool const has_left = pattern->window_left >= 0;
    bool const has_right = pattern->window_right >= 0 && !pattern->causal;
    if (has_left && has_right)
        phrase_add(out, "window of %s token%s to the left and %s to the right",
                   ra_count_text(pattern->window_left, left), ra_plural(pattern->window_left),
                   ra_count_text(pattern->window_right, right));
    else if (has_left)
        phrase_add(out, "window of %s token%s to the left",
                   ra_count_text(pattern->window_left, left), ra_plural(pattern->window_left));
    else if (has_right)
        phrase_add(out, "window of %s token%s to the right",
                   ra_count_text(pattern->window_right, right), ra_plural(pattern->window_right));
    bool const limited = pattern->window_left >= 0 || pattern->window_right >= 0;
    if (limited && pattern->sinks > 0)
        phrase_add(out, "%s leading token%s always seen", ra_count_text(pattern->sinks, left),
                   ra_plural(pattern->sinks));
}

static void blocks_describe(const ra_pattern_config *pattern, phrase *out)
{
    char size[32];
    ra_count_text(pattern->block_size, size);
    switch (pattern->blocks_kind) {
    case RA_BLOCKS_NONE:
        return;
    case RA_BLOCKS_LOCAL_WINDOW:
        phrase_add(out, "blocks of %s: %lld to each side", size, (long long)pattern->block_width);
        return;
    case RA_BLOCKS_DILATED_SPARSE:
        if (pattern->block_rates != NULL)
            phrase_add(out, "blocks of %s: %lld distance%s", size,
                       (long long)pattern->block_rate_count, ra_plural(pattern->block_rate_count));
        else
            phrase_add(out, "blocks of %s: distances 1, 2, 4, ... to density %g", size,
                       pattern->block_density);
        return;
    case RA_BLOCKS_GLOBAL_LOCAL:
        phrase_add(out, "blocks of %s: %lld global, %lld to each side", size,
                   (long long)pattern->block_globals, (long long)pattern->block_width);
        return;
    case RA_BLOCKS_RANDOM:
        phrase_add(out, "blocks of %s: random, density %g", size, pattern->block_density);
        return;
    case RA_BLOCKS_LIST:
        phrase_add(out, "blocks of %s: %lld pair%s from the input", size,
                   (long long)pattern->block_pair_count, ra_plural(pattern->block_pair_count));
        return;
    }
}

static void dilated_describe(const ra_pattern_config *pattern, phrase *out)
{
    enum { SHOWN_MAX = 4 };
    char branches[160] = "";
    for (int64_t i = 0; i < pattern->branch_count && i < SHOWN_MAX; i++)
        ra_text_append(branches, sizeof(branches), " ", "%lld/%lld",
                       (long long)pattern->segments[i], (long long)pattern->rates[i]);
    if (pattern->branch_count > 0)
        phrase_add(out, "dilated %s%s (segment/rate%s)", branches,
                   pattern->branch_count > SHOWN_MAX ? " ..." : "",
                   pattern->dilated_heads == RA_HEADS_GROUPED ? ", heads dealt out" : "");
}

void ra_pattern_describe(const ra_pattern_config *pattern, char *text, size_t bytes)
{
    char count[32];
    phrase out = {.text = text, .bytes = bytes};
    text[0] = '\0';
    if (pattern->causal)
        phrase_add(&out, "causal");
    window_describe(pattern, &out);
    if (pattern->documents != NULL)
        phrase_add(&out, "%s document%s", ra_count_text(pattern->document_count, count),
                   ra_plural(pattern->document_count));
    blocks_describe(pattern, &out);
    dilated_describe(pattern, &out);
    if (text[0] == '\0')
        phrase_add(&out, "every token sees every token");
}

/* 4 D per pair; linear attention has none, and 2 D^2 per row of q, k or v that meets a state. */
static double forward_flop(const ra_report *report)
{
    const ra_config *config = report->config;
    double const dim = config->head_dim;
    if (ra_config_linear(config) == RA_LINEAR_NONE)
        return 4 * dim * (double)report->live_pairs;
    return 2 * dim * dim * (double)config->batch * (double)config->seq *
           (config->heads + config->kv_heads);
}

static double tflops(double flop, double ms)
{
    return ms > 0 ? flop / (ms * 1e9) : 0;
}

double ra_report_tflops_forward(const ra_report *report)
{
    return tflops(forward_flop(report), report->forward.median_ms);
}

double ra_report_tflops_backward(const ra_report *report)
{
    double const ratio = ra_config_linear(report->config) == RA_LINEAR_NONE ? 2.5 : 2;
    return tflops(ratio * forward_flop(report), report->backward.median_ms);
}

/* -1 was not checked; NaN fails, because no comparison with it holds. */
static bool within(double error, double bound)
{
    return error == -1 || (error >= 0 && error <= bound);
}

bool ra_report_passes(const ra_report *report)
{
    bool passes = true;
    for (int i = 0; i < RA_RESULT_COUNT && report->verified; i++)
        passes = passes && within(report->errors.of[i], report->bounds.of[i]);
    return passes;
}

/* The labels' width in a run's table. */
enum { LABEL_WIDTH = 12 };
#define row(...) ra_report_row(LABEL_WIDTH, __VA_ARGS__)

void ra_report_row(int width, const char *label, const char *format, ...)
{
    va_list args;
    printf("%-*s", width, label);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

/* Linear kinds have no pattern. */
static void attention_describe(const ra_config *config, char *text, size_t bytes)
{
    ra_linear_kind const linear = ra_config_linear(config);
    if (linear == RA_LINEAR_NONE)
        ra_pattern_describe(&config->pattern, text, bytes);
    else if (linear == RA_LINEAR_CAUSAL)
        snprintf(text, bytes, "linear attention, causal, %s",
                 ra_linear_method_name(config->linear_method));
    else
        snprintf(text, bytes, "linear attention, every token sees every token");
}

void ra_report_shape(int width, const ra_config *config)
{
    char text[512], seq[32];
    ra_report_row(width, "tokens", "%s x batch %lld; %d head%s (%d for keys and values) of %d, %s",
                  ra_count_text(config->seq, seq), (long long)config->batch, config->heads,
                  ra_plural(config->heads), config->kv_heads, config->head_dim,
                  ra_dtype_name(config->dtype));
    attention_describe(config, text, sizeof(text));
    ra_report_row(width, "pattern", "%s", text);
}

const char *ra_report_groups(int32_t heads, int32_t groups, char text[RA_GROUPS_TEXT_MAX])
{
    int const used =
        snprintf(text, RA_GROUPS_TEXT_MAX, "%d head group%s", groups, ra_plural(groups));
    if (groups > heads)
        snprintf(text + used, (size_t)(RA_GROUPS_TEXT_MAX - used), " (%d parts of the queries)",
                 groups / heads);
    return text;
}

void ra_report_plan(int width, const ra_config *config, const ra_ring_info *ring)
{
    char chunk[48] = "", rounds[32] = "", groups[RA_GROUPS_TEXT_MAX];
    if (ring->rounds > 1)
        snprintf(rounds, sizeof(rounds), ", %d rounds", ring->rounds);
    if (ring->chunk > 0)
        snprintf(chunk, sizeof(chunk), " (chunks of %lld)", (long long)ring->chunk);
    ra_report_row(width, "plan", "layout %s%s, schedule %s, %d communication buffer%s%s, %s%s",
                  ra_layout_name(ring->layout), chunk, ra_schedule_name(ring->schedule),
                  config->comm_buffers, ra_plural(config->comm_buffers),
                  ring->schedule == RA_SCHEDULE_SHARED ? " between hosts" : "",
                  ra_report_groups(config->heads, ring->head_groups, groups), rounds);
    ra_report_row(width, "balance", "the busiest rank has %.3f times the mean work",
                  ring->imbalance);
}

void ra_report_categories(int width, const int64_t bytes[RA_MEM_CATEGORY_COUNT])
{
    char text[32];
    for (int i = 0; i < RA_MEM_CATEGORY_COUNT; i++) {
        if (bytes[i] > 0)
            ra_report_row(width, "", "%12s  %s", ra_bytes_text(bytes[i], text),
                          ra_category_name((ra_category)i));
    }
}

static void job_print(const ra_report *report)
{
    const ra_config *config = report->config;
    char pairs[32], backend[RA_BACKEND_TEXT_MAX], groups[RA_GROUPS_TEXT_MAX];
    double const all =
        (double)config->seq * (double)config->seq * (double)config->batch * config->heads;
    ra_report_shape(LABEL_WIDTH, config);
    if (ra_config_linear(config) != RA_LINEAR_NONE)
        row("work", "a state of %d x %d for each batch and key/value head", config->head_dim,
            config->head_dim);
    else
        row("work", "%s query-key pairs, %.3g %% of all", ra_count_text(report->live_pairs, pairs),
            100 * (double)report->live_pairs / all);
    const char *unit = report->gpu.device != NULL ? "multiprocessor" : "thread";
    row("ranks", "%d (%s), %d %s%s each, kernel %s", report->ranks, report->comm_name,
        report->threads, unit, ra_plural(report->threads), report->kernel_name);
    if (report->backend_note != NULL || report->gpu.device != NULL)
        row("backend", "%s", ra_backend_describe(&report->gpu, report->backend_note, backend));
    if (report->ranks > 1)
        ra_report_plan(LABEL_WIDTH, config, &report->ring);
    else if (report->ring.head_groups > 1)
        row("plan", "%s", ra_report_groups(config->heads, report->ring.head_groups, groups));
}

static void times_print(const char *name, const ra_times *times, double tflop_rate)
{
    char text[3][32];
    row(name, "%12s  %12s  %12s  %10.3g", ra_duration_text(times->min_ms, text[0]),
        ra_duration_text(times->median_ms, text[1]), ra_duration_text(times->max_ms, text[2]),
        tflop_rate);
}

static void speed_print(const ra_report *report)
{
    char waited[32], sent[32], full[32], percent[32];
    printf("\n");
    row("time", "%12s  %12s  %12s  %10s", "min", "median", "max", "TFLOP/s");
    times_print("forward", &report->forward, ra_report_tflops_forward(report));
    if (report->config->backward)
        times_print("backward", &report->backward, ra_report_tflops_backward(report));
    if (report->ranks == 1)
        return;
    row("waiting", "%12s  of it for other ranks", ra_duration_text(report->waiting_ms, waited));
    double const share = report->ring.full_ring_bytes > 0 ? 100 * (double)report->sent_bytes /
                                                                (double)report->ring.full_ring_bytes
                                                          : 0;
    row("sent", "%s, %s %% of the %s of a full ring", ra_bytes_text(report->sent_bytes, sent),
        ra_percent_text(share, percent), ra_bytes_text(report->ring.full_ring_bytes, full));
}

static void memory_print(const ra_report *report)
{
    char text[32];
    const ra_device *device = report->gpu.device;
    printf("\n");
    row("memory", "%12s  at the peak%s%s", ra_bytes_text(report->peak_bytes, text),
        report->ranks > 1 ? " of the fullest rank" : "", device != NULL ? ", of the GPU" : "");
    ra_report_categories(LABEL_WIDTH, report->memory_bytes);
    if (device != NULL) {
        row("host memory", "%12s  at the peak", ra_bytes_text(report->host_peak_bytes, text));
        ra_report_categories(LABEL_WIDTH, report->host_memory_bytes);
    }
    const ra_pool_stats *pool = &report->pool;
    if (report->config->pool_mode != RA_POOL_OFF)
        row("pool",
            "%10.1f %%  of what it reserved was in use at the peak; %lld of %lld requests "
            "came from idle memory",
            100 * ra_pool_utilisation(pool), (long long)pool->hits,
            (long long)(pool->hits + pool->misses));
    const ra_cache_counts *maps = &report->pattern_cache;
    if (maps->hits > 0)
        row("tile maps", "%lld of %lld were found in the pattern cache", (long long)maps->hits,
            (long long)(maps->hits + maps->misses));
    if (report->rss_peak_bytes >= 0)
        row("resident", "%12s  more than before the first tensor",
            ra_bytes_text(report->rss_peak_bytes, text));
}

/* "forward end     12.0 MiB: qkv 6.0 MiB, output 6.0 MiB" */
static void phase_print(const ra_ledger_mark *phase)
{
    char text[512] = "", where[48] = "", bytes[32];
    phrase held = {.text = text, .bytes = sizeof(text)};
    int64_t total = 0;
    for (int i = 0; i < RA_MEM_CATEGORY_COUNT; i++) {
        total += phase->current_bytes[i];
        if (phase->current_bytes[i] > 0)
            phrase_add(&held, "%s %s", ra_category_name((ra_category)i),
                       ra_bytes_text(phase->current_bytes[i], bytes));
    }
    if (phase->group > 0 || phase->step > 0)
        snprintf(where, sizeof(where), " (group %d, step %d)", phase->group, phase->step);
    row("", "%12s  %s%s: %s", ra_bytes_text(total, bytes), phase->name, where, text);
}

static void phases_print(const ra_report *report)
{
    if (report->phase_count > 0)
        printf("\nphases\n");
    for (int i = 0; i < report->phase_count; i++)
        phase_print(&report->phases[i]);
    if (report->phases_left_out > 0)
        row("", "%lld more are left out", (long long)report->phases_left_out);
}

static void error_print(const char *name, double error, double bound)
{
    if (error != -1)
        row("", "%-4s %10.2e  %10.2e  %s", name, error, bound,
            within(error, bound) ? "ok" : "FAILED");
}

/* Sampled rows that no error tells about. */
static void left_out_print(int64_t count, const char *one, const char *several)
{
    if (count > 0)
        row("", "%lld sampled row%s and w%s not compared", (long long)count,
            count == 1 ? one : several, count == 1 ? "as" : "ere");
}

static void errors_print(const ra_report *report)
{
    const ra_errors *e = &report->errors;
    bool const lse_too = e->lse != -1;
    char queries[32], keys[32], heads[48] = "";
    if (!report->verified)
        return;
    printf("\n");
    row("verified", "%-4s %10s  %10s", "", "error", "allowed");
    for (int i = 0; i < RA_RESULT_COUNT; i++)
        error_print(ra_result_names[i], e->of[i], report->bounds.of[i]);
    row("", "relative to float64 over %s quer%s and %s key%s%s",
        ra_count_text(e->query_count, queries), e->query_count == 1 ? "y" : "ies",
        ra_count_text(e->key_count, keys), ra_plural(e->key_count),
        lse_too ? "; lse absolute" : "");
    left_out_print(e->skipped_count, " sees NaN or Inf", "s see NaN or Inf");
    left_out_print(e->blurred_count, " has scores of which float32 keeps no digit",
                   "s have scores of which float32 keeps no digit");
    if (e->lse_from_run < e->key_heads)
        snprintf(heads, sizeof(heads), " of %d of %d heads", e->lse_from_run, e->key_heads);
    if (e->lse_from_run > 0)
        row("", "dk, dv%s against the run's own %so: from inputs alone was too much work", heads,
            lse_too ? "lse and " : "");
}

void ra_report_print(const ra_report *report)
{
    job_print(report);
    speed_print(report);
    memory_print(report);
    phases_print(report);
    errors_print(report);
}
