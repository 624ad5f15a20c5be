#include "support/oracle.h"
#include "support/random_pattern.h"
#include "tool/verify_job.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(verify, .init = fixture_begin, .fini = fixture_end);

static bool within(const ra_errors *errors, const ra_errors *bounds)
{
    return errors->o <= bounds->o && errors->lse <= bounds->lse && errors->dq <= bounds->dq &&
           errors->dk <= bounds->dk && errors->dv <= bounds->dv;
}

/* ---- jobs with given inputs -------------------------------------------------------------------
 */

typedef struct inputs {
    ra_dtype dtype;
    ra_tensor_info infos[4];
    int64_t counts[4];
    double *data[4]; /* q, k, v, do */
} inputs;

/* Normal numbers, plus a mean. */
static inputs inputs_draw(ra_dtype dtype, int64_t seq, int64_t heads, int64_t kv_heads, int64_t dim,
                          const double *means)
{
    static const char *const names[] = {"q", "k", "v", "do"}, *const dtypes[] = {"F32", "F16",
                                                                                 "BF16"};
    inputs in = {.dtype = dtype};
    uint64_t state = 11;
    for (int t = 0; t < 4; ++t) {
        int64_t const shape[] = {1, seq, t == 1 || t == 2 ? kv_heads : heads, dim};
        in.infos[t] = describe(names[t], dtypes[dtype], 4, shape);
        in.counts[t] = shape[1] * shape[2] * shape[3];
        in.data[t] = malloc((size_t)in.counts[t] * sizeof(double));
        void *stored = malloc((size_t)in.counts[t] * sizeof(float));
        oracle_fill(&state, dtype, 1, in.counts[t], stored, in.data[t]);
        free(stored);
        for (int64_t i = 0; i < in.counts[t] && means != NULL; ++i)
            in.data[t][i] += means[t];
    }
    return in;
}

/* Also frees them. A configuration's "input: FILE" is returned. */
static const char *inputs_write(inputs *in)
{
    static char text[160];
    const char *path = in_folder("in");
    void *stored[4];
    for (int t = 0; t < 4; ++t) {
        stored[t] = malloc((size_t)in->counts[t] * sizeof(float));
        for (int64_t i = 0; i < in->counts[t]; ++i)
            ra_dtype_store(in->dtype, stored[t], i, (float)in->data[t][i]);
        free(in->data[t]);
    }
    write_tensors(path, in->infos, (const void *const *)stored, 4);
    for (int t = 0; t < 4; ++t)
        free(stored[t]);
    snprintf(text, sizeof(text), "input: %s", path);
    return text;
}

/* Every row of this job is sampled, and every key: 4 heads of 16 tokens. */
static verify_job small_job(const char *dtype, const char *more)
{
    verify_job job = {.config = parse_config("shape: {seq: 16, heads: 4, kv_heads: 2, head_dim: 8,"
                                             " dtype: %s}\npattern: {causal: true}\n"
                                             "job: {backward: true, %s}",
                                             dtype, more)};
    verify_job_open(&job);
    return job;
}

static inputs small_inputs(ra_dtype dtype, const double *means)
{
    return inputs_draw(dtype, 16, 4, 2, 8, means);
}

typedef enum result { NONE = -1, O, LSE, DQ, DK, DV, RESULTS } result;

/* That just this result is found wrong. */
static void assert_wrong(const ra_errors *errors, const ra_config *config, result wrong)
{
    ra_errors const bounds = ra_error_bounds(config->dtype, config->head_dim);
    double const found[] = {errors->o, errors->lse, errors->dq, errors->dk, errors->dv};
    double const bound[] = {bounds.o, bounds.lse, bounds.dq, bounds.dk, bounds.dv};
    for (int x = 0; x < RESULTS; ++x)
        cr_assert_eq(found[x] <= bound[x], x != (int)wrong, "wrong: %d; result %d: %g", (int)wrong,
                     x, found[x]);
}

/* A job of one head whose results nobody computed: all are 0. */
static verify_job zeros_job(const char *pattern, int seq, int dim)
{
    verify_job job = {.config =
                          parse_config("shape: {seq: %d, heads: 1, head_dim: %d, dtype: f32}\n"
                                       "pattern: {causal: true%s}\njob: {backward: true}",
                                       seq, dim, pattern)};
    size_t const count = (size_t)seq * (size_t)dim;
    job.config.kv_heads = 1;
    cr_assert_eq(ra_tensor_source_open(&job.config, pool, 1, &job.source), RA_OK);
    cr_assert_eq(ra_pattern_create(&job.config.pattern, seq, 1, pool, &job.pattern), RA_OK);
    job.o = calloc(count, sizeof(float));
    job.dq = calloc(count, sizeof(float));
    job.dk = calloc(count, sizeof(float));
    job.dv = calloc(count, sizeof(float));
    job.lse = calloc((size_t)seq, sizeof(float));
    return job;
}

