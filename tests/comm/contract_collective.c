/* Collectives: the same result on every rank, bit for bit. */
#include "contract_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

static int gathers_integers(ra_comm *comm)
{
    static const int counts[] = {1, 3, 70};
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int64_t own[70];
    int64_t *const all = malloc((size_t)size * 70 * sizeof(*all));
    int failures = 0;
    EXPECT(all != NULL);
    for (int c = 0; c < 3 && failures == 0; c++) {
        memset(all, 0xff, (size_t)size * 70 * sizeof(*all)); /* what was there does not count */
        for (int i = 0; i < counts[c]; i++)
            own[i] = i % 2 == 0 ? INT64_MIN + rank : rank * 100 - i;
        EXPECT(ra_comm_allgather_i64(comm, "integers", own, counts[c], all) == RA_OK);
        for (int k = 0; k < size * counts[c]; k++) {
            int const r = k / counts[c], i = k % counts[c];
            EXPECT(all[k] == (i % 2 == 0 ? INT64_MIN + r : r * 100 - i));
        }
    }
    free(all);
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

/* Whoever fails, all learn the same; of two that fail differently, the worse. */
static int agrees_on_the_worst(ra_comm *comm)
{
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int failures = 0;
    EXPECT(ra_comm_agree(comm, "agreeing", RA_OK) == RA_OK);
    for (int r = 0; r < size; r++) {
        ra_status const mine = rank == r                ? RA_ERR_TIMEOUT
                               : rank == (r + 1) % size ? RA_ERR_NO_MEMORY
                                                        : RA_OK;
        EXPECT(ra_comm_agree(comm, "agreeing", mine) == RA_ERR_TIMEOUT);
    }
    return failures;
}

int contract_run_collectives(ra_comm *comm)
{
    static int (*const cases[])(ra_comm * comm) = {
        tells_who_it_is,     broadcasts,       reduces_integers, reduces_doubles_alike,
        a_nan_is_never_lost, gathers_integers, barriers_hold,    agrees_on_the_worst,
    };
    int failures = 0;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]) && failures == 0; i++)
        failures = cases[i](comm);
    return failures;
}
