/* Members by key, of any struct that a table describes. */
#include "config_table.h"

#include <stdlib.h>
#include <string.h>

/* The table has offsets, so members are moved as bytes: no alias rule is bent. */
static size_t const value_bytes[] = {
    [RA_KEY_BOOL] = sizeof(bool),     [RA_KEY_INT32] = sizeof(int32_t),
    [RA_KEY_INT64] = sizeof(int64_t), [RA_KEY_UINT64] = sizeof(uint64_t),
    [RA_KEY_BYTES] = sizeof(int64_t), [RA_KEY_TIME] = sizeof(int64_t),
    [RA_KEY_REAL] = sizeof(double),   [RA_KEY_CHOICE] = sizeof(unsigned),
    [RA_KEY_TEXT] = sizeof(char *),   [RA_KEY_LIST] = sizeof(int64_t *),
};

ra_config_value ra_config_value_get(const ra_config_key *key, const void *object)
{
    const unsigned char *bytes = object;
    ra_config_value value = {0};
    memcpy(&value.integer, bytes + key->offset, value_bytes[key->type]);
    if (key->type == RA_KEY_LIST)
        memcpy(&value.list_count, bytes + key->count_offset, sizeof(value.list_count));
    return value;
}

void ra_config_value_store(const ra_config_key *key, ra_config_value *value, void *object)
{
    unsigned char *bytes = object;
    ra_config_value old = ra_config_value_get(key, object);
    ra_config_value_free(key, &old);
    memcpy(bytes + key->offset, &value->integer, value_bytes[key->type]);
    if (key->type == RA_KEY_LIST)
        memcpy(bytes + key->count_offset, &value->list_count, sizeof(value->list_count));
    *value = (ra_config_value){0};
}

bool ra_config_value_equals(const ra_config_key *key, const ra_config_value *a,
                            const ra_config_value *b)
{
    return memcmp(&a->integer, &b->integer, value_bytes[key->type]) == 0;
}

void ra_config_value_free(const ra_config_key *key, ra_config_value *value)
{
    if (key->type == RA_KEY_TEXT)
        free(value->text);
    else if (key->type == RA_KEY_LIST)
        free(value->list);
    *value = (ra_config_value){0};
}

const char *ra_config_choice_name(const ra_config_key *key, unsigned value)
{
    for (const ra_choice *choice = key->choices; choice->name != NULL; choice++) {
        if (choice->value == value)
            return choice->name;
    }
    return "?";
}
