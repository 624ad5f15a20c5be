/* What plans and predictions know of ra_pattern_needed_rows besides its contract. */
#ifndef RINGATTN_SPARSE_NEEDED_ROWS_H
#define RINGATTN_SPARSE_NEEDED_ROWS_H

#include "ringattn/pattern.h"

/* Needed rows come as ranges at their strides where the lcm of all local strides is up to this:
   looking for those of each divisor takes a pass over the rows. Above it they come as stretches of
   consecutive rows, which is as exact, and far apart means a stretch each. */
enum { RA_NEEDED_STRIDES_MAX = 256 };

/** How many rows ra_pattern_needed_rows would give: a bit per key, and no ranges. */
RA_CHECKED ra_status ra_pattern_count_needed(const ra_pattern *pattern, ra_heads heads,
                                             const ra_rowset *queries, const ra_rowset *keys,
                                             ra_pool *pool, int64_t *rows_out);

#endif
