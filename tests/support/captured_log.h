/* Captures log lines in tests: how many there were, and the last one. Any thread may log. */
#ifndef RINGATTN_TESTS_CAPTURED_LOG_H
#define RINGATTN_TESTS_CAPTURED_LOG_H

#include "ringattn/status.h"

#include <stdio.h>
#include <string.h>

typedef struct captured_log {
    int count, errors, warnings;
    char line[1024];
} captured_log;

static inline void captured_log_take(void *context, ra_log_level level, const char *line)
{
    captured_log *log = context;
    log->count++;
    log->errors += level == RA_LOG_ERROR;
    log->warnings += level == RA_LOG_WARNING;
    snprintf(log->line, sizeof(log->line), "%s", line);
}

static inline void captured_log_begin(captured_log *log)
{
    memset(log, 0, sizeof(*log));
    ra_log_set_handler(captured_log_take, log);
}

#endif
