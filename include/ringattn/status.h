/*
 * Status codes, logging, and the version.
 *
 * Error convention of the whole library: every function that can fail for a reason outside the
 * caller's control returns an ra_status. The function that first sees the cause logs one line
 * (ra_log_set_handler); callers above it pass the status on in silence. Outputs are written only
 * when RA_OK is returned, unless a function says otherwise. The library never exits or aborts on
 * an operating error; a broken precondition (a bug in the caller) stops the process with the
 * failed expression. SPDX-License-Identifier: BSD-3-Clause
 */
#ifndef RINGATTN_STATUS_H
#define RINGATTN_STATUS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__) || defined(__clang__)
#define RA_CHECKED                         __attribute__((warn_unused_result))
#define RA_PRINTF(format_index, first_arg) __attribute__((format(printf, format_index, first_arg)))
#else
#define RA_CHECKED
#define RA_PRINTF(format_index, first_arg)
#endif

#ifdef __cplusplus
#define RA_STATIC_ASSERT(condition, text) static_assert(condition, text)
#else
#define RA_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif

#define RA_VERSION "0.1.0"

typedef enum ra_status {
    RA_OK = 0,
    RA_ERR_INVALID,     /* an argument breaks the function's contract */
    RA_ERR_CONFIG,      /* a configuration that cannot be run */
    RA_ERR_IO,          /* a file: missing, malformed, unwritable, full disk */
    RA_ERR_NO_MEMORY,   /* the memory limit or the machine refused */
    RA_ERR_UNSUPPORTED, /* understood, but not possible in this build or on this machine */
    RA_ERR_CUDA,
    RA_ERR_NCCL,
    RA_ERR_MPI,
    RA_ERR_PEER,    /* another rank gave up or is lost */
    RA_ERR_TIMEOUT, /* a wait passed its deadline */
    RA_ERR_INTERNAL /* a defect in ringattn */
} ra_status;

/** Short English name, e.g. "out of memory"; never NULL. */
const char *ra_status_name(ra_status status);

/** Version of the library that is linked (RA_VERSION is that of the header). */
const char *ra_version(void);

typedef enum ra_log_level { RA_LOG_ERROR, RA_LOG_WARNING, RA_LOG_INFO } ra_log_level;

/**
 * Receives one finished line without prefix or newline. May be called from any thread; calls are
 * serialised. `line` is borrowed for the call.
 */
typedef void ra_log_handler(void *context, ra_log_level level, const char *line);

/**
 * Replace the handler. NULL restores the default: "ringattn: error: <line>" (warning, info) on
 * stderr. Not to be called while other threads may log.
 */
void ra_log_set_handler(ra_log_handler *handler, void *context);

/** Log one line of at most 1,023 bytes; longer ones are cut. Control characters come out as '?'. */
void ra_log(ra_log_level level, const char *format, ...) RA_PRINTF(2, 3);

#ifdef __cplusplus
}
#endif
#endif
