/*
 * YAML text as a small tree that remembers all positions. Text is hostile: its size, depth, number
 * of values and width of mappings are bounded, aliases and tags are refused, and the rest takes
 * linear time at most.
 */
#ifndef RINGATTN_TOOL_CONFIG_YAML_H
#define RINGATTN_TOOL_CONFIG_YAML_H

#include "ringattn/status.h"

#include <stddef.h>

enum {
    RA_YAML_DEPTH_MAX = 8,
    RA_YAML_MEMBERS_MAX = 128,   /* of one mapping */
    RA_YAML_NODES_MAX = 1 << 20, /* of one text */
    RA_YAML_PLACE_MAX = 640
};

typedef enum ra_yaml_kind {
    RA_YAML_NULL, /* nothing, or a plain ~ or null */
    RA_YAML_SCALAR,
    RA_YAML_SEQUENCE,
    RA_YAML_MAPPING
} ra_yaml_kind;

typedef struct ra_yaml_node ra_yaml_node;
struct ra_yaml_node {
    ra_yaml_kind kind;
    int line, column;          /* of the value, counted from 1 */
    int key_line, key_column;  /* of the key */
    const char *key;           /* of a mapping's member, else NULL */
    const char *text;          /* of a scalar, else NULL */
    const ra_yaml_node *first; /* of a mapping or sequence */
    const ra_yaml_node *next;  /* in the same mapping or sequence */
};

typedef struct ra_yaml {
    const char *name; /* a file's name, or "--set a.b=c"; borrowed */
    bool has_lines;   /* whether lines and columns mean something to the reader */
    const ra_yaml_node *root;
    struct ra_yaml_chunk *chunks; /* own all nodes and texts */
} ra_yaml;

/**
 * Parse one document; an empty one has a root of kind NULL. A member that occurs twice is an error.
 *
 * @param text  borrowed for the call, with a NUL at text[bytes]
 * @return RA_ERR_CONFIG (one logged line with the place), RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_yaml_init(const char *name, bool has_lines, const char *text, size_t bytes,
                                  ra_yaml *yaml_out);
void ra_yaml_fini(ra_yaml *yaml); /* a zeroed one is fine */

/** "NAME:LINE:COLUMN", or the name alone. */
void ra_yaml_place(const ra_yaml *yaml, int line, int column, char place[RA_YAML_PLACE_MAX]);

/** Log what is wrong at a place of the text; always RA_ERR_CONFIG, which may be ignored. */
ra_status ra_yaml_refuse(const ra_yaml *yaml, int line, int column, const char *format, ...)
    RA_PRINTF(4, 5);

/**
 * The byte at which text stops being printable UTF-8; `bytes` when it does not. Strict: libfyaml
 * 0.7 never returns from some characters that are written longer than needed.
 */
size_t ra_text_invalid_at(const char *text, size_t bytes);
/** Whether it is such text without tabs and ends of lines: as a name, or a file's. */
bool ra_text_is_line(const char *text, size_t bytes);
/** Short text for a report, which takes no other: each such byte, as of a cut character, is a '?'.
 */
void ra_text_mend(char *text);
/**
 * The byte at which a directive (%YAML, %TAG) begins; `bytes`: none. A configuration needs none.
 */
size_t ra_text_directive_at(const char *text, size_t bytes);

/** UTF-8 text as a message may show it: at most 40 bytes of it, whole characters, none of them
    control. */
const char *ra_text_shown(const char *text, char shown[48]);

#endif
