/* Cases that break a communicator: deadlines, disagreement, and what is left afterwards. */
#include "contract_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A broken communicator answers every call at once with RA_ERR_PEER, and says nothing more. */
static int stays_broken(ra_comm *comm)
{
    char mine[32];
    unsigned char byte = 0;
    int64_t integer = 1;
    double number = 1;
    float value = 1, before = 1;
    ra_exchange const exchange = {"after the end", 0, .send = {0, &byte, 1}};
    ra_transfer *transfer = NULL;
    ra_window window;
    int failures = 0;
    snprintf(mine, sizeof(mine), "(rank %d on host ", ra_comm_rank(comm));
    int const lines = contract_count_lines(mine, "");
    EXPECT(lines <= 1);
    for (int again = 0; again < 2; again++) {
        EXPECT(ra_comm_start(comm, &exchange, &transfer) == RA_ERR_PEER);
        EXPECT(transfer == NULL);
        ra_comm_poll(comm);
        EXPECT(ra_comm_barrier(comm, "after") == RA_ERR_PEER);
        EXPECT(ra_comm_broadcast(comm, "after", 0, &byte, 1) == RA_ERR_PEER);
        EXPECT(ra_comm_reduce_i64(comm, "after", RA_SUM, &integer, 1) == RA_ERR_PEER);
        EXPECT(ra_comm_agree(comm, "after", RA_OK) == RA_ERR_PEER);
        EXPECT(ra_comm_agree(comm, "after", RA_ERR_NO_MEMORY) == RA_ERR_NO_MEMORY);
        EXPECT(ra_comm_reduce_f64(comm, "after", RA_SUM, &number, 1) == RA_ERR_PEER);
        EXPECT(integer == 1 && number == 1);
        EXPECT(ra_comm_exscan_f32(comm, "after", RA_SCAN_UP, &value, &before, 1) == RA_ERR_PEER);
        EXPECT(ra_window_create(comm, 1, &window) == RA_ERR_PEER);
    }
    EXPECT(contract_count_lines(mine, "") == lines);
    return failures;
}

/* The last rank waits for a message that rank 0 never sends, with a second exchange in flight. */
static int names_who_does_not_send(ra_comm *comm)
{
    int const rank = ra_comm_rank(comm), last = ra_comm_size(comm) - 1;
    unsigned char data[2][10] = {{0}};
    ra_exchange const first = {"forward keys and values", 7, .recv = {0, data[0], 10}};
    ra_exchange const second = {"the next step", 8, .recv = {0, data[1], 10}};
    ra_transfer *transfers[2] = {NULL, NULL};
    char where[192];
    int failures = 0;
    if (rank != last)
        return 0;
    ra_comm_set_timeout(comm, 250);
    EXPECT(ra_comm_start(comm, &first, &transfers[0]) == RA_OK);
    EXPECT(ra_comm_start(comm, &second, &transfers[1]) == RA_OK);
    EXPECT(ra_comm_wait(comm, transfers[0]) == RA_ERR_TIMEOUT);
    snprintf(where, sizeof(where), "(rank %d on host %s, step 7, waiting for rank 0)", last,
             ra_comm_host(comm));
    EXPECT(contract_count_lines("forward keys and values timed out after 0.25 s", where) == 1);
    EXPECT(ra_comm_wait(comm, transfers[1]) == RA_ERR_PEER);
    EXPECT(contract_count_lines("the next step timed out", "") == 0);
    return failures + stays_broken(comm);
}

/* The last rank sends much to rank 0, who never receives. */
static int names_who_does_not_receive(ra_comm *comm)
{
    size_t const bytes = 8 << 20; /* more than MPI takes without a receiver */
    int const rank = ra_comm_rank(comm), last = ra_comm_size(comm) - 1;
    unsigned char *const data = calloc(1, bytes);
    ra_exchange const exchange = {"partial gradients", -1, .send = {0, data, bytes}};
    ra_transfer *transfer = NULL;
    char where[192];
    int failures = 0;
    if (rank == last) {
        ra_comm_set_timeout(comm, 250);
        EXPECT(ra_comm_start(comm, &exchange, &transfer) == RA_OK);
        EXPECT(ra_comm_wait(comm, transfer) == RA_ERR_TIMEOUT);
        snprintf(where, sizeof(where), "(rank %d on host %s, waiting for rank 0)", last,
                 ra_comm_host(comm));
        EXPECT(contract_count_lines("partial gradients timed out after 0.25 s", where) == 1);
        failures += stays_broken(comm);
    }
    free(data);
    return failures;
}

