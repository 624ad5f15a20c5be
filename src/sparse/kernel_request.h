/*
 * Private to src/sparse: what every kernel table refuses, in the same words. A function that does
 * not return RA_OK logs one line, "kernel NAME: …".
 */
#ifndef RINGATTN_KERNEL_REQUEST_H
#define RINGATTN_KERNEL_REQUEST_H

#include "ringattn/kernel.h"

/** Say what is wrong with a request; returns `status`. */
RA_CHECKED ra_status ra_kernel_refuse(const char *name, ra_status status, const char *what);

/** head_dim and counts of heads. @return RA_ERR_INVALID */
RA_CHECKED ra_status ra_kernel_validate_heads(const char *name, const ra_kernel_shape *shape);
/** The same, and that the kernel's workspace is large enough for softmax attention whose rows are
    not shared. @return RA_ERR_INVALID */
RA_CHECKED ra_status ra_kernel_validate_shape(const ra_kernel *kernel,
                                              const ra_kernel_shape *shape);
/** Tiles of more than `tile_rows` queries, and chunks that the scratch for shared rows does not
    hold. @return RA_ERR_INVALID */
RA_CHECKED ra_status ra_kernel_validate_map(const char *name, const ra_tilemap *map,
                                            int32_t tile_rows);
/** A step of several without its state, and steps of chunks if the table does not take them.
    @return RA_ERR_INVALID */
RA_CHECKED ra_status ra_kernel_validate_state(const ra_kernel *kernel, const ra_forward_step *step);

#endif
