/*
 * Becoming one of several ranks, and ceasing to be one. MPI_Init_thread and MPI_Finalize wait for
 * every rank and have no deadline of their own: here they get one. If it passes, the process says
 * so and ends with code 5, because no further call would return.
 */
#ifndef RINGATTN_TOOL_RANKS_H
#define RINGATTN_TOOL_RANKS_H

#include "ringattn/comm.h"

/* Who was started alone has no communicator, and is the first of one. */
static inline bool ra_ranks_is_first(const ra_comm *comm)
{
    return comm == NULL || ra_comm_rank(comm) == 0;
}

static inline int ra_ranks_count(const ra_comm *comm)
{
    return comm != NULL ? ra_comm_size(comm) : 1;
}

/* In a large job it takes a while until the last process has started. */
enum { RA_RANKS_JOIN_MS = 300000 };

/**
 * Collective, if a launcher started this process as a rank. *comm_out: NULL if none did.
 *
 * @param join_ms  how long MPI_Init_thread may take
 * @return RA_ERR_UNSUPPORTED  a launcher started several, and this build has no MPI
 */
RA_CHECKED ra_status ra_ranks_join(int *argc, char ***argv, int64_t join_ms, ra_comm **comm_out);

/** The same; without a launcher, as the only rank. @param timeout_ms  of the communicator */
RA_CHECKED ra_status ra_ranks_begin(int *argc, char ***argv, int64_t join_ms, int64_t timeout_ms,
                                    ra_comm **comm_out);

/**
 * Collective. The command and its options decide what ranks do together, so all must have the same.
 * @param comm  may be NULL
 * @return RA_ERR_CONFIG, after one line: a rank was started with other arguments than rank 0
 */
RA_CHECKED ra_status ra_ranks_compare(ra_comm *comm, int argc, char **argv);

/**
 * Collective. Ends and frees `comm`, which may be NULL. MPI_Finalize gets the deadline of `comm`,
 * 10 s at least.
 */
void ra_ranks_leave(ra_comm *comm);

#endif
