/* The resident set of this process, as the system counts it. */
#include "job.h"

#include <stdio.h>
#include <string.h>

/* From a line of /proc/self/status such as "VmHWM:    1234 kB"; -1: there is no such line. */
static int64_t status_bytes(const char *name)
{
    char line[256];
    int64_t found = -1;
    FILE *file = fopen("/proc/self/status", "r");
    if (file == NULL)
        return -1;
    while (found < 0 && fgets(line, sizeof(line), file) != NULL) {
        long long kib = 0;
        if (strncmp(line, name, strlen(name)) == 0 &&
            sscanf(line + strlen(name), ": %lld kB", &kib) == 1)
            found = (int64_t)kib * 1024;
    }
    fclose(file);
    return found;
}

int64_t ra_rss_bytes(void)
{
    return status_bytes("VmRSS");
}

int64_t ra_rss_peak_bytes(void)
{
    return status_bytes("VmHWM");
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
