/*
 * The whole way: a safetensors file in, `mpirun -n R ringattn run`, a safetensors file out, and
 * every element of it against the float64 oracle. Patterns and shapes are drawn at random; every
 * layout meets every schedule on some number of ranks.
 */
#include "support/oracle.h"
#include "support/random_pattern.h"
#include "tool/command_runner.h"
#include "tool/safetensors.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(end_to_end, .init = command_folder_make, .fini = command_folder_remove);

enum { LAYOUTS = 5, SCHEDULES = 4, RANK_COUNTS = 5, YAML_BYTES = 8192 };

static const char *const layouts[LAYOUTS] = {"contiguous", "zigzag", "striped", "balanced", "auto"};
static const char *const schedules[SCHEDULES] = {"ring", "direct", "shared", "auto"};
static const int rank_counts[RANK_COUNTS] = {1, 2, 3, 4, 8};

typedef struct job {
    oracle_shape shape;
    ra_dtype dtype;
    double dout_factor;
    test_pattern pattern;
    int ranks;
    char yaml[YAML_BYTES];
    size_t yaml_bytes;
    /* q, k, v, do: as the file holds them, and as float64. */
    void *stored[4];
    double *values[4];
    int64_t counts[4];
} job;

/* ---- the configuration ----------------------------------------------------------------------- */

static void add(job *j, const char *format, ...) RA_PRINTF(2, 3);

static void add(job *j, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int const length = vsnprintf(j->yaml + j->yaml_bytes, YAML_BYTES - j->yaml_bytes, format, args);
    va_end(args);
    cr_assert(length >= 0 && (size_t)length < YAML_BYTES - j->yaml_bytes);
    j->yaml_bytes += (size_t)length;
}

static void add_list(job *j, const char *name, const int64_t *values, int64_t count)
{
    add(j, "%s: [", name);
    for (int64_t i = 0; i < count; ++i)
        add(j, "%s%lld", i > 0 ? ", " : "", (long long)values[i]);
    add(j, "]");
}

static void add_blocks(job *j)
{
    static const char *const kinds[] = {"",       "local_window", "dilated_sparse", "global_local",
                                        "random", "list"};
    ra_pattern_config *c = &j->pattern.config;
    if (c->block_rate_count == 0)
        c->block_rates = NULL; /* an empty list is not a way to write "no distance" */
    add(j, "  blocks: {size: %lld, kind: %s", (long long)c->block_size, kinds[c->blocks_kind]);
    if (c->blocks_kind == RA_BLOCKS_LOCAL_WINDOW || c->blocks_kind == RA_BLOCKS_GLOBAL_LOCAL)
        add(j, ", width: %lld", (long long)c->block_width);
    if (c->blocks_kind == RA_BLOCKS_GLOBAL_LOCAL)
        add(j, ", globals: %lld", (long long)c->block_globals);
    if (c->blocks_kind == RA_BLOCKS_DILATED_SPARSE && c->block_rates != NULL) {
        add(j, ", ");
        add_list(j, "rates", c->block_rates, c->block_rate_count);
    } else if (c->blocks_kind == RA_BLOCKS_DILATED_SPARSE || c->blocks_kind == RA_BLOCKS_RANDOM) {
        add(j, ", density: %.17g", c->block_density);
    }
    if (c->blocks_kind == RA_BLOCKS_RANDOM)
        add(j, ", seed: %llu", (unsigned long long)c->block_seed);
    add(j, "}\n");
}

