/*
 * The studies of docs/studies.md, scaled down: every file of configs/seeds/ can be run, and what is
 * claimed of it holds at small sizes. Figures are the ledger's; times decide nothing.
 */
#include "ringattn/blas.h"
#include "tool/command_runner.h"
#include "tool/config_points.h"
#include "tool/json_reader.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

TestSuite(seeds, .init = command_folder_make, .fini = command_folder_remove, .timeout = 300);

static command_result result;

static long long held(const json_t *point, const char *category)
{
    return integer(member(point, "memory_bytes"), category);
}

/* What `ringattn COMMAND --config configs/seeds/NAME.yaml ARGUMENTS` writes as JSON. */
__attribute__((format(printf, 4, 5))) static json_t *
study(int ranks, const char *command, const char *name, const char *format, ...)
{
    char line[2048];
    va_list arguments;
    int const used = snprintf(line, sizeof(line),
                              "%s --quiet --json=found.json --config '%s/configs/seeds/%s.yaml' ",
                              command, RA_TEST_SOURCE, name);
    va_start(arguments, format);
    vsnprintf(line + used, sizeof(line) - (size_t)used, format, arguments);
    va_end(arguments);
    command_run(&result, ranks, line);
    cr_assert_eq(result.code, 0, "%s: exit code %d\n%s", line, result.code, result.err);
    return load_json(command_folder, "found.json");
}

static json_t *points_of(const json_t *root, size_t count)
{
    json_t *points = member(root, "points");
    cr_assert_eq(json_array_size(points), count, "%zu points", json_array_size(points));
    return points;
}

