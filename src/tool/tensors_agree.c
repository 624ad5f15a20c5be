/* Whether all ranks have opened the same input file: a copy on a node's own disk may be stale. */
#include "tensor_source.h"

#include "console.h"
#include "internal.h"
#include "safetensors_header.h"

#include <string.h>
#include <xxhash.h>

enum { SAMPLES = 8, SAMPLE_BYTES = 4096 };

static const char operation[] = "comparing the input files";

static uint64_t add_bytes(uint64_t hash, const void *data, size_t bytes)
{
    return XXH3_64bits_withSeed(data, bytes, hash);
}

/* A tensor's place and shape, and samples of its data, the first and the last bytes among them. */
static ra_status add_tensor(const ra_tensor_file *file, const ra_tensor_info *info, uint64_t *hash)
{
    char data[SAMPLE_BYTES];
    int64_t const bytes = ra_min_i64(info->bytes, SAMPLE_BYTES), rest = info->bytes - bytes;
    int64_t const place[] = {info->offset, info->bytes, info->dims};
    *hash = add_bytes(*hash, place, sizeof(place));
    *hash = add_bytes(*hash, info->shape, (size_t)info->dims * sizeof(info->shape[0]));
    *hash = add_bytes(*hash, info->dtype, strlen(info->dtype));
    for (int i = 0; i < (rest > 0 ? SAMPLES : 1); ++i) {
        int64_t const offset = ra_share_begin(rest, i, SAMPLES - 1);
        ra_status const status = ra_tensor_read(file, info, offset, data, (size_t)bytes);
        if (status != RA_OK)
            return status;
        *hash = add_bytes(*hash, data, (size_t)bytes);
    }
    return RA_OK;
}

static ra_status add_source(const ra_tensor_source *source, uint64_t *hash)
{
    ra_status status = RA_OK;
    for (int i = 0; i < RA_TENSOR_NAMES && status == RA_OK; ++i)
        if (source->infos[i] != NULL)
            status = add_tensor(source->file, source->infos[i], hash);
    if (status == RA_OK && source->pairs.bytes > 0) /* all: they decide what ranks send */
        *hash = add_bytes(*hash, source->pairs.data, source->pairs.bytes);
    return status;
}

static ra_status compare(const ra_tensor_source *source, const ra_comm *comm, uint64_t mine,
                         uint64_t first)
{
    return mine == first ? RA_OK
                         : ra_file_refuse(ra_tensor_file_path(source->file), NULL,
                                          "give every rank the same file",
                                          "the input of rank %d on host %s is not that of rank 0",
                                          ra_comm_rank(comm), ra_comm_host(comm));
}

ra_status ra_tensor_source_agree(ra_tensor_source *source, ra_comm *comm)
{
    uint64_t mine = 0;
    source->comm = comm;
    if (source->file == NULL || ra_comm_size(comm) == 1)
        return RA_OK;
    ra_console_hold();
    ra_status status = ra_console_agree(comm, operation, add_source(source, &mine));
    uint64_t first = mine;
    if (status == RA_OK)
        status = ra_comm_broadcast(comm, operation, 0, &first, sizeof(first));
    if (status != RA_OK)
        return status;
    ra_console_hold();
    return ra_console_agree(comm, operation, compare(source, comm, mine, first));
}
