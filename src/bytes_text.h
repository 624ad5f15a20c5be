/* Sizes for people: in reports, and where memory is refused. */
#ifndef RINGATTN_SRC_BYTES_TEXT_H
#define RINGATTN_SRC_BYTES_TEXT_H

#include <stdint.h>

/** "12.5 MiB", "980 B". Returns text. */
const char *ra_bytes_text(int64_t amount, char text[32]);

#endif
