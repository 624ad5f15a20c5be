/*
 * One rank of the tests in test_ranks.c: ranks_worker CALL. Rank 1 stops in MPI's function of that
 * name, as a process does that somebody stopped; "none": nobody does.
 */
#include "tool/ranks.h"

#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { LIMIT_MS = 2000 };

static const char *stops_in;

static void stop(const char *call)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (strcmp(stops_in, call) == 0 && rank != NULL && atoi(rank) == 1)
        raise(SIGSTOP);
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    stop("MPI_Init_thread");
    return PMPI_Init_thread(argc, argv, required, provided);
}

int MPI_Finalize(void)
{
    stop("MPI_Finalize");
    return PMPI_Finalize();
}

int main(int argc, char **argv)
{
    ra_comm *comm = NULL;
    if (argc != 2)
        return 97;
    stops_in = argv[1];
    /* The limit that ends the test; that nothing ends before its time is seen with the other. */
    int64_t const join_ms = strcmp(stops_in, "MPI_Init_thread") == 0 ? LIMIT_MS : RA_RANKS_JOIN_MS;
    if (ra_ranks_join(&argc, &argv, join_ms, &comm) != RA_OK || comm == NULL)
        return 90;
    if (strcmp(stops_in, "MPI_Finalize") == 0)
        ra_comm_set_timeout(comm, 12000);
    ra_ranks_leave(comm);
    int finalised = 0;
    MPI_Finalized(&finalised);
    return finalised ? 0 : 91;
}
