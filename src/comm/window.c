/* Windows: memory of one host that all ranks reach, an anonymous file that they map. */
#include "comm_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What rank 0 tells the others: where its file is to be found. */
typedef struct invitation {
    int32_t status;
    int32_t file;
    int64_t process;
} invitation;

static void *map(int file, size_t bytes)
{
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return data == MAP_FAILED ? NULL : data;
}

/*
 * Rank 0: take the memory, every page of it: otherwise the first touch of one too many kills. What
 * there is room for the caller's ledger knows; more than the machine has is not even tried.
 */
static ra_status take(size_t bytes, int *file_out)
{
    int64_t const machine_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    int const file = memfd_create("ringattn", MFD_CLOEXEC);
    int error = file < 0 ? errno : 0;
    if (error == 0)
        error = (int64_t)bytes > machine_bytes ? ENOMEM : posix_fallocate(file, 0, (off_t)bytes);
    if (error == 0) {
        *file_out = file;
        return RA_OK;
    }
    ra_log(RA_LOG_ERROR, "cannot take %.1f MiB of shared memory: %s", (double)bytes / 1048576,
           strerror(error));
    if (file >= 0)
        close(file);
    return RA_ERR_NO_MEMORY;
}

/* The other ranks: rank 0's file, through the system's list of its open files. */
static int find(const invitation *invite)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%lld/fd/%d", (long long)invite->process, invite->file);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* The worst status of all ranks. */
static ra_status agree(ra_comm *comm, ra_status mine)
{
    int64_t worst = mine;
    ra_status const status = ra_comm_reduce_i64(comm, "making a window", RA_MAX, &worst, 1);
    return status != RA_OK ? status : (ra_status)worst;
}

ra_status ra_window_create(ra_comm *comm, size_t bytes, ra_window *window_out)
{
    invitation invite = {.status = RA_OK, .process = getpid()};
    ra_window window = {.bytes = bytes};
    int file = -1;
    RA_ASSERT(bytes >= 1);
    if (comm->local_size != comm->size)
        return RA_ERR_UNSUPPORTED;
    if (comm->rank == 0) {
        invite.status = take(bytes, &file);
        invite.file = file;
    }
    ra_status status = ra_comm_broadcast(comm, "making a window", 0, &invite, sizeof(invite));
    if (status == RA_OK && invite.status == RA_OK) {
        if (comm->rank != 0)
            file = find(&invite);
        window.data = file >= 0 ? map(file, bytes) : NULL;
        status = agree(comm, window.data != NULL ? RA_OK : RA_ERR_UNSUPPORTED);
    }
    if (file >= 0)
        close(file); /* the mapping stays; with the last one the memory goes */
    if (status == RA_OK)
        status = (ra_status)invite.status;
    if (status != RA_OK) {
        ra_window_destroy(&window);
        return status;
    }
    *window_out = window;
    return RA_OK;
}

void ra_window_destroy(ra_window *window)
{
    if (window->data != NULL)
        munmap(window->data, window->bytes);
    *window = (ra_window){0};
}
