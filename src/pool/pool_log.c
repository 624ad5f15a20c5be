#include "ringattn/pool_log.h"

#include "pool_internal.h"

#include <inttypes.h>
#include <stdlib.h>

/* 2^31 events of 24 bytes are 48 GiB. */
#define EVENTS_MAX ((int64_t)1 << 31)

typedef struct pool_event {
    int64_t id;
    int64_t bytes;        /* as asked; -1: given back */
    ra_category category; /* of a block that is taken */
} pool_event;

struct ra_pool_log {
    pool_event *events;
    int64_t count, capacity;
    int64_t block_count;
    int64_t lost;
};

ra_status ra_pool_log_create(ra_pool_log **log_out)
{
    ra_pool_log *const log = calloc(1, sizeof(*log));
    if (log == NULL)
        return ra_refuse_memory("the pool's event log");
    *log_out = log;
    return RA_OK;
}

void ra_pool_log_destroy(ra_pool_log *log)
{
    if (log == NULL)
        return;
    free(log->events);
    free(log);
}

int64_t ra_pool_log_lost(const ra_pool_log *log)
{
    return log->lost;
}

/* After the first event that is lost all are: a log with a gap in it cannot be replayed. */
static bool push(ra_pool_log *log, const pool_event *event)
{
    if (log->lost == 0 && log->count == log->capacity) {
        int64_t const capacity = log->capacity > 0 ? 2 * log->capacity : 256;
        pool_event *const events =
            capacity <= EVENTS_MAX ? realloc(log->events, (size_t)capacity * sizeof(*log->events))
                                   : NULL;
        if (events != NULL) {
            log->events = events;
            log->capacity = capacity;
        }
    }
    if (log->lost > 0 || log->count == log->capacity) {
        log->lost++;
        return false;
    }
    log->events[log->count++] = *event;
    return true;
}

int64_t ra_pool_log_taken(ra_pool_log *log, ra_category category, size_t bytes)
{
    int64_t const id = log->block_count;
    pool_event const event = {.id = id, .bytes = (int64_t)bytes, .category = category};
    if (!push(log, &event))
        return -1;
    log->block_count++;
    return id;
}

void ra_pool_log_given(ra_pool_log *log, int64_t id)
{
    pool_event const event = {.id = id, .bytes = -1};
    (void)push(log, &event); /* what is lost is counted */
}

void ra_pool_log_write(const ra_pool_log *log, FILE *file)
{
    fprintf(file, "ringattn pool log 1\n");
    for (int64_t i = 0; i < log->count; i++) {
        const pool_event *e = &log->events[i];
        if (e->bytes >= 0)
            fprintf(file, "+ %" PRId64 " %" PRId64 " %s\n", e->id, e->bytes,
                    ra_category_name(e->category));
        else
            fprintf(file, "- %" PRId64 "\n", e->id);
    }
    if (log->lost > 0)
        fprintf(file, "lost %" PRId64 "\n", log->lost);
}
