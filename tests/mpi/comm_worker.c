/*
 * One rank of the tests in test_comm_mpi.c: comm_worker MODE [ARGUMENT]... It prints what failed,
 * and exits with 0 only if nothing did.
 */
#include "comm/comm_internal.h"
#include "comm/comm_mpi.h"
#include "comm/contract.h"
#include "support/failing_calloc.h"

#include <malloc.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int receives_left = -1; /* before MPI_Irecv fails once; -1: it does not */

int MPI_Irecv(void *data, int count, MPI_Datatype type, int source, int tag, MPI_Comm handle,
              MPI_Request *request)
{
    bool const fails = receives_left == 0;
    receives_left -= receives_left >= 0;
    return fails ? MPI_ERR_OTHER : PMPI_Irecv(data, count, type, source, tag, handle, request);
}

static bool refuses_beat; /* the next */

/* Heartbeats are not seen until the next message with data is sent, and in some looks after it. */
static bool hides_beats;
static int hidden_looks;

int MPI_Isend(const void *data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm handle,
              MPI_Request *request)
{
    if (hides_beats && count > 0) {
        hides_beats = false;
        hidden_looks = 3;
    }
    if (refuses_beat && tag == RA_TAG_BEAT) {
        refuses_beat = false;
        return MPI_ERR_OTHER;
    }
    return PMPI_Isend(data, count, type, peer, tag, handle, request);
}

int MPI_Iprobe(int source, int tag, MPI_Comm handle, int *found, MPI_Status *status)
{
    if (!hides_beats && hidden_looks == 0)
        return PMPI_Iprobe(source, tag, handle, found, status);
    hidden_looks -= !hides_beats;
    *found = 0;
    return MPI_SUCCESS;
}

static MPI_Comm *promised; /* the handle that MPI is to write */
static bool promised_is_free;
static MPI_Request promise = MPI_REQUEST_NULL; /* until it has */

int MPI_Comm_idup(MPI_Comm handle, MPI_Comm *copy_out, MPI_Request *request)
{
    promised = copy_out;
    int const error = PMPI_Comm_idup(handle, copy_out, request);
    promise = error == MPI_SUCCESS ? *request : MPI_REQUEST_NULL;
    return error;
}

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status)
{
    bool const is_promise = *request == promise;
    int const error = PMPI_Test(request, done, status);
    if (is_promise)
        promise = *request;
    return error;
}

void __real_free(void *data);
void __wrap_free(void *data);
void __wrap_free(void *data)
{
    uintptr_t const begin = (uintptr_t)data, at = (uintptr_t)promised;
    if (data != NULL && at >= begin && at < begin + malloc_usable_size(data))
        promised_is_free = true;
    __real_free(data);
}

static ra_comm *create(int *argc, char ***argv)
{
    ra_comm *comm = NULL;
    if (ra_comm_create_mpi(argc, argv, 60000, &comm) != RA_OK)
        exit(90);
    return comm;
}

/* healthy SEED PIECE_BYTES TAG_COUNT: the contract; 0: the communicator's own limits. */
static int run_healthy(ra_comm *comm, char **arguments)
{
    uint64_t const seed = strtoull(arguments[0], NULL, 10);
    size_t const piece_bytes = strtoull(arguments[1], NULL, 10);
    if (piece_bytes > 0)
        ra_comm_mpi_set_limits(comm, piece_bytes, atoi(arguments[2]));
    int failures = contract_run_healthy(comm, seed);
    failures += strcmp(ra_comm_name(comm), "mpi") != 0;
    ra_comm_destroy(comm);
    int finalised = 0;
    MPI_Finalized(&finalised);
    return failures + !finalised;
}

/* Who sees the file may end the job, so it is there with its content or not at all. */
static void touch(const char *folder, const char *what, int rank, int64_t content)
{
    char path[4096], written[sizeof(path) + 8];
    snprintf(path, sizeof(path), "%s/%s.%d", folder, what, rank);
    snprintf(written, sizeof(written), "%s.new", path);
    FILE *const file = fopen(written, "w");
    if (file == NULL || fprintf(file, "%lld\n", (long long)content) < 0 || fclose(file) != 0 ||
        rename(written, path) != 0)
        exit(91);
}