/* Rank 0 stays away from a scan: the next one waits for it, and names it. */
static int names_who_does_not_scan(ra_comm *comm)
{
    float const own[2] = {1, 2};
    float before[2] = {0};
    char where[192];
    int failures = 0;
    if (ra_comm_rank(comm) != 1)
        return 0;
    ra_comm_set_timeout(comm, 250);
    EXPECT(ra_comm_exscan_f32(comm, "adding states up", RA_SCAN_UP, own, before, 2) ==
           RA_ERR_TIMEOUT);
    snprintf(where, sizeof(where), "(rank 1 on host %s, waiting for rank 0)", ra_comm_host(comm));
    EXPECT(contract_count_lines("adding states up timed out after 0.25 s", where) == 1);
    return failures + stays_broken(comm);
}

/* The ranks do not agree on what is scanned: whoever gets another length says so. */
static int finds_different_scans(ra_comm *comm)
{
    int const rank = ra_comm_rank(comm);
    float const own[3] = {1, 2, 3};
    float before[3] = {0};
    int failures = 0;
    EXPECT(ra_comm_barrier(comm, "all begin together") == RA_OK);
    if (rank > 1)
        return failures;
    ra_status const status =
        ra_comm_exscan_f32(comm, "scanning", RA_SCAN_UP, own, before, rank == 1 ? 3 : 2);
    if (rank == 0) {
        EXPECT(status == RA_OK || status == RA_ERR_TIMEOUT || status == RA_ERR_PEER);
        return failures;
    }
    EXPECT(status == RA_ERR_PEER);
    EXPECT(contract_count_lines("scanning got 8 bytes instead of 12", "from rank 0)") == 1);
    return failures + stays_broken(comm);
}

/* As what the sender does next. */
static void overwrite_stack(void)
{
    volatile char bytes[1 << 17];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = 0x11;
}

/* The others come when rank 0 has given up: they get what it was sending, or nothing. */
static int a_late_scan_gets_what_was_sent(ra_comm *comm)
{
    enum { COUNT = 8192 };
    int const rank = ra_comm_rank(comm);
    float *const own = calloc(COUNT, sizeof(*own)), *const before = calloc(COUNT, sizeof(*own));
    int failures = 0;
    for (int i = 0; i < COUNT; i++)
        own[i] = (float)(i + 1);
    while (rank > 0 && !contract_found.is_raised())
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ra_comm_set_timeout(comm, 250);
    ra_status const status =
        ra_comm_exscan_f32(comm, "adding states up", RA_SCAN_UP, own, before, COUNT);
    EXPECT(rank > 0 || status == RA_ERR_TIMEOUT);
    for (int i = 0; i < COUNT && status == RA_OK && failures == 0; i++)
        EXPECT(before[i] == (float)rank * own[i]);
    overwrite_stack();
    if (rank == 0)
        contract_found.raise();
    free(own);
    free(before);
    return failures;
}

/*
 * Rank `absent` stays away from a collective: whoever says something names it. One gives up: of
 * threads, or where `is_told`, the others learn of its end; else each gives up by itself.
 */
