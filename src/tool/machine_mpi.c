/* The one file of the tool that knows MPI by name: its version, and the thread level it gave. */
#include "tool_info.h"

#ifdef RA_TOOL_MPI
#include <mpi.h>
#include <string.h>

static const char *thread_level_text(void)
{
    int initialized = 0, finalized = 0, level = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (!initialized || finalized || MPI_Query_thread(&level) != MPI_SUCCESS)
        return NULL;
    switch (level) {
    case MPI_THREAD_SINGLE:
        return "single";
    case MPI_THREAD_FUNNELED:
        return "funneled";
    case MPI_THREAD_SERIALIZED:
        return "serialized";
    default:
        return "multiple";
    }
}

json_t *ra_machine_mpi_json(void)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    if (MPI_Get_library_version(version, &length) != MPI_SUCCESS)
        length = 0;
    version[length] = '\0';
    version[strcspn(version, ",\n")] = '\0'; /* Open MPI goes on with who built it */
    return json_pack("{s:b, s:s, s:s?, s:s?}", "available", 1, "library", version, "thread_level",
                     thread_level_text(), "why_not", NULL);
}

#else

json_t *ra_machine_mpi_json(void)
{
    return json_pack("{s:b, s:n, s:n, s:s}", "available", 0, "library", "thread_level", "why_not",
                     "built without MPI: configure with -DRA_MPI=ON");
}

#endif
