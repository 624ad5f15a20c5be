/*
 * A rank's tensors where its kernel wants them, seen from the host. Memory of a GPU is copied to
 * and fro a window at a time; host memory is its own window, without a copy.
 */
#ifndef RINGATTN_TOOL_SHARD_H
#define RINGATTN_TOOL_SHARD_H

#include "ringattn/pool.h"

/* Where shards lie; NULL in its place is host memory. */
typedef struct ra_shard_memory {
    ra_memory memory;
    ra_stream *stream; /* copies come after what is enqueued on it */
    ra_pool *staging;  /* of host memory, borrowed: windows come from it (io) */
} ra_shard_memory;

enum { RA_SHARD_WINDOW_BYTES = 4 << 20 };

/** Whether the host reads and writes shards where they lie. */
bool ra_shard_is_host(const ra_shard_memory *in);

/* A part of a tensor that the host can read. */
typedef struct ra_shard_window {
    const ra_shard_memory *in;
    const char *data;
    int64_t total_bytes, window_bytes;
    ra_block block;     /* taken with the first read */
    int64_t begin, end; /* the bytes of the tensor that it holds */
} ra_shard_window;

/**
 * A window of `window_bytes` (at least 1) on a tensor; data may be NULL if total_bytes is 0. It
 * takes no memory before it is read. `in` and `data` are borrowed until close.
 */
ra_shard_window ra_shard_window_open(const ra_shard_memory *in, const void *data,
                                     int64_t total_bytes, int64_t window_bytes);
/** Most bytes that can be asked for at once: all of host memory, else window_bytes. */
int64_t ra_shard_window_most(const ra_shard_window *window);
/**
 * Bytes [at, at + bytes) of the tensor, borrowed until the next call. If they are not at hand,
 * the window moves to begin with them: reading forward copies every byte once.
 *
 * @return RA_ERR_NO_MEMORY, RA_ERR_CUDA; one line was logged
 */
RA_CHECKED ra_status ra_shard_window_read(ra_shard_window *window, int64_t at, int64_t bytes,
                                          const void **bytes_out);
void ra_shard_window_close(ra_shard_window *window); /* a zeroed one is fine */

#endif