/* ---- right results --------------------------------------------------------------------------- */

Test(verify, exact_results_of_any_pattern_pass, .timeout = 120)
{
    const char *given = getenv("RA_TEST_SEED"); /* others than the usual cases */
    uint64_t const seed = given != NULL ? strtoull(given, NULL, 10) : 20261121;
    test_rng rng = {seed};
    for (int i = 0; i < 120; ++i) {
        int64_t const seq = test_rng_between(&rng, 1, 80);
        int const kv = (int)test_rng_between(&rng, 1, 3);
        verify_job job = {.ranks = (int)test_rng_between(&rng, 1, VERIFY_RANKS_MAX)};
        job.config = parse_config(
            "shape: {batch: %d, seq: %d, heads: %d, kv_heads: %d, head_dim: %d, dtype: %s}\n"
            "job: {backward: true, seed: %d}",
            (int)test_rng_between(&rng, 1, 2), (int)seq, kv * (int)test_rng_between(&rng, 1, 3), kv,
            (int)test_rng_between(&rng, 1, 40),
            ra_dtype_name((ra_dtype)test_rng_between(&rng, 0, 2)), i);
        test_pattern pattern;
        test_pattern_draw(&rng, seq, &pattern);
        if (pattern.config.blocks_kind == RA_BLOCKS_LIST) /* comes from files only */
            pattern.config.blocks_kind = RA_BLOCKS_NONE;
        ra_pattern_config const own = job.config.pattern;
        job.config.pattern = pattern.config;
        verify_job_open(&job);
        ra_errors const errors = verify_job_run(&job, job.ranks);
        ra_errors const bounds = ra_error_bounds(job.config.dtype, job.config.head_dim);
        char text[512];
        test_pattern_print(&pattern.config, text, sizeof(text));
        cr_assert(within(&errors, &bounds), "seed %llu case %d, %s: o %g lse %g dq %g dk %g dv %g",
                  (unsigned long long)seed, i, text, errors.o, errors.lse, errors.dq, errors.dk,
                  errors.dv);
        cr_assert(errors.query_count > 0 && errors.key_count > 0 && errors.skipped_count == 0);
        cr_assert_not(errors.lse_from_run);
        verify_job_close(&job);
        job.config.pattern = own;
        ra_config_fini(&job.config);
    }
}

Test(verify, gradients_are_not_checked_without_backward)
{
    verify_job job = {.config =
                          parse_config("shape: {seq: 20, heads: 2, head_dim: 8, dtype: f32}")};
    verify_job_open(&job);
    ra_errors const errors = verify_job_run(&job, 2);
    cr_assert(errors.o >= 0 && errors.o <= 2e-6 && errors.lse >= 0 && errors.lse <= 1e-5);
    cr_assert_eq(errors.dq, -1);
    cr_assert_eq(errors.dk, -1);
    cr_assert_eq(errors.dv, -1);
    cr_assert_eq(errors.key_count, 0);
    verify_job_close(&job);
    ra_config_fini(&job.config);
}

/* ---- wrong results --------------------------------------------------------------------------- */

Test(verify, one_wrong_element_anywhere_is_found)
{
    verify_job job = small_job("f32", "");
    float *const tensors[] = {job.o, job.lse, job.dq, job.dk, job.dv};
    int const counts[] = {16 * 4 * 8, 16 * 4, 16 * 4 * 8, 16 * 2 * 8, 16 * 2 * 8};
    for (int t = 0; t < 5; ++t)
        for (int i = 0; i < counts[t]; i += t == 1 ? 1 : 7) {
            float const right = tensors[t][i];
            float const wrong[] = {right + 0.01f, NAN, INFINITY};
            for (int w = 0; w < 3; ++w) {
                tensors[t][i] = wrong[w];
                ra_errors const errors = verify_job_run(&job, 1 + i % 3);
                assert_wrong(&errors, &job.config, (result)t);
            }
            tensors[t][i] = right;
        }
    verify_job_close(&job);
    ra_config_fini(&job.config);
}

