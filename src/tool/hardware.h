/* Machines in numbers, for `ringattn plan`: from a file, or from what `bench` has measured. */
#ifndef RINGATTN_TOOL_HARDWARE_H
#define RINGATTN_TOOL_HARDWARE_H

#include "ringattn/predict.h"

/**
 * Read a hardware file (configs/hardware). What was wrong is one logged line with the place,
 * what is allowed and the nearest name.
 * @return RA_ERR_CONFIG, RA_ERR_IO, RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_hardware_load(const char *path, ra_hardware *hardware_out);

/** Whether a hardware file could hold what was learned from the report at `path`; RA_ERR_IO,
   logged: a number is beyond its key's range. */
RA_CHECKED ra_status ra_hardware_check(const char *path, const ra_hardware *hardware);

/** Write one that ra_hardware_load reads back; `comment` is its first line. RA_ERR_IO, logged. */
RA_CHECKED ra_status ra_hardware_save(const char *path, const char *comment,
                                      const ra_hardware *hardware);

/**
 * This machine's speeds from the points of a `bench --json` file that ran on one rank: for each
 * kind, dtype and pass, the terms of ra_pass_speed that fit the measured medians best, none of them
 * negative, in squares of relative errors; what was not measured becomes unknown. Overwrites peaks,
 * speeds, threads, the bandwidth of memory and the cache in *hardware, no more. If a GPU has
 * computed points of flash attention, it is the machine: nothing else is learned, and instead of
 * threads, bandwidth and cache its multiprocessors and compute capability are overwritten. If none
 * has, what *hardware says of GPUs becomes unknown.
 * @param comm  of a rank that does it while the others wait; NULL: none do
 * @return RA_ERR_IO (unreadable, not such a file, no point to learn from, numbers that no machine
 *         has), RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_hardware_calibrate(const char *path, ra_comm *comm, ra_hardware *hardware);

#endif
