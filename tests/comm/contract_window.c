/* Windows: one memory that every rank reaches. */
#include "comm/contract_internal.h"

#include <string.h>

enum { ROUNDS = 3, PART = 5000 };

static int sees_what_others_wrote(ra_comm *comm)
{
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    int failures = 0;
    ra_window window;
    EXPECT(ra_window_create(comm, (size_t)size * PART, &window) == RA_OK);
    if (failures > 0)
        return failures;
    unsigned char *const data = window.data;
    EXPECT(data[(size_t)rank * PART] == 0 && data[(size_t)(rank + 1) * PART - 1] == 0);
    for (int round = 0; round < ROUNDS; round++) {
        int const owner = (rank + round) % size;
        EXPECT(ra_window_barrier(comm, &window, "window: read", round) == RA_OK);
        contract_fill(data + (size_t)owner * PART, PART, rank, owner, round);
        EXPECT(ra_window_barrier(comm, &window, "window: written", -1) == RA_OK);
        for (int r = 0; r < size; r++)
            EXPECT(contract_matches(data + (size_t)r * PART, PART, (r - round % size + size) % size,
                                    r, round));
    }
    ra_window_destroy(&window);
    EXPECT(window.data == NULL);
    ra_window_destroy(&window);
    return failures;
}

/* More than there can be: refused on every rank alike, and the communicator goes on. */
static int refuses_what_there_is_no_room_for(ra_comm *comm)
{
    int failures = 0;
    ra_window window = {0};
    EXPECT(ra_window_create(comm, (size_t)1 << 60, &window) == RA_ERR_NO_MEMORY);
    EXPECT(window.data == NULL);
    EXPECT(ra_comm_barrier(comm, "window: after a refusal") == RA_OK);
    return failures;
}

/* Memory of GPUs is not the host's: there is none, and the communicator goes on. */
static int has_none_between_gpus(ra_comm *comm)
{
    int failures = 0;
    ra_window window = {0};
    EXPECT(ra_window_create(comm, 1, &window) == RA_ERR_UNSUPPORTED);
    EXPECT(window.data == NULL);
    EXPECT(ra_comm_barrier(comm, "window: after none") == RA_OK);
    return failures;
}

int contract_run_windows(ra_comm *comm)
{
    if (ra_comm_of_host(comm) != comm)
        return has_none_between_gpus(comm);
    int const failures = sees_what_others_wrote(comm);
    return failures > 0 ? failures : refuses_what_there_is_no_room_for(comm);
}
