/* Where inputs come from: opening a source and checking the file against the configuration. */
#include "tensor_source.h"

#include "config_table.h"
#include "internal.h"
#include "safetensors_header.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[RA_TENSOR_NAMES] = {"q", "k", "v", "do"};
static const char *const dtype_texts[] = {[RA_F32] = "F32", [RA_F16] = "F16", [RA_BF16] = "BF16"};

const char *ra_tensor_dtype_text(ra_dtype dtype)
{
    return dtype_texts[dtype];
}

/* Find the dtype that a file calls `text`; false: it is none of ours. */
static bool dtype_find(const char *text, ra_dtype *dtype_out)
{
    for (int i = 0; i <= RA_BF16; ++i)
        if (strcmp(text, dtype_texts[i]) == 0) {
            *dtype_out = (ra_dtype)i;
            return true;
        }
    return false;
}

/* What is wrong with a tensor of the input file. */
#define refuse(source, ...) ra_file_refuse(ra_tensor_file_path((source)->file), __VA_ARGS__)

/* ---- shapes ---------------------------------------------------------------------------------- */

enum { AXES = 4 };

static const struct {
    const char *name, *key;
    const char *remedy; /* if a file has more than the key may be */
} axes[AXES] = {{"batch", "shape.batch", "split the batch"},
                {"seq", "shape.seq", "give shorter sequences"},
                {"heads", "shape.heads", "split the job by heads"},
                {"head_dim", "shape.head_dim", "split the heads"}};

static ra_status find_tensor(ra_tensor_source *source, ra_tensor_name name, ra_dtype *dtype_out)
{
    const ra_tensor_info *info = ra_tensor_file_find(source->file, names[name]);
    if (info == NULL)
        return refuse(source, names[name],
                      name == RA_TENSOR_DO ? "add it, or leave out backward" : "add it to the file",
                      "the tensor is missing");
    if (!dtype_find(info->dtype, dtype_out))
        return refuse(source, names[name], "store it as F32, F16 or BF16", "its dtype is %s",
                      info->dtype);
    if (info->dims != AXES)
        return refuse(source, names[name], "store it as [batch, seq, heads, head_dim]",
                      "it has %d dimensions, not 4", info->dims);
    if (info->bytes == 0)
        return refuse(source, names[name], "give at least one row", "it has no elements");
    source->infos[name] = info;
    return RA_OK;
}

/* All but the heads must be those of q. */
static ra_status check_against_q(const ra_tensor_source *source, ra_tensor_name name)
{
    const ra_tensor_info *q = source->infos[RA_TENSOR_Q], *info = source->infos[name];
    const ra_tensor_info *like = name == RA_TENSOR_DO ? q : source->infos[RA_TENSOR_K];
    if (strcmp(info->dtype, q->dtype) != 0)
        return refuse(source, names[name], "store all inputs in one dtype",
                      "its dtype is %s, q's is %s", info->dtype, q->dtype);
    for (int axis = 0; axis < AXES; ++axis) {
        const ra_tensor_info *other = axis == 2 ? like : q;
        if (info->shape[axis] != other->shape[axis])
            return refuse(source, names[name], "make the shapes agree",
                          "its %s is %" PRId64 ", that of '%s' is %" PRId64, axes[axis].name,
                          info->shape[axis], other->name, other->shape[axis]);
    }
    return RA_OK;
}

static ra_status check_shapes(const ra_tensor_source *source, bool backward)
{
    const ra_tensor_info *q = source->infos[RA_TENSOR_Q], *k = source->infos[RA_TENSOR_K];
    for (int axis = 0; axis < AXES; ++axis) {
        int64_t const most = ra_config_keys[ra_config_key_find(axes[axis].key)].max;
        if (q->shape[axis] > most)
            return refuse(source, "q", axes[axis].remedy,
                          "its %s is %" PRId64 ", more than %" PRId64, axes[axis].name,
                          q->shape[axis], most);
    }
    for (int name = RA_TENSOR_K; name <= (backward ? RA_TENSOR_DO : RA_TENSOR_V); ++name) {
        ra_status const status = check_against_q(source, (ra_tensor_name)name);
        if (status != RA_OK)
            return status;
    }
    if (q->shape[2] % k->shape[2] != 0)
        return refuse(source, "k", "make the heads of q a multiple of those of k and v",
                      "it has %" PRId64 " heads, which do not divide the %" PRId64 " of q",
                      k->shape[2], q->shape[2]);
    return RA_OK;
}

/* ---- the configuration ----------------------------------------------------------------------- */

static ra_status check_key(const ra_tensor_source *source, const ra_config *config, const char *key,
                           const char *tensor, int64_t given, int64_t found)
{
    if (ra_config_was_given(config, key) && given != 0 && given != found) /* 0: auto */
        return refuse(source, tensor, "change the key or leave it out, the file decides",
                      "%s is %" PRId64 ", but the tensor has %" PRId64, key, given, found);
    return RA_OK;
}

