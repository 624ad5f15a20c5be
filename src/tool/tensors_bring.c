/* Brings inputs to the kernel's memory: in place, or chunk by chunk through host memory. */
#include "tensor_source.h"

#include "internal.h"

#include <string.h>

/* A tensor's rows in transfer: [batch, batch_rows, row_bytes] in a shard. */
typedef struct bringing {
    const ra_shard_memory *in;
    char *data;
    int64_t row_bytes, rows, batch_rows;
    int64_t chunk_rows; /* most that are brought at a time */
    ra_block staging;   /* of so many rows; empty if the host reaches the shard */
} bringing;

/* Fill `count` rows of a batch, `first` and on, at `to` in host memory. */
typedef ra_status make_rows(void *context, int64_t batch, int64_t first, int64_t count, void *to);

static ra_status bring_batch(bringing *b, int64_t batch, make_rows *make, void *context)
{
    char *const begin = b->data + batch * b->batch_rows * b->row_bytes;
    for (int64_t first = 0; first < b->rows; first += b->chunk_rows) {
        int64_t const count = ra_min_i64(b->chunk_rows, b->rows - first);
        char *const to = begin + first * b->row_bytes;
        bool const direct = b->staging.data == NULL;
        ra_status status = make(context, batch, first, count, direct ? to : b->staging.data);
        if (status == RA_OK && !direct)
            status = ra_memory_write(&b->in->memory, b->in->stream, to, b->staging.data,
                                     (size_t)(count * b->row_bytes));
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

static ra_status bring(bringing *b, int64_t batches, make_rows *make, void *context)
{
    ra_status status = RA_OK;
    RA_ASSERT(b->batch_rows >= b->rows && b->row_bytes > 0);
    if (b->rows == 0)
        return RA_OK;
    b->chunk_rows = b->rows;
    if (!ra_shard_is_host(b->in)) {
        int64_t const fit = ra_max_i64(1, RA_SHARD_WINDOW_BYTES / b->row_bytes);
        b->chunk_rows = ra_min_i64(b->rows, fit);
        status = ra_pool_alloc(b->in->staging, RA_MEM_IO, (size_t)(b->chunk_rows * b->row_bytes),
                               NULL, &b->staging);
    }
    for (int64_t batch = 0; batch < batches && status == RA_OK; ++batch)
        status = bring_batch(b, batch, make, context);
    if (b->in != NULL)
        ra_pool_free(b->in->staging, NULL, &b->staging);
    return status;
}

/* ---- from a source --------------------------------------------------------------------------- */

typedef struct reading {
    const ra_tensor_source *source;
    const ra_config *config;
    ra_tensor_name name;
    const ra_rowset *rows;
    ra_nonfinite found;
} reading;

static ra_status read_rows(void *context, int64_t batch, int64_t first, int64_t count, void *to)
{
    reading *r = context;
    int64_t const elements =
        count * ra_tensor_heads(r->config, r->name) * (int64_t)r->config->head_dim;
    ra_status const status =
        ra_tensor_source_read_part(r->source, r->config, r->name, r->rows, batch, first, count, to);
    if (status != RA_OK || r->source->file == NULL) /* what is drawn is finite */
        return status;
    ra_tensor_count_nonfinite(r->config->dtype, to, elements, r->source->threads, &r->found);
    return RA_OK;
}

static bringing begin(const ra_config *config, ra_tensor_name name, int64_t rows,
                      int64_t batch_rows, const ra_shard_memory *in, void *data)
{
    int64_t const element = (int64_t)ra_dtype_bytes(config->dtype);
    return (bringing){.in = in,
                      .data = data,
                      .row_bytes = ra_tensor_heads(config, name) * config->head_dim * element,
                      .rows = rows,
                      .batch_rows = batch_rows};
}

ra_status ra_tensor_source_read(const ra_tensor_source *source, const ra_config *config,
                                ra_tensor_name name, const ra_rowset *rows, int64_t batch_rows,
                                const ra_shard_memory *in, void *data, ra_nonfinite *found)
{
    reading context = {source, config, name, rows, {0, 0}};
    bringing b = begin(config, name, rows->row_count, batch_rows, in, data);
    ra_status const status = bring(&b, config->batch, read_rows, &context);
    if (found != NULL) {
        found->nan_count += context.found.nan_count;
        found->inf_count += context.found.inf_count;
    }
    return status;
}

/* ---- a value --------------------------------------------------------------------------------- */

/* A byte that gives a finite number in every dtype: about 0.01, and 1.06 for f16. */
enum { FILL_BYTE = 0x3c };

static ra_status fill_rows(void *context, int64_t batch, int64_t first, int64_t count, void *to)
{
    const int64_t *row_bytes = context;
    (void)batch, (void)first;
    memset(to, FILL_BYTE, (size_t)(count * *row_bytes));
    return RA_OK;
}

ra_status ra_tensor_fill(const ra_config *config, ra_tensor_name name, int64_t rows,
                         int64_t batch_rows, const ra_shard_memory *in, void *data)
{
    bringing b = begin(config, name, rows, batch_rows, in, data);
    return bring(&b, config->batch, fill_rows, &b.row_bytes);
}
