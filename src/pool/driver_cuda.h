/* The pool of a GPU's driver, for the memory of GPUs. */
#ifndef RINGATTN_POOL_DRIVER_CUDA_H
#define RINGATTN_POOL_DRIVER_CUDA_H

#include "ringattn/pool.h"

extern const ra_driver_ops ra_driver_cuda;

#endif
