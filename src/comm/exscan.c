/*
 * Sums over the ranks before this one: a chain through the ranks. What each sends on is what it
 * got plus its own, so additions happen in the order of ranks and nowhere twice. Pieces follow one
 * another: while a rank adds up one, its neighbours work on the next and the one before.
 */
#include "comm_internal.h"

enum { PIECE_FLOATS = 8192 };

/* A scan on its way along the chain. */
typedef struct chain {
    ra_comm *comm;
    const char *operation;
    int from, to; /* neighbours; -1: none, this is an end of the chain */
    float *before;
    int64_t count;
    float *onward; /* [PIECE_FLOATS] what the next rank gets: before + own of the last piece */
} chain;

static int64_t piece_floats(const chain *c, int64_t begin)
{
    return ra_min_i64(PIECE_FLOATS, c->count - begin);
}

/* Send the piece before `begin`, which lies in c->onward, and receive that at `begin`. */
static ra_status exchange_pieces(chain *c, int64_t begin)
{
    bool const sends = c->to >= 0 && begin > 0, receives = c->from >= 0 && begin < c->count;
    ra_exchange exchange = {.operation = c->operation, .step = -1};
    if (!sends && !receives)
        return RA_OK;
    if (sends) /* every piece but the last is whole */
        exchange.send = (ra_message){c->to, c->onward,
                                     (size_t)piece_floats(c, begin - PIECE_FLOATS) * sizeof(float)};
    if (receives)
        exchange.recv = (ra_message){c->from, c->before + begin,
                                     (size_t)piece_floats(c, begin) * sizeof(float)};
    return ra_comm_exchange(c->comm, &exchange);
}

static ra_status scan_over(ra_comm *comm, const char *operation, ra_scan scan, const float *own,
                           float *before_out, int64_t count)
{
    /* Not on the stack: after a timeout here, a late rank may still get it, and must not get
       anything else. */
    static _Thread_local float onward[PIECE_FLOATS];
    int const way = scan == RA_SCAN_UP ? 1 : -1;
    int const from = ra_comm_rank(comm) - way, to = ra_comm_rank(comm) + way;
    int const size = ra_comm_size(comm);
    chain c = {.comm = comm,
               .operation = operation,
               .from = from >= 0 && from < size ? from : -1,
               .to = to >= 0 && to < size ? to : -1,
               .before = before_out,
               .count = count,
               .onward = onward};
    /* One round more than there are pieces: it sends the last. */
    for (int64_t begin = 0; begin < count + PIECE_FLOATS; begin += PIECE_FLOATS) {
        ra_status const status = exchange_pieces(&c, begin);
        if (status != RA_OK)
            return status;
        for (int64_t i = begin; i < count && i < begin + PIECE_FLOATS; ++i) {
            before_out[i] = c.from >= 0 ? before_out[i] : 0;
            c.onward[i - begin] = before_out[i] + own[i];
        }
    }
    return RA_OK;
}

ra_status ra_comm_exscan_f32(ra_comm *comm, const char *operation, ra_scan scan, const float *own,
                             float *before_out, int64_t count)
{
    RA_ASSERT(operation != NULL && count >= 0);
    RA_ASSERT((own != NULL && before_out != NULL) || count == 0);
    if (comm->broken)
        return RA_ERR_PEER;
    ra_comm *const host = ra_comm_of_host(comm); /* sums are taken in host memory */
    ra_comm_stats const begin = host->stats;
    ra_status status = comm->ops->drain != NULL ? comm->ops->drain(comm) : RA_OK;
    if (status == RA_OK)
        status = scan_over(host, operation, scan, own, before_out, count);
    if (host == comm)
        return status;
    comm->stats.sent_bytes += host->stats.sent_bytes - begin.sent_bytes;
    comm->stats.sent_messages += host->stats.sent_messages - begin.sent_messages;
    comm->stats.received_bytes += host->stats.received_bytes - begin.received_bytes;
    comm->stats.wait_ms += host->stats.wait_ms - begin.wait_ms;
    if (status != RA_OK)
        ra_comm_break(comm);
    return status;
}
