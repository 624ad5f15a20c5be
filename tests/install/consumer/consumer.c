/* Scores {0, ln 3} weigh values {4, 8} as 1:3: the second of two causal tokens attends to 7. */
#include <math.h>
#include <ringattn/ring.h>
#include <stdio.h>

/* README.md shows this function, line by line. */
static ra_status attend(const ra_ring_config *config, const ra_ring_tensors *tensors)
{
    ra_pattern_config mask = ra_pattern_config_dense();
    ra_kernel_use const use = {.dtype = config->dtype, .dim = config->dim, .threads = 1};
    ra_ledger *ledger = NULL;
    ra_pool *pool = NULL;
    ra_comm *comm = NULL;
    ra_pattern *pattern = NULL;
    ra_kernel kernel = {0};
    ra_ring *ring = NULL;
    mask.causal = true;
    ra_status status = ra_ledger_create(1 << 28, &ledger); /* at most 256 MiB */
    if (status == RA_OK)
        status =
            ra_pool_create(&(ra_pool_config){.memory = ra_memory_host(), .ledger = ledger}, &pool);
    if (status == RA_OK)
        status = ra_comm_create_self(1000, &comm); /* of one rank, this one */
    if (status == RA_OK)
        status = ra_pattern_create(&mask, config->seq, config->heads, pool, &pattern);
    if (status == RA_OK)
        status = ra_kernel_init(ra_kernel_cpu(RA_ISA_AUTO), &use, pool, &kernel);
    if (status == RA_OK)
        status = ra_ring_create(config, pattern, comm, &kernel, pool, pool, &ring);
    if (status == RA_OK)
        status = ra_ring_forward(ring, tensors);
    ra_ring_destroy(ring);
    ra_kernel_fini(&kernel);
    ra_pattern_destroy(pattern);
    ra_comm_destroy(comm);
    ra_pool_destroy(pool);
    ra_ledger_destroy(ledger);
    return status; /* a failure has been logged */
}

static const float query[2] = {1, 1}, key[2] = {0, 1.0986123f}, value[2] = {4, 8};

int main(void)
{
    ra_ring_config const config = {.batch = 1,
                                   .seq = 2,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .dim = 1,
                                   .dtype = RA_F32,
                                   .layout = RA_LAYOUT_AUTO,
                                   .schedule = RA_SCHEDULE_AUTO};
    float out[2] = {0};
    ra_ring_tensors const tensors = {.q = query, .k = key, .v = value, .out = out};
    if (attend(&config, &tensors) != RA_OK)
        return 2;
    printf("%g %g\n", (double)out[0], (double)out[1]);
    return fabsf(out[0] - 4) < 1e-5f && fabsf(out[1] - 7) < 1e-5f ? 0 : 1;
}
