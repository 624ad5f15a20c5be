#include "tool/verify.h"

#include "comm/local_ranks.h"
#include "support/oracle_linear.h"
#include "support/random_pattern.h"
#include "tool/tensor_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

TestSuite(verify, .init = fixture_begin, .fini = fixture_end);

enum { RANKS_MAX = 4 };

/* A job whose results are the oracle's, rounded to the dtype. Tensors are of the whole job. */
typedef struct verify_job {
    ra_config config;
    ra_tensor_source *source;
    ra_pattern *pattern;
    int ranks;
    void *o, *dq, *dk, *dv;
    float *lse;
    ra_rowset rows[RANKS_MAX];
    ra_errors errors[RANKS_MAX];
    ra_status status[RANKS_MAX];
} verify_job;

static double *load_whole(const verify_job *job, ra_tensor_name name, int32_t heads)
{
    const ra_config *config = &job->config;
    ra_range const all = {0, 1, config->seq};
    ra_rowset rows;
    cr_assert_eq(ra_rowset_init(pool, &all, 1, &rows), RA_OK);
    int64_t const count = config->batch * config->seq * heads * config->head_dim;
    void *stored = malloc((size_t)count * sizeof(float));
    double *values = malloc((size_t)count * sizeof(double));
    cr_assert_eq(
        ra_tensor_source_read(job->source, config, name, &rows, rows.row_count, NULL, stored, NULL),
        RA_OK);
    for (int64_t i = 0; i < count; ++i)
        values[i] = (double)ra_dtype_load(config->dtype, stored, i);
    free(stored);
    ra_rowset_fini(pool, &rows);
    return values;
}

