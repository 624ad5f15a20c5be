/*
 * Ranks that share 1,000 tokens: alone, or under mpirun. Scores are 0, so a token's output is the
 * mean of what it sees: with value j for token j, token i attends to i / 2.
 */
#include <math.h>
#include <ringattn/ring.h>
#include <stdio.h>
#include <stdlib.h>

enum { SEQ = 1000 };

/* What every rank has for itself; `comm` is made first. */
typedef struct job {
    ra_ledger *ledger;
    ra_pool *pool;
    ra_comm *comm;
    ra_pattern *pattern;
    ra_kernel kernel;
    ra_ring *ring;
} job;

static ra_status begin(job *j, const ra_ring_config *config)
{
    ra_pattern_config mask = ra_pattern_config_dense();
    ra_kernel_use const use = {.dtype = config->dtype, .dim = config->dim, .threads = 1};
    mask.causal = true;
    ra_status status = ra_ledger_create(1 << 28, &j->ledger); /* at most 256 MiB on each rank */
    if (status == RA_OK)
        status = ra_pool_create(&(ra_pool_config){.memory = ra_memory_host(), .ledger = j->ledger},
                                &j->pool);
    if (status == RA_OK)
        status = ra_pattern_create(&mask, config->seq, config->heads, j->pool, &j->pattern);
    if (status == RA_OK)
        status = ra_kernel_init(ra_kernel_cpu(RA_ISA_AUTO), &use, j->pool, &j->kernel);
    if (status == RA_OK)
        status =
            ra_ring_create(config, j->pattern, j->comm, &j->kernel, j->pool, j->pool, &j->ring);
    return status;
}

/* The ring says which rows are this rank's, and where keys and values must lie, if anywhere. */
static ra_status attend(const job *j, int *wrong_out)
{
    const ra_rowset *const rows = ra_ring_rows(j->ring);
    ra_ring_keys const place = ra_ring_key_memory(j->ring);
    size_t const n = (size_t)rows->row_count;
    float *const q = calloc(4 * n + 1, sizeof(*q)); /* and the other three behind it */
    if (q == NULL)
        return RA_ERR_NO_MEMORY;
    float *const k = place.k != NULL ? place.k : q + n;
    float *const v = place.v != NULL ? place.v : q + 2 * n;
    float *const out = q + 3 * n;
    for (size_t i = 0; i < n; i++) {
        k[i] = 0;
        v[i] = (float)ra_rowset_global(rows, (int64_t)i);
    }
    ra_ring_tensors const tensors = {.q = q, .k = k, .v = v, .out = out};
    ra_status const status = ra_ring_forward(j->ring, &tensors);
    for (size_t i = 0; i < n && status == RA_OK; i++) {
        float const want = (float)ra_rowset_global(rows, (int64_t)i) / 2;
        *wrong_out += !(fabsf(out[i] - want) <= 1e-5f * SEQ);
    }
    free(q);
    return status;
}

int main(int argc, char **argv)
{
    ra_ring_config const config = {.batch = 1,
                                   .seq = SEQ,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .dim = 1,
                                   .dtype = RA_F32,
                                   .layout = RA_LAYOUT_AUTO,
                                   .schedule = RA_SCHEDULE_AUTO,
                                   .comm_buffers = 2};
    job j = {0};
    int wrong = 0;
    ra_status status = ra_comm_has_mpi() ? ra_comm_create_mpi(&argc, &argv, 60000, &j.comm)
                                         : ra_comm_create_self(60000, &j.comm);
    if (status != RA_OK)
        return 2; /* the library has logged why, here as below */
    status = begin(&j, &config);
    if (status == RA_OK)
        status = attend(&j, &wrong);
    if (status != RA_OK)
        ra_comm_abort(j.comm, 2); /* others may wait for this rank */
    else
        printf("rank %d of %d: %lld rows, %d wrong\n", ra_comm_rank(j.comm), ra_comm_size(j.comm),
               (long long)ra_ring_rows(j.ring)->row_count, wrong);
    ra_ring_destroy(j.ring);
    ra_kernel_fini(&j.kernel);
    ra_pattern_destroy(j.pattern);
    ra_comm_destroy(j.comm);
    ra_pool_destroy(j.pool);
    ra_ledger_destroy(j.ledger);
    return status != RA_OK ? 2 : wrong != 0;
}
