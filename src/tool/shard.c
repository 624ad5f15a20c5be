#include "shard.h"

#include "internal.h"

bool ra_shard_is_host(const ra_shard_memory *in)
{
    return in == NULL || ra_memory_is_host(&in->memory);
}

ra_shard_window ra_shard_window_open(const ra_shard_memory *in, const void *data,
                                     int64_t total_bytes, int64_t window_bytes)
{
    RA_ASSERT(window_bytes >= 1 && total_bytes >= 0);
    return (ra_shard_window){
        .in = in, .data = data, .total_bytes = total_bytes, .window_bytes = window_bytes};
}

int64_t ra_shard_window_most(const ra_shard_window *window)
{
    return ra_shard_is_host(window->in) ? window->total_bytes : window->window_bytes;
}

static ra_status move(ra_shard_window *window, int64_t at)
{
    const ra_shard_memory *in = window->in;
    int64_t const bytes = ra_min_i64(window->window_bytes, window->total_bytes - at);
    ra_status status = RA_OK;
    if (window->block.data == NULL) {
        int64_t const most = ra_min_i64(window->window_bytes, window->total_bytes);
        status = ra_pool_alloc(in->staging, RA_MEM_IO, (size_t)most, NULL, &window->block);
    }
    window->begin = window->end = 0; /* what a copy that fails leaves is of no use */
    if (status == RA_OK)
        status = ra_memory_read(&in->memory, in->stream, window->block.data, window->data + at,
                                (size_t)bytes);
    if (status == RA_OK) {
        window->begin = at;
        window->end = at + bytes;
    }
    return status;
}

ra_status ra_shard_window_read(ra_shard_window *window, int64_t at, int64_t bytes,
                               const void **bytes_out)
{
    RA_ASSERT(at >= 0 && bytes >= 0 && at + bytes <= window->total_bytes);
    if (ra_shard_is_host(window->in)) {
        *bytes_out = window->data + at;
        return RA_OK;
    }
    RA_ASSERT(bytes <= window->window_bytes);
    if (at < window->begin || at + bytes > window->end) {
        ra_status const status = move(window, at);
        if (status != RA_OK)
            return status;
    }
    *bytes_out = (const char *)window->block.data + (at - window->begin);
    return RA_OK;
}

void ra_shard_window_close(ra_shard_window *window)
{
    if (window->in != NULL)
        ra_pool_free(window->in->staging, NULL, &window->block);
    *window = (ra_shard_window){0};
}