static void *rounded(ra_dtype dtype, double *values, int64_t count)
{
    void *stored = malloc((size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; ++i)
        ra_dtype_store(dtype, stored, i, (float)values[i]);
    free(values);
    return stored;
}

/* What the oracle says, rounded once: as good as any run can be. */
static void compute(verify_job *job)
{
    const ra_config *c = &job->config;
    int64_t const q_count = c->batch * c->seq * c->heads * c->head_dim;
    int64_t const k_count = c->batch * c->seq * c->kv_heads * c->head_dim;
    int64_t const lse_count = c->batch * c->seq * c->heads;
    double *q = load_whole(job, RA_TENSOR_Q, c->heads),
           *k = load_whole(job, RA_TENSOR_K, c->kv_heads);
    double *v = load_whole(job, RA_TENSOR_V, c->kv_heads);
    double *dout = load_whole(job, RA_TENSOR_DO, c->heads);
    double *out[5] = {calloc((size_t)q_count, 8), calloc((size_t)lse_count, 8),
                      calloc((size_t)q_count, 8), calloc((size_t)k_count, 8),
                      calloc((size_t)k_count, 8)};
    oracle_shape const shape = {c->batch, c->seq, c->heads, c->kv_heads, c->head_dim, c->scale};
    oracle_inputs const in = {q, k, v, dout};
    oracle_outputs const outputs = {out[0], out[1], out[2], out[3], out[4]};
    if (ra_config_linear(c) == RA_LINEAR_NONE)
        oracle_attend(&shape, &c->pattern, &in, &outputs);
    else
        oracle_linear(&shape, ra_config_linear(c) == RA_LINEAR_CAUSAL, &in, &outputs);
    job->o = rounded(c->dtype, out[0], q_count);
    job->lse = rounded(RA_F32, out[1], lse_count);
    job->dq = rounded(c->dtype, out[2], q_count);
    job->dk = rounded(c->dtype, out[3], k_count);
    job->dv = rounded(c->dtype, out[4], k_count);
    free(q);
    free(k);
    free(v);
    free(dout);
}

static void job_open(verify_job *job)
{
    cr_assert_eq(ra_tensor_source_open(&job->config, pool, &job->source), RA_OK, "%s", said.line);
    if (job->config.kv_heads == 0)
        job->config.kv_heads = job->config.heads;
    cr_assert_eq(ra_pattern_create(&job->config.pattern, job->config.seq, job->config.heads, pool,
                                   &job->pattern),
                 RA_OK, "%s", said.line);
    compute(job);
}

static void job_close(verify_job *job)
{
    free(job->o);
    free(job->lse);
    free(job->dq);
    free(job->dk);
    free(job->dv);
    ra_pattern_destroy(job->pattern);
    ra_tensor_source_close(job->source);
}

static void *shard(const ra_rowset *rows, int64_t outer, int64_t seq, size_t width, const void *all)
{
    char *part = malloc((size_t)(outer * rows->row_count) * width + 1);
    for (int64_t o = 0; o < outer; ++o)
        for (int64_t i = 0; i < rows->row_count; ++i)
            memcpy(part + (size_t)(o * rows->row_count + i) * width,
                   (const char *)all + (size_t)(o * seq + ra_rowset_global(rows, i)) * width,
                   width);
    return part;
}

static int verify_rank(ra_comm *comm, void *context)
{
    verify_job *job = context;
    const ra_config *c = &job->config;
    int const rank = ra_comm_rank(comm);
    const ra_rowset *rows = &job->rows[rank];
    size_t const item = ra_dtype_bytes(c->dtype) * (size_t)c->head_dim;
    void *part[5] = {shard(rows, c->batch, c->seq, item * (size_t)c->heads, job->o),
                     shard(rows, c->batch * c->heads, c->seq, sizeof(float), job->lse),
                     shard(rows, c->batch, c->seq, item * (size_t)c->heads, job->dq),
                     shard(rows, c->batch, c->seq, item * (size_t)c->kv_heads, job->dk),
                     shard(rows, c->batch, c->seq, item * (size_t)c->kv_heads, job->dv)};
    ra_result_tensors results = {0}; /* a rank without rows has no memory for them */
    if (rows->row_count > 0) {
        results.o = part[0];
        results.lse = ra_config_linear(c) == RA_LINEAR_NONE ? part[1] : NULL;
    }
    if (rows->row_count > 0 && c->backward) {
        results.dq = part[2];
        results.dk = part[3];
        results.dv = part[4];
    }
    void *work = aligned_alloc(64, ((size_t)ra_verify_bytes(c) + 63) / 64 * 64);
    cr_assert_not_null(work);
    job->status[rank] =
        ra_verify(c, job->pattern, comm, job->source, rows, &results, work, &job->errors[rank]);
    free(work);
    for (int i = 0; i < 5; ++i)
        free(part[i]);
    return 0;
}

/* Verify on `ranks` ranks, every second time with strided rows; all ranks must agree. */
static ra_errors verify(verify_job *job, int ranks)
{
    for (int r = 0; r < ranks; ++r) {
        int64_t const seq = job->config.seq, begin = seq * r / ranks;
        ra_range const rows =
            ranks % 2 == 0 ? (ra_range){r, ranks, r < seq ? (seq - r + ranks - 1) / ranks : 0}
                           : (ra_range){begin, 1, seq * (r + 1) / ranks - begin};
        cr_assert_eq(ra_rowset_init(pool, &rows, 1, &job->rows[r]), RA_OK);
    }
    local_ranks_run(ranks, 30000, verify_rank, job);
    for (int r = 0; r < ranks; ++r) {
        cr_assert_eq(job->status[r], RA_OK, "%s", said.line);
        cr_assert_eq(memcmp(&job->errors[r].o, &job->errors[0].o, 5 * sizeof(double)), 0);
        ra_rowset_fini(pool, &job->rows[r]);
    }
    return job->errors[0];
}

static bool within(const ra_errors *errors, const ra_errors *bounds)
{
    return errors->o <= bounds->o && errors->lse <= bounds->lse && errors->dq <= bounds->dq &&
           errors->dk <= bounds->dk && errors->dv <= bounds->dv;
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
        verify_job job = {.ranks = (int)test_rng_between(&rng, 1, RANKS_MAX)};
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
        job_open(&job);
        ra_errors const errors = verify(&job, job.ranks);
        ra_errors const bounds = ra_error_bounds(job.config.dtype, job.config.head_dim);
        char text[512];
        test_pattern_print(&pattern.config, text, sizeof(text));
        cr_assert(within(&errors, &bounds), "seed %llu case %d, %s: o %g lse %g dq %g dk %g dv %g",
                  (unsigned long long)seed, i, text, errors.o, errors.lse, errors.dq, errors.dk,
                  errors.dv);
        cr_assert(errors.query_count > 0 && errors.key_count > 0 && errors.skipped_count == 0);
        cr_assert_not(errors.lse_from_run);
        job_close(&job);
        job.config.pattern = own;
        ra_config_fini(&job.config);
    }
}

