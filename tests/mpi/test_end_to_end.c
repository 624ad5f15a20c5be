/*
 * The whole way: a safetensors file in, `mpirun -n R ringattn run`, a safetensors file out, and
 * every element of it against the float64 oracle. Patterns and shapes are drawn at random; every
 * layout meets every schedule on some number of ranks, and so do linear attention's kinds.
 */
#include "support/oracle_linear.h"
#include "support/random_pattern.h"
#include "tool/command_runner.h"
#include "tool/tensor_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

TestSuite(end_to_end, .init = command_folder_make, .fini = command_folder_remove);

enum { LAYOUTS = 5, SCHEDULES = 4, RANK_COUNTS = 5, YAML_BYTES = 8192 };

static const char *const layouts[LAYOUTS] = {"contiguous", "zigzag", "striped", "balanced", "auto"};
static const char *const schedules[SCHEDULES] = {"ring", "direct", "shared", "auto"};
static const int rank_counts[RANK_COUNTS] = {1, 2, 3, 4, 8};

typedef struct job {
    ra_linear_kind kind;
    bool backward;
    oracle_shape shape;
    ra_dtype dtype;
    double dout_factor;
    test_pattern pattern; /* of softmax attention */
    char yaml[YAML_BYTES];
    size_t yaml_bytes;
    /* q, k, v, do: as the file holds them, and as float64. */
    void *stored[4];
    double *values[4];
    int64_t wide, narrow, lines; /* elements of q, of k, of lse */
    char about[160];
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

static const char *const dtype_texts[] = {[RA_F32] = "F32", [RA_F16] = "F16", [RA_BF16] = "BF16"};

static bool is_narrow(int tensor)
{
    return tensor == 1 || tensor == 2;
}

static const char *path_in_folder(const char *name)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s", command_folder, name);
    return path;
}

static void write_inputs(const job *j)
{
    static const char *const names[] = {"q", "k", "v", "do"};
    const oracle_shape *s = &j->shape;
    int64_t const pairs[] = {j->pattern.config.block_pair_count, 2};
    ra_tensor_info infos[5];
    const void *data[5];
    for (int i = 0; i < 4; ++i) {
        int64_t const shape[] = {s->batch, s->n, is_narrow(i) ? s->kv_heads : s->heads, s->dim};
        infos[i] = describe(names[i], dtype_texts[j->dtype], 4, shape);
        data[i] = j->stored[i];
    }
    infos[4] = describe("blocks", "I32", 2, pairs);
    data[4] = j->pattern.pairs;
    write_tensors(path_in_folder("in.safetensors"), infos, data,
                  j->pattern.config.blocks_kind == RA_BLOCKS_LIST ? 5 : 4);
}

static void draw_tensors(job *j, test_rng *rng)
{
    const oracle_shape *s = &j->shape;
    j->lines = s->batch * s->n * s->heads;
    j->wide = j->lines * s->dim;
    j->narrow = s->batch * s->n * s->kv_heads * s->dim;
    for (int i = 0; i < 4; ++i) {
        int64_t const count = is_narrow(i) ? j->narrow : j->wide;
        j->stored[i] = malloc((size_t)count * sizeof(float));
        j->values[i] = malloc((size_t)count * sizeof(double));
        oracle_fill(&rng->state, j->dtype, i == 3 ? j->dout_factor : 1, count, j->stored[i],
                    j->values[i]);
    }
}

static void draw_job(job *j, test_rng *rng, int layout, int schedule)
{
    int32_t const kv = (int32_t)test_rng_between(rng, 1, 3);
    int64_t const seq = test_rng_between(rng, 1, test_rng_chance(rng, 0.2) ? 9 : 200);
    j->backward = true;
    j->shape = (oracle_shape){.batch = test_rng_between(rng, 1, 2),
                              .n = seq,
                              .heads = kv * (int32_t)test_rng_between(rng, 1, 3),
                              .kv_heads = kv,
                              .dim = (int32_t)test_rng_between(rng, 1, 80),
                              .scale = test_rng_chance(rng, 0.2) ? 0.25 : 0};
    /* Of a handful of rows, 16-bit errors are luck: their bounds are about many. */
    j->dtype = seq < 16 ? RA_F32 : (ra_dtype)test_rng_between(rng, 0, 2);
    j->dout_factor = test_rng_chance(rng, 0.3) ? 1e-4 : 1;
    test_pattern_draw(rng, seq, &j->pattern);
    add_pattern(j);
    if (j->shape.scale != 0)
        add(j, "shape: {scale: 0.25}\n");
    add(j, "ring: {layout: %s, schedule: %s, comm_buffers: %d", layouts[layout],
        schedules[schedule], (int)test_rng_between(rng, 0, 2));
    if (test_rng_chance(rng, 0.5))
        add(j, ", head_groups: %d",
            test_rng_chance(rng, 0.5) ? (int)test_rng_between(rng, 1, kv)
                                      : j->shape.heads * (int)test_rng_between(rng, 1, 4));
    add(j, "}\n");
    draw_tensors(j, rng);
}

