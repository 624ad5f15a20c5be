/* Signs of work: who computes for longer than the deadline is not lost. */
#include "comm/contract_internal.h"

#include <time.h>

enum { TIMEOUT_MS = 1500, WORK_MS = 2000 };

static void work(ra_comm *comm)
{
    for (int ms = 0; ms < WORK_MS; ms += 10) {
        struct timespec const tile = {.tv_nsec = 10000000};
        nanosleep(&tile, NULL);
        ra_comm_poll(comm);
        ra_comm_beat(comm);
    }
}

/* The last rank works past the deadline before each kind of wait: for a message, in a barrier, for
   a broadcast, and in a window. */
int contract_run_beats(ra_comm *comm)
{
    int const size = ra_comm_size(comm), rank = ra_comm_rank(comm), worker = size - 1;
    int64_t const timeout_ms = ra_comm_timeout_ms(comm);
    int failures = 0;
    unsigned char byte = (unsigned char)rank;
    ra_window window = {0};
    if (size != 3)
        return 0; /* it takes its time; three are enough for a message, a barrier, and one between
                   */
    bool const has_window =
        ra_comm_of_host(comm) == comm && ra_window_create(comm, 1, &window) == RA_OK;
    ra_comm_set_timeout(comm, TIMEOUT_MS);
    if (rank == worker)
        work(comm);
    if (rank == worker || rank == 0) {
        ra_exchange const exchange = {"beat: message", -1, .send = {0, &byte, rank == worker},
                                      .recv = {worker, &byte, rank == 0}};
        ra_transfer *transfer = NULL;
        EXPECT(ra_comm_start(comm, &exchange, &transfer) == RA_OK);
        EXPECT(ra_comm_wait(comm, transfer) == RA_OK);
        EXPECT(byte == (unsigned char)worker);
    }
    if (rank == worker)
        work(comm);
    EXPECT(ra_comm_barrier(comm, "beat: barrier") == RA_OK);
    if (rank == worker)
        work(comm);
    EXPECT(ra_comm_broadcast(comm, "beat: broadcast", worker, &byte, 1) == RA_OK);
    if (rank == worker && has_window)
        work(comm);
    ra_comm_reset_stats(comm);
    if (has_window)
        EXPECT(ra_window_barrier(comm, &window, "beat: window", -1) == RA_OK);
    ra_comm_stats stats;
    ra_comm_read_stats(comm, &stats);
    EXPECT(!has_window || stats.wait_ms > 0);
    ra_window_destroy(&window);
    ra_comm_set_timeout(comm, timeout_ms);
    return failures;
}