/* Of more heads than are sampled whole, all have rows that are. */
Test(verify, a_wrong_head_is_found_whichever_it_is)
{
    enum { SEQ = 100, HEADS = 16, KV_HEADS = 8, DIM = 8 };
    verify_job job = {.config = parse_config("shape: {seq: %d, heads: %d, kv_heads: %d, "
                                             "head_dim: %d, dtype: f32}\njob: {backward: true}",
                                             SEQ, HEADS, KV_HEADS, DIM)};
    verify_job_open(&job);
    const struct {
        result which;
        float *data;
        int heads;
    } tensors[] = {
        {O, job.o, HEADS}, {DQ, job.dq, HEADS}, {DK, job.dk, KV_HEADS}, {DV, job.dv, KV_HEADS}};
    for (int t = 0; t < 4; ++t)
        for (int head = 0, heads = tensors[t].heads; head < heads; ++head) {
            float right[SEQ][DIM];
            for (int row = 0; row < SEQ; ++row) {
                float *const at = tensors[t].data + (row * heads + head) * DIM;
                memcpy(right[row], at, sizeof(right[row]));
                at[0] += 1;
            }
            ra_errors const errors = verify_job_run(&job, 1 + head % 3);
            assert_wrong(&errors, &job.config, tensors[t].which);
            for (int row = 0; row < SEQ; ++row)
                memcpy(tensors[t].data + (row * heads + head) * DIM, right[row],
                       sizeof(right[row]));
        }
    verify_job_close(&job);
    ra_config_fini(&job.config);
}

/* So have those whose gradients are too much work to recompute from inputs alone. */
Test(verify, a_wrong_head_is_found_with_what_the_run_left, .timeout = 120)
{
    enum { SEQ = 3600, HEADS = 3, DIM = 2 };
    verify_job job = {.config = parse_config("shape: {seq: %d, heads: %d, kv_heads: %d, "
                                             "head_dim: %d, dtype: f32}\njob: {backward: true}",
                                             SEQ, HEADS, HEADS, DIM)};
    verify_job_open(&job);
    ra_errors const right = verify_job_run(&job, 1);
    cr_assert(right.key_heads == HEADS && right.key_count >= 8 * HEADS);
    cr_assert_eq(right.lse_from_run, 1);
    assert_wrong(&right, &job.config, NONE);
    for (int row = 0; row < SEQ; ++row)
        ((float *)job.dv)[(row * HEADS + HEADS - 1) * DIM] += 1;
    ra_errors const wrong = verify_job_run(&job, 2);
    assert_wrong(&wrong, &job.config, DV);
    verify_job_close(&job);
    ra_config_fini(&job.config);
}

/* Where heads have few samples each, they are not of the same rows. */
Test(verify, a_wrong_row_is_found_whichever_it_is)
{
    enum { SEQ = 100, HEADS = 12, DIM = 8, ROW = HEADS * DIM };
    for (int seed = 0; seed < 3; ++seed) {
        verify_job job = {.config = parse_config("shape: {seq: %d, heads: %d, kv_heads: 2, "
                                                 "head_dim: %d, dtype: f32}\njob: {seed: %d}",
                                                 SEQ, HEADS, DIM, seed)};
        verify_job_open(&job);
        float *const o = job.o;
        for (int row = 0; row < SEQ; ++row) {
            float right[ROW];
            memcpy(right, o + row * ROW, sizeof(right));
            for (int i = 0; i < ROW; ++i)
                o[row * ROW + i] += 1;
            ra_errors const errors = verify_job_run(&job, 1 + row % 3);
            cr_assert_gt(errors.o, 0.01, "seed %d, row %d", seed, row);
            memcpy(o + row * ROW, right, sizeof(right));
        }
        verify_job_close(&job);
        ra_config_fini(&job.config);
    }
}

/*
 * The last token sees all others: of values without a mean its o has a norm of some hundredth of
 * the first one's. The last key is seen once and has next to no gradient: of do with a mean, the
 * first one's dv is thousands of times as large.
 */
