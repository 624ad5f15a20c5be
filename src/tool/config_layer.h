/* Private to config*.c: keys of one text, applied to a configuration. */
#ifndef RINGATTN_TOOL_CONFIG_LAYER_H
#define RINGATTN_TOOL_CONFIG_LAYER_H

#include "config_table.h"

/* One text whose keys are being applied; within it, no key may be given twice. */
typedef struct ra_config_layer {
    const ra_yaml *yaml;
    ra_config *config;
    bool sweeps; /* values are lists of values, one per point */
    bool given[RA_CONFIG_KEY_MAX];
    const ra_yaml_node *lists[RA_CONFIG_KEY_MAX]; /* if `sweeps`: of config->sweep_keys */
} ra_config_layer;

/** Apply a key's value; later messages name its place. */
RA_CHECKED ra_status ra_config_value_apply(const ra_config_layer *layer, int index,
                                           const ra_yaml_node *node, int line, int column);
/** Apply all keys below `prefix`, "" for the top. */
RA_CHECKED ra_status ra_config_members_apply(ra_config_layer *layer, const ra_yaml_node *mapping,
                                             const char *prefix);
/** Give a key a value ("eager"; NULL: none) as if it were its default. */
RA_CHECKED ra_status ra_config_default_apply(ra_config *config, int index, const char *text);
/** The member of that name; NULL: there is none. */
const ra_yaml_node *ra_config_member_find(const ra_yaml_node *mapping, const char *key);
/** Check the whole sweep, and apply its combination number pick.sweep_point. */
RA_CHECKED ra_status ra_config_sweep_apply(const ra_yaml *yaml, const ra_config_source *source,
                                           ra_config *config);

/**
 * Whether a key has the value that a text ("eager"; NULL: none) gives it. Of keys that are lists or
 * texts only none can be asked for.
 */
bool ra_config_holds(const ra_config *config, const ra_config_key *key, const char *text);
/** Whether a key has its default, given or not. */
bool ra_config_is_default(const ra_config *config, const ra_config_key *key);
/** Options and switches of features that a later layer has made impossible get their defaults. */
RA_CHECKED ra_status ra_config_reset_replaced(ra_config *config);
/** Refuse options of features that are off: they would be ignored. */
RA_CHECKED ra_status ra_config_check_effects(const ra_config *config);
/** Refuse to switch on what the job cannot have, such as a pool in base; by default it is off. */
RA_CHECKED ra_status ra_config_settle_switches(ra_config *config);

/** Apply "a.b=c", whose place in messages is `giver`, "--set", and itself. */
RA_CHECKED ra_status ra_config_set_apply(ra_config *config, const char *giver, const char *set);
/** Apply keys that have command-line options of their own; these win over --set. */
RA_CHECKED ra_status ra_config_options_apply(ra_config *config, const ra_config_source *source);
/** Apply the set, before --set. */
RA_CHECKED ra_status ra_config_features_apply(const ra_feature_set *set, ra_config *config);
/** Call it after --set: RA_ERR_CONFIG, with a line, if --set changed what the set is about. */
RA_CHECKED ra_status ra_config_features_hold(const ra_feature_set *set, ra_config *config);

#endif
