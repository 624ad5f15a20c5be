/* A small job on ranks with stand-in GPUs, for sweeps over failures: it ends, whatever fails. */
#ifndef RINGATTN_TEST_DEVICE_FAILURES_H
#define RINGATTN_TEST_DEVICE_FAILURES_H

#include "comm/device_ranks.h"

typedef struct device_outcome {
    int ok, failed; /* ranks */
    int wrong;      /* claims that did not hold */
} device_outcome;

/** Two ranks exchange messages in device memory, two exchanges in flight, and a collective. */
device_outcome device_job_run(device_maker *make, size_t piece_bytes, int64_t timeout_ms);

/** The contract's failing cases, on 1 to 3 ranks each; what a rank finds wrong fails the test. */
void device_contract_break(device_maker *make, size_t piece_bytes);

#endif
