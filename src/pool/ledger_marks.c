/* Compositions at moments with a name. Kept by the ledger, in memory of its own: there are few. */
#include "ledger_marks.h"

#include <stdlib.h>
#include <string.h>

ra_status ra_marks_keep(ra_marks *marks, int32_t most)
{
    RA_ASSERT(most >= 1);
    ra_ledger_mark *const items = calloc((size_t)most, sizeof(*items));
    if (items == NULL)
        return ra_refuse_memory("marks of the memory ledger");
    free(marks->items);
    *marks = (ra_marks){.items = items, .most = most};
    return RA_OK;
}

void ra_marks_add(ra_marks *marks, const char *name, int32_t group, int32_t step,
                  const int64_t *current_bytes)
{
    if (marks->count == marks->most) {
        marks->dropped_count++;
        return;
    }
    ra_ledger_mark *const mark = &marks->items[marks->count++];
    RA_ASSERT(strlen(name) < sizeof(mark->name));
    *mark = (ra_ledger_mark){.group = group, .step = step};
    memcpy(mark->name, name, strlen(name) + 1);
    memcpy(mark->current_bytes, current_bytes, sizeof(mark->current_bytes));
}

void ra_marks_forget(ra_marks *marks)
{
    marks->count = 0;
    marks->dropped_count = 0;
}

void ra_marks_fini(ra_marks *marks)
{
    free(marks->items);
    *marks = (ra_marks){0};
}
