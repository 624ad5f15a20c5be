/*
 * Calls to the system, and requests for memory, that fail when a test says so. They are wrapped at
 * link time: a test links with --wrap for open, fallocate, ftruncate, pwrite, pread, fsync,
 * sync_file_range, rename, fclose, poll, malloc, calloc, realloc, strdup and strndup.
 */
#ifndef RINGATTN_TESTS_FAULTY_FILES_H
#define RINGATTN_TESTS_FAULTY_FILES_H

#include <stdbool.h>

typedef enum file_call {
    NONE,
    OPEN,
    FALLOCATE,
    FTRUNCATE,
    PWRITE,
    PREAD,
    FSYNC,
    SYNC_RANGE,
    RENAME,
    FCLOSE, /* the file is closed all the same */
    POLL,   /* ZERO: the time is over */
    MEMORY
} file_call;
enum { SHORT = -1, ZERO = -2 }; /* instead of an errno: half of the bytes, no byte */

/* Calls number [first, first + count) of `kind` fail with `cause`; NONE: no call does. */
void fault_set(file_call kind, int first, int count, int cause);
/* Forget the calls that came so far: the next one is number 0. */
void fault_count_anew(void);
/* Whether as many calls came as for one to fail. */
bool fault_was_hit(void);
/* The mode that the latest file to be created was to have at once, and how it was opened. */
unsigned fault_created_mode(void);
int fault_created_flags(void);

#endif
