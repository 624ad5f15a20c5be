/* What a report says in words and numbers. */
#include "bytes_text.h"
#include "tool/duration.h"
#include "tool/json_reader.h"
#include "tool/report.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static ra_config config;
static ra_report report;

static void begin(void)
{
    config = (ra_config){.batch = 1, .seq = 16, .heads = 2, .kv_heads = 2, .head_dim = 64};
    config.pattern = ra_pattern_config_dense();
    report = (ra_report){.config = &config,
                         .ranks = 2,
                         .comm_name = "local",
                         .kernel_name = "none",
                         .verified = true,
                         .errors = {.o = 1, .lse = 1, .dq = 1, .dk = 1, .dv = 1},
                         .bounds = {.o = 1, .lse = 1, .dq = 1, .dk = 1, .dv = 1}};
}

TestSuite(report, .init = begin);

static void says(const char *wanted)
{
    char text[256];
    ra_pattern_describe(&config.pattern, text, sizeof(text));
    cr_expect_str_eq(text, wanted);
}

Test(report, an_error_at_its_bound_passes_and_one_above_it_fails)
{
    double *const errors[] = {&report.errors.o, &report.errors.lse, &report.errors.dq,
                              &report.errors.dk, &report.errors.dv};
    cr_assert(ra_report_passes(&report));
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        *errors[i] = 1.0000001;
        cr_expect_not(ra_report_passes(&report), "error %zu", i);
        *errors[i] = (double)NAN;
        cr_expect_not(ra_report_passes(&report), "NaN in error %zu", i);
        *errors[i] = (double)INFINITY;
        cr_expect_not(ra_report_passes(&report), "infinite error %zu", i);
        *errors[i] = -1; /* not checked */
        cr_expect(ra_report_passes(&report), "unchecked error %zu", i);
        *errors[i] = 1;
    }
}

Test(report, a_time_has_the_largest_unit_that_it_reaches)
{
    static const struct {
        double ms;
        const char *text;
    } times[] = {{0, "0.000 ms"},        {0.01234, "0.012 ms"}, {999, "999.000 ms"},
                 {1000, "1.00 s"},       {59990, "59.99 s"},    {60000, "1.00 min"},
                 {1234567, "20.58 min"}, {3600000, "1.00 h"},   {1234567890, "342.94 h"}};
    char text[32];
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
        cr_expect_str_eq(ra_duration_text(times[i].ms, text), times[i].text, "%s", text);
}

/* A row per pass, its times below their names, each in its own unit. */
Test(report, prints_long_times_in_long_units)
{
    char text[2048] = "";
    cr_redirect_stdout();
    config.backward = true;
    report.ranks = 2;
    report.comm_name = "none";
    report.forward = (ra_times){.min_ms = 0.25, .median_ms = 12345.6, .max_ms = 45 * 60e3};
    report.backward = (ra_times){.min_ms = 60e3, .median_ms = 3600e3, .max_ms = 1234567890};
    report.waiting_ms = 90e3;
    ra_report_print(&report);
    fflush(stdout);
    FILE *const printed = cr_get_redirected_stdout();
    cr_assert_gt(fread(text, 1, sizeof(text) - 1, printed), 0);
    static const char wanted[] =
        "time                 min        median           max     TFLOP/s\n"
        "forward         0.250 ms       12.35 s     45.00 min           0\n"
        "backward        1.00 min        1.00 h      342.94 h           0\n"
        "waiting         1.50 min  of it for other ranks\n";
    cr_expect_not_null(strstr(text, wanted), "%s", text);
}

Test(report, counts_one_of_a_thing_in_the_singular)
{
    char text[4096] = "";
    cr_redirect_stdout();
    config.heads = config.kv_heads = 1;
    report.errors.query_count = report.errors.key_count = 1;
    ra_report_print(&report);
    fflush(stdout);
    FILE *const printed = cr_get_redirected_stdout();
    cr_assert_gt(fread(text, 1, sizeof(text) - 1, printed), 0);
    cr_expect_not_null(strstr(text, "; 1 head (1 for keys and values) of 64"), "%s", text);
    cr_expect_not_null(strstr(text, "over 1 query and 1 key;"), "%s", text);
}

