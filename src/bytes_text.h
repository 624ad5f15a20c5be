/* Sizes and counts for people: in reports, and where something is refused. */
#ifndef RINGATTN_SRC_BYTES_TEXT_H
#define RINGATTN_SRC_BYTES_TEXT_H

#include <stdint.h>

/** "12.5 MiB", "980 B". Returns text. */
const char *ra_bytes_text(int64_t amount, char text[32]);
/** What makes a noun plural: "" for 1, else "s". */
const char *ra_plural(int64_t count);

#endif
