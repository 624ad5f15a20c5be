/* `compute.backend`: what computes, and why not a GPU. */
#ifndef RINGATTN_TOOL_BACKEND_H
#define RINGATTN_TOOL_BACKEND_H

#include "config.h"

#include "ringattn/device.h"

typedef enum ra_backend { RA_BACKEND_AUTO, RA_BACKEND_CPU, RA_BACKEND_CUDA } ra_backend;

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

/** "cuda" of ra_machine_json: versions, devices, and why not; NULL: no memory. */
json_t *ra_machine_cuda_json(void);
/** The same in one line for people. */
const char *ra_devices_text(const ra_devices *devices, char *text, size_t bytes);

#endif
