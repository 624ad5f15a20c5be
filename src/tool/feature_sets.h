/*
 * Named settings of what costs or saves memory without being needed: pool, pattern cache,
 * communication buffers, head groups, rounds. They apply after the file and before --set, which
 * wins; if it changes what a set is about, the set cannot be used (config_features.c).
 */
#ifndef RINGATTN_TOOL_FEATURE_SETS_H
#define RINGATTN_TOOL_FEATURE_SETS_H

enum { RA_FEATURE_SET_KEYS = 10 };

/* Lists are ended by NULL. */
typedef struct ra_feature_set {
    const char *name;
    const char *sets[RA_FEATURE_SET_KEYS]; /* "a.b=c": what the set is about */
    /* "a.b", "a.b=c": keys that have their default again, or that one, whatever the file says. Like
       any default it yields to --set, and it does not count as given by the user. */
    const char *defaults[RA_FEATURE_SET_KEYS];
    /* "a.b": dropped after --set, because the set switches off what the key belongs to. */
    const char *drops[RA_FEATURE_SET_KEYS];
} ra_feature_set;

/** Every switch at its default, which is on. */
extern const ra_feature_set ra_feature_ring;
/** What `ablate` runs, in this order; base comes first: one rank, everything off. */
extern const ra_feature_set ra_feature_sets[];
extern const int ra_feature_set_count;

#endif