Test(verify, gradients_are_not_checked_without_backward)
{
    verify_job job = {.config =
                          parse_config("shape: {seq: 20, heads: 2, head_dim: 8, dtype: f32}")};
    job_open(&job);
    ra_errors const errors = verify(&job, 2);
    cr_assert(errors.o >= 0 && errors.o <= 2e-6 && errors.lse >= 0 && errors.lse <= 1e-5);
    cr_assert_eq(errors.dq, -1);
    cr_assert_eq(errors.dk, -1);
    cr_assert_eq(errors.dv, -1);
    cr_assert_eq(errors.key_count, 0);
    job_close(&job);
    ra_config_fini(&job.config);
}

/* ---- wrong results --------------------------------------------------------------------------- */

/* Every row of this job is sampled, and every key: 4 heads of 16 tokens. */
static verify_job small_job(const char *more)
{
    verify_job job = {.config = parse_config("shape: {seq: 16, heads: 4, kv_heads: 2, head_dim: 8,"
                                             " dtype: f32}\npattern: {causal: true}\n"
                                             "job: {backward: true%s}",
                                             more)};
    job_open(&job);
    return job;
}

Test(verify, one_wrong_element_anywhere_is_found)
{
    verify_job job = small_job("");
    ra_errors const bounds = ra_error_bounds(RA_F32, 8);
    float *const tensors[] = {job.o, job.lse, job.dq, job.dk, job.dv};
    int const counts[] = {16 * 4 * 8, 16 * 4, 16 * 4 * 8, 16 * 2 * 8, 16 * 2 * 8};
    for (int t = 0; t < 5; ++t)
        for (int i = 0; i < counts[t]; i += t == 1 ? 1 : 7) {
            float const right = tensors[t][i];
            float const wrong[] = {right + 0.01f, NAN, INFINITY};
            for (int w = 0; w < 3; ++w) {
                tensors[t][i] = wrong[w];
                ra_errors const errors = verify(&job, 1 + i % 3);
                double const found[] = {errors.o, errors.lse, errors.dq, errors.dk, errors.dv};
                double const bound[] = {bounds.o, bounds.lse, bounds.dq, bounds.dk, bounds.dv};
                for (int x = 0; x < 5; ++x)
                    cr_assert_eq(found[x] <= bound[x], x != t, "tensor %d element %d as %g: %g", t,
                                 i, (double)wrong[w], found[x]);
            }
            tensors[t][i] = right;
        }
    job_close(&job);
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
    job_open(&job);
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
        ra_errors const errors = verify(&job, ranks);
        ra_errors const bounds = ra_error_bounds(job.config.dtype, job.config.head_dim);
        cr_assert(within(&errors, &bounds), "case %d: o %g dq %g dk %g dv %g", i, errors.o,
                  errors.dq, errors.dk, errors.dv);
        cr_assert(errors.lse == -1 && errors.query_count > 0 && errors.key_count > 0);
        cr_assert_not(errors.lse_from_run);
        job_close(&job);
        ra_config_fini(&job.config);
    }
}

