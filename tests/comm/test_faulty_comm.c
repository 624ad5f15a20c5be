/* The wrapper that injects faults keeps the contract while it does not, and releases everybody. */
#include "comm/contract.h"
#include "comm/local_ranks.h"
#include "support/faulty_comm.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdlib.h>

typedef struct sweep {
    int64_t fail_at; /* on rank 1 */
    atomic_int ok_count, fault_count, peer_count;
    uint64_t seed;
} sweep;

static ra_status work(ra_comm *comm)
{
    int const size = ra_comm_size(comm), rank = ra_comm_rank(comm);
    ra_transfer *transfers[2] = {NULL, NULL};
    unsigned char out[2][64] = {{0}}, in[2][64];
    double value = 1;
    float const own = 1;
    float before;
    ra_status status = ra_comm_barrier(comm, "begin");
    for (int i = 0; i < 2 && status == RA_OK; i++) {
        ra_exchange const exchange = {
            "work", i, {(rank + 1) % size, out[i], 64}, {(rank + size - 1) % size, in[i], 64}};
        status = ra_comm_start(comm, &exchange, &transfers[i]);
    }
    for (int i = 0; i < 2; i++) { /* also after a failure: every transfer is waited for */
        ra_status const waited = ra_comm_wait(comm, transfers[i]);
        status = status != RA_OK ? status : waited;
    }
    if (status == RA_OK)
        status = ra_comm_reduce_f64(comm, "end", RA_SUM, &value, 1);
    if (status == RA_OK)
        status = ra_comm_exscan_f32(comm, "scan", RA_SCAN_UP, &own, &before, 1);
    return status;
}

static int run_with_fault(ra_comm *inner, void *context)
{
    sweep *const s = context;
    (void)inner;
    int const rank = ra_comm_rank(inner);
    ra_comm *const comm = faulty_comm_create(inner, rank == 1 ? s->fail_at : -1);
    ra_status const status = work(comm);
    if (status == RA_OK)
        s->ok_count++;
    else if (status == FAULTY_COMM_STATUS && rank == 1)
        s->fault_count++;
    else if (status == RA_ERR_PEER && rank != 1)
        s->peer_count++;
    if (status != RA_OK)
        ra_comm_abort(comm, 5);
    /* local_ranks_run destroys `inner`: only the wrapper's own shell goes here. */
    free(comm);
    return 0;
}

Test(faulty, releases_every_rank_wherever_one_fails)
{
    int64_t fail_at = 0;
    for (;; fail_at++) {
        sweep s = {.fail_at = fail_at};
        contract_capture_log();
        local_ranks_run(4, 600000, run_with_fault, &s);
        cr_assert_eq(contract_count_lines("", ""), 0);
        if (s.ok_count == 4)
            break;
        cr_assert_eq(s.fault_count, 1, "fault %lld", (long long)fail_at);
        cr_assert_eq(s.ok_count + s.peer_count, 3, "fault %lld", (long long)fail_at);
    }
    /* barrier, two starts, two waits, one reduction; the scan receives, and sends: twice two */
    cr_expect_eq(fail_at, 10);
}

Test(faulty, keeps_the_contract_without_a_fault)
{
    ra_comm *inner = NULL;
    cr_assert_eq(ra_comm_create_self(60000, &inner), RA_OK);
    ra_comm *const comm = faulty_comm_create(inner, -1);
    cr_expect_eq(contract_run_healthy(comm, 99), 0);
    cr_expect_gt(faulty_comm_operation_count(comm), 100);
    ra_comm_destroy(comm);
}
