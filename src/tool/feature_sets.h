/*
 * Named settings of what costs memory without being needed: pool, pattern cache, communication
 * buffers, head groups. They come after the configuration and --set; a key that is set to null has
 * its default again, so a switch in the file does not contradict the set that turns it.
 */
#ifndef RINGATTN_TOOL_FEATURE_SETS_H
#define RINGATTN_TOOL_FEATURE_SETS_H

enum { RA_FEATURE_SET_KEYS = 8 };

typedef struct ra_feature_set {
    const char *name;
    const char *sets[RA_FEATURE_SET_KEYS]; /* "a.b=c", ended by NULL */
} ra_feature_set;

/** base: one rank, everything off. ring: every switch at its default, which is on. */
extern const ra_feature_set ra_feature_base, ra_feature_ring;
/** What `ablate` runs, in this order; base comes first. */
extern const ra_feature_set ra_feature_sets[];
extern const int ra_feature_set_count;

#endif
