#include "local_ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct rank_thread {
    ra_comm *comm;
    int (*body)(ra_comm *comm, void *context);
    void *context;
    int result;
    pthread_t thread;
} rank_thread;

static void *run_rank(void *argument)
{
    rank_thread *const rank = argument;
    rank->result = rank->body(rank->comm, rank->context);
    ra_comm_destroy(rank->comm);
    return NULL;
}

int local_ranks_run(int ranks, int64_t timeout_ms, int (*body)(ra_comm *comm, void *context),
                    void *context)
{
    ra_comm **const comms = calloc((size_t)ranks, sizeof(*comms));
    if (ra_comm_create_local(ranks, NULL, timeout_ms, comms) != RA_OK)
        abort();
    int const failures = local_ranks_run_on(ranks, comms, body, context);
    free(comms);
    return failures;
}

int local_ranks_run_on(int ranks, ra_comm **comms, int (*body)(ra_comm *comm, void *context),
                       void *context)
{
    rank_thread *const threads = calloc((size_t)ranks, sizeof(*threads));
    int failures = 0;
    for (int rank = 0; rank < ranks; rank++) {
        threads[rank] = (rank_thread){.comm = comms[rank], .body = body, .context = context};
        if (pthread_create(&threads[rank].thread, NULL, run_rank, &threads[rank]) != 0) {
            perror("pthread_create");
            abort();
        }
    }
    for (int rank = 0; rank < ranks; rank++) {
        pthread_join(threads[rank].thread, NULL);
        failures += threads[rank].result;
    }
    free(threads);
    return failures;
}
