#include "json_build.h"

#include "internal.h"
#include "output_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *ra_json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *ra_json_count(double value)
{
    return fabs(value) < 0x1p63 ? json_integer((json_int_t)round(value)) : ra_json_number(value);
}

json_t *ra_json_known(int64_t value)
{
    return value >= 0 ? json_integer(value) : json_null();
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

ra_status ra_json_read(const char *file, json_t **root_out)
{
    json_error_t error;
    FILE *stream = fopen(file, "rb");
    if (stream == NULL) {
        ra_log(RA_LOG_ERROR, "%s: cannot open the report: %s", file, strerror(errno));
        return RA_ERR_IO;
    }
    json_t *root = json_loadf(stream, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL && ferror(stream))
        ra_log(RA_LOG_ERROR, "%s: cannot read the report: %s", file, strerror(errno));
    else if (root == NULL)
        ra_log(RA_LOG_ERROR, "%s: line %d: is no JSON: %s", file, error.line, error.text);
    fclose(stream);
    if (root == NULL)
        return RA_ERR_IO;
    *root_out = root;
    return RA_OK;
}

ra_status ra_json_refuse(const char *file, const char *what)
{
    ra_log(RA_LOG_ERROR, "%s: %s", file, what);
    return RA_ERR_IO;
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

ra_status ra_json_report(const char *command, json_t *members, const char *path)
{
    json_t *root = ra_json_extend(
        json_pack("{s:s, s:s}", "ringattn", ra_version(), "command", command), members);
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    size_t const length = text != NULL ? strlen(text) : 0;
    char *line = text != NULL ? realloc(text, length + 2) : NULL; /* and a newline */
    json_decref(root);
    if (line == NULL) {
        free(text);
        return ra_refuse_memory("the report");
    }
    memcpy(line + length, "\n", 2);
    ra_status const status = ra_text_write(line, path);
    free(line);
    return status;
}
