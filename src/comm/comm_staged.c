/* Ranks that have a GPU each and no way between these but the host: beginning, end, and memory. */
#include "comm_staged.h"

#include <stdlib.h>

enum { PIECE_BYTES = 4 << 20 };

static const char preparing[] = "preparing exchanges between GPUs";

/* ---- pinned memory --------------------------------------------------------------------------- */

static void give_slot(ra_staged_comm *staged, ra_staged_slot *slot)
{
    if (slot->copied != NULL)
        (void)ra_cuda_forget(cudaEventDestroy(slot->copied));
    if (slot->data != NULL)
        staged->pinned.ops->free(&staged->pinned, slot->data, slot->bytes);
    ra_pool_release(staged->base.device.host_pool, RA_MEM_COMM_BUFFER, (int64_t)slot->bytes);
    *slot = (ra_staged_slot){0};
}

/* The driver may wait for all work before it gives or takes back pinned memory, unheard and without
   a deadline: so our own stream is waited for first. */
static ra_status take_slot(ra_staged_comm *staged, ra_staged_slot *slot, size_t bytes)
{
    const ra_memory *const pinned = &staged->pinned;
    ra_pool *const pool = staged->base.device.host_pool;
    size_t const taken = pinned->ops->round(pinned, bytes);
    void *data = NULL;
    if (slot->bytes >= bytes)
        return RA_OK;
    ra_status status = ra_device_end_stream(&staged->base, (cudaStream_t)staged->base.base.stream);
    if (status != RA_OK)
        return status; /* which was said */
    give_slot(staged, slot);
    status = ra_pool_charge(pool, RA_MEM_COMM_BUFFER, (int64_t)taken);
    if (status != RA_OK)
        return status; /* likewise */
    slot->bytes = taken;
    status = pinned->ops->alloc(pinned, taken, &data);
    bool const refused = status == RA_ERR_NO_MEMORY;
    slot->data = data;
    if (status == RA_OK)
        status = ra_device_status(&staged->base, NULL, "making events",
                                  cudaEventCreateWithFlags(&slot->copied, cudaEventDisableTiming));
    if (status != RA_OK)
        give_slot(staged, slot);
    if (refused) /* what is held does not count what was refused */
        ra_ledger_log_refusal(ra_pool_ledger(pool), "the driver, which pins host memory,",
                              RA_MEM_COMM_BUFFER, (int64_t)taken);
    return status;
}

ra_status ra_staged_take_slots(ra_staged_comm *staged, ra_staged_message *message, size_t bytes)
{
    size_t const piece = bytes < staged->piece_bytes ? bytes : staged->piece_bytes;
    ra_status const status = take_slot(staged, &message->slots[0], piece);
    return status != RA_OK || bytes == piece ? status
                                             : take_slot(staged, &message->slots[1], piece);
}

/* ---- end ------------------------------------------------------------------------------------- */

static void end_copies(ra_staged_comm *staged)
{
    (void)ra_device_end_stream(&staged->base, staged->out);
    (void)ra_device_end_stream(&staged->base, staged->in);
}

static void staged_fail(ra_comm *comm)
{
    ra_staged_comm *const staged = (ra_staged_comm *)comm;
    ra_comm_break(staged->base.base.of_host);
    end_copies(staged);
}

static void staged_abort(ra_comm *comm, int exit_code)
{
    ra_staged_comm *const staged = (ra_staged_comm *)comm;
    /* First: others hear of it at once, and a GPU that hangs takes a deadline. */
    ra_comm_abort(staged->base.base.of_host, exit_code);
    end_copies(staged);
}

static void staged_destroy(ra_comm *comm)
{
    ra_staged_comm *const staged = (ra_staged_comm *)comm;
    end_copies(staged);
    for (int t = 0; t < RA_TRANSFER_MAX; t++) {
        for (int s = 0; s < 2; s++) {
            give_slot(staged, &staged->transfers[t].send.slots[s]);
            give_slot(staged, &staged->transfers[t].recv.slots[s]);
        }
    }
    ra_device_events_destroy(&staged->base);
    if (staged->out != NULL)
        (void)ra_cuda_forget(cudaStreamDestroy(staged->out));
    if (staged->in != NULL)
        (void)ra_cuda_forget(cudaStreamDestroy(staged->in));
    free(staged);
}

static const ra_comm_ops staged_ops = {
    .name = "staged",
    .start = ra_staged_start,
    .poll = ra_device_poll,
    .wait = ra_device_wait,
    .missing_peer = ra_staged_missing_peer,
    .fail = staged_fail,
    .drain = ra_device_drain,
    .abort = staged_abort,
    .destroy = staged_destroy,
};

/* ---- beginning ------------------------------------------------------------------------------- */

void ra_comm_staged_set_piece(ra_comm *comm, size_t piece_bytes)
{
    RA_ASSERT(comm->ops == &staged_ops && comm->in_flight == 0 && piece_bytes >= 1);
    ((ra_staged_comm *)comm)->piece_bytes = piece_bytes;
}

static ra_status prepare(ra_staged_comm *staged)
{
    ra_status status = ra_memory_pinned(&staged->pinned);
    if (status == RA_OK)
        status = ra_device_events_create(&staged->base);
    if (status != RA_OK)
        return status;
    cudaError_t error = cudaStreamCreateWithFlags(&staged->out, cudaStreamNonBlocking);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithFlags(&staged->in, cudaStreamNonBlocking);
    return ra_device_status(&staged->base, NULL, "making streams", error);
}

ra_status ra_comm_create_staged(ra_comm *host, const ra_comm_device *device, ra_comm **comm_out)
{
    ra_staged_comm *const staged = calloc(1, sizeof(*staged));
    if (staged == NULL)
        return ra_comm_agree(host, preparing, ra_refuse_memory("a communicator"));
    ra_device_init(&staged->base, &staged_ops, host, device);
    staged->base.progress = ra_staged_progress;
    staged->piece_bytes = PIECE_BYTES;
    for (int i = 0; i < RA_TRANSFER_MAX; i++)
        staged->base.transfers[i] = &staged->transfers[i].base;
    ra_status const status = ra_comm_agree(host, preparing, prepare(staged));
    if (status != RA_OK) {
        staged_destroy(&staged->base.base);
        return status;
    }
    *comm_out = &staged->base.base;
    return RA_OK;
}
