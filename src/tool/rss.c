/* The resident set of this process, as the system counts it. */
#include "job.h"

#include "kernel_files.h"

#include <stdio.h>

/* Of /proc/self/status; -1: there is no such line. */
static int64_t status_bytes(const char *key)
{
    int64_t found = -1;
    (void)ra_kernel_value("", "/proc/self", "status", key, 1024, &found);
    return found;
}

int64_t ra_rss_bytes(void)
{
    return status_bytes("VmRSS:");
}

int64_t ra_rss_peak_bytes(void)
{
    return status_bytes("VmHWM:");
}

void ra_rss_mark(void)
{
    /* Refused in some sandboxes: then the mark stays where start-up left it, which is lower than
       any job that matters. */
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (file == NULL)
        return;
    fputs("5\n", file);
    fclose(file);
}