Test(report, says_which_results_pass_and_which_rows_were_not_compared)
{
    char text[4096] = "";
    cr_redirect_stdout();
    report.errors = (ra_errors){.o = 2e-7,
                                .lse = 1,
                                .dq = INFINITY,
                                .dk = NAN,
                                .dv = -1,
                                .query_count = 63,
                                .key_count = 31,
                                .skipped_count = 1,
                                .blurred_count = 2};
    report.bounds = (ra_errors){.o = 2e-6, .lse = 1e-5, .dq = 2e-6, .dk = 2e-6, .dv = 2e-6};
    ra_report_print(&report);
    fflush(stdout);
    FILE *const printed = cr_get_redirected_stdout();
    cr_assert_gt(fread(text, 1, sizeof(text) - 1, printed), 0);
    static const char *const wanted[] = {
        "o      2.00e-07    2.00e-06  ok\n",
        "lse    1.00e+00    1.00e-05  FAILED\n",
        "dq          inf    2.00e-06  FAILED\n",
        "dk          nan    2.00e-06  FAILED\n",
        "1 sampled row sees NaN or Inf and was not compared\n",
        "2 sampled rows have scores of which float32 keeps no digit and were not compared\n"};
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        cr_expect_not_null(strstr(text, wanted[i]), "no '%s' in: %s", wanted[i], text);
    json_t *json = ra_report_to_json(&report);
    json_t *bound = member(json, "error_bound");
    cr_expect(json_is_real(member(bound, "o")));
    cr_expect_null(json_object_get(bound, "dv"), "dv was not checked");
    json_t *compared = member(json, "compared");
    cr_expect_eq(integer(compared, "queries"), 63);
    cr_expect_eq(integer(compared, "keys"), 31);
    cr_expect_eq(integer(compared, "not_finite"), 1);
    cr_expect_eq(integer(compared, "blurred"), 2);
    json_decref(json);
}

Test(report, counts_four_operations_per_pair_and_dimension_forward_and_ten_backward)
{
    report.live_pairs = 1000000;
    report.forward.median_ms = 2;
    report.backward.median_ms = 4;
    /* 4 x 64 x 1e6 operations in 2 ms are 0.128e12 per second. */
    cr_expect_float_eq(ra_report_tflops_forward(&report), 0.128, 1e-12);
    cr_expect_float_eq(ra_report_tflops_backward(&report), 0.16, 1e-12);
    report.forward.median_ms = 0;
    cr_expect(ra_report_tflops_forward(&report) == 0);
}

Test(report, says_a_pattern_in_words)
{
    static const int64_t lengths[] = {10, 6}, segments[] = {8, 16}, rates[] = {1, 2};
    says("every token sees every token");
    config.pattern.causal = true;
    says("causal");
    config.pattern.window_left = 4095;
    config.pattern.window_right = 0;
    says("causal, window of 4,095 tokens to the left");
    config.pattern.sinks = 1;
    says("causal, window of 4,095 tokens to the left, 1 leading token always seen");
    config.pattern.causal = false;
    config.pattern.sinks = 0;
    says("window of 4,095 tokens to the left and 0 to the right");
    config.pattern = ra_pattern_config_dense();
    config.pattern.documents = lengths;
    config.pattern.document_count = 2;
    config.pattern.segments = segments;
    config.pattern.rates = rates;
    config.pattern.branch_count = 2;
    says("2 documents, dilated 8/1 16/2 (segment/rate)");
    config.pattern.dilated_heads = RA_HEADS_GROUPED;
    config.pattern.blocks_kind = RA_BLOCKS_LOCAL_WINDOW;
    config.pattern.block_size = 128;
    config.pattern.block_width = 3;
    says("2 documents, blocks of 128: 3 to each side, dilated 8/1 16/2 (segment/rate, heads dealt "
         "out)");
}

