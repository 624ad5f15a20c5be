/* Dispatch: what holds for every communicator is checked, counted and remembered here. */
#include "comm_internal.h"

#include "kernel_files.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

void ra_comm_init(ra_comm *comm, const ra_comm_ops *ops, int rank, int size, int64_t timeout_ms)
{
    RA_ASSERT(timeout_ms >= 1);
    RA_ASSERT(rank >= 0 && rank < size);
    *comm = (ra_comm){
        .ops = ops, .rank = rank, .size = size, .timeout_ms = ra_clamp_timeout(timeout_ms)};
    comm->beat_ns = ra_clock_ns(); /* as if one had just been sent: short work needs none */
    if (gethostname(comm->host, sizeof(comm->host)) != 0)
        strcpy(comm->host, "unknown");
}

uint64_t ra_hash_text(uint64_t hash, const char *text)
{
    for (const char *c = text; *c != '\0'; c++)
        hash = (hash ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
    return hash;
}

int64_t ra_comm_host_id(const ra_comm *comm)
{
    char boot[RA_KERNEL_LINE_MAX];
    if (!ra_kernel_line("", "/proc/sys/kernel/random", "boot_id", "", boot))
        boot[0] = '\0';
    uint64_t const hash = ra_hash_text(UINT64_C(0xcbf29ce484222325), comm->host);
    return (int64_t)ra_hash_text(hash, boot);
}

/* ---- lines ----------------------------------------------------------------------------------- */

const char *ra_comm_where(const ra_comm *comm, int step, char *text, size_t bytes)
{
    if (step >= 0)
        snprintf(text, bytes, "rank %d on host %s, step %d", comm->rank, comm->host, step);
    else
        snprintf(text, bytes, "rank %d on host %s", comm->rank, comm->host);
    return text;
}

void ra_comm_log_timeout(const ra_comm *comm, const char *operation, int step, int peer)
{
    ra_comm_log_timeout_with(comm, operation, step, peer, "");
}

void ra_comm_log_timeout_with(const ra_comm *comm, const char *operation, int step, int peer,
                              const char *record)
{
    char where[128];
    ra_log(RA_LOG_ERROR,
           "%s timed out after %g s (%s, waiting for rank %d): rank %d is stopped, lost or too "
           "slow; look at its host, or raise comm.timeout%s",
           operation, (double)comm->timeout_ms / 1000.0,
           ra_comm_where(comm, step, where, sizeof(where)), peer, peer, record);
}

void ra_comm_log_timeout_of_some(const ra_comm *comm, ra_log_level level, const char *operation,
                                 const char *advice)
{
    char where[128];
    ra_log(level, "%s timed out after %g s (%s, waiting for some of ranks 0 to %d)%s", operation,
           (double)comm->timeout_ms / 1000.0, ra_comm_where(comm, -1, where, sizeof(where)),
           comm->size - 1, advice);
}

void ra_comm_log_mismatch(const ra_comm *comm, const char *operation, int step, int peer,
                          int64_t sent_bytes, int64_t expected_bytes)
{
    char where[128], sent[64];
    if (sent_bytes < 0)
        snprintf(sent, sizeof(sent), "more than %lld bytes", (long long)expected_bytes);
    else
        snprintf(sent, sizeof(sent), "%lld bytes", (long long)sent_bytes);
    ra_log(RA_LOG_ERROR,
           "%s got %s instead of %lld (%s, from rank %d): the ranks do not run the same job; start "
           "them with one program and one configuration",
           operation, sent, (long long)expected_bytes,
           ra_comm_where(comm, step, where, sizeof(where)), peer);
}

void ra_comm_log_disagreement(const ra_comm *comm, const char *operation, int peer)
{
    char where[128];
    ra_log(RA_LOG_ERROR,
           "%s met another collective (%s, from rank %d): the ranks do not run the same job; start "
           "them with one program and one configuration",
           operation, ra_comm_where(comm, -1, where, sizeof(where)), peer);
}

/* ---- facts and statistics -------------------------------------------------------------------- */

int ra_comm_rank(const ra_comm *comm)
{
    return comm->rank;
}

int ra_comm_size(const ra_comm *comm)
{
    return comm->size;
}

const char *ra_comm_name(const ra_comm *comm)
{
    return comm->ops->name;
}

const char *ra_comm_host(const ra_comm *comm)
{
    return comm->host;
}

int ra_comm_local_size(const ra_comm *comm)
{
    return ra_hosts_count_local(comm->hosts, comm->size, comm->rank);
}

const int *ra_comm_hosts(const ra_comm *comm)
{
    return comm->hosts;
}

int64_t ra_comm_timeout_ms(const ra_comm *comm)
{
    return comm->timeout_ms;
}

bool ra_comm_is_broken(const ra_comm *comm)
{
    return comm->broken;
}

int ra_hosts_count_local(const int *hosts, int size, int rank)
{
    int count = 0;
    for (int other = 0; other < size; other++)
        count += hosts[other] == hosts[rank];
    return count;
}

int ra_hosts_place(const int *hosts, int rank)
{
    return ra_hosts_count_local(hosts, rank, rank);
}

void ra_comm_read_stats(const ra_comm *comm, ra_comm_stats *stats_out)
{
    *stats_out = comm->stats;
}

void ra_comm_reset_stats(ra_comm *comm)
{
    comm->stats = (ra_comm_stats){0};
}

void ra_comm_set_timeout(ra_comm *comm, int64_t timeout_ms)
{
    RA_ASSERT(timeout_ms >= 1);
    comm->timeout_ms = ra_clamp_timeout(timeout_ms);
    if (comm->of_host != NULL)
        ra_comm_set_timeout(comm->of_host, timeout_ms);
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/* Any failure leaves the ranks at different places in the sequence: there is no way back, and what
   is in flight, which nobody may ever send, must not be waited for by who gives memory back. */
static ra_status break_if_failed(ra_comm *comm, ra_status status)
{
    if (status != RA_OK)
        ra_comm_break(comm);
    return status;
}

static void check_message(const ra_comm *comm, const ra_message *message)
{
    RA_ASSERT(message->peer >= 0 && message->peer < comm->size);
    RA_ASSERT(message->data != NULL || message->bytes == 0);
}

ra_status ra_comm_start(ra_comm *comm, const ra_exchange *exchange, ra_transfer **transfer_out)
{
    RA_ASSERT(exchange->operation != NULL);
    check_message(comm, &exchange->send);
    check_message(comm, &exchange->recv);
    if (comm->broken)
        return RA_ERR_PEER;
    RA_ASSERT(comm->in_flight < RA_TRANSFER_MAX);

    ra_transfer *transfer = NULL;
    ra_status const status = break_if_failed(comm, comm->ops->start(comm, exchange, &transfer));
    if (status != RA_OK)
        return status;

    comm->stats.sent_bytes += (int64_t)exchange->send.bytes;
    comm->stats.sent_messages += exchange->send.bytes > 0;
    transfer->recv_bytes = (int64_t)exchange->recv.bytes;
    comm->in_flight++;
    *transfer_out = transfer;
    return RA_OK;
}

int64_t ra_waited_ms(ra_comm *comm, int64_t begin_ns, int64_t now_ns)
{
    int64_t const most_ns = comm->timeout_ms * 1000000 / 8;
    int64_t since_ns = ra_max_i64(begin_ns, ra_max_i64(comm->heard_ns, comm->excused_ns));
    int64_t const unseen_ns = now_ns - ra_max_i64(since_ns, comm->looked_ns);
    if (unseen_ns > most_ns) {
        since_ns += unseen_ns - most_ns;
        comm->excused_ns = since_ns;
    }
    comm->looked_ns = now_ns;
    return (now_ns - since_ns) / 1000000;
}

int64_t ra_beat_interval_ms(const ra_comm *comm)
{
    return ra_min_i64(comm->timeout_ms / 8, 10000);
}

bool ra_beat_is_due(ra_comm *comm, int64_t now_ns)
{
    if ((now_ns - comm->beat_ns) / 1000000 < ra_beat_interval_ms(comm))
        return false;
    comm->beat_ns = now_ns;
    return true;
}

void ra_comm_beat(ra_comm *comm)
{
    if (comm == NULL || comm->broken)
        return;
    if (comm->ops->beat != NULL)
        comm->ops->beat(comm);
    else
        ra_comm_beat(comm->of_host);
}

void ra_comm_poll(ra_comm *comm)
{
    if (!comm->broken && comm->in_flight > 0 && comm->ops->poll != NULL)
        comm->ops->poll(comm);
}

ra_status ra_comm_wait(ra_comm *comm, ra_transfer *transfer)
{
    if (transfer == NULL)
        return RA_OK;
    RA_ASSERT(comm->in_flight > 0);
    comm->in_flight--;
    if (comm->broken)
        return RA_ERR_PEER;

    int64_t const recv_bytes = transfer->recv_bytes; /* the transfer does not outlive the wait */
    int64_t const begin_ns = ra_clock_ns();
    ra_status const status = break_if_failed(comm, comm->ops->wait(comm, transfer));
    comm->stats.wait_ms += (double)(ra_clock_ns() - begin_ns) / 1e6;
    if (status == RA_OK)
        comm->stats.received_bytes += recv_bytes;
    return status;
}

ra_status ra_comm_exchange(ra_comm *comm, const ra_exchange *exchange)
{
    ra_transfer *transfer = NULL;
    ra_status const status = ra_comm_start(comm, exchange, &transfer);
    return status == RA_OK ? ra_comm_wait(comm, transfer) : status;
}

int ra_comm_missing_peer(ra_comm *comm, ra_transfer *transfer)
{
    if (comm->broken || transfer == NULL)
        return -1;
    return comm->ops->missing_peer(comm, transfer);
}

ra_comm *ra_comm_of_host(ra_comm *comm)
{
    return comm->of_host != NULL ? comm->of_host : comm;
}

void ra_comm_set_stream(ra_comm *comm, ra_stream *stream)
{
    comm->stream = stream;
}

bool ra_comm_memory(ra_comm *comm, ra_memory *memory_out)
{
    return comm->ops->memory != NULL && comm->ops->memory(comm, memory_out);
}

void ra_comm_set_watch(ra_comm *comm, ra_comm_watch *watch, void *context)
{
    comm->watch = watch;
    comm->watch_context = context;
}

void ra_comm_time(ra_comm *comm, ra_timed timed)
{
    comm->timed = timed;
}

ra_status ra_comm_look(ra_comm *comm)
{
    if (comm->broken)
        return RA_ERR_PEER;
    if (comm->ops->look != NULL)
        return comm->ops->look(comm);
    ra_comm *const host = comm->of_host;
    if (host == NULL)
        return RA_OK;
    ra_status const status = ra_comm_look(host);
    comm->heard_ns = host->heard_ns;
    return status;
}

void ra_comm_break(ra_comm *comm)
{
    if (comm->broken)
        return;
    comm->broken = true;
    if (comm->ops->fail != NULL)
        comm->ops->fail(comm);
}

/* ---- collectives ----------------------------------------------------------------------------- */

ra_status ra_comm_barrier(ra_comm *comm, const char *operation)
{
    RA_ASSERT(operation != NULL);
    if (comm->broken)
        return RA_ERR_PEER;
    ra_comm *const host = comm->of_host;
    ra_status status = RA_OK;
    if (comm->ops->barrier != NULL)
        status = comm->ops->barrier(comm, operation);
    else if (host != NULL)
        status = ra_comm_barrier(host, operation);
    return break_if_failed(comm, status);
}

ra_status ra_window_barrier(ra_comm *comm, const ra_window *window, const char *operation, int step)
{
    RA_ASSERT(operation != NULL && window->meeting != NULL);
    if (comm->broken)
        return RA_ERR_PEER;
    int64_t const begin_ns = ra_clock_ns();
    ra_status const status = comm->ops->meet != NULL
                                 ? comm->ops->meet(comm, window, operation, step)
                                 : ra_window_meet(comm, window, operation, step);
    comm->stats.wait_ms += (double)(ra_clock_ns() - begin_ns) / 1e6;
    return break_if_failed(comm, status);
}

ra_status ra_comm_broadcast(ra_comm *comm, const char *operation, int root, void *data,
                            size_t bytes)
{
    RA_ASSERT(operation != NULL);
    RA_ASSERT(root >= 0 && root < comm->size);
    RA_ASSERT(data != NULL || bytes == 0);
    if (comm->broken)
        return RA_ERR_PEER;
    if (bytes == 0)
        return RA_OK;
    ra_comm *const host = comm->of_host;
    ra_status status = RA_OK;
    if (comm->ops->broadcast != NULL)
        status = comm->ops->broadcast(comm, operation, root, data, bytes);
    else if (host != NULL)
        status = ra_comm_broadcast(host, operation, root, data, bytes);
    return break_if_failed(comm, status);
}

ra_status ra_comm_broadcast_by_host(ra_comm *comm, const char *operation, void *data, size_t bytes)
{
    char other[64];
    ra_status status = RA_OK;
    RA_ASSERT(bytes <= sizeof(other));
    for (int rank = 0, host = 0; rank < comm->size && status == RA_OK; rank++) {
        if (comm->hosts[rank] != host)
            continue; /* not the first rank of the next host */
        bool const is_own = host == comm->hosts[comm->rank];
        status = ra_comm_broadcast(comm, operation, rank, is_own ? data : other, bytes);
        host++;
    }
    return status;
}

ra_status ra_comm_reduce(ra_comm *comm, const char *operation, ra_number number, ra_reduce reduce,
                         void *values, int count)
{
    RA_ASSERT(operation != NULL);
    RA_ASSERT(count >= 0 && (values != NULL || count == 0));
    if (comm->broken)
        return RA_ERR_PEER;
    if (count == 0)
        return RA_OK;
    ra_comm *const host = comm->of_host;
    ra_status status = RA_OK;
    if (comm->ops->reduce != NULL)
        status = comm->ops->reduce(comm, operation, number, reduce, values, count);
    else if (host != NULL)
        status = ra_comm_reduce(host, operation, number, reduce, values, count);
    return break_if_failed(comm, status);
}

ra_status ra_comm_reduce_i64(ra_comm *comm, const char *operation, ra_reduce reduce,
                             int64_t *values, int count)
{
    return ra_comm_reduce(comm, operation, RA_NUMBER_I64, reduce, values, count);
}

ra_status ra_comm_reduce_f64(ra_comm *comm, const char *operation, ra_reduce reduce, double *values,
                             int count)
{
    return ra_comm_reduce(comm, operation, RA_NUMBER_F64, reduce, values, count);
}

ra_status ra_comm_allgather_i64(ra_comm *comm, const char *operation, const int64_t *own, int count,
                                int64_t *all_out)
{
    size_t const each = (size_t)count, size = (size_t)comm->size;
    memset(all_out, 0, size * each * sizeof(*all_out));
    memcpy(all_out + (size_t)comm->rank * each, own, each * sizeof(*own));
    return ra_comm_reduce_i64(comm, operation, RA_SUM, all_out, comm->size * count);
}

/* ---- the end --------------------------------------------------------------------------------- */

void ra_comm_abort(ra_comm *comm, int exit_code)
{
    comm->broken = true;
    if (comm->ops->abort != NULL)
        comm->ops->abort(comm, exit_code);
    else if (comm->ops->fail != NULL)
        comm->ops->fail(comm);
}

void ra_comm_destroy(ra_comm *comm)
{
    if (comm == NULL)
        return;
    RA_ASSERT(comm->in_flight == 0 || comm->broken);
    comm->ops->destroy(comm);
}
