/*
 * Ranks that have a GPU each, over NCCL: beginning and end. Nothing here waits in NCCL or CUDA:
 * both are polled until the deadline, and so is the host's communicator, so that another rank's
 * failure ends this one's wait too. What NCCL itself waits in is called by leave_nccl.c.
 */
#include "comm_nccl.h"

#include "pause.h"

#include <stdlib.h>
#include <string.h>

enum { WARM_RANKS_MAX = 16 }; /* so many connect in pairs at once */

static const char preparing[] = "preparing NCCL", joining[] = "joining NCCL",
                  warming[] = "a first message over NCCL";

/* ---- end ------------------------------------------------------------------------------------- */

static ncclResult_t abort_all(const ra_nccl *api, ncclComm_t handle, void *none)
{
    (void)none;
    return api->abort(handle);
}

static ncclResult_t destroy(const ra_nccl *api, ncclComm_t handle, void *none)
{
    (void)none;
    return api->destroy(handle);
}

/*
 * Abort: NCCL's kernels that wait for a peer end, and touch no buffer any more. Those not yet begun
 * wait for our stream, and NCCL for them without a deadline, so we wait for our stream first. On a
 * lost GPU NCCL would wait for ever, so it is not called; nothing touches a buffer there.
 */
static ncclResult_t end_by_force(ra_nccl_comm *nccl)
{
    ncclComm_t const handle = nccl->handle;
    nccl->handle = NULL;
    if (handle == NULL)
        return ncclSuccess;
    (void)ra_device_end_stream(&nccl->base, (cudaStream_t)nccl->base.base.stream);
    return ra_device_is_lost() ? ncclSuccess
                               : ra_nccl_call_last(nccl, "aborting", abort_all, handle, NULL);
}

/*
 * NCCL waits for the others to abort, too. Ranks of this process are told before. Others hear of it
 * when this one ends the job, and have heartbeats until our stream is over.
 */
static void nccl_fail(ra_comm *comm)
{
    ra_nccl_comm *const nccl = (ra_nccl_comm *)comm;
    (void)ra_device_end_stream(&nccl->base, (cudaStream_t)comm->stream);
    ra_comm_break(comm->of_host);
    ra_nccl_warn(nccl, end_by_force(nccl), "NCCL's communicator could not be aborted");
}

static void nccl_abort(ra_comm *comm, int exit_code)
{
    ra_nccl_comm *const nccl = (ra_nccl_comm *)comm;
    ra_comm_abort(nccl->base.base.of_host, exit_code); /* of processes this is the end */
    (void)end_by_force(nccl);
}

ra_status ra_nccl_wait_idle(ra_nccl_comm *nccl, const char *operation)
{
    ra_comm *const comm = &nccl->base.base;
    int64_t const begin_ns = ra_clock_ns();
    for (;;) {
        int64_t const now_ns = ra_clock_ns();
        bool busy = false;
        ra_status status = ra_nccl_look(nccl, operation, -1, &busy);
        if (status != RA_OK || !busy)
            return status;
        status = ra_comm_look(comm);
        if (status != RA_OK)
            return status;
        if (ra_waited_ms(comm, begin_ns, now_ns) >= comm->timeout_ms) {
            ra_comm_log_timeout_of_some(comm, RA_LOG_ERROR, operation,
                                        ": a rank is stopped or lost, or NCCL finds no way to it; "
                                        "look at the hosts, set NCCL_DEBUG=INFO to see more, or "
                                        "raise comm.timeout");
            return RA_ERR_TIMEOUT;
        }
        ra_pause(now_ns - begin_ns);
    }
}

/* Whether NCCL has done all that it was asked for. What fails is no error any more, but a warning,
   as what the communicator served is complete. */