Test(report, says_one_of_something_in_the_singular)
{
    static const int64_t one[] = {1};
    config.pattern.window_left = 1;
    says("window of 1 token to the left");
    config.pattern.window_right = 1;
    says("window of 1 token to the left and 1 to the right");
    config.pattern.window_left = -1;
    says("window of 1 token to the right");
    config.pattern = ra_pattern_config_dense();
    config.pattern.blocks_kind = RA_BLOCKS_LIST;
    config.pattern.block_size = 128;
    config.pattern.block_pair_count = 1;
    says("blocks of 128: 1 pair from the input");
    config.pattern.blocks_kind = RA_BLOCKS_DILATED_SPARSE;
    config.pattern.block_rates = one;
    config.pattern.block_rate_count = 1;
    says("blocks of 128: 1 distance");
}

Test(report, words_of_any_pattern_stay_within_their_room)
{
    static const int64_t huge[] = {INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX};
    config.pattern.window_left = INT32_MAX;
    config.pattern.sinks = INT32_MAX;
    config.pattern.segments = huge;
    config.pattern.rates = huge;
    config.pattern.branch_count = 5;
    for (size_t bytes = 1; bytes < 300; bytes++) {
        char text[301];
        memset(text, 'x', sizeof(text));
        ra_pattern_describe(&config.pattern, text, bytes);
        cr_assert_lt(strnlen(text, bytes), bytes);
        cr_assert_eq(text[bytes], 'x', "written past %zu bytes", bytes);
    }
}

Test(report, writes_bytes_and_counts_for_people)
{
    char text[32];
    cr_expect_str_eq(ra_bytes_text(0, text), "0 B");
    cr_expect_str_eq(ra_bytes_text(1023, text), "1023 B");
    cr_expect_str_eq(ra_bytes_text(1536, text), "1.5 KiB");
    cr_expect_str_eq(ra_bytes_text((1 << 20) - 1, text), "1.0 MiB");
    cr_expect_str_eq(ra_bytes_text((1 << 20) - 52, text), "1023.9 KiB");
    cr_expect_str_eq(ra_bytes_text(INT64_C(3) << 30, text), "3.0 GiB");
    cr_expect_str_eq(ra_bytes_text(INT64_MAX, text), "8388608.0 TiB");
    cr_expect_str_eq(ra_count_text(0, text), "0");
    cr_expect_str_eq(ra_count_text(999, text), "999");
    cr_expect_str_eq(ra_count_text(1000, text), "1,000");
    cr_expect_str_eq(ra_count_text(1048576, text), "1,048,576");
    cr_expect_str_eq(ra_count_text(-123456, text), "-123,456");
    cr_expect_str_eq(ra_count_text(INT64_MIN, text), "-9,223,372,036,854,775,808");
}

Test(report, json_holds_numbers_only_where_there_are_some)
{
    report.errors.o = (double)NAN;
    report.errors.dq = report.errors.dk = report.errors.dv = -1;
    report.memory_bytes[RA_MEM_QKV] = 5;
    json_t *json = ra_report_to_json(&report);
    cr_assert_not_null(json);
    json_t *error = member(json, "error");
    cr_expect(json_is_null(member(error, "o")), "NaN is not JSON");
    cr_expect(json_is_real(member(error, "lse")));
    cr_expect_null(json_object_get(error, "dq"), "dq was not checked");
    cr_expect_str_eq(json_string_value(member(json, "status")), "verification failed");
    cr_expect_eq(json_object_size(member(json, "memory_bytes")), RA_MEM_CATEGORY_COUNT);
    cr_expect_eq(json_integer_value(member(member(json, "memory_bytes"), "qkv")), 5);
    cr_expect_null(json_object_get(json, "backward_ms"));
    json_decref(json);
    report.verified = false;
    config.backward = true;
    json = ra_report_to_json(&report);
    cr_expect_null(json_object_get(json, "error"));
    cr_expect_str_eq(json_string_value(member(json, "status")), "ok");
    cr_expect_eq(json_object_size(member(json, "backward_ms")), 3);
    json_decref(json);
}
