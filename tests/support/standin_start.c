/*
 * The stand-in runtime of a process that starts as any other.
 *
 *     RA_SEALED_CONTEXT  bytes that its context takes; without it none
 */
#include "support/standin_cudart.h"

#include <stdlib.h>

__attribute__((constructor)) static void standin_begin(void)
{
    const char *bytes = getenv("RA_SEALED_CONTEXT");
    standin_reset();
    standin.used_bytes = bytes != NULL ? strtoll(bytes, NULL, 10) : 0;
}
