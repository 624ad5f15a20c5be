/*
 * Mail: messages between ranks that share an address space. A send meets its receive in the order
 * both were posted, and is copied straight from one buffer to the other: there is no staging, so
 * what would hang under MPI without eager buffering hangs (to the deadline) here too.
 */
#include "comm_internal.h"

#include <string.h>

ra_mail *ra_mail_take(ra_mail mails[RA_TRANSFER_MAX])
{
    int at = 0;
    while (mails[at].base.in_use) {
        at++;
        RA_ASSERT(at < RA_TRANSFER_MAX);
    }
    return &mails[at];
}

static ra_parcel *pop(ra_channel *channel)
{
    ra_parcel *const first = channel->waiting[0];
    channel->count--;
    for (int i = 0; i < channel->count; ++i)
        channel->waiting[i] = channel->waiting[i + 1];
    return first;
}

static void deliver(ra_parcel *send, ra_parcel *recv)
{
    if (send->message.bytes == recv->message.bytes)
        memmove(recv->message.data, send->message.data, send->message.bytes);
    recv->sent_bytes = send->message.bytes;
    send->done = recv->done = true;
}

/* A channel holds only sends or only receives: the other kind meets these at once. */
static void post(ra_channel *channel, ra_parcel *parcel, bool is_send)
{
    if (parcel->message.bytes == 0) {
        parcel->done = true;
    } else if (channel->count == 0 || channel->holds_sends == is_send) {
        RA_ASSERT(channel->count < RA_TRANSFER_MAX);
        channel->holds_sends = is_send;
        channel->waiting[channel->count++] = parcel;
    } else {
        ra_parcel *const other = pop(channel);
        deliver(is_send ? parcel : other, is_send ? other : parcel);
    }
}

void ra_mail_post(ra_mail *mail, const ra_exchange *exchange, ra_channel *channels, int rank,
                  int size)
{
    *mail = (ra_mail){
        .base = {.operation = exchange->operation, .step = exchange->step, .in_use = true},
        .send = {.message = exchange->send},
        .recv = {.message = exchange->recv}};
    post(&channels[rank * size + exchange->send.peer], &mail->send, true);
    post(&channels[exchange->recv.peer * size + rank], &mail->recv, false);
}

bool ra_mail_is_refused(const ra_mail *mail)
{
    return mail->recv.done && mail->recv.sent_bytes != mail->recv.message.bytes;
}

int ra_mail_open_peer(const ra_mail *mail)
{
    if (!mail->recv.done)
        return mail->recv.message.peer;
    return mail->send.done || ra_mail_is_refused(mail) ? -1 : mail->send.message.peer;
}

ra_status ra_mail_refuse(const ra_comm *comm, const ra_mail *mail)
{
    const ra_parcel *const recv = &mail->recv;
    ra_comm_log_mismatch(comm, mail->base.operation, mail->base.step, recv->message.peer,
                         (int64_t)recv->sent_bytes, (int64_t)recv->message.bytes);
    return RA_ERR_PEER;
}
