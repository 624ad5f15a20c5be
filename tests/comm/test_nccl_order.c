/* Messages of NCCL and the other work of a GPU, over the stand-ins: what waits for what, also where
   a communicator ends. */
#include "comm/contract.h"
#include "comm/device_ranks.h"
#include "ringattn/device.h"
#include "support/standin_cudart.h"
#include "support/standin_nccl.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

/* ---- time ------------------------------------------------------------------------------------ */

/*
 * Deadlines are long here beside what a busy machine may do to a thread: the clock of the library
 * and the stand-ins stands still, but for what passes in pauses of the rank that a test is about.
 */
static int64_t begin_ns;
static atomic_llong passed_ns;
static atomic_bool stands_still;
static _Thread_local int64_t pause_ns; /* what passes in a pause of this rank's */
static atomic_llong last_pause_ns;     /* and in those of a rank that leaves last */
static _Thread_local bool leaves_last;
static _Thread_local int long_pauses; /* in which a core is given up for long enough to sleep */

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    int64_t const now_ns = begin_ns + atomic_load(&passed_ns);
    if (clock != CLOCK_MONOTONIC)
        return __real_clock_gettime(clock, time);
    *time = (struct timespec){.tv_sec = now_ns / 1000000000, .tv_nsec = now_ns % 1000000000};
    return 0;
}

void __real_ra_pause(int64_t waited_ns);
void __wrap_ra_pause(int64_t waited_ns);
void __wrap_ra_pause(int64_t waited_ns)
{
    long_pauses += waited_ns >= 1000000;
    if (!atomic_load(&stands_still))
        atomic_fetch_add(&passed_ns, pause_ns + (leaves_last ? atomic_load(&last_pause_ns) : 0));
    __real_ra_pause(waited_ns);
}

static void begin(void)
{
    struct timespec now;
    __real_clock_gettime(CLOCK_MONOTONIC, &now);
    begin_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    device_ranks_begin_nccl();
}

static void end(void)
{
    cr_expect_eq(standin_nccl.communicators, 0);
    cr_expect_eq(standin.blocks + standin.events + standin.streams, 0, "something is left");
}

TestSuite(nccl_order, .init = begin, .fini = end, .timeout = 300);

/* ---- order ----------------------------------------------------------------------------------- */

/* Work of ours takes so many deadlines, at a millisecond in each pause. */
enum { TIMEOUT_MS = 400, DEADLINES = 3, PAUSE_NS = 1000000 };

typedef enum own_end {
    STANDS_STILL, /* no time passes any more, in which others could be late */
    LETS_GO,      /* likewise, and messages do not stall any more */
    GOES_ON
} own_end;

static struct {
    own_end end;
    int64_t over_ns; /* of what has passed */
    atomic_bool is_over;
} own_work;

static int ask_own_work(void *context)
{
    (void)context;
    if (own_work.is_over || atomic_load(&passed_ns) < own_work.over_ns)
        return own_work.is_over;
    atomic_store(&stands_still, own_work.end != GOES_ON);
    if (own_work.end == LETS_GO)
        standin_nccl.stalls = 0;
    return own_work.is_over = true;
}

static ra_status find_it_well(void *context)
{
    (void)context;
    return RA_OK;
}

/* The communicator's own stream from now on, watched and at work for DEADLINES; NULL: failed. */
static cudaStream_t begin_own_work(ra_comm *comm, own_end how)
{
    cudaStream_t stream = NULL;
    own_work.end = how;
    own_work.over_ns = atomic_load(&passed_ns) + (int64_t)DEADLINES * TIMEOUT_MS * 1000000;
    own_work.is_over = false;
    atomic_store(&stands_still, false);
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess)
        return NULL;
    (void)standin_enter();
    if (standin_leave(standin_enqueue_wait(stream, ask_own_work, comm, 0)) != cudaSuccess)
        return NULL;
    ra_comm_set_stream(comm, (ra_stream *)stream);
    ra_comm_set_watch(comm, find_it_well, NULL);
    ra_comm_set_timeout(comm, TIMEOUT_MS);
    return stream;
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
    (void)context;
    /* The first takes pinned memory, and waits for our stream before it returns. */
    int failures =
        ra_comm_start(comm, &exchange, &transfer) != RA_OK || ra_comm_wait(comm, transfer) != RA_OK;
    memset(in, 0, sizeof(in));
    cudaStream_t const stream = begin_own_work(comm, STANDS_STILL);
    failures += stream == NULL || ra_comm_start(comm, &exchange, &transfer) != RA_OK;
    for (int i = 0; i < 50; i++)
        failures += ra_comm_missing_peer(comm, transfer) != 0 || in[0] != '\0';
    pause_ns = PAUSE_NS;
    failures += ra_comm_wait(comm, transfer) != RA_OK || strcmp(in, "abc") != 0;
    failures += long_pauses < DEADLINES * TIMEOUT_MS - 1;
    failures += !own_work.is_over;
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
        cr_expect_eq(device_ranks_run_alone(&plan), 0);
    }
    cr_expect_eq(contract_count_lines("", ""), 0);
}