/* Only what is computed in chunks has a backward pass. */
static void draw_linear_job(job *j, test_rng *rng, ra_linear_kind kind, ra_linear_method method,
                            ra_dtype dtype)
{
    int32_t const kv = (int32_t)test_rng_between(rng, 1, 3);
    j->kind = kind;
    j->backward = method == RA_LINEAR_CHUNKED;
    j->dtype = dtype;
    j->dout_factor = 1;
    j->shape = (oracle_shape){.batch = test_rng_between(rng, 1, 2),
                              .n = test_rng_between(rng, 20, 300),
                              .heads = kv * (int32_t)test_rng_between(rng, 1, 3),
                              .kv_heads = kv,
                              .dim = (int32_t)test_rng_between(rng, 1, 80)};
    add(j, "attention: {kind: %s", kind == RA_LINEAR_CAUSAL ? "linear_causal" : "linear");
    if (method != RA_LINEAR_CHUNKED)
        add(j, ", linear_method: %s", ra_linear_method_name(method));
    add(j, "}\n");
    draw_tensors(j, rng);
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

/* Of o, dq, dk, dv: what an error is relative to where terms cancel. */
static double floor_of(const job *j, int output)
{
    /* Terms of dq and dk grow with scale * sqrt(dim), which is 1 by default. */
    double const scale = j->shape.scale == 0 ? 1 : j->shape.scale * sqrt((double)j->shape.dim);
    if (j->kind != RA_LINEAR_NONE)
        return is_narrow(output) ? 0.05 : 1e-9;
    return output == 0 ? 0 : (j->dtype == RA_F32 ? 0.25 : 0.05) * j->dout_factor * fmax(1, scale);
}

static void check_output(const job *j, const ra_tensor_file *file, int output, const double *want)
{
    static const char *const names[] = {"o", "dq", "dk", "dv"};
    int64_t const count = output < 2 ? j->wide : j->narrow;
    if (output > 0 && !j->backward) {
        cr_assert_null(ra_tensor_file_find(file, names[output]), "%s", j->about);
        return;
    }
    void *got = read_output(file, names[output], dtype_texts[j->dtype], count, j->about);
    double const error = oracle_floored_error(j->dtype, got, want, count, floor_of(j, output));
    double const bound =
        output > 0 ? oracle_gradient_bound(j->dtype, j->shape.dim) : oracle_output_bound(j->dtype);
    cr_assert(error <= bound, "%s: %s is off by %g, allowed are %g\n%s", j->about, names[output],
              error, bound, j->yaml);
    free(got);
}

static void check_lse(const job *j, const ra_tensor_file *file, const double *want)
{
    if (j->kind != RA_LINEAR_NONE) {
        cr_expect_null(ra_tensor_file_find(file, "lse"), "%s: it has no lse", j->about);
        return;
    }
    void *lse = read_output(file, "lse", "F32", j->lines, j->about);
    double const error = oracle_max_error(RA_F32, lse, want, j->lines);
    cr_assert(error <= oracle_lse_bound(j->dtype), "%s: lse is off by %g\n%s", j->about, error,
              j->yaml);
    free(lse);
}

static void check_outputs(const job *j)
{
    double *want[5]; /* o dq dk dv lse */
    int64_t const counts[] = {j->wide, j->wide, j->narrow, j->narrow, j->lines};
    for (int i = 0; i < 5; ++i)
        want[i] = malloc((size_t)counts[i] * sizeof(double));
    oracle_inputs const in = {j->values[0], j->values[1], j->values[2],
                              j->backward ? j->values[3] : NULL};
    oracle_outputs const out = {want[0], want[4], want[1], want[2], want[3]};
    if (j->kind == RA_LINEAR_NONE)
        oracle_attend(&j->shape, &j->pattern.config, &in, &out);
    else
        oracle_linear(&j->shape, j->kind == RA_LINEAR_CAUSAL, &in, &out);
    ra_tensor_file *file;
    cr_assert_eq(ra_tensor_file_open(path_in_folder("out.safetensors"), &file), RA_OK, "%s",
                 j->about);
    check_lse(j, file, want[4]);
    for (int i = 0; i < 4; ++i)
        check_output(j, file, i, want[i]);
    ra_tensor_file_close(file);
    for (int i = 0; i < 5; ++i)
        free(want[i]);
}

/* The job is over then. */
static void run_job(job *j, int ranks)
{
    command_result *result = malloc(sizeof(*result));
    char line[160];
    add(j, "compute: {threads: 1}\n");
    write_inputs(j);
    command_file_write("job.yaml", j->yaml, j->yaml_bytes);
    snprintf(line, sizeof(line),
             "run --config job.yaml --input in.safetensors --output out.safetensors --verify%s",
             j->backward ? " --backward" : "");
    command_run(result, ranks, line);
    cr_assert_eq(result->code, 0, "%s: exit %d\n%s\n%s\n%s", j->about, result->code, j->yaml,
                 result->out, result->err);
    cr_expect_eq(command_count_lines(result->out, "linear attention"), j->kind != RA_LINEAR_NONE,
                 "%s: %s", j->about, result->out);
    cr_assert_eq(command_folder_entries(), 3, "%s left more than its output", j->about);
    check_outputs(j);
    for (int i = 0; i < 4; ++i) {
        free(j->stored[i]);
        free(j->values[i]);
    }
    free(result);
    free(j);
}

static void run_case(uint64_t seed, int ranks, int layout, int schedule)
{
    job *j = calloc(1, sizeof(*j));
    test_rng rng = {seed};
    draw_job(j, &rng, layout, schedule);
    snprintf(j->about, sizeof(j->about),
             "seed %llu, %d ranks, %s, %s, seq %lld, %d/%d heads of %d, %s",
             (unsigned long long)seed, ranks, layouts[layout], schedules[schedule],
             (long long)j->shape.n, j->shape.heads, j->shape.kv_heads, j->shape.dim,
             ra_dtype_name(j->dtype));
    run_job(j, ranks == 1 && layout % 2 == 0 ? 0 : ranks);
}

static void run_linear_case(uint64_t seed, int ranks, ra_linear_kind kind, ra_linear_method method,
                            ra_dtype dtype)
{
    job *j = calloc(1, sizeof(*j));
    test_rng rng = {seed};
    draw_linear_job(j, &rng, kind, method, dtype);
    snprintf(j->about, sizeof(j->about), "seed %llu, linear kind %d, %s, %d ranks",
             (unsigned long long)seed, (int)kind, ra_linear_method_name(method), ranks);
    run_job(j, ranks);
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

Test(end_to_end, one_rank_matches_the_oracle, .timeout = 1200)
{
    run_all(0);
}

Test(end_to_end, two_ranks_match_the_oracle, .timeout = 1200)
{
    run_all(1);
}

Test(end_to_end, three_ranks_match_the_oracle, .timeout = 1200)
{
    run_all(2);
}

Test(end_to_end, four_ranks_match_the_oracle, .timeout = 1200)
{
    run_all(3);
}

Test(end_to_end, eight_ranks_match_the_oracle, .timeout = 1200)
{
    run_all(4);
}

Test(end_to_end, linear_attention_of_every_kind_and_method_matches_the_oracle, .timeout = 1200)
{
    static const int counts[] = {0, 2, 3, 4};
    for (int i = 0; i < 4; ++i) {
        uint64_t const seed = 20261121 + 10 * (uint64_t)i;
        int const ranks = counts[i];
        run_linear_case(seed, ranks, RA_LINEAR_BIDIRECTIONAL, RA_LINEAR_CHUNKED, (ra_dtype)(i % 3));
        run_linear_case(seed + 1, ranks, RA_LINEAR_CAUSAL, RA_LINEAR_CHUNKED,
                        (ra_dtype)((i + 1) % 3));
        run_linear_case(seed + 2, ranks, RA_LINEAR_CAUSAL,
                        i % 2 == 0 ? RA_LINEAR_RECURRENT : RA_LINEAR_CUMSUM,
                        (ra_dtype)((i + 2) % 3));
    }
}
