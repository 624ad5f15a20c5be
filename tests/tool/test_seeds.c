/*
 * The studies of docs/studies.md, scaled down: every file of configs/seeds/ can be run, and what is
 * claimed of it holds at small sizes. Figures are the ledger's; times decide nothing.
 */
#include "tool/command_runner.h"
#include "tool/config.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

TestSuite(seeds, .init = command_folder_make, .fini = command_folder_remove, .timeout = 300);

static command_result result;

static json_t *member(const json_t *object, const char *name)
{
    json_t *found = json_object_get(object, name);
    cr_assert_not_null(found, "no member %s", name);
    return found;
}

static long long integer(const json_t *object, const char *name)
{
    json_t *found = member(object, name);
    cr_assert(json_is_integer(found), "%s is no integer", name);
    return json_integer_value(found);
}

static const char *text(const json_t *object, const char *name)
{
    const char *found = json_string_value(member(object, name));
    cr_assert_not_null(found, "%s is no text", name);
    return found;
}

static long long held(const json_t *point, const char *category)
{
    return integer(member(point, "memory_bytes"), category);
}

/* What `ringattn COMMAND --config configs/seeds/NAME.yaml ARGUMENTS` writes as JSON. */
__attribute__((format(printf, 4, 5))) static json_t *
study(int ranks, const char *command, const char *name, const char *format, ...)
{
    char line[2048], path[512];
    json_error_t error;
    va_list arguments;
    int const used = snprintf(line, sizeof(line),
                              "%s --quiet --json=found.json --config %s/configs/seeds/%s.yaml ",
                              command, RA_TEST_SOURCE, name);
    va_start(arguments, format);
    vsnprintf(line + used, sizeof(line) - (size_t)used, format, arguments);
    va_end(arguments);
    command_run(&result, ranks, line);
    cr_assert_eq(result.code, 0, "%s: exit code %d\n%s", line, result.code, result.err);
    snprintf(path, sizeof(path), "%s/found.json", command_folder);
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    cr_assert_not_null(root, "%s: %s", line, error.text);
    return root;
}

static json_t *points_of(const json_t *root, size_t count)
{
    json_t *points = member(root, "points");
    cr_assert_eq(json_array_size(points), count, "%zu points", json_array_size(points));
    return points;
}

/* Every combination of every variant passes all checks that need no tensors. */
static void check_points(const char *path)
{
    int64_t points = 1;
    for (int64_t p = 1; p <= points; p++) {
        ra_config base = {0};
        ra_config_source source = {.file = path, .sweep_point = p};
        cr_assert_eq(ra_config_load(&source, &base), RA_OK, "%s", path);
        points = base.sweep_points > 1 ? base.sweep_points : 1;
        cr_assert_geq(base.variant_count, 2, "%s compares nothing", path);
        for (int v = 0; v < base.variant_count; v++) {
            ra_config config = {0};
            source.variant = base.variants[v];
            cr_assert_eq(ra_config_load(&source, &config), RA_OK, "%s", path);
            cr_expect_eq(ra_config_check(&config, 1), RA_OK, "%s: %s", path, source.variant);
            ra_config_fini(&config);
        }
        ra_config_fini(&base);
    }
}

Test(seeds, every_study_is_a_file_whose_points_can_be_run)
{
    static const char *const names[] = {"base-vs-ring", "sliding-window"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[512];
        snprintf(path, sizeof(path), "%s/configs/seeds/%s.yaml", RA_TEST_SOURCE, names[i]);
        check_points(path);
    }
}

/* ---- base-vs-ring ---------------------------------------------------------------------------- */

/* The peak of one variant at one length. */
static long long peak_at(const char *variant, int tokens)
{
    json_t *root =
        study(0, "run", "base-vs-ring", "--variant %s --set shape.seq=%d", variant, tokens);
    json_t *point = json_array_get(points_of(root, 1), 0);
    bool const base = strncmp(variant, "base", 4) == 0;
    cr_expect_eq(held(point, "pattern_cache") == 0, base, "%s", variant);
    cr_expect_eq(held(point, "comm_buffer"), 0, "%s", variant);
    long long const peak = integer(point, "peak_bytes");
    json_decref(root);
    return peak;
}

Test(seeds, on_one_pattern_the_ring_with_everything_on_takes_one_percent_more_at_most)
{
    long long const base = peak_at("base", 65536);
    long long const ring = peak_at("ring", 65536);
    long long const ring_on_base = peak_at("ring-on-base-pattern", 65536);
    long long const base_on_ring = peak_at("base-on-ring-pattern", 65536);
    cr_expect(100 * ring_on_base <= 101 * base, "%lld and %lld", ring_on_base, base);
    cr_expect(100 * ring <= 101 * base_on_ring, "%lld and %lld", ring, base_on_ring);
}

