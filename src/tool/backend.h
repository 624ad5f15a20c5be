/* `compute.backend`: what computes, and why not a GPU. */
#ifndef RINGATTN_TOOL_BACKEND_H
#define RINGATTN_TOOL_BACKEND_H

#include "config.h"

#include "ringattn/device.h"
#include "ringattn/kernel_check.h"
#include "ringattn/predict.h"

enum { RA_BACKEND_NOTE_MAX = 320, RA_BACKEND_TEXT_MAX = RA_BACKEND_NOTE_MAX + 160 };

/**
 * Choose for this rank. `note_out` says why auto takes the CPU; "" if there is nothing to say, as
 * in a build without CUDA or if the CPU was requested.
 *
 * @param ranks        of the job
 * @param backend_out  RA_BACKEND_CPU or RA_BACKEND_CUDA
 * @return RA_ERR_CONFIG  cuda was asked for and cannot be had; one line was logged
 */
RA_CHECKED ra_status ra_backend_choose(const ra_config *config, int ranks, ra_backend *backend_out,
                                       char note_out[RA_BACKEND_NOTE_MAX]);

/* What computes. */
typedef struct ra_backend_gpu {
    const ra_device *device; /* borrowed; NULL: the CPU */
    int index;
    int sharers;     /* ranks that compute on it */
    int sharers_max; /* on the GPU of the job that most ranks have */
} ra_backend_gpu;

/**
 * "GPU 0: NAME", with how many ranks share it if they do; "the CPU: why no GPU computes", or "the
 * CPU" if there is nothing to say.
 *
 * @param note  why no GPU computes; NULL or "": there is nothing to say
 * @return `text`
 */
const char *ra_backend_describe(const ra_backend_gpu *gpu, const char *note,
                                char text[RA_BACKEND_TEXT_MAX]);

/** What a job on `ranks` ranks, and its tile maps, use of a kernel, whose check may take `threads`
    threads. All keys are known. */
ra_kernel_use ra_job_kernel_use(const ra_config *config, int ranks, int threads);

/** The table with which a GPU computes the job unless another one suits it better; NULL: this build
    lacks it. */
const ra_kernel_ops *ra_backend_gpu_table(const ra_config *config);

/**
 * As ra_backend_choose for the machine that is described: auto takes its GPUs, if it has any and
 * this build's kernels do the job on them. `note_out` says why the CPU is planned though it has, or
 * is "". Without a description the CPU.
 */
RA_CHECKED ra_status ra_backend_choose_there(const ra_config *config, int ranks,
                                             const ra_hardware *hardware, ra_backend *backend_out,
                                             char note_out[RA_BACKEND_NOTE_MAX]);

/** Whether a table runs on the GPU that is described, by its compute capability. */
bool ra_backend_gpu_runs(const ra_kernel_ops *ops, const ra_hardware *hardware);

/**
 * Whether a table computes the job in a way of its own, and the GPU can run it.
 * @param hardware  the GPU is the one described there; NULL, or without multiprocessors: it is the
 *                  one in use, as for ra_backend_gpu_serves
 */
bool ra_backend_gpu_suits(const ra_config *config, const ra_kernel_ops *ops,
                          const ra_hardware *hardware);

/**
 * Whether the GPU in use (ra_device_use), or the first usable one if none is, can run a job's
 * kernels; if not, why_not says why in one sentence. All keys of the job are known.
 */
bool ra_backend_gpu_serves(const ra_config *config, char why_not[RA_BACKEND_NOTE_MAX]);
/** Whether the CPU may compute if a GPU cannot: neither cuda nor nccl was requested. */
bool ra_backend_may_be_cpu(const ra_config *config);
/** RA_ERR_CONFIG: log which key needs a GPU, and why none computes, in one line. */
RA_CHECKED ra_status ra_backend_refuse(const ra_config *config, const char *why);

#endif
