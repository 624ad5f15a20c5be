/* Libraries of the system that are loaded when they are first wanted, never linked. */
#ifndef RINGATTN_SRC_LIBRARY_H
#define RINGATTN_SRC_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** The first of `names` that the loader finds; "" is none. NULL: there is none. Never closed: such
    libraries have threads. */
void *ra_library_open(const char *const *names, size_t count);
/** Whether so much address space is free, part of it for memory that is written to: where libraries
    find none as they are loaded, some end the process and some wait for ever. */
bool ra_library_has_room(int64_t mib, int64_t written_mib);
/** Write the function of this name, or NULL, to the pointer to a function at `function_out`.
    @return whether it is there */
bool ra_library_find(void *library, const char *name, void *function_out);

/** A function that is wanted, and where it goes: a pointer to a pointer to a function. */
typedef struct ra_library_symbol {
    const char *name;
    void *function_out;
} ra_library_symbol;

/** All of them, in order. @param why  if one is not there: "this machine's SONAME has no NAME"
    @return whether all are there */
bool ra_library_find_all(void *library, const char *soname, const ra_library_symbol *symbols,
                         size_t count, char *why, size_t bytes);

#endif
