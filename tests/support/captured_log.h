/* Captures log lines in tests: how many there were, and the last one. */
#ifndef RINGATTN_TESTS_CAPTURED_LOG_H
#define RINGATTN_TESTS_CAPTURED_LOG_H

#include "ringattn/status.h"

#include <stdio.h>
#include <string.h>

typedef struct captured_log {
    int count;
    char line[1024];
} captured_log;

static inline void captured_log_take(void *context, ra_log_level level, const char *line)
{
    captured_log *log = context;
    (void)level;
    log->count++;
    snprintf(log->line, sizeof(log->line), "%s", line);
}

static inline void captured_log_begin(captured_log *log)
{
    memset(log, 0, sizeof(*log));
    ra_log_set_handler(captured_log_take, log);
}

#endif
