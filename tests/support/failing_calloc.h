/* Linked with --wrap=calloc, and included by one source of a test: some calls succeed, no other. */
#ifndef RINGATTN_TESTS_FAILING_CALLOC_H
#define RINGATTN_TESTS_FAILING_CALLOC_H

#include <stddef.h>

static int callocs_left = -1; /* that succeed; negative: all do */

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

void *__wrap_calloc(size_t count, size_t bytes)
{
    if (callocs_left == 0)
        return NULL;
    if (callocs_left > 0)
        callocs_left--;
    return __real_calloc(count, bytes);
}

#endif
