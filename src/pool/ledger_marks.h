/* Marks of a ledger; the ledger's mutex guards them. */
#ifndef RINGATTN_LEDGER_MARKS_H
#define RINGATTN_LEDGER_MARKS_H

#include "internal.h"
#include "ringattn/pool.h"

typedef struct ra_marks {
    ra_ledger_mark *items; /* [most]; NULL: none are kept */
    int32_t count, most;
    int64_t dropped_count; /* that came when the array was full */
} ra_marks;

RA_CHECKED ra_status ra_marks_keep(ra_marks *marks, int32_t most);
void ra_marks_add(ra_marks *marks, const char *name, int32_t group, int32_t step,
                  const int64_t *current_bytes);
void ra_marks_forget(ra_marks *marks);
void ra_marks_fini(ra_marks *marks);

#endif
