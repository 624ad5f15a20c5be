/* Scans: what comes before a rank, in the order of ranks, bit for bit. */
#include "contract_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT_MAX = 20001 }; /* three pieces of a chain, the last one short */

/* Magnitudes from 1e-6 to 1e6, so that every other order of additions gives other bits. Rounded
   before it is added: inlined, its product and the sum would be one FMA, where these are. */
static __attribute__((noinline)) float uneven(int rank, int64_t index)
{
    int const at = (int)(index % 100000);
    return (float)(contract_byte(rank, at, 7, 0) - 127) *
           powf(10.0f, (float)(contract_byte(rank, at, 8, 0) % 13 - 6));
}

/* What rank `rank` must get at `index`: the others one by one, from the far end. */
static float expected_at(ra_scan scan, int rank, int size, int64_t index)
{
    float sum = 0;
    if (scan == RA_SCAN_UP)
        for (int r = 0; r < rank; r++)
            sum += uneven(r, index);
    else
        for (int r = size - 1; r > rank; r--)
            sum += uneven(r, index);
    return sum;
}

static int scan_once(ra_comm *comm, ra_scan scan, int64_t count, float *own, float *before)
{
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int failures = 0;
    bool same = true;
    for (int64_t i = 0; i < count; i++)
        own[i] = uneven(rank, i);
    for (int64_t i = 0; i <= count; i++)
        before[i] = NAN; /* not read, and written only up to count */
    EXPECT(ra_comm_exscan_f32(comm, "scan", scan, own, before, count) == RA_OK);
    for (int64_t i = 0; i < count; i++) {
        float const expected = expected_at(scan, rank, size, i);
        same = same && memcmp(&before[i], &expected, sizeof(expected)) == 0;
        same = same && own[i] == uneven(rank, i);
    }
    EXPECT(same);
    EXPECT(isnan(before[count]));
    return failures;
}

static int scans_in_the_order_of_ranks(ra_comm *comm)
{
    static const int64_t counts[] = {0, 1, 8191, 8192, 8193, COUNT_MAX};
    float *const own = malloc(COUNT_MAX * sizeof(float));
    float *const before = malloc((COUNT_MAX + 1) * sizeof(float));
    int failures = 0;
    for (int i = 0; i < 6; i++) {
        failures += scan_once(comm, RA_SCAN_UP, counts[i], own, before);
        failures += scan_once(comm, RA_SCAN_DOWN, counts[i], own, before);
    }
    free(own);
    free(before);
    return failures;
}

/* Its messages pass those of an exchange that is still on its way between the same ranks. */
static int scans_amid_a_transfer(ra_comm *comm)
{
    enum { BYTES = 100000 };
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int const to = (rank + 1) % size, from = (rank + size - 1) % size;
    unsigned char *const out = malloc(BYTES), *const in = malloc(BYTES);
    ra_exchange const exchange = {"amid", 0, {to, out, BYTES}, {from, in, BYTES}};
    ra_transfer *transfer = NULL;
    float const own = uneven(rank, 0);
    float before = NAN;
    int failures = 0;
    contract_fill(out, BYTES, rank, to, 4);
    EXPECT(ra_comm_start(comm, &exchange, &transfer) == RA_OK);
    EXPECT(ra_comm_exscan_f32(comm, "amid", RA_SCAN_UP, &own, &before, 1) == RA_OK);
    EXPECT(before == expected_at(RA_SCAN_UP, rank, size, 0));
    EXPECT(ra_comm_wait(comm, transfer) == RA_OK);
    EXPECT(contract_matches(in, BYTES, from, rank, 4));
    free(out);
    free(in);
    return failures;
}

/* Of GPUs too, though their sums are taken by the host's communicator. */
static int counts_what_a_scan_moves(ra_comm *comm)
{
    enum { COUNT = 8193, BYTES = COUNT * sizeof(float) }; /* two pieces */
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    bool const sends = rank + 1 < size, receives = rank > 0;
    float *const own = calloc(COUNT, sizeof(float)), *const before = calloc(COUNT, sizeof(float));
    ra_comm_stats stats;
    int failures = 0;
    ra_comm_reset_stats(comm);
    EXPECT(ra_comm_exscan_f32(comm, "counted", RA_SCAN_UP, own, before, COUNT) == RA_OK);
    ra_comm_read_stats(comm, &stats);
    EXPECT(stats.sent_bytes == (sends ? BYTES : 0) && stats.sent_messages == (sends ? 2 : 0));
    EXPECT(stats.received_bytes == (receives ? BYTES : 0));
    EXPECT((stats.wait_ms > 0.0) == (size > 1));
    free(own);
    free(before);
    return failures;
}

int contract_run_scans(ra_comm *comm)
{
    int failures = scans_in_the_order_of_ranks(comm);
    failures += failures > 0 ? 0 : scans_amid_a_transfer(comm);
    return failures > 0 ? failures : counts_what_a_scan_moves(comm);
}
