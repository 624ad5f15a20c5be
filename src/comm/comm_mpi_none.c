/* A build without MPI: asked for it, it says so. */
#include "comm_internal.h"

bool ra_comm_has_mpi(void)
{
    return false;
}

ra_status ra_comm_create_mpi(int *argc, char ***argv, int64_t timeout_ms, ra_comm **comm_out)
{
    (void)argc;
    (void)argv;
    (void)timeout_ms;
    (void)comm_out;
    ra_log(RA_LOG_ERROR, "this build has no MPI: run one rank (comm.backend: self), or build with "
                         "-DRA_MPI=ON where an MPI library is installed");
    return RA_ERR_UNSUPPORTED;
}
