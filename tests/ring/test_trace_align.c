/* One origin for the times of all ranks: exactly so on a host, by barriers across hosts. */
#include "ring/ring_internal.h"
#include "support/poison_pool.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

/* A clock that ranks read at different times, and hosts set differently; or that stands still. */
static _Thread_local int64_t late_ns;
static atomic_bool stands_still;

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    int const result = __real_clock_gettime(clock, time);
    if (atomic_load(&stands_still))
        *time = (struct timespec){.tv_sec = 1};
    time->tv_nsec += late_ns; /* whoever reads the clock adds seconds and these up */
    return result;
}

enum { HOST_LATE_S = 1000 }; /* host 1's clock, far more than barriers take */

static int64_t host_late_ns(int host)
{
    return host == 1 ? HOST_LATE_S * INT64_C(1000000000) : 0;
}

typedef struct aligning {
    ra_comm *comm;
    int host;
    ra_trace *trace;
    pthread_t thread;
} aligning;

static void *align(void *context)
{
    aligning *a = context;
    /* Each leaves a barrier later than the one before. */
    late_ns = host_late_ns(a->host) + 1000 * ra_comm_rank(a->comm);
    cr_expect_eq(ra_trace_align(a->trace, a->comm), RA_OK);
    return NULL;
}

/* Its clock is one, whenever its ranks leave barriers: the first one's difference holds for all. */
Test(trace_align, ranks_of_a_host_agree_exactly_where_there_are_others)
{
    enum { RANKS = 6 };
    static const int hosts[RANKS] = {0, 0, 1, 1, 0, 1};
    ra_ledger *ledger;
    ra_pool *pool;
    ra_comm *comms[RANKS];
    aligning ranks[RANKS];
    int64_t begin_ns[RANKS], count;
    poison_pool_begin(&ledger, &pool);
    cr_assert_eq(ra_comm_create_local(RANKS, hosts, 60000, comms), RA_OK);
    for (int r = 0; r < RANKS; ++r) {
        ranks[r].comm = comms[r];
        ranks[r].host = hosts[r];
        cr_assert_eq(ra_trace_create(pool, 8, 0, &ranks[r].trace), RA_OK);
        cr_assert_eq(pthread_create(&ranks[r].thread, NULL, align, &ranks[r]), 0);
    }
    for (int r = 0; r < RANKS; ++r)
        pthread_join(ranks[r].thread, NULL);
    atomic_store(&stands_still, true);
    for (int r = 0; r < RANKS; ++r) {
        late_ns = host_late_ns(hosts[r]);
        cr_assert_eq(ra_trace_begin(ranks[r].trace, RA_TRACE_STEP, 0, -1, -1, -1), 0);
        begin_ns[r] = ra_trace_events(ranks[r].trace, &count)[0].begin_ns;
    }
    late_ns = 0;
    atomic_store(&stands_still, false);
    for (int r = 0; r < RANKS; ++r) {
        int const first = hosts[r] == 0 ? 0 : 2;
        cr_expect_eq(begin_ns[r], begin_ns[first], "rank %d is %lld ns off", r,
                     (long long)(begin_ns[r] - begin_ns[first]));
        ra_trace_destroy(ranks[r].trace);
        ra_comm_destroy(comms[r]);
    }
    cr_expect_neq(begin_ns[0], begin_ns[2], "ranks leave barriers one after the other");
    cr_expect_lt(llabs(begin_ns[0] - begin_ns[2]), host_late_ns(1) / 4, "%lld ns apart",
                 (long long)(begin_ns[0] - begin_ns[2]));
    poison_pool_end(ledger, pool);
}

Test(trace_align, aligns_a_rank_alone_and_passes_failures_on)
{
    ra_ledger *ledger;
    ra_pool *pool;
    ra_trace *trace;
    ra_comm *comm;
    poison_pool_begin(&ledger, &pool);
    cr_assert_eq(ra_trace_create(pool, 8, -2, &trace), RA_OK);
    cr_assert_eq(ra_comm_create_self(1000, &comm), RA_OK);
    cr_expect_eq(ra_trace_align(trace, comm), RA_OK);
    ra_comm_abort(comm, 5);
    cr_expect_eq(ra_trace_align(trace, comm), RA_ERR_PEER);
    ra_comm_destroy(comm);
    ra_trace_destroy(trace);
    poison_pool_end(ledger, pool);
}
