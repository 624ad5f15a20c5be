/* Private to comm_local.c and collective_local.c: what ranks that are threads share. */
#ifndef RINGATTN_COMM_LOCAL_H
#define RINGATTN_COMM_LOCAL_H

#include "comm_internal.h"

#include <pthread.h>

typedef enum ra_local_kind { RA_LOCAL_BARRIER, RA_LOCAL_BROADCAST, RA_LOCAL_REDUCE } ra_local_kind;

/* What one rank brings to a collective. */
typedef struct ra_local_part {
    ra_local_kind kind;
    int detail; /* root, or ra_reduce */
    ra_number number;
    void *data;
    size_t bytes;
    bool present;
} ra_local_part;

typedef struct ra_local_group {
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* mail was delivered, a collective ended, or the group failed */
    int size;
    int *hosts;      /* [size] */
    int owner_count; /* communicators that have not been destroyed */
    bool failed;
    int64_t beat_ns;            /* when a rank was last at work */
    int64_t sequence;           /* collectives that have ended */
    ra_local_part *collectives; /* [size] */
    ra_channel *channels;       /* [from][to] */
} ra_local_group;

typedef struct ra_local_comm {
    ra_comm base;
    ra_local_group *group;
    ra_mail mails[RA_TRANSFER_MAX];
} ra_local_comm;

/* Whether something may have changed; false: the deadline has passed. The lock is held. */
bool ra_local_wait_for_change(ra_local_group *group, ra_comm *comm, int64_t begin_ns);
/* All ranks fail from here on. The lock is held. */
void ra_local_fail(ra_local_group *group);

/* As ra_comm_ops has them. */
ra_status ra_local_barrier(ra_comm *comm, const char *operation);
ra_status ra_local_broadcast(ra_comm *comm, const char *operation, int root, void *data,
                             size_t bytes);
ra_status ra_local_reduce(ra_comm *comm, const char *operation, ra_number number, ra_reduce reduce,
                          void *values, int count);

#endif
