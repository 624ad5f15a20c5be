/*
 * A rank's shard of the job's tensors: from a file or drawn at random by global index, and back
 * to a file. Each rank reads and writes its own rows only.
 */
#ifndef RINGATTN_TOOL_TENSORS_H
#define RINGATTN_TOOL_TENSORS_H

#include "config.h"
#include "safetensors.h"
#include "shard.h"

typedef enum ra_tensor_name { RA_TENSOR_Q, RA_TENSOR_K, RA_TENSOR_V, RA_TENSOR_DO } ra_tensor_name;
enum { RA_TENSOR_NAMES = RA_TENSOR_DO + 1 };

/** Query heads for q and do, kv heads for k and v. */
static inline int32_t ra_tensor_heads(const ra_config *config, ra_tensor_name name)
{
    return name == RA_TENSOR_K || name == RA_TENSOR_V ? config->kv_heads : config->heads;
}

/** Bytes of one row, all heads together; also of a row of o and of the gradients. */
static inline int64_t ra_tensor_row_bytes(const ra_config *config, ra_tensor_name name)
{
    return ra_tensor_heads(config, name) * (int64_t)config->head_dim *
           (int64_t)ra_dtype_bytes(config->dtype);
}

/**
 * The floor: bytes per token, over the batch, of q, k, v and o, and with backward of do, the
 * gradients and, but for linear attention, lse: what no method avoids.
 */
static inline int64_t ra_floor_row_bytes(const ra_config *config)
{
    int64_t const forward =
        2 * ra_tensor_row_bytes(config, RA_TENSOR_Q) + 2 * ra_tensor_row_bytes(config, RA_TENSOR_K);
    bool const has_lse = config->backward && ra_config_linear(config) == RA_LINEAR_NONE;
    return config->batch * (forward + (config->backward ? forward : 0) +
                            (has_lse ? config->heads * (int64_t)sizeof(float) : 0));
}

/* Where inputs come from: the same answers on every rank. */
typedef struct ra_tensor_source ra_tensor_source;

/**
 * With config->input: open it, check q, k, v (and do if backward) for shape and dtype, and set
 * shape and dtype of *config from the file; keys that were given must match (RA_ERR_IO otherwise).
 * For `kind: list`, `blocks` (I32 [n, 2]) is read and becomes config->pattern.block_pairs, owned
 * by the source. Without input: random, standard normal, from job.seed, drawn by `threads` (>= 1)
 * threads of OpenMP; how many they are changes no value. `pool` is borrowed until close; staging
 * for reads that are not contiguous comes from it (io, RA_TENSOR_STAGING_BYTES).
 *
 * Logs its line on whichever rank calls it: ranks open together, with the console held.
 */
RA_CHECKED ra_status ra_tensor_source_open(ra_config *config, ra_pool *pool, int threads,
                                           ra_tensor_source **source_out);
void ra_tensor_source_close(ra_tensor_source *source); /* NULL is fine */
/**
 * Collective: RA_ERR_IO, after one line, if a rank has opened another file than rank 0. Shapes and
 * places of tensors and the pairs of blocks are compared whole, and 32 KiB of each tensor's data.
 * `comm` is borrowed until close: from now on reading sends heartbeats to it, so the source belongs
 * to the thread that uses it.
 */
RA_CHECKED ra_status ra_tensor_source_agree(ra_tensor_source *source, ra_comm *comm);

/* Elements that are no numbers; they are computed on, and said. */
typedef struct ra_nonfinite {
    int64_t nan_count, inf_count;
} ra_nonfinite;

/** Collective: the sums over all ranks, in *found. */
RA_CHECKED ra_status ra_nonfinite_sum(ra_comm *comm, const char *operation, ra_nonfinite *found);

/**
 * Read the rows of `rows`, in their order, as [batch, rows, heads, dim] of config's dtype. A batch
 * begins batch_rows rows after the one before, which are at least as many as `rows` has.
 *
 * @param in     where `data` lies; NULL: host memory. If the host does not reach it, rows come
 *               there through a block of RA_SHARD_WINDOW_BYTES, or of one row that is longer
 * @param found  what is not finite is added to it; may be NULL
 */
RA_CHECKED ra_status ra_tensor_source_read(const ra_tensor_source *source, const ra_config *config,
                                           ra_tensor_name name, const ra_rowset *rows,
                                           int64_t batch_rows, const ra_shard_memory *in,
                                           void *data, ra_nonfinite *found);
/** The same for local numbers [first, first + count) of one batch, dense, to host memory. */
RA_CHECKED ra_status ra_tensor_source_read_part(const ra_tensor_source *source,
                                                const ra_config *config, ra_tensor_name name,
                                                const ra_rowset *rows, int64_t batch, int64_t first,
                                                int64_t count, void *data);
enum { RA_TENSOR_STAGING_BYTES = 8 << 20 };
/**
 * How many rows of a file at a stride are read at a time, with the gaps between, through a block of
 * RA_TENSOR_STAGING_BYTES. 1: each row is read by itself, without such a block.
 */
int64_t ra_tensor_rows_at_once(int64_t row_bytes, int64_t stride);
/* Memory for reading several rows of a file at once, all heads together; borrowed. */
typedef struct ra_tensor_staging {
    void *data;
    int64_t bytes; /* less than two rows: they are read one by one */
} ra_tensor_staging;

/** Rows [row_begin, row_begin + row_count) of one batch and head, as float64 [row_count, dim]. */
RA_CHECKED ra_status ra_tensor_source_rows(const ra_tensor_source *source, const ra_config *config,
                                           ra_tensor_name name, int64_t batch, int32_t head,
                                           int64_t row_begin, int64_t row_count,
                                           ra_tensor_staging staging, double *values);

/* Shard tensors of a finished job; NULL where a rank has no rows. */
typedef struct ra_result_tensors {
    const void *o;                 /* [batch, n, heads, dim] */
    const float *lse;              /* [batch, heads, n]; linear attention has none, nor has a job of
                                      which nobody was to read it */
    const void *dq, *dk, *dv;      /* backward */
    const ra_shard_memory *memory; /* of all of them, borrowed; NULL: the host reaches them */
} ra_result_tensors;

/**
 * Collective. Write config->output from all ranks' shards: rank 0 creates a temporary file, all
 * write their own rows and fsync, rank 0 renames. Every rank returns the same status. If it is not
 * RA_OK, one rank has logged one line, and there is no output file, or a whole one whose folder
 * could not be flushed. *found_out: what is not finite in all ranks' results but for lse.
 */
RA_CHECKED ra_status ra_result_write(const ra_config *config, ra_comm *comm, const ra_rowset *rows,
                                     const ra_result_tensors *results, ra_nonfinite *found_out);

/** Add NaN and infinite elements to *found, counted by so many threads. */
void ra_tensor_count_nonfinite(ra_dtype dtype, const void *data, int64_t count, int threads,
                               ra_nonfinite *found);

#endif
