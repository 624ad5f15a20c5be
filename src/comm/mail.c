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

static void push(ra_parcel_queue *queue, ra_parcel *parcel)
{
    RA_ASSERT(queue->count < RA_MAIL_MAX);
    queue->parcels[(queue->begin + queue->count) % RA_MAIL_MAX] = parcel;
    queue->count++;
}

static ra_parcel *pop(ra_parcel_queue *queue)
{
    ra_parcel *const parcel = queue->parcels[queue->begin];
    queue->begin = (queue->begin + 1) % RA_MAIL_MAX;
    queue->count--;
    return parcel;
}

static void deliver(ra_channel *channel)
{
    while (channel->sends.count > 0 && channel->recvs.count > 0) {
        ra_parcel *const send = pop(&channel->sends);
        ra_parcel *const recv = pop(&channel->recvs);
        if (send->bytes == recv->bytes) {
            memmove(recv->data, send->data, send->bytes);
        } else {
            recv->sent_bytes = send->bytes;
            if (recv->owner->refused == NULL)
                recv->owner->refused = recv;
        }
        send->done = true;
        send->owner->open_count--;
        recv->done = true;
        recv->owner->open_count--;
    }
}

static ra_parcel *add_parcel(ra_mail *mail, const ra_message *message)
{
    ra_parcel *const parcel = &mail->parcels[mail->parcel_count++];
    *parcel = (ra_parcel){
        .owner = mail, .peer = message->peer, .data = message->data, .bytes = message->bytes};
    mail->open_count++;
    return parcel;
}

void ra_mail_post(ra_mail *mail, const ra_exchange *exchange, ra_channel *channels, int rank,
                  int size)
{
    *mail = (ra_mail){
        .base = {.operation = exchange->operation, .step = exchange->step, .in_use = true}};
    for (int i = 0; i < exchange->send_count; i++) {
        const ra_message *const send = &exchange->sends[i];
        if (send->bytes > 0)
            push(&channels[rank * size + send->peer].sends, add_parcel(mail, send));
    }
    mail->send_count = mail->parcel_count;
    for (int i = 0; i < exchange->recv_count; i++) {
        const ra_message *const recv = &exchange->recvs[i];
        if (recv->bytes > 0)
            push(&channels[recv->peer * size + rank].recvs, add_parcel(mail, recv));
    }
    for (int i = 0; i < mail->parcel_count; i++) {
        int const peer = mail->parcels[i].peer;
        deliver(&channels[i < mail->send_count ? rank * size + peer : peer * size + rank]);
    }
}

int ra_mail_open_peer(const ra_mail *mail)
{
    for (int i = mail->send_count; i < mail->parcel_count; i++) {
        if (!mail->parcels[i].done)
            return mail->parcels[i].peer;
    }
    for (int i = 0; i < mail->send_count; i++) {
        if (!mail->parcels[i].done)
            return mail->parcels[i].peer;
    }
    return -1;
}
