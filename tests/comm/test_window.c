/* Windows that take their time, or are interrupted: the first rank of a host makes one alone. */
#include "comm/comm_internal.h"
#include "comm/local_ranks.h"
#include "support/captured_log.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

TestSuite(window);

enum { PIECES_MAX = 16, PIECE = 64 << 20 };

/* Linked with --wrap=posix_fallocate: files get their length, but no memory. */
static struct {
    int calls;
    int64_t undone_bytes; /* calls for more are interrupted; 0: none is */
    int refused;          /* the call that finds no memory; -1: none */
    int64_t reserved_bytes, largest_bytes;
    int beats_before[PIECES_MAX];
} files;

/* What a rank's own thread is told: an error of its file system; or another file than it asks for.
 */
static _Thread_local int own_error, own_file = -1;
static _Thread_local bool is_real; /* it gets what it asks for */
static _Thread_local bool maps_nothing;
static _Thread_local bool is_guarded; /* nothing lies behind what it maps */

static int beats;

int __real_posix_fallocate(int file, off_t at, off_t bytes);
int __wrap_posix_fallocate(int file, off_t at, off_t bytes);
int __wrap_posix_fallocate(int file, off_t at, off_t bytes)
{
    if (is_real)
        return __real_posix_fallocate(file, at, bytes);
    if (own_error != 0)
        return own_error;
    int const call = files.calls++;
    cr_assert_lt(call, PIECES_MAX);
    files.beats_before[call] = beats;
    if (call == files.refused)
        return ENOSPC;
    if (files.undone_bytes > 0 && bytes > files.undone_bytes)
        return EINTR;
    cr_assert_eq(at, files.reserved_bytes, "pieces follow one another");
    files.reserved_bytes += bytes;
    files.largest_bytes = ra_max_i64(files.largest_bytes, bytes);
    return ftruncate(file, at + bytes) == 0 ? 0 : errno;
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    return own_file >= 0 ? own_file : __real_open(path, flags);
}

/* Files of two file systems may have one number. */
static _Thread_local bool is_elsewhere;

int __real_fstat(int file, struct stat *about_out);
int __wrap_fstat(int file, struct stat *about_out);
int __wrap_fstat(int file, struct stat *about_out)
{
    int const error = __real_fstat(file, about_out);
    about_out->st_dev += is_elsewhere;
    return error;
}

/* A process may lack the addresses for what its host has the memory for. */
void *__real_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t begin);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t begin);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t begin)
{
    if (is_guarded) {
        size_t const page = (size_t)sysconf(_SC_PAGESIZE), pages = ra_round_up(bytes, page);
        at = __real_mmap(NULL, pages + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        flags |= MAP_FIXED;
    }
    if (!maps_nothing)
        return __real_mmap(at, bytes, protection, flags, file, begin);
    errno = ENOMEM;
    return MAP_FAILED;
}

static void count_beat(ra_comm *comm)
{
    (void)comm;
    beats++;
}

/* A window of one rank, whose signs of work are counted. */
static ra_status create(size_t bytes, ra_window *window)
{
    ra_comm *comm;
    cr_assert_eq(ra_comm_create_self(1000, &comm), RA_OK);
    const ra_comm_ops *const own = comm->ops;
    ra_comm_ops counting = *own;
    counting.beat = count_beat;
    comm->ops = &counting;
    ra_status const status = ra_window_create(comm, bytes, window);
    comm->ops = own;
    ra_comm_destroy(comm);
    return status;
}

/* The number of the next file: the same as before if none was left open. */
static int next_file(void)
{
    int const file = dup(STDIN_FILENO);
    close(file);
    return file;
}

Test(window, is_reserved_in_pieces_and_the_others_are_told_of_each)
{
    int64_t const bytes = 3 * PIECE + 7;
    ra_window window;
    files.refused = -1;
    int const next = next_file();
    cr_assert_eq(create((size_t)bytes, &window), RA_OK);
    cr_expect_eq(next_file(), next, "the mapping stays, the file does not");
    cr_expect_eq(files.calls, 4);
    cr_expect_geq(files.reserved_bytes, bytes, "every page");
    cr_expect_leq(files.largest_bytes, PIECE);
    for (int i = 0; i < files.calls; i++)
        cr_expect_eq(files.beats_before[i], i);
    ra_window_destroy(&window);
}

Test(window, that_a_signal_interrupts_is_reserved_all_the_same)
{
    ra_window window;
    files.refused = -1;
    files.undone_bytes = PIECE / 4;
    cr_assert_eq(create(3 * PIECE / 4, &window), RA_OK);
    cr_expect_eq(files.beats_before[files.calls - 1], files.calls - 1, "each is a sign of work");
    cr_expect_leq(files.largest_bytes, PIECE / 4);
    cr_expect_geq(files.reserved_bytes, 3 * PIECE / 4);
    ra_window_destroy(&window);
}

Test(window, that_a_host_has_no_room_for_is_refused_at_any_piece)
{
    int const next = next_file();
    for (int piece = 0; piece < 3; piece++) {
        ra_window window = {0};
        files.calls = 0;
        files.reserved_bytes = 0;
        files.refused = piece;
        cr_expect_eq(create(5 * PIECE / 2, &window), RA_ERR_NO_MEMORY);
        cr_expect_eq(files.calls, piece + 1);
        cr_expect_null(window.data);
        cr_expect_eq(next_file(), next, "its file is left open");
    }
}

/* Sizes that wrap when the meeting is added, or are negative in 64 bits, too. */
Test(window, that_no_machine_has_is_refused_in_one_line)
{
    size_t const sizes[] = {(size_t)1 << 50, (size_t)1 << 63, SIZE_MAX - 8, SIZE_MAX};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        ra_window window = {0};
        captured_log said;
        captured_log_begin(&said);
        cr_expect_eq(create(sizes[i], &window), RA_ERR_NO_MEMORY, "%zu", sizes[i]);
        cr_expect_eq(said.errors, 1, "%zu", sizes[i]);
        cr_expect_null(window.data);
    }
    cr_expect_eq(files.calls, 0);
}

