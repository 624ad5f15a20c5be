#include "cublas_library.h"

#include "internal.h"
#include "library.h"

#include <pthread.h>
#include <stdio.h>

/* The first version with the compute types that we use. */
enum { MAJOR_MIN = 11 };

/* Free address space, without which it is not loaded: version 13.1.0 takes 680 MiB, 180 of these
   for data, and if its constructors find no more, they end the process by a signal. */
enum { ROOM_MIB = 1024, DATA_MIB = 256 };

static ra_cublas library;
static char why[240];
static pthread_once_t looked_for = PTHREAD_ONCE_INIT;

static const ra_library_symbol symbols[] = {
    {"cublasGetProperty", &library.get_property},
    {"cublasCreate_v2", &library.create},
    {"cublasDestroy_v2", &library.destroy},
    {"cublasSetStream_v2", &library.set_stream},
    {"cublasSetWorkspace_v2", &library.set_workspace},
    {"cublasGemmStridedBatchedEx", &library.multiply},
    {"cublasGetStatusString", &library.error_string},
};

/*
 * On the loader's path, first the build's version, then others, whose calls and constants are the
 * same; then where the build found it.
 */
static void look(void)
{
    char of_build[32];
    snprintf(of_build, sizeof(of_build), "libcublas.so.%d", CUBLAS_VER_MAJOR);
    const char *const names[] = {of_build, "libcublas.so.13", "libcublas.so.12", "libcublas.so.11",
                                 RA_CUBLAS_LIBRARY};
    int major = 0;
    if (!ra_library_has_room(ROOM_MIB, DATA_MIB)) {
        snprintf(why, sizeof(why),
                 "the system refuses libcublas.so %d MiB of address space: raise the limit "
                 "(ulimit -v, ulimit -d)",
                 ROOM_MIB);
        return;
    }
    void *const handle = ra_library_open(names, sizeof(names) / sizeof(names[0]));
    if (handle == NULL) {
        snprintf(why, sizeof(why),
                 "there is no libcublas.so on this machine: install cuBLAS, or put its folder "
                 "into LD_LIBRARY_PATH");
        return;
    }
    if (!ra_library_find_all(handle, "libcublas.so", symbols, sizeof(symbols) / sizeof(symbols[0]),
                             why, sizeof(why)))
        return;
    if (library.get_property(MAJOR_VERSION, &major) != CUBLAS_STATUS_SUCCESS || major < MAJOR_MIN)
        snprintf(why, sizeof(why),
                 "this machine's libcublas.so has major version %d, and %d is the oldest that "
                 "serves",
                 major, MAJOR_MIN);
}

const ra_cublas *ra_cublas_open(char *why_not, size_t bytes)
{
    RA_ASSERT(pthread_once(&looked_for, look) == 0);
    snprintf(why_not, bytes, "%s", why);
    return why[0] == '\0' ? &library : NULL;
}
