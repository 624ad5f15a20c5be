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

enum { HOST_RANKS = 5 };

static const int some_hosts[HOST_RANKS] = {0, 1, 0, 2, 0};

/* Every host has a window of its own; its ranks meet in it, and see what the others wrote. */
static int meet_on_hosts(ra_comm *comm, void *context)
{
    int const rank = ra_comm_rank(comm), host = some_hosts[rank];
    ra_window window;
    int failures = ra_comm_hosts(comm)[rank] != host;
    (void)context;
    failures += ra_comm_local_size(comm) != (host == 0 ? 3 : 1);
    if (ra_window_create(comm, HOST_RANKS * sizeof(int) + (size_t)host, &window) != RA_OK)
        return failures + 1;
    int *const seen = window.data;
    for (int round = 0; round < 100; round++) {
        seen[rank] = round + host;
        failures += ra_window_barrier(comm, &window, "written", round) != RA_OK;
        for (int other = 0; other < HOST_RANKS; other++)
            failures += seen[other] != (some_hosts[other] == host ? round + host : 0);
        failures += ra_window_barrier(comm, &window, "read", round) != RA_OK;
    }
    ra_window_destroy(&window);
    return failures;
}

/* Every host hears of its first rank. */
static int hear_of_the_first(ra_comm *comm, void *context)
{
    static const int64_t firsts[] = {100, 101, 103}; /* of ranks 0, 1 and 3 */
    int const rank = ra_comm_rank(comm);
    int64_t value = 100 + rank;
    (void)context;
    ra_status const status = ra_comm_broadcast_by_host(comm, "a number", &value, sizeof(value));
    return status != RA_OK || value != firsts[some_hosts[rank]];
}

/* Rank 2 stays away: the first of its host names it, and the other learns of that; only these wait
   for it. */
static int miss_a_meeting(ra_comm *comm, void *context)
{
    ra_window window;
    int const rank = ra_comm_rank(comm);
    (void)context;
    if (ra_window_create(comm, 1, &window) != RA_OK)
        return 1;
    ra_status status = RA_OK, expected = RA_OK;
    if (rank == 0) {
        ra_comm_set_timeout(comm, 250);
        expected = RA_ERR_TIMEOUT;
    } else if (rank == 4) {
        expected = RA_ERR_PEER;
    }
    if (rank != 2)
        status = ra_window_barrier(comm, &window, "waiting in vain", 7);
    ra_window_destroy(&window);
    return status != expected;
}

Test(local, ranks_of_pretended_hosts_meet_in_windows_of_their_own)
{
    for (int again = 0; again < 20; again++) {
        ra_comm *comms[HOST_RANKS];
        cr_assert_eq(ra_comm_create_local(HOST_RANKS, some_hosts, 60000, comms), RA_OK);
        cr_expect_eq(local_ranks_run_on(HOST_RANKS, comms, meet_on_hosts, NULL), 0);
    }
}

Test(local, ranks_of_pretended_hosts_hear_of_the_first_of_theirs)
{
    ra_comm *comms[HOST_RANKS];
    cr_assert_eq(ra_comm_create_local(HOST_RANKS, some_hosts, 60000, comms), RA_OK);
    cr_expect_eq(local_ranks_run_on(HOST_RANKS, comms, hear_of_the_first, NULL), 0);
}

Test(local, who_is_missed_in_a_window_is_named)
{
    ra_comm *comms[HOST_RANKS];
    contract_capture_log();
    cr_assert_eq(ra_comm_create_local(HOST_RANKS, some_hosts, 60000, comms), RA_OK);
    cr_expect_eq(local_ranks_run_on(HOST_RANKS, comms, miss_a_meeting, NULL), 0);
    cr_expect_eq(contract_count_lines("waiting in vain timed out after 0.25 s",
                                      "step 7, waiting for rank 2)"),
                 1);
    cr_expect_eq(contract_count_lines("", ""), 1);
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
        cr_assert_eq(ra_comm_create_local(3, NULL, 1000, comms), RA_OK);
        for (int k = 0; k < 3; k++)
            ra_comm_destroy(comms[orders[i][k]]);
    }
}

Test(local, is_destroyed_with_transfers_in_flight_once_broken)
{
    unsigned char in[8], out[8] = {0};
    ra_exchange const exchange = {"left behind", 0, {1, out, 8}, {1, in, 8}};
    ra_transfer *transfer = NULL;
    ra_comm *comms[2];
    cr_assert_eq(ra_comm_create_local(2, NULL, 1000, comms), RA_OK);
    cr_assert_eq(ra_comm_start(comms[0], &exchange, &transfer), RA_OK);
    ra_comm_abort(comms[0], 5);
    ra_comm_destroy(comms[0]);
    ra_exchange const answer = {"to the dead", 0, .send = {0, out, 8}};
    cr_expect_eq(ra_comm_start(comms[1], &answer, &transfer), RA_ERR_PEER);
    ra_comm_destroy(comms[1]);
}

/* A receive of another length ends an exchange, though nobody has taken what it sends. */
Test(local, waits_for_no_peer_of_what_is_refused)
{
    unsigned char in[8], out[8] = {0};
    ra_exchange const both = {"both ways", 2, {1, out, 8}, {1, in, 8}};
    ra_exchange const shorter = {"half of it", 2, .send = {0, out, 4}};
    ra_transfer *transfers[2] = {NULL, NULL};
    ra_comm *comms[2];
    contract_capture_log();
    cr_assert_eq(ra_comm_create_local(2, NULL, 60000, comms), RA_OK);
    cr_assert_eq(ra_comm_start(comms[0], &both, &transfers[0]), RA_OK);
    cr_expect_eq(ra_comm_missing_peer(comms[0], transfers[0]), 1);
    cr_assert_eq(ra_comm_start(comms[1], &shorter, &transfers[1]), RA_OK);
    cr_expect_eq(ra_comm_missing_peer(comms[0], transfers[0]), -1);
    cr_expect_eq(ra_comm_wait(comms[0], transfers[0]), RA_ERR_PEER);
    cr_expect_eq(contract_count_lines("both ways got 4 bytes instead of 8", "from rank 1)"), 1);
    cr_expect_eq(ra_comm_wait(comms[1], transfers[1]), RA_OK);
    for (int rank = 0; rank < 2; rank++)
        ra_comm_destroy(comms[rank]);
}

Test(local, describes_itself)
{
    ra_comm *comms[2];
    cr_assert_eq(ra_comm_create_local(2, NULL, 1000, comms), RA_OK);
    cr_expect_str_eq(ra_comm_name(comms[1]), "local");
    cr_expect_eq(ra_comm_rank(comms[1]), 1);
    cr_expect_eq(ra_comm_size(comms[1]), 2);
    cr_expect_eq(ra_comm_local_size(comms[1]), 2);
    ra_comm_destroy(comms[0]);
    ra_comm_destroy(comms[1]);
}
