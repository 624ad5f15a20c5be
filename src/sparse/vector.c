#include "sparse/sparse_internal.h"

#include <string.h>

ra_status ra_vector_push(ra_pool *pool, ra_vector *vector, size_t item_bytes, void **item_out)
{
    size_t const used = (size_t)vector->count * item_bytes;
    if (used + item_bytes > vector->block.bytes) {
        size_t const bytes = vector->block.bytes > 0 ? 2 * vector->block.bytes : 16 * item_bytes;
        ra_block larger;
        ra_status const status = ra_pool_alloc(pool, RA_MEM_TILEMAP, bytes, NULL, &larger);
        if (status != RA_OK)
            return status;
        if (used > 0)
            memcpy(larger.data, vector->block.data, used);
        ra_pool_free(pool, NULL, &vector->block);
        vector->block = larger;
    }
    *item_out = (char *)vector->block.data + used;
    ++vector->count;
    return RA_OK;
}
