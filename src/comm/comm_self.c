/* One rank: messages to itself are copies, collectives are done before they begin. */
#include "comm_internal.h"

#include <stdlib.h>

typedef struct self_comm {
    ra_comm base;
    ra_mail mails[RA_TRANSFER_MAX];
    ra_channel channel;
} self_comm;

static ra_status self_start(ra_comm *comm, const ra_exchange *exchange, ra_transfer **transfer_out)
{
    self_comm *const self = (self_comm *)comm;
    ra_mail *const mail = ra_mail_take(self->mails);
    ra_mail_post(mail, exchange, &self->channel, 0, 1);
    *transfer_out = &mail->base;
    return RA_OK;
}

static void self_poll(ra_comm *comm)
{
    (void)comm;
}

static ra_status self_wait(ra_comm *comm, ra_transfer *transfer)
{
    ra_mail *const mail = (ra_mail *)transfer;
    mail->base.in_use = false;
    if (ra_mail_is_refused(mail))
        return ra_mail_refuse(comm, mail);
    if (ra_mail_open_peer(mail) < 0)
        return RA_OK;
    /* Nobody else can post the other half: there is no point in sitting out the deadline. */
    ra_comm_log_timeout(comm, transfer->operation, transfer->step, 0);
    return RA_ERR_TIMEOUT;
}

static int self_missing_peer(ra_comm *comm, ra_transfer *transfer)
{
    (void)comm;
    return ra_mail_open_peer((const ra_mail *)transfer);
}

static ra_status self_barrier(ra_comm *comm, const char *operation)
{
    (void)comm;
    (void)operation;
    return RA_OK;
}

static ra_status self_meet(ra_comm *comm, const ra_window *window, const char *operation, int step)
{
    (void)window;
    (void)step;
    return self_barrier(comm, operation);
}

static ra_status self_broadcast(ra_comm *comm, const char *operation, int root, void *data,
                                size_t bytes)
{
    (void)comm;
    (void)operation;
    (void)root;
    (void)data;
    (void)bytes;
    return RA_OK;
}

static ra_status self_reduce(ra_comm *comm, const char *operation, ra_number number,
                             ra_reduce reduce, void *values, int count)
{
    (void)comm;
    (void)operation;
    (void)number;
    (void)reduce;
    (void)values;
    (void)count;
    return RA_OK;
}

static void self_abort(ra_comm *comm, int exit_code)
{
    (void)comm;
    (void)exit_code;
}

static void self_destroy(ra_comm *comm)
{
    free(comm);
}

static const ra_comm_ops self_ops = {
    .name = "self",
    .start = self_start,
    .poll = self_poll,
    .wait = self_wait,
    .missing_peer = self_missing_peer,
    .barrier = self_barrier,
    .meet = self_meet,
    .broadcast = self_broadcast,
    .reduce = self_reduce,
    .abort = self_abort,
    .destroy = self_destroy,
};

ra_status ra_comm_create_self(int64_t timeout_ms, ra_comm **comm_out)
{
    self_comm *const self = calloc(1, sizeof(*self));
    if (self == NULL) {
        ra_log(RA_LOG_ERROR, "no memory for a communicator of %zu bytes", sizeof(*self));
        return RA_ERR_NO_MEMORY;
    }
    static const int host = 0;
    ra_comm_init(&self->base, &self_ops, 0, 1, timeout_ms);
    self->base.hosts = &host;
    *comm_out = &self->base;
    return RA_OK;
}
