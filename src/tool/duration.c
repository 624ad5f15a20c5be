#include "duration.h"

#include <stddef.h>
#include <stdio.h>

const char *ra_duration_text(double ms, char text[32])
{
    static const struct {
        const char *name;
        double ms;
    } units[] = {{"ms", 1}, {"s", 1e3}, {"min", 60e3}, {"h", 3600e3}};
    size_t unit = 0;
    while (unit + 1 < sizeof(units) / sizeof(units[0]) && ms >= units[unit + 1].ms)
        unit++;
    snprintf(text, 32, "%.*f %s", unit > 0 ? 2 : 3, ms / units[unit].ms, units[unit].name);
    return text;
}
