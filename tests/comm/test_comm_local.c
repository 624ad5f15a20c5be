/* The contract on threads of one process. */
#include "comm/contract.h"
#include "comm/local_ranks.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

static int run_healthy(ra_comm *comm, void *context)
{
    return contract_run_healthy(comm, *(const uint64_t *)context);
}

Test(local, keeps_the_contract_on_1_to_8_ranks)
{
    for (int ranks = 1; ranks <= 8; ranks++) {
        uint64_t seed = 1000 + (uint64_t)ranks;
        cr_expect_eq(local_ranks_run(ranks, 60000, run_healthy, &seed), 0, "%d ranks", ranks);
    }
}

static int run_case(ra_comm *comm, void *context)
{
    return ((const contract_case *)context)->body(comm);
}

Test(local, fails_as_the_contract_says)
{
    static const int sizes[] = {1, 2, 3, 8};
    contract_capture_log();
    for (int i = 0; i < contract_breaking_count; i++) {
        contract_case broken = contract_breaking[i];
        for (int s = 0; s < 4; s++) {
            if (sizes[s] < broken.ranks_min)
                continue;
            contract_clear_log();
            int const failures = local_ranks_run(sizes[s], 60000, run_case, &broken);
            cr_expect_eq(failures, 0, "%s on %d ranks", broken.name, sizes[s]);
            if (failures > 0)
                contract_print_log();
        }
    }
}

static int disagree(ra_comm *comm, void *context)
{
    int64_t value = ra_comm_rank(comm);
    (void)context;
    ra_status const status = ra_comm_rank(comm) == 2
                                 ? ra_comm_barrier(comm, "resting")
                                 : ra_comm_reduce_i64(comm, "counting", RA_SUM, &value, 1);
    return status != RA_ERR_PEER;
}

Test(local, one_rank_says_that_collectives_differ)
{
    contract_capture_log();
    cr_expect_eq(local_ranks_run(4, 60000, disagree, NULL), 0);
    cr_expect_eq(contract_count_lines("met another collective (rank ", ", from rank "), 1);
    cr_expect_eq(contract_count_lines("", ""), 1);
}

Test(local, is_destroyed_in_any_order)
{
    static const int orders[][3] = {{0, 1, 2}, {2, 1, 0}, {1, 2, 0}};
    for (int i = 0; i < 3; i++) {
        ra_comm *comms[3];
        cr_assert_eq(ra_comm_create_local(3, 1000, comms), RA_OK);
        for (int k = 0; k < 3; k++)
            ra_comm_destroy(comms[orders[i][k]]);
    }
}

Test(local, is_destroyed_with_transfers_in_flight_once_broken)
{
    unsigned char in[8], out[8] = {0};
    ra_message const recv = {1, in, 8}, send = {1, out, 8};
    ra_exchange const exchange = {"left behind", 0, 1, 1, &send, &recv};
    ra_transfer *transfer = NULL;
    ra_comm *comms[2];
    cr_assert_eq(ra_comm_create_local(2, 1000, comms), RA_OK);
    cr_assert_eq(ra_comm_start(comms[0], &exchange, &transfer), RA_OK);
    ra_comm_abort(comms[0], 5);
    ra_comm_destroy(comms[0]);
    ra_message const back = {0, out, 8};
    ra_exchange const answer = {"to the dead", 0, 1, 0, &back, NULL};
    cr_expect_eq(ra_comm_start(comms[1], &answer, &transfer), RA_ERR_PEER);
    ra_comm_destroy(comms[1]);
}

Test(local, describes_itself)
{
    ra_comm *comms[2];
    cr_assert_eq(ra_comm_create_local(2, 1000, comms), RA_OK);
    cr_expect_str_eq(ra_comm_name(comms[1]), "local");
    cr_expect_eq(ra_comm_rank(comms[1]), 1);
    cr_expect_eq(ra_comm_size(comms[1]), 2);
    cr_expect_eq(ra_comm_local_size(comms[1]), 2);
    ra_comm_destroy(comms[0]);
    ra_comm_destroy(comms[1]);
}
