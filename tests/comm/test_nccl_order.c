/* Messages of NCCL and the other work of a GPU, over the stand-ins: what waits for what, also where
   a communicator ends. */
#include "comm/contract.h"
#include "comm/device_ranks.h"
#include "ringattn/device.h"
#include "support/standin_cudart.h"
#include "support/standin_nccl.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static void end(void)
{
    cr_expect_eq(standin_nccl.communicators, 0);
    cr_expect_eq(standin.blocks + standin.events + standin.streams, 0, "something is left");
}

TestSuite(nccl_order, .init = device_ranks_begin_nccl, .fini = end);

/* ---- order ----------------------------------------------------------------------------------- */

static atomic_int own_work_is_over;

static int ask_own_work(void *context)
{
    (void)context;
    return own_work_is_over;
}

/* After so many deadlines. */
enum { TIMEOUT_MS = 400, DEADLINES = 3 };

static void *end_own_work(void *context)
{
    (void)context;
    for (int i = 0; i < DEADLINES; i++)
        nanosleep(&(struct timespec){.tv_nsec = TIMEOUT_MS * 1000000}, NULL);
    own_work_is_over = 1;
    return NULL;
}

/* The communicator's own stream from now on, at work until own_work_is_over; NULL: failed. */
static cudaStream_t begin_own_work(ra_comm *comm)
{
    cudaStream_t stream = NULL;
    own_work_is_over = 0;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess)
        return NULL;
    (void)standin_enter();
    if (standin_leave(standin_enqueue_wait(stream, ask_own_work, comm, 0)) != cudaSuccess)
        return NULL;
    ra_comm_set_stream(comm, (ra_stream *)stream);
    ra_comm_set_timeout(comm, TIMEOUT_MS);
    return stream;
}

/* How often this thread gave its core up to wait. */
static long sleeps(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nvcsw : 0;
}

/*
 * Our stream is busy for longer than the deadline: nothing is sent before, and nobody is late. This
 * rank does not keep a core busy meanwhile, which NCCL's threads may need.
 */
static int wait_for_own_stream(ra_comm *comm, void *context)
{
    char out[4] = "abc", in[4] = "";
    ra_exchange const exchange = {"after our own work", 0, {0, out, 4}, {0, in, 4}};
    ra_transfer *transfer = NULL;
    cudaStream_t const stream = begin_own_work(comm);
    pthread_t thread;
    (void)context;
    int failures = stream == NULL || ra_comm_start(comm, &exchange, &transfer) != RA_OK;
    for (int i = 0; i < 50; i++)
        failures += ra_comm_missing_peer(comm, transfer) != 0 || in[0] != '\0';
    failures += pthread_create(&thread, NULL, end_own_work, NULL) != 0;
    long const sleeps_before = sleeps();
    failures += ra_comm_wait(comm, transfer) != RA_OK || strcmp(in, "abc") != 0;
    failures += sleeps() - sleeps_before < 20;
    failures += !own_work_is_over;
    pthread_join(thread, NULL);
    failures += cudaStreamDestroy(stream) != cudaSuccess;
    return failures;
}

Test(nccl_order, begins_after_our_own_stream_and_does_not_time_it)
{
    static device_maker *const makers[] = {ra_comm_create_nccl, ra_comm_create_staged};
    for (int i = 0; i < 2; i++) {
        device_ranks plan = {
            .make = makers[i], .timeout_ms = 60000, .body = wait_for_own_stream, .context = &plan};
        cr_expect_eq(device_ranks_run(1, &plan), 0);
    }
    cr_expect_eq(contract_count_lines("", ""), 0);
}

static void *end_own_work_and_let_go(void *context)
{
    end_own_work(context);
    standin_nccl.stalls = 0;
    return NULL;
}

static ra_status find_it_well(void *context)
{
    (void)context;
    return RA_OK;
}

/*
 * NCCL's kernels may get no room on a GPU while a kernel of ours is at work there that was enqueued
 * after them. Nobody is late then, and the other rank, whose GPU has nothing to do, hears so.
 */
static int wait_for_later_work(ra_comm *comm, void *context)
{
    int const rank = ra_comm_rank(comm), peer = 1 - rank;
    char out[4] = "abc", in[4] = "";
    ra_exchange const exchange = {"beside our own work", 0, {peer, out, 4}, {peer, in, 4}};
    ra_transfer *transfer = NULL;
    cudaStream_t stream = NULL;
    pthread_t thread;
    (void)context;
    ra_comm_set_timeout(comm, TIMEOUT_MS);
    ra_comm_set_watch(comm, find_it_well, NULL);
    int failures = ra_comm_start(comm, &exchange, &transfer) != RA_OK;
    if (rank == 0) {
        stream = begin_own_work(comm);
        failures += stream == NULL;
        failures += pthread_create(&thread, NULL, end_own_work_and_let_go, NULL) != 0;
    }
    failures += ra_comm_wait(comm, transfer) != RA_OK || strcmp(in, "abc") != 0;
    if (rank == 0) {
        pthread_join(thread, NULL);
        failures += cudaStreamDestroy(stream) != cudaSuccess;
    }
    return failures;
}

