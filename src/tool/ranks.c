#include "ranks.h"

#include "console.h"
#include "internal.h"
#include "options.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

/* Deadline for all ranks to begin once MPI has; and the least that MPI may take to end, however
   short comm.timeout is. */
enum { STARTUP_TIMEOUT_MS = 60000, LEAVE_LEAST_MS = 10000 };

/* ---- a deadline for a call that has none ----------------------------------------------------- */

typedef struct guard {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t woken;
    const char *call;
    int64_t limit_ms;
    bool over, watches;
} guard;

/* With the mutex. */
static void wait_for(guard *g, int64_t ns)
{
    int64_t const until_ns = ra_clock_ns() + ns;
    struct timespec const until = {until_ns / 1000000000, until_ns % 1000000000};
    int error = 0;
    while (!g->over && error == 0)
        error = pthread_cond_clockwait(&g->woken, &g->mutex, CLOCK_MONOTONIC, &until);
}

/* In parts: of the time in which the process itself stood still, one passes at most. */
static void *watch(void *context)
{
    enum { PARTS = 8 };
    guard *g = context;
    pthread_mutex_lock(&g->mutex);
    for (int part = 0; part < PARTS; part++)
        wait_for(g, g->limit_ms * 1000000 / PARTS);
    if (!g->over) {
        ra_console_release();
        ra_log(RA_LOG_ERROR,
               "%s has not returned after %g s: a rank is stopped, lost or never began; look at "
               "the hosts",
               g->call, (double)g->limit_ms / 1000.0);
        fflush(NULL);
        _exit(ra_exit_code(RA_ERR_TIMEOUT));
    }
    pthread_mutex_unlock(&g->mutex);
    return NULL;
}

/* Other threads handle signals. Without a guard thread the call is still made. */
static void guard_begin(guard *g, const char *call, int64_t limit_ms)
{
    sigset_t all, before;
    *g = (guard){.call = call, .limit_ms = limit_ms};
    pthread_mutex_init(&g->mutex, NULL);
    pthread_cond_init(&g->woken, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int const error = pthread_create(&g->thread, NULL, watch, g);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    g->watches = error == 0;
    if (!g->watches)
        ra_log(RA_LOG_WARNING, "%s has no deadline: no thread to look at it (%s)", call,
               strerror(error));
}

static void guard_end(guard *g)
{
    pthread_mutex_lock(&g->mutex);
    g->over = true;
    pthread_cond_signal(&g->woken);
    pthread_mutex_unlock(&g->mutex);
    if (g->watches)
        pthread_join(g->thread, NULL);
    pthread_cond_destroy(&g->woken);
    pthread_mutex_destroy(&g->mutex);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Whether mpirun, or something like it, started this process as a rank. */
static bool launcher_started_us(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (getenv(names[i]) != NULL)
            return true;
    }
    return false;
}

ra_status ra_ranks_begin(int *argc, char ***argv, int64_t join_ms, int64_t timeout_ms,
                         ra_comm **comm_out)
{
    guard g;
    guard_begin(&g, "MPI_Init_thread", join_ms);
    ra_status const status = ra_comm_create_mpi(argc, argv, timeout_ms, comm_out);
    guard_end(&g);
    return status;
}

ra_status ra_ranks_join(int *argc, char ***argv, int64_t join_ms, ra_comm **comm_out)
{
    *comm_out = NULL;
    if (!launcher_started_us())
        return RA_OK;
    if (!ra_comm_has_mpi()) {
        const char *const size = getenv("OMPI_COMM_WORLD_SIZE");
        const char *const rank = getenv("OMPI_COMM_WORLD_RANK");
        if (size == NULL || atoi(size) <= 1)
            return RA_OK;
        if (rank == NULL || atoi(rank) == 0) /* once, for all */
            ra_log(RA_LOG_ERROR,
                   "started as one of %s ranks, but this build has no MPI: configure it "
                   "with -DRA_MPI=ON, or start it alone",
                   size);
        return RA_ERR_UNSUPPORTED;
    }
    return ra_ranks_begin(argc, argv, join_ms, STARTUP_TIMEOUT_MS, comm_out);
}

ra_status ra_ranks_compare(ra_comm *comm, int argc, char **argv)
{
    static const char operation[] = "comparing the arguments";
    uint64_t mine = 0;
    if (ra_ranks_count(comm) == 1)
        return RA_OK;
    for (int i = 1; i < argc; i++)
        mine = XXH3_64bits_withSeed(argv[i], strlen(argv[i]) + 1, mine);
    uint64_t first = mine;
    ra_status status = ra_comm_broadcast(comm, operation, 0, &first, sizeof(first));
    if (status != RA_OK)
        return status;
    ra_console_hold();
    if (mine != first) {
        ra_log(RA_LOG_ERROR,
               "rank %d on host %s was started with other arguments than rank 0: give all "
               "ranks the same",
               ra_comm_rank(comm), ra_comm_host(comm));
        status = RA_ERR_CONFIG;
    }
    return ra_console_agree(comm, operation, status);
}

void ra_ranks_leave(ra_comm *comm)
{
    guard g;
    bool const waits = ra_ranks_count(comm) > 1 && strcmp(ra_comm_name(comm), "mpi") == 0;
    /* A rank may come late to the end, with heartbeats: the deadline begins when all are there.
       If one never comes, the job has failed. A communicator that was broken before is left without
       MPI_Finalize. */
    bool const guarded = waits && !ra_comm_is_broken(comm);
    if (guarded) {
        ra_status const status = ra_comm_barrier(comm, "end of the job");
        if (status != RA_OK)
            ra_comm_abort(comm, ra_exit_code(status));
        guard_begin(&g, "MPI_Finalize", ra_max_i64(ra_comm_timeout_ms(comm), LEAVE_LEAST_MS));
    }
    ra_comm_destroy(comm);
    if (guarded)
        guard_end(&g);
}