static void wait_for_file(const char *folder, const char *what, int rank)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s.%d", folder, what, rank);
    for (int tries = 0; access(path, F_OK) != 0; tries++) {
        if (tries > 6000) {
            fprintf(stderr, "rank %d never wrote %s\n", rank, path);
            exit(92);
        }
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
}

static void meet_outside(const char *folder, const char *what, int rank, int size, int64_t content)
{
    touch(folder, what, rank, content);
    for (int other = 0; other < size; other++)
        wait_for_file(folder, what, other);
}

static char found_path[4096]; /* of the case that runs */

static void raise_found(void)
{
    FILE *const file = fopen(found_path, "w");
    if (file == NULL || fclose(file) != 0)
        exit(91);
}

static bool found_is_raised(void)
{
    return access(found_path, F_OK) == 0;
}

/* One case that breaks its communicator; the ranks meet outside MPI before and after its end. */
static void break_once(const contract_case *broken, int piece_bytes, const char *folder)
{
    char destroyed[128];
    ra_comm *const comm = create(NULL, NULL);
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    if (piece_bytes > 0)
        ra_comm_mpi_set_limits(comm, (size_t)piece_bytes, 2);
    contract_clear_log();
    snprintf(found_path, sizeof(found_path), "%s/%s_found.0", folder, broken->name);
    int const failures = broken->body(comm);
    if (failures != 0)
        contract_print_log();
    meet_outside(folder, broken->name, rank, size, failures);
    comm->broken = true;   /* also where a rank stayed away: the others are past all agreement */
    ra_comm_destroy(comm); /* returns, although nobody else is there */
    snprintf(destroyed, sizeof(destroyed), "%s_destroyed", broken->name);
    meet_outside(folder, destroyed, rank, size, 1);
}

/*
 * break PREFIX PIECE_BYTES FOLDER: cases that break a communicator, each on a new one; MPI itself
 * stays usable. How a case went on a rank is a file in FOLDER, because what mpirun says about a job
 * that ends without MPI_Finalize is its own affair.
 */
static int run_breaking(int *argc, char ***argv, char **arguments)
{
    int level = 0;
    MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &level);
    contract_capture_log();
    contract_found = (contract_flag){raise_found, found_is_raised};
    for (int i = 0; i < contract_breaking_count; i++) {
        const contract_case *const broken = &contract_breaking[i];
        if (!broken->ends_job && strncmp(broken->name, arguments[0], strlen(arguments[0])) == 0)
            break_once(broken, atoi(arguments[1]), arguments[2]);
    }
    fflush(NULL);
    _exit(0);
}

/* Wait for a message from `peer` that never comes, and give up as the command does. */
static int wait_in_vain(ra_comm *comm, int peer)
{
    unsigned char byte = 0;
    ra_exchange const exchange = {"forward keys and values", 3, .recv = {peer, &byte, 1}};
    ra_transfer *transfer = NULL;
    ra_status status = ra_comm_start(comm, &exchange, &transfer);
    if (status == RA_OK)
        status = ra_comm_wait(comm, transfer);
    if (status == RA_ERR_TIMEOUT)
        ra_comm_abort(comm, 5);
    return 93;
}

/* lose SIGNAL TIMEOUT_MS FOLDER: rank 1 sends itself a signal; the others wait for it. */
static int lose_a_rank(ra_comm *comm, char **arguments)
{
    if (ra_comm_barrier(comm, "begin") != RA_OK)
        return 94;
    ra_comm_set_timeout(comm, atoll(arguments[1]));
    if (ra_comm_rank(comm) == 1) {
        touch(arguments[2], "pid", 1, getpid());
        raise(atoi(arguments[0]));
        sleep(600);
    }
    return wait_in_vain(comm, 1);
}

/* abort CODE: rank 0 gives up while the others wait with a long deadline. */
static int give_up(ra_comm *comm, char **arguments)
{
    if (ra_comm_rank(comm) == 0)
        ra_comm_abort(comm, atoi(arguments[0]));
    return wait_in_vain(comm, 0);
}

