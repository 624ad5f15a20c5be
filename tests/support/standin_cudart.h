/*
 * A stand-in for the CUDA runtime, linked in its place: "device" memory is the heap's, and any call
 * can be made to fail. Work on a stream waits in a queue until something asks whether it is done,
 * so that what was not waited for is not there; an emulated launch is such work. Calls may come
 * from several threads. For tests only; it computes nothing on a GPU and proves nothing about one.
 */
#ifndef RINGATTN_TESTS_STANDIN_CUDART_H
#define RINGATTN_TESTS_STANDIN_CUDART_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Priorities of streams: lower numbers come first. */
enum { STANDIN_LEAST_PRIORITY = 0, STANDIN_GREATEST_PRIORITY = -5 };
/* Work that a stream's queue takes. */
enum { STANDIN_QUEUE_DEPTH = 1000 };
enum { STANDIN_DEVICES_MAX = 70, STANDIN_POOL_UNIT_BYTES = 32 << 20, STANDIN_CLOCK_KHZ = 1000000 };

typedef struct standin_cudart {
    int device_count, driver_version;
    cudaError_t absent; /* what every call but those for versions returns; cudaSuccess: none */
    int major[STANDIN_DEVICES_MAX];
    int compute_mode;        /* of all devices */
    cudaError_t taken_error; /* of choosing a device, as if another process had it */
    cudaError_t code_error;  /* of a launch, as without code for the device */
    int multiprocessors;
    int64_t shared_bytes; /* that a thread block may ask for */
    int blocks_held;      /* thread blocks per multiprocessor; 0: as many as kernels are made for */
    int64_t memory_bytes, used_bytes; /* of all devices together */
    /* A file with a byte per context of all processes, of which each takes so much of the memory;
       NULL: nobody else is there. */
    const char *contexts_file;
    int64_t context_bytes;
    int64_t context_ns; /* what making one takes */
    int has_context;
    int64_t blocks, pinned_blocks, events, streams, pools;
    int64_t single_passes;  /* launches of a backward step that computed dq, dk and dv, ever */
    int64_t urgent_streams; /* made with the greatest priority, ever */
    int has_no_pools;       /* as drivers of some systems say */
    int64_t calls;          /* so far */
    int64_t descriptions;   /* calls for a GPU's properties, ever */
    int64_t acts;      /* those that do not ask whether work is over, as often as time allows */
    int64_t requests;  /* for device memory, so far */
    int64_t full_at;   /* the request of this number, from 1, finds no room; 0: none */
    int64_t fail_call; /* the call of this number, from 1, fails; 0: none */
    int64_t fail_act;  /* likewise, of those */
    cudaError_t fail_error;
    int fails_for_good;   /* and all later ones, as after an error of a kernel */
    int stream_is_over;   /* 0: what is enqueued never ends, as far as questions tell */
    int64_t launches;     /* so far */
    int64_t late_frees;   /* that found messages of their rank on a stream, ever */
    int64_t hang_launch;  /* that of this number, from 1, never ends; 0: none */
    int64_t fault_launch; /* behind that of this number each call meets an illegal address */
    int hangs;            /* it was enqueued: what would wait for the device ends the process */
    int64_t timed_events; /* that can tell a time, ever made */
    int64_t work_ns;      /* what each piece of work takes of the stand-in's time, */
    int64_t peer_ns;      /* and one that waits for a peer */
    int64_t nap_ns;       /* what a piece of work really takes */
    int is_untimed;       /* no event can tell a time */
    int is_eager; /* work is done as soon as may be, not as late: so what is too early is seen */
} standin_cudart;

extern standin_cudart standin;

/** Two devices of capability 9.0 with 1 GiB, nothing taken, no failures. */
void standin_reset(void);

/**
 * Begin and end of a call of the runtime: enter counts it and says whether it is to fail; whatever
 * is between the two holds a lock. leave keeps an error for this thread's cudaGetLastError, and
 * returns it.
 */
cudaError_t standin_enter(void);
/** Whether the calling thread has ever said which GPU it means, and which that is: 0 without. */
bool standin_thread_chose(void);
int standin_current(void);
/** Of a call that works on a GPU's handle or memory: ends the process if the thread means another
    GPU. */
void standin_require(int device);
cudaError_t standin_leave(cudaError_t error);
/** The same for a call that asks whether work is over. */
cudaError_t standin_enter_question(void);

/**
 * Enqueue work with a copy of `context`, in place of a launch; on the default stream it is done at
 * once. It must not call the runtime. Between enter and leave.
 */
cudaError_t standin_enqueue(cudaStream_t stream, void (*run)(void *context), const void *context,
                            size_t bytes);
/** The same for a kernel, which may be the one that hangs. */
cudaError_t standin_enqueue_launch(cudaStream_t stream, void (*run)(void *context),
                                   const void *context, size_t bytes);
/** Work that never ends; between enter and leave. */
cudaError_t standin_enqueue_hang(cudaStream_t stream);
/** The same for work that may take its time: asked now and then, in its turn, until it is over. */
cudaError_t standin_enqueue_wait(cudaStream_t stream, int (*is_over)(void *context),
                                 const void *context, size_t bytes);

/** A block, of a device or pinned, and its end, which returns its bytes; between enter and leave.
 */
cudaError_t standin_take(void **data, size_t bytes, int is_device);
size_t standin_give(void *data);

/** cudaFree without its wait: ends the process if a stream of this thread's is busy. */
cudaError_t standin_free_unused(void *data);

/** The GPU that a stream is of; NULL: the thread's. */
int standin_device_of(cudaStream_t stream);
/** Whether all these bytes lie in one block of device memory; between enter and leave. */
int standin_is_device(const void *data, size_t bytes);
/** The same from anywhere else; no call is counted. */
int standin_has_device(const void *data, size_t bytes);
/** Whether an address lies in a block of device memory, and where that begins and ends. */
int standin_find_device(uintptr_t address, uintptr_t *begin, uintptr_t *end);
/**
 * Do all that is enqueued anywhere, as calls do that wait for the device; between enter and leave.
 * Whether all streams that this thread has made are over: a thread may be a rank.
 */
int standin_run_all(void);
/** Whether a stream of this thread's has work, but for waits for events and blocks that pools are
    given back, that nobody has seen to be over. */
int standin_is_busy(void);
/** Whether work of a stream of this thread's waits for a peer, as far as anybody has asked. */
int standin_waits_for_peer(void);
/** Where a call would never return: ends the process if a GPU hangs. */
void standin_refuse_to_hang(void);
/** Freed blocks of pools whose stream is over are seen to be; between enter and leave. */
void standin_see_pieces(void);
/** The work of cudaFreeAsync, which uses no memory. */
void standin_run_free(void *context);
/** Return all pools and what was taken from them. */
void standin_reset_pools(void);
/** Forget all streams. */
void standin_reset_streams(void);

#ifdef __cplusplus
}
#endif
#endif