/* Keys that were given must be what the file holds; then the file's shape is the job's. */
static ra_status adopt_shape(const ra_tensor_source *source, ra_dtype dtype, ra_config *config)
{
    const int64_t *q = source->infos[RA_TENSOR_Q]->shape, *k = source->infos[RA_TENSOR_K]->shape;
    const struct {
        const char *key, *tensor;
        int64_t given, found;
    } keys[] = {{"shape.batch", "q", config->batch, q[0]},
                {"shape.seq", "q", config->seq, q[1]},
                {"shape.heads", "q", config->heads, q[2]},
                {"shape.kv_heads", "k", config->kv_heads, k[2]},
                {"shape.head_dim", "q", config->head_dim, q[3]}};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); ++i) {
        ra_status const status =
            check_key(source, config, keys[i].key, keys[i].tensor, keys[i].given, keys[i].found);
        if (status != RA_OK)
            return status;
    }
    if (ra_config_was_given(config, "shape.dtype") && config->dtype != dtype)
        return refuse(source, "q", "change the key or leave it out, the file decides",
                      "shape.dtype is %s, but the tensor is %s", ra_dtype_name(config->dtype),
                      ra_dtype_name(dtype));
    config->batch = q[0];
    config->seq = q[1];
    config->heads = (int32_t)q[2];
    config->kv_heads = (int32_t)k[2];
    config->head_dim = (int32_t)q[3];
    config->dtype = dtype;
    return RA_OK;
}

/* ---- block pairs ----------------------------------------------------------------------------- */

static ra_status check_pairs(const ra_tensor_source *source, const ra_config *config,
                             const int32_t (*pairs)[2], int64_t count)
{
    int64_t const blocks = ra_div_ceil(config->seq, config->pattern.block_size);
    for (int64_t i = 0; i < count; ++i)
        for (int side = 0; side < 2; ++side)
            if (pairs[i][side] < 0 || pairs[i][side] >= blocks)
                return refuse(source, "blocks",
                              "number blocks from 0, of pattern.blocks.size tokens each",
                              "pair %" PRId64 " is [%d, %d], but there are %" PRId64 " blocks", i,
                              pairs[i][0], pairs[i][1], blocks);
    return RA_OK;
}

static ra_status read_pairs(ra_tensor_source *source, ra_config *config)
{
    const ra_tensor_info *info = ra_tensor_file_find(source->file, "blocks");
    if (info == NULL)
        return refuse(source, "blocks", "add it, or choose another pattern.blocks.kind",
                      "the tensor is missing");
    if (strcmp(info->dtype, "I32") != 0 || info->dims != 2 || info->shape[1] != 2)
        return refuse(source, "blocks", "store pairs of query block and key block",
                      "it is not I32 of shape [n, 2]");
    ra_status status =
        ra_pool_alloc(source->pool, RA_MEM_IO, (size_t)info->bytes, NULL, &source->pairs);
    if (status != RA_OK)
        return status;
    status = ra_tensor_read(source->file, info, 0, source->pairs.data, (size_t)info->bytes);
    if (status != RA_OK)
        return status;
    const int32_t(*pairs)[2] = source->pairs.data;
    status = check_pairs(source, config, pairs, info->shape[0]);
    if (status != RA_OK)
        return status;
    config->pattern.block_pairs = pairs;
    config->pattern.block_pair_count = info->shape[0];
    return RA_OK;
}

/* ---- open and close -------------------------------------------------------------------------- */

static ra_status open_file(ra_config *config, ra_tensor_source *source)
{
    ra_dtype dtype = RA_F32, ignored;
    ra_status status = ra_tensor_file_open(config->input, &source->file);
    if (status == RA_OK)
        status = find_tensor(source, RA_TENSOR_Q, &dtype);
    if (status == RA_OK)
        status = find_tensor(source, RA_TENSOR_K, &ignored);
    if (status == RA_OK)
        status = find_tensor(source, RA_TENSOR_V, &ignored);
    if (status == RA_OK && config->backward)
        status = find_tensor(source, RA_TENSOR_DO, &ignored);
    if (status == RA_OK)
        status = check_shapes(source, config->backward);
    if (status == RA_OK)
        status = adopt_shape(source, dtype, config);
    if (status == RA_OK && config->pattern.blocks_kind == RA_BLOCKS_LIST)
        status = read_pairs(source, config);
    return status;
}

ra_status ra_tensor_source_open(ra_config *config, ra_pool *pool, int threads,
                                ra_tensor_source **source_out)
{
    RA_ASSERT(threads >= 1);
    ra_tensor_source *source = calloc(1, sizeof(*source));
    if (source == NULL)
        return ra_refuse_memory("the inputs");
    source->pool = pool;
    source->threads = threads;
    ra_status const status = config->input != NULL ? open_file(config, source) : RA_OK;
    if (status != RA_OK) {
        ra_tensor_source_close(source);
        return status;
    }
    *source_out = source;
    return RA_OK;
}

void ra_tensor_source_close(ra_tensor_source *source)
{
    if (source == NULL)
        return;
    ra_pool_free(source->pool, NULL, &source->pairs);
    ra_tensor_file_close(source->file);
    free(source);
}
