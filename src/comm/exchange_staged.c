/*
 * Exchanges through pinned memory, in rounds: a round carries the next piece of each message over
 * the host's communicator. While it travels, the pieces after it are copied from the device, and
 * those before it to the device.
 *
 * Exchanges follow one another, and in each its lengths come before its pieces. So messages between
 * two ranks have the same order on both sides.
 */
#include "comm_staged.h"

#include <string.h>

/* Piece `index` of a message, on the device. */
static ra_message piece_of(const ra_staged_comm *staged, const ra_message *message, int64_t index)
{
    size_t const begin = (size_t)index * staged->piece_bytes, left = message->bytes - begin;
    return (ra_message){message->peer, (char *)message->data + begin,
                        left < staged->piece_bytes ? left : staged->piece_bytes};
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* The addresses say which side is the device's. */
static ra_status copy(ra_staged_comm *staged, const ra_staged_transfer *t, ra_staged_slot *slot,
                      void *to, const void *from, size_t bytes, cudaStream_t stream)
{
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
    if (error == cudaSuccess)
        error = cudaEventRecord(slot->copied, stream);
    return ra_device_status(&staged->base, &t->base, NULL, error);
}

/* Copy what is sent from the device, as far ahead of what has passed as there are slots. */
static ra_status read_ahead(ra_staged_comm *staged, ra_staged_transfer *t)
{
    ra_staged_message *const send = &t->send;
    ra_status status = RA_OK;
    while (status == RA_OK && send->read < send->pieces && send->read < send->passed + 2) {
        ra_staged_slot *const slot = &send->slots[send->read % 2];
        ra_message const piece = piece_of(staged, &t->base.send, send->read);
        status = copy(staged, t, slot, slot->data, piece.data, piece.bytes, staged->out);
        send->read++;
    }
    return status;
}

/* Copy a received piece to the device. */
static ra_status write_back(ra_staged_comm *staged, ra_staged_transfer *t)
{
    ra_staged_slot *const slot = &t->recv.slots[t->recv.passed % 2];
    ra_message const piece = piece_of(staged, &t->base.recv, t->recv.passed);
    return copy(staged, t, slot, piece.data, slot->data, piece.bytes, staged->in);
}

/* Whether the last copy of a slot is done. */
static ra_status look_copied(ra_staged_comm *staged, ra_staged_transfer *t,
                             const ra_staged_slot *slot, bool *done_out)
{
    cudaError_t const error = ra_cuda_forget(cudaEventQuery(slot->copied));
    *done_out = error == cudaSuccess;
    if (error == cudaErrorNotReady)
        return RA_OK;
    return ra_device_status(&staged->base, &t->base, NULL, error);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static bool has_next(const ra_staged_message *m)
{
    return m->posted < m->pieces;
}

/* Whether the slots of the next round's pieces are ready: a send's has been read from the device, a
   receive's has been emptied to it. */
static ra_status look_slots(ra_staged_comm *staged, ra_staged_transfer *t, bool *ready_out)
{
    const ra_staged_message *const send = &t->send, *const recv = &t->recv;
    bool is_read = true, is_empty = true;
    ra_status status = RA_OK;
    if (has_next(send))
        status = look_copied(staged, t, &send->slots[send->posted % 2], &is_read);
    if (status == RA_OK && has_next(recv) && recv->posted >= 2)
        status = look_copied(staged, t, &recv->slots[recv->posted % 2], &is_empty);
    *ready_out = is_read && is_empty;
    return status;
}

/* A message's next piece, in its slot; {0}: there is none. */
static ra_message next_piece(const ra_staged_comm *staged, ra_staged_message *m,
                             const ra_message *message)
{
    if (!has_next(m))
        return (ra_message){0};
    ra_message piece = piece_of(staged, message, m->posted);
    piece.data = m->slots[m->posted % 2].data;
    m->posted++;
    return piece;
}

static ra_status post_round(ra_staged_comm *staged, ra_staged_transfer *t)
{
    ra_exchange const exchange = {.operation = t->base.base.operation,
                                  .step = t->base.base.step,
                                  .send = next_piece(staged, &t->send, &t->base.send),
                                  .recv = next_piece(staged, &t->recv, &t->base.recv)};
    t->base.phase = "under way";
    return ra_comm_start(staged->base.base.of_host, &exchange, &t->round);
}

/* End a round: copy the pieces that it brought to the device. */
static ra_status end_round(ra_staged_comm *staged, ra_staged_transfer *t)
{
    if (t->round == NULL || ra_comm_missing_peer(staged->base.base.of_host, t->round) >= 0)
        return RA_OK;
    ra_status status = ra_comm_wait(staged->base.base.of_host, t->round);
    t->round = NULL;
    if (status == RA_OK && t->recv.passed < t->recv.posted)
        status = write_back(staged, t);
    if (status != RA_OK)
        return status;
    t->recv.passed = t->recv.posted;
    t->send.passed = t->send.posted;
    if (!has_next(&t->send) && !has_next(&t->recv))
        ra_device_time_end(&t->base, staged->in);
    return RA_OK;
}

static ra_status begin_round(ra_staged_comm *staged, ra_staged_transfer *t, bool *all_posted_out)
{
    bool ready = false;
    ra_status status = read_ahead(staged, t);
    if (status != RA_OK || t->round != NULL)
        return status;
    *all_posted_out = !has_next(&t->send) && !has_next(&t->recv);
    if (*all_posted_out)
        return RA_OK;
    status = look_slots(staged, t, &ready);
    return status == RA_OK && ready ? post_round(staged, t) : status;
}

/* Whether everything that was received lies on the device. */
static ra_status look_over(ra_staged_comm *staged, ra_staged_transfer *t)
{
    bool over = true;
    ra_status status = RA_OK;
    for (int s = 0; s < 2 && s < t->recv.pieces && status == RA_OK && over; s++)
        status = look_copied(staged, t, &t->recv.slots[s], &over);
    t->base.over = over && status == RA_OK;
    return status;
}

static ra_status advance(ra_staged_comm *staged, ra_staged_transfer *t, bool *all_posted_out)
{
    *all_posted_out = false;
    ra_status status = RA_OK;
    if (!t->lengths_posted) /* only now: lengths travel in order with the pieces */
        status = ra_lengths_start(&staged->base, &t->base, &t->lengths);
    t->lengths_posted = true;
    if (status == RA_OK)
        status = ra_lengths_look(&staged->base, &t->base, &t->lengths);
    if (status == RA_OK)
        status = ra_device_look_ready(&staged->base, &t->base);
    if (status != RA_OK || !t->base.is_ready || t->lengths.transfer != NULL)
        return status;
    if (!t->begun)
        ra_device_time_begin(&t->base, staged->out);
    t->begun = true;
    status = end_round(staged, t);
    if (status == RA_OK)
        status = begin_round(staged, t, all_posted_out);
    if (status == RA_OK && *all_posted_out)
        status = look_over(staged, t);
    return status;
}

void ra_staged_progress(ra_device_comm *base)
{
    ra_staged_comm *const staged = (ra_staged_comm *)base;
    bool may_go = true; /* those before it have posted all of their pieces */
    for (int which = 0; which < RA_TRANSFER_MAX; which++) {
        ra_device_transfer *const t = ra_device_in_flight(base, which);
        bool all_posted = false;
        if (t == NULL || t->over || t->status != RA_OK)
            continue;
        if (!may_go)
            return;
        t->status = advance(staged, (ra_staged_transfer *)t, &all_posted);
        may_go = t->status == RA_OK && all_posted;
    }
}

/* ---- exchanges ------------------------------------------------------------------------------- */

static ra_status take_message(ra_staged_comm *staged, ra_staged_message *m, size_t bytes)
{
    m->pieces = bytes > 0 ? (int64_t)((bytes - 1) / staged->piece_bytes + 1) : 0;
    m->read = m->posted = m->passed = 0;
    return bytes > 0 ? ra_staged_take_slots(staged, m, bytes) : RA_OK;
}

ra_status ra_staged_start(ra_comm *comm, const ra_exchange *exchange, ra_transfer **transfer_out)
{
    ra_staged_comm *const staged = (ra_staged_comm *)comm;
    ra_device_transfer *head;
    ra_status status = ra_device_take(&staged->base, exchange, &head);
    if (status != RA_OK)
        return status;
    ra_staged_transfer *const t = (ra_staged_transfer *)head;
    if (!t->base.over) {
        t->round = NULL;
        t->lengths = (ra_lengths){0};
        t->lengths_posted = t->begun = false;
        status = take_message(staged, &t->recv, t->base.recv.bytes);
        if (status == RA_OK)
            status = take_message(staged, &t->send, t->base.send.bytes);
    }
    if (status != RA_OK) {
        t->base.base.in_use = false;
        return status;
    }
    ra_staged_progress(&staged->base); /* what fails in it is told by the wait */
    *transfer_out = &t->base.base;
    return RA_OK;
}

int ra_staged_missing_peer(ra_comm *comm, ra_transfer *transfer)
{
    const ra_staged_transfer *const t = (const ra_staged_transfer *)transfer;
    ra_device_poll(comm);
    return ra_device_missing_peer((ra_device_comm *)comm, &t->base,
                                  t->lengths.transfer != NULL ? t->lengths.transfer : t->round);
}