static int names_the_absent(ra_comm *comm, int absent, bool is_told,
                            ra_status (*enter)(ra_comm *comm, int absent))
{
    int const rank = ra_comm_rank(comm);
    bool const local = strcmp(ra_comm_name(ra_comm_of_host(comm)), "local") == 0;
    bool const is_first = rank == (absent == 0 ? 1 : 0), says_it = !local || is_first;
    bool const gives_up = is_first || !(local || is_told);
    char mine[32], waiting[64], what[80];
    int failures = 0;
    EXPECT(ra_comm_barrier(comm, "all begin together") == RA_OK);
    if (rank == absent)
        return failures;
    ra_comm_set_timeout(comm, gives_up ? 250 : 600000);
    ra_status const status = enter(comm, absent);
    EXPECT(status == (says_it ? RA_ERR_TIMEOUT : RA_ERR_PEER));
    snprintf(mine, sizeof(mine), "(rank %d on host ", rank);
    snprintf(waiting, sizeof(waiting), ", waiting for rank %d)", absent);
    EXPECT(contract_count_lines(mine, waiting) == says_it);
    snprintf(what, sizeof(what), "agreeing on the layout timed out after %s s",
             gives_up ? "0.25" : "600");
    EXPECT(contract_count_lines(mine, what) == says_it);
    return failures + stays_broken(comm);
}

static ra_status enter_barrier(ra_comm *comm, int absent)
{
    (void)absent;
    return ra_comm_barrier(comm, "agreeing on the layout");
}

static ra_status enter_reduction(ra_comm *comm, int absent)
{
    double values[100] = {0};
    (void)absent;
    return ra_comm_reduce_f64(comm, "agreeing on the layout", RA_SUM, values, 100);
}

static ra_status enter_broadcast(ra_comm *comm, int absent)
{
    char text[100] = "";
    return ra_comm_broadcast(comm, "agreeing on the layout", absent, text, sizeof(text));
}

static int names_the_absent_rank_in_a_barrier(ra_comm *comm)
{
    return names_the_absent(comm, 1, true, enter_barrier);
}

static int names_rank_0_in_a_reduction(ra_comm *comm)
{
    return names_the_absent(comm, 0, false, enter_reduction);
}

static int names_the_root_of_a_broadcast(ra_comm *comm)
{
    return names_the_absent(comm, 1, false, enter_broadcast);
}

/* Rank 0 sends `sent` bytes to the last rank, which expects `expected`. */
static int refuses_length(ra_comm *comm, size_t sent, size_t expected)
{
    int const rank = ra_comm_rank(comm), last = ra_comm_size(comm) - 1;
    unsigned char *const out = calloc(1, sent), *const in = calloc(1, expected + 1);
    ra_exchange const exchange = {"uneven halves",
                                  3,
                                  {last, out, rank == 0 ? sent : 0},
                                  {0, in, rank == last ? expected : 0}};
    ra_transfer *transfer = NULL;
    char text[64];
    int failures = 0;
    in[expected] = 0xEE;
    if (rank == 0 || rank == last) {
        EXPECT(ra_comm_start(comm, &exchange, &transfer) == RA_OK);
        if (rank != last) {
            /* Pieces may be left that nobody takes: there is nothing to wait for then. */
            while (!contract_found.is_raised()) {
                ra_comm_poll(comm);
                nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
            }
            ra_comm_set_timeout(comm, 1);
            (void)!ra_comm_wait(comm, transfer);
        } else {
            EXPECT(contract_comes_to_end(comm, transfer));
            EXPECT(ra_comm_wait(comm, transfer) == RA_ERR_PEER);
            snprintf(text, sizeof(text), " instead of %zu (rank %d on host ", expected, last);
            EXPECT(contract_count_lines("uneven halves got ", text) == 1);
            EXPECT(contract_count_lines(text, ", step 3, from rank 0)") == 1);
            snprintf(text, sizeof(text), "uneven halves got %zu bytes ", sent);
            bool const is_known = contract_count_lines(text, "") == 1;
            snprintf(text, sizeof(text), "uneven halves got more than %zu bytes ", expected);
            EXPECT(is_known || (sent > expected && contract_count_lines(text, "") == 1));
            EXPECT(in[expected] == 0xEE);
            failures += stays_broken(comm);
            contract_found.raise();
        }
    }
    free(out);
    free(in);
    return failures;
}

static int refuses_a_shorter_message(ra_comm *comm)
{
    return refuses_length(comm, 5000, 6000);
}

static int refuses_a_longer_message(ra_comm *comm)
{
    return refuses_length(comm, 6001, 6000);
}

