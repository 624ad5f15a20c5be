/* Sweeps and variants: which combinations there are, and what each of them holds. */
#include "support/captured_log.h"
#include "tool/config.h"
#include "tool/job_source.h"
#include "tool/tool_bench.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static captured_log said;

static void begin(void)
{
    captured_log_begin(&said);
}

TestSuite(bench_sweep, .init = begin);

static const char text[] = "shape: {seq: 64, heads: 2}\n"
                           "pattern.window.left: 7\n"
                           "sweep:\n"
                           "  shape:\n"
                           "    seq: [128, 256, 512]\n"
                           "  shape.dtype: [f32, bf16]\n"
                           "  pattern.window.left: [31, null]\n"
                           "variants:\n"
                           "  causal: {pattern.causal: true}\n"
                           "  dense: {shape.seq: 32}\n";

static ra_status parse(const char *yaml, const ra_config_source *source, ra_config *config)
{
    said.count = 0;
    return ra_config_parse("job.yaml", true, yaml, strlen(yaml), source, config);
}

Test(bench_sweep, combinations_are_counted_and_unused_without_a_number)
{
    ra_config config = {0};
    cr_assert_eq(parse(text, NULL, &config), RA_OK, "%s", said.line);
    cr_expect_eq(config.sweep_points, 12);
    cr_expect_eq(config.sweep_key_count, 3);
    cr_expect_eq(config.seq, 64);
    cr_expect_eq(config.pattern.window_left, 7);
    cr_assert_eq(config.variant_count, 2);
    cr_expect_str_eq(config.variants[0], "causal");
    cr_expect_str_eq(config.variants[1], "dense");
    ra_config_fini(&config);
    cr_assert_eq(parse("{}", NULL, &config), RA_OK);
    cr_expect_eq(config.sweep_points, 1);
    cr_expect_eq(config.sweep_key_count, 0);
    cr_expect_eq(config.variant_count, 0);
    ra_config_fini(&config);
}

/* The product in the file's order, the last key varying fastest; it wins over variants. */
Test(bench_sweep, points_are_the_product_in_the_files_order)
{
    static const int64_t seqs[] = {128, 256, 512}, lefts[] = {31, -1};
    static const ra_dtype dtypes[] = {RA_F32, RA_BF16};
    for (int64_t point = 1; point <= 12; point++) {
        ra_config config = {0};
        ra_config_source const source = {.pick = {.variant = "dense", .sweep_point = point}};
        cr_assert_eq(parse(text, &source, &config), RA_OK, "%s", said.line);
        cr_expect_eq(config.seq, seqs[(point - 1) / 4]);
        cr_expect_eq(config.dtype, dtypes[(point - 1) / 2 % 2]);
        cr_expect_eq(config.pattern.window_left, lefts[(point - 1) % 2]);
        cr_expect_eq(config.heads, 2, "what is not swept stays");
        json_t *value = ra_config_swept_to_json(&config, 1);
        cr_expect_str_eq(ra_config_swept_path(&config, 1), "shape.dtype");
        cr_expect_str_eq(json_string_value(value), ra_dtype_name(config.dtype));
        json_decref(value);
        ra_config_fini(&config);
    }
}

/* A job of the file is picked by name, but one that the command line names takes its place. */
Test(bench_sweep, a_picked_variant_yields_to_that_of_the_command_line)
{
    char yaml[] = "shape: {seq: 64}\n"
                  "variants: {lean: {shape.seq: 32}, wide: {shape.heads: 16}}\n";
    static const struct {
        const char *named, *picked;
        int64_t seq;
        int32_t heads;
    } cases[] = {{NULL, NULL, 64, 8},
                 {NULL, "lean", 32, 8},
                 {"wide", NULL, 64, 16},
                 {"wide", "lean", 64, 16}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ra_config config = {0};
        ra_config_source const source = {.pick.variant = cases[i].named};
        ra_job_text const job = {.source = &source, .text = yaml, .bytes = sizeof(yaml) - 1};
        ra_config_pick const pick = {.variant = cases[i].picked, .sweep_point = 1};
        cr_assert_eq(ra_job_text_parse(&job, NULL, &pick, &config), RA_OK, "%s", said.line);
        cr_expect_eq(config.seq, cases[i].seq, "case %zu", i);
        cr_expect_eq(config.heads, cases[i].heads, "case %zu", i);
        ra_config_fini(&config);
    }
}

Test(bench_sweep, what_the_command_line_gives_is_not_swept)
{
    static const char *const one[] = {"shape.seq=99"}, *const section[] = {"pattern=null"},
                             *const other[] = {"shape={heads: 4}"};
    ra_config config = {0};
    ra_config_source source = {.sets = one, .set_count = 1, .pick.sweep_point = 4};
    cr_assert_eq(parse(text, &source, &config), RA_OK, "%s", said.line);
    cr_expect_eq(config.sweep_points, 4);
    cr_expect_eq(config.seq, 99);
    cr_expect_eq(config.dtype, RA_BF16);
    cr_expect_eq(config.pattern.window_left, -1);
    ra_config_fini(&config);
    source.sets = section;
    cr_assert_eq(parse(text, &source, &config), RA_OK, "%s", said.line);
    cr_expect_eq(config.sweep_points, 6);
    ra_config_fini(&config);
    source.sets = other;
    cr_assert_eq(parse(text, &source, &config), RA_OK, "%s", said.line);
    cr_expect_eq(config.sweep_points, 12);
    ra_config_fini(&config);
}

