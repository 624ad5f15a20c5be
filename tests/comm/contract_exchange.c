/* Exchanges: what arrives, in which order, and what is counted. */
#include "contract_internal.h"
#include "support/test_rng.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- exchanges ------------------------------------------------------------------------------- */

/* Every rank sends `bytes` to the rank at every distance, itself included, and gets as much. */
static int shifts(ra_comm *comm, size_t bytes)
{
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int failures = 0;
    unsigned char *const out = malloc(bytes), *const in = malloc(bytes);
    for (int distance = 0; distance < size; distance++) {
        int const to = (rank + distance) % size, from = (rank + size - distance) % size;
        ra_exchange const exchange = {"shift", distance, {to, out, bytes}, {from, in, bytes}};
        ra_transfer *transfer = NULL;
        contract_fill(out, bytes, rank, to, distance);
        memset(in, 0xEE, bytes);
        EXPECT(ra_comm_start(comm, &exchange, &transfer) == RA_OK);
        EXPECT(transfer != NULL);
        EXPECT(ra_comm_wait(comm, transfer) == RA_OK);
        EXPECT(contract_matches(in, bytes, from, rank, distance));
        EXPECT(contract_matches(out, bytes, rank, to, distance));
    }
    free(out);
    free(in);
    return failures;
}

/* A message of no bytes does not exist: the other side need not know of it. */
static int empty_messages_are_not_sent(ra_comm *comm)
{
    int const size = ra_comm_size(comm), next = (ra_comm_rank(comm) + 1) % size;
    ra_exchange const sending = {"nothing", 0, .send = {next, NULL, 0}};
    ra_exchange const receiving = {"nothing", 0, .recv = {next, NULL, 0}};
    ra_exchange const idle = {.operation = "nothing at all"};
    const ra_exchange *const all[] = {&sending, &receiving, &idle};
    int failures = 0;
    for (int i = 0; i < 3; i++) {
        ra_transfer *transfer = NULL;
        EXPECT(ra_comm_start(comm, all[i], &transfer) == RA_OK);
        EXPECT(ra_comm_wait(comm, transfer) == RA_OK);
    }
    EXPECT(ra_comm_wait(comm, NULL) == RA_OK);
    return failures;
}

/* Two exchanges of different lengths in flight with the same peers, waited for in either order. */
static int two_in_flight(ra_comm *comm, bool second_first)
{
    enum { BYTES = 5000 };
    static const size_t lengths[2] = {BYTES, 17};
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int const to = (rank + 1) % size, from = (rank + size - 1) % size;
    unsigned char out[2][BYTES], in[2][BYTES];
    ra_transfer *transfers[2] = {NULL, NULL};
    int failures = 0;
    for (int i = 0; i < 2; i++) {
        ra_exchange exchange = {
            "two in flight", i, {to, out[i], lengths[i]}, {from, in[i], lengths[i]}};
        contract_fill(out[i], lengths[i], rank, to, 50 + i);
        EXPECT(ra_comm_start(comm, &exchange, &transfers[i]) == RA_OK);
        memset(&exchange, 0, sizeof(exchange)); /* it was copied */
        ra_comm_poll(comm);
    }
    for (int i = 0; i < 2; i++) {
        int const now = second_first ? 1 - i : i;
        EXPECT(ra_comm_wait(comm, transfers[now]) == RA_OK);
        EXPECT(contract_matches(in[now], lengths[now], from, rank, 50 + now));
    }
    return failures;
}

/* Sends in one exchange and the receives in another: matching is by peer, not by exchange. */
static int sends_and_receives_apart(ra_comm *comm)
{
    enum { BYTES = 100000 };
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int const to = (rank + 1) % size, from = (rank + size - 1) % size;
    unsigned char *const out = malloc(BYTES), *const in = malloc(BYTES);
    ra_exchange const sending = {"send apart", 0, .send = {to, out, BYTES}};
    ra_exchange const receiving = {"receive apart", 0, .recv = {from, in, BYTES}};
    int failures = 0;
    bool const in_order =
        ra_comm_of_host(comm) != comm; /* a send may not wait for a later receive */
    for (int send_first = 0; send_first < 2 && !in_order; send_first++) {
        ra_transfer *first = NULL, *second = NULL;
        contract_fill(out, BYTES, rank, to, send_first);
        memset(in, 0xEE, BYTES);
        EXPECT(ra_comm_start(comm, send_first ? &sending : &receiving, &first) == RA_OK);
        EXPECT(ra_comm_start(comm, send_first ? &receiving : &sending, &second) == RA_OK);
        EXPECT(ra_comm_wait(comm, send_first ? second : first) == RA_OK);
        EXPECT(ra_comm_wait(comm, send_first ? first : second) == RA_OK);
        EXPECT(contract_matches(in, BYTES, from, rank, send_first));
    }
    free(out);
    free(in);
    return failures;
}

