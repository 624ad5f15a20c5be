/* This machine and this build: `ringattn info`, and the "machine" of every JSON report. */
#ifndef RINGATTN_TOOL_TOOL_INFO_H
#define RINGATTN_TOOL_TOOL_INFO_H

#include "ringattn/device.h"
#include "ringattn/topology.h"

#include <jansson.h>

/**
 * This process's host: processors, memory, limits, backends, libraries. Unknown values are null.
 * NULL: no memory. The caller owns it.
 */
json_t *ra_machine_json(void);
/** The same for who has read the topology; NULL: it is not known. */
json_t *ra_machine_json_of(const ra_topology *topology);

/** Members about MPI, for ra_machine_json. */
json_t *ra_machine_mpi_json(void);
/** The member "cuda" of ra_machine_json: versions, devices, or why none serves; NULL: no memory. */
json_t *ra_machine_cuda_json(void);
/** The same in one line for people, but for the devices; returns `text`. */
const char *ra_devices_text(const ra_devices *devices, char *text, size_t bytes);
/** One of them: "GPU 0: NAME (9.0, 80.0 GiB, 132 multiprocessors), kernels cuda-sm_90a cuda", in
    the order in which compute.isa: auto prefers these, and after them what is taken by name alone;
    returns `text`. */
const char *ra_device_text(const ra_devices *devices, int index, char *text, size_t bytes);

#endif
