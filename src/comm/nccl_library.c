#include "nccl_library.h"

#include "internal.h"
#include "library.h"
#include "ringattn/comm_device.h"

#include <pthread.h>
#include <stdio.h>

/* The first that has point-to-point calls on communicators which do not block. */
enum { VERSION_MIN = NCCL_VERSION(2, 18, 0) };
/* Memory of NCCL's own is there since 2.19; on GPUs with multicast, blocks were rounded to that
   mechanism's recommended granularity, up to 2.25 at least, and no longer in 2.26.5. */
enum { VERSION_OF_MEMORY = NCCL_VERSION(2, 26, 5) };

static ra_nccl library;
static char why[240];
static int version;
static pthread_once_t looked_for = PTHREAD_ONCE_INIT;

static const ra_library_symbol symbols[] = {
    {"ncclGetVersion", &library.get_version},
    {"ncclGetUniqueId", &library.get_unique_id},
    {"ncclCommInitRankConfig", &library.init_rank},
    {"ncclCommGetAsyncError", &library.get_async_error},
    {"ncclCommFinalize", &library.finalize},
    {"ncclCommDestroy", &library.destroy},
    {"ncclCommAbort", &library.abort},
    {"ncclGroupStart", &library.group_start},
    {"ncclGroupEnd", &library.group_end},
    {"ncclSend", &library.send},
    {"ncclRecv", &library.recv},
    {"ncclGetErrorString", &library.error_string},
    {"ncclGetLastError", &library.last_error},
};

/* What can be done without: mem_alloc is found last, so that it says whether all is there. */
static void find_memory(void *handle)
{
    (void)(version >= VERSION_OF_MEMORY &&
           ra_library_find(handle, "ncclMemFree", &library.mem_free) &&
           ra_library_find(handle, "ncclCommRegister", &library.comm_register) &&
           ra_library_find(handle, "ncclCommDeregister", &library.comm_deregister) &&
           ra_library_find(handle, "ncclMemAlloc", &library.mem_alloc));
}

/*
 * Where the loader looks, then where the build has found it. NCCL writes what NCCL_DEBUG asks for
 * to the stdout that it finds when it is loaded, into the middle of a report: it finds stderr.
 * glibc, without which there is no NCCL, says that stdout may be set.
 */
static void *load(void)
{
    static const char *const names[] = {"libnccl.so.2", RA_NCCL_LIBRARY};
    FILE *const output = stdout;
    stdout = stderr;
    void *const handle = ra_library_open(names, sizeof(names) / sizeof(names[0]));
    stdout = output;
    return handle;
}

static void look(void)
{
    void *const handle = load();
    if (handle == NULL) {
        snprintf(why, sizeof(why),
                 "there is no libnccl.so.2 on this machine: install NCCL, or put "
                 "its folder into LD_LIBRARY_PATH");
        return;
    }
    if (!ra_library_find_all(handle, "libnccl.so.2", symbols, sizeof(symbols) / sizeof(symbols[0]),
                             why, sizeof(why)))
        return;
    if (library.get_version(&version) == ncclSuccess && version >= VERSION_MIN)
        find_memory(handle);
    else
        snprintf(why, sizeof(why),
                 "this machine's libnccl.so.2 has version code %d, and 2.18 "
                 "is the oldest that serves",
                 version);
}

const ra_nccl *ra_nccl_open(char *why_not, size_t bytes)
{
    RA_ASSERT(pthread_once(&looked_for, look) == 0);
    snprintf(why_not, bytes, "%s", why);
    return why[0] == '\0' ? &library : NULL;
}

int ra_nccl_version(void)
{
    char ignored[sizeof(why)];
    return ra_nccl_open(ignored, sizeof(ignored)) != NULL ? version : 0;
}

bool ra_nccl_describe(char *text, size_t bytes)
{
    if (ra_nccl_open(text, bytes) == NULL)
        return false;
    snprintf(text, bytes, "version %d.%d.%d (built with %d.%d.%d)", version / 10000,
             version / 100 % 100, version % 100, NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
    return true;
}
