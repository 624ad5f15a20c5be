#include "sparse/sparse_internal.h"

ra_status ra_vector_grow(ra_pool *pool, ra_vector *vector, size_t item_bytes)
{
    size_t const bytes = vector->block.bytes > 0 ? 2 * vector->block.bytes : 16 * item_bytes;
    ra_block larger;
    ra_status const status = ra_pool_alloc(pool, RA_MEM_TILEMAP, bytes, NULL, &larger);
    if (status != RA_OK)
        return status;
    if (vector->count > 0)
        memcpy(larger.data, vector->block.data, (size_t)vector->count * item_bytes);
    ra_pool_free(pool, NULL, &vector->block);
    vector->block = larger;
    return RA_OK;
}
