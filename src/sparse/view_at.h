/* Where a row of one head lies in a view: on CPUs and GPUs. */
#ifndef RINGATTN_VIEW_AT_H
#define RINGATTN_VIEW_AT_H

#include "ringattn/kernel.h"
#include "sparse/host_device.h"

/* In elements from the view's data. */
RA_HD int64_t ra_view_at(const ra_view *view, int64_t batch, int64_t row, int64_t head)
{
    return batch * view->batch_stride + row * view->row_stride + head * view->head_stride;
}

/* Whether every row begins at a multiple of the bytes of so many elements. */
static inline bool ra_view_is_aligned(const ra_view *view, int64_t elements)
{
    int64_t const bytes = elements * (int64_t)ra_dtype_bytes(view->dtype);
    return (uintptr_t)view->data % (uintptr_t)bytes == 0 && view->batch_stride % elements == 0 &&
           view->row_stride % elements == 0 && view->head_stride % elements == 0;
}

#endif
