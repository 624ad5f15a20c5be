/*
 * The search of `probe`, over tries whose outcomes a table tells: which lengths it asks for, what
 * becomes of the answers, and how long it says that the whole run will take.
 */
#include "internal.h"
#include "tool/duration.h"
#include "tool/tool_probe.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(probe_search, .timeout = 60);

/* Linked with --wrap=ra_probe_try and the others below. */
static struct {
    int64_t fits, whole_fits; /* the longest that tries, and whole runs, take */
    ra_status refused, whole_refused;
    bool computes; /* tries that fit are jobs */
    int try_count, whole_count;
    int64_t last_tokens;
    bool last_whole;
} told;

static ra_probe_point found; /* of variant ring */
static char about[128];      /* what progress was last told */

ra_status __real_ra_probe_try(ra_probe *probe, ra_probe_point *point, int64_t tokens, bool whole,
                              ra_job_outcome *outcome_out);
ra_status __wrap_ra_probe_try(ra_probe *probe, ra_probe_point *point, int64_t tokens, bool whole,
                              ra_job_outcome *outcome_out);
ra_status __wrap_ra_probe_try(ra_probe *probe, ra_probe_point *point, int64_t tokens, bool whole,
                              ra_job_outcome *outcome_out)
{
    bool const fits = tokens <= (whole ? told.whole_fits : told.fits);
    told.try_count++;
    told.whole_count += whole;
    told.last_tokens = tokens;
    told.last_whole = whole;
    cr_assert(tokens >= 1 && tokens <= RA_PROBE_MOST_TOKENS, "%lld", (long long)tokens);
    cr_assert_lt(told.try_count, 100);
    if (fits && told.computes)
        return __real_ra_probe_try(probe, point, tokens, whole, outcome_out);
    *outcome_out = (ra_job_outcome){.status = fits    ? RA_OK
                                              : whole ? told.whole_refused
                                                      : told.refused};
    if (!fits)
        snprintf(outcome_out->message, sizeof(outcome_out->message), "%s %lld",
                 whole ? "whole" : "try", (long long)tokens);
    return RA_OK;
}

json_t *__real_ra_probe_point_to_json(ra_probe *probe, const ra_probe_point *point);
json_t *__wrap_ra_probe_point_to_json(ra_probe *probe, const ra_probe_point *point);
json_t *__wrap_ra_probe_point_to_json(ra_probe *probe, const ra_probe_point *point)
{
    (void)probe;
    found = *point;
    return json_object();
}

/* Before a search and after it. */
static int64_t rss_bytes = 1000;

int64_t __wrap_ra_rss_bytes(void);
int64_t __wrap_ra_rss_bytes(void)
{
    return rss_bytes += 500;
}

void __wrap_ra_progress_about(ra_progress *progress, const char *text);
void __wrap_ra_progress_about(ra_progress *progress, const char *text)
{
    (void)progress;
    snprintf(about, sizeof(about), "%s", text);
}

/* One variant, ring: base, which comes before it, has the same answers. */
static int search(void)
{
    static char *arguments[] = {"ringattn", "probe",
                                "--quiet",  "--json=/dev/null",
                                "--set",    "shape.heads=1",
                                "--set",    "shape.head_dim=8",
                                "--set",    "compute.threads=4",
                                "--set",    "compute.backend=cpu",
                                NULL};
    ra_options options;
    ra_comm *comm;
    cr_assert_eq(ra_options_parse(12, arguments, &options), RA_OK);
    cr_assert_eq(ra_comm_create_self(1000, &comm), RA_OK);
    int const code = ra_command_probe(&options, comm);
    ra_options_fini(&options);
    return code;
}

/* What is told of both variants is that of the last. */
static int search_for(int64_t fits, int64_t whole_fits)
{
    memset(&told, 0, sizeof(told));
    told.fits = fits;
    told.whole_fits = whole_fits;
    told.refused = told.whole_refused = RA_ERR_NO_MEMORY;
    return search();
}

static int64_t gap_of(int64_t tokens)
{
    return ra_max_i64(tokens / 256, 1);
}

static void expect_reason(const char *by, int64_t tokens)
{
    char expected[64];
    snprintf(expected, sizeof(expected), "%s %lld", by, (long long)tokens);
    cr_expect_str_eq(found.held_back, expected);
}

static void expect_held_back(const char *by, int64_t tokens)
{
    cr_expect_eq(found.refused_tokens, tokens);
    expect_reason(by, tokens);
}