/* Nobody would find out that it hangs. */
static int wait_unwatched(ra_comm *comm, void *context)
{
    char out[4] = "abc", in[4] = "";
    ra_exchange const exchange = {"after our own work", 0, {0, out, 4}, {0, in, 4}};
    ra_transfer *transfer = NULL;
    (void)context;
    int failures =
        ra_comm_start(comm, &exchange, &transfer) != RA_OK || ra_comm_wait(comm, transfer) != RA_OK;
    cudaStream_t const stream = begin_own_work(comm, GOES_ON);
    ra_comm_set_watch(comm, NULL, NULL);
    failures += stream == NULL || ra_comm_start(comm, &exchange, &transfer) != RA_OK;
    pause_ns = PAUSE_NS;
    failures += ra_comm_wait(comm, transfer) != RA_ERR_TIMEOUT || own_work.is_over;
    own_work.is_over = true;
    ra_comm_abort(comm, 5);
    return failures + (cudaStreamDestroy(stream) != cudaSuccess);
}

Test(nccl_order, times_our_own_stream_if_nobody_watches_it)
{
    device_ranks plan = {
        .make = ra_comm_create_staged, .timeout_ms = 60000, .body = wait_unwatched};
    cr_expect_eq(device_ranks_run(1, &plan), 0);
    cr_expect_geq(contract_count_lines("after our own work timed out", ""), 1);
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
    (void)context;
    ra_comm_set_timeout(comm, TIMEOUT_MS);
    ra_comm_set_watch(comm, find_it_well, NULL);
    int failures = ra_comm_start(comm, &exchange, &transfer) != RA_OK;
    if (rank == 0) {
        stream = begin_own_work(comm, LETS_GO);
        failures += stream == NULL;
        pause_ns = PAUSE_NS;
    }
    failures += ra_comm_wait(comm, transfer) != RA_OK || strcmp(in, "abc") != 0;
    if (rank == 0)
        failures += !own_work.is_over || cudaStreamDestroy(stream) != cudaSuccess;
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

/* Messages through the host's memory need no room among kernels: who sends none is late. */
static int wait_beside_own_work(ra_comm *comm, void *context)
{
    char in[4] = "";
    ra_exchange const exchange = {"beside our own work", 0, {0}, {1, in, 4}};
    ra_transfer *transfer = NULL;
    (void)context;
    if (ra_comm_rank(comm) == 1)
        return ra_comm_barrier(comm, "until rank 0 gives up") == RA_OK;
    int failures = ra_comm_start(comm, &exchange, &transfer) != RA_OK;
    cudaStream_t const stream = begin_own_work(comm, GOES_ON);
    pause_ns = PAUSE_NS;
    failures += stream == NULL || ra_comm_wait(comm, transfer) != RA_ERR_TIMEOUT;
    failures += own_work.is_over;
    own_work.is_over = true;
    ra_comm_set_stream(comm, NULL);
    return failures + (cudaStreamDestroy(stream) != cudaSuccess);
}

Test(nccl_order, staged_messages_have_a_deadline_while_our_own_kernel_is_at_work)
{
    device_ranks plan = {
        .make = ra_comm_create_staged, .timeout_ms = 60000, .body = wait_beside_own_work};
    cr_expect_eq(device_ranks_run(2, &plan), 0);
    cr_expect_eq(contract_count_lines("beside our own work timed out", "waiting for rank 1"), 1);
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
    int failures = 0;
    (void)context;
    if (rank == 0) {
        stream = begin_own_work(comm, GOES_ON);
        failures += stream == NULL;
    } else {
        failures += ra_comm_barrier(comm, "rank 0 has begun") != RA_OK;
    }
    failures += ra_comm_start(comm, &wrong, &first) != RA_OK;
    failures += ra_comm_start(comm, &right, &second) != RA_OK;
    failures += rank == 0 && ra_comm_barrier(comm, "rank 0 has begun") != RA_OK;
    if (rank == 1)
        return failures + (ra_comm_barrier(comm, "until rank 0 gives up") == RA_OK);
    pause_ns = PAUSE_NS;
    failures += ra_comm_wait(comm, second) == RA_OK;
    failures += !own_work.is_over;
    failures += ra_comm_wait(comm, first) == RA_OK;
    ra_comm_set_stream(comm, NULL);
    return failures + (cudaStreamDestroy(stream) != cudaSuccess);
}

Test(nccl_order, what_has_failed_behind_our_own_stream_takes_no_deadline_away)
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
    pause_ns = is_first ? 10000 : 0; /* a hundredth of what a start may take */
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

Test(nccl_order, a_start_returns_when_its_messages_are_on_their_stream)
{
    cr_expect_eq(count_ahead(20, 10), 10);
}

Test(nccl_order, a_start_does_not_stay_for_a_library_that_takes_long)
{
    cr_expect_eq(count_ahead(2000, 1), 0);
}

/* NCCL takes no group while one before it is not on the stream. */
static int start_two(ra_comm *comm, void *context)
{
    char out[2][4] = {"abc", "def"}, in[2][4] = {"", ""};
    ra_transfer *transfers[2] = {NULL, NULL};
    int failures = 0;
    (void)context;
    pause_ns = 10000; /* so the first start does not stay */
    for (int i = 0; i < 2; i++) {
        ra_exchange const exchange = {"one of two", i, {0, out[i], 4}, {0, in[i], 4}};
        failures += ra_comm_start(comm, &exchange, &transfers[i]) != RA_OK;
        (void)standin_enter();
        failures += standin_waits_for_peer();
        (void)standin_leave(cudaSuccess);
    }
    for (int i = 0; i < 2; i++)
        failures += ra_comm_wait(comm, transfers[i]) != RA_OK || strcmp(in[i], out[i]) != 0;
    return failures;
}

Test(nccl_order, a_second_exchange_waits_until_the_first_is_on_its_stream)
{
    device_ranks plan = {.make = ra_comm_create_nccl, .timeout_ms = 60000, .body = start_two};
    standin_nccl.busy_polls = 2000;
    cr_expect_eq(device_ranks_run(1, &plan), 0);
    cr_expect_eq(contract_count_lines("", ""), 0);
}

/* Of messages that will never come, and long before the deadline. */
static int meet_error_under_way(ra_comm *comm, void *context)
{
    char out[4] = "abc", in[4] = "";
    ra_exchange const exchange = {"an exchange", 7, {0, out, 4}, {0, in, 4}};
    ra_transfer *transfer = NULL;
    (void)context;
    standin_nccl.stalls = 1;
    int failures = ra_comm_start(comm, &exchange, &transfer) != RA_OK;
    for (int i = 0; i < 50; i++)
        failures += ra_comm_missing_peer(comm, transfer) != 0; /* until it is on its stream */
    standin_nccl.async_error_at = 1;
    pause_ns = PAUSE_NS;
    return failures + (ra_comm_wait(comm, transfer) != RA_ERR_NCCL);
}

Test(nccl_order, an_error_ends_messages_that_are_under_way)
{
    device_ranks plan = {
        .make = ra_comm_create_nccl, .timeout_ms = 60000, .body = meet_error_under_way};
    cr_expect_eq(device_ranks_run(1, &plan), 0);
    cr_expect_eq(contract_count_lines("an exchange failed in NCCL (rank 0", "an injected remote"),
                 1);
    cr_expect_eq(contract_count_lines("", ""), 1);
}

/* ---- an end behind our own stream, which NCCL would wait for --------------------------------- */

static ra_status lose_gpu(void *context)
{
    (void)context;
    (void)ra_device_lose();
    return RA_ERR_TIMEOUT;
}

static ra_status find_it_failed(void *context)
{
    (void)context;
    return RA_ERR_CUDA;
}

/* Pinned memory would be taken while our stream is still at work: unheard, and for as long. */
static int begin_though_the_watch_fails(ra_comm *comm, void *context)
{
    char out[4] = "abc", in[4] = "";
    ra_exchange const exchange = {"behind our own work", 0, {0, out, 4}, {0, in, 4}};
    ra_transfer *transfer = NULL;
    cudaStream_t const stream = begin_own_work(comm, STANDS_STILL);
    (void)context;
    ra_comm_set_watch(comm, find_it_failed, NULL);
    int const failures = stream == NULL || ra_comm_start(comm, &exchange, &transfer) != RA_ERR_CUDA;
    int64_t const pinned = standin.pinned_blocks;
    own_work.is_over = true;
    return failures + (pinned != 0) + (cudaStreamDestroy(stream) != cudaSuccess);
}

Test(nccl_order, staged_exchanges_do_not_begin_where_the_watch_has_failed)
{
    device_ranks plan = {
        .make = ra_comm_create_staged, .timeout_ms = 60000, .body = begin_though_the_watch_fails};
    cr_expect_eq(device_ranks_run(1, &plan), 0);
}

/* The last rank gives up while an exchange waits for its own stream, rank 0 waits for it. */
static int give_up(ra_comm *comm, void *context)
{
    /* What is in flight on a GPU that is lost stays so: as long as the thread, and its streams. */
    static _Thread_local char out[4] = "abc", in[4] = "";
    int const last = ra_comm_size(comm) - 1, peer = last - ra_comm_rank(comm);
    ra_exchange const exchange = {"behind our own work", 0, {peer, out, 4}, {peer, in, 4}};
    ra_transfer *transfer = NULL;
    if (ra_comm_rank(comm) < last) {
        ra_comm_set_timeout(comm, TIMEOUT_MS);
        return ra_comm_start(comm, &exchange, &transfer) != RA_OK ||
               ra_comm_barrier(comm, "the others have begun") != RA_OK ||
               ra_comm_wait(comm, transfer) != RA_ERR_PEER;
    }
    if (ra_comm_barrier(comm, "the others have begun") != RA_OK)
        return 1;
    cudaStream_t const stream = begin_own_work(comm, STANDS_STILL);
    standin.hangs = context != NULL; /* as far as calls know that would wait for it */
    if (standin.hangs)
        ra_comm_set_watch(comm, lose_gpu, NULL);
    int failures = stream == NULL || ra_comm_start(comm, &exchange, &transfer) != RA_OK;
    for (int i = 0; i < 50; i++)
        failures += ra_comm_missing_peer(comm, transfer) < 0; /* until it is on its stream */
    pause_ns = PAUSE_NS;
    ra_comm_abort(comm, 5);
    failures += !own_work.is_over && !standin.hangs;
    own_work.is_over = true; /* by now, where a GPU that is lost was not waited for */
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

/* Rank 0 fails by what it hears of rank 1, which waits for it until its own stream is over. */
static int fail_behind_own_work(ra_comm *comm, void *context)
{
    int const rank = ra_comm_rank(comm), peer = 1 - rank;
    char out[4] = "abc", in[4] = "";
    ra_exchange const exchange = {"too short", 0, {peer, out, rank == 0 ? 4 : 3}, {peer, in, 4}};
    ra_transfer *transfer = NULL;
    cudaStream_t stream = NULL;
    int failures = 0;
    (void)context;
    ra_comm_set_timeout(comm, TIMEOUT_MS);
    if (rank == 0) {
        stream = begin_own_work(comm, STANDS_STILL);
        failures += stream == NULL;
    }
    failures += ra_comm_start(comm, &exchange, &transfer) != RA_OK;
    pause_ns = rank == 0 ? PAUSE_NS : 0;
    failures += ra_comm_wait(comm, transfer) != RA_ERR_PEER;
    failures += !own_work.is_over; /* ranks of other processes hear of nothing but its end */
    if (rank == 0) {
        ra_comm_set_stream(comm, NULL);
        failures += cudaStreamDestroy(stream) != cudaSuccess;
    }
    return failures;
}

Test(nccl_order, who_fails_behind_its_own_stream_is_not_late_for_the_others)
{
    device_ranks plan = {
        .make = ra_comm_create_nccl, .timeout_ms = 60000, .body = fail_behind_own_work};
    cr_expect_eq(device_ranks_run(2, &plan), 0);
    cr_expect_eq(contract_count_lines("too short got 3 bytes instead of 4", ""), 1);
    cr_expect_eq(contract_count_lines("", ""), 1);
}

/* Rank 0 leaves in order, which takes for ever; then rank 1 fails, and only then time passes. */
static int leave_a_rank_that_fails(ra_comm *comm, void *context)
{
    int64_t const calls = standin_nccl.calls;
    (void)context;
    ra_comm_set_timeout(comm, TIMEOUT_MS);
    if (ra_comm_barrier(comm, "before the end") != RA_OK)
        return 1;
    if (ra_comm_rank(comm) == 0) {
        leaves_last = true;
        standin_nccl.busy_polls = 1 << 30;
        return 0;
    }
    for (int i = 0; i < 10000 && standin_nccl.calls == calls; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ra_comm_abort(comm, 5);
    atomic_store(&last_pause_ns, (int64_t)TIMEOUT_MS * 1000000);
    return 0;
}

Test(nccl_order, who_leaves_does_not_wait_for_a_rank_that_has_failed)
{
    device_ranks plan = {
        .make = ra_comm_create_nccl, .timeout_ms = 60000, .body = leave_a_rank_that_fails};
    cr_expect_eq(device_ranks_run(2, &plan), 0);
    cr_expect_eq(standin_nccl.aborted, 2);
    cr_expect_eq(contract_count_lines("", ""), 0);
    contract_print_log();
}

static int leave_for_ever(ra_comm *comm, void *context)
{
    (void)context;
    ra_comm_set_timeout(comm, TIMEOUT_MS);
    standin_nccl.busy_polls = 1 << 30;
    pause_ns = PAUSE_NS;
    return 0;
}

Test(nccl_order, a_leave_in_order_has_a_deadline)
{
    device_ranks plan = {.make = ra_comm_create_nccl, .timeout_ms = 60000, .body = leave_for_ever};
    cr_expect_eq(device_ranks_run(1, &plan), 0);
    cr_expect_eq(standin_nccl.aborted, 1);
    cr_expect_eq(contract_count_lines("leaving NCCL timed out after 0.4 s (rank 0", ""), 1);
    cr_expect_eq(contract_count_lines("", ""), 1);
}

/* What belongs to a GPU that is lost is left. */
TestSuite(nccl_order_lost, .init = begin);

Test(nccl_order_lost, gives_up_behind_a_kernel_that_hangs)
{
    device_ranks plan = {
        .make = ra_comm_create_nccl, .timeout_ms = 60000, .body = give_up, .context = &plan};
    cr_expect_eq(device_ranks_run(1, &plan), 0);
    cr_expect_eq(standin_nccl.aborted, 0);
}

/* Before it aborts, NCCL's has to wait for the stream once more, and as long. */
Test(nccl_order_lost, gives_up_behind_a_kernel_that_nobody_watches)
{
    device_ranks plan = {.make = ra_comm_create_nccl, .timeout_ms = 60000, .body = wait_unwatched};
    cr_expect_eq(device_ranks_run(1, &plan), 0);
    cr_expect_geq(contract_count_lines("after our own work timed out", "this rank's own GPU)"), 1);
    cr_expect_eq(contract_count_lines("in flight: after our own work, step 0, for 400 ms,", ""), 1);
    cr_expect_eq(contract_count_lines("GPU 0 hangs", ""), 1);
    cr_expect_eq(standin_nccl.aborted, 0);
    cr_expect(ra_device_is_lost());
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
        while (!contract_found.is_raised())
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL); /* so that it waits, as a rule */
        ra_comm_abort(comm, 5);
        return 0;
    }
    int failures = ra_memory_device(0, &memory) != RA_OK ||
                   memory.ops->alloc(&memory, 4096, &data) != RA_OK ||
                   ra_comm_start(comm, &exchange, &transfer) != RA_OK;
    for (int i = 0; i < 50; i++)
        failures += ra_comm_missing_peer(comm, transfer) != 1; /* until it is on its stream */
    contract_found.raise();
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