static bool finish(ra_nccl_comm *nccl)
{
    ra_comm *const comm = &nccl->base.base;
    int64_t const begin_ns = ra_clock_ns();
    ncclResult_t state = nccl->api->finalize(nccl->handle);
    while (state == ncclSuccess || state == ncclInProgress) {
        int64_t const now_ns = ra_clock_ns();
        ncclResult_t const error = nccl->api->get_async_error(nccl->handle, &state);
        if (error == ncclSuccess && state == ncclSuccess)
            return true;
        state = error == ncclSuccess ? state : error;
        if (ra_comm_look(comm) != RA_OK)
            return false; /* another rank has failed, and has said so */
        if (ra_waited_ms(comm, begin_ns, now_ns) >= comm->timeout_ms) {
            ra_comm_log_timeout_of_some(comm, RA_LOG_WARNING, "leaving NCCL", "");
            return false;
        }
        ra_pause(now_ns - begin_ns);
    }
    ra_nccl_warn(nccl, state, "leaving NCCL failed");
    return false;
}

/* Leave in order if nothing has failed; else by force. */
static void leave(ra_nccl_comm *nccl)
{
    if (nccl->handle == NULL)
        return;
    bool const in_order = !nccl->base.base.broken && !ra_device_is_lost() && finish(nccl);
    ncclResult_t const error =
        in_order ? ra_nccl_call_last(nccl, "ending its communicator", destroy, nccl->handle, NULL)
                 : end_by_force(nccl);
    ra_nccl_warn(nccl, error, "NCCL's communicator could not be ended");
    nccl->handle = NULL;
}

static void give_first_bytes(ra_nccl_comm *nccl)
{
    const ra_memory *const memory = &nccl->base.device.memory;
    if (nccl->first_bytes != NULL)
        memory->ops->free(memory, nccl->first_bytes, memory->ops->round(memory, 2));
    nccl->first_bytes = NULL;
}

/* NCCL may still use the stream if it did not return from its end. */
static void destroy_streams(ra_nccl_comm *nccl)
{
    if (ra_device_is_lost())
        return;
    for (int i = 0; i < RA_TRANSFER_MAX; i++) {
        if (nccl->transfers[i].done != NULL)
            (void)ra_cuda_forget(cudaEventDestroy(nccl->transfers[i].done));
    }
    ra_device_events_destroy(&nccl->base);
    if (nccl->stream != NULL)
        (void)ra_cuda_forget(cudaStreamDestroy(nccl->stream));
}

static void nccl_destroy(ra_comm *comm)
{
    ra_nccl_comm *const nccl = (ra_nccl_comm *)comm;
    leave(nccl);
    give_first_bytes(nccl);
    destroy_streams(nccl);
    if (nccl->charged_bytes > 0)
        ra_pool_release(nccl->base.device.pool, RA_MEM_CONTEXT, nccl->charged_bytes);
    free(nccl);
}

static const ra_comm_ops nccl_ops = {
    .name = "nccl",
    .start = ra_nccl_start,
    .poll = ra_device_poll,
    .wait = ra_device_wait,
    .missing_peer = ra_nccl_missing_peer,
    .memory = ra_nccl_memory,
    .fail = nccl_fail,
    .abort = nccl_abort,
    .destroy = nccl_destroy,
};

/* ---- beginning ------------------------------------------------------------------------------- */

/*
 * Attention fills the GPU, with thread blocks that exit after a task while an exchange is in
 * flight. With priority, NCCL's come first when these make room or both are ready.
 */
static cudaError_t make_stream(cudaStream_t *stream_out)
{
    int least = 0, greatest = 0;
    cudaError_t const error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    return error == cudaSuccess
               ? cudaStreamCreateWithPriority(stream_out, cudaStreamNonBlocking, greatest)
               : error;
}

/* Two bytes, which are not charged: nothing else is taken of the device meanwhile. */
static ra_status take_first_bytes(ra_nccl_comm *nccl)
{
    const ra_memory *const memory = &nccl->base.device.memory;
    size_t const bytes = memory->ops->round(memory, 2);
    ra_status const status = memory->ops->alloc(memory, bytes, &nccl->first_bytes);
    if (status == RA_ERR_NO_MEMORY)
        ra_ledger_log_refusal(ra_pool_ledger(nccl->base.device.pool), "the machine",
                              RA_MEM_COMM_BUFFER, (int64_t)bytes);
    return status;
}