Test(verify, one_wrong_element_of_linear_attention_is_found, .timeout = 60)
{
    for (int kind = 0; kind < 2; ++kind) {
        verify_job job = linear_job(linear_kinds[kind], 2, 8, 2, 1, 8, "f32");
        ra_errors const bounds = ra_error_bounds(RA_F32, 8);
        float *const tensors[] = {job.o, job.dq, job.dk, job.dv};
        for (int t = 0; t < 4; ++t)
            for (int i = 0; i < 2 * 8 * 8 * (t < 2 ? 2 : 1); i += 5) {
                float const right = tensors[t][i];
                tensors[t][i] = i % 2 == 0 ? right + 0.01f : NAN;
                ra_errors const errors = verify(&job, 1 + i % 3);
                double const found[] = {errors.o, errors.dq, errors.dk, errors.dv};
                double const bound[] = {bounds.o, bounds.dq, bounds.dk, bounds.dv};
                for (int x = 0; x < 4; ++x)
                    cr_assert_eq(found[x] <= bound[x], x != t, "kind %d tensor %d element %d: %g",
                                 kind, t, i, found[x]);
                tensors[t][i] = right;
            }
        job_close(&job);
        ra_config_fini(&job.config);
    }
}

/* Where rows are recomputed with the run's o, right results pass and wrong ones do not. */
Test(verify, long_linear_jobs_lean_on_the_runs_own_o, .timeout = 60)
{
    for (int kind = 0; kind < 2; ++kind) {
        verify_job job = linear_job(linear_kinds[kind], 1, 5600, 2, 1, 2, "f32");
        ra_errors const bounds = ra_error_bounds(RA_F32, 8);
        ra_errors const fine = verify(&job, 1);
        cr_assert(fine.lse_from_run);
        cr_assert(within(&fine, &bounds), "o %g dq %g dk %g dv %g", fine.o, fine.dq, fine.dk,
                  fine.dv);
        ((float *)job.dk)[0] += 0.5f; /* the first row is always sampled */
        ra_errors const bad = verify(&job, 1);
        cr_assert(!(bad.dk <= bounds.dk));
        job_close(&job);
        ra_config_fini(&job.config);
    }
}

/* ---- NaN in the inputs ----------------------------------------------------------------------- */

/* An input file of small_job's shape, with NaN in one element of one tensor. */
static void write_with_nan(const char *path, int tensor, int64_t element)
{
    static const char *const names[] = {"q", "k", "v", "do"};
    ra_tensor_info infos[4];
    float *data[4];
    uint64_t state = 11;
    for (int t = 0; t < 4; ++t) {
        int64_t const heads = t == 1 || t == 2 ? 2 : 4, shape[] = {1, 16, heads, 8};
        infos[t] = describe(names[t], "F32", 4, shape);
        data[t] = malloc((size_t)(16 * heads * 8) * sizeof(float));
        oracle_fill(&state, RA_F32, 1, 16 * heads * 8, data[t], NULL);
        if (t == tensor)
            data[t][element] = NAN;
    }
    write_tensors(path, infos, (const void *const *)data, 4);
    for (int t = 0; t < 4; ++t)
        free(data[t]);
}

/* Token 9 of head 0, or kv head 0, is bad: what sees it is skipped, all else still holds. */
Test(verify, rows_that_see_nan_in_the_inputs_are_skipped_and_counted)
{
    char more[160];
    /* Queries from token 9 of heads 0 and 1 see key 9; the keys they see are all of kv head 0. */
    static const struct {
        int tensor, element;
        int64_t skipped;
    } cases[] = {{0, 9 * 4 * 8, 1 + 10},
                 {1, 9 * 2 * 8 + 3, 2 * 7 + 16},
                 {2, 9 * 2 * 8 + 3, 2 * 7 + 16},
                 {3, 9 * 4 * 8 + 7, 1 + 10}};
    for (int c = 0; c < 4; ++c) {
        write_with_nan(in_folder("in"), cases[c].tensor, cases[c].element);
        snprintf(more, sizeof(more), ", input: %s", in_folder("in"));
        verify_job job = small_job(more);
        ra_errors const bounds = ra_error_bounds(RA_F32, 8);
        for (int ranks = 1; ranks <= 3; ++ranks) {
            ra_errors const errors = verify(&job, ranks);
            cr_assert(within(&errors, &bounds), "case %d: o %g lse %g dq %g dk %g dv %g", c,
                      errors.o, errors.lse, errors.dq, errors.dk, errors.dv);
            cr_assert_eq(errors.skipped_count, cases[c].skipped, "case %d: %lld", c,
                         (long long)errors.skipped_count);
            cr_assert_eq(errors.query_count + errors.key_count + errors.skipped_count,
                         16 * 4 + 16 * 2);
        }
        job_close(&job);
        ra_config_fini(&job.config);
    }
}

