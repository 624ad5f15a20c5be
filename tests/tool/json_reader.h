/* Members of a report, which must be there and of their type. */
#ifndef RINGATTN_TESTS_JSON_READER_H
#define RINGATTN_TESTS_JSON_READER_H

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>

static inline json_t *member(const json_t *object, const char *name)
{
    json_t *found = json_object_get(object, name);
    cr_assert_not_null(found, "no member %s", name);
    return found;
}

static inline long long integer(const json_t *object, const char *name)
{
    json_t *found = member(object, name);
    cr_assert(json_is_integer(found), "%s is no integer", name);
    return json_integer_value(found);
}

static inline double real(const json_t *object, const char *name)
{
    json_t *found = member(object, name);
    cr_assert(json_is_number(found), "%s is no number", name);
    return json_number_value(found);
}

static inline const char *text(const json_t *object, const char *name)
{
    const char *found = json_string_value(member(object, name));
    cr_assert_not_null(found, "%s is no text", name);
    return found;
}

/* All of what a command has written. */
static inline json_t *parse_json(const char *written)
{
    json_error_t error;
    json_t *root = json_loads(written, JSON_REJECT_DUPLICATES, &error);
    cr_assert_not_null(root, "%s\n%s", error.text, written);
    return root;
}

/* A run's only point, or the first of several. */
static inline json_t *first_point(const json_t *root)
{
    json_t *point = json_array_get(member(root, "points"), 0);
    cr_assert_not_null(point, "there is no point");
    return point;
}

/* A file of the command's folder. */
static inline json_t *load_json(const char *folder, const char *name)
{
    char path[256];
    json_error_t error;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    cr_assert_not_null(root, "%s:%d: %s", path, error.line, error.text);
    return root;
}

#endif
