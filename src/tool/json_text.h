/* Parsing and printing JSON where memory may end. */
#ifndef RINGATTN_TOOL_JSON_TEXT_H
#define RINGATTN_TOOL_JSON_TEXT_H

#include <jansson.h>
#include <stdbool.h>

/*
 * jansson up to 2.14 does not notice that a token could not be kept, and goes on beyond the end of
 * what it has (https://github.com/akheron/jansson/issues/362), or calls a lack of memory a mistake
 * of the text; and it prints an object without the key for which there was no room (issues/655). So
 * here a request that fails ends the parsing or printing, and all that it took is given back.
 */

/**
 * As json_load_callback with duplicate keys rejected; the caller owns the tree.
 *
 * @param read     not called again once memory lacked
 * @param error    says what is wrong with the text; not set if memory lacked
 * @return NULL: the text is no JSON, or *lacked_memory
 */
json_t *ra_json_load(json_load_callback_t read, void *context, json_error_t *error,
                     bool *lacked_memory);

/** As json_dumps; the caller frees the text. NULL: no memory, or not to be printed with `flags`. */
char *ra_json_dump(const json_t *json, size_t flags);

#endif
