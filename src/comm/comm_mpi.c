/*
 * Ranks of an MPI job: beginning and end. The only blocking MPI calls are MPI_Init_thread,
 * MPI_Finalize, and MPI_Comm_free once all have met; everything else is polled until the deadline.
 */
#include "comm_mpi.h"

#include <limits.h>
#include <stdlib.h>

bool ra_comm_has_mpi(void)
{
    return true;
}

/* ---- end ------------------------------------------------------------------------------------- */

static void mpi_abort(ra_comm *comm, int exit_code)
{
    MPI_Abort(((ra_mpi_comm *)comm)->handle, exit_code);
}

/*
 * A duplication that has not ended cannot be called off. If the caller owns MPI and enters it
 * again, MPI may end it then and write the handle: so the memory that has it is left to MPI.
 */
static void free_memory(ra_mpi_comm *mpi)
{
    free(mpi->send_sequence);
    free(mpi->recv_sequence);
    free(mpi->beats_heard);
    free(mpi->requests);
    free(mpi->statuses);
    free(mpi->indices);
    free(mpi->notes);
    free(mpi->hosts);
    if (!mpi->is_joining)
        free(mpi);
}

/*
 * MPI_Finalize waits for every rank and has no deadline, so the ranks meet under ours first. So
 * they do if MPI is the caller's, as none may send another a heartbeat after it has freed its
 * handle. A broken communicator is left as it is: freeing it, or finalising, could wait forever for
 * a lost rank. The process then ends without MPI_Finalize, which the launcher takes for a failed
 * job, as it should.
 */
static void mpi_destroy(ra_comm *comm)
{
    ra_mpi_comm *const mpi = (ra_mpi_comm *)comm;
    const char *const operation = mpi->owns_mpi ? "end of the job" : "end of a communicator";
    if (!comm->broken && ra_mpi_hear_all(mpi, operation) == RA_OK) {
        MPI_Comm_free(&mpi->handle);
        if (mpi->owns_mpi)
            MPI_Finalize();
    }
    free_memory(mpi);
}

static const ra_comm_ops mpi_ops = {
    .name = "mpi",
    .start = ra_mpi_start,
    .poll = ra_mpi_poll,
    .beat = ra_mpi_beat,
    .wait = ra_mpi_wait,
    .missing_peer = ra_mpi_missing_peer,
    .look = ra_mpi_look,
    .fail = ra_mpi_drop,
    .barrier = ra_mpi_barrier,
    .broadcast = ra_mpi_broadcast,
    .reduce = ra_mpi_reduce,
    .abort = mpi_abort,
    .destroy = mpi_destroy,
};

/* ---- beginning ------------------------------------------------------------------------------- */

void ra_comm_mpi_set_limits(ra_comm *comm, size_t piece_bytes, int tag_count)
{
    ra_mpi_comm *const mpi = (ra_mpi_comm *)comm;
    RA_ASSERT(comm->ops == &mpi_ops && comm->in_flight == 0);
    RA_ASSERT(piece_bytes >= 1 && piece_bytes <= INT_MAX && tag_count >= RA_TRANSFER_MAX);
    mpi->piece_bytes = piece_bytes;
    mpi->tag_count = tag_count;
}

/* MPI as we need it, initialised by us or by the caller. */
static ra_status enter_mpi(int *argc, char ***argv, bool *owns_mpi_out)
{
    int initialised = 0, finalised = 0, level = MPI_THREAD_SINGLE;
    MPI_Finalized(&finalised);
    if (finalised) {
        ra_log(RA_LOG_ERROR, "MPI was finalised before the communicator was made: MPI cannot begin "
                             "twice in one process");
        return RA_ERR_MPI;
    }
    MPI_Initialized(&initialised);
    if (initialised) {
        MPI_Query_thread(&level);
    } else if (MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) {
        ra_log(RA_LOG_ERROR, "MPI_Init_thread failed: start the program with mpirun");
        return RA_ERR_MPI;
    }
    if (level < MPI_THREAD_FUNNELED) {
        ra_log(RA_LOG_ERROR, "MPI runs without thread support: initialise it with "
                             "MPI_Init_thread and MPI_THREAD_FUNNELED at least");
        if (!initialised)
            MPI_Finalize();
        return RA_ERR_MPI;
    }
    *owns_mpi_out = !initialised;
    return RA_OK;
}