/* A section with keys, a section within that is reset, and options that stand for keys. */
Test(bench_sweep, however_the_command_line_gives_it)
{
    static const char of_jobs[] = "sweep: {job.input: [a, b], job.output: [c, d], job.verify: "
                                  "[true, false], job.backward: [true, false]}\n";
    static const char *const sets[] = {"shape={seq: 99, heads: 4}", "pattern={window: ~}"};
    ra_config config = {0};
    ra_config_source source = {.sets = sets, .set_count = 1, .pick.sweep_point = 1};
    cr_assert_eq(parse(text, &source, &config), RA_OK, "%s", said.line);
    cr_expect_eq(config.sweep_points, 4);
    cr_expect_eq(config.seq, 99);
    ra_config_fini(&config);
    source.sets = sets + 1;
    cr_assert_eq(parse(text, &source, &config), RA_OK, "%s", said.line);
    cr_expect_eq(config.sweep_points, 6);
    ra_config_fini(&config);
    source = (ra_config_source){.pick.sweep_point = 1, .input = "x", .output = "y"};
    cr_assert_eq(parse(of_jobs, &source, &config), RA_OK, "%s", said.line);
    cr_expect_eq(config.sweep_points, 4);
    cr_expect_str_eq(config.input, "x");
    ra_config_fini(&config);
    source = (ra_config_source){.pick.sweep_point = 1, .backward = true, .verify = true};
    cr_assert_eq(parse(of_jobs, &source, &config), RA_OK, "%s", said.line);
    cr_expect_eq(config.sweep_points, 4);
    ra_config_fini(&config);
}

