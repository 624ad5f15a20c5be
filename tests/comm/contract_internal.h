/* What the parts of the contract share. */
#ifndef RINGATTN_TEST_CONTRACT_INTERNAL_H
#define RINGATTN_TEST_CONTRACT_INTERNAL_H

#include "comm/contract.h"

#include <stddef.h>
#include <stdio.h>

/* Count and print a claim that does not hold. Usable in any thread, unlike Criterion's. */
#define EXPECT(condition)                                                                          \
    ((condition)                                                                                   \
         ? 0                                                                                       \
         : (fprintf(stderr, "%s:%d: rank %d of %d (%s): %s\n", __FILE__, __LINE__,                 \
                    ra_comm_rank(comm), ra_comm_size(comm), ra_comm_name(comm), #condition),       \
            failures++, 0))

/* Byte `index` of message `number` from one rank to another. */
static inline unsigned char contract_byte(int from, int to, int64_t number, size_t index)
{
    uint64_t x = (uint64_t)from * 1000003 + (uint64_t)to * 10007 + (uint64_t)number * 101 + index;
    x = (x ^ (x >> 29)) * UINT64_C(0xBF58476D1CE4E5B9);
    return (unsigned char)(x >> 40);
}

int contract_run_exchanges(ra_comm *comm, uint64_t seed);
int contract_run_collectives(ra_comm *comm);
int contract_run_scans(ra_comm *comm);
int contract_run_windows(ra_comm *comm);
int contract_run_beats(ra_comm *comm);

void contract_fill(unsigned char *data, size_t bytes, int from, int to, int64_t number);
bool contract_matches(const unsigned char *data, size_t bytes, int from, int to, int64_t number);

/* Whether a wait comes to return at once: nobody is missing any more. */
bool contract_comes_to_end(ra_comm *comm, ra_transfer *transfer);

#endif
