/*
 * Windows: memory of one host that its ranks reach, an anonymous file that they map. Behind the
 * data lies a meeting, where these ranks wait for each other without a message.
 */
#include "bytes_text.h"
#include "comm_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct ra_meeting {
    atomic_uint round;      /* meetings that have ended */
    atomic_uint here_count; /* ranks that have come to this one */
    atomic_uint asleep_count;
    atomic_uint rounds[]; /* [member_count] meetings that each rank has come to */
};

/* ---- making ---------------------------------------------------------------------------------- */

/* What a host's first rank tells the others: where its file is to be found, and which it is. All
   zeros where it has none: there is no process of that number. */
typedef struct invitation {
    int64_t file, process;
    int64_t device, inode;
} invitation;

static size_t meeting_begin(size_t bytes)
{
    return ra_round_up(bytes, 64);
}

static size_t mapped_bytes(const ra_window *window)
{
    return meeting_begin(window->bytes) + sizeof(ra_meeting) +
           (size_t)window->member_count * sizeof(atomic_uint);
}

static ra_status map(int file, ra_window *window)
{
    char text[32];
    void *data = mmap(NULL, mapped_bytes(window), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (data == MAP_FAILED) {
        ra_log(RA_LOG_WARNING, "cannot map %s of shared memory: %s",
               ra_bytes_text((int64_t)window->bytes, text), strerror(errno));
        return RA_ERR_UNSUPPORTED;
    }
    window->data = data;
    window->meeting = (ra_meeting *)((char *)data + meeting_begin(window->bytes));
    return RA_OK;
}

/* A file beyond this limit would end the process by a signal. */
static bool is_file_too_large(size_t bytes)
{
    struct rlimit most;
    return getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur != RLIM_INFINITY &&
           bytes > most.rlim_cur;
}

/*
 * Every page of a file, or an error number. The others wait meanwhile, and pages come at some 2 GB
 * per second: after each piece they are told of work. A signal may undo a piece: half of it is
 * tried then, and so on, until one is whole between two signals of a timer.
 */
static int reserve(ra_comm *comm, int file, int64_t bytes)
{
    int64_t const most = (int64_t)64 << 20, least = 4096;
    int64_t piece = most;
    for (int64_t at = 0; at < bytes; ra_comm_beat(comm)) {
        int64_t const count = ra_min_i64(piece, bytes - at);
        int const error = posix_fallocate(file, at, count);
        if (error != 0 && error != EINTR)
            return error;
        at += error == 0 ? count : 0;
        piece = error == 0 ? ra_min_i64(2 * piece, most) : ra_max_i64(piece / 2, least);
    }
    return 0;
}

/*
 * The first rank: take the memory, every page of it, because touching a page that the machine does
 * not have would end the process. The caller's ledger has checked the limit; more than the
 * machine's memory is refused at once. A system that forbids such files, or files so large, has no
 * windows.
 */
static ra_status take(ra_comm *comm, const ra_window *window, int *file_out, invitation *invite)
{
    int64_t const machine_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    int const file = memfd_create("ringattn", MFD_CLOEXEC);
    struct stat about;
    char text[32];
    int error = file < 0 ? errno : 0;
    if (error == 0 && window->bytes > (size_t)machine_bytes)
        error = ENOMEM;
    if (error == 0 && is_file_too_large(mapped_bytes(window)))
        error = EFBIG;
    if (error == 0)
        error = reserve(comm, file, (int64_t)mapped_bytes(window));
    if (error == 0 && fstat(file, &about) != 0)
        error = errno;
    if (error == 0) {
        *invite = (invitation){.file = file,
                               .process = getpid(),
                               .device = (int64_t)about.st_dev,
                               .inode = (int64_t)about.st_ino};
        *file_out = file;
        return RA_OK;
    }
    bool const is_full = error == ENOMEM || error == ENOSPC;
    ra_log(is_full ? RA_LOG_ERROR : RA_LOG_WARNING, "cannot take %s of shared memory: %s",
           ra_bytes_text(window->bytes < INT64_MAX ? (int64_t)window->bytes : INT64_MAX, text),
           strerror(error));
    if (file >= 0)
        close(file);
    return is_full ? RA_ERR_NO_MEMORY : RA_ERR_UNSUPPORTED;
}

/*
 * The other ranks: the first one's file, through the system's list of its open files. In a
 * container of its own the same process number may stand for another process.
 */
static ra_status find(const invitation *invite, int *file_out)
{
    char path[64];
    struct stat about;
    snprintf(path, sizeof(path), "/proc/%lld/fd/%lld", (long long)invite->process,
             (long long)invite->file);
    int const file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return RA_ERR_UNSUPPORTED;
    if (fstat(file, &about) == 0 && (int64_t)about.st_dev == invite->device &&
        (int64_t)about.st_ino == invite->inode) {
        *file_out = file;
        return RA_OK;
    }
    close(file);
    return RA_ERR_UNSUPPORTED;
}

/* The worst status of all ranks. Missing memory, which has been logged, comes before the rest. */
static ra_status agree(ra_comm *comm, ra_status mine)
{
    int64_t worst = mine == RA_ERR_NO_MEMORY ? INT_MAX : (int64_t)mine;
    ra_status const status = ra_comm_reduce_i64(comm, "making a window", RA_MAX, &worst, 1);
    if (status != RA_OK)
        return status;
    return worst == INT_MAX ? RA_ERR_NO_MEMORY : (ra_status)worst;
}

ra_status ra_window_create(ra_comm *comm, size_t bytes, ra_window *window_out)
{
    ra_window window = {.bytes = bytes, .member_count = ra_comm_local_size(comm)};
    invitation invite = {0};
    int file = -1;
    ra_status mine = RA_OK;
    RA_ASSERT(bytes >= 1);
    if (comm->of_host != NULL)
        return comm->broken ? RA_ERR_PEER : RA_ERR_UNSUPPORTED;
    bool const first = ra_hosts_place(comm->hosts, comm->rank) == 0;
    if (first)
        mine = take(comm, &window, &file, &invite);
    ra_status status = ra_comm_broadcast_by_host(comm, "making a window", &invite, sizeof(invite));
    if (status == RA_OK) {
        if (!first)
            mine = find(&invite, &file);
        if (file >= 0)
            mine = map(file, &window);
        status = agree(comm, mine);
    }
    if (file >= 0)
        close(file); /* the mapping stays; with the last one the memory goes */
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
        munmap(window->data, mapped_bytes(window));
    *window = (ra_window){0};
}

/* ---- meeting --------------------------------------------------------------------------------- */

enum {
    YIELDS = 50,              /* looks before a rank sleeps: the others are mostly nearly there */
    NAP_NS = 1000000,         /* where only another rank's failure or heartbeat may come */
    NAP_IN_FLIGHT_NS = 100000 /* where transfers want to progress */
};

static void wake_all(ra_meeting *meeting)
{
    if (atomic_load(&meeting->asleep_count) > 0)
        syscall(SYS_futex, &meeting->round, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Until somebody ends the round, or for a while. */
static void sleep_in(ra_meeting *meeting, unsigned round, long nap_ns)
{
    struct timespec const nap = {.tv_nsec = nap_ns};
    atomic_fetch_add(&meeting->asleep_count, 1);
    syscall(SYS_futex, &meeting->round, FUTEX_WAIT, round, &nap, NULL, 0);
    atomic_fetch_sub(&meeting->asleep_count, 1);
}

/* The first rank of this host that has not come to the meeting after `round` others. */
static int find_late(const ra_comm *comm, const ra_meeting *meeting, unsigned round)
{
    int place = 0;
    for (int rank = 0; rank < comm->size; rank++) {
        if (comm->hosts[rank] == comm->hosts[comm->rank] &&
            atomic_load(&meeting->rounds[place++]) == round)
            return rank;
    }
    return comm->rank;
}

static void arrive(const ra_comm *comm, const ra_window *window, unsigned round)
{
    ra_meeting *const meeting = window->meeting;
    atomic_store(&meeting->rounds[ra_hosts_place(comm->hosts, comm->rank)], round + 1);
    if (atomic_fetch_add(&meeting->here_count, 1) + 1 < (unsigned)window->member_count)
        return;
    atomic_store(&meeting->here_count, 0); /* before the round ends: nobody comes to the next */
    atomic_store(&meeting->round, round + 1);
    wake_all(meeting);
}

ra_status ra_window_meet(ra_comm *comm, const ra_window *window, const char *operation, int step)
{
    ra_meeting *const meeting = window->meeting;
    unsigned const round = atomic_load(&meeting->round);
    int64_t const begin_ns = ra_clock_ns();
    arrive(comm, window, round);
    for (int looks = 0; atomic_load(&meeting->round) == round; looks++) {
        int64_t const now_ns = ra_clock_ns();
        ra_status const status = ra_comm_look(comm);
        if (status != RA_OK)
            return status;
        if (ra_waited_ms(comm, begin_ns, now_ns) >= comm->timeout_ms &&
            atomic_load(&meeting->round) == round) {
            ra_comm_log_timeout(comm, operation, step, find_late(comm, meeting, round));
            return RA_ERR_TIMEOUT;
        }
        if (looks < YIELDS)
            sched_yield();
        else
            sleep_in(meeting, round, comm->in_flight > 0 ? NAP_IN_FLIGHT_NS : NAP_NS);
    }
    return ra_comm_look(comm); /* who comes last may come when others have given up */
}