bool contract_comes_to_end(ra_comm *comm, ra_transfer *transfer)
{
    for (int64_t looks = 0; ra_comm_missing_peer(comm, transfer) >= 0; looks++) {
        if (looks > 1000000) /* slower than the deadline that a wait would have */
            break;
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    return ra_comm_missing_peer(comm, transfer) == -1;
}

/* Whoever asks is told who is missing, until a wait would return at once. */
static int tells_who_is_missing(ra_comm *comm)
{
    int const rank = ra_comm_rank(comm), last = ra_comm_size(comm) - 1;
    unsigned char byte = (unsigned char)rank;
    ra_exchange const exchange = {"missing", 0, {0, &byte, rank == last}, {last, &byte, rank == 0}};
    ra_transfer *transfer = NULL;
    int failures = 0;
    if (last == 0)
        return 0;
    EXPECT(ra_comm_missing_peer(comm, NULL) == -1);
    if (rank == 0) {
        EXPECT(ra_comm_start(comm, &exchange, &transfer) == RA_OK);
        EXPECT(ra_comm_missing_peer(comm, transfer) == last);
    }
    EXPECT(ra_comm_barrier(comm, "missing") == RA_OK);
    if (rank == last)
        EXPECT(ra_comm_start(comm, &exchange, &transfer) == RA_OK);
    EXPECT(contract_comes_to_end(comm, transfer));
    EXPECT(ra_comm_wait(comm, transfer) == RA_OK);
    EXPECT(rank != 0 || byte == (unsigned char)last);
    return failures;
}

/* A collective may run while exchanges are in flight. */
static int collective_amid_transfers(ra_comm *comm)
{
    enum { BYTES = 200000 };
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int const to = (rank + 1) % size, from = (rank + size - 1) % size;
    unsigned char *const out = malloc(BYTES), *const in = malloc(BYTES);
    ra_exchange const exchange = {"amid", 0, {to, out, BYTES}, {from, in, BYTES}};
    ra_transfer *transfer = NULL;
    int64_t sum = rank;
    int failures = 0;
    contract_fill(out, BYTES, rank, to, 3);
    EXPECT(ra_comm_start(comm, &exchange, &transfer) == RA_OK);
    EXPECT(ra_comm_barrier(comm, "amid") == RA_OK);
    EXPECT(ra_comm_reduce_i64(comm, "amid", RA_SUM, &sum, 1) == RA_OK);
    EXPECT(sum == (int64_t)size * (size - 1) / 2);
    EXPECT(ra_comm_wait(comm, transfer) == RA_OK);
    EXPECT(contract_matches(in, BYTES, from, rank, 3));
    free(out);
    free(in);
    return failures;
}

/* Every second rank waits before the collectives, the others after them: all pieces of a message
   from these must reach the first while these are in a collective. */
static int progresses_in_collectives(ra_comm *comm, bool odd_ranks_wait)
{
    enum { BYTES = 200000 };
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int const to = (rank + 1) % size, from = (rank + size - 1) % size;
    int const root = (odd_ranks_wait ? 1 : 2) % size; /* waits, for one that does not */
    bool const waits = (rank % 2 == 1) == odd_ranks_wait;
    unsigned char *const out = malloc(BYTES), *const in = malloc(BYTES);
    ra_exchange const exchange = {"meanwhile", 0, {to, out, BYTES}, {from, in, BYTES}};
    int failures = 0;
    for (int kind = 0; kind < 3; kind++) {
        ra_transfer *transfer = NULL;
        int64_t one = 1;
        contract_fill(out, BYTES, rank, to, kind);
        EXPECT(ra_comm_start(comm, &exchange, &transfer) == RA_OK);
        if (waits)
            EXPECT(ra_comm_wait(comm, transfer) == RA_OK);
        if (kind == 0)
            EXPECT(ra_comm_barrier(comm, "meanwhile") == RA_OK);
        else if (kind == 1)
            EXPECT(ra_comm_reduce_i64(comm, "meanwhile", RA_SUM, &one, 1) == RA_OK);
        else
            EXPECT(ra_comm_broadcast(comm, "meanwhile", root, &one, sizeof(one)) == RA_OK);
        if (!waits)
            EXPECT(ra_comm_wait(comm, transfer) == RA_OK);
        EXPECT(contract_matches(in, BYTES, from, rank, kind));
    }
    free(out);
    free(in);
    return failures;
}

/* Random rounds that all ranks draw alike: who sends how much to whom; waits in random order. */
typedef struct random_round {
    ra_exchange exchange;
    int64_t number;
    ra_transfer *transfer;
} random_round;

/* A message to each rank, from one that has not sent in this round; or none. */
static void draw_round(random_round *round, test_rng *rng, int rank, int size)
{
    uint64_t have_sent = 0; /* a bit per rank */
    round->exchange = (ra_exchange){.operation = "random rounds"};
    for (int to = 0; to < size; to++) {
        int const from = (int)test_rng_between(rng, 0, size - 1);
        int64_t const most = test_rng_chance(rng, 0.25) ? 39999 : 63;
        size_t const bytes = (size_t)test_rng_between(rng, 0, most);
        if ((have_sent >> from & 1) != 0)
            continue;
        have_sent |= UINT64_C(1) << from;
        if (from == rank) {
            round->exchange.send = (ra_message){to, malloc(bytes + 1), bytes};
            contract_fill(round->exchange.send.data, bytes, rank, to, round->number);
        }
        if (to == rank)
            round->exchange.recv = (ra_message){from, calloc(1, bytes + 1), bytes};
    }
}

static int finish_round(ra_comm *comm, random_round *round)
{
    const ra_message *const recv = &round->exchange.recv;
    int failures = 0;
    EXPECT(ra_comm_wait(comm, round->transfer) == RA_OK);
    EXPECT(
        contract_matches(recv->data, recv->bytes, recv->peer, ra_comm_rank(comm), round->number));
    EXPECT(recv->data == NULL || ((const char *)recv->data)[recv->bytes] == 0);
    free(recv->data);
    free(round->exchange.send.data);
    return failures;
}

static int random_rounds(ra_comm *comm, uint64_t seed)
{
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    test_rng shared = {seed}, own = {seed + 77 + (uint64_t)rank};
    int failures = 0;
    for (int pair = 0; pair < 240 && failures == 0; pair++) {
        random_round rounds[2];
        for (int i = 0; i < 2; i++) {
            random_round *const round = &rounds[i];
            round->number = pair * 2 + i;
            draw_round(round, &shared, rank, size);
            EXPECT(ra_comm_start(comm, &round->exchange, &round->transfer) == RA_OK);
            for (int64_t polls = test_rng_between(&own, 0, 3); polls > 0; polls--)
                ra_comm_poll(comm);
        }
        int const first = (int)test_rng_between(&own, 0, 1);
        failures += finish_round(comm, &rounds[first]);
        failures += finish_round(comm, &rounds[1 - first]);
    }
    return failures;
}

static int counts_what_it_moves(ra_comm *comm)
{
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int const to = (rank + 1) % size, from = (rank + size - 1) % size;
    unsigned char out[100], in[100];
    ra_exchange const exchange = {"counted", 0, {to, out, 100}, {from, in, 100}};
    ra_exchange const nothing = {"nothing", 1, {to, out, 0}, {from, in, 0}};
    ra_transfer *transfer = NULL, *empty = NULL;
    ra_comm_stats stats;
    int64_t one = 1;
    int failures = 0;
    memset(out, 1, sizeof(out));
    ra_comm_reset_stats(comm);
    ra_comm_read_stats(comm, &stats);
    EXPECT(stats.sent_bytes == 0 && stats.sent_messages == 0 && stats.received_bytes == 0);
    EXPECT(stats.wait_ms == 0.0);
    EXPECT(ra_comm_start(comm, &exchange, &transfer) == RA_OK);
    EXPECT(ra_comm_start(comm, &nothing, &empty) == RA_OK);
    EXPECT(ra_comm_wait(comm, empty) == RA_OK);
    ra_comm_read_stats(comm, &stats);
    EXPECT(stats.sent_bytes == 100 && stats.sent_messages == 1 && stats.received_bytes == 0);
    EXPECT(ra_comm_wait(comm, transfer) == RA_OK);
    EXPECT(ra_comm_reduce_i64(comm, "not counted", RA_SUM, &one, 1) == RA_OK);
    ra_comm_read_stats(comm, &stats);
    EXPECT(stats.sent_bytes == 100 && stats.sent_messages == 1 && stats.received_bytes == 100);
    EXPECT(stats.wait_ms > 0.0);
    return failures;
}

/* Between GPUs they need not progress there. */
static int some_wait_before_a_collective(ra_comm *comm)
{
    if (ra_comm_of_host(comm) != comm)
        return 0;
    return progresses_in_collectives(comm, false) + progresses_in_collectives(comm, true);
}

static int shift_bytes(ra_comm *comm)
{
    return shifts(comm, 1);
}

static int shift_pages(ra_comm *comm)
{
    return shifts(comm, 4097);
}

static int shift_megabytes(ra_comm *comm)
{
    return shifts(comm, (3 << 20) + 5);
}

static int two_in_flight_in_order(ra_comm *comm)
{
    return two_in_flight(comm, false);
}

static int two_in_flight_out_of_order(ra_comm *comm)
{
    return two_in_flight(comm, true);
}

int contract_run_exchanges(ra_comm *comm, uint64_t seed)
{
    static int (*const cases[])(ra_comm * comm) = {
        shift_bytes,
        shift_pages,
        shift_megabytes,
        empty_messages_are_not_sent,
        two_in_flight_in_order,
        two_in_flight_out_of_order,
        sends_and_receives_apart,
        tells_who_is_missing,
        collective_amid_transfers,
        some_wait_before_a_collective,
        counts_what_it_moves,
    };
    int failures = 0;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]) && failures == 0; i++)
        failures = cases[i](comm);
    return failures > 0 ? failures : random_rounds(comm, seed);
}