/* What a rank needs before it meets the others: one that lacks it must not leave them waiting. */
static ra_status prepare(ra_nccl_comm *nccl)
{
    char why_not[240];
    nccl->api = ra_nccl_open(why_not, sizeof(why_not));
    if (nccl->api == NULL) {
        ra_log(RA_LOG_ERROR, "%s: %s", joining, why_not);
        return RA_ERR_UNSUPPORTED;
    }
    ra_status status = ra_device_events_create(&nccl->base);
    if (status != RA_OK)
        return status;
    cudaError_t error = make_stream(&nccl->stream);
    for (int i = 0; i < RA_TRANSFER_MAX && error == cudaSuccess; i++)
        error = cudaEventCreateWithFlags(&nccl->transfers[i].done, cudaEventDisableTiming);
    status = ra_device_status(&nccl->base, NULL, joining, error);
    return status == RA_OK ? take_first_bytes(nccl) : status;
}

typedef struct invitation {
    int64_t status;
    ncclUniqueId id;
} invitation;

/* Rank 0 opens the meeting, or all learn that it cannot. */
static ra_status invite(ra_nccl_comm *nccl, ncclUniqueId *id_out)
{
    ra_comm *const comm = &nccl->base.base;
    invitation invite = {0};
    if (comm->rank == 0) {
        ncclResult_t const error = nccl->api->get_unique_id(&invite.id);
        if (error != ncclSuccess)
            invite.status = ra_nccl_fail(nccl, joining, -1, error);
    }
    ra_status const told = ra_comm_broadcast(comm, joining, 0, &invite, sizeof(invite));
    *id_out = invite.id;
    return told != RA_OK ? told : (ra_status)invite.status;
}

static ra_status join(ra_nccl_comm *nccl, ncclUniqueId id)
{
    const ra_comm *const comm = &nccl->base.base;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    /* By default NCCL asks, from compute capability 9.0 on, for clusters of four thread blocks:
       room on four multiprocessors side by side at once, where attention leaves it on one at a
       time. */
    config.cgaClusterSize = 0;
    ncclComm_t handle = NULL;
    ncclResult_t const error = nccl->api->init_rank(&handle, comm->size, id, comm->rank, &config);
    nccl->handle = handle;
    if (error != ncclSuccess && error != ncclInProgress)
        return ra_nccl_fail(nccl, joining, -1, error);
    return ra_nccl_wait_idle(nccl, joining);
}

/* Of many ranks those of a host meet, whose connections take most memory of the device, and each
   meets one of another host, with whom it takes what serves all of these. */
bool ra_nccl_meets_first(const ra_comm *comm, int from, int to)
{
    int const distance = (to + comm->size - from) % comm->size;
    return comm->size <= WARM_RANKS_MAX || distance <= 1 || distance == comm->size - 1 ||
           comm->hosts[from] == comm->hosts[to] ||
           distance == ra_hosts_count_local(comm->hosts, comm->size, from);
}

/* A byte to the rank at `distance`, and one from the rank as far on the other side. */
static ra_status warm_distance(ra_comm *comm, const ra_memory *memory, char *bytes, int distance)
{
    int const to = (comm->rank + distance) % comm->size;
    int const from = (comm->rank + comm->size - distance) % comm->size;
    bool const sends = ra_nccl_meets_first(comm, comm->rank, to);
    bool const receives = ra_nccl_meets_first(comm, from, comm->rank);
    unsigned char mine = (unsigned char)comm->rank, theirs = (unsigned char)from;
    ra_exchange const exchange = {warming, -1, {to, bytes, sends}, {from, bytes + 1, receives}};
    if (!sends && !receives)
        return RA_OK;
    ra_status status = ra_memory_write(memory, NULL, bytes, &mine, 1);
    if (status == RA_OK)
        status = ra_comm_exchange(comm, &exchange);
    if (status == RA_OK && receives)
        status = ra_memory_read(memory, NULL, &theirs, bytes + 1, 1);
    if (status == RA_OK && theirs != (unsigned char)from) {
        ra_log(RA_LOG_ERROR,
               "%s brought %d instead of %d (rank %d on host %s, from rank %d): NCCL does not work "
               "between these GPUs; use comm.backend mpi",
               warming, theirs, from % 256, comm->rank, comm->host, from);
        status = RA_ERR_NCCL;
    }
    return status;
}

