#include "support/faulty_comm.h"

#include "comm/comm_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct faulty_comm {
    ra_comm base;
    ra_comm *inner;
    int64_t fail_at, operation_count;
} faulty_comm;

/* Whether the operation that begins now is the one to fail. */
static bool fails_now(faulty_comm *faulty)
{
    if (faulty->operation_count++ != faulty->fail_at)
        return false;
    ra_comm_abort(faulty->inner, 5);
    return true;
}

static ra_status faulty_start(ra_comm *comm, const ra_exchange *exchange,
                              ra_transfer **transfer_out)
{
    faulty_comm *const faulty = (faulty_comm *)comm;
    if (fails_now(faulty))
        return FAULTY_COMM_STATUS;
    return ra_comm_start(faulty->inner, exchange, transfer_out);
}

static void faulty_poll(ra_comm *comm)
{
    ra_comm_poll(((faulty_comm *)comm)->inner);
}

static ra_status faulty_wait(ra_comm *comm, ra_transfer *transfer)
{
    faulty_comm *const faulty = (faulty_comm *)comm;
    bool const fails = fails_now(faulty);
    ra_status const status = ra_comm_wait(faulty->inner, transfer);
    return fails ? FAULTY_COMM_STATUS : status;
}

static int faulty_missing_peer(ra_comm *comm, ra_transfer *transfer)
{
    return ra_comm_missing_peer(((faulty_comm *)comm)->inner, transfer);
}

static ra_status faulty_look(ra_comm *comm)
{
    ra_comm *const inner = ((faulty_comm *)comm)->inner;
    ra_status const status = ra_comm_look(inner);
    comm->heard_ns = inner->heard_ns;
    return status;
}

static void faulty_fail(ra_comm *comm)
{
    ra_comm_break(((faulty_comm *)comm)->inner);
}

static ra_status faulty_barrier(ra_comm *comm, const char *operation)
{
    faulty_comm *const faulty = (faulty_comm *)comm;
    return fails_now(faulty) ? FAULTY_COMM_STATUS : ra_comm_barrier(faulty->inner, operation);
}

static ra_status faulty_meet(ra_comm *comm, const ra_window *window, const char *operation,
                             int step)
{
    faulty_comm *const faulty = (faulty_comm *)comm;
    return fails_now(faulty) ? FAULTY_COMM_STATUS
                             : ra_window_barrier(faulty->inner, window, operation, step);
}

static ra_status faulty_broadcast(ra_comm *comm, const char *operation, int root, void *data,
                                  size_t bytes)
{
    faulty_comm *const faulty = (faulty_comm *)comm;
    return fails_now(faulty) ? FAULTY_COMM_STATUS
                             : ra_comm_broadcast(faulty->inner, operation, root, data, bytes);
}

static ra_status faulty_reduce(ra_comm *comm, const char *operation, ra_number number,
                               ra_reduce reduce, void *values, int count)
{
    faulty_comm *const faulty = (faulty_comm *)comm;
    return fails_now(faulty)
               ? FAULTY_COMM_STATUS
               : ra_comm_reduce(faulty->inner, operation, number, reduce, values, count);
}

static void faulty_abort(ra_comm *comm, int exit_code)
{
    ra_comm_abort(((faulty_comm *)comm)->inner, exit_code);
}

static void faulty_destroy(ra_comm *comm)
{
    ra_comm_destroy(((faulty_comm *)comm)->inner);
    free(comm);
}

static const ra_comm_ops faulty_ops = {
    .name = "faulty",
    .start = faulty_start,
    .poll = faulty_poll,
    .wait = faulty_wait,
    .missing_peer = faulty_missing_peer,
    .look = faulty_look,
    .fail = faulty_fail,
    .barrier = faulty_barrier,
    .meet = faulty_meet,
    .broadcast = faulty_broadcast,
    .reduce = faulty_reduce,
    .abort = faulty_abort,
    .destroy = faulty_destroy,
};

ra_comm *faulty_comm_create(ra_comm *inner, int64_t fail_at)
{
    faulty_comm *const faulty = calloc(1, sizeof(*faulty));
    if (faulty == NULL)
        return NULL;
    faulty->base = (ra_comm){.ops = &faulty_ops,
                             .rank = inner->rank,
                             .size = inner->size,
                             .hosts = inner->hosts,
                             .timeout_ms = inner->timeout_ms};
    memcpy(faulty->base.host, inner->host, sizeof(inner->host));
    faulty->inner = inner;
    faulty->fail_at = fail_at;
    return &faulty->base;
}

int64_t faulty_comm_operation_count(const ra_comm *comm)
{
    return ((const faulty_comm *)comm)->operation_count;
}
