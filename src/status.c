#include "internal.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static void log_to_stderr(void *context, ra_log_level level, const char *line)
{
    static const char *const names[] = {"error", "warning", "info"};
    (void)context;
    fprintf(stderr, "ringattn: %s: %s\n", names[level], line);
}

static pthread_mutex_t log_mutex = PTHREAD_MUTEX_INITIALIZER;
static ra_log_handler *log_handler = log_to_stderr;
static void *log_context;

const char *ra_status_name(ra_status status)
{
    switch (status) {
    case RA_OK:
        return "ok";
    case RA_ERR_INVALID:
        return "invalid argument";
    case RA_ERR_CONFIG:
        return "impossible configuration";
    case RA_ERR_IO:
        return "file error";
    case RA_ERR_NO_MEMORY:
        return "out of memory";
    case RA_ERR_UNSUPPORTED:
        return "not supported";
    case RA_ERR_CUDA:
        return "CUDA error";
    case RA_ERR_NCCL:
        return "NCCL error";
    case RA_ERR_MPI:
        return "MPI error";
    case RA_ERR_PEER:
        return "peer lost";
    case RA_ERR_TIMEOUT:
        return "timed out";
    case RA_ERR_INTERNAL:
        return "defect in ringattn";
    }
    return "unknown status";
}

const char *ra_version(void)
{
    return RA_VERSION;
}

void ra_log_set_handler(ra_log_handler *handler, void *context)
{
    log_handler = handler != NULL ? handler : log_to_stderr;
    log_context = context;
}

/* In UTF-8 there are controls of two bytes, too. */
void ra_controls_mask(char *line)
{
    for (char *at = line; *at != '\0'; at++) {
        unsigned char const c = (unsigned char)at[0], next = (unsigned char)at[1];
        bool const of_two = c == 0xc2 && next >= 0x80 && next < 0xa0;
        if (c < 0x20 || c == 0x7f || of_two)
            *at = '?';
        if (of_two)
            *++at = '?';
    }
}

void ra_log(ra_log_level level, const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    ra_controls_mask(line);
    pthread_mutex_lock(&log_mutex);
    log_handler(log_context, level, line);
    pthread_mutex_unlock(&log_mutex);
}

_Noreturn void ra_assert_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "ringattn: error: broken precondition: %s (%s:%d)\n", condition, file, line);
    abort();
}
