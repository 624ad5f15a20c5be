/* Agreement of ranks. A file of its own: tests wrap the reduction that it calls, at link time. */
#include "comm_internal.h"

ra_status ra_comm_agree(ra_comm *comm, const char *operation, ra_status mine)
{
    int64_t worst = (int64_t)mine;
    ra_status const told = ra_comm_reduce_i64(comm, operation, RA_MAX, &worst, 1);
    if (told != RA_OK)
        return mine != RA_OK ? mine : told;
    return (ra_status)worst;
}