Test(verify, first_and_last_rows_count_alike, .timeout = 120)
{
    enum { SEQ = 2048, DIM = 8 };
    static const result results[] = {O, DQ, DK, DV};
    static const double means[2][4] = {{0}, {0, 3, 1, 1}};
    for (int m = 0; m < 2; ++m) {
        inputs in = inputs_draw(RA_BF16, SEQ, 1, 1, DIM, means[m]);
        verify_job job = {.config = parse_config("shape: {seq: %d, heads: 1, head_dim: %d, "
                                                 "dtype: bf16}\npattern: {causal: true}\n"
                                                 "job: {backward: true, %s}",
                                                 SEQ, DIM, inputs_write(&in))};
        verify_job_open(&job);
        ra_errors const fine = verify_job_run(&job, 2);
        assert_wrong(&fine, &job.config, NONE);
        void *const tensors[] = {job.o, job.dq, job.dk, job.dv};
        for (int t = 0; t < 4; ++t)
            for (int end = results[t] == DQ; end < 2; ++end) { /* the first row of dq is 0 */
                uint16_t *const row = (uint16_t *)tensors[t] + (int64_t)end * (SEQ - 1) * DIM;
                uint16_t right[DIM];
                memcpy(right, row, sizeof(right));
                memset(row, 0, sizeof(right));
                ra_errors const errors = verify_job_run(&job, 1 + t);
                assert_wrong(&errors, &job.config, results[t]);
                memcpy(row, right, sizeof(right));
            }
        verify_job_close(&job);
        ra_config_fini(&job.config);
    }
}

/* One of 256 tokens sees anything: of 32 such, and of 64 samples, most are compared. */
Test(verify, samples_are_looked_for_where_few_rows_see_anything, .timeout = 60)
{
    verify_job job = {.config = parse_config("shape: {seq: 8192, heads: 3, head_dim: 4, "
                                             "dtype: f32}\npattern: {dilated: {segments: [8192],"
                                             " rates: [256], heads: grouped}}\n"
                                             "job: {backward: true}")};
    verify_job_open(&job);
    ra_errors const fine = verify_job_run(&job, 2);
    assert_wrong(&fine, &job.config, NONE);
    cr_assert(fine.query_count >= 3 * 16 && fine.key_count >= 3 * 8, "%lld queries, %lld keys",
              (long long)fine.query_count, (long long)fine.key_count);
    ((float *)job.dq)[5] = 1e-3f; /* token 0 of head 1, which sees nothing */
    ra_errors const bad = verify_job_run(&job, 2);
    cr_assert(isinf(bad.dq));
    verify_job_close(&job);
    ra_config_fini(&job.config);
}

/* ---- linear attention ------------------------------------------------------------------------ */

/* As the command does: the pattern of a causal job is causal. */
static verify_job linear_job(const char *kind, int batch, int64_t seq, int heads, int kv_heads,
                             int dim, const char *dtype)
{
    verify_job job = {
        .config = parse_config("shape: {batch: %d, seq: %d, heads: %d, kv_heads: %d, head_dim: %d,"
                               " dtype: %s}\nattention: {kind: %s}\njob: {backward: true}",
                               batch, (int)seq, heads, kv_heads, dim, dtype, kind)};
    job.config.pattern.causal = ra_config_linear(&job.config) == RA_LINEAR_CAUSAL;
    verify_job_open(&job);
    return job;
}

static const char *const linear_kinds[] = {"linear", "linear_causal"};

Test(verify, exact_results_of_linear_attention_pass, .timeout = 60)
{
    test_rng rng = {5};
    for (int i = 0; i < 24; ++i) {
        int const kv = (int)test_rng_between(&rng, 1, 2), ranks = 1 + i % 4;
        verify_job job = linear_job(linear_kinds[i % 2], 2, test_rng_between(&rng, 1, 90),
                                    kv * (int)test_rng_between(&rng, 1, 3), kv,
                                    (int)test_rng_between(&rng, 1, 40),
                                    ra_dtype_name((ra_dtype)test_rng_between(&rng, 0, 2)));
        ra_errors const errors = verify_job_run(&job, ranks);
        ra_errors const bounds = ra_error_bounds(job.config.dtype, job.config.head_dim);
        cr_assert(within(&errors, &bounds), "case %d: o %g dq %g dk %g dv %g", i, errors.o,
                  errors.dq, errors.dk, errors.dv);
        cr_assert(errors.lse == -1 && errors.query_count > 0 && errors.key_count > 0);
        cr_assert_not(errors.lse_from_run);
        verify_job_close(&job);
        ra_config_fini(&job.config);
    }
}

