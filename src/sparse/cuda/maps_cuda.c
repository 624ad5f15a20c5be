/*
 * Tile maps on the device: host objects, whose arrays are copied as they are. Kernels read the
 * arrays only. A block mask is copied behind them, as if kernels read it, because it exists to show
 * what such a mask takes of the device.
 */
#include "internal.h"
#include "sparse/cuda/cuda_internal.h"

#include <stdlib.h>

static ra_status copy_map(ra_kernel *kernel, const ra_tilemap *map, ra_block *block_out)
{
    ra_cuda_kernel *const self = ra_cuda_self(kernel);
    ra_block block;
    /* A copy waits for its stream; it must not wait for a kernel that hangs. */
    ra_status status = ra_cuda_finish(kernel);
    if (status == RA_OK)
        status =
            ra_pool_alloc(kernel->pool, RA_MEM_TILEMAP, (size_t)map->bytes, kernel->stream, &block);
    if (status != RA_OK)
        return status;
    size_t const array_bytes = (size_t)ra_tilemap_array_bytes(map);
    status = ra_memory_write(&self->memory, kernel->stream, block.data, map->layers, array_bytes);
    if (status == RA_OK && map->mask.bytes > 0)
        status = ra_memory_write(&self->memory, kernel->stream, (char *)block.data + array_bytes,
                                 map->mask.data, map->mask.bytes);
    if (status != RA_OK) {
        ra_pool_free(kernel->pool, kernel->stream, &block);
        return status;
    }
    *block_out = block;
    return RA_OK;
}

static ra_cuda_taken *find(const ra_cuda_kernel *self, const ra_tilemap *map)
{
    for (int32_t i = 0; i < self->taken_count; ++i)
        if (self->taken[i].map == map)
            return &self->taken[i];
    return NULL;
}

static ra_status make_room(ra_cuda_kernel *self)
{
    if (self->taken_count < self->taken_room)
        return RA_OK;
    int32_t const room = self->taken_room > 0 ? 2 * self->taken_room : 16;
    ra_cuda_taken *const taken = realloc(self->taken, (size_t)room * sizeof(*taken));
    if (taken == NULL)
        return ra_refuse_memory("kernel cuda's list of maps");
    self->taken = taken;
    self->taken_room = room;
    return RA_OK;
}

ra_status ra_cuda_take_map(ra_kernel *kernel, const ra_tilemap *map)
{
    ra_cuda_kernel *const self = ra_cuda_self(kernel);
    RA_ASSERT(find(self, map) == NULL);
    ra_cuda_taken taken = {.map = map};
    ra_status status = make_room(self);
    if (status == RA_OK)
        status = copy_map(kernel, map, &taken.block);
    if (status == RA_OK)
        self->taken[self->taken_count++] = taken;
    return status;
}

void ra_cuda_drop_map(ra_kernel *kernel, const ra_tilemap *map)
{
    ra_cuda_kernel *const self = ra_cuda_self(kernel);
    ra_cuda_taken *const taken = find(self, map);
    if (taken == NULL)
        return;
    ra_pool_free(kernel->pool, kernel->stream, &taken->block);
    *taken = self->taken[--self->taken_count];
}

ra_status ra_cuda_map_data(ra_kernel *kernel, const ra_tilemap *map, ra_block *own_out,
                           const void **data_out)
{
    const ra_cuda_taken *const taken = find(ra_cuda_self(kernel), map);
    *own_out = (ra_block){0};
    ra_status const status = taken != NULL ? RA_OK : copy_map(kernel, map, own_out);
    *data_out = taken != NULL ? taken->block.data : own_out->data;
    return status;
}

ra_status ra_cuda_give_map(ra_kernel *kernel, ra_status status, ra_block *own)
{
    /* A returned block waits without a deadline. */
    ra_status const over = own->data != NULL ? ra_cuda_finish(kernel) : RA_OK;
    ra_pool_free(kernel->pool, kernel->stream, own);
    return over != RA_OK ? over : status;
}