static int refuses_half_of_a_large_message(ra_comm *comm)
{
    return refuses_length(comm, 1 << 20, 2 << 20);
}

static int refuses_twice_a_large_message(ra_comm *comm)
{
    return refuses_length(comm, 2 << 20, 1 << 20);
}

/* The last rank takes part in something else than the others do. */
static int finds_different_collectives(ra_comm *comm)
{
    int64_t value = 1;
    int failures = 0;
    if (ra_comm_rank(comm) == ra_comm_size(comm) - 1)
        EXPECT(ra_comm_reduce_i64(comm, "counting", RA_SUM, &value, 1) == RA_ERR_PEER);
    else
        EXPECT(ra_comm_barrier(comm, "resting") == RA_ERR_PEER);
    EXPECT(value == 1);
    if (ra_comm_rank(comm) == 0 && strcmp(ra_comm_name(ra_comm_of_host(comm)), "mpi") == 0)
        EXPECT(contract_count_lines("resting met another collective", "from rank") == 1);
    return failures + stays_broken(comm);
}

static int finds_different_counts(ra_comm *comm)
{
    double values[3] = {1, 1, 1};
    bool const odd = ra_comm_rank(comm) == ra_comm_size(comm) - 1;
    int failures = 0;
    EXPECT(ra_comm_reduce_f64(comm, "adding", RA_SUM, values, odd ? 3 : 2) == RA_ERR_PEER);
    EXPECT(values[0] == 1);
    return failures + stays_broken(comm);
}

static int finds_different_numbers(ra_comm *comm)
{
    int64_t count = 1;
    double share = 1;
    int failures = 0;
    if (ra_comm_rank(comm) == ra_comm_size(comm) - 1)
        EXPECT(ra_comm_reduce_f64(comm, "adding", RA_SUM, &share, 1) == RA_ERR_PEER);
    else
        EXPECT(ra_comm_reduce_i64(comm, "adding", RA_SUM, &count, 1) == RA_ERR_PEER);
    EXPECT(count == 1 && share == 1);
    return failures + stays_broken(comm);
}

static int finds_different_reductions(ra_comm *comm)
{
    int64_t value = 1;
    bool const odd = ra_comm_rank(comm) == ra_comm_size(comm) - 1;
    int failures = 0;
    EXPECT(ra_comm_reduce_i64(comm, "adding", odd ? RA_MAX : RA_SUM, &value, 1) == RA_ERR_PEER);
    EXPECT(value == 1);
    return failures + stays_broken(comm);
}

/* Who gets fewer bytes of a broadcast than it asked for, says so. */
static int finds_different_broadcasts(ra_comm *comm)
{
    int const last = ra_comm_size(comm) - 1;
    bool const odd = ra_comm_rank(comm) == last;
    char text[80] = "";
    int failures = 0;
    ra_status const status = ra_comm_broadcast(comm, "telling", 0, text, odd ? 80 : 40);
    EXPECT(odd ? status == RA_ERR_PEER : status == RA_OK || status == RA_ERR_PEER);
    return odd ? failures + stays_broken(comm) : failures;
}

/* The last rank meets the others before a broadcast, they meet it after it. */
static int finds_broadcasts_out_of_order(ra_comm *comm)
{
    bool const odd = ra_comm_rank(comm) == ra_comm_size(comm) - 1;
    char text[8] = "";
    int failures = 0;
    ra_status status = odd ? ra_comm_barrier(comm, "resting")
                           : ra_comm_broadcast(comm, "telling", 0, text, sizeof(text));
    if (status == RA_OK)
        status = odd ? ra_comm_broadcast(comm, "telling", 0, text, sizeof(text))
                     : ra_comm_barrier(comm, "resting");
    EXPECT(status == RA_ERR_PEER);
    return failures + stays_broken(comm);
}

