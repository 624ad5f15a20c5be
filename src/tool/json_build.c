#include "json_build.h"

#include <math.h>

json_t *ra_json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *ra_json_extend(json_t *object, json_t *more)
{
    bool const done = object != NULL && more != NULL && json_object_update(object, more) == 0;
    json_decref(more);
    if (!done)
        json_decref(object);
    return done ? object : NULL;
}

json_t *ra_json_append(json_t *list, json_t *item)
{
    if (json_array_append_new(list, item) == 0)
        return list;
    json_decref(list);
    return NULL;
}

void ra_json_mention_incomplete(const char *file, const json_t *root)
{
    const char *command = json_string_value(json_object_get(root, "command"));
    if (json_is_false(json_object_get(root, "complete")))
        ra_log(RA_LOG_WARNING, "%s: is not complete: '%s' was ended, or is still at work", file,
               command != NULL ? command : "ringattn");
}

json_t *ra_json_swept(const ra_config *config)
{
    json_t *object = json_object();
    for (int i = 0; object != NULL && i < config->sweep_key_count; i++)
        object = ra_json_extend(object, json_pack("{s:o}", ra_config_swept_path(config, i),
                                                  ra_config_swept_to_json(config, i)));
    return object;
}
