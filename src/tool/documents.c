#include "documents.h"

#include "internal.h"

#include <stdlib.h>

enum { DOCUMENTS_MAX = 1 << 26 };

int64_t ra_documents_tokens(const ra_pattern_config *pattern)
{
    int64_t sum = 0; /* cannot overflow: at most 2^20 lengths below 2^31 */
    for (int64_t i = 0; i < pattern->document_count; i++)
        sum += pattern->documents[i];
    return sum;
}

/* Those that are not empty. */
static int64_t count_documents(const ra_pattern_config *pattern)
{
    int64_t count = 0;
    for (int64_t i = 0; i < pattern->document_count; i++)
        count += pattern->documents[i] > 0;
    return count;
}

int64_t ra_documents_tokens_max(const ra_pattern_config *pattern)
{
    int64_t const count = count_documents(pattern);
    if (count == 0)
        return INT32_MAX;
    return ra_min_i64(INT32_MAX, DOCUMENTS_MAX / count * ra_documents_tokens(pattern) - 1);
}

ra_status ra_documents_repeat(const ra_pattern_config *pattern, int64_t tokens,
                              int64_t **lengths_out, int64_t *count_out)
{
    int64_t const sum = ra_documents_tokens(pattern), most = count_documents(pattern);
    int64_t left = tokens, count = 0;
    *lengths_out = NULL;
    *count_out = 0;
    if (pattern->documents == NULL)
        return RA_OK;
    if (sum < 1) {
        ra_log(RA_LOG_ERROR, "pattern.documents: lengths sum to 0: repeated, they have no token");
        return RA_ERR_CONFIG;
    }
    if (tokens > ra_documents_tokens_max(pattern)) {
        ra_log(RA_LOG_ERROR, "pattern.documents: more than %d documents in %lld tokens",
               DOCUMENTS_MAX, (long long)tokens);
        return RA_ERR_CONFIG;
    }
    int64_t *lengths = calloc((size_t)((tokens / sum + 1) * most) + 1, sizeof(*lengths));
    if (lengths == NULL)
        return ra_refuse_memory("the lengths of documents");
    for (int64_t i = 0; left > 0; i = (i + 1) % pattern->document_count) {
        if (pattern->documents[i] == 0)
            continue;
        lengths[count] = ra_min_i64(pattern->documents[i], left);
        left -= lengths[count++];
    }
    *lengths_out = lengths;
    *count_out = count;
    return RA_OK;
}