/* Our own copy of the world, so that no tag of ours meets anybody else's. */
static ra_status duplicate_world(ra_mpi_comm *mpi)
{
    static const char operation[] = "joining the job";
    int64_t const begin_ns = ra_clock_ns();
    MPI_Request request;
    int done = 0;
    int error = MPI_Comm_idup(MPI_COMM_WORLD, &mpi->handle, &request);
    mpi->is_joining = error == MPI_SUCCESS;
    while (error == MPI_SUCCESS) {
        int64_t const now_ns = ra_clock_ns();
        error = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        mpi->is_joining = done == 0;
        if (error != MPI_SUCCESS || done)
            break;
        if (ra_waited_ms(&mpi->base, begin_ns, now_ns) >= mpi->base.timeout_ms) {
            ra_comm_log_timeout_of_some(&mpi->base, RA_LOG_ERROR, operation,
                                        ": a rank is stopped or lost, or has no memory for MPI; "
                                        "look at the hosts");
            return RA_ERR_TIMEOUT;
        }
        ra_mpi_pause(mpi, RA_PATIENCE_NONE, begin_ns, now_ns);
    }
    if (error == MPI_SUCCESS)
        error = MPI_Comm_set_errhandler(mpi->handle, MPI_ERRORS_RETURN);
    return error == MPI_SUCCESS ? RA_OK : ra_mpi_fail(mpi, operation, -1, error);
}

/* Number hosts by their first ranks. */
static void number_hosts(const int64_t *ids, int size, int *hosts)
{
    int count = 0;
    for (int rank = 0; rank < size; rank++) {
        int first = 0;
        while (ids[first] != ids[rank])
            first++;
        hosts[rank] = first < rank ? hosts[first] : count++;
    }
}

/* Found through our own collectives: MPI_Comm_split_type has no deadline. */
static ra_status find_hosts(ra_mpi_comm *mpi)
{
    ra_comm *const comm = &mpi->base;
    int64_t const own = ra_comm_host_id(comm);
    int64_t *const ids = calloc((size_t)comm->size, sizeof(*ids));
    if (ids == NULL)
        return ra_refuse_memory("the ranks' hosts");
    ra_status const status = ra_comm_allgather_i64(comm, "counting ranks per host", &own, 1, ids);
    if (status == RA_OK) {
        number_hosts(ids, comm->size, mpi->hosts);
        comm->hosts = mpi->hosts;
    }
    free(ids);
    return status;
}

static ra_status take_memory(ra_mpi_comm *mpi)
{
    size_t const size = (size_t)mpi->base.size;
    mpi->send_sequence = calloc(size, sizeof(*mpi->send_sequence));
    mpi->recv_sequence = calloc(size, sizeof(*mpi->recv_sequence));
    mpi->beats_heard = calloc(size, sizeof(*mpi->beats_heard));
    mpi->hosts = calloc(size, sizeof(*mpi->hosts));
    mpi->requests = calloc(size, sizeof(MPI_Request));
    mpi->statuses = calloc(size, sizeof(*mpi->statuses));
    mpi->indices = calloc(size, sizeof(*mpi->indices));
    mpi->notes = calloc(mpi->base.rank == 0 ? size : 2, sizeof(*mpi->notes));
    if (mpi->send_sequence == NULL || mpi->recv_sequence == NULL || mpi->beats_heard == NULL ||
        mpi->hosts == NULL || mpi->requests == NULL || mpi->statuses == NULL ||
        mpi->indices == NULL || mpi->notes == NULL) {
        return ra_refuse_memory("a communicator"); /* ra_comm_create_mpi frees what there is */
    }
    return RA_OK;
}

ra_status ra_comm_create_mpi(int *argc, char ***argv, int64_t timeout_ms, ra_comm **comm_out)
{
    RA_ASSERT(timeout_ms >= 1);
    bool owns_mpi = false;
    int rank = 0, size = 0, has_tags = 0;
    int *tag_max = NULL;
    ra_status status = enter_mpi(argc, argv, &owns_mpi);
    if (status != RA_OK)
        return status;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, (void *)&tag_max, &has_tags);

    ra_mpi_comm *const mpi = calloc(1, sizeof(*mpi));
    if (mpi == NULL)
        return ra_refuse_memory("a communicator");
    ra_comm_init(&mpi->base, &mpi_ops, rank, size, timeout_ms);
    mpi->owns_mpi = owns_mpi;
    mpi->piece_bytes = (size_t)1 << 30;
    mpi->tag_count = (has_tags ? *tag_max : 32767) - RA_TAG_MESSAGES; /* 32767: MPI's promise */

    status = take_memory(mpi);
    if (status == RA_OK)
        status = duplicate_world(mpi);
    if (status == RA_OK)
        status = find_hosts(mpi);
    if (status != RA_OK) {
        free_memory(mpi); /* MPI stays as it is: the other ranks may never come to finalise it */
        return status;
    }
    *comm_out = &mpi->base;
    return RA_OK;
}
