#include "support/poison_memory.h"

#include <string.h>

static size_t poison_round(const ra_memory *memory, size_t bytes)
{
    (void)memory;
    ra_memory const host = ra_memory_host();
    return host.ops->round(&host, bytes);
}

static ra_status poison_alloc(const ra_memory *memory, size_t bytes, void **ptr_out)
{
    (void)memory;
    ra_memory const host = ra_memory_host();
    ra_status const status = host.ops->alloc(&host, bytes, ptr_out);
    if (status == RA_OK)
        memset(*ptr_out, 0xFF, bytes);
    return status;
}

static void poison_free(const ra_memory *memory, void *ptr, size_t bytes)
{
    (void)memory;
    ra_memory const host = ra_memory_host();
    memset(ptr, 0xFF, bytes);
    host.ops->free(&host, ptr, bytes);
}

static ra_status poison_available(const ra_memory *memory, int64_t *bytes_out)
{
    (void)memory;
    ra_memory const host = ra_memory_host();
    return host.ops->available(&host, bytes_out);
}

static const ra_memory_ops poison_ops = {
    .name = "poison",
    .round = poison_round,
    .alloc = poison_alloc,
    .free = poison_free,
    .available = poison_available,
};

ra_memory ra_memory_poison(void)
{
    return (ra_memory){.ops = &poison_ops, .self = NULL};
}