/* leave: rank 1 stays out of the end of the job, and the others' destroy must return. */
static int leave_early(ra_comm *comm, char **arguments)
{
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    ra_comm_set_timeout(comm, 500);
    if (rank != 1)
        ra_comm_destroy(comm);
    meet_outside(arguments[0], "destroyed", rank, size, 1);
    _exit(rank == 1 ? 95 : 0);
}

/* Rank 1 comes last to the end, after a sign of work, which must not reach communicators of the
   caller that are made meanwhile or later. */
static int be_heard_last(ra_comm *comm)
{
    struct timespec const nap = {.tv_nsec = 100000000};
    MPI_Comm own;
    int failures = 0, found = 0;
    for (int i = 0; i < 2; i++) /* Open MPI counts a rank's messages in a communicator */
        failures += ra_comm_barrier(comm, "guest") != RA_OK;
    if (ra_comm_rank(comm) == 1) {
        nanosleep(&nap, NULL);
        ra_comm_set_timeout(comm, 8); /* a heartbeat is due after an eighth of it */
        ra_comm_beat(comm);
        ra_comm_set_timeout(comm, 30000);
    }
    hides_beats = ra_comm_rank(comm) == 0; /* until it has answered rank 1 at the end */
    ra_comm_destroy(comm);
    failures += hides_beats || hidden_looks > 0;
    hidden_looks = 0;
    MPI_Comm_dup(MPI_COMM_WORLD, &own);
    MPI_Barrier(own);
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, own, &found, MPI_STATUS_IGNORE);
    MPI_Comm_free(&own);
    return failures + found;
}

/* guest: the caller owns MPI, before and after. */
static int be_a_guest(int *argc, char ***argv)
{
    int level = 0, finalised = 0, failures = 0, sum = 1;
    MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &level);
    failures += be_heard_last(create(NULL, NULL));
    promised_is_free = false;
    for (int round = 0; round < 2; round++) {
        ra_comm *const comm = create(NULL, NULL);
        failures += ra_comm_barrier(comm, "guest") != RA_OK || promised_is_free;
        ra_comm_destroy(comm);
        failures += !promised_is_free;
        promised_is_free = false;
    }
    MPI_Finalized(&finalised);
    failures += finalised;
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Finalize();

    ra_comm *comm = NULL;
    contract_capture_log();
    failures += ra_comm_create_mpi(NULL, NULL, 1000, &comm) != RA_ERR_MPI;
    failures += contract_count_lines("MPI was finalised before", "") != 1;
    return failures;
}

/* single: the caller's MPI lets no thread call it. */
static int be_single(int *argc, char ***argv)
{
    ra_comm *comm = NULL;
    MPI_Init(argc, argv);
    contract_capture_log();
    int failures = ra_comm_create_mpi(NULL, NULL, 1000, &comm) != RA_ERR_MPI;
    failures += contract_count_lines("MPI runs without thread support", "") != 1;
    MPI_Finalize();
    return failures;
}

/* hoarse: MPI refuses a rank one heartbeat, to one of the others. The job ends as it should. */
static int be_hoarse(ra_comm *comm, char **arguments)
{
    enum { TIMEOUT_MS = 4000 };
    int finalised = 0;
    (void)arguments;
    ra_comm_set_timeout(comm, TIMEOUT_MS);
    for (int beat = 0; beat < 2; beat++) {
        struct timespec const until_due = {.tv_nsec = TIMEOUT_MS / 8 * INT64_C(1100000)};
        nanosleep(&until_due, NULL);
        refuses_beat = beat == 0 && ra_comm_rank(comm) == 1;
        ra_comm_beat(comm);
    }
    int failures = refuses_beat; /* it was sent none */
    ra_comm_set_timeout(comm, 60000);
    ra_comm_destroy(comm);
    MPI_Finalized(&finalised);
    return failures + !finalised;
}

