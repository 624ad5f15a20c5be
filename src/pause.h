/* Pauses between two looks of a wait, so that others can use the core. */
#ifndef RINGATTN_SRC_PAUSE_H
#define RINGATTN_SRC_PAUSE_H

#include <stdint.h>

/**
 * For a wait that has lasted `waited_ns`: yields at first, then sleeps for a 64th of that, at most
 * 0.1 ms. From its first sleep on, timers wake the calling thread within 1 us of their time, where
 * Linux lets them be 50 us late unless told otherwise.
 */
void ra_pause(int64_t waited_ns);

#endif
