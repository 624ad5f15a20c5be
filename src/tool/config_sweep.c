/* The sweep of a configuration: lists of values, of which one combination holds. */
#include "config_layer.h"
#include "internal.h"

/* Keys that the command line names when it is applied to nothing: these are not swept. */
static ra_status given_find(const ra_config_source *source, bool given[RA_CONFIG_KEY_MAX])
{
    ra_config alone = {.layer = 1};
    ra_status status = RA_OK;
    for (int i = 0; i < source->set_count && status == RA_OK; i++)
        status = ra_config_set_apply(&alone, "--set", source->sets[i]);
    if (status == RA_OK)
        status = ra_config_options_apply(&alone, source);
    for (int i = 0; i < ra_config_key_count; i++)
        given[i] = alone.layers[i] > 0;
    ra_config_fini(&alone);
    return status;
}

static ra_status sweep_count(ra_config_layer *layer, const ra_config_source *source,
                             int64_t counts[RA_CONFIG_KEY_MAX])
{
    ra_config *config = layer->config;
    bool given[RA_CONFIG_KEY_MAX];
    int kept = 0;
    ra_status const status = given_find(source, given);
    if (status != RA_OK)
        return status;
    for (int i = 0; i < config->sweep_key_count; i++) {
        int const key = config->sweep_keys[i];
        const ra_yaml_node *list = layer->lists[i];
        RA_ASSERT(list != NULL);
        if (given[key])
            continue;
        config->sweep_keys[kept] = key;
        layer->lists[kept] = list;
        counts[kept] = 0;
        for (const ra_yaml_node *item = list->first; item != NULL; item = item->next)
            counts[kept]++;
        config->sweep_points *= counts[kept]; /* no overflow: both factors are bounded */
        if (config->sweep_points > RA_SWEEP_POINTS_MAX)
            return ra_yaml_refuse(layer->yaml, list->key_line, list->key_column,
                                  "sweep: %s: more than %d points, the product of all lists",
                                  ra_config_keys[key].path, RA_SWEEP_POINTS_MAX);
        kept++;
    }
    config->sweep_key_count = kept;
    return RA_OK;
}

ra_status ra_config_sweep_apply(const ra_yaml *yaml, const ra_config_source *source,
                                ra_config *config)
{
    const ra_yaml_node *sweep = ra_config_member_find(yaml->root, "sweep");
    ra_config_layer layer = {.yaml = yaml, .config = config, .sweeps = true};
    int64_t counts[RA_CONFIG_KEY_MAX], rest = source->pick.sweep_point - 1;
    config->sweep_points = 1;
    if (sweep == NULL || sweep->kind == RA_YAML_NULL)
        return RA_OK;
    config->has_sweep = true;
    if (sweep->kind != RA_YAML_MAPPING)
        return ra_yaml_refuse(layer.yaml, sweep->line, sweep->column,
                              "sweep: expected keys and values");
    ra_status status = ra_config_members_apply(&layer, sweep, "");
    if (status == RA_OK)
        status = sweep_count(&layer, source, counts);
    for (int i = config->sweep_key_count - 1; i >= 0 && rest >= 0 && status == RA_OK; i--) {
        const ra_yaml_node *item = layer.lists[i] != NULL ? layer.lists[i]->first : NULL;
        RA_ASSERT(item != NULL); /* sweep_check refuses empty lists */
        for (int64_t skip = rest % counts[i]; skip > 0; skip--)
            item = item->next;
        rest /= counts[i];
        status =
            ra_config_value_apply(&layer, config->sweep_keys[i], item, item->line, item->column);
    }
    return status;
}

ra_status ra_config_count_jobs(const ra_config *base, const char *named, int64_t *count_out)
{
    int64_t const variants = named == NULL ? ra_max_i64(base->variant_count, 1) : 1;
    int64_t const count = base->sweep_points * variants;
    if (count <= RA_SWEEP_POINTS_MAX) {
        *count_out = count;
        return RA_OK;
    }
    ra_log(RA_LOG_ERROR, "sweep: %lld points in %lld variants are %lld, more than %d",
           (long long)base->sweep_points, (long long)variants, (long long)count,
           RA_SWEEP_POINTS_MAX);
    return RA_ERR_CONFIG;
}

ra_config_pick ra_config_pick_job(const ra_config *base, const char *named, int64_t index)
{
    bool const several = named == NULL && base->variant_count > 0;
    int64_t const variants = several ? base->variant_count : 1;
    return (ra_config_pick){.variant = several ? base->variants[index % variants] : named,
                            .sweep_point = index / variants + 1};
}
