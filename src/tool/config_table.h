/*
 * The one table of configuration keys, and how the text of a value becomes a value. Whatever knows
 * about keys (YAML, --set, help, documentation, JSON) walks this table.
 */
#ifndef RINGATTN_TOOL_CONFIG_TABLE_H
#define RINGATTN_TOOL_CONFIG_TABLE_H

#include "config.h"
#include "config_yaml.h"
#include "nearest.h"

typedef enum ra_key_type {
    RA_KEY_BOOL,
    RA_KEY_INT32, /* also int */
    RA_KEY_INT64,
    RA_KEY_UINT64, /* any 64 bits */
    RA_KEY_BYTES,  /* int64 */
    RA_KEY_TIME,   /* int64 milliseconds */
    RA_KEY_REAL,   /* double */
    RA_KEY_CHOICE, /* an enum, as unsigned */
    RA_KEY_TEXT,   /* char *, owned; NULL: none */
    RA_KEY_LIST    /* const int64_t *, owned, and a count; NULL: absent */
} ra_key_type;

typedef struct ra_choice {
    const char *name;
    unsigned value;
} ra_choice;

typedef struct ra_config_key {
    const char *path;
    ra_key_type type;
    const char *default_text; /* read as the value of a file is; NULL: none */
    const char *help;
    size_t offset;       /* in the struct that the table describes */
    size_t count_offset; /* lists: of their int64 count */
    int64_t min, max;    /* integers, bytes, times (ms), list items */
    double real_min, real_max;
    const char *zero_name;    /* "auto": the word for 0, which may lie below min */
    const ra_choice *choices; /* ended by a NULL name */
    bool keeps_empty;         /* lists: an empty one is not the same as none */
} ra_config_key;

extern const ra_config_key ra_config_keys[];
extern const int ra_config_key_count;

/** Index of the key of that path, or -1. */
int ra_config_key_find(const char *path);

/** The same in any table. */
int ra_keys_find(const ra_config_key *keys, int count, const char *path);
/** Whether the key's path begins with `section` and a dot: "shape", "pattern.window". */
bool ra_key_is_in(const ra_config_key *key, const char *section);
bool ra_keys_have_section(const ra_config_key *keys, int count, const char *path);
/** Log that a section was given a value: RA_ERR_CONFIG. */
RA_CHECKED ra_status ra_keys_refuse_section(const ra_yaml *yaml, const ra_yaml_node *node,
                                            const char *section);
/** Offer all keys and sections; where none is near, the shortest key of the same last word. */
void ra_keys_offer(const ra_config_key *keys, int count, ra_nearest *nearest);

/* A value of any type, as its member holds it. {0} is 0, false or none of any of them. */
typedef struct ra_config_value {
    union {
        int64_t integer; /* also bytes and times */
        int32_t narrow;
        bool flag;
        uint64_t bits;
        double real;
        unsigned choice;
        char *text;
        int64_t *list;
    };
    int64_t list_count;
} ra_config_value;

enum { RA_VALUE_PROBLEM_MAX = 320 };

/**
 * Read a value, whose text or list is the caller's. Logs nothing: what is wrong goes to `problem`
 * ("'128Q' is not an integer: …"), and *at_out to the node it is about.
 */
RA_CHECKED ra_status ra_config_value_read(const ra_config_key *key, const ra_yaml_node *node,
                                          ra_config_value *value_out, const ra_yaml_node **at_out,
                                          char problem[RA_VALUE_PROBLEM_MAX]);
/**
 * Move a value, with what it owns, into its member of the struct that the key's table describes;
 * the old value is freed.
 */
void ra_config_value_store(const ra_config_key *key, ra_config_value *value, void *object);
/** The value of a member; its text or list stays the member's. */
ra_config_value ra_config_value_get(const ra_config_key *key, const void *object);
bool ra_config_value_equals(const ra_config_key *key, const ra_config_value *a,
                            const ra_config_value *b);
/** Free the text or list of a value. */
void ra_config_value_free(const ra_config_key *key, ra_config_value *value);
/** What a value must be: "an integer from 1 to 256", "one of a, b, c". */
void ra_config_key_expects(const ra_config_key *key, char *text, size_t bytes);

/** Check what must hold between keys for any shape; the last step of parsing. */
RA_CHECKED ra_status ra_config_check_keys(const ra_config *config);

/** The name of a choice; "?" if it is none. */
const char *ra_config_choice_name(const ra_config_key *key, unsigned value);

#endif
