/* What points of `bench` say of memory: predicted peaks, head groups under a limit, and the cache
 * of tile maps that they share.
 */
#include "tool/bench_runner.h"

#include <math.h>

TestSuite(bench_memory, .init = command_folder_make, .fini = command_folder_remove, .timeout = 300);

/* Predicted by formulas that share nothing with what is measured; of what does not fit, too. */
static void expect_theory(int ranks, const char *arguments, size_t count)
{
    static const char yaml[] = "shape: {batch: 2, seq: 700, heads: 4, head_dim: 32, dtype: f32}\n"
                               "job: {repeat: 1, warmup: 0}\n"
                               "variants:\n"
                               "  flash: {}\n"
                               "  backward: {job.backward: true, pattern.causal: true}\n"
                               "  linear: {attention.kind: linear_causal}\n"
                               "  short: {memory.limit: 256K}\n";
    write_config(yaml);
    json_t *root = bench(ranks, arguments, 0), *points = member(root, "points");
    double whole = 0;
    cr_assert_eq(json_array_size(points), count);
    for (size_t i = 0; i < count; i++) {
        const json_t *point = json_array_get(points, i);
        double const theory = real(point, "theory_bytes");
        if (strcmp(text(point, "status"), "oom") == 0) {
            cr_expect_eq(theory, whole, "predicted as if there were no limit");
            cr_expect_eq(integer(point, "floor_bytes"),
                         integer(json_array_get(points, 0), "floor_bytes"));
            continue;
        }
        double const measured = real(point, "peak_bytes");
        cr_expect(fabs(theory - measured) <= 0.01 * measured, "%s: %.0f instead of %.0f",
                  text(point, "variant"), theory, measured);
        whole = i == 0 ? theory : whole;
    }
    json_decref(root);
}

Test(bench_memory, says_what_theory_has_for_every_peak)
{
    expect_theory(0, "--quiet --config job.yaml", 4);
    if (command_has_mpi())
        expect_theory(2, "--quiet --config job.yaml --set ring.head_groups=1", 4);
}

/* Two ranks with buffers, and tensors that are taken after the groups are chosen. */
static const json_t *groups_at(long long limit, const char *groups, json_t **root)
{
    char arguments[256];
    snprintf(arguments, sizeof(arguments),
             "--quiet --config job.yaml --set memory.limit=%lld --set ring.head_groups=%s", limit,
             groups);
    *root = bench(2, arguments, 0);
    return json_array_get(member(*root, "points"), 0);
}

Test(bench_memory, a_limit_decides_head_groups_to_the_byte)
{
    json_t *root;
    if (!command_has_mpi())
        cr_skip_test("no MPI in this build");
    write_config("shape: {seq: 3000, heads: 4, head_dim: 32, dtype: f32}\n"
                 "pattern: {window: {left: 9, right: 9}}\n"
                 "ring: {schedule: direct, layout: contiguous}\n"
                 "memory: {pool: {mode: off}}\n"
                 "compute: {threads: 1}\n"
                 "job: {repeat: 1, warmup: 0}\n");
    long long const needed = integer(groups_at(1 << 30, "2", &root), "peak_bytes");
    json_decref(root);
    cr_expect_eq(integer(groups_at(needed, "auto", &root), "head_groups"), 2);
    json_decref(root);
    const json_t *point = groups_at(needed - 1, "auto", &root);
    cr_expect_eq(integer(point, "head_groups"), 4);
    cr_expect_lt(integer(point, "peak_bytes"), needed);
    json_decref(root);
}

static long long of_cache(const json_t *point, const char *name)
{
    json_t *value = member(member(point, "pattern_cache"), name);
    cr_assert(json_is_integer(value), "%s is no integer", name);
    return (long long)json_integer_value(value);
}

/* One process, one cache: what the first points have made, later ones find; and every point's
   ledger holds what is kept while it runs. */
static void check_cache(json_t *root, int ranks, int found_from)
{
    json_t *points = member(root, "points");
    cr_assert_eq(json_array_size(points), 4);
    for (int i = 0; i < 4; i++) {
        json_t *point = json_array_get(points, (size_t)i);
        long long const misses = of_cache(point, "misses"), hits = of_cache(point, "hits");
        cr_expect_str_eq(text(point, "status"), "ok");
        cr_expect_eq(hits > 0, i >= found_from, "point %d: %lld hits", i, hits);
        cr_expect_eq(misses > 0, i < found_from, "point %d: %lld misses", i, misses);
        cr_expect_geq(hits + misses, ranks);
        bool const kept = i + 1 >= found_from;
        cr_expect_eq(of_cache(point, "bytes") > 0, kept, "point %d", i);
        cr_expect_eq(of_cache(point, "entries") > 0, kept, "point %d", i);
        cr_expect_eq(json_integer_value(member(member(point, "memory_bytes"), "pattern_cache")) > 0,
                     kept);
    }
    json_decref(root);
}

#define SEEDS                                                                                      \
    "shape: {seq: 500, heads: 2, head_dim: 16, dtype: f32}\npattern: {causal: true}\n"             \
    "job: {repeat: 1, warmup: 0, backward: true, verify: true}\nsweep: {job.seed: [1, 2, 3, 4]}\n"

Test(bench_memory, points_find_the_tile_maps_of_points_before)
{
    write_config(SEEDS);
    check_cache(bench(0, "--config job.yaml", 0), 1, 2);
    check_cache(bench(0, "--config job.yaml --set memory.pattern_cache.mode=eager", 0), 1, 1);
    json_t *root = bench(0, "--config job.yaml --set ring.variant=base", 0);
    for (size_t i = 0; i < 4; i++) {
        json_t *point = json_array_get(member(root, "points"), i);
        cr_expect_str_eq(text(member(point, "pattern_cache"), "mode"), "off");
        cr_expect_eq(of_cache(point, "misses"), 0);
        cr_expect_eq(json_integer_value(member(member(point, "memory_bytes"), "pattern_cache")), 0);
    }
    json_decref(root);
}

Test(bench_memory, ranks_find_their_own_tile_maps)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    write_config(SEEDS);
    check_cache(bench(3, "--config job.yaml --quiet", 0), 3, 2);
}

/* A point without a cache, or with another one, finds nothing and holds nothing of the others. */
Test(bench_memory, a_cache_belongs_to_points_that_ask_for_the_same)
{
    write_config("shape: {seq: 500, heads: 2, head_dim: 16, dtype: f32}\n"
                 "job: {repeat: 1, warmup: 0}\n"
                 "memory: {pattern_cache: {mode: eager}}\n"
                 "sweep: {memory.pattern_cache.mode: [eager, eager, off, eager]}\n");
    static const int hits[] = {0, 1, 0, 0}, kept[] = {1, 1, 0, 1};
    json_t *root = bench(0, "--config job.yaml", 0);
    for (size_t i = 0; i < 4; i++) {
        json_t *point = json_array_get(member(root, "points"), i);
        cr_expect_eq(of_cache(point, "hits"), hits[i], "point %zu", i);
        cr_expect_eq(of_cache(point, "entries"), kept[i], "point %zu", i);
    }
    json_decref(root);
}