static int stall_and_wait(ra_comm *comm, void *context)
{
    if (ra_comm_rank(comm) == 0)
        standin_nccl.stalls = 1;
    if (ra_comm_barrier(comm, "before what stalls") != RA_OK)
        return 1;
    return wait_for_later_work(comm, context);
}

Test(nccl_order, messages_have_no_deadline_while_our_own_kernel_is_at_work)
{
    device_ranks plan = {.make = ra_comm_create_nccl, .timeout_ms = 60000, .body = stall_and_wait};
    cr_expect_eq(device_ranks_run(2, &plan), 0);
    cr_expect_eq(contract_count_lines("", ""), 0);
}

/* What has failed while it was behind our own stream holds up nobody: not what waits behind it.
   Rank 1 sends too little, and then waits for the end. */
static int wait_behind_a_failure(ra_comm *comm, void *context)
{
    int const rank = ra_comm_rank(comm), peer = 1 - rank;
    char out[4] = "abc", in[4] = "", more[4] = "";
    ra_exchange const wrong = {"too short", 0, {peer, out, rank == 0 ? 4 : 3}, {peer, in, 4}};
    ra_exchange const right = {"behind it", 1, {peer, out, 4}, {peer, more, 4}};
    ra_transfer *first = NULL, *second = NULL;
    cudaStream_t stream = NULL;
    pthread_t thread;
    int failures = 0;
    (void)context;
    if (rank == 0) {
        stream = begin_own_work(comm);
        ra_comm_set_watch(comm, find_it_well, NULL);
        failures += stream == NULL;
    } else {
        failures += ra_comm_barrier(comm, "rank 0 has begun") != RA_OK;
    }
    failures += ra_comm_start(comm, &wrong, &first) != RA_OK;
    failures += ra_comm_start(comm, &right, &second) != RA_OK;
    failures += rank == 0 && ra_comm_barrier(comm, "rank 0 has begun") != RA_OK;
    if (rank == 1)
        return failures + (ra_comm_barrier(comm, "until rank 0 gives up") == RA_OK);
    failures += pthread_create(&thread, NULL, end_own_work, NULL) != 0;
    failures += ra_comm_wait(comm, second) == RA_OK;
    failures += !own_work_is_over;
    failures += ra_comm_wait(comm, first) == RA_OK;
    pthread_join(thread, NULL);
    ra_comm_set_stream(comm, NULL);
    return failures + (cudaStreamDestroy(stream) != cudaSuccess);
}

Test(nccl_order, what_has_failed_behind_our_own_stream_takes_no_deadline_away, .timeout = 30)
{
    device_ranks plan = {
        .make = ra_comm_create_nccl, .timeout_ms = 60000, .body = wait_behind_a_failure};
    cr_expect_eq(device_ranks_run(2, &plan), 0);
    cr_expect_geq(contract_count_lines("behind it timed out", ""), 1);
}

/* ---- what is enqueued next ------------------------------------------------------------------- */

/* Exchanges in which rank 1 begins when rank 0 has begun. */
typedef struct head_start {
    int rounds;
    int ahead; /* out: so often rank 0's was on its stream when it had begun */
} head_start;

static int start_ahead(ra_comm *comm, void *context)
{
    head_start *const h = context;
    bool const is_first = ra_comm_rank(comm) == 0;
    int const peer = is_first ? 1 : 0;
    int failures = 0;
    for (int i = 0; i < h->rounds; i++) {
        char out[4] = "abc", in[4] = "";
        ra_exchange const exchange = {"ahead of what computes", i, {peer, out, 4}, {peer, in, 4}};
        ra_transfer *transfer = NULL;
        failures += !is_first && ra_comm_barrier(comm, "rank 0 has begun") != RA_OK;
        failures += ra_comm_start(comm, &exchange, &transfer) != RA_OK;
        (void)standin_enter();
        if (is_first)
            h->ahead += standin_waits_for_peer();
        (void)standin_leave(cudaSuccess);
        failures += is_first && ra_comm_barrier(comm, "rank 0 has begun") != RA_OK;
        failures += ra_comm_wait(comm, transfer) != RA_OK || strcmp(in, "abc") != 0;
    }
    return failures;
}

static int count_ahead(int busy_polls, int rounds)
{
    head_start h = {.rounds = rounds};
    device_ranks plan = {
        .make = ra_comm_create_nccl, .timeout_ms = 60000, .body = start_ahead, .context = &h};
    standin_nccl.busy_polls = busy_polls;
    cr_expect_eq(device_ranks_run(2, &plan), 0);
    cr_expect_eq(contract_count_lines("", ""), 0);
    return h.ahead;
}

