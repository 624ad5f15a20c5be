#include "support/refusing_memory.h"

static size_t refusing_round(const ra_memory *memory, size_t bytes)
{
    refusing_memory *self = memory->self;
    return self->inner.ops->round(&self->inner, bytes);
}

static ra_status refusing_alloc(const ra_memory *memory, size_t bytes, void **ptr_out)
{
    refusing_memory *self = memory->self;
    if (atomic_fetch_sub(&self->countdown, 1) == 0) {
        atomic_store(&self->refused, true);
        return RA_ERR_NO_MEMORY;
    }
    ra_status const status = self->inner.ops->alloc(&self->inner, bytes, ptr_out);
    if (status == RA_OK)
        atomic_fetch_add(&self->out_bytes, (long long)bytes);
    return status;
}

static void refusing_free(const ra_memory *memory, void *ptr, size_t bytes)
{
    refusing_memory *self = memory->self;
    atomic_fetch_sub(&self->out_bytes, (long long)bytes);
    self->inner.ops->free(&self->inner, ptr, bytes);
}

static ra_status refusing_available(const ra_memory *memory, int64_t *bytes_out)
{
    refusing_memory *self = memory->self;
    if (self->unknown != RA_OK)
        return self->unknown;
    *bytes_out = self->room_bytes;
    return self->room_bytes > 0 ? RA_OK : self->inner.ops->available(&self->inner, bytes_out);
}

ra_memory ra_memory_refusing(refusing_memory *self)
{
    static const ra_memory_ops ops = {.name = "refusing",
                                      .round = refusing_round,
                                      .alloc = refusing_alloc,
                                      .free = refusing_free,
                                      .available = refusing_available};
    return (ra_memory){&ops, self};
}
