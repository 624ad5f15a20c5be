/* A named set of features, applied between the file and --set, which wins and may undo it. */
#include "config_layer.h"
#include "feature_sets.h"
#include "internal.h"

#include <stdio.h>
#include <string.h>

/* The index of the key that "a.b=c" is about. */
static int key_of(const char *set)
{
    char path[128];
    snprintf(path, sizeof(path), "%.*s", (int)strcspn(set, "="), set);
    int const index = ra_config_key_find(path);
    RA_ASSERT(index >= 0); /* sets name keys of this build only */
    return index;
}

/* Give keys a default: "a.b" takes that of the table, "a.b=c" the value c. */
static ra_status defaults_apply(ra_config *config, const char *const *defaults)
{
    ra_status status = RA_OK;
    for (int i = 0; i < RA_FEATURE_SET_KEYS && defaults[i] != NULL && status == RA_OK; i++) {
        const char *equals = strchr(defaults[i], '=');
        int const key = key_of(defaults[i]);
        status = ra_config_default_apply(
            config, key, equals != NULL ? equals + 1 : ra_config_keys[key].default_text);
    }
    return status;
}

ra_status ra_config_features_apply(const ra_feature_set *set, ra_config *config)
{
    ra_status status = defaults_apply(config, set->defaults);
    for (int i = 0; set->sets[i] != NULL && status == RA_OK; i++)
        status = ra_config_set_apply(config, set->name, set->sets[i]);
    return status;
}

ra_status ra_config_features_hold(const ra_feature_set *set, ra_config *config)
{
    for (int i = 0; set->sets[i] != NULL; i++) {
        int const key = key_of(set->sets[i]);
        if (ra_config_holds(config, &ra_config_keys[key], strchr(set->sets[i], '=') + 1))
            continue;
        const char *place = config->places[key];
        ra_log(RA_LOG_ERROR, "%s: contradicts '%s', which is %s: --set wins, and nothing is left",
               place != NULL ? place : ra_config_keys[key].path, set->name, set->sets[i]);
        return RA_ERR_CONFIG;
    }
    return defaults_apply(config, set->drops);
}
