/* Linear attention: sizes, and the rows of a segment. */
#include "ringattn/linear.h"
#include "internal.h"

/* Fewer rows than this are not worth another state. */
enum { SEGMENT_ROWS_MIN = 4 * RA_LINEAR_CHUNK, TASKS_PER_THREAD = 4 };

const char *ra_linear_method_name(ra_linear_method method)
{
    static const char *const names[] = {"chunked", "recurrent", "cumsum"};
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

void ra_linear_segment_rows(int64_t rows, int32_t segments, int32_t segment, int64_t *begin_out,
                            int64_t *end_out)
{
    int64_t const chunks = ra_div_ceil(rows, RA_LINEAR_CHUNK);
    int64_t const begin = chunks * segment / segments, end = chunks * (segment + 1) / segments;
    *begin_out = ra_min_i64(begin * RA_LINEAR_CHUNK, rows);
    *end_out = ra_min_i64(end * RA_LINEAR_CHUNK, rows);
}
