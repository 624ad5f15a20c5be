/* Dispatch: broken preconditions stop the process, missing memory does not. */
#include "comm/comm_internal.h"
#include "comm/contract.h"
#include "support/failing_calloc.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <string.h>

static ra_comm *create_self(void)
{
    ra_comm *comm = NULL;
    cr_assert_eq(ra_comm_create_self(1000, &comm), RA_OK);
    return comm;
}

static ra_status start(ra_comm *comm, int peer, void *data, ra_transfer **transfer)
{
    ra_exchange const exchange = {"test", 0, {peer, data, 4}, {peer, data, 4}};
    return ra_comm_start(comm, &exchange, transfer);
}

Test(comm, stops_a_peer_out_of_range, .signal = SIGABRT)
{
    char data[4] = "";
    ra_transfer *transfer;
    (void)!start(create_self(), 1, data, &transfer);
}

Test(comm, stops_a_message_without_data, .signal = SIGABRT)
{
    ra_transfer *transfer;
    (void)!start(create_self(), 0, NULL, &transfer);
}

Test(comm, stops_a_third_exchange_in_flight, .signal = SIGABRT)
{
    char data[4] = "";
    ra_transfer *transfer;
    ra_comm *const comm = create_self();
    cr_assert_eq(start(comm, 0, data, &transfer), RA_OK);
    cr_assert_eq(start(comm, 0, data, &transfer), RA_OK);
    (void)!start(comm, 0, data, &transfer);
}

Test(comm, stops_a_destroy_with_a_transfer_in_flight, .signal = SIGABRT)
{
    char data[4] = "";
    ra_transfer *transfer;
    ra_comm *const comm = create_self();
    cr_assert_eq(start(comm, 0, data, &transfer), RA_OK);
    ra_comm_destroy(comm);
}

Test(comm, stops_a_deadline_of_nothing, .signal = SIGABRT)
{
    ra_comm_set_timeout(create_self(), 0);
}

Test(comm, stops_a_root_out_of_range, .signal = SIGABRT)
{
    char data[4] = "";
    (void)!ra_comm_broadcast(create_self(), "test", 1, data, 4);
}

Test(comm, destroys_and_tells_of_nothing)
{
    ra_comm_beat(NULL);
    ra_comm_destroy(NULL);
}

Test(comm, says_when_memory_is_missing_and_leaves_none_behind)
{
    ra_comm *comm = NULL, *comms[4] = {NULL};
    contract_capture_log();
    callocs_left = 0;
    cr_expect_eq(ra_comm_create_self(1000, &comm), RA_ERR_NO_MEMORY);
    callocs_left = -1;
    cr_expect_null(comm);
    cr_expect_eq(contract_count_lines("out of memory for a communicator", ""), 1);

    int failed = 0;
    for (;; failed++) {
        callocs_left = failed;
        ra_status const status = ra_comm_create_local(4, NULL, 1000, comms);
        callocs_left = -1;
        if (status == RA_OK)
            break;
        cr_assert_eq(status, RA_ERR_NO_MEMORY);
        cr_assert_eq(contract_count_lines("out of memory for communicators", ""), failed + 1);
        for (int i = 0; i < 4; i++)
            cr_expect_null(comms[i], "communicator %d is gone", i);
    }
    cr_expect_eq(failed, 1 + 4 + 4, "one failure for each allocation");
    for (int i = 0; i < 4; i++)
        ra_comm_destroy(comms[i]);
}

Test(comm, folds_doubles_without_losing_a_nan)
{
    double values[] = {NAN, 1, NAN, -1, 2};
    double const more[] = {1, NAN, NAN, 2, -1};
    double maxima[5];
    memcpy(maxima, values, sizeof(values));
    ra_reduce_fold(RA_NUMBER_F64, RA_MIN, values, more, 5);
    ra_reduce_fold(RA_NUMBER_F64, RA_MAX, maxima, more, 5);
    for (int i = 0; i < 3; i++)
        cr_expect(isnan(values[i]) && isnan(maxima[i]));
    cr_expect(values[3] == -1 && values[4] == -1);
    cr_expect(maxima[3] == 2 && maxima[4] == 2);
}

Test(comm, says_that_a_build_without_mpi_has_none)
{
    ra_comm *comm = NULL;
    if (ra_comm_has_mpi())
        cr_skip_test("this build has MPI");
    contract_capture_log();
    cr_expect_eq(ra_comm_create_mpi(NULL, NULL, 1000, &comm), RA_ERR_UNSUPPORTED);
    cr_expect_null(comm);
    cr_expect_eq(contract_count_lines("this build has no MPI", "-DRA_MPI=ON"), 1);
    cr_expect_eq(contract_count_lines("", ""), 1);
}
