/* Signs of work: who computes for longer than the deadline is not lost. */
#include "comm/contract_clock.h"
#include "comm/contract_internal.h"

#include <time.h>

enum { TIMEOUT_MS = 1500, TILE_NS = 10000000, WORK_TILES = 200, LEAP_TILES = 140 };

static void pass_tile(atomic_llong *now_ns)
{
    atomic_fetch_add(now_ns, TILE_NS);
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL); /* others look at their clocks */
}

static void work(ra_comm *comm, atomic_llong *now_ns)
{
    for (int tile = 0; tile < WORK_TILES; tile++) {
        pass_tile(now_ns);
        ra_comm_poll(comm);
        ra_comm_beat(comm);
    }
}

/* Nearly a deadline in silence, a sign of work, and as long again at once: others may look at their
   clocks only then, as if they had been suspended meanwhile, and have the sign before them. */
static void leap(ra_comm *comm, atomic_llong *now_ns)
{
    ra_comm_beat(comm);
    for (int tile = 0; tile < LEAP_TILES; tile++)
        pass_tile(now_ns);
    ra_comm_beat(comm);
    atomic_fetch_add(now_ns, LEAP_TILES * (long long)TILE_NS);
}

/* Many deadlines, in which all stand still, as where their job is suspended. */
static void stand_still(ra_comm *comm, atomic_llong *now_ns)
{
    (void)comm;
    atomic_fetch_add(now_ns, 100 * (long long)TIMEOUT_MS * 1000000);
}

/* The last rank works past the deadline before each kind of wait: for a message, in a barrier, for
   a broadcast, and in a window. */
static int wait_for_work(ra_comm *comm, const ra_window *window, atomic_llong *now_ns,
                         void (*act)(ra_comm *comm, atomic_llong *now_ns))
{
    int const rank = ra_comm_rank(comm), worker = ra_comm_size(comm) - 1;
    unsigned char byte = (unsigned char)rank;
    int failures = 0;
    if (rank == worker)
        act(comm, now_ns);
    if (rank == worker || rank == 0) {
        ra_exchange const exchange = {"beat: message", -1, .send = {0, &byte, rank == worker},
                                      .recv = {worker, &byte, rank == 0}};
        ra_transfer *transfer = NULL;
        EXPECT(ra_comm_start(comm, &exchange, &transfer) == RA_OK);
        EXPECT(ra_comm_wait(comm, transfer) == RA_OK);
        EXPECT(byte == (unsigned char)worker);
    }
    if (rank == worker)
        act(comm, now_ns);
    EXPECT(ra_comm_barrier(comm, "beat: barrier") == RA_OK);
    if (rank == worker)
        act(comm, now_ns);
    EXPECT(ra_comm_broadcast(comm, "beat: broadcast", worker, &byte, 1) == RA_OK);
    if (rank == worker && window != NULL)
        act(comm, now_ns);
    if (window != NULL)
        EXPECT(ra_window_barrier(comm, window, "beat: window", -1) == RA_OK);
    EXPECT(ra_comm_barrier(comm, "beat: end") == RA_OK);
    return failures;
}

int contract_run_beats(ra_comm *comm)
{
    int64_t const timeout_ms = ra_comm_timeout_ms(comm);
    ra_comm *const host = ra_comm_of_host(comm);
    ra_window window;
    ra_comm_stats stats;
    int failures = 0;
    if (ra_comm_size(comm) != 3)
        return 0; /* enough for a message, a barrier, and one between */
    EXPECT(ra_window_create(host, sizeof(atomic_llong), &window) == RA_OK);
    if (failures > 0)
        return failures;
    atomic_llong *const now_ns = window.data;
    if (ra_comm_rank(comm) == 0) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        atomic_store(now_ns, (long long)now.tv_sec * 1000000000 + now.tv_nsec);
    }
    EXPECT(ra_comm_barrier(comm, "beat: begin") == RA_OK);
    contract_clock_follow(now_ns);
    ra_comm_set_timeout(comm, TIMEOUT_MS);
    const ra_window *const own = host == comm ? &window : NULL;
    failures += wait_for_work(comm, own, now_ns, work);
    failures += wait_for_work(comm, own, now_ns, leap);
    failures += wait_for_work(comm, own, now_ns, stand_still);
    ra_comm_set_timeout(comm, timeout_ms);
    contract_clock_follow(NULL);
    ra_comm_reset_stats(host);
    EXPECT(ra_window_barrier(host, &window, "beat: window", -1) == RA_OK);
    ra_comm_read_stats(host, &stats);
    EXPECT(stats.wait_ms > 0);
    ra_window_destroy(&window);
    return failures;
}