/* memory: every allocation of the maker fails once, on all ranks alike. */
static int run_out_of_memory(int *argc, char ***argv)
{
    ra_comm *comm = NULL;
    int level = 0, failed = 0, failures = 0;
    MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &level); /* its own calls are not ours */
    contract_capture_log();
    for (;; failed++) {
        contract_clear_log();
        callocs_left = failed;
        ra_status const status = ra_comm_create_mpi(NULL, NULL, 60000, &comm);
        callocs_left = -1;
        if (status == RA_OK)
            break;
        failures += status != RA_ERR_NO_MEMORY;
        failures += contract_count_lines("out of memory for", "") != 1;
        if (failed > 20)
            return 96;
    }
    failures += failed != 10; /* the communicator, its eight arrays, and names of hosts */
    failures += ra_comm_barrier(comm, "in the end") != RA_OK;
    ra_comm_destroy(comm);
    MPI_Finalize();
    return failures;
}

/* deaf: MPI fails on rank 0 as it asks for rank 2's part, and nobody has a result. */
static int go_deaf(int *argc, char ***argv)
{
    int64_t value = 1;
    int level = 0;
    MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &level);
    contract_capture_log();
    ra_comm *const comm = create(NULL, NULL);
    bool const is_deaf = ra_comm_rank(comm) == 0;
    receives_left = is_deaf ? 1 : -1;
    ra_status const status = ra_comm_reduce_i64(comm, "a sum", RA_SUM, &value, 1);
    int failures = status != (is_deaf ? RA_ERR_MPI : RA_ERR_PEER);
    failures += value != 1;
    failures += contract_count_lines("a sum", "") != is_deaf;
    contract_print_log();
    ra_comm_destroy(comm);
    MPI_Finalize();
    return failures;
}

/*
 * late FOLDER: the last rank joins when the others have given up. What they had asked MPI for comes
 * to its end as they enter MPI again, which is theirs. It is waited for: the last rank may give up
 * first, and in MPI_Finalize Open MPI 4.1.4 dies of a communicator that is only half made.
 */
static int join_late(int *argc, char ***argv, const char *folder)
{
    int level = 0, rank = 0, size = 0, sum = 1;
    ra_comm *comm = NULL;
    MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    contract_capture_log();
    bool const is_late = rank == size - 1;
    for (int other = 0; other < size - 1 && is_late; other++)
        wait_for_file(folder, "gave up", other);
    int failures = ra_comm_create_mpi(NULL, NULL, 500, &comm) != RA_ERR_TIMEOUT;
    if (!is_late) {
        failures += contract_count_lines("joining the job timed out after 0.5 s", "") != 1;
        failures += comm != NULL || promised_is_free;
        touch(folder, "gave up", rank, failures);
    }
    MPI_Wait(&promise, MPI_STATUS_IGNORE);
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    failures += sum != size;
    MPI_Finalize();
    return failures;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(ra_comm *comm, char **arguments);
        int argument_count;
    } modes[] = {
        {"healthy", run_healthy, 3}, {"lose", lose_a_rank, 3}, {"abort", give_up, 1},
        {"leave", leave_early, 1},   {"hoarse", be_hoarse, 0},
    };
    if (argc >= 2 && strcmp(argv[1], "guest") == 0)
        return be_a_guest(&argc, &argv);
    if (argc >= 2 && strcmp(argv[1], "single") == 0)
        return be_single(&argc, &argv);
    if (argc >= 2 && strcmp(argv[1], "memory") == 0)
        return run_out_of_memory(&argc, &argv);
    if (argc >= 2 && strcmp(argv[1], "deaf") == 0)
        return go_deaf(&argc, &argv);
    if (argc == 3 && strcmp(argv[1], "late") == 0)
        return join_late(&argc, &argv, argv[2]);
    if (argc == 5 && strcmp(argv[1], "break") == 0)
        return run_breaking(&argc, &argv, argv + 2);
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (argc == 2 + modes[i].argument_count && strcmp(argv[1], modes[i].name) == 0)
            return modes[i].run(create(&argc, &argv), argv + 2);
    }
    fprintf(stderr, "usage: comm_worker MODE [ARGUMENT]...\n");
    return 97;
}