/* The limit's signal would end the process. */
Test(window, that_is_larger_than_a_file_may_be_is_none)
{
    struct rlimit const most = {1 << 20, 1 << 20};
    captured_log said;
    ra_window window = {0};
    files.refused = -1;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &most), 0);
    captured_log_begin(&said);
    cr_expect_eq(create(2 << 20, &window), RA_ERR_UNSUPPORTED);
    cr_expect_eq(create(1 << 20, &window), RA_ERR_UNSUPPORTED, "with its meeting it is larger");
    cr_expect_eq(said.warnings, 2);
    cr_expect_eq(files.calls, 0);
    cr_expect_eq(create(1 << 19, &window), RA_OK);
    ra_window_destroy(&window);
}

/* To a byte. */
Test(window, is_as_large_as_a_file_may_be)
{
    ra_window window = {0};
    files.refused = -1;
    cr_assert_eq(create(1 << 20, &window), RA_OK);
    ra_window_destroy(&window);
    int64_t const whole = files.reserved_bytes; /* with its meeting */
    for (int missing = 0; missing < 2; missing++) {
        rlim_t const bytes = (rlim_t)(whole - missing);
        files.calls = 0;
        files.reserved_bytes = 0;
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){bytes, RLIM_INFINITY}), 0);
        cr_expect_eq(create(1 << 20, &window), missing ? RA_ERR_UNSUPPORTED : RA_OK);
        ra_window_destroy(&window);
    }
}

static ra_status create_on(ra_comm *comm)
{
    ra_window window = {0};
    ra_status const status = ra_window_create(comm, 4096, &window);
    ra_window_destroy(&window);
    return status;
}

/* Missing memory ends the job, and a system without windows does not: the former must be heard. */
static int lack_different_things(ra_comm *comm, void *context)
{
    const int *const errors = context;
    own_error = errors[ra_comm_rank(comm)];
    return create_on(comm) != RA_ERR_NO_MEMORY;
}

Test(window, that_one_host_has_no_room_for_and_another_forbids_lacks_memory)
{
    static const int hosts[] = {0, 1};
    static int errors[][2] = {{ENOSPC, EPERM}, {EPERM, ENOMEM}};
    captured_log said;
    captured_log_begin(&said);
    for (int i = 0; i < 2; i++) {
        ra_comm *comms[2];
        cr_assert_eq(ra_comm_create_local(2, hosts, 10000, comms), RA_OK);
        cr_expect_eq(local_ranks_run_on(2, comms, lack_different_things, errors[i]), 0);
    }
    cr_expect_eq(said.errors, 2);
}

/* Every host has a memory of its own, however alike their ranks' requests are. */
static int see_own_host(ra_comm *comm, void *context)
{
    int const host = ra_comm_hosts(comm)[ra_comm_rank(comm)];
    ra_window window = {0};
    int failures = 0;
    (void)context;
    is_real = true;
    if (ra_window_create(comm, 4096, &window) != RA_OK)
        return 1;
    unsigned char *const data = window.data;
    if (ra_comm_rank(comm) < 2) /* the first ranks of the hosts */
        data[0] = (unsigned char)(host + 1);
    failures += ra_comm_barrier(comm, "window: written") != RA_OK;
    failures += data[0] != host + 1;
    failures += ra_comm_barrier(comm, "window: read") != RA_OK;
    ra_window_destroy(&window);
    return failures;
}

Test(window, of_one_host_is_not_that_of_another)
{
    static const int hosts[] = {0, 1, 1, 0};
    ra_comm *comms[4];
    cr_assert_eq(ra_comm_create_local(4, hosts, 10000, comms), RA_OK);
    cr_expect_eq(local_ranks_run_on(4, comms, see_own_host, NULL), 0);
}

