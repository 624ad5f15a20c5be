/* Two rings that use one kernel in turns, where the kernel keeps something from pass to pass. */
#include "ringattn/ring.h"
#include "support/captured_log.h"
#include "support/poison_suite.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(two_rings, .init = poison_suite_begin, .fini = poison_suite_end);

enum { SEQ = 40, DIM = 8, ELEMENTS = SEQ * DIM };

typedef struct job {
    float in[4][ELEMENTS], out[4][ELEMENTS], lse[SEQ];
    ra_ring *ring;
    ra_ring_tensors tensors;
} job;

static ra_pattern *pattern;
static ra_comm *comm;
static ra_kernel kernel;

static void begin(job *j, int number)
{
    ra_ring_config const config = {.batch = 1,
                                   .seq = SEQ,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .dim = DIM,
                                   .dtype = RA_F32,
                                   .layout = RA_LAYOUT_AUTO,
                                   .schedule = RA_SCHEDULE_AUTO,
                                   .backward = true};
    for (int i = 0; i < 4; ++i)
        for (int x = 0; x < ELEMENTS; ++x)
            j->in[i][x] = (float)((x * (7 + 4 * number) + i) % 13 - 6) / 8;
    j->tensors = (ra_ring_tensors){.q = j->in[0],
                                   .k = j->in[1],
                                   .v = j->in[2],
                                   .dout = j->in[3],
                                   .out = j->out[0],
                                   .lse = j->lse,
                                   .dq = j->out[1],
                                   .dk = j->out[2],
                                   .dv = j->out[3]};
    cr_assert_eq(ra_ring_create(&config, pattern, comm, &kernel, pool, pool, &j->ring), RA_OK);
}

static void take_kernel(void)
{
    ra_pattern_config const dense = ra_pattern_config_dense();
    ra_kernel_use const use = {.dtype = RA_F32, .dim = DIM, .backward = true, .threads = 1};
    if (ra_kernel_standard() == NULL)
        cr_skip_test("no OpenBLAS");
    cr_assert_eq(ra_comm_create_self(1000, &comm), RA_OK);
    cr_assert_eq(ra_pattern_create(&dense, SEQ, 1, pool, &pattern), RA_OK);
    cr_assert_eq(ra_kernel_init(ra_kernel_standard(), &use, pool, &kernel), RA_OK);
}

static void give_kernel(void)
{
    ra_kernel_fini(&kernel);
    ra_pattern_destroy(pattern);
    ra_comm_destroy(comm);
}

/* Its matrices are gone, and those that are kept have the same numbers: it must not take them. */
Test(two_rings, one_cannot_go_backward_over_the_others_forward_pass)
{
    static job jobs[2];
    static float want[4][ELEMENTS];
    captured_log said;
    take_kernel();
    for (int i = 0; i < 2; ++i)
        begin(&jobs[i], i);
    job *const a = &jobs[0], *const b = &jobs[1];
    cr_assert_eq(ra_ring_forward(b->ring, &b->tensors), RA_OK);
    cr_assert_eq(ra_ring_backward(b->ring, &b->tensors), RA_OK);
    memcpy(want, b->out, sizeof(want));

    captured_log_begin(&said);
    cr_assert_eq(ra_ring_forward(a->ring, &a->tensors), RA_OK);
    cr_assert_eq(ra_ring_forward(b->ring, &b->tensors), RA_OK);
    cr_expect_eq(ra_ring_backward(a->ring, &a->tensors), RA_ERR_INVALID);
    cr_expect_eq(said.count, 1);
    cr_expect_not_null(strstr(said.line, "of another ring"), "%s", said.line);
    memset(b->out[1], 0xff, 3 * sizeof(b->out[1]));
    cr_expect_eq(ra_ring_backward(b->ring, &b->tensors), RA_OK);
    cr_expect_eq(memcmp(want, b->out, sizeof(want)), 0, "the other's are as if it were alone");
    for (int i = 0; i < 2; ++i)
        ra_ring_destroy(jobs[i].ring);
    give_kernel();
}

/* Even where it lies at the same address, and has the same shape. */
Test(two_rings, a_later_one_cannot_go_backward_over_the_forward_pass_of_one_that_is_gone)
{
    static job jobs[2];
    captured_log said;
    take_kernel();
    begin(&jobs[0], 0);
    cr_assert_eq(ra_ring_forward(jobs[0].ring, &jobs[0].tensors), RA_OK);
    ra_ring_destroy(jobs[0].ring);
    begin(&jobs[1], 1);
    captured_log_begin(&said);
    cr_expect_eq(ra_ring_backward(jobs[1].ring, &jobs[1].tensors), RA_ERR_INVALID);
    cr_expect_eq(said.count, 1);
    cr_expect_not_null(strstr(said.line, "of another ring"), "%s", said.line);
    ra_ring_destroy(jobs[1].ring);
    give_kernel();
}