Test(verify, one_wrong_element_of_linear_attention_is_found, .timeout = 60)
{
    for (int kind = 0; kind < 2; ++kind) {
        verify_job job = linear_job(linear_kinds[kind], 2, 8, 2, 1, 8, "f32");
        static const result results[] = {O, DQ, DK, DV};
        float *const tensors[] = {job.o, job.dq, job.dk, job.dv};
        for (int t = 0; t < 4; ++t)
            for (int i = 0; i < 2 * 8 * 8 * (t < 2 ? 2 : 1); i += 5) {
                float const right = tensors[t][i];
                tensors[t][i] = i % 2 == 0 ? right + 0.01f : NAN;
                ra_errors const errors = verify_job_run(&job, 1 + i % 3);
                assert_wrong(&errors, &job.config, results[t]);
                tensors[t][i] = right;
            }
        verify_job_close(&job);
        ra_config_fini(&job.config);
    }
}

/* Where rows are recomputed with the run's o, right results pass and wrong ones do not. */
Test(verify, long_linear_jobs_lean_on_the_runs_own_o, .timeout = 60)
{
    for (int kind = 0; kind < 2; ++kind) {
        verify_job job = linear_job(linear_kinds[kind], 1, 5600, 2, 1, 2, "f32");
        ra_errors const fine = verify_job_run(&job, 1);
        cr_assert(fine.lse_from_run);
        assert_wrong(&fine, &job.config, NONE);
        ((float *)job.dk)[0] += 0.5f; /* the first row is always sampled */
        ra_errors const bad = verify_job_run(&job, 1);
        assert_wrong(&bad, &job.config, DK);
        verify_job_close(&job);
        ra_config_fini(&job.config);
    }
}

/* ---- NaN in the inputs ----------------------------------------------------------------------- */

/* Token 9 of head 0, or kv head 0, is bad: what sees it is skipped, all else still holds. */
Test(verify, rows_that_see_nan_in_the_inputs_are_skipped_and_counted)
{
    /* Queries from token 9 of heads 0 and 1 see key 9; the keys they see are all of kv head 0. */
    static const struct {
        int tensor, element;
        int64_t skipped;
    } cases[] = {{0, 9 * 4 * 8, 1 + 10},
                 {1, 9 * 2 * 8 + 3, 2 * 7 + 16},
                 {2, 9 * 2 * 8 + 3, 2 * 7 + 16},
                 {3, 9 * 4 * 8 + 7, 1 + 10}};
    for (int c = 0; c < 4; ++c) {
        inputs in = small_inputs(RA_F32, NULL);
        in.data[cases[c].tensor][cases[c].element] = NAN;
        verify_job job = small_job("f32", inputs_write(&in));
        job.inputs_nonfinite = true;
        for (int ranks = 1; ranks <= 3; ++ranks) {
            ra_errors const errors = verify_job_run(&job, ranks);
            assert_wrong(&errors, &job.config, NONE);
            cr_assert_eq(errors.skipped_count, cases[c].skipped, "case %d: %lld", c,
                         (long long)errors.skipped_count);
            cr_assert_eq(errors.query_count + errors.key_count + errors.skipped_count,
                         16 * 4 + 16 * 2);
        }
        verify_job_close(&job);
        ra_config_fini(&job.config);
    }
}

/* As if the file had changed since the run read it. */
Test(verify, nan_excuses_nothing_in_inputs_that_the_run_found_finite)
{
    inputs in = small_inputs(RA_F32, NULL);
    in.data[1][9 * 2 * 8 + 3] = NAN;
    verify_job job = small_job("f32", inputs_write(&in));
    for (int ranks = 1; ranks <= 3; ++ranks) {
        ra_errors const errors = verify_job_run(&job, ranks);
        cr_expect(isinf(errors.o) && isinf(errors.dk) && isinf(errors.dv), "%d ranks", ranks);
        cr_expect_gt(errors.skipped_count, 0);
    }
    verify_job_close(&job);
    ra_config_fini(&job.config);
}

/* Some queries see token 0 nearly alone, whose value is zero: of weights of some 1e-20, which are
   all that is left, float32 knows few digits. */
Test(verify, what_tiny_weights_leave_beside_zeros_counts_next_to_nothing)
{
    int changed_count = 0;
    inputs in = small_inputs(RA_F32, NULL);
    for (int d = 0; d < 2 * 8; ++d) {
        in.data[1][d] *= 100;
        in.data[2][d] = 0;
    }
    verify_job job = small_job("f32", inputs_write(&in));
    float *const o = job.o;
    for (int i = 0; i < 16 * 4 * 8; ++i)
        if (o[i] != 0 && fabsf(o[i]) < 1e-15f) {
            o[i] *= 1.5f;
            ++changed_count;
        }
    cr_assert(changed_count > 8);
    ra_errors const errors = verify_job_run(&job, 2);
    assert_wrong(&errors, &job.config, NONE);
    verify_job_close(&job);
    ra_config_fini(&job.config);
}