static int meet_behind(ra_comm *comm, void *context)
{
    const size_t *const bytes = context;
    ra_window window = {0};
    int failures = 0;
    is_real = is_guarded = true;
    if (ra_window_create(comm, *bytes, &window) != RA_OK)
        return 1;
    for (int i = 0; i < 3; i++)
        failures += ra_window_barrier(comm, &window, "meeting", i) != RA_OK;
    ra_window_destroy(&window);
    return failures;
}

/* Data up to the last line of a page or into it, so that the meeting is on the next one in part. */
Test(window, has_room_for_the_meeting_behind_its_data)
{
    size_t const page = (size_t)sysconf(_SC_PAGESIZE);
    size_t bytes = page - 63;
    cr_expect_eq(local_ranks_run(2, 10000, meet_behind, &bytes), 0);
    bytes = page - 64;
    cr_expect_eq(local_ranks_run(16, 10000, meet_behind, &bytes), 0);
}

/* Ranks 1, 3 and 4 are of one host, where rank 1 comes alone; the other host has met by then. */
static int meet_without_rank_3(ra_comm *comm, void *context)
{
    int const rank = ra_comm_rank(comm);
    ra_window window = {0};
    int failures = 0;
    (void)context;
    is_real = true;
    if (ra_window_create(comm, 4096, &window) != RA_OK)
        return 1;
    if (ra_comm_hosts(comm)[rank] == 0)
        failures += ra_window_barrier(comm, &window, "meeting", 6) != RA_OK;
    failures += ra_comm_barrier(comm, "window: met") != RA_OK;
    ra_comm_set_timeout(comm, 100);
    if (rank == 1)
        failures += ra_window_barrier(comm, &window, "meeting in vain", 7) == RA_OK;
    ra_window_destroy(&window);
    return failures;
}

Test(window, whose_meeting_a_rank_misses_names_it_and_none_of_another_host)
{
    static const int hosts[] = {0, 1, 0, 1, 1};
    ra_comm *comms[5];
    captured_log said;
    captured_log_begin(&said);
    cr_assert_eq(ra_comm_create_local(5, hosts, 10000, comms), RA_OK);
    cr_expect_eq(local_ranks_run_on(5, comms, meet_without_rank_3, NULL), 0);
    cr_expect_geq(said.errors, 1);
    cr_expect_not_null(strstr(said.line, "step 7, waiting for rank 3"), "%s", said.line);
}

/* Windows that this process has mapped. */
static int mapped_windows(void)
{
    char line[512];
    int count = 0;
    FILE *const maps = fopen("/proc/self/maps", "r");
    cr_assert_not_null(maps);
    while (fgets(line, sizeof(line), maps) != NULL)
        count += strstr(line, "memfd:ringattn") != NULL;
    fclose(maps);
    return count;
}

/* In a container of its own the same process number stands for another process. */
static int find_another_file(ra_comm *comm, void *context)
{
    bool const finds = ra_comm_rank(comm) == 1;
    (void)context;
    own_file = finds ? memfd_create("another", 0) : -1;
    ra_status const status = create_on(comm);
    bool const is_open = finds && fcntl(own_file, F_GETFD) != -1;
    own_file = -1;
    return status != RA_ERR_UNSUPPORTED || is_open;
}

Test(window, whose_file_turns_out_to_be_another_is_none)
{
    files.refused = -1;
    cr_expect_eq(local_ranks_run(2, 10000, find_another_file, NULL), 0);
    cr_expect_eq(mapped_windows(), 0, "the first rank's memory is left");
}

static int find_that_number_elsewhere(ra_comm *comm, void *context)
{
    (void)context;
    is_elsewhere = ra_comm_rank(comm) == 1;
    return create_on(comm) != RA_ERR_UNSUPPORTED;
}

Test(window, whose_file_has_the_number_of_another_systems_is_none)
{
    files.refused = -1;
    cr_expect_eq(local_ranks_run(2, 10000, find_that_number_elsewhere, NULL), 0);
    cr_expect_eq(mapped_windows(), 0, "the first rank's memory is left");
}

static int map_nothing(ra_comm *comm, void *context)
{
    maps_nothing = ra_comm_rank(comm) == *(const int *)context;
    return create_on(comm) != RA_ERR_UNSUPPORTED;
}

Test(window, that_a_rank_cannot_map_is_none_and_that_rank_says_why)
{
    files.refused = -1;
    for (int rank = 0; rank < 2; rank++) {
        captured_log said;
        captured_log_begin(&said);
        files.calls = 0;
        files.reserved_bytes = 0;
        cr_expect_eq(local_ranks_run(2, 10000, map_nothing, &rank), 0);
        cr_expect_eq(said.warnings, 1);
        cr_expect_eq(said.count, 1);
        cr_expect_not_null(strstr(said.line, "map"), "%s", said.line);
        cr_expect_eq(mapped_windows(), 0, "what others mapped is left");
    }
}
