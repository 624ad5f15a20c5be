/* A ledger, and a communicator over MPI if there is one, in C++. */
#include <ringattn/ring.h>

int main(int argc, char **argv)
{
    ra_ledger *ledger = nullptr;
    ra_comm *comm = nullptr;
    if (ra_ledger_create(1 << 20, &ledger) != RA_OK)
        return 2; /* the library has logged why, here as below */
    if ((ra_comm_has_mpi() ? ra_comm_create_mpi(&argc, &argv, 60000, &comm)
                           : ra_comm_create_self(60000, &comm)) != RA_OK)
        return 2;
    int const size = ra_comm_size(comm);
    ra_comm_destroy(comm);
    ra_ledger_destroy(ledger);
    return size != 1;
}
