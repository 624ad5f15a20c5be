/* The healthy half of the contract: what arrives, in which order, and what is counted. */
#include "contract_internal.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- lines ----------------------------------------------------------------------------------- */

enum { LINES_MAX = 64 };

static pthread_mutex_t lines_mutex = PTHREAD_MUTEX_INITIALIZER;
static char lines[LINES_MAX][1024];
static int line_count;

static void keep_line(void *context, ra_log_level level, const char *line)
{
    (void)context;
    (void)level;
    pthread_mutex_lock(&lines_mutex);
    if (line_count < LINES_MAX)
        snprintf(lines[line_count++], sizeof(lines[0]), "%s", line);
    pthread_mutex_unlock(&lines_mutex);
}

void contract_capture_log(void)
{
    ra_log_set_handler(keep_line, NULL);
}

static atomic_bool is_found;

static void raise_found(void)
{
    is_found = true;
}

static bool found_is_raised(void)
{
    return is_found;
}

contract_flag contract_found = {raise_found, found_is_raised};

void contract_clear_log(void)
{
    is_found = false;
    pthread_mutex_lock(&lines_mutex);
    line_count = 0;
    pthread_mutex_unlock(&lines_mutex);
}

int contract_count_lines(const char *text, const char *other_text)
{
    int count = 0;
    pthread_mutex_lock(&lines_mutex);
    for (int i = 0; i < line_count; i++)
        count += strstr(lines[i], text) != NULL && strstr(lines[i], other_text) != NULL;
    pthread_mutex_unlock(&lines_mutex);
    return count;
}

void contract_print_log(void)
{
    pthread_mutex_lock(&lines_mutex);
    for (int i = 0; i < line_count; i++)
        fprintf(stderr, "logged: %s\n", lines[i]);
    pthread_mutex_unlock(&lines_mutex);
}

/* ---- contents -------------------------------------------------------------------------------- */

void contract_fill(unsigned char *data, size_t bytes, int from, int to, int64_t number)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = contract_byte(from, to, number, i);
}

bool contract_matches(const unsigned char *data, size_t bytes, int from, int to, int64_t number)
{
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] != contract_byte(from, to, number, i))
            return false;
    }
    return true;
}

