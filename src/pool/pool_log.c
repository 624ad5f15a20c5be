#include "ringattn/pool_log.h"

#include "pool_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What a file may ask for: 2^31 events of 24 bytes are 48 GiB. */
#define EVENTS_MAX ((int64_t)1 << 31)

struct ra_pool_log {
    ra_pool_event *events;
    int64_t count, capacity;
    int64_t block_count;
    int64_t lost;
};

static const char header[] = "ringattn pool log 1";

ra_status ra_pool_log_create(ra_pool_log **log_out)
{
    ra_pool_log *const log = calloc(1, sizeof(*log));
    if (log == NULL) {
        ra_log(RA_LOG_ERROR, "out of memory (the pool's event log)");
        return RA_ERR_NO_MEMORY;
    }
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

const ra_pool_event *ra_pool_log_events(const ra_pool_log *log, int64_t *count_out)
{
    *count_out = log->count;
    return log->events;
}

int64_t ra_pool_log_block_count(const ra_pool_log *log)
{
    return log->block_count;
}

int64_t ra_pool_log_lost(const ra_pool_log *log)
{
    return log->lost;
}

/* After the first event that is lost all are: a log with a gap in it cannot be replayed. */
static bool push(ra_pool_log *log, const ra_pool_event *event)
{
    if (log->lost == 0 && log->count == log->capacity) {
        int64_t const capacity = log->capacity > 0 ? 2 * log->capacity : 256;
        ra_pool_event *const events =
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
    ra_pool_event const event = {.id = id, .bytes = (int64_t)bytes, .category = category};
    if (!push(log, &event))
        return -1;
    log->block_count++;
    return id;
}

void ra_pool_log_given(ra_pool_log *log, ra_category category, int64_t id)
{
    ra_pool_event const event = {.id = id, .bytes = -1, .category = category};
    (void)push(log, &event); /* what is lost is counted */
}

ra_status ra_pool_log_write(const ra_pool_log *log, FILE *file)
{
    fprintf(file, "%s\n", header);
    for (int64_t i = 0; i < log->count; i++) {
        const ra_pool_event *e = &log->events[i];
        if (e->bytes >= 0)
            fprintf(file, "+ %" PRId64 " %" PRId64 " %s\n", e->id, e->bytes,
                    ra_category_name(e->category));
        else
            fprintf(file, "- %" PRId64 "\n", e->id);
    }
    if (log->lost > 0)
        fprintf(file, "lost %" PRId64 "\n", log->lost);
    return ferror(file) ? RA_ERR_IO : RA_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The categories of blocks that are out; -1: given back. */
typedef struct live_blocks {
    signed char *category;
    int64_t capacity;
} live_blocks;

typedef enum line_result { LINE_OK, LINE_WRONG, LINE_NO_MEMORY } line_result;

static bool category_find(const char *name, ra_category *category_out)
{
    for (int i = 0; i < RA_MEM_CATEGORY_COUNT; i++) {
        if (strcmp(name, ra_category_name((ra_category)i)) == 0) {
            *category_out = (ra_category)i;
            return true;
        }
    }
    return false;
}

static bool live_grow(live_blocks *live)
{
    int64_t const capacity = live->capacity > 0 ? 2 * live->capacity : 256;
    signed char *const category = realloc(live->category, (size_t)capacity);
    if (category == NULL)
        return false;
    live->category = category;
    live->capacity = capacity;
    return true;
}

/* A decimal number without sign and its end; -1 where there is none or it does not fit. */
static int64_t number_read(const char *text, const char **end_out)
{
    int64_t value = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *at - '0', &value))
            return -1;
    }
    *end_out = at;
    return at > text ? value : -1;
}

static line_result taken_read(ra_pool_log *log, live_blocks *live, const char *text)
{
    const char *end = text;
    ra_category category;
    int64_t const id = number_read(text, &end);
    int64_t const bytes = id >= 0 && *end == ' ' ? number_read(end + 1, &end) : -1;
    if (bytes < 0 || *end != ' ' || !category_find(end + 1, &category) || id != log->block_count)
        return LINE_WRONG;
    if (id == live->capacity && !live_grow(live))
        return LINE_NO_MEMORY;
    live->category[id] = (signed char)category;
    return ra_pool_log_taken(log, category, (size_t)bytes) == id ? LINE_OK : LINE_NO_MEMORY;
}

