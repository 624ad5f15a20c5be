#include "tool/verify_job.h"

#include "comm/local_ranks.h"
#include "support/oracle_linear.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

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

void verify_job_open(verify_job *job)
{
    cr_assert_eq(ra_tensor_source_open(&job->config, pool, 1, &job->source), RA_OK, "%s",
                 said.line);
    if (job->config.kv_heads == 0)
        job->config.kv_heads = job->config.heads;
    cr_assert_eq(ra_pattern_create(&job->config.pattern, job->config.seq, job->config.heads, pool,
                                   &job->pattern),
                 RA_OK, "%s", said.line);
    compute(job);
}

void verify_job_close(verify_job *job)
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
    job->status[rank] = ra_verify(c, job->pattern, comm, job->source, !job->inputs_nonfinite, rows,
                                  &results, work, &job->errors[rank]);
    free(work);
    for (int i = 0; i < 5; ++i)
        free(part[i]);
    return 0;
}

ra_errors verify_job_run(verify_job *job, int ranks)
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