Test(probe_search, ends_within_a_256th_of_the_edge_and_runs_that_whole)
{
    static const int64_t edges[] = {1,    2,    255,  511,     1023,    1024,
                                    1025, 2047, 2048, 1000003, 1 << 30, INT32_MAX - 1};
    for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
        cr_expect_eq(search_for(edges[i], INT32_MAX), 0);
        cr_expect_eq(found.status, RA_OK);
        cr_expect(found.tokens <= edges[i] && edges[i] < found.refused_tokens, "%lld",
                  (long long)edges[i]);
        cr_expect_leq(found.refused_tokens - found.tokens, gap_of(found.tokens));
        expect_held_back("try", found.refused_tokens);
        cr_expect_eq(told.whole_count, 2, "once for each variant");
        cr_expect(told.last_whole && told.last_tokens == found.tokens);
        cr_expect_eq(found.rss_after_bytes - found.rss_before_bytes, 500);
    }
}

Test(probe_search, ends_where_lengths_do)
{
    cr_expect_eq(search_for(INT32_MAX, INT32_MAX), 0);
    cr_expect_eq(found.tokens, INT32_MAX);
    cr_expect_eq(found.refused_tokens, 0);
    cr_expect_not_null(strstr(found.held_back, "shape.seq ends"), "%s", found.held_back);
}

Test(probe_search, goes_down_to_a_token_and_then_says_what_refused_it)
{
    cr_expect_eq(search_for(0, 0), 4);
    cr_expect_eq(found.status, RA_ERR_NO_MEMORY);
    cr_expect_eq(found.tokens, 0);
    expect_held_back("try", 1);
    cr_expect_eq(told.whole_count, 0);
}

Test(probe_search, takes_another_failure_of_its_first_try_for_an_answer)
{
    static const struct {
        ra_status status;
        int code;
    } cases[] = {{RA_ERR_CONFIG, 2}, {RA_ERR_UNSUPPORTED, 2}, {RA_ERR_IO, 3}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        memset(&told, 0, sizeof(told));
        told.refused = cases[i].status;
        cr_expect_eq(search(), cases[i].code);
        cr_expect_eq(found.status, cases[i].status);
        cr_expect_eq(found.tokens, 0);
        cr_expect_eq(found.refused_tokens, 0, "no length would do");
        expect_reason("try", RA_PROBE_BEGIN_TOKENS);
        cr_expect_eq(told.try_count, 2, "one for each variant");
    }
}

/* Memory that another process takes between the tries and the whole run. */
Test(probe_search, comes_down_a_little_where_the_whole_run_finds_less)
{
    search_for(100000, INT32_MAX);
    int64_t const most = found.tokens;
    int64_t length = most, above = 0;
    for (int steps = 0; steps < 8; steps++) {
        cr_expect_eq(search_for(100000, length), 0);
        cr_expect_eq(found.status, RA_OK);
        cr_expect_eq(found.tokens, length, "after %d steps", steps);
        cr_expect_eq(told.whole_count, 2 * (steps + 1));
        if (steps > 0)
            expect_held_back("whole", above);
        above = length;
        length -= gap_of(length);
    }
    cr_expect_eq(search_for(100000, above - 1), 4, "that is not a little");
    cr_expect_eq(found.status, RA_ERR_NO_MEMORY);
    cr_expect_eq(found.tokens, 0);
    expect_held_back("whole", above);
    cr_expect_eq(told.whole_count, 2 * 8);
}

Test(probe_search, has_no_length_for_one_token_that_the_whole_run_refuses)
{
    cr_expect_eq(search_for(1, 0), 4);
    cr_expect_eq(found.status, RA_ERR_NO_MEMORY);
    cr_expect_eq(found.tokens, 0);
    expect_held_back("whole", 1);
    cr_expect_eq(told.whole_count, 2);
}

Test(probe_search, tries_nothing_less_where_the_whole_run_fails_otherwise)
{
    memset(&told, 0, sizeof(told));
    told.fits = 5000;
    told.refused = RA_ERR_NO_MEMORY;
    told.whole_refused = RA_ERR_UNSUPPORTED;
    cr_expect_eq(search(), 2);
    cr_expect_eq(found.status, RA_ERR_UNSUPPORTED);
    cr_expect_eq(found.tokens, 0);
    cr_expect_not_null(strstr(found.held_back, "whole"), "%s", found.held_back);
    cr_expect_eq(told.whole_count, 2);
}

