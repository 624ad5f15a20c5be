/*
 * One rank of tests in test_comm_staged_mpi.c: staged_worker MODE [ARGUMENT]... Messages go through
 * pinned memory of the stand-in runtime and over MPI. It exits with 0 only if nothing failed.
 */
#include "comm/comm_internal.h"
#include "comm/contract.h"
#include "ringattn/comm_device.h"
#include "support/open_pool.h"
#include "support/standin_cudart.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* healthy SEED PIECE_BYTES: the contract; 0: pieces of staged's own size. */
static int run_healthy(ra_comm *comm, char **arguments)
{
    size_t const piece_bytes = strtoull(arguments[1], NULL, 10);
    if (piece_bytes > 0)
        ra_comm_staged_set_piece(comm, piece_bytes);
    return contract_run_healthy(comm, strtoull(arguments[0], NULL, 10)) +
           (strcmp(ra_comm_name(comm), "staged") != 0);
}

/* lose TIMEOUT_MS -: rank 1 stops; the others wait for it, with a send to it that flows too. */
static int lose_a_rank(ra_comm *comm, char **arguments)
{
    static char out[1 << 20], in[1 << 20];
    ra_exchange const exchange = {
        "forward keys and values", 3, {1, out, sizeof(out)}, {1, in, sizeof(in)}};
    ra_transfer *transfer = NULL;
    if (ra_comm_barrier(comm, "begin") != RA_OK)
        return 94;
    ra_comm_set_timeout(comm, atoll(arguments[0]));
    if (ra_comm_rank(comm) == 1) {
        raise(SIGSTOP);
        sleep(600);
    }
    ra_status status = ra_comm_start(comm, &exchange, &transfer);
    if (status == RA_OK)
        status = ra_comm_wait(comm, transfer);
    if (status == RA_ERR_TIMEOUT)
        ra_comm_abort(comm, 5);
    return 93;
}

int main(int argc, char **argv)
{
    ra_comm *host = NULL, *comm = NULL;
    ra_comm_device device = {.pool = open_pool(), .host_pool = open_pool()};
    standin_reset();
    if (argc != 4 || ra_comm_create_mpi(&argc, &argv, 60000, &host) != RA_OK ||
        ra_memory_device(0, &device.memory) != RA_OK ||
        ra_comm_create_staged(host, &device, &comm) != RA_OK)
        return 90;
    int const failures =
        strcmp(argv[1], "lose") == 0 ? lose_a_rank(comm, argv + 2) : run_healthy(comm, argv + 2);
    ra_comm_destroy(comm);
    ra_comm_destroy(host);
    int64_t const left = standin.pinned_blocks + standin.events + standin.streams;
    if (left != 0)
        fprintf(stderr, "%lld things of the stand-in runtime are left\n", (long long)left);
    return failures + (left != 0);
}