Test(seeds, every_study_is_a_file_whose_points_can_be_run)
{
    static const char *const names[] = {"base-vs-ring", "sliding-window", "memory-profiling",
                                        "decomposition", "attention-benchmark"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[512];
        snprintf(path, sizeof(path), "%s/configs/seeds/%s.yaml", RA_TEST_SOURCE, names[i]);
        check_points(path, 2);
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
        cr_expect(real(point, "floor_ratio") > 0.94, "%s reaches %.3f", text(point, "variant"),
                  real(point, "floor_ratio"));
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
    for (int seq = 64; seq <= 65; seq++) {
        json_t *root = study(0, "bench", "sliding-window", SMALLER "--set shape.seq=%d", seq);
        json_t *points = member(root, "points");
        cr_assert_geq(json_array_size(points), 2);
        json_t *window = json_array_get(points, 1);
        cr_expect_str_eq(text(window, "variant"), "window");
        cr_expect_eq(integer(member(window, "pattern_cache"), "hits"), seq <= 64, "%d tokens", seq);
        json_decref(root);
    }
}

/* Four lists of int32 per pair of blocks of 128, and nothing of it grows with the window. */
Test(seeds, a_dense_block_mask_costs_its_area)
{
    enum { SEQ = 8192, BLOCKS = SEQ / 128 };
    long long bytes[2];
    static const char *const variants[] = {"window", "window-dense-blocks"};
    for (int i = 0; i < 2; i++) {
        json_t *root = study(0, "run", "sliding-window",
                             SMALLER "--set shape.seq=%d --set shape.head_dim=8 --variant %s", SEQ,
                             variants[i]);
        bytes[i] = integer(member(json_array_get(points_of(root, 1), 0), "category_peak_bytes"),
                           "tilemap");
        json_decref(root);
    }
    cr_expect_geq(bytes[1], 16 * BLOCKS * BLOCKS + 16 * BLOCKS, "%lld bytes", bytes[1]);
    cr_expect_lt(4 * bytes[0], bytes[1], "%lld and %lld bytes", bytes[0], bytes[1]);
}

/* ---- memory-profiling ------------------------------------------------------------------------ */

#define PROFILED                                                                                   \
    "--set shape.batch=1 --set shape.heads=2 --set compute.threads=1 --set shape.seq=%d"

/* What one state takes: S and z, float32. */
enum { STATE_BYTES = 2 * 4 * 64 * 65 };

/* A plan, which runs nothing, says the same within 2 %. */
static void check_theory(const json_t *planned, const json_t *point)
{
    double const theory = real(planned, "peak_bytes");
    cr_expect_str_eq(text(planned, "variant"), text(point, "variant"));
    cr_expect_leq(fabs(theory - real(point, "peak_bytes")), 0.02 * theory, "%s: %.0f and %.0f",
                  text(point, "variant"), theory, real(point, "peak_bytes"));
}

static void check_profile(int seq)
{
    json_t *root = study(0, "bench", "memory-profiling", PROFILED, seq);
    json_t *plan = study(0, "plan", "memory-profiling", PROFILED, seq);
    json_t *points = points_of(root, 6);
    for (size_t i = 0; i < 6; i++) {
        json_t *point = json_array_get(points, i);
        const char *variant = text(point, "variant");
        bool const linear = strncmp(variant, "linear", 6) == 0;
        bool const standard = strcmp(variant, "standard") == 0;
        long long const states = !linear ? 0 : strcmp(variant, "linear-cumsum") == 0 ? 1 + seq : 1;
        if (standard && ra_blas_name() == NULL) {
            cr_expect_not_null(strstr(text(point, "message"), "OpenBLAS"));
            continue;
        }
        cr_expect_str_eq(text(point, "status"), "ok");
        cr_expect_eq(held(point, "state"), states * STATE_BYTES, "%s at %d", variant, seq);
        /* Scores and weights, float32, of two heads. */
        cr_expect_eq(held(point, "scores"), standard ? 2 * 2 * 4LL * seq * seq : 0, "%s at %d",
                     variant, seq);
        check_theory(json_array_get(points_of(plan, 6), i), point);
    }
    json_decref(plan);
    json_decref(root);
}

Test(seeds, scores_grow_with_the_square_and_cumulative_states_with_the_length)
{
    if (!command_has_openblas())
        cr_skip_test("OpenBLAS is not installed");
    check_profile(128);
    check_profile(320);
}

/* ---- decomposition --------------------------------------------------------------------------- */

/* Matrices of float32 scores that are held: S, then P, then both gradients. */
Test(seeds, scores_pile_up_phase_by_phase)
{
    static const struct {
        const char *name;
        long long matrices;
    } phases[] = {{"forward start", 0}, {"after scores", 1}, {"after softmax", 2},
                  {"forward step", 2},  {"forward end", 2},  {"backward start", 2},
                  {"after dP", 3},      {"after dS", 4},     {"backward step", 4},
                  {"backward end", 0}};
    enum { SEQ = 256 };
    if (ra_blas_name() == NULL)
        cr_skip_test("OpenBLAS, which materialises scores, is not installed");
    json_t *root =
        study(0, "run", "decomposition", "--phases --variant standard --set shape.seq=%d", SEQ);
    json_t *found = member(json_array_get(points_of(root, 1), 0), "phases");
    cr_assert_eq(json_array_size(found), sizeof(phases) / sizeof(phases[0]));
    for (size_t i = 0; i < sizeof(phases) / sizeof(phases[0]); i++) {
        json_t *phase = json_array_get(found, i);
        cr_expect_str_eq(text(phase, "name"), phases[i].name);
        cr_expect_eq(held(phase, "scores"), phases[i].matrices * 8 * 4 * SEQ * SEQ, "%s",
                     phases[i].name);
    }
    json_decref(root);
}

/* Where a probe, which runs, finds the end, and where a plan, which does not, puts it. */
Test(seeds, a_plan_knows_where_memory_ends)
{
    static const char set[] = "--variant standard --set memory.limit=24MiB --set compute.threads=1";
    if (ra_blas_name() == NULL)
        cr_skip_test("OpenBLAS, which materialises scores, is not installed");
    json_t *probe = study(0, "probe", "decomposition", "%s", set);
    json_t *plan = study(0, "plan", "decomposition", "--longest --set shape.seq=256 %s", set);
    double const ran = real(json_array_get(points_of(probe, 1), 0), "tokens");
    double const planned = real(json_array_get(points_of(plan, 1), 0), "longest_seq");
    cr_expect_leq(fabs(planned - ran), 0.01 * ran, "%.0f and %.0f tokens", planned, ran);
    json_decref(probe);
    json_decref(plan);
}

/* ---- attention-benchmark --------------------------------------------------------------------- */

/* Four matrices of 512 x 512 pass the limit, and those of 128 x 128 do not. */
Test(seeds, out_of_memory_is_a_status_and_the_next_point_follows)
{
    if (ra_blas_name() == NULL)
        cr_skip_test("OpenBLAS, which materialises scores, is not installed");
    static const int lengths[] = {512, 128};
    for (int i = 0; i < 2; i++) {
        json_t *root = study(0, "bench", "attention-benchmark",
                             "--set shape.batch=2 --set memory.limit=8M --set shape.seq=%d "
                             "--set shape.head_dim=16 --set compute.threads=1",
                             lengths[i]);
        json_t *points = points_of(root, 2);
        cr_expect_str_eq(text(json_array_get(points, 0), "status"), i == 0 ? "oom" : "ok");
        cr_expect_str_eq(text(json_array_get(points, 1), "status"), "ok");
        json_decref(root);
    }
}