static uint64_t draw(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/* Every rank sends `bytes` to the rank at every distance, itself included, and gets as much. */
static int shifts(ra_comm *comm, size_t bytes)
{
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int failures = 0;
    unsigned char *const out = malloc(bytes), *const in = malloc(bytes);
    for (int distance = 0; distance < size; distance++) {
        int const to = (rank + distance) % size, from = (rank + size - distance) % size;
        ra_message const send = {to, out, bytes}, recv = {from, in, bytes};
        ra_exchange const exchange = {"shift", distance, 1, 1, &send, &recv};
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

/* Several messages to one peer, of different lengths, some of them empty: in the order posted. */
static int many_to_one_peer(ra_comm *comm)
{
    enum { COUNT = RA_EXCHANGE_MAX, BYTES_MAX = 600 };
    static const size_t lengths[COUNT] = {1, 0, 17, 600, 64, 128, 0, 3};
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int const to = (rank + 1) % size, from = (rank + size - 1) % size;
    unsigned char out[COUNT][BYTES_MAX], in[COUNT][BYTES_MAX];
    ra_message sends[COUNT], recvs[COUNT];
    int failures = 0;
    memset(in, 0xEE, sizeof(in));
    for (int i = 0; i < COUNT; i++) {
        contract_fill(out[i], lengths[i], rank, to, i);
        sends[i] = (ra_message){to, lengths[i] > 0 ? out[i] : NULL, lengths[i]};
        recvs[i] = (ra_message){from, in[i], lengths[i]};
    }
    ra_exchange const exchange = {"many to one", -1, COUNT, COUNT, sends, recvs};
    ra_transfer *transfer = NULL;
    EXPECT(ra_comm_start(comm, &exchange, &transfer) == RA_OK);
    memset(sends, 0, sizeof(sends)); /* they were copied */
    memset(recvs, 0, sizeof(recvs));
    EXPECT(ra_comm_wait(comm, transfer) == RA_OK);
    for (int i = 0; i < COUNT; i++) {
        EXPECT(contract_matches(in[i], lengths[i], from, rank, i));
        EXPECT(lengths[i] == BYTES_MAX || in[i][lengths[i]] == 0xEE);
    }
    return failures;
}

/* A message of no bytes does not exist: the other side need not know of it. */
static int empty_messages_are_not_sent(ra_comm *comm)
{
    int const size = ra_comm_size(comm), next = (ra_comm_rank(comm) + 1) % size;
    ra_message const nothing = {next, NULL, 0};
    ra_exchange const sending = {"nothing", 0, 1, 0, &nothing, NULL};
    ra_exchange const receiving = {"nothing", 0, 0, 1, NULL, &nothing};
    ra_exchange const idle = {"nothing at all", 0, 0, 0, NULL, NULL};
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

/* Two exchanges in flight with the same peers, waited for in either order. */
static int two_in_flight(ra_comm *comm, bool second_first)
{
    enum { BYTES = 5000 };
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int const to = (rank + 1) % size, from = (rank + size - 1) % size;
    unsigned char out[2][BYTES], in[2][BYTES];
    ra_transfer *transfers[2] = {NULL, NULL};
    int failures = 0;
    for (int i = 0; i < 2; i++) {
        ra_message const send = {to, out[i], BYTES}, recv = {from, in[i], BYTES};
        ra_exchange const exchange = {"two in flight", i, 1, 1, &send, &recv};
        contract_fill(out[i], BYTES, rank, to, 50 + i);
        EXPECT(ra_comm_start(comm, &exchange, &transfers[i]) == RA_OK);
        ra_comm_poll(comm);
    }
    for (int i = 0; i < 2; i++) {
        int const now = second_first ? 1 - i : i;
        EXPECT(ra_comm_wait(comm, transfers[now]) == RA_OK);
        EXPECT(contract_matches(in[now], BYTES, from, rank, 50 + now));
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
    ra_message const send = {to, out, BYTES}, recv = {from, in, BYTES};
    ra_exchange const sending = {"send apart", 0, 1, 0, &send, NULL};
    ra_exchange const receiving = {"receive apart", 0, 0, 1, NULL, &recv};
    int failures = 0;
    for (int send_first = 0; send_first < 2; send_first++) {
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

/* A collective may run while exchanges are in flight. */
static int collective_amid_transfers(ra_comm *comm)
{
    enum { BYTES = 200000 };
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int const to = (rank + 1) % size, from = (rank + size - 1) % size;
    unsigned char *const out = malloc(BYTES), *const in = malloc(BYTES);
    ra_message const send = {to, out, BYTES}, recv = {from, in, BYTES};
    ra_exchange const exchange = {"amid", 0, 1, 1, &send, &recv};
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

/* Random rounds that all ranks draw alike: who sends how much to whom; waits in random order. */
typedef struct random_round {
    ra_message sends[RA_EXCHANGE_MAX], recvs[RA_EXCHANGE_MAX];
    int send_count, recv_count;
    int64_t number;
    ra_transfer *transfer;
} random_round;

static void draw_round(random_round *round, uint64_t *state, int rank, int size)
{
    enum { PAIRS = RA_EXCHANGE_MAX };
    round->send_count = round->recv_count = 0;
    for (int i = 0; i < PAIRS; i++) { /* at most RA_EXCHANGE_MAX each way, whoever is drawn */
        int const from = (int)(draw(state) % (unsigned)size);
        int const to = (int)(draw(state) % (unsigned)size);
        size_t const bytes = draw(state) % 4 == 0 ? draw(state) % 40000 : draw(state) % 64;
        if (from == rank) {
            ra_message *const send = &round->sends[round->send_count];
            *send = (ra_message){to, malloc(bytes + 1), bytes};
            contract_fill(send->data, bytes, rank, to, round->number * 100 + i);
            round->send_count++;
        }
        if (to == rank) {
            ra_message *const recv = &round->recvs[round->recv_count];
            *recv = (ra_message){from, calloc(1, bytes + 1), bytes};
            ((unsigned char *)recv->data)[bytes] = (unsigned char)i;
            round->recv_count++;
        }
    }
}

static int finish_round(ra_comm *comm, random_round *round)
{
    int failures = 0;
    EXPECT(ra_comm_wait(comm, round->transfer) == RA_OK);
    for (int i = 0; i < round->recv_count; i++) {
        const ra_message *const recv = &round->recvs[i];
        const unsigned char *const data = recv->data;
        EXPECT(contract_matches(data, recv->bytes, recv->peer, ra_comm_rank(comm),
                                round->number * 100 + data[recv->bytes]));
    }
    for (int i = 0; i < round->recv_count; i++)
        free(round->recvs[i].data);
    for (int i = 0; i < round->send_count; i++)
        free(round->sends[i].data);
    return failures;
}

static int random_rounds(ra_comm *comm, uint64_t seed)
{
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    uint64_t shared = seed, own = seed + 77 + (uint64_t)rank;
    int failures = 0;
    for (int pair = 0; pair < 60 && failures == 0; pair++) {
        random_round rounds[2];
        for (int i = 0; i < 2; i++) {
            random_round *const round = &rounds[i];
            round->number = pair * 2 + i;
            draw_round(round, &shared, rank, size);
            ra_exchange const exchange = {"random rounds",   pair,         round->send_count,
                                          round->recv_count, round->sends, round->recvs};
            EXPECT(ra_comm_start(comm, &exchange, &round->transfer) == RA_OK);
            for (uint64_t polls = draw(&own) % 4; polls > 0; polls--)
                ra_comm_poll(comm);
        }
        int const first = (int)(draw(&own) % 2);
        failures += finish_round(comm, &rounds[first]);
        failures += finish_round(comm, &rounds[1 - first]);
    }
    return failures;
}

static int counts_what_it_moves(ra_comm *comm)
{
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int const to = (rank + 1) % size, from = (rank + size - 1) % size;
    unsigned char out[3][100], in[3][100];
    ra_message const sends[] = {{to, out[0], 100}, {to, out[1], 7}, {to, out[2], 0}};
    ra_message const recvs[] = {{from, in[0], 100}, {from, in[1], 7}, {from, in[2], 0}};
    ra_exchange const exchange = {"counted", 0, 3, 3, sends, recvs};
    ra_transfer *transfer = NULL;
    ra_comm_stats stats;
    int64_t one = 1;
    int failures = 0;
    memset(out, 1, sizeof(out));
    ra_comm_reset_stats(comm);
    ra_comm_read_stats(comm, &stats);
    EXPECT(stats.sent_bytes == 0 && stats.sent_messages == 0 && stats.received_bytes == 0);
    EXPECT(stats.wait_ms == 0.0);
    EXPECT(ra_comm_start(comm, &exchange, &transfer) == RA_OK);
    ra_comm_read_stats(comm, &stats);
    EXPECT(stats.sent_bytes == 107 && stats.sent_messages == 2 && stats.received_bytes == 0);
    EXPECT(ra_comm_wait(comm, transfer) == RA_OK);
    EXPECT(ra_comm_reduce_i64(comm, "not counted", RA_SUM, &one, 1) == RA_OK);
    ra_comm_read_stats(comm, &stats);
    EXPECT(stats.sent_bytes == 107 && stats.sent_messages == 2 && stats.received_bytes == 107);
    EXPECT(stats.wait_ms > 0.0);
    return failures;
}

/* ---- collectives ----------------------------------------------------------------------------- */

static int broadcasts(ra_comm *comm)
{
    static const size_t lengths[] = {0, 1, 1000, 3 << 20};
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    unsigned char *const data = malloc(lengths[3]);
    int failures = 0;
    for (int root = 0; root < size; root++) {
        for (int i = 0; i < 4; i++) {
            memset(data, 0xEE, lengths[3]);
            if (rank == root)
                contract_fill(data, lengths[i], root, 0, i);
            EXPECT(ra_comm_broadcast(comm, "broadcast", root, data, lengths[i]) == RA_OK);
            EXPECT(contract_matches(data, lengths[i], root, 0, i));
        }
    }
    free(data);
    return failures;
}

static int reduces_integers(ra_comm *comm)
{
    static const int counts[] = {0, 1, 63, 64, 65, 200};
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int64_t values[200];
    int failures = 0;
    for (int c = 0; c < 6; c++) {
        for (int reduce = RA_SUM; reduce <= RA_MAX; reduce++) {
            for (int i = 0; i < counts[c]; i++)
                values[i] = INT64_C(1) << 53 | (int64_t)(i * 100 + (rank + i) % size);
            EXPECT(ra_comm_reduce_i64(comm, "integers", (ra_reduce)reduce, values, counts[c]) ==
                   RA_OK);
            for (int i = 0; i < counts[c]; i++) {
                int64_t const base = INT64_C(1) << 53 | (int64_t)(i * 100);
                int64_t expected = base;
                if (reduce == RA_SUM) {
                    expected = 0;
                    for (int r = 0; r < size; r++)
                        expected += INT64_C(1) << 53 | (int64_t)(i * 100 + (r + i) % size);
                } else if (reduce == RA_MAX) {
                    expected = INT64_C(1) << 53 | (int64_t)(i * 100 + size - 1);
                }
                EXPECT(values[i] == expected);
            }
        }
    }
    return failures;
}

/* Magnitudes from 1e-8 to 1e8, so that every other order of additions gives other bits. */
static double uneven(int rank, int index)
{
    return (contract_byte(rank, index, 5, 0) - 127.5) *
           pow(10.0, contract_byte(rank, index, 6, 0) % 17 - 8);
}

static int reduces_doubles_alike(ra_comm *comm)
{
    enum { COUNT = 130 };
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int failures = 0;
    for (int reduce = RA_SUM; reduce <= RA_MAX; reduce++) {
        double values[COUNT], expected[COUNT];
        for (int i = 0; i < COUNT; i++) {
            values[i] = uneven(rank, i);
            expected[i] = uneven(0, i);
            for (int r = 1; r < size; r++) {
                double const x = uneven(r, i);
                expected[i] = reduce == RA_SUM   ? expected[i] + x
                              : reduce == RA_MIN ? fmin(expected[i], x)
                                                 : fmax(expected[i], x);
            }
        }
        EXPECT(ra_comm_reduce_f64(comm, "doubles", (ra_reduce)reduce, values, COUNT) == RA_OK);
        EXPECT(memcmp(values, expected, sizeof(values)) == 0);
    }
    return failures;
}

static int a_nan_is_never_lost(ra_comm *comm)
{
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int failures = 0;
    for (int owner = 0; owner < size; owner++) {
        for (int reduce = RA_SUM; reduce <= RA_MAX; reduce++) {
            double values[2] = {rank == owner ? (double)NAN : (double)rank,
                                rank == owner ? (double)INFINITY : -(double)INFINITY};
            EXPECT(ra_comm_reduce_f64(comm, "NaN", (ra_reduce)reduce, values, 2) == RA_OK);
            EXPECT(isnan(values[0]));
            if (reduce == RA_MAX)
                EXPECT(isinf(values[1]) && values[1] > 0);
        }
    }
    return failures;
}

/* Nobody leaves a barrier before the last has entered it, by one clock (all are on one host). */
static int barriers_hold(ra_comm *comm)
{
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int failures = 0;
    for (int late = 0; late < size; late++) {
        struct timespec now;
        if (rank == late)
            nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
        clock_gettime(CLOCK_MONOTONIC, &now);
        int64_t entered = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
        EXPECT(ra_comm_barrier(comm, "barrier") == RA_OK);
        clock_gettime(CLOCK_MONOTONIC, &now);
        int64_t left = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
        EXPECT(ra_comm_reduce_i64(comm, "entered", RA_MAX, &entered, 1) == RA_OK);
        EXPECT(ra_comm_reduce_i64(comm, "left", RA_MIN, &left, 1) == RA_OK);
        EXPECT(left >= entered);
    }
    return failures;
}

static int tells_who_it_is(ra_comm *comm)
{
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int64_t ranks = INT64_C(1) << rank;
    int failures = 0;
    EXPECT(rank >= 0 && rank < size);
    EXPECT(ra_comm_local_size(comm) == size); /* these tests run on one host */
    EXPECT(ra_comm_host(comm)[0] != '\0');
    EXPECT(ra_comm_reduce_i64(comm, "ranks", RA_SUM, &ranks, 1) == RA_OK);
    EXPECT(ranks == (INT64_C(1) << size) - 1);
    return failures;
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

int contract_run_healthy(ra_comm *comm, uint64_t seed)
{
    static int (*const cases[])(ra_comm * comm) = {
        tells_who_it_is,
        shift_bytes,
        shift_pages,
        shift_megabytes,
        many_to_one_peer,
        empty_messages_are_not_sent,
        two_in_flight_in_order,
        two_in_flight_out_of_order,
        sends_and_receives_apart,
        collective_amid_transfers,
        counts_what_it_moves,
        broadcasts,
        reduces_integers,
        reduces_doubles_alike,
        a_nan_is_never_lost,
        barriers_hold,
    };
    int failures = 0;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]) && failures == 0; i++)
        failures =
            cases[i](comm); /* after a failure the ranks are not at the same place any more */
    if (failures == 0)
        failures = random_rounds(comm, seed);
    if (failures > 0)
        fprintf(stderr, "contract: %d claims failed, seed %llu\n", failures,
                (unsigned long long)seed);
    return failures;
}
