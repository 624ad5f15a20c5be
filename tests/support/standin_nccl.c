#include "support/standin_nccl.h"

#include "comm/nccl_library.h"
#include "ringattn/comm_device.h"
#include "support/standin_cudart.h"
#include "support/standin_wire.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { OPS_MAX = 16 };

standin_nccl_state standin_nccl;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct group {
    struct ncclComm *comm;
    int count;
    wire_op ops[OPS_MAX];
    cudaStream_t stream;
    struct group *next; /* of the same communicator */
} group;

struct ncclComm {
    struct ncclComm *next;
    wire *wire;
    int rank, size, finalized;
    int registered; /* blocks */
    int polls;      /* for which it is still busy */
    group *waiting; /* ended, not on the stream yet */
    group *groups;  /* on the stream */
};

static struct ncclComm *comms; /* all, so that one of a lost GPU is no leak of the test's */
static _Thread_local group *open_group;

void standin_nccl_reset(void)
{
    standin_nccl = (standin_nccl_state){
        .fail_error = ncclSystemError, .busy_polls = 2, .taken_bytes = 1 << 20};
    wire_forget_all();
}

/* A call: it takes the lock, and may be the one to fail, or the process's last. */
static ncclResult_t enter(void)
{
    pthread_mutex_lock(&lock);
    int64_t const call = ++standin_nccl.calls;
    if (call == standin_nccl.signal_call)
        raise(standin_nccl.signal);
    return call == standin_nccl.fail_call ? standin_nccl.fail_error : ncclSuccess;
}

