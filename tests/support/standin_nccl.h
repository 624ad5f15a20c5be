/*
 * A stand-in for NCCL, linked in place of the library that is loaded on a machine with GPUs: ranks
 * are threads or processes of one machine, which share the memory that messages go through; groups
 * are work on the streams of the stand-in runtime, and a group is over when each of its messages
 * has met its counterpart, as strictly as NCCL may take it: nothing is sent before it is received.
 * Any call can be made to fail. For tests only; it proves nothing about NCCL.
 */
#ifndef RINGATTN_TESTS_STANDIN_NCCL_H
#define RINGATTN_TESTS_STANDIN_NCCL_H

#include <nccl.h>
#include <stdint.h>

typedef struct standin_nccl_state {
    int absent;        /* there is no library */
    int is_strict;     /* it takes device memory only, as NCCL does, not the memory of a test */
    int is_old;        /* it has no memory of its own */
    int differs;       /* each time it is described, it has another version */
    int64_t calls;     /* of all ranks so far */
    int64_t fail_call; /* the call of this number, from 1, fails; 0: none */
    ncclResult_t fail_error;
    int64_t signal_call;    /* the call of this number sends this process a signal; 0: none */
    int signal;             /* SIGKILL, SIGSTOP */
    int64_t async_error_at; /* from this call on, asked for an asynchronous error, one is told */
    int busy_polls;         /* so often a rank is told that it is in progress */
    int stalls;             /* no message ever meets its counterpart */
    int stuck;              /* what ends a communicator, or a registration, waits as long as this */
    int corrupts;           /* messages arrive with another content */
    int64_t taken_bytes;    /* of the device, by each communicator */
    int64_t blocks;         /* of its memory that there are */
    int64_t communicators;  /* that there are */
    int64_t open_groups;    /* that have not been ended */
    int64_t aborted, destroyed; /* ever */
    int64_t on_first_gpu;       /* calls that end something, of threads that chose no GPU */
} standin_nccl_state;

extern standin_nccl_state standin_nccl;

/** No failures (those to come are ncclSystemError), two polls, 1 MiB. No communicator may be left
 * in this process. */
void standin_nccl_reset(void);

#endif