Test(bench_sweep, what_is_wrong_is_said_with_its_place)
{
    static const struct {
        const char *yaml, *says;
    } cases[] = {
        {"sweep: {shape.seq: 5}", "job.yaml:1:20: sweep: shape.seq: expected a list"},
        {"sweep: {shape.seq: []}", "expected a list"},
        {"sweep: {shape.seq: [4, 5q]}", "job.yaml:1:24: shape.seq: '5q'"},
        {"sweep: {shape.sq: [4]}", "did you mean 'shape.seq'"},
        {"sweep: [1]", "sweep: expected keys and values"},
        {"sweep: {shape.seq: [4], shape: {seq: [5]}}", "duplicate"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ra_config config = {0};
        ra_config_source const source = {.pick.sweep_point = 1};
        cr_assert_eq(parse(cases[i].yaml, &source, &config), RA_ERR_CONFIG, "%s", cases[i].yaml);
        cr_expect_not_null(strstr(said.line, cases[i].says), "'%s' does not say '%s'", said.line,
                           cases[i].says);
        cr_expect_eq(said.count, 1);
    }
}

/* Several values where one belongs may be meant as a sweep, but not in the sweep itself. */
Test(bench_sweep, is_named_where_a_list_stands_outside_it)
{
    ra_config config = {0};
    cr_assert_eq(parse("shape.seq: [4, 5]", NULL, &config), RA_ERR_CONFIG);
    cr_expect_not_null(strstr(said.line, "in the file's section sweep"), "%s", said.line);
    cr_assert_eq(parse("sweep: {shape.seq: [[4, 5], [6]]}", NULL, &config), RA_ERR_CONFIG);
    cr_expect_not_null(strstr(said.line, "shape.seq: '[...]' is not"), "%s", said.line);
    cr_expect_null(strstr(said.line, "in the file's section sweep"), "%s", said.line);
}

/* A sweep of so many repetitions with 100 numbers of heads. */
static const char *sweep_of(int repeats)
{
    static char yaml[4096];
    size_t used = (size_t)snprintf(yaml, sizeof(yaml), "sweep: {job.repeat: [1");
    for (int i = 2; i <= repeats; i++)
        used += (size_t)snprintf(yaml + used, sizeof(yaml) - used, ",%d", i);
    used += (size_t)snprintf(yaml + used, sizeof(yaml) - used, "], shape.heads: [1");
    for (int i = 2; i <= 100; i++)
        used += (size_t)snprintf(yaml + used, sizeof(yaml) - used, ",%d", i);
    snprintf(yaml + used, sizeof(yaml) - used, "]}");
    return yaml;
}

Test(bench_sweep, as_many_combinations_as_are_allowed_are_taken)
{
    int64_t count = 0;
    ra_config config = {0};
    cr_assert_eq(parse(sweep_of(100), NULL, &config), RA_OK, "%s", said.line);
    cr_expect_eq(config.sweep_points, RA_SWEEP_POINTS_MAX);
    cr_expect_eq(ra_config_count_jobs(&config, NULL, &count), RA_OK);
    cr_expect_eq(count, RA_SWEEP_POINTS_MAX);
    config.variant_count = 2;
    cr_expect_eq(ra_config_count_jobs(&config, NULL, &count), RA_ERR_CONFIG);
    cr_expect_not_null(strstr(said.line, "in 2 variants are 20000, more than 10000"), "%s",
                       said.line);
    cr_expect_eq(ra_config_count_jobs(&config, "one", &count), RA_OK);
    config.variant_count = 0;
    ra_config_fini(&config);
}

/* 101 x 100 combinations: a hundred more than the most. */
Test(bench_sweep, too_many_combinations_are_refused)
{
    ra_config config = {0};
    const char *yaml = sweep_of(101);
    cr_assert_eq(parse(yaml, NULL, &config), RA_ERR_CONFIG);
    cr_expect_not_null(strstr(said.line, "shape.heads: more than 10000 points"), "%s", said.line);
    static const char *const sets[] = {"shape.heads=2"};
    ra_config_source const source = {.sets = sets, .set_count = 1};
    cr_assert_eq(parse(yaml, &source, &config), RA_OK, "%s", said.line);
    cr_expect_eq(config.sweep_points, 101);
    ra_config_fini(&config);
}

/* Options of what is off in some combinations are for the others. */
Test(bench_sweep, combinations_that_contradict_are_found_by_the_check)
{
    static const char yaml[] = "pattern.blocks.size: 64\nmemory.pattern_cache.bytes: 1M\n"
                               "sweep: {pattern.blocks.kind: [none, local_window],\n"
                               "        memory.pattern_cache.mode: [lazy, off]}\n";
    for (int64_t point = 1; point <= 4; point++) {
        ra_config config = {0};
        ra_config_source const source = {.pick.sweep_point = point};
        cr_assert_eq(parse(yaml, &source, &config), RA_OK, "%s", said.line);
        cr_expect_eq(ra_config_check(&config, 1), RA_OK, "%s", said.line);
        ra_config_fini(&config);
    }
    /* Also those that are given after the sweep, and those that only another point's option is
       against. */
    const char *const set = "memory.pattern_cache.bytes=2M";
    ra_config_source picked = {.sets = &set, .set_count = 1, .pick.sweep_point = 2};
    ra_config over = {0};
    cr_assert_eq(parse(yaml, &picked, &over), RA_OK, "%s", said.line);
    cr_expect_eq(over.cache_mode, RA_CACHE_OFF);
    cr_expect_eq(ra_config_check(&over, 1), RA_OK, "%s", said.line);
    ra_config_fini(&over);
    static const char rates[] = "pattern.blocks: {rates: [3], density: 0.5}\n"
                                "sweep: {pattern.blocks.kind: [dilated_sparse, random]}\n";
    for (int64_t point = 1; point <= 2; point++) {
        picked = (ra_config_source){.pick.sweep_point = point};
        cr_assert_eq(parse(rates, &picked, &over), RA_OK, "%s", said.line);
        cr_expect_eq(ra_config_check(&over, 1), point == 1 ? RA_ERR_CONFIG : RA_OK, "%s",
                     said.line);
        ra_config_fini(&over);
    }
    static const char bad[] = "shape.heads: 6\nsweep: {shape.kv_heads: [3, 4]}\n";
    for (int64_t point = 1; point <= 2; point++) {
        ra_config config = {0};
        ra_config_source const source = {.pick.sweep_point = point};
        cr_assert_eq(parse(bad, &source, &config), RA_OK, "%s", said.line);
        cr_expect_eq(ra_config_check(&config, 1), point == 1 ? RA_OK : RA_ERR_CONFIG);
        ra_config_fini(&config);
    }
    cr_expect_not_null(strstr(said.line, "job.yaml:2:29: shape.kv_heads"), "%s", said.line);
    /* So are those between keys alone, which a configuration without points is refused for. */
    static const char host[] = "comm.backend: nccl\nsweep: {compute.backend: [cuda, cpu]}\n";
    for (int64_t point = 1; point <= 2; point++) {
        ra_config config = {0};
        ra_config_source const source = {.pick.sweep_point = point};
        cr_assert_eq(parse(host, &source, &config), RA_OK, "%s", said.line);
        cr_expect_eq(ra_config_check(&config, 1), point == 1 ? RA_OK : RA_ERR_CONFIG);
        ra_config_fini(&config);
    }
}

/* A row shows the beginning of a long value, and its last byte is no half of a character. */
Test(bench_sweep, labels_are_text_where_they_are_cut)
{
    static const char yaml[] =
        "sweep: {job.input: [_a_path_of_59_bytes_before_a_letter_that_takes_two"
        "_of_them_\xc3\xa9.st]}\n";
    ra_config_source const source = {.pick.sweep_point = 1};
    ra_bench_point const point = {.pick = source.pick};
    char label[512];
    ra_config config = {0};
    cr_assert_eq(parse(yaml, &source, &config), RA_OK, "%s", said.line);
    ra_bench_point_label(&point, &config, label, sizeof(label));
    cr_expect_str_eq(label,
                     "job.input=_a_path_of_59_bytes_before_a_letter_that_takes_two_of_them_?");
    ra_config_fini(&config);
}
