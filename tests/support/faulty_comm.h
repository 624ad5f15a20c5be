/*
 * A communicator that fails on purpose: it wraps another and lets one operation (start, wait or a
 * collective) fail, as if that rank had lost its network there.
 */
#ifndef RINGATTN_TEST_FAULTY_COMM_H
#define RINGATTN_TEST_FAULTY_COMM_H

#include "ringattn/comm.h"

/* What the failing operation returns; the rank has logged nothing. */
#define FAULTY_COMM_STATUS RA_ERR_TIMEOUT

/**
 * Wrap `inner`, which is then destroyed with the wrapper. The operation of number `fail_at`
 * (from 0; negative: none) fails: `inner` is aborted, so that the other ranks are released, and
 * everything later returns RA_ERR_PEER. For a sweep, raise fail_at until the job succeeds.
 *
 * @return NULL where there is no memory
 */
ra_comm *faulty_comm_create(ra_comm *inner, int64_t fail_at);

/** Operations begun so far. */
int64_t faulty_comm_operation_count(const ra_comm *comm);

#endif