static void add_pattern(job *j)
{
    const ra_pattern_config *c = &j->pattern.config;
    bool const window = c->window_left >= 0 || c->window_right >= 0;
    add(j, "pattern:\n  causal: %s\n", c->causal ? "true" : "false");
    if (window)
        add(j, "  window: {left: %lld, right: %lld}\n  sinks: %lld\n", (long long)c->window_left,
            (long long)c->window_right, (long long)c->sinks);
    if (c->documents != NULL) {
        add(j, "  ");
        add_list(j, "documents", c->documents, c->document_count);
        add(j, "\n");
    }
    if (c->blocks_kind != RA_BLOCKS_NONE)
        add_blocks(j);
    if (c->segments != NULL) {
        add(j, "  dilated: {");
        add_list(j, "segments", c->segments, c->branch_count);
        add(j, ", ");
        add_list(j, "rates", c->rates, c->branch_count);
        add(j, ", heads: %s}\n", c->dilated_heads == RA_HEADS_ALL ? "all" : "grouped");
    }
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static const char *dtype_text(ra_dtype dtype)
{
    static const char *const texts[] = {[RA_F32] = "F32", [RA_F16] = "F16", [RA_BF16] = "BF16"};
    return texts[dtype];
}

static ra_tensor_info describe(const char *name, const char *dtype, int dims, int64_t a, int64_t b,
                               int64_t c, int64_t d)
{
    ra_tensor_info info = {.dims = dims, .shape = {a, b, c, d}};
    snprintf(info.name, sizeof(info.name), "%s", name);
    snprintf(info.dtype, sizeof(info.dtype), "%s", dtype);
    return info;
}

static void path_in_folder(const char *name, char path[128])
{
    snprintf(path, 128, "%s/%s", command_folder, name);
}

static void write_inputs(const job *j)
{
    const oracle_shape *s = &j->shape;
    const char *dtype = dtype_text(j->dtype);
    char path[128];
    path_in_folder("in.safetensors", path);
    ra_tensor_info infos[] = {
        describe("q", dtype, 4, s->batch, s->n, s->heads, s->dim),
        describe("k", dtype, 4, s->batch, s->n, s->kv_heads, s->dim),
        describe("v", dtype, 4, s->batch, s->n, s->kv_heads, s->dim),
        describe("do", dtype, 4, s->batch, s->n, s->heads, s->dim),
        describe("blocks", "I32", 2, j->pattern.config.block_pair_count, 2, 0, 0)};
    int const count = j->pattern.config.blocks_kind == RA_BLOCKS_LIST ? 5 : 4;
    ra_tensor_writer *writer;
    ra_file_error error;
    cr_assert_eq(ra_tensor_writer_open(path, "test", true, infos, count, &writer, &error), RA_OK);
    for (int i = 0; i < count; ++i)
        cr_assert_eq(ra_tensor_writer_put(writer, &infos[i], 0,
                                          i < 4 ? j->stored[i] : (const void *)j->pattern.pairs,
                                          (size_t)infos[i].bytes, &error),
                     RA_OK);
    cr_assert_eq(ra_tensor_writer_rename(writer, &error), RA_OK);
    ra_tensor_writer_destroy(writer);
}

static void draw_job(job *j, test_rng *rng, int ranks, int layout, int schedule)
{
    int32_t const kv = (int32_t)test_rng_between(rng, 1, 3);
    int64_t const seq = test_rng_between(rng, 1, test_rng_chance(rng, 0.2) ? 9 : 200);
    j->shape = (oracle_shape){.batch = test_rng_between(rng, 1, 2),
                              .n = seq,
                              .heads = kv * (int32_t)test_rng_between(rng, 1, 3),
                              .kv_heads = kv,
                              .dim = (int32_t)test_rng_between(rng, 1, 80),
                              .scale = test_rng_chance(rng, 0.2) ? 0.25 : 0};
    /* Of a handful of rows, 16-bit errors are luck: their bounds are about many. */
    j->dtype = seq < 16 ? RA_F32 : (ra_dtype)test_rng_between(rng, 0, 2);
    j->dout_factor = test_rng_chance(rng, 0.3) ? 1e-4 : 1;
    j->ranks = ranks;
    test_pattern_draw(rng, seq, &j->pattern);
    add_pattern(j);
    if (j->shape.scale != 0)
        add(j, "shape: {scale: 0.25}\n");
    add(j, "ring: {layout: %s, schedule: %s, comm_buffers: %d", layouts[layout],
        schedules[schedule], (int)test_rng_between(rng, 0, 2));
    if (test_rng_chance(rng, 0.5))
        add(j, ", head_groups: %d", (int)test_rng_between(rng, 1, kv));
    add(j, "}\ncompute: {threads: 1}\n");
    for (int i = 0; i < 4; ++i) {
        int32_t const heads = i == 1 || i == 2 ? kv : j->shape.heads;
        j->counts[i] = j->shape.batch * seq * heads * j->shape.dim;
        j->stored[i] = malloc((size_t)j->counts[i] * sizeof(float));
        j->values[i] = malloc((size_t)j->counts[i] * sizeof(double));
        oracle_fill(&rng->state, j->dtype, i == 3 ? j->dout_factor : 1, j->counts[i], j->stored[i],
                    j->values[i]);
    }
}

/* ---- outputs --------------------------------------------------------------------------------- */

static void *read_output(const ra_tensor_file *file, const char *name, const char *dtype,
                         int64_t count, const char *about)
{
    const ra_tensor_info *info = ra_tensor_file_find(file, name);
    cr_assert_not_null(info, "%s: no %s", about, name);
    cr_assert_str_eq(info->dtype, dtype);
    int64_t elements = 1;
    for (int i = 0; i < info->dims; ++i)
        elements *= info->shape[i];
    cr_assert_eq(elements, count, "%s: %s", about, name);
    void *data = malloc((size_t)info->bytes);
    cr_assert_eq(ra_tensor_read(file, info, 0, data, (size_t)info->bytes), RA_OK);
    return data;
}

static void check_one(const job *j, const ra_tensor_file *file, const char *name, int64_t count,
                      const double *want, bool gradient, const char *about)
{
    void *got = read_output(file, name, dtype_text(j->dtype), count, about);
    /* Terms of dq and dk grow with scale * sqrt(dim), which is 1 by default. */
    double const scale = j->shape.scale == 0 ? 1 : j->shape.scale * sqrt((double)j->shape.dim);
    double const floor = (j->dtype == RA_F32 ? 0.25 : 0.05) * j->dout_factor * fmax(1, scale);
    double const error = oracle_floored_error(j->dtype, got, want, count, gradient ? floor : 0);
    double const bound =
        gradient ? oracle_gradient_bound(j->dtype, j->shape.dim) : oracle_output_bound(j->dtype);
    cr_assert(error <= bound, "%s: %s is off by %g, allowed are %g\n%s", about, name, error, bound,
              j->yaml);
    free(got);
}

static void check_outputs(const job *j, const char *about)
{
    const oracle_shape *s = &j->shape;
    int64_t const lse_count = s->batch * s->heads * s->n;
    double *want[5];
    for (int i = 0; i < 5; ++i)
        want[i] = malloc((size_t)(i == 1 ? lse_count : j->counts[i > 2 ? 1 : 0]) * sizeof(double));
    oracle_attend(s, &j->pattern.config,
                  &(oracle_inputs){j->values[0], j->values[1], j->values[2], j->values[3]},
                  &(oracle_outputs){want[0], want[1], want[2], want[3], want[4]});
    char path[128];
    path_in_folder("out.safetensors", path);
    ra_tensor_file *file;
    cr_assert_eq(ra_tensor_file_open(path, &file), RA_OK, "%s", about);
    void *lse = read_output(file, "lse", "F32", lse_count, about);
    double const lse_error = oracle_max_error(RA_F32, lse, want[1], lse_count);
    cr_assert(lse_error <= oracle_lse_bound(j->dtype), "%s: lse is off by %g\n%s", about, lse_error,
              j->yaml);
    free(lse);
    check_one(j, file, "o", j->counts[0], want[0], false, about);
    check_one(j, file, "dq", j->counts[0], want[2], true, about);
    check_one(j, file, "dk", j->counts[1], want[3], true, about);
    check_one(j, file, "dv", j->counts[1], want[4], true, about);
    ra_tensor_file_close(file);
    for (int i = 0; i < 5; ++i)
        free(want[i]);
}

static void run_case(uint64_t seed, int ranks, int layout, int schedule)
{
    job *j = calloc(1, sizeof(*j));
    command_result *result = malloc(sizeof(*result));
    test_rng rng = {seed};
    char about[160];
    draw_job(j, &rng, ranks, layout, schedule);
    snprintf(about, sizeof(about), "seed %llu, %d ranks, %s, %s, seq %lld, %d/%d heads of %d, %s",
             (unsigned long long)seed, ranks, layouts[layout], schedules[schedule],
             (long long)j->shape.n, j->shape.heads, j->shape.kv_heads, j->shape.dim,
             ra_dtype_name(j->dtype));
    write_inputs(j);
    command_file_write("job.yaml", j->yaml, j->yaml_bytes);
    command_run(result, ranks == 1 && layout % 2 == 0 ? 0 : ranks,
                "run --config job.yaml --input in.safetensors --output out.safetensors"
                " --backward --verify");
    cr_assert_eq(result->code, 0, "%s: exit %d\n%s\n%s\n%s", about, result->code, j->yaml,
                 result->out, result->err);
    cr_assert_eq(command_folder_entries(), 3, "%s left more than its output", about);
    check_outputs(j, about);
    for (int i = 0; i < 4; ++i) {
        free(j->stored[i]);
        free(j->values[i]);
    }
    free(result);
    free(j);
}

/* One CTest entry's worth per number of ranks, so that a failure names it. */
static void run_all(int count)
{
    int const ranks = rank_counts[count];
    const char *given = getenv("RA_TEST_SEED"); /* others than the usual cases */
    uint64_t const seed = given != NULL ? strtoull(given, NULL, 10) : 20261121;
    for (int layout = 0; layout < LAYOUTS; ++layout)
        run_case(seed + (uint64_t)(count * 100 + layout), ranks, layout,
                 (layout + count) % SCHEDULES);
}

Test(end_to_end, one_rank_matches_the_oracle, .timeout = 300)
{
    run_all(0);
}

Test(end_to_end, two_ranks_match_the_oracle, .timeout = 300)
{
    run_all(1);
}

Test(end_to_end, three_ranks_match_the_oracle, .timeout = 300)
{
    run_all(2);
}

Test(end_to_end, four_ranks_match_the_oracle, .timeout = 300)
{
    run_all(3);
}

Test(end_to_end, eight_ranks_match_the_oracle, .timeout = 300)
{
    run_all(4);
}
