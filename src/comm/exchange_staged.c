/*
 * Exchanges through pinned memory, in rounds: a round carries the next piece of each message over
 * the host's communicator. While it travels, the pieces after it are copied from the device, and
 * those before it to the device.
 *
 * Exchanges follow one another, and in one its messages of one direction and peer: first their
 * lengths, then their pieces. So what travels between two ranks has one order on either side.
 */
#include "comm_staged.h"

#include <string.h>

static bool is_send(const ra_staged_transfer *t, int index)
{
    return index >= t->base.recv_count;
}

static char *piece_at(const ra_staged_comm *staged, const ra_staged_transfer *t, int index,
                      int64_t piece, size_t *bytes_out)
{
    const ra_message *const m = &t->base.messages[index];
    size_t const begin = (size_t)piece * staged->piece_bytes;
    size_t const left = m->bytes - begin;
    *bytes_out = left < staged->piece_bytes ? left : staged->piece_bytes;
    return (char *)m->data + begin;
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

/* From the device, as far ahead of what has passed as there are slots. */
static ra_status read_ahead(ra_staged_comm *staged, ra_staged_transfer *t, int index)
{
    ra_staged_message *const m = &t->messages[index];
    ra_status status = RA_OK;
    while (status == RA_OK && m->read < m->pieces && m->read < m->passed + 2) {
        ra_staged_slot *const slot = &m->slots[m->read % 2];
        size_t bytes;
        const char *const from = piece_at(staged, t, index, m->read, &bytes);
        status = copy(staged, t, slot, slot->data, from, bytes, staged->out);
        m->read++;
    }
    return status;
}

/* Of a piece that has come, to the device. */
static ra_status write_back(ra_staged_comm *staged, ra_staged_transfer *t, int index)
{
    ra_staged_message *const m = &t->messages[index];
    ra_staged_slot *const slot = &m->slots[m->passed % 2];
    size_t bytes;
    char *const to = piece_at(staged, t, index, m->passed, &bytes);
    return copy(staged, t, slot, to, slot->data, bytes, staged->in);
}

/* Whether the last copy of a slot is done. */
static ra_status look_copied(ra_staged_comm *staged, ra_staged_transfer *t,
                             const ra_staged_slot *slot, bool *done_out)
{
    cudaError_t const error = cudaEventQuery(slot->copied);
    *done_out = error == cudaSuccess;
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return RA_OK;
    }
    return ra_device_status(&staged->base, &t->base, NULL, error);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

/* Whether a message of the same direction and peer that comes before it has pieces left to post. */
static bool is_behind(const ra_staged_transfer *t, int index)
{
    for (int i = 0; i < index; i++) {
        if (is_send(t, i) == is_send(t, index) &&
            t->base.messages[i].peer == t->base.messages[index].peer &&
            t->messages[i].posted < t->messages[i].pieces)
            return true;
    }
    return false;
}

/* Which messages the next round has a piece of; *ready_out: whether their slots are. */
static ra_status choose_round(ra_staged_comm *staged, ra_staged_transfer *t, int *count_out,
                              bool *ready_out)
{
    ra_status status = RA_OK;
    *count_out = 0;
    *ready_out = true;
    for (int i = 0; i < t->base.count && status == RA_OK; i++) {
        ra_staged_message *const m = &t->messages[i];
        bool done = true;
        m->in_round = m->posted < m->pieces && !is_behind(t, i);
        if (!m->in_round)
            continue;
        (*count_out)++;
        /* A send's piece must have been read; a receive's slot must have been emptied. */
        if (is_send(t, i) || m->posted >= 2)
            status = look_copied(staged, t, &m->slots[m->posted % 2], &done);
        *ready_out = *ready_out && done;
    }
    return status;
}

static ra_status post_round(ra_staged_comm *staged, ra_staged_transfer *t)
{
    ra_message recvs[2 * RA_EXCHANGE_MAX], sends[2 * RA_EXCHANGE_MAX];
    ra_exchange exchange = {.operation = t->base.base.operation,
                            .step = t->base.base.step,
                            .sends = sends,
                            .recvs = recvs};
    for (int i = 0; i < t->base.count; i++) {
        ra_staged_message *const m = &t->messages[i];
        ra_message piece = {t->base.messages[i].peer, m->slots[m->posted % 2].data, 0};
        if (!m->in_round)
            continue;
        (void)piece_at(staged, t, i, m->posted, &piece.bytes);
        m->posted++;
        if (is_send(t, i))
            sends[exchange.send_count++] = piece;
        else
            recvs[exchange.recv_count++] = piece;
    }
    t->base.phase = "under way";
    return ra_comm_start(staged->base.host, &exchange, &t->round);
}

static bool all_passed(const ra_staged_transfer *t)
{
    for (int i = 0; i < t->base.count; i++) {
        if (t->messages[i].passed < t->messages[i].pieces)
            return false;
    }
    return true;
}

/* A round that has come to its end: what it brought goes to the device. */
static ra_status end_round(ra_staged_comm *staged, ra_staged_transfer *t)
{
    if (t->round == NULL || ra_comm_missing_peer(staged->base.host, t->round) >= 0)
        return RA_OK;
    ra_status status = ra_comm_wait(staged->base.host, t->round);
    t->round = NULL;
    for (int i = 0; i < t->base.count && status == RA_OK; i++) {
        ra_staged_message *const m = &t->messages[i];
        if (!m->in_round)
            continue;
        if (!is_send(t, i))
            status = write_back(staged, t, i);
        m->passed++;
        m->in_round = false;
    }
    if (status == RA_OK && all_passed(t))
        ra_device_time_end(&t->base, staged->in);
    return status;
}

static ra_status begin_round(ra_staged_comm *staged, ra_staged_transfer *t, bool *all_posted_out)
{
    ra_status status = RA_OK;
    int count = 0;
    bool ready = false;
    *all_posted_out = false;
    for (int i = t->base.recv_count; i < t->base.count && status == RA_OK; i++)
        status = read_ahead(staged, t, i);
    if (status != RA_OK || t->round != NULL)
        return status;
    status = choose_round(staged, t, &count, &ready);
    *all_posted_out = status == RA_OK && count == 0;
    return status == RA_OK && count > 0 && ready ? post_round(staged, t) : status;
}

/* Whether everything that was received lies on the device. */
static ra_status look_over(ra_staged_comm *staged, ra_staged_transfer *t)
{
    bool over = true;
    ra_status status = RA_OK;
    for (int i = 0; i < t->base.recv_count && status == RA_OK && over; i++) {
        for (int s = 0; s < 2 && status == RA_OK && over; s++) {
            if (t->messages[i].pieces > s)
                status = look_copied(staged, t, &t->messages[i].slots[s], &over);
        }
    }
    t->base.over = over && status == RA_OK;
    return status;
}

static ra_status advance(ra_staged_comm *staged, ra_staged_transfer *t, bool *all_posted_out)
{
    *all_posted_out = false;
    ra_status status = RA_OK;
    if (!t->lengths_posted) /* only now: they go the way of the pieces */
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

static ra_status take_messages(ra_staged_comm *staged, ra_staged_transfer *t)
{
    ra_status status = RA_OK;
    for (int i = 0; i < t->base.count && status == RA_OK; i++) {
        ra_staged_message *const m = &t->messages[i];
        size_t const bytes = t->base.messages[i].bytes;
        m->pieces = (int64_t)((bytes - 1) / staged->piece_bytes + 1);
        m->read = m->posted = m->passed = 0;
        m->in_round = false;
        status = ra_staged_take_slots(staged, m, bytes);
    }
    return status;
}

ra_status ra_staged_start(ra_comm *comm, const ra_exchange *exchange, ra_transfer **transfer_out)
{
    ra_staged_comm *const staged = (ra_staged_comm *)comm;
    ra_staged_transfer *const t = (ra_staged_transfer *)ra_device_take(&staged->base, exchange);
    ra_status status = t != NULL ? RA_OK : RA_ERR_CUDA;
    if (t != NULL && !t->base.over) {
        t->round = NULL;
        t->lengths = (ra_lengths){0};
        t->lengths_posted = t->begun = false;
        status = take_messages(staged, t);
    }
    if (status != RA_OK) {
        ra_comm_break(comm);
        if (t != NULL)
            t->base.base.in_use = false;
        return status;
    }
    ra_staged_progress(&staged->base); /* what fails in it is told by the wait */
    *transfer_out = &t->base.base;
    return RA_OK;
}

int ra_staged_missing_peer(ra_comm *comm, ra_transfer *transfer)
{
    ra_staged_comm *const staged = (ra_staged_comm *)comm;
    ra_staged_transfer *const t = (ra_staged_transfer *)transfer;
    ra_device_poll(comm);
    if (t->base.over || t->base.status != RA_OK)
        return -1;
    ra_transfer *const travelling = t->lengths.transfer != NULL ? t->lengths.transfer : t->round;
    int const peer = travelling != NULL ? ra_comm_missing_peer(staged->base.host, travelling) : -1;
    return peer >= 0 ? peer : t->base.messages[0].peer;
}