/* ---- work ------------------------------------------------------------------------------------ */

/* A window makes 60,000 tokens affordable from inputs alone; where all of them see a sampled key,
   the run's lse must do. */
Test(verify, long_jobs_are_sampled_within_bounds, .timeout = 120)
{
    static const char *const patterns[] = {", window: {left: 15}", "",
                                           ", window: {left: 15}, sinks: 1"};
    for (int p = 0; p < 3; ++p) {
        verify_job job = zeros_job(patterns[p], 60000, 4);
        ra_errors const errors = verify_job_run(&job, 1);
        cr_assert_eq(errors.lse_from_run, p > 0);
        cr_assert(errors.query_count >= 8 && errors.query_count <= 64);
        cr_assert(errors.key_count >= 8 && errors.key_count <= 16);
        cr_assert(errors.o > 0.9 && errors.dv > 0.9, "zeros are not the right results");
        verify_job_close(&job);
        ra_config_fini(&job.config);
    }
}

/* The run's own NaN is no excuse where the inputs have none. */
Test(verify, nan_of_the_runs_own_lse_is_an_error)
{
    verify_job job = zeros_job("", 60000, 1);
    job.lse[777] = NAN;
    ra_errors const errors = verify_job_run(&job, 2);
    cr_assert(errors.lse_from_run);
    cr_assert(isinf(errors.dk) && isinf(errors.dv));
    cr_assert_eq(errors.skipped_count, 0);
    verify_job_close(&job);
    ra_config_fini(&job.config);
}

/* A window of one token: dq and dk are zero but for rounding, which must not fail the run. */
Test(verify, gradients_that_cancel_to_zero_are_measured_by_their_terms)
{
    verify_job job = {.config = parse_config("shape: {seq: 16, heads: 2, head_dim: 8, dtype: f32}\n"
                                             "pattern: {window: {left: 0, right: 0}}\n"
                                             "job: {backward: true}")};
    verify_job_open(&job);
    float *dq = job.dq;
    dq[5] = 1e-7f;
    ra_errors const fine = verify_job_run(&job, 2);
    assert_wrong(&fine, &job.config, NONE);
    dq[5] = 1e-2f;
    ra_errors const bad = verify_job_run(&job, 2);
    assert_wrong(&bad, &job.config, DQ);
    verify_job_close(&job);
    ra_config_fini(&job.config);
}

/* Keys with a mean of 30: each term of dq is rounded to bf16 with that mean, which then cancels. */
Test(verify, gradients_of_16_bits_may_be_off_as_their_terms_are)
{
    static const double means[] = {0, 30, 0, 0};
    inputs in = small_inputs(RA_BF16, means);
    verify_job job = small_job("bf16", inputs_write(&in));
    for (int far = 0; far < 2; ++far) {
        for (int i = 0; i < 16 * 4 * 8; ++i) {
            float const dq = ra_dtype_load(RA_BF16, job.dq, i);
            ra_dtype_store(RA_BF16, job.dq, i, dq + (far ? 0.3f : 0.02f));
        }
        ra_errors const errors = verify_job_run(&job, 2);
        assert_wrong(&errors, &job.config, far ? DQ : NONE);
    }
    verify_job_close(&job);
    ra_config_fini(&job.config);
}

/* Of head_dim 1, some rows are next to nothing by chance; the error is not, which is of terms. */
Test(verify, rows_that_cancel_by_chance_do_not_outweigh_the_others)
{
    verify_job job = {.config = parse_config("shape: {seq: 16, heads: 4, head_dim: 1, dtype: f32}\n"
                                             "job: {backward: true}")};
    verify_job_open(&job);
    float *const dv = job.dv;
    double square = 0;
    for (int i = 0; i < 16 * 4; ++i)
        square += (double)dv[i] * (double)dv[i] / (16 * 4);
    for (int i = 0; i < 16 * 4; ++i)
        dv[i] += 1.25e-6f * (float)sqrt(square);
    ra_errors const fine = verify_job_run(&job, 2);
    assert_wrong(&fine, &job.config, NONE);
    for (int i = 0; i < 16 * 4; ++i)
        dv[i] += 1.25e-6f * (float)sqrt(square);
    ra_errors const bad = verify_job_run(&job, 2);
    assert_wrong(&bad, &job.config, DV);
    verify_job_close(&job);
    ra_config_fini(&job.config);
}

