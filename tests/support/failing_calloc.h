/* Linked with --wrap=calloc, and included by one source of a test: some calls succeed, no other. */
#ifndef RINGATTN_TESTS_FAILING_CALLOC_H
#define RINGATTN_TESTS_FAILING_CALLOC_H

#include <stdatomic.h>
#include <stddef.h>

static atomic_int callocs_left = -1; /* that succeed; negative: all do */

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

void *__wrap_calloc(size_t count, size_t bytes)
{
    int left = callocs_left;
    while (left > 0 && !atomic_compare_exchange_weak(&callocs_left, &left, left - 1))
        ;
    return left == 0 ? NULL : __real_calloc(count, bytes);
}

#endif
