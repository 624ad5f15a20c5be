/* `compute.backend`: what computes, and why not a GPU. */
#ifndef RINGATTN_TOOL_BACKEND_H
#define RINGATTN_TOOL_BACKEND_H

#include "config.h"

#include "ringattn/device.h"
#include "ringattn/kernel_check.h"

enum { RA_BACKEND_NOTE_MAX = 320 };

/**
 * Choose for this rank, and say in `note_out` why auto takes the CPU; "" where nothing is to be
 * said, as in a build without CUDA or where the CPU was asked for.
 *
 * @param ranks        of the job
 * @param backend_out  RA_BACKEND_CPU or RA_BACKEND_CUDA
 * @return RA_ERR_CONFIG  cuda was asked for and cannot be had; one line was logged
 */
RA_CHECKED ra_status ra_backend_choose(const ra_config *config, int ranks, ra_backend *backend_out,
                                       char note_out[RA_BACKEND_NOTE_MAX]);

/** Whether a GPU could do the job, of which none has to be there: what ra_backend_choose refuses
    besides, in its words. Nothing is refused unless cuda was asked for. */
RA_CHECKED ra_status ra_backend_check(const ra_config *config, int ranks);

/** What a job takes of a kernel, whose check may take so many threads; all its keys are known. */
ra_kernel_use ra_backend_use(const ra_config *config, int threads);

/** The same of a job on so many ranks, with what its maps take of kernels. */
ra_kernel_use ra_job_kernel_use(const ra_config *config, int ranks, int threads);

/**
 * Whether the GPU in use (ra_device_use) has what the kernels of a job take, all keys of which are
 * known; where not, one sentence in why_not.
 */
bool ra_backend_gpu_serves(const ra_config *config, char why_not[RA_BACKEND_NOTE_MAX]);
/** Whether the CPU may compute where a GPU cannot: neither cuda nor nccl was asked for. */
bool ra_backend_may_be_cpu(const ra_config *config);
/** RA_ERR_CONFIG: else, say in one line which key cannot be as it is, and why no GPU computes. */
RA_CHECKED ra_status ra_backend_refuse(const ra_config *config, const char *why);

/** "cuda" of ra_machine_json: versions, devices, and why not; NULL: no memory. */
json_t *ra_machine_cuda_json(void);
/** The same in one line for people. */
const char *ra_devices_text(const ra_devices *devices, char *text, size_t bytes);

#endif