/* Who tells waits for nobody, but all must have been told the same when they meet. */
static int finds_several_roots(ra_comm *comm)
{
    int const rank = ra_comm_rank(comm);
    char text[8] = "";
    int failures = 0;
    ra_status status = ra_comm_broadcast(comm, "telling", rank, text, sizeof(text));
    if (status == RA_OK)
        status = ra_comm_barrier(comm, "resting");
    EXPECT(status == RA_ERR_PEER);
    return failures + stays_broken(comm);
}

/* The others come to a window when rank 0 has given up there. Threads tell them; processes do not,
   and they have its memory. */
static int late_ranks_meet_nobody(ra_comm *comm)
{
    int const rank = ra_comm_rank(comm);
    bool const local = strcmp(ra_comm_name(comm), "local") == 0;
    ra_window window;
    int failures = 0;
    if (ra_comm_of_host(comm) != comm)
        return 0; /* there are no windows */
    EXPECT(ra_window_create(comm, 1, &window) == RA_OK);
    while (rank > 0 && !contract_found.is_raised())
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ra_comm_set_timeout(comm, 250);
    ra_status const status = ra_window_barrier(comm, &window, "meeting", -1);
    EXPECT(rank == 0 ? status == RA_ERR_TIMEOUT : status == RA_ERR_PEER || !local);
    if (rank == 0)
        contract_found.raise();
    ra_window_destroy(&window);
    return failures;
}

/* Rank 0 gives up while the others wait, for a message and in a barrier. */
static int giving_up_frees_the_others(ra_comm *comm)
{
    int const rank = ra_comm_rank(comm);
    unsigned char byte = 0;
    ra_exchange const exchange = {"never sent", 0, .recv = {0, &byte, 1}};
    ra_transfer *transfer = NULL;
    int failures = 0;
    ra_comm_set_timeout(comm, 600000);
    if (rank == 0) {
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        ra_comm_abort(comm, 5);
    } else if (rank % 2 == 1) {
        ra_status status = ra_comm_start(comm, &exchange, &transfer);
        if (status == RA_OK)
            status = ra_comm_wait(comm, transfer);
        EXPECT(status == RA_ERR_PEER);
    } else {
        EXPECT(ra_comm_barrier(comm, "never complete") == RA_ERR_PEER);
    }
    EXPECT(contract_count_lines("", "") == 0); /* who gave up has said why, elsewhere */
    return failures + stays_broken(comm);
}

const contract_case contract_breaking[] = {
    {"names_who_does_not_send", 1, false, names_who_does_not_send},
    {"names_who_does_not_receive", 1, false, names_who_does_not_receive},
    {"names_the_absent_rank_in_a_barrier", 2, false, names_the_absent_rank_in_a_barrier},
    {"names_rank_0_in_a_reduction", 2, false, names_rank_0_in_a_reduction},
    {"names_the_root_of_a_broadcast", 2, false, names_the_root_of_a_broadcast},
    {"names_who_does_not_scan", 2, false, names_who_does_not_scan},
    {"a_late_scan_gets_what_was_sent", 2, false, a_late_scan_gets_what_was_sent},
    {"finds_different_scans", 2, false, finds_different_scans},
    {"refuses_a_shorter_message", 1, false, refuses_a_shorter_message},
    {"refuses_a_longer_message", 1, false, refuses_a_longer_message},
    {"refuses_half_of_a_large_message", 1, false, refuses_half_of_a_large_message},
    {"refuses_twice_a_large_message", 1, false, refuses_twice_a_large_message},
    {"finds_different_collectives", 2, false, finds_different_collectives},
    {"finds_different_counts", 2, false, finds_different_counts},
    {"finds_different_numbers", 2, false, finds_different_numbers},
    {"finds_different_reductions", 2, false, finds_different_reductions},
    {"finds_different_broadcasts", 2, false, finds_different_broadcasts},
    {"finds_broadcasts_out_of_order", 2, false, finds_broadcasts_out_of_order},
    {"finds_several_roots", 2, false, finds_several_roots},
    {"late_ranks_meet_nobody", 2, false, late_ranks_meet_nobody},
    {"giving_up_frees_the_others", 1, true, giving_up_frees_the_others},
};
const int contract_breaking_count = (int)(sizeof(contract_breaking) / sizeof(contract_breaking[0]));
