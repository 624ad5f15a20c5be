/*
 * What every communicator promises, written once over the interface: run by self, by local on
 * 1 to 8 threads, and by mpi in a program under mpirun. A body is run by every rank of a
 * communicator at the same time and returns how many of its claims did not hold; each is printed.
 */
#ifndef RINGATTN_TEST_CONTRACT_H
#define RINGATTN_TEST_CONTRACT_H

#include "ringattn/comm.h"

typedef struct contract_case {
    const char *name;
    int ranks_min;
    bool ends_job; /* uses ra_comm_abort, which no MPI rank survives */
    int (*body)(ra_comm *comm);
} contract_case;

/** All cases that leave the communicator healthy, in turn, on one communicator. */
int contract_run_healthy(ra_comm *comm, uint64_t seed);

/* Cases that break it: each needs a communicator of its own. */
extern const contract_case contract_breaking[];
extern const int contract_breaking_count;

/*
 * A flag that ranks see without their communicator, for cases in which that no longer serves.
 * Threads share a variable, lowered by contract_clear_log; processes put something else here.
 */
typedef struct contract_flag {
    void (*raise)(void);
    bool (*is_raised)(void);
} contract_flag;
extern contract_flag contract_found;

/* Lines that the library logs are kept, not printed, from here on; thread-safe. */
void contract_capture_log(void);
void contract_clear_log(void);
/** Kept lines that contain both texts. */
int contract_count_lines(const char *text, const char *other_text);
/** Lines that are errors, not warnings. */
int contract_count_errors(void);
void contract_print_log(void);

#endif
