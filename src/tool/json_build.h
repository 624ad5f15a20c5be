/* JSON reports: what building, writing and reading them takes beside jansson. */
#ifndef RINGATTN_TOOL_JSON_BUILD_H
#define RINGATTN_TOOL_JSON_BUILD_H

#include "config.h"

#include <jansson.h>

/** JSON has no NaN and no infinity: they become null. NULL: no memory. */
json_t *ra_json_number(double value);

/** The nearest integer, with all its digits; from 2^63 on a number as above. */
json_t *ra_json_count(double value);

/** An integer that is at least 0; null of -1, which stands for what is not known. */
json_t *ra_json_known(int64_t value);

/** Add the members of `more` and take it over; a failure, or a NULL in between, leaves NULL. */
json_t *ra_json_extend(json_t *object, json_t *more);

/** Add an item to a list and take it over; a failure, or a NULL in between, leaves NULL. */
json_t *ra_json_append(json_t *list, json_t *item);

/* How long a pipe may take to bring a report: a bench may be at its other end. */
enum { RA_JSON_WAIT_MS = 3600000 };
/**
 * Read a report that another command wrote, or writes within `wait_ms` into a pipe; the caller owns
 * *root_out.
 * @return RA_ERR_IO  it cannot be read, has not ended by then, or is no JSON
 *         RA_ERR_NO_MEMORY; one line was logged
 */
RA_CHECKED ra_status ra_json_read(const char *file, int64_t wait_ms, json_t **root_out);

/** Log what is wrong with the contents of such a file: RA_ERR_IO. */
RA_CHECKED ra_status ra_json_refuse(const char *file, const char *what);

/** Warn that a report is of a series that was ended before its last job, if it says so. */
void ra_json_mention_incomplete(const char *file, const json_t *root);

/** The swept keys of a point and their values. NULL: no memory. */
json_t *ra_json_swept(const ra_config *config);

/**
 * Write the report of a command ("plan") to `path` (temporary file, rename), or to standard output
 * if that is NULL. Takes `members` over, all but the version and the command; a NULL means that
 * there was no memory to build them.
 * @return RA_ERR_IO, RA_ERR_NO_MEMORY; one line was logged
 */
RA_CHECKED ra_status ra_json_report(const char *command, json_t *members, const char *path);

#endif
