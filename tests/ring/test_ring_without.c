/* A pass without a tensor that it needs: a bug in the caller, who is stopped with the expression.
 */
#include "ringattn/ring.h"
#include "support/poison_suite.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stddef.h>

TestSuite(ring_without, .init = poison_suite_begin, .fini = poison_suite_end);

enum { SEQ = 40, DIM = 8, ELEMENTS = SEQ * DIM };

static void take_away(ra_ring_tensors *tensors, size_t offset)
{
    *(void **)((char *)tensors + offset) = NULL;
}

/* Both passes, without what has these places in the tensors; -1: all are there. */
static void run(int forward_without, int backward_without)
{
    static float in[4][ELEMENTS], out[4][ELEMENTS], lse[SEQ];
    ra_pattern_config const dense = ra_pattern_config_dense();
    ra_kernel_use const use = {.dtype = RA_F32, .dim = DIM, .backward = true, .threads = 1};
    ra_ring_config const config = {.batch = 1,
                                   .seq = SEQ,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .dim = DIM,
                                   .dtype = RA_F32,
                                   .backward = true};
    ra_ring_tensors const all = {.q = in[0],
                                 .k = in[1],
                                 .v = in[2],
                                 .dout = in[3],
                                 .out = out[0],
                                 .lse = lse,
                                 .dq = out[1],
                                 .dk = out[2],
                                 .dv = out[3]};
    ra_ring_tensors forward = all, backward = all;
    ra_pattern *pattern;
    ra_comm *comm;
    ra_kernel kernel;
    ra_ring *ring;
    if (forward_without >= 0)
        take_away(&forward, (size_t)forward_without);
    if (backward_without >= 0)
        take_away(&backward, (size_t)backward_without);
    cr_assert_eq(ra_comm_create_self(1000, &comm), RA_OK);
    cr_assert_eq(ra_pattern_create(&dense, SEQ, 1, pool, &pattern), RA_OK);
    cr_assert_eq(ra_kernel_init(ra_kernel_cpu(RA_ISA_AUTO), &use, pool, &kernel), RA_OK);
    cr_assert_eq(ra_ring_create(&config, pattern, comm, &kernel, pool, pool, &ring), RA_OK);
    cr_assert_eq(ra_ring_forward(ring, &forward), RA_OK);
    cr_assert_eq(ra_ring_backward(ring, &backward), RA_OK);
    ra_ring_destroy(ring);
    ra_kernel_fini(&kernel);
    ra_pattern_destroy(pattern);
    ra_comm_destroy(comm);
}

#define WITHOUT(tensor) ((int)offsetof(ra_ring_tensors, tensor))

Test(ring_without, forward_needs_neither_lse_nor_dout)
{
    run(WITHOUT(lse), -1);
    run(WITHOUT(dout), -1);
}

Test(ring_without, stops_forward_without_q, .signal = SIGABRT)
{
    run(WITHOUT(q), -1);
}

Test(ring_without, stops_forward_without_v, .signal = SIGABRT)
{
    run(WITHOUT(v), -1);
}

Test(ring_without, stops_forward_without_out, .signal = SIGABRT)
{
    run(WITHOUT(out), -1);
}

Test(ring_without, stops_backward_without_lse, .signal = SIGABRT)
{
    run(-1, WITHOUT(lse));
}

Test(ring_without, stops_backward_without_dk, .signal = SIGABRT)
{
    run(-1, WITHOUT(dk));
}
