/* "Did you mean …": the candidate nearest to a mistyped name, by edit distance. */
#ifndef RINGATTN_TOOL_NEAREST_H
#define RINGATTN_TOOL_NEAREST_H

enum { RA_NEAREST_BYTES = 65 };

typedef struct ra_nearest {
    const char *typed;
    char name[RA_NEAREST_BYTES]; /* the best candidate so far, "" while none is near enough */
    int distance;
} ra_nearest;

ra_nearest ra_nearest_begin(const char *typed); /* borrowed */
/** Among equally near candidates the first one offered stays, unless what was typed begins one. */
void ra_nearest_offer(ra_nearest *nearest, const char *candidate);

/** Insertions, deletions, replacements and swaps of neighbours; names over 64 bytes are far. */
int ra_edit_distance(const char *a, const char *b);

#endif
