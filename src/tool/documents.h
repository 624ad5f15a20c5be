/* Document lengths for numbers of tokens other than the configuration's. */
#ifndef RINGATTN_TOOL_DOCUMENTS_H
#define RINGATTN_TOOL_DOCUMENTS_H

#include "ringattn/pattern.h"

/** Tokens of a pattern's documents; 0: it has none. */
int64_t ra_documents_tokens(const ra_pattern_config *pattern);

/** The most tokens, up to INT32_MAX, that ra_documents_repeat accepts of a pattern. */
int64_t ra_documents_tokens_max(const ra_pattern_config *pattern);

/**
 * A pattern's document lengths for `tokens` tokens: its own again and again, the last one cut. The
 * caller frees *lengths_out; NULL: the pattern has no documents.
 * @return RA_ERR_CONFIG (too many; one logged line), RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_documents_repeat(const ra_pattern_config *pattern, int64_t tokens,
                                         int64_t **lengths_out, int64_t *count_out);

#endif
