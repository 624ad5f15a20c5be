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

#endif
