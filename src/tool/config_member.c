/* Members by key: storing and freeing those of any struct, reading those of ra_config. */
#include "config_table.h"
#include "internal.h"

#include <stdlib.h>
#include <string.h>

/* The table has offsets, so members are moved as bytes: no alias rule is bent. */
static void member_write(void *object, size_t offset, const void *value, size_t bytes)
{
    memcpy((unsigned char *)object + offset, value, bytes);
}

static void member_read(const void *object, size_t offset, void *value, size_t bytes)
{
    memcpy(value, (const unsigned char *)object + offset, bytes);
}

void ra_config_value_clear(const ra_config_key *key, void *object)
{
    void *owned = NULL;
    if (key->type != RA_KEY_TEXT && key->type != RA_KEY_LIST)
        return;
    member_read(object, key->offset, &owned, sizeof(owned));
    free(owned);
    owned = NULL;
    member_write(object, key->offset, &owned, sizeof(owned));
    if (key->type == RA_KEY_LIST) {
        int64_t const count = 0;
        member_write(object, key->count_offset, &count, sizeof(count));
    }
}

void ra_config_value_store(const ra_config_key *key, ra_config_value *value, void *object)
{
    ra_config_value_clear(key, object);
    int32_t const narrow = (int32_t)value->integer;
    unsigned const choice = (unsigned)value->integer;
    bool const flag = value->integer != 0;
    switch (key->type) {
    case RA_KEY_BOOL:
        member_write(object, key->offset, &flag, sizeof(flag));
        break;
    case RA_KEY_INT32:
        member_write(object, key->offset, &narrow, sizeof(narrow));
        break;
    case RA_KEY_INT64:
    case RA_KEY_BYTES:
    case RA_KEY_TIME:
        member_write(object, key->offset, &value->integer, sizeof(value->integer));
        break;
    case RA_KEY_UINT64:
        member_write(object, key->offset, &value->bits, sizeof(value->bits));
        break;
    case RA_KEY_REAL:
        member_write(object, key->offset, &value->real, sizeof(value->real));
        break;
    case RA_KEY_CHOICE:
        member_write(object, key->offset, &choice, sizeof(choice));
        break;
    case RA_KEY_TEXT:
        member_write(object, key->offset, &value->text, sizeof(value->text));
        break;
    case RA_KEY_LIST:
        member_write(object, key->offset, &value->list, sizeof(value->list));
        member_write(object, key->count_offset, &value->list_count, sizeof(value->list_count));
        break;
    }
    *value = (ra_config_value){0};
}

unsigned ra_config_choice_get(const ra_config_key *key, const ra_config *config)
{
    unsigned value = 0;
    RA_ASSERT(key->type == RA_KEY_CHOICE);
    member_read(config, key->offset, &value, sizeof(value));
    return value;
}

int64_t ra_config_integer_get(const ra_config_key *key, const ra_config *config)
{
    int64_t wide = 0;
    int32_t narrow = 0;
    bool flag = false;
    switch (key->type) {
    case RA_KEY_BOOL:
        member_read(config, key->offset, &flag, sizeof(flag));
        return flag;
    case RA_KEY_INT32:
        member_read(config, key->offset, &narrow, sizeof(narrow));
        return narrow;
    default:
        RA_ASSERT(key->type == RA_KEY_INT64 || key->type == RA_KEY_BYTES ||
                  key->type == RA_KEY_TIME || key->type == RA_KEY_UINT64);
        member_read(config, key->offset, &wide, sizeof(wide));
        return wide;
    }
}

double ra_config_real_get(const ra_config_key *key, const ra_config *config)
{
    double value = 0;
    RA_ASSERT(key->type == RA_KEY_REAL);
    member_read(config, key->offset, &value, sizeof(value));
    return value;
}

const char *ra_config_text_get(const ra_config_key *key, const ra_config *config)
{
    const char *value = NULL;
    RA_ASSERT(key->type == RA_KEY_TEXT);
    member_read(config, key->offset, &value, sizeof(value));
    return value;
}

const int64_t *ra_config_list_get(const ra_config_key *key, const ra_config *config,
                                  int64_t *count_out)
{
    const int64_t *list = NULL;
    RA_ASSERT(key->type == RA_KEY_LIST);
    member_read(config, key->offset, &list, sizeof(list));
    member_read(config, key->count_offset, count_out, sizeof(*count_out));
    return list;
}

const char *ra_config_choice_name(const ra_config_key *key, unsigned value)
{
    for (const ra_choice *choice = key->choices; choice->name != NULL; choice++) {
        if (choice->value == value)
            return choice->name;
    }
    return "?";
}
