#include "support/driver_memory.h"

#include <stdlib.h>

static ra_status enter(const ra_memory *memory)
{
    driver_memory *const d = memory->self;
    if (d->stream_is_over)
        d->pending_bytes = 0;
    return ++d->calls == d->fail_call ? d->fail_status : RA_OK;
}

static ra_status create(const ra_memory *memory, void **driver_out)
{
    driver_memory *const d = memory->self;
    ra_status const status = enter(memory);
    if (status == RA_OK) {
        d->pools++;
        *driver_out = d;
    }
    return status;
}

static void destroy(const ra_memory *memory, void *driver)
{
    driver_memory *const d = driver;
    (void)memory;
    d->pools--;
    d->held_bytes = 0;
}

static size_t round_block(const ra_memory *memory, size_t bytes)
{
    (void)memory;
    return (bytes + 511) / 512 * 512;
}

/* The bytes of a block lie before it. */
static ra_status alloc(const ra_memory *memory, void *driver, size_t bytes, ra_stream *stream,
                       void **ptr_out)
{
    driver_memory *const d = driver;
    int64_t const unit = DRIVER_MEMORY_UNIT_BYTES;
    ra_status const status = enter(memory);
    (void)stream;
    if (status != RA_OK)
        return status;
    int64_t *const block = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (block == NULL)
        return RA_ERR_NO_MEMORY;
    *block = (int64_t)bytes;
    *ptr_out = (char *)block + 64;
    int64_t const idle = d->held_bytes - d->used_bytes - d->pending_bytes;
    int64_t const missing = d->fragmented ? (int64_t)bytes : (int64_t)bytes - idle;
    if (missing > 0)
        d->held_bytes += (missing + unit - 1) / unit * unit;
    d->used_bytes += (int64_t)bytes;
    return RA_OK;
}

static void give(const ra_memory *memory, void *driver, void *ptr, ra_stream *stream)
{
    driver_memory *const d = driver;
    int64_t *const block = (int64_t *)(void *)((char *)ptr - 64);
    (void)memory, (void)stream;
    d->used_bytes -= *block;
    d->pending_bytes += d->stream_is_over ? 0 : *block;
    free(block);
}

static ra_status held(const ra_memory *memory, void *driver, int64_t *bytes_out)
{
    const driver_memory *const d = driver;
    ra_status const status = enter(memory);
    if (status == RA_OK)
        *bytes_out = d->held_bytes;
    return status == RA_OK ? RA_OK : RA_ERR_CUDA;
}

/* Whatever has come to its end has been seen. */
static void see(const ra_memory *memory, void *driver)
{
    (void)memory, (void)driver;
}

static void trim(const ra_memory *memory, void *driver, int64_t keep_bytes)
{
    driver_memory *const d = driver;
    int64_t const unit = DRIVER_MEMORY_UNIT_BYTES;
    if (enter(memory) != RA_OK)
        return;
    while (d->held_bytes > keep_bytes && d->held_bytes - unit >= d->used_bytes + d->pending_bytes)
        d->held_bytes -= unit;
}

static ra_status available(const ra_memory *memory, int64_t *bytes_out)
{
    (void)memory;
    *bytes_out = (int64_t)1 << 40;
    return RA_OK;
}

ra_memory driver_memory_make(driver_memory *driver)
{
    static const ra_driver_ops driver_ops = {
        .create = create,
        .destroy = destroy,
        .round = round_block,
        .alloc = alloc,
        .free = give,
        .held = held,
        .see = see,
        .trim = trim,
    };
    static const ra_memory_ops ops = {
        .name = "driver",
        .round = round_block,
        .available = available,
        .driver = &driver_ops,
    };
    *driver = (driver_memory){.stream_is_over = true};
    return (ra_memory){.ops = &ops, .self = driver};
}
