#include "bytes_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *ra_bytes_text(int64_t amount, char text[32])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    if (amount < 1024) {
        snprintf(text, 32, "%lld B", (long long)amount);
        return text;
    }
    double scaled = (double)amount / 1024;
    size_t unit = 0;
    while (scaled >= 1023.95 /* printed as 1024.0 */ &&
           unit + 1 < sizeof(units) / sizeof(units[0])) {
        scaled /= 1024;
        unit++;
    }
    snprintf(text, 32, "%.1f %s", scaled, units[unit]);
    return text;
}

const char *ra_cuda_version_text(int version, char text[16])
{
    if (version > 0)
        snprintf(text, 16, "%d.%d", version / 1000, version % 1000 / 10);
    else
        snprintf(text, 16, "none");
    return text;
}

const char *ra_plural(int64_t count)
{
    return count == 1 ? "" : "s";
}

void ra_text_append(char *text, size_t bytes, const char *between, const char *format, ...)
{
    va_list args;
    size_t used = strlen(text);
    if (used > 0)
        snprintf(text + used, bytes - used, "%s", between);
    used += strlen(text + used);
    va_start(args, format);
    vsnprintf(text + used, bytes - used, format, args);
    va_end(args);
}
