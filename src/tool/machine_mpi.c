/* The one file of the tool that knows MPI by name: its version, thread level and settings. */
#include "placement.h"
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

/* A setting of the library by name: a flag or a small number, and what it is called. */
static bool setting_read(const char *name, int *value_out, MPI_T_enum *names_out)
{
    char text[2];
    int index, length = 0, details = 0, verbosity, bind, scope, count = 0;
    MPI_Datatype type;
    MPI_T_cvar_handle handle;
    union {
        unsigned char flag;
        int number;
    } value = {.number = 0};
    if (MPI_T_cvar_get_index(name, &index) != MPI_SUCCESS ||
        MPI_T_cvar_get_info(index, text, &length, &verbosity, &type, names_out, text, &details,
                            &bind, &scope) != MPI_SUCCESS ||
        (type != MPI_C_BOOL && type != MPI_INT && type != MPI_UNSIGNED) ||
        MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) != MPI_SUCCESS)
        return false;
    bool const read = count == 1 && MPI_T_cvar_read(handle, &value) == MPI_SUCCESS;
    MPI_T_cvar_handle_free(&handle);
    *value_out = type == MPI_C_BOOL ? value.flag : value.number;
    return read;
}

static ra_answer single_copy_read(void)
{
    int value, count = 0, item;
    MPI_T_enum names = MPI_T_ENUM_NULL;
    char name[64] = "";
    if (!setting_read("btl_vader_single_copy_mechanism", &value, &names) ||
        names == MPI_T_ENUM_NULL)
        return RA_ANSWER_UNKNOWN;
    int length = 0;
    if (MPI_T_enum_get_info(names, &count, name, &length) != MPI_SUCCESS)
        return RA_ANSWER_UNKNOWN;
    for (int i = 0; i < count; i++) {
        length = sizeof(name);
        if (MPI_T_enum_get_item(names, i, &item, name, &length) == MPI_SUCCESS && item == value)
            return strcmp(name, "none") != 0 && strcmp(name, "emulated") != 0;
    }
    return RA_ANSWER_UNKNOWN;
}

ra_mpi_settings ra_mpi_settings_read(void)
{
    ra_mpi_settings settings = {RA_ANSWER_UNKNOWN, RA_ANSWER_UNKNOWN};
    int initialized = 0, finalized = 0, level, value;
    MPI_T_enum names;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    /* With another level than it has, Open MPI 4.1 takes that for its own from then on. */
    if (!initialized || finalized || MPI_Query_thread(&level) != MPI_SUCCESS ||
        MPI_T_init_thread(level, &level) != MPI_SUCCESS)
        return settings;
    if (setting_read("mpi_yield_when_idle", &value, &names))
        settings.yields_when_idle = value != 0;
    settings.copies_once = single_copy_read();
    MPI_T_finalize();
    return settings;
}

#else

ra_mpi_settings ra_mpi_settings_read(void)
{
    return (ra_mpi_settings){RA_ANSWER_UNKNOWN, RA_ANSWER_UNKNOWN};
}

json_t *ra_machine_mpi_json(void)
{
    return json_pack("{s:b, s:n, s:n, s:s}", "available", 0, "library", "thread_level", "why_not",
                     "built without MPI: configure with -DRA_MPI=ON");
}

#endif