/* As above, where scores are large: what float32 leaves grows with them, also below 16 bits. */
Test(verify, gradients_of_16_bits_may_be_off_as_float32_is)
{
    verify_job job = {.config = parse_config("shape: {seq: 16, heads: 2, head_dim: 16, "
                                             "dtype: bf16, scale: 300}\n"
                                             "pattern: {window: {left: 0, right: 0}}\n"
                                             "job: {backward: true}")};
    verify_job_open(&job);
    uint16_t *dq = job.dq;
    dq[5] = 0x4000; /* 2, of terms of some 10^4: float32 scores of 10^3 are as much off */
    ra_errors const fine = verify_job_run(&job, 2);
    assert_wrong(&fine, &job.config, NONE);
    dq[5] = 0x4300; /* 128 */
    ra_errors const bad = verify_job_run(&job, 2);
    assert_wrong(&bad, &job.config, DQ);
    verify_job_close(&job);
    ra_config_fini(&job.config);
}

Test(verify, bounds_are_those_of_the_documentation)
{
    cr_assert_eq(ra_error_bounds(RA_F32, 8).o, 2e-6);
    cr_assert_eq(ra_error_bounds(RA_F32, 8).dk, 2e-6);
    cr_assert_eq(ra_error_bounds(RA_F32, 8).lse, 1e-5);
    cr_assert_eq(ra_error_bounds(RA_F16, 15).o, 1e-3);
    cr_assert_eq(ra_error_bounds(RA_F16, 15).dq, 2e-3);
    cr_assert_eq(ra_error_bounds(RA_BF16, 15).dv, 16e-3);
    cr_assert_eq(ra_error_bounds(RA_BF16, 16).dv, 8e-3);
    cr_assert_eq(ra_error_bounds(RA_BF16, 16).lse, 1e-3);
}

/* ---- large numbers --------------------------------------------------------------------------- */

static void multiply(void *values, int count, double factor)
{
    for (int i = 0; i < count; ++i)
        ((float *)values)[i] *= (float)factor;
}

/* Scores of some hundreds have an error of some 1e-5 in float32, and so have weights. */
Test(verify, errors_of_float32_may_grow_with_the_scores)
{
    for (int large = 0; large < 2; ++large)
        for (int far = 0; far < 2; ++far) {
            double const off = far ? 1e-2 : 1e-5;
            inputs in = small_inputs(RA_F32, NULL);
            for (int i = 0; i < in.counts[0]; ++i)
                in.data[0][i] *= large ? 300 : 1;
            verify_job job = small_job("f32", inputs_write(&in));
            multiply(job.o, 16 * 4 * 8, 1 + off);
            multiply(job.dq, 16 * 4 * 8, 1 + off);
            multiply(job.dk, 16 * 2 * 8, 1 + off);
            multiply(job.dv, 16 * 2 * 8, 1 + off);
            for (int i = 0; i < 16 * 4; ++i)
                job.lse[i] += (float)(off * 10);
            ra_errors const errors = verify_job_run(&job, 2);
            ra_errors const bounds = ra_error_bounds(RA_F32, 8);
            bool const allowed = large == 1 && far == 0;
            cr_expect_eq(errors.o <= bounds.o, allowed, "o %g", errors.o);
            cr_expect_eq(errors.lse <= bounds.lse, allowed, "lse %g", errors.lse);
            cr_expect_eq(errors.dq <= bounds.dq, allowed, "dq %g", errors.dq);
            cr_expect_eq(errors.dk <= bounds.dk, allowed, "dk %g", errors.dk);
            cr_expect_eq(errors.dv <= bounds.dv, allowed, "dv %g", errors.dv);
            verify_job_close(&job);
            ra_config_fini(&job.config);
        }
}

/* All keys are one, so that a query's weights are all the same. A score of 8 is usually off by
   three quarters of the bound, but one in six by more than all of it; a weight that is alone is 1.
 */
