#include "json_build.h"

#include "input_file.h"
#include "internal.h"
#include "json_text.h"
#include "output_file.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

typedef struct reading {
    int fd, cause; /* errno of what failed; 0: nothing did */
    int64_t until_ns;
} reading;

static size_t read_some(void *buffer, size_t bytes, void *context)
{
    reading *r = context;
    ssize_t const got = ra_input_read(r->fd, buffer, bytes, r->until_ns);
    if (got < 0)
        r->cause = errno;
    return (size_t)got;
}

ra_status ra_json_read(const char *file, int64_t wait_ms, json_t **root_out)
{
    json_error_t error;
    bool lacked_memory;
    struct stat info;
    reading r = {.fd = ra_input_open(file, &info), .until_ns = ra_clock_ns() + wait_ms * 1000000};
    if (r.fd < 0) {
        ra_log(RA_LOG_ERROR, "%s: cannot open the report: %s", file, strerror(errno));
        return RA_ERR_IO;
    }
    json_t *root = ra_json_load(read_some, &r, &error, &lacked_memory);
    close(r.fd);
    if (root != NULL && r.cause == 0) {
        *root_out = root;
        return RA_OK;
    }
    json_decref(root);
    if (lacked_memory)
        return ra_refuse_memory(file);
    if (r.cause == ETIMEDOUT)
        ra_log(RA_LOG_ERROR, "%s: the report has not come to an end within %g s: who writes it?",
               file, (double)wait_ms / 1000.0);
    else if (r.cause != 0)
        ra_log(RA_LOG_ERROR, "%s: cannot read the report: %s", file, strerror(r.cause));
    else
        ra_log(RA_LOG_ERROR, "%s: line %d: is no JSON: %s", file, error.line, error.text);
    return RA_ERR_IO;
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
    char *text = root != NULL ? ra_json_dump(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
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
