/* Texts for people: in reports, and where something is refused. */
#ifndef RINGATTN_SRC_BYTES_TEXT_H
#define RINGATTN_SRC_BYTES_TEXT_H

#include "ringattn/status.h"

#include <stddef.h>
#include <stdint.h>

/** "12.5 MiB", "980 B". Returns text. */
const char *ra_bytes_text(int64_t amount, char text[32]);
/** "13.0" of CUDA's 13000; "none" of 0 or less. Returns text. */
const char *ra_cuda_version_text(int version, char text[16]);
/** What makes a noun plural: "" for 1, else "s". */
const char *ra_plural(int64_t count);
/** Write behind what `text` holds, after `between` unless it is empty; cut to `bytes` in all. */
void ra_text_append(char *text, size_t bytes, const char *between, const char *format, ...)
    RA_PRINTF(4, 5);

#endif
