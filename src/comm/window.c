/* Windows: memory of one host that all ranks reach, made from POSIX shared memory. */
#include "comm_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* What rank 0 tells the others. */
typedef struct invitation {
    int32_t status;
    char name[60];
} invitation;

int64_t ra_window_room_bytes(void)
{
    struct statvfs info;
    if (statvfs("/dev/shm", &info) != 0)
        return 0;
    return (int64_t)info.f_bavail * (int64_t)info.f_frsize;
}

static void *map(int file, size_t bytes)
{
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return data == MAP_FAILED ? NULL : data;
}

/* Rank 0: take the memory under a name that nobody else has. */
static ra_status take(size_t bytes, char *name, size_t name_bytes, int *file_out)
{
    static atomic_uint serial; /* several windows of one process */
    int64_t const room = ra_window_room_bytes();
    if ((int64_t)bytes > room) {
        ra_log(RA_LOG_ERROR, "cannot take %.1f MiB of shared memory: /dev/shm has %.1f MiB free",
               (double)bytes / 1048576, (double)room / 1048576);
        return RA_ERR_NO_MEMORY;
    }
    snprintf(name, name_bytes, "/ringattn-%ld-%u-%llx", (long)getpid(),
             atomic_fetch_add(&serial, 1), (unsigned long long)ra_clock_ns());
    int const file = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0) {
        ra_log(RA_LOG_ERROR, "cannot make shared memory (%s): %s", name, strerror(errno));
        return RA_ERR_NO_MEMORY;
    }
    /* Reserves every page: otherwise the first touch of one too many ends in SIGBUS. */
    int const error = posix_fallocate(file, 0, (off_t)bytes);
    if (error != 0) {
        ra_log(RA_LOG_ERROR, "cannot take %.1f MiB of shared memory: %s", (double)bytes / 1048576,
               strerror(error));
        close(file);
        shm_unlink(name);
        return RA_ERR_NO_MEMORY;
    }
    *file_out = file;
    return RA_OK;
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
    invitation invite = {.status = RA_OK};
    ra_window window = {.bytes = bytes};
    int file = -1;
    RA_ASSERT(bytes >= 1);
    if (comm->local_size != comm->size) {
        if (comm->rank == 0)
            ra_log(RA_LOG_ERROR, "ranks on several hosts cannot share memory");
        return RA_ERR_UNSUPPORTED;
    }
    if (comm->rank == 0)
        invite.status = take(bytes, invite.name, sizeof(invite.name), &file);
    ra_status status = ra_comm_broadcast(comm, "making a window", 0, &invite, sizeof(invite));
    if (status == RA_OK && invite.status == RA_OK) {
        if (comm->rank != 0)
            file = shm_open(invite.name, O_RDWR, 0);
        window.data = file >= 0 ? map(file, bytes) : NULL;
        ra_status const mine = window.data != NULL ? RA_OK : RA_ERR_NO_MEMORY;
        if (mine != RA_OK)
            ra_log(RA_LOG_ERROR, "cannot map shared memory (rank %d): %s", comm->rank,
                   strerror(errno));
        status = agree(comm, mine);
    }
    if (file >= 0)
        close(file);
    if (comm->rank == 0 && invite.status == RA_OK)
        shm_unlink(invite.name); /* all have mapped it, or nobody will */
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
