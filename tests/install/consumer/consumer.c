/* Scores {0, ln 3} weigh values {4, 8} as 1:3: the second of two causal tokens attends to 7. */
#include <math.h>
#include <ringattn/ring.h>
#include <stdio.h>

static const float query[2] = {1, 1}, key[2] = {0, 1.0986123f}, value[2] = {4, 8};

int main(void)
{
    ra_pattern_config pattern_config = ra_pattern_config_dense();
    ra_ring_config const config = {.batch = 1,
                                   .seq = 2,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .dim = 1,
                                   .dtype = RA_F32,
                                   .layout = RA_LAYOUT_AUTO,
                                   .schedule = RA_SCHEDULE_AUTO};
    ra_ledger *ledger;
    ra_pool *pool;
    ra_comm *comm;
    ra_pattern *pattern;
    ra_kernel kernel;
    ra_ring *ring;
    float out[2] = {0};
    pattern_config.causal = true;
    if (ra_ledger_create(1 << 28, &ledger) != RA_OK ||
        ra_pool_create(&(ra_pool_config){.memory = ra_memory_host(), .ledger = ledger}, &pool) !=
            RA_OK ||
        ra_comm_create_self(1000, &comm) != RA_OK ||
        ra_pattern_create(&pattern_config, 2, 1, pool, &pattern) != RA_OK ||
        ra_kernel_init(ra_kernel_cpu(RA_ISA_AUTO), &(ra_kernel_use){.dim = 1, .threads = 1}, pool,
                       &kernel) != RA_OK ||
        ra_ring_create(&config, pattern, comm, &kernel, pool, pool, &ring) != RA_OK ||
        ra_ring_forward(ring, &(ra_ring_tensors){.q = query, .k = key, .v = value, .out = out}) !=
            RA_OK)
        return 2;
    printf("%g %g\n", (double)out[0], (double)out[1]);
    ra_ring_destroy(ring);
    ra_kernel_fini(&kernel);
    ra_pattern_destroy(pattern);
    ra_comm_destroy(comm);
    ra_pool_destroy(pool);
    ra_ledger_destroy(ledger);
    return fabsf(out[0] - 4) < 1e-5f && fabsf(out[1] - 7) < 1e-5f ? 0 : 1;
}
