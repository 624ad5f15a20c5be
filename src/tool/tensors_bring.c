/* Brings inputs to the kernel's memory: in place, or chunk by chunk through host memory. */
#include "tensor_source.h"

#include "internal.h"

/* A tensor's rows in transfer: [batch, batch_rows, row_bytes] in a shard. */
typedef struct bringing {
    const ra_tensor_source *source;
    const ra_config *config;
    ra_tensor_name name;
    const ra_rowset *rows;
    const ra_shard_memory *in;
    char *data;
    int64_t row_bytes, batch_rows;
    int64_t chunk_rows; /* most that are brought at a time */
    ra_block staging;   /* of so many rows; empty if the host reaches the shard */
    ra_nonfinite *found;
} bringing;

static ra_status bring_batch(const bringing *b, int64_t batch)
{
    const ra_tensor_source *source = b->source;
    ra_dtype const dtype = b->config->dtype;
    ra_status status = RA_OK;
    for (int64_t first = 0; first < b->rows->row_count && status == RA_OK; first += b->chunk_rows) {
        int64_t const count = ra_min_i64(b->chunk_rows, b->rows->row_count - first);
        int64_t const bytes = count * b->row_bytes;
        char *const to = b->data + (batch * b->batch_rows + first) * b->row_bytes;
        void *const host = b->staging.data != NULL ? b->staging.data : to;
        status = ra_tensor_source_read_part(source, b->config, b->name, b->rows, batch, first,
                                            count, host);
        if (status == RA_OK && source->file != NULL && b->found != NULL) /* a drawn one is finite */
            ra_tensor_count_nonfinite(dtype, host, bytes / (int64_t)ra_dtype_bytes(dtype),
                                      source->threads, b->found);
        if (status == RA_OK && host != to)
            status = ra_memory_write(&b->in->memory, b->in->stream, to, host, (size_t)bytes);
        ra_comm_beat(source->comm); /* a disk may be slow, and the others wait */
    }
    return status;
}

ra_status ra_tensor_source_read(const ra_tensor_source *source, const ra_config *config,
                                ra_tensor_name name, const ra_rowset *rows, int64_t batch_rows,
                                const ra_shard_memory *in, void *data, ra_nonfinite *found)
{
    bringing b = {source, config, name, rows, in, data, .batch_rows = batch_rows, .found = found};
    ra_status status = RA_OK;
    b.row_bytes = ra_tensor_row_bytes(config, name);
    RA_ASSERT(batch_rows >= rows->row_count && b.row_bytes > 0);
    if (rows->row_count == 0)
        return RA_OK;
    bool const is_host = ra_shard_is_host(in);
    int64_t const chunk_bytes = is_host ? RA_TENSOR_PIECE_BYTES : RA_SHARD_WINDOW_BYTES;
    b.chunk_rows = ra_min_i64(rows->row_count, ra_max_i64(1, chunk_bytes / b.row_bytes));
    if (!is_host) {
        status = ra_pool_alloc(in->staging, RA_MEM_IO, (size_t)(b.chunk_rows * b.row_bytes), NULL,
                               &b.staging);
    }
    for (int64_t batch = 0; batch < config->batch && status == RA_OK; ++batch)
        status = bring_batch(&b, batch);
    if (in != NULL)
        ra_pool_free(in->staging, NULL, &b.staging);
    return status;
}