static ncclResult_t leave(ncclResult_t result)
{
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- messages -------------------------------------------------------------------------------- */

static int move(group *g)
{
    int done = !standin_nccl.stalls;
    for (int i = 0; i < g->count && !standin_nccl.stalls; i++) {
        wire_move(g->comm->wire, g->comm->rank, &g->ops[i], standin_nccl.corrupts);
        done = done && g->ops[i].done;
    }
    return done;
}

static void unlink_group(group *g)
{
    group **at = &g->comm->groups;
    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
}

/* The turn of a group on its stream. */
static int group_is_over(void *context)
{
    group *const g = *(group **)context;
    pthread_mutex_lock(&lock);
    int const aborted = g->comm == NULL, over = aborted || move(g);
    if (over && !aborted)
        unlink_group(g);
    pthread_mutex_unlock(&lock);
    if (over)
        free(g);
    return over;
}

/* ---- groups ---------------------------------------------------------------------------------- */

static ncclResult_t fake_group_start(void)
{
    ncclResult_t const error = enter();
    if (error == ncclSuccess) {
        open_group = calloc(1, sizeof(*open_group));
        standin_nccl.open_groups++;
    }
    return leave(error);
}

/* Asked before this library's lock is taken: streams, which go by the runtime's, take it, too. */
static int is_taken(const void *data, size_t bytes)
{
    return !standin_nccl.is_strict || standin_has_device(data, bytes);
}

static ncclResult_t add(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                        cudaStream_t stream, int is_send)
{
    int const fits = is_taken(data, count);
    ncclResult_t error = enter();
    group *const g = open_group;
    if (error == ncclSuccess &&
        (!fits || g == NULL || type != ncclUint8 || peer < 0 || peer >= comm->size ||
         g->count == OPS_MAX || stream == NULL || (g->count > 0 && g->stream != stream)))
        error = ncclInvalidUsage;
    if (error == ncclSuccess) {
        g->comm = comm;
        g->stream = stream;
        g->ops[g->count++] =
            (wire_op){.data = data, .bytes = count, .peer = peer, .is_send = is_send};
    }
    return leave(error);
}

static ncclResult_t fake_send(const void *data, size_t count, ncclDataType_t type, int peer,
                              ncclComm_t comm, cudaStream_t stream)
{
    union {
        const void *from;
        void *to;
    } const both = {data};
    return add(both.to, count, type, peer, comm, stream, 1);
}

static ncclResult_t fake_recv(void *data, size_t count, ncclDataType_t type, int peer,
                              ncclComm_t comm, cudaStream_t stream)
{
    return add(data, count, type, peer, comm, stream, 0);
}

/* The group is on its way; it is on the stream after some questions. */
static ncclResult_t fake_group_end(void)
{
    ncclResult_t error = enter();
    group *const g = open_group;
    standin_nccl.open_groups -= g != NULL;
    open_group = NULL;
    if (g != NULL && error == ncclSuccess && g->count > 0 && g->comm->waiting == NULL &&
        g->comm->polls == 0) {
        g->comm->waiting = g;
        g->comm->polls = standin_nccl.busy_polls;
        error = ncclInProgress;
    } else {
        if (error == ncclSuccess)
            error = ncclInvalidUsage; /* a call on a communicator that is still busy */
        free(g);
    }
    return leave(error);
}

/* ---- communicators --------------------------------------------------------------------------- */

static ncclResult_t fake_unique_id(ncclUniqueId *id)
{
    ncclResult_t error = enter();
    if (error == ncclSuccess && wire_make(id->internal, sizeof(id->internal)) != 0)
        error = ncclSystemError;
    return leave(error);
}

static struct ncclComm *make_comm(const ncclUniqueId *id, int size, int rank)
{
    struct ncclComm *const comm = calloc(1, sizeof(*comm));
    wire *const w = comm != NULL ? wire_open(id->internal) : NULL;
    if (w == NULL) {
        free(comm);
        return NULL;
    }
    atomic_fetch_add(&w->here_count, 1);
    *comm = (struct ncclComm){
        .next = comms, .wire = w, .rank = rank, .size = size, .polls = standin_nccl.busy_polls};
    comms = comm;
    standin_nccl.communicators++;
    return comm;
}

/* NCCL takes the environment's word before its caller's. */
static bool is_blocking(const ncclConfig_t *config)
{
    const char *const told = getenv("NCCL_COMM_BLOCKING");
    return told != NULL ? strcmp(told, "0") != 0 : config->blocking != 0;
}

static ncclResult_t fake_init_rank(ncclComm_t *comm_out, int size, ncclUniqueId id, int rank,
                                   ncclConfig_t *config)
{
    ncclResult_t error = enter();
    if (error == ncclSuccess && (is_blocking(config) || size > WIRE_RANKS_MAX || rank >= size))
        error = ncclInvalidArgument;
    struct ncclComm *const comm = error == ncclSuccess ? make_comm(&id, size, rank) : NULL;
    if (comm != NULL) {
        *comm_out = comm;
        error = ncclInProgress;
    } else if (error == ncclSuccess) {
        error = ncclSystemError;
    }
    leave(error);
    if (comm != NULL) {
        (void)standin_enter();
        standin.used_bytes += standin_nccl.taken_bytes;
        (void)standin_leave(cudaSuccess);
    }
    return error;
}

/* What is put on the stream: without our lock, which the stream takes for it. */
static ncclResult_t launch(struct ncclComm *comm, group *g)
{
    cudaError_t error = standin_enter();
    if (error == cudaSuccess)
        error = standin_enqueue_wait(g->stream, group_is_over, &g, sizeof(void *));
    if (standin_leave(error) == cudaSuccess)
        return ncclSuccess;
    pthread_mutex_lock(&lock);
    comm->groups = g->next;
    pthread_mutex_unlock(&lock);
    free(g);
    return ncclUnhandledCudaError;
}

static ncclResult_t fake_async_error(ncclComm_t comm, ncclResult_t *state)
{
    ncclResult_t error = ncclSuccess;
    group *ready = NULL;
    *state = ncclSuccess;
    pthread_mutex_lock(&lock); /* as often as anybody likes to ask: not a call that is counted */
    if (standin_nccl.async_error_at > 0 && standin_nccl.calls >= standin_nccl.async_error_at) {
        *state = ncclRemoteError;
    } else if (comm->polls > 0 || atomic_load(&comm->wire->here_count) < comm->size) {
        comm->polls -= comm->polls > 0;
        *state = ncclInProgress;
    } else if (comm->waiting != NULL) {
        ready = comm->waiting;
        comm->waiting = NULL;
        ready->next = comm->groups;
        comm->groups = ready;
    }
    leave(error);
    return ready != NULL ? launch(comm, ready) : error;
}

static ncclResult_t fake_finalize(ncclComm_t comm)
{
    ncclResult_t error = enter();
    if (error == ncclSuccess && (comm->finalized || comm->groups != NULL || comm->waiting != NULL))
        error = ncclInvalidUsage;
    if (error == ncclSuccess) {
        comm->finalized = 1;
        comm->polls = standin_nccl.busy_polls;
        error = ncclInProgress;
    }
    return leave(error);
}

/* Its groups are over where they are; its peers' ends of them are not. */
static void free_comm(struct ncclComm *comm)
{
    struct ncclComm **at = &comms;
    while (*at != comm)
        at = &(*at)->next;
    *at = comm->next;
    for (group *g = comm->groups; g != NULL; g = g->next)
        g->comm = NULL;
    munmap(comm->wire, sizeof(*comm->wire));
    free(comm->waiting);
    standin_nccl.communicators--;
    free(comm);
}

static void give_bytes(void)
{
    (void)standin_enter();
    standin.used_bytes -= standin_nccl.taken_bytes;
    (void)standin_leave(cudaSuccess);
}

/* NCCL leaves a thread with the GPU that it had, so with a context there; and waits as where
   another rank, which is stopped, does not let go. */
static void begin_end(void)
{
    for (int stuck = 1, first = 1; stuck; first = 0) {
        pthread_mutex_lock(&lock);
        standin_nccl.on_first_gpu += first && !standin_thread_chose();
        stuck = standin_nccl.stuck;
        pthread_mutex_unlock(&lock);
        if (stuck)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* Even a call that fails ends the communicator: there is nobody to try again. */
static ncclResult_t fake_destroy(ncclComm_t comm)
{
    begin_end();
    ncclResult_t error = enter();
    if (error == ncclSuccess && (!comm->finalized || comm->polls > 0))
        error = ncclInvalidUsage;
    standin_nccl.destroyed++;
    free_comm(comm);
    leave(error);
    give_bytes();
    return error;
}

/* Groups that wait for a peer end; one that waits for other work on its stream is waited for. */
static ncclResult_t fake_abort(ncclComm_t comm)
{
    begin_end();
    ncclResult_t const error = enter();
    cudaStream_t const stream = comm->groups != NULL ? comm->groups->stream : NULL;
    standin_nccl.aborted++;
    free_comm(comm);
    leave(error);
    while (stream != NULL && cudaStreamQuery(stream) == cudaErrorNotReady) {
        standin_refuse_to_hang();
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    give_bytes();
    return error;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static ncclResult_t fake_mem_alloc(void **data, size_t bytes)
{
    ncclResult_t error = leave(enter());
    if (error == ncclSuccess && cudaMalloc(data, bytes) != cudaSuccess)
        error = ncclUnhandledCudaError;
    if (error == ncclSuccess)
        standin_nccl.blocks++;
    return error;
}

/* NCCL does not promise to wait for streams, as cudaFree does. */
static ncclResult_t fake_mem_free(void *data)
{
    ncclResult_t const error = leave(enter());
    standin_nccl.blocks--;
    return standin_free_unused(data) == cudaSuccess ? error : ncclUnhandledCudaError;
}

static ncclResult_t fake_register(ncclComm_t comm, void *data, size_t bytes, void **handle)
{
    int const fits = is_taken(data, bytes);
    ncclResult_t error = enter();
    if (error == ncclSuccess && !fits)
        error = ncclInvalidUsage;
    if (error == ncclSuccess) {
        comm->registered++;
        *handle = data;
    }
    return leave(error);
}

static ncclResult_t fake_deregister(ncclComm_t comm, void *handle)
{
    begin_end();
    ncclResult_t error = enter();
    if (error == ncclSuccess && (handle == NULL || comm->registered == 0))
        error = ncclInvalidUsage;
    comm->registered -= error == ncclSuccess;
    return leave(error);
}

static const char *fake_error_string(ncclResult_t error)
{
    return error == ncclRemoteError ? "an injected remote error" : "an injected error";
}

static const char *fake_last_error(ncclComm_t comm)
{
    (void)comm;
    return "";
}

/* ---- the library ----------------------------------------------------------------------------- */

const ra_nccl *ra_nccl_open(char *why_not, size_t bytes)
{
    static const ra_nccl old = {.get_unique_id = fake_unique_id,
                                .init_rank = fake_init_rank,
                                .get_async_error = fake_async_error,
                                .finalize = fake_finalize,
                                .destroy = fake_destroy,
                                .abort = fake_abort,
                                .group_start = fake_group_start,
                                .group_end = fake_group_end,
                                .send = fake_send,
                                .recv = fake_recv,
                                .error_string = fake_error_string,
                                .last_error = fake_last_error};
    static ra_nccl library;
    library = old;
    if (!standin_nccl.is_old) {
        library.mem_alloc = fake_mem_alloc;
        library.mem_free = fake_mem_free;
        library.comm_register = fake_register;
        library.comm_deregister = fake_deregister;
    }
    snprintf(why_not, bytes, "%s", standin_nccl.absent ? "the stand-in is told to be absent" : "");
    return standin_nccl.absent ? NULL : &library;
}

int ra_nccl_version(void)
{
    static atomic_int versions;
    return standin_nccl.absent ? 0 : 1 + (standin_nccl.differs ? versions++ : 0);
}

bool ra_nccl_describe(char *text, size_t bytes)
{
    snprintf(text, bytes, "a stand-in for NCCL");
    return !standin_nccl.absent;
}
