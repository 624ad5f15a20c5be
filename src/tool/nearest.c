#include "nearest.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { NAME_MAX_BYTES = RA_NEAREST_BYTES - 1 };

static int min3(int a, int b, int c)
{
    int const least = a < b ? a : b;
    return least < c ? least : c;
}

int ra_edit_distance(const char *a, const char *b)
{
    size_t const a_bytes = strlen(a), b_bytes = strlen(b);
    if (a_bytes > NAME_MAX_BYTES || b_bytes > NAME_MAX_BYTES)
        return INT_MAX;
    int rows[3][NAME_MAX_BYTES + 1]; /* three, because swapped neighbours look two rows back */
    int *before = rows[0], *above = rows[1], *row = rows[2];
    for (size_t j = 0; j <= b_bytes; j++)
        above[j] = before[j] = (int)j;
    for (size_t i = 1; i <= a_bytes; i++) {
        row[0] = (int)i;
        for (size_t j = 1; j <= b_bytes; j++) {
            int const same = a[i - 1] == b[j - 1] ? 0 : 1;
            row[j] = min3(above[j] + 1, row[j - 1] + 1, above[j - 1] + same);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = min3(row[j], before[j - 2] + 1, row[j]);
        }
        int *spare = before;
        before = above;
        above = row;
        row = spare;
    }
    return above[b_bytes];
}

ra_nearest ra_nearest_begin(const char *typed)
{
    /* One slip in three letters still looks like the same word. */
    int const limit = (int)(strlen(typed) / 3);
    return (ra_nearest){.typed = typed, .distance = (limit > 1 ? limit : 1) + 1};
}

void ra_nearest_offer(ra_nearest *nearest, const char *candidate)
{
    int const distance = ra_edit_distance(nearest->typed, candidate);
    bool const goes_on =
        nearest->name[0] != '\0' && strncmp(candidate, nearest->typed, strlen(nearest->typed)) == 0;
    if (distance < nearest->distance || (distance == nearest->distance && goes_on)) {
        nearest->distance = distance;
        snprintf(nearest->name, sizeof(nearest->name), "%s", candidate);
    }
}