/* Where another process has the core, the bound may pass: hardly every time. */
Test(nccl_order, a_start_returns_when_its_messages_are_on_their_stream)
{
    cr_expect_gt(count_ahead(20, 10), 0);
}

Test(nccl_order, a_start_does_not_stay_for_a_library_that_takes_long)
{
    cr_expect_eq(count_ahead(20000, 1), 0);
}

/* ---- an end behind our own stream, which NCCL would wait for --------------------------------- */

static ra_status lose_gpu(void *context)
{
    (void)context;
    (void)ra_device_lose();
    return RA_ERR_TIMEOUT;
}

/* The last rank gives up while an exchange waits for its own stream, rank 0 waits for it. */
static int give_up(ra_comm *comm, void *context)
{
    /* What is in flight on a GPU that is lost stays so: as long as the thread, and its streams. */
    static _Thread_local char out[4] = "abc", in[4] = "";
    int const last = ra_comm_size(comm) - 1, peer = last - ra_comm_rank(comm);
    ra_exchange const exchange = {"behind our own work", 0, {peer, out, 4}, {peer, in, 4}};
    ra_transfer *transfer = NULL;
    pthread_t thread;
    if (ra_comm_rank(comm) < last) {
        ra_comm_set_timeout(comm, TIMEOUT_MS);
        return ra_comm_start(comm, &exchange, &transfer) != RA_OK ||
               ra_comm_wait(comm, transfer) != RA_ERR_PEER;
    }
    cudaStream_t const stream = begin_own_work(comm);
    standin.hangs = context != NULL; /* as far as calls know that would wait for it */
    ra_comm_set_watch(comm, standin.hangs ? lose_gpu : NULL, NULL);
    int failures = stream == NULL || ra_comm_start(comm, &exchange, &transfer) != RA_OK;
    for (int i = 0; i < 50; i++)
        failures += ra_comm_missing_peer(comm, transfer) < 0; /* until it is on its stream */
    failures += pthread_create(&thread, NULL, end_own_work, NULL) != 0;
    ra_comm_abort(comm, 5);
    pthread_join(thread, NULL);
    return failures + (cudaStreamDestroy(stream) != cudaSuccess) + (in[0] != '\0');
}

/* The others hear of it meanwhile: none is late. */
Test(nccl_order, gives_up_behind_a_kernel_that_takes_longer_than_the_deadline)
{
    device_ranks plan = {.make = ra_comm_create_nccl, .timeout_ms = 60000, .body = give_up};
    cr_expect_eq(device_ranks_run(2, &plan), 0);
    cr_expect_eq(standin_nccl.aborted, 2);
    cr_expect_eq(contract_count_lines("", ""), 0);
    contract_print_log();
}

/* What belongs to a GPU that is lost is left. */
TestSuite(nccl_order_lost, .init = device_ranks_begin_nccl);

Test(nccl_order_lost, gives_up_behind_a_kernel_that_hangs)
{
    device_ranks plan = {
        .make = ra_comm_create_nccl, .timeout_ms = 60000, .body = give_up, .context = &plan};
    cr_expect_eq(device_ranks_run(1, &plan), 0);
    cr_expect_eq(standin_nccl.aborted, 0);
}

/* ---- a collective that fails beside an exchange ---------------------------------------------- */

/* Rank 0 gives memory back, which waits for its messages, of which rank 1 has sent none. */
static int free_after_failure(ra_comm *comm, void *context)
{
    char in[4] = "";
    ra_exchange const exchange = {"of which nothing comes", 0, {0}, {1, in, 4}};
    ra_transfer *transfer = NULL;
    ra_memory memory = {0};
    void *data = NULL;
    (void)context;
    if (ra_comm_rank(comm) == 1) {
        nanosleep(&(struct timespec){.tv_nsec = TIMEOUT_MS * 1000000}, NULL);
        ra_comm_abort(comm, 5);
        return 0;
    }
    int failures = ra_memory_device(0, &memory) != RA_OK ||
                   memory.ops->alloc(&memory, 4096, &data) != RA_OK ||
                   ra_comm_start(comm, &exchange, &transfer) != RA_OK;
    for (int i = 0; i < 50; i++)
        failures += ra_comm_missing_peer(comm, transfer) != 1; /* until it is on its stream */
    failures += ra_comm_barrier(comm, "a barrier") != RA_ERR_PEER;
    memory.ops->free(&memory, data, 4096);
    return failures + (ra_comm_wait(comm, transfer) != RA_ERR_PEER);
}

Test(nccl_order, a_collective_that_fails_ends_messages_that_calls_would_wait_for)
{
    device_ranks plan = {
        .make = ra_comm_create_nccl, .timeout_ms = 60000, .body = free_after_failure};
    cr_expect_eq(device_ranks_run(2, &plan), 0);
    cr_expect_eq(standin_nccl.aborted, 2);
    cr_expect_eq(contract_count_lines("", ""), 0);
}
