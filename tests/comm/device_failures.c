#include "comm/device_failures.h"

#include "comm/contract_internal.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <string.h>

enum { BYTES = 1000, ROUNDS = 3 };

typedef struct tally {
    atomic_int ok, failed;
} tally;

typedef struct buffers {
    char *out[2], *in[2]; /* of device memory */
} buffers;

static ra_status fill(const ra_memory *memory, ra_comm *comm, const buffers *b, int round)
{
    unsigned char data[BYTES];
    ra_status status = RA_OK;
    for (int i = 0; i < 2 && status == RA_OK; i++) {
        contract_fill(data, BYTES, ra_comm_rank(comm), 1 - ra_comm_rank(comm), 10 * round + i);
        status = ra_memory_write(memory, NULL, b->out[i], data, BYTES);
    }
    return status;
}

/* What has arrived is right, or the rank knows that something has failed. */
static ra_status check(const ra_memory *memory, ra_comm *comm, const buffers *b, int round,
                       int *wrong)
{
    unsigned char data[BYTES];
    ra_status status = RA_OK;
    for (int i = 0; i < 2 && status == RA_OK; i++) {
        status = ra_memory_read(memory, NULL, data, b->in[i], BYTES);
        if (status == RA_OK && !contract_matches(data, BYTES, 1 - ra_comm_rank(comm),
                                                 ra_comm_rank(comm), 10 * round + i))
            (*wrong)++;
    }
    return status;
}

static ra_status exchange_both(ra_comm *comm, const buffers *b, int round)
{
    int const peer = 1 - ra_comm_rank(comm);
    ra_transfer *transfers[2] = {NULL, NULL};
    ra_status status = RA_OK;
    for (int i = 0; i < 2 && status == RA_OK; i++) {
        ra_exchange const exchange = {
            "a round", round, {peer, b->out[i], BYTES}, {peer, b->in[i], BYTES}};
        status = ra_comm_start(comm, &exchange, &transfers[i]);
    }
    for (int i = 0; i < 2; i++) {
        ra_status const waited = ra_comm_wait(comm, transfers[i]);
        status = status != RA_OK ? status : waited;
    }
    return status;
}

static ra_status work(ra_comm *comm, const ra_memory *memory, const buffers *b, int *wrong)
{
    ra_status status = RA_OK;
    for (int round = 0; round < ROUNDS && status == RA_OK; round++) {
        status = fill(memory, comm, b, round);
        if (status == RA_OK)
            status = exchange_both(comm, b, round);
        if (status == RA_OK)
            status = check(memory, comm, b, round, wrong);
        if (status == RA_OK)
            status = ra_comm_barrier(comm, "the end of a round");
    }
    return status;
}

static int body(ra_comm *comm, void *context)
{
    tally *const t = context;
    ra_memory memory = {0};
    buffers b = {0};
    void *data = NULL;
    int wrong = 0;
    ra_status status = ra_memory_device(0, &memory);
    if (status == RA_OK)
        status = memory.ops->alloc(&memory, 4096, &data);
    if (status == RA_ERR_NO_MEMORY)
        ra_log(RA_LOG_ERROR, "no device memory for what is exchanged"); /* as whoever asks says */
    for (int i = 0; i < 2 && status == RA_OK; i++) {
        b.out[i] = (char *)data + 2000 * i;
        b.in[i] = (char *)data + 2000 * i + BYTES;
    }
    if (status == RA_OK)
        status = work(comm, &memory, &b, &wrong);
    if (status != RA_OK)
        ra_comm_abort(comm, 5); /* as the command does */
    if (data != NULL)
        memory.ops->free(&memory, data, 4096);
    atomic_fetch_add(status == RA_OK ? &t->ok : &t->failed, 1);
    return wrong;
}

static int refused(ra_status status, void *context)
{
    tally *const t = context;
    atomic_fetch_add(&t->failed, 1);
    return status == RA_OK;
}

device_outcome device_job_run(device_maker *make, size_t piece_bytes, int64_t timeout_ms)
{
    tally t;
    atomic_init(&t.ok, 0);
    atomic_init(&t.failed, 0);
    device_ranks plan = {.make = make,
                         .timeout_ms = timeout_ms,
                         .piece_bytes = piece_bytes,
                         .body = body,
                         .context = &t,
                         .refused = refused};
    int const wrong = device_ranks_run(2, &plan);
    return (device_outcome){atomic_load(&t.ok), atomic_load(&t.failed), wrong};
}

static int run_case(ra_comm *comm, void *context)
{
    return ((const contract_case *)context)->body(comm);
}

void device_contract_break(device_maker *make, size_t piece_bytes)
{
    for (int i = 0; i < contract_breaking_count; i++) {
        contract_case broken = contract_breaking[i];
        for (int ranks = broken.ranks_min > 1 ? broken.ranks_min : 1; ranks <= 3; ranks++) {
            device_ranks plan = {.make = make,
                                 .timeout_ms = 60000,
                                 .piece_bytes = piece_bytes,
                                 .body = run_case,
                                 .context = &broken};
            contract_clear_log();
            int const failures = device_ranks_run(ranks, &plan);
            cr_expect_eq(failures, 0, "%s on %d ranks", broken.name, ranks);
            if (failures > 0)
                contract_print_log();
        }
    }
}
