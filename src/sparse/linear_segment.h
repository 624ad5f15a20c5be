/* Where a segment of linear attention begins: on CPUs and GPUs. */
#ifndef RINGATTN_LINEAR_SEGMENT_H
#define RINGATTN_LINEAR_SEGMENT_H

#include "ringattn/linear.h"
#include "sparse/host_device.h"

/* Its first row; of the segment behind the last, `rows`. All but the last few are whole chunks. */
RA_HD int64_t ra_linear_segment_begin(int64_t rows, int32_t segments, int32_t segment)
{
    int64_t const chunks = (rows + RA_LINEAR_CHUNK - 1) / RA_LINEAR_CHUNK;
    int64_t const begin = chunks * segment / segments * RA_LINEAR_CHUNK;
    return begin < rows ? begin : rows;
}

#endif
