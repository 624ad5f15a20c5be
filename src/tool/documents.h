/* Document lengths for other numbers of tokens than a configuration's own. */
#ifndef RINGATTN_TOOL_DOCUMENTS_H
#define RINGATTN_TOOL_DOCUMENTS_H

#include "ringattn/pattern.h"

/**
 * A pattern's document lengths for `tokens` tokens: its own again and again, the last one cut.
 * *lengths_out is the caller's to free; NULL where the pattern has no documents.
 * @return RA_ERR_CONFIG (too many; one logged line), RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_documents_repeat(const ra_pattern_config *pattern, int64_t tokens,
                                         int64_t **lengths_out, int64_t *count_out);

#endif