Test(verify, errors_of_float32_may_be_larger_where_few_weights_make_up_a_row)
{
    static const struct {
        double scores;
        const char *window;
        double off;
        bool o, dv;
    } cases[] = {{1, "left: 0, right: 0", 4e-6, false, false},
                 {8, "left: 0, right: 0", 4e-6, false, true},
                 {8, "left: 0, right: 0", 4e-5, false, false},
                 {8, "left: 1, right: 0", 4e-6, true, true},
                 {8, "left: 1, right: 0", 4e-5, false, false},
                 {8, "left: 15, right: 15", 4e-6, false, false}};
    for (int i = 0; i < 6; ++i) {
        inputs in = small_inputs(RA_F32, NULL);
        for (int x = 0; x < in.counts[0]; ++x)
            in.data[0][x] *= cases[i].scores;
        for (int x = 0; x < in.counts[1]; ++x)
            in.data[1][x] = in.data[1][x % 8];
        verify_job job = {.config =
                              parse_config("shape: {seq: 16, heads: 4, kv_heads: 2, head_dim: 8,"
                                           " dtype: f32}\npattern: {window: {%s}}\n"
                                           "job: {backward: true, %s}",
                                           cases[i].window, inputs_write(&in))};
        verify_job_open(&job);
        multiply(job.o, 16 * 4 * 8, 1 + cases[i].off);
        multiply(job.dv, 16 * 2 * 8, 1 + cases[i].off);
        ra_errors const errors = verify_job_run(&job, 2);
        ra_errors const bounds = ra_error_bounds(RA_F32, 8);
        cr_expect_eq(errors.o <= bounds.o, cases[i].o, "o %g of %d", errors.o, i);
        cr_expect_eq(errors.dv <= bounds.dv, cases[i].dv, "dv %g of %d", errors.dv, i);
        verify_job_close(&job);
        ra_config_fini(&job.config);
    }
}

/* Token 0 of head 0 alone has scores of 1e9: of it, and of the key it sees, nothing is known. */
Test(verify, rows_with_scores_that_float32_cannot_tell_apart_excuse_no_others)
{
    inputs in = small_inputs(RA_F32, NULL);
    for (int d = 0; d < 8; ++d)
        in.data[0][d] *= 1e9;
    verify_job job = small_job("f32", inputs_write(&in));
    static const result results[] = {O, DQ, DK, DV};
    void *const tensors[] = {job.o, job.dq, job.dk, job.dv};
    int const widths[] = {4 * 8, 4 * 8, 2 * 8, 2 * 8};
    ((float *)job.dk)[0] *= 2;
    ra_errors const fine = verify_job_run(&job, 2);
    assert_wrong(&fine, &job.config, NONE);
    cr_expect_eq(fine.blurred_count, 2);
    cr_expect_eq(fine.query_count, 16 * 4 - 1);
    cr_expect_eq(fine.key_count, 16 * 2 - 1);
    for (int t = 0; t < 4; ++t) {
        float *const first = tensors[t], *const other = first + 5 * widths[t], right = *other;
        *other += 0.01f;
        ra_errors const bad = verify_job_run(&job, 3);
        assert_wrong(&bad, &job.config, results[t]);
        *other = right;
        *first = NAN;
        ra_errors const nan = verify_job_run(&job, 3);
        assert_wrong(&nan, &job.config, results[t]);
        *first = 0;
    }
    verify_job_close(&job);
    ra_config_fini(&job.config);
}

Test(verify, lse_is_compared_where_no_row_is)
{
    inputs in = small_inputs(RA_F32, NULL);
    for (int i = 0; i < in.counts[0]; ++i)
        in.data[0][i] *= 1e12;
    verify_job job = small_job("f32", inputs_write(&in));
    double const bound = ra_error_bounds(RA_F32, 8).lse;
    ra_errors const fine = verify_job_run(&job, 2);
    cr_expect_eq(fine.query_count, 0);
    cr_expect_eq(fine.o, -1);
    cr_expect(fine.lse >= 0 && fine.lse <= bound, "%g", fine.lse);
    job.lse[5] = NAN;
    ra_errors const bad = verify_job_run(&job, 2);
    cr_expect(isinf(bad.lse), "%g", bad.lse);
    verify_job_close(&job);
    ra_config_fini(&job.config);
}

Test(verify, infinity_is_right_where_float16_ends)
{
    static const double means[] = {0, 0, 0, 30000};
    inputs in = small_inputs(RA_F16, means);
    verify_job job = small_job("f16", inputs_write(&in));
    uint16_t *const dv = job.dv;
    cr_assert_eq(dv[0], 0x7c00, "the first key's gradient is infinite");
    ra_errors const fine = verify_job_run(&job, 2);
    assert_wrong(&fine, &job.config, NONE);
    dv[0] = 0x7bff; /* 65504 */
    ra_errors const near = verify_job_run(&job, 2);
    assert_wrong(&near, &job.config, DV);
    dv[0] = 0xfc00; /* -Inf */
    ra_errors const bad = verify_job_run(&job, 2);
    assert_wrong(&bad, &job.config, DV);
    verify_job_close(&job);
    ra_config_fini(&job.config);
}
