#include "sparse/cpu/dtype_bits.h"

size_t ra_dtype_bytes(ra_dtype dtype)
{
    return dtype == RA_F32 ? 4 : 2;
}

const char *ra_dtype_name(ra_dtype dtype)
{
    switch (dtype) {
    case RA_F32:
        return "f32";
    case RA_F16:
        return "f16";
    case RA_BF16:
        return "bf16";
    }
    return "unknown";
}

float ra_dtype_load(ra_dtype dtype, const void *data, int64_t index)
{
    return dtype_load(dtype, data, index);
}

void ra_dtype_store(ra_dtype dtype, void *data, int64_t index, float value)
{
    dtype_store(dtype, data, index, value);
}

ra_view ra_view_dense(void *data, ra_dtype dtype, int64_t rows, int64_t heads, int64_t dim,
                      int64_t head_begin)
{
    size_t const skip = ra_dtype_bytes(dtype) * (size_t)(head_begin * dim);
    return (ra_view){.data = data == NULL ? NULL : (char *)data + skip,
                     .dtype = dtype,
                     .batch_stride = rows * heads * dim,
                     .row_stride = heads * dim,
                     .head_stride = dim};
}
