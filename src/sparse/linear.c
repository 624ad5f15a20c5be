/* Linear attention: sizes. */
#include "ringattn/linear.h"
#include "internal.h"

/* Fewer rows than this are not worth another state. */
enum { SEGMENT_ROWS_MIN = 4 * RA_LINEAR_CHUNK, TASKS_PER_THREAD = 4 };

const char *ra_linear_method_name(ra_linear_method method)
{
    static const char *const names[] = {"chunked", "recurrent", "cumsum"};
    RA_ASSERT((size_t)method <= RA_LINEAR_CUMSUM);
    return names[method];
}

int64_t ra_linear_state_floats(int32_t dim)
{
    return (int64_t)dim * (dim + 1);
}

int32_t ra_linear_segments(int64_t batch, int32_t kv_heads, int64_t rows, int threads)
{
    int64_t const heads = batch * kv_heads, wanted = (int64_t)TASKS_PER_THREAD * threads;
    if (threads == 1 || heads >= wanted || heads % threads == 0)
        return 1;
    return (int32_t)ra_max_i64(1, ra_min_i64(ra_div_ceil(wanted, heads), rows / SEGMENT_ROWS_MIN));
}