Test(probe_search, reports_how_much_the_process_has_grown_or_shrunk)
{
    static const struct {
        int64_t before, after;
        const char *growth;
    } cases[] = {{1000, 1500, "500"}, {1500, 1000, "-500"}, {-1, 1000, "null"}, {1000, -1, "null"}};
    ra_options const options = {0};
    ra_probe probe = {.series = {.options = &options}};
    cr_assert_eq(ra_comm_create_self(1000, &probe.series.comm), RA_OK);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ra_probe_point const point = {.variant = "ring",
                                      .status = RA_ERR_NO_MEMORY,
                                      .rss_before_bytes = cases[i].before,
                                      .rss_after_bytes = cases[i].after};
        json_t *json = __real_ra_probe_point_to_json(&probe, &point);
        char *text = json_dumps(json_object_get(json, "rss_growth_bytes"), JSON_ENCODE_ANY);
        cr_assert_not_null(text);
        cr_expect_str_eq(text, cases[i].growth);
        free(text);
        json_decref(json);
    }
    ra_comm_destroy(probe.series.comm);
}

/* What was found is a quarter of what was predicted, and half of what the limit leaves room for. */
Test(probe_search, shows_what_was_found_beside_what_could_be, .init = cr_redirect_stdout)
{
    ra_options const options = {.predict = true};
    ra_probe_point points[2] = {
        {.variant = "first",
         .tokens = 2000,
         .refused_tokens = 2007,
         .held_back = "no memory",
         .floor_bytes = 16,
         .predicted = true,
         .predicted_tokens = 8000,
         .predicted_peak_bytes = 600,
         .report = {.peak_bytes = 800, .peak_bytes_sum = 50000, .limit_bytes_sum = 64000}}};
    ra_probe probe = {.series = {.options = &options}, .points = points};
    points[1] = points[0];
    points[1].variant = "second";
    points[1].tokens = 3000;
    points[1].report.verified = true;
    points[1].report.errors.of[0] = 1;
    ra_probe_report_point(&probe, &points[0]);
    ra_probe_report_point(&probe, &points[1]);
    cr_assert_stdout_eq_str(
        "variant                   tokens bytes/token       floor  of floor  of first   seconds\n"
        "first                      2,000       25.00          16    50.00%    1.0000       0.0\n"
        "  held back at 2,007: no memory\n"
        "  predicted: 8,000 tokens (found 0.2500 of them), 600 B at the peak of what was found "
        "(0.7500 of it)\n"
        "second                     3,000       16.67          16    75.00%    1.5000       0.0"
        "  VERIFICATION FAILED\n"
        "  held back at 2,007: no memory\n"
        "  predicted: 8,000 tokens (found 0.3750 of them), 600 B at the peak of what was found "
        "(0.7500 of it)\n");
}

/* ---- how long the whole run takes ------------------------------------------------------------ */

/* Milliseconds per query and key: a first try whose start took long, one slow one near the end. */
static double rate_of(int64_t tokens)
{
    return tokens == RA_PROBE_BEGIN_TOKENS ? 9 : tokens == 2560 ? 3 : 1;
}

/* A try computes two tiles of queries, which half of the four threads do. It waits, which a whole
   pass will not. */
ra_status __wrap_ra_job_passes(ra_job *job);
ra_status __wrap_ra_job_passes(ra_job *job)
{
    if (!job->fills)
        return RA_ERR_UNSUPPORTED; /* by now it has been said */
    double const rows = 2.0 * job->ops->tile_rows(job->config.dtype, job->config.head_dim);
    double const ms = rate_of(job->config.seq) * rows * (double)job->config.seq / 0.5;
    job->report.forward.median_ms = 0.5 * ms;
    job->report.backward.median_ms = 0.75 * ms;
    job->report.waiting_ms = 0.25 * ms;
    return RA_OK;
}

Test(probe_search, expects_of_the_whole_run_what_the_slowest_of_its_last_tries_took)
{
    char expected[128], time[32], count[32];
    memset(&told, 0, sizeof(told));
    told.fits = 3000;
    told.whole_fits = INT32_MAX;
    told.refused = RA_ERR_NO_MEMORY;
    told.computes = true;
    cr_expect_eq(search(), 2);
    double const tokens = (double)told.last_tokens;
    cr_assert(told.last_tokens > 2900 && told.last_tokens <= 3000);
    snprintf(expected, sizeof(expected), "ring, %s tokens, whole, about %s",
             ra_count_text(told.last_tokens, count), ra_duration_text(3 * tokens * tokens, time));
    cr_expect_str_eq(about, expected);
}