static line_result given_read(ra_pool_log *log, live_blocks *live, const char *text)
{
    const char *end = text;
    int64_t const id = number_read(text, &end);
    if (id < 0 || *end != '\0' || id >= log->block_count || live->category[id] < 0)
        return LINE_WRONG;
    ra_pool_log_given(log, (ra_category)live->category[id], id);
    live->category[id] = -1;
    return log->lost == 0 ? LINE_OK : LINE_NO_MEMORY;
}

static line_result line_read(ra_pool_log *log, live_blocks *live, const char *line)
{
    if (strncmp(line, "+ ", 2) == 0)
        return taken_read(log, live, line + 2);
    if (strncmp(line, "- ", 2) == 0)
        return given_read(log, live, line + 2);
    return LINE_WRONG;
}

static line_result lines_read(ra_pool_log *log, FILE *file, int64_t *line_number)
{
    char line[128]; /* the longest line has 64 bytes */
    live_blocks live = {0};
    line_result result = LINE_OK;
    int64_t lost = 0;
    for (*line_number = 1; result == LINE_OK && fgets(line, sizeof(line), file) != NULL;
         ++*line_number) {
        size_t const length = strcspn(line, "\n");
        const char *end = line;
        bool const complete = line[length] == '\n' && lost == 0;
        line[length] = '\0';
        if (!complete)
            result = LINE_WRONG;
        else if (*line_number == 1)
            result = strcmp(line, header) == 0 ? LINE_OK : LINE_WRONG;
        else if (strncmp(line, "lost ", 5) == 0)
            result =
                (lost = number_read(line + 5, &end)) > 0 && *end == '\0' ? LINE_OK : LINE_WRONG;
        else
            result = line_read(log, &live, line);
    }
    --*line_number;
    if (*line_number == 0)
        result = LINE_WRONG; /* not even a header */
    free(live.category);
    if (result == LINE_OK)
        log->lost = lost;
    return result;
}

ra_status ra_pool_log_read(FILE *file, const char *name, ra_pool_log **log_out)
{
    ra_pool_log *log;
    int64_t line_number;
    ra_status status = ra_pool_log_create(&log);
    if (status != RA_OK)
        return status;
    line_result const result = lines_read(log, file, &line_number);
    if (result == LINE_OK && !ferror(file)) {
        *log_out = log;
        return RA_OK;
    }
    status = result == LINE_NO_MEMORY ? RA_ERR_NO_MEMORY : RA_ERR_IO;
    if (result == LINE_NO_MEMORY)
        ra_log(RA_LOG_ERROR, "%s: out of memory at line %" PRId64, name, line_number);
    else
        ra_log(RA_LOG_ERROR, "%s: line %" PRId64 ": not a line of a pool's event log", name,
               line_number);
    ra_pool_log_destroy(log);
    return status;
}

/* ---- replay ---------------------------------------------------------------------------------- */

ra_status ra_pool_replay(ra_pool *pool, const ra_pool_log *log)
{
    ra_status status = RA_OK;
    ra_block *const blocks = calloc((size_t)log->block_count + 1, sizeof(*blocks));
    if (blocks == NULL) {
        ra_log(RA_LOG_ERROR, "out of memory (replaying a pool's event log)");
        return RA_ERR_NO_MEMORY;
    }
    for (int64_t i = 0; i < log->count && status == RA_OK; i++) {
        const ra_pool_event *e = &log->events[i];
        if (e->bytes >= 0)
            status = ra_pool_alloc(pool, e->category, (size_t)e->bytes, NULL, &blocks[e->id]);
        else
            ra_pool_free(pool, NULL, &blocks[e->id]);
    }
    for (int64_t i = 0; i < log->block_count; i++)
        ra_pool_free(pool, NULL, &blocks[i]);
    free(blocks);
    return status;
}
