/* One rank: messages to itself are copies, and there is nobody for anything else. */
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

static ra_status self_wait(ra_comm *comm, ra_transfer *transfer)
{
    ra_mail *const mail = (ra_mail *)transfer;
    mail->base.in_use = false;
    if (ra_mail_is_refused(mail))
        return ra_mail_refuse(comm, mail);
    if (ra_mail_open_peer(mail) < 0)
        return RA_OK;
    /* Nobody else can post the other half, so waiting for the deadline is pointless. */
    ra_comm_log_timeout(comm, transfer->operation, transfer->step, 0);
    return RA_ERR_TIMEOUT;
}

static int self_missing_peer(ra_comm *comm, ra_transfer *transfer)
{
    (void)comm;
    return ra_mail_open_peer((const ra_mail *)transfer);
}

static void self_destroy(ra_comm *comm)
{
    free(comm);
}

static const ra_comm_ops self_ops = {
    .name = "self",
    .start = self_start,
    .wait = self_wait,
    .missing_peer = self_missing_peer,
    .destroy = self_destroy,
};

ra_status ra_comm_create_self(int64_t timeout_ms, ra_comm **comm_out)
{
    self_comm *const self = calloc(1, sizeof(*self));
    if (self == NULL)
        return ra_refuse_memory("a communicator");
    static const int host = 0;
    ra_comm_init(&self->base, &self_ops, 0, 1, timeout_ms);
    self->base.hosts = &host;
    *comm_out = &self->base;
    return RA_OK;
}