/* ---- work ------------------------------------------------------------------------------------ */

/* A window makes 60,000 tokens affordable from inputs alone; dense, the run's lse must do. */
Test(verify, long_jobs_are_sampled_within_bounds, .timeout = 120)
{
    for (int dense = 0; dense < 2; ++dense) {
        verify_job job = {0};
        job.config = parse_config("shape: {seq: 60000, heads: 1, head_dim: 4, dtype: f32}\n"
                                  "pattern: {causal: true%s}\njob: {backward: true}",
                                  dense ? "" : ", window: {left: 15}");
        job.config.kv_heads = 1;
        cr_assert_eq(ra_tensor_source_open(&job.config, pool, &job.source), RA_OK);
        cr_assert_eq(ra_pattern_create(&job.config.pattern, job.config.seq, 1, pool, &job.pattern),
                     RA_OK);
        /* Results nobody computed: what is asked is whether verification ends and says so. */
        job.o = calloc(60000 * 4, 4);
        job.dq = calloc(60000 * 4, 4);
        job.dk = calloc(60000 * 4, 4);
        job.dv = calloc(60000 * 4, 4);
        job.lse = calloc(60000, 4);
        ra_errors const errors = verify(&job, 1);
        cr_assert_eq(errors.lse_from_run, dense == 1);
        cr_assert(errors.query_count >= 4 && errors.query_count <= 64);
        cr_assert(errors.key_count >= 2 && errors.key_count <= 16);
        cr_assert(errors.o > 0.9 && errors.dv > 0.9, "zeros are not the right results");
        job_close(&job);
        ra_config_fini(&job.config);
    }
}

/* The run's own NaN is no excuse where the inputs have none. */
Test(verify, nan_of_the_runs_own_lse_is_an_error)
{
    verify_job job = {0};
    job.config = parse_config("shape: {seq: 60000, heads: 1, head_dim: 1, dtype: f32}\n"
                              "pattern: {causal: true}\njob: {backward: true}");
    job.config.kv_heads = 1;
    cr_assert_eq(ra_tensor_source_open(&job.config, pool, &job.source), RA_OK);
    cr_assert_eq(ra_pattern_create(&job.config.pattern, job.config.seq, 1, pool, &job.pattern),
                 RA_OK);
    job.o = calloc(60000, 4);
    job.dq = calloc(60000, 4);
    job.dk = calloc(60000, 4);
    job.dv = calloc(60000, 4);
    job.lse = calloc(60000, 4);
    job.lse[777] = NAN;
    ra_errors const errors = verify(&job, 2);
    cr_assert(errors.lse_from_run);
    cr_assert(isinf(errors.dk) && isinf(errors.dv));
    cr_assert_eq(errors.skipped_count, 0);
    job_close(&job);
    ra_config_fini(&job.config);
}

/* A window of one token: dq and dk are zero but for rounding, which must not fail the run. */
Test(verify, gradients_that_cancel_to_zero_are_measured_by_their_terms)
{
    verify_job job = {.config = parse_config("shape: {seq: 16, heads: 2, head_dim: 8, dtype: f32}\n"
                                             "pattern: {window: {left: 0, right: 0}}\n"
                                             "job: {backward: true}")};
    job_open(&job);
    float *dq = job.dq;
    dq[5] = 1e-7f;
    ra_errors const fine = verify(&job, 2), bounds = ra_error_bounds(RA_F32, 8);
    cr_assert(within(&fine, &bounds), "dq %g dk %g", fine.dq, fine.dk);
    dq[5] = 1e-2f;
    ra_errors const bad = verify(&job, 2);
    cr_assert(!(bad.dq <= bounds.dq), "dq %g", bad.dq);
    job_close(&job);
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
