/* One ring, pass after pass: what is left of other inputs must not be in the results of the next.
 */
#include "comm/local_ranks.h"
#include "ringattn/ring.h"
#include "support/poison_pool.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(next_inputs, .timeout = 60);

enum { SEQ = 600, DIM = 8, ELEMENTS = SEQ * DIM, OUTPUTS = 4 };

typedef struct one_job {
    const ra_kernel_ops *kernel;
    ra_schedule schedule;
    ra_linear_kind linear;
} one_job;

/* A rank's tensors; keys and values may lie elsewhere. */
typedef struct shard {
    float q[ELEMENTS], k[ELEMENTS], v[ELEMENTS], dout[ELEMENTS];
    float out[OUTPUTS][ELEMENTS], lse[SEQ];
} shard;

static void fill(float *to, const ra_rowset *rows, int which, int number)
{
    for (int64_t r = 0; r < rows->row_count; ++r)
        for (int64_t d = 0, row = ra_rowset_global(rows, r); d < DIM; ++d)
            to[r * DIM + d] = (float)(((row * DIM + d) * (7 + 4 * number) + which) % 13 - 6) / 8;
}

/* Both passes over inputs `number`; with others than the first, forward does not know dout. */
static void both_passes(ra_ring *ring, int number, shard *s)
{
    const ra_rowset *rows = ra_ring_rows(ring);
    ra_ring_keys const keys = ra_ring_key_memory(ring);
    ra_ring_tensors t = {.q = s->q,
                         .k = keys.k != NULL ? keys.k : s->k,
                         .v = keys.v != NULL ? keys.v : s->v,
                         .dout = number == 0 ? s->dout : NULL,
                         .out = s->out[0],
                         .lse = s->lse,
                         .dq = s->out[1],
                         .dk = s->out[2],
                         .dv = s->out[3]};
    fill(s->q, rows, 0, number);
    fill((float *)(uintptr_t)t.k, rows, 1, number);
    fill((float *)(uintptr_t)t.v, rows, 2, number);
    fill(s->dout, rows, 3, number);
    cr_assert_eq(ra_ring_forward(ring, &t), RA_OK);
    t.dout = s->dout;
    cr_assert_eq(ra_ring_backward(ring, &t), RA_OK);
}

/* Inputs [first, end) one after the other, on a ring of their own. */
static void run_inputs(const one_job *job, int first, int end, ra_comm *comm, shard *s)
{
    ra_ring_config const config = {.batch = 1,
                                   .seq = SEQ,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .dim = DIM,
                                   .dtype = RA_F32,
                                   .layout = RA_LAYOUT_AUTO,
                                   .schedule = job->schedule,
                                   .comm_buffers = job->linear == RA_LINEAR_NONE ? 2 : 0,
                                   .linear = job->linear,
                                   .backward = true};
    ra_kernel_use const use = {.dtype = RA_F32, .dim = DIM, .backward = true, .threads = 1};
    ra_pattern_config const dense = ra_pattern_config_dense();
    ra_ledger *ledger;
    ra_pool *pool;
    ra_pattern *pattern;
    ra_kernel kernel;
    ra_ring *ring;
    poison_pool_begin(&ledger, &pool);
    cr_assert_eq(ra_pattern_create(&dense, SEQ, 1, pool, &pattern), RA_OK);
    cr_assert_eq(ra_kernel_init(job->kernel, &use, pool, &kernel), RA_OK);
    cr_assert_eq(ra_ring_create(&config, pattern, comm, &kernel, pool, pool, &ring), RA_OK);
    for (int number = first; number < end; ++number)
        both_passes(ring, number, s);
    ra_ring_destroy(ring);
    ra_kernel_fini(&kernel);
    ra_pattern_destroy(pattern);
    poison_pool_end(ledger, pool);
}

static int compare(ra_comm *comm, void *context)
{
    shard *const both = calloc(2, sizeof(*both));
    cr_assert_not_null(both);
    run_inputs(context, 0, 2, comm, &both[0]);
    run_inputs(context, 1, 2, comm, &both[1]);
    int const differ = memcmp(both[0].out, both[1].out, sizeof(both->out)) != 0 ||
                       memcmp(both[0].lse, both[1].lse, sizeof(both->lse)) != 0;
    free(both);
    return differ;
}

static void expect_same(const one_job *job, const char *what)
{
    for (int ranks = 1; ranks <= 3; ++ranks)
        cr_expect_eq(local_ranks_run(ranks, 30000, compare, (void *)(uintptr_t)job), 0,
                     "%s on %d ranks", what, ranks);
}

Test(next_inputs, give_what_they_give_alone_in_every_schedule)
{
    static const ra_schedule schedules[] = {RA_SCHEDULE_RING, RA_SCHEDULE_DIRECT,
                                            RA_SCHEDULE_SHARED};
    for (int i = 0; i < 3; ++i) {
        one_job const job = {.kernel = ra_kernel_cpu(RA_ISA_AUTO), .schedule = schedules[i]};
        expect_same(&job, ra_schedule_name(schedules[i]));
    }
}

Test(next_inputs, give_what_they_give_alone_with_materialised_scores)
{
    one_job const job = {.kernel = ra_kernel_standard(), .schedule = RA_SCHEDULE_DIRECT};
    if (job.kernel == NULL)
        cr_skip_test("no OpenBLAS");
    expect_same(&job, "standard");
}

/* The states of keys that forward leaves for backward are those of its own inputs. */
Test(next_inputs, give_what_they_give_alone_in_linear_attention)
{
    static const ra_linear_kind kinds[] = {RA_LINEAR_CAUSAL, RA_LINEAR_BIDIRECTIONAL};
    for (int i = 0; i < 2; ++i) {
        one_job const job = {
            .kernel = ra_kernel_cpu(RA_ISA_AUTO), .schedule = RA_SCHEDULE_AUTO, .linear = kinds[i]};
        expect_same(&job, i == 0 ? "causal" : "bidirectional");
    }
}
