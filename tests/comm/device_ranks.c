#include "comm/device_ranks.h"

#include "comm/comm_internal.h"
#include "comm/contract.h"
#include "comm/local_ranks.h"
#include "support/open_pool.h"
#include "support/own_hosts.h"
#include "support/standin_cudart.h"
#include "support/standin_nccl.h"
#include "support/standin_wire.h"

#include <stdio.h>
#include <stdlib.h>

void device_ranks_begin_nccl(void)
{
    standin_reset();
    standin_nccl_reset();
    own_hosts_begin();
    contract_capture_log();
}

static int run_rank(ra_comm *host, void *context)
{
    const device_ranks *const plan = context;
    ra_comm_device device = {
        .pool = plan->pool != NULL ? plan->pool : open_pool(),
        .host_pool = plan->host_pool != NULL ? plan->host_pool : open_pool(),
    };
    ra_comm *comm = NULL;
    ra_status status = ra_memory_device(ra_device_used(), &device.memory);
    if (status != RA_OK)
        ra_comm_abort(host, 5); /* the others are not left to their deadline */
    else
        status = plan->make(host, &device, &comm);
    if (status != RA_OK) {
        if (plan->refused != NULL)
            return plan->refused(status, plan->context);
        fprintf(stderr, "rank %d has no communicator: %s\n", ra_comm_rank(host),
                ra_status_name(status));
        return 1;
    }
    if (plan->piece_bytes > 0)
        ra_comm_staged_set_piece(comm, plan->piece_bytes);
    int const failures = plan->body != NULL ? plan->body(comm, plan->context) : 1;
    ra_comm_destroy(comm);
    return failures;
}

int device_ranks_run(int ranks, device_ranks *plan)
{
    ra_comm *comms[WIRE_RANKS_MAX];
    if (ranks > WIRE_RANKS_MAX ||
        ra_comm_create_local(ranks, plan->hosts, plan->timeout_ms, comms) != RA_OK)
        abort();
    return local_ranks_run_on(ranks, comms, run_rank, plan);
}

int device_ranks_run_alone(device_ranks *plan)
{
    ra_comm *host = NULL;
    if (ra_comm_create_self(plan->timeout_ms, &host) != RA_OK)
        return 1;
    return local_ranks_run_on(1, &host, run_rank, plan);
}