/* Lengths are told apart to 1/256. */
Test(seeds, the_ring_reaches_the_length_of_the_base)
{
    json_t *root =
        study(0, "probe", "base-vs-ring", "--set memory.limit=24MiB --set compute.threads=1");
    json_t *points = points_of(root, 4);
    long long const base = integer(json_array_get(points, 0), "tokens");
    for (size_t i = 0; i < 4; i++) {
        json_t *point = json_array_get(points, i);
        cr_expect_str_eq(text(point, "status"), "ok");
        cr_expect(json_number_value(member(point, "floor_ratio")) > 0.94, "%s reaches %.3f",
                  text(point, "variant"), json_number_value(member(point, "floor_ratio")));
        cr_expect(1000 * integer(point, "tokens") >= 985 * base, "%s reaches %lld of %lld tokens",
                  text(point, "variant"), integer(point, "tokens"), base);
    }
    json_decref(root);
}

Test(seeds, four_ranks_that_share_reach_what_one_does)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    static const char set[] = "--variant ring --set compute.threads=1 --set memory.limit";
    json_t *alone = study(0, "probe", "base-vs-ring", "%s=32MiB", set);
    json_t *four = study(4, "probe", "base-vs-ring", "%s=8MiB", set);
    json_t *point = json_array_get(points_of(four, 1), 0);
    long long const reach = integer(json_array_get(points_of(alone, 1), 0), "tokens");
    cr_expect_str_eq(text(point, "schedule"), "shared");
    cr_expect_eq(held(point, "comm_buffer"), 0);
    cr_expect(10 * integer(point, "tokens") >= 9 * reach, "%lld of %lld tokens",
              integer(point, "tokens"), reach);
    json_decref(alone);
    json_decref(four);
}

/* ---- sliding-window -------------------------------------------------------------------------- */

enum { LENGTHS = 10 };

#define SMALLER "--set shape.batch=1 --set shape.heads=2 --set job.warmup=0 --set job.repeat=1 "

/* Bytes of the mask, and what ten lengths leave in the cache. */
static void check_masks(const json_t *points)
{
    for (size_t i = 0; i < LENGTHS; i++) {
        json_t *point = json_array_get(points, i);
        json_t *cache = member(point, "pattern_cache");
        cr_expect_str_eq(text(point, "status"), "ok");
        cr_expect_eq(integer(cache, "entries"), (long long)i + 1);
        cr_expect_eq(held(point, "pattern_cache"), integer(cache, "bytes"));
        long long const others = i == 0 ? 0 : held(json_array_get(points, i - 1), "pattern_cache");
        cr_expect_lt(held(point, "tilemap") + held(point, "pattern_cache") - others, 64 << 10);
        cr_expect_lt(held(point, "tilemap") + held(point, "pattern_cache"), 1 << 20);
    }
}

Test(seeds, a_window_takes_the_memory_of_causal_attention)
{
    json_t *causal = study(0, "bench", "sliding-window", SMALLER "--variant causal");
    json_t *window = study(0, "bench", "sliding-window", SMALLER "--variant window");
    check_masks(points_of(causal, LENGTHS));
    check_masks(points_of(window, LENGTHS));
    for (size_t i = 0; i < LENGTHS; i++) {
        json_t *ours = json_array_get(member(window, "points"), i);
        json_t *theirs = json_array_get(member(causal, "points"), i);
        cr_expect(json_equal(member(ours, "sweep"), member(theirs, "sweep")));
        cr_expect_leq(integer(ours, "peak_bytes"), integer(theirs, "peak_bytes"), "point %zu", i);
        long long const seq = integer(member(ours, "sweep"), "shape.seq");
        if (seq <= 64)
            cr_expect(json_equal(member(ours, "memory_bytes"), member(theirs, "memory_bytes")));
        else
            cr_expect_lt(integer(ours, "live_pairs"), integer(theirs, "live_pairs"));
    }
    json_decref(causal);
    json_decref(window);
}

/* One process: what causal attention leaves in the cache is found by a window that never binds. */
Test(seeds, up_to_its_width_a_window_is_causal_attention)
{
    for (int seq = 63; seq <= 65; seq++) {
        json_t *root = study(0, "bench", "sliding-window", SMALLER "--set shape.seq=%d", seq);
        json_t *points = member(root, "points");
        cr_assert_geq(json_array_size(points), 2);
        json_t *window = json_array_get(points, 1);
        cr_expect_str_eq(text(window, "variant"), "window");
        cr_expect_eq(integer(member(window, "pattern_cache"), "hits"), seq <= 64, "%d tokens", seq);
        json_decref(root);
    }
}