/* Connections are made when two ranks first meet: now, while nobody computes. */
static ra_status warm_up(ra_nccl_comm *nccl)
{
    ra_comm *const comm = &nccl->base.base;
    const ra_memory *const memory = &nccl->base.device.memory;
    ra_status status = RA_OK;
    for (int distance = 0; distance < comm->size && status == RA_OK; distance++)
        status = warm_distance(comm, memory, nccl->first_bytes, distance);
    ra_comm_reset_stats(comm);
    return status;
}

static ra_status charge(ra_nccl_comm *nccl, int64_t before_bytes, int64_t after_bytes)
{
    int64_t const taken_bytes = ra_max_i64(after_bytes - before_bytes, 0);
    if (taken_bytes == 0)
        return RA_OK;
    ra_status const status = ra_pool_charge(nccl->base.device.pool, RA_MEM_CONTEXT, taken_bytes);
    if (status == RA_OK)
        nccl->charged_bytes = taken_bytes;
    return status;
}

static ra_status refuse_sharing(const ra_comm *comm)
{
    if (comm->rank == 0)
        ra_log(RA_LOG_ERROR,
               "%s: ranks share a GPU, and NCCL takes one rank per GPU: start as many ranks on a "
               "host as it has GPUs, or use comm.backend mpi",
               joining);
    return RA_ERR_UNSUPPORTED;
}

/* Ranks wait for each other in NCCL here, where no rank hears of another's failure: one that fails
   gives up the host's communicator too, and so ends the job. */
static ra_status meet(ra_nccl_comm *nccl)
{
    ncclUniqueId id;
    ra_status status = invite(nccl, &id);
    if (status != RA_OK)
        return status;
    status = join(nccl, id);
    if (status == RA_OK)
        status = warm_up(nccl);
    if (status != RA_OK)
        ra_comm_break(&nccl->base.base);
    return status;
}

/* What all ranks agree on before they meet. */
static ra_status prepare_all(ra_nccl_comm *nccl)
{
    bool shared = false;
    ra_status status = ra_comm_agree(nccl->base.base.of_host, preparing, prepare(nccl));
    if (status == RA_OK)
        status = ra_device_find_shared(nccl->base.base.of_host, &shared);
    /* All ranks know the same of sharing, so they need not agree on it. */
    return status == RA_OK && shared ? refuse_sharing(&nccl->base.base) : status;
}

static ra_status begin(ra_nccl_comm *nccl)
{
    int64_t before_bytes = 0, after_bytes = 0;
    ra_status status = prepare_all(nccl);
    if (status != RA_OK)
        return status;
    status = ra_comm_agree(nccl->base.base.of_host, preparing, ra_device_taken(&before_bytes));
    if (status == RA_OK)
        status = meet(nccl);
    if (status == RA_OK)
        status = ra_device_taken(&after_bytes);
    if (status == RA_OK)
        status = charge(nccl, before_bytes, after_bytes);
    if (status == RA_OK)
        give_first_bytes(nccl);
    return ra_comm_agree(nccl->base.base.of_host, preparing, status);
}

ra_status ra_comm_create_nccl(ra_comm *host, const ra_comm_device *device, ra_comm **comm_out)
{
    ra_nccl_comm *const nccl = calloc(1, sizeof(*nccl));
    if (nccl == NULL)
        return ra_comm_agree(host, preparing, ra_refuse_memory("a communicator"));
    ra_device_init(&nccl->base, &nccl_ops, host, device);
    nccl->base.takes_multiprocessors = true;
    nccl->base.progress = ra_nccl_progress;
    for (int i = 0; i < RA_TRANSFER_MAX; i++)
        nccl->base.transfers[i] = &nccl->transfers[i].base;
    ra_status const status = begin(nccl);
    if (status != RA_OK) {
        nccl->base.base.broken = true; /* leave by force */
        nccl_destroy(&nccl->base.base);
        return status;
    }
    *comm_out = &nccl->base.base;
    return RA_OK;
}
