/*
 * Sweeps over failures that take a moment each: of every so many calls one fails, from a start that
 * differs from run to run, so that all have their turn in time. With RA_TEST_EVERY=1 none is left
 * out; RA_TEST_START=N, which a failure prints, repeats a run; launch/test.sh derives it from the
 * sources.
 */
#ifndef RINGATTN_TESTS_THIN_SWEEP_H
#define RINGATTN_TESTS_THIN_SWEEP_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct thin_sweep {
    long every, skipped; /* calls from one failure to the next, and before the first: fewer */
    char text[64];
} thin_sweep;

static inline thin_sweep thin_sweep_begin(long usual_every)
{
    const char *const every = getenv("RA_TEST_EVERY"), *const given = getenv("RA_TEST_START");
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned long const start =
        given != NULL ? strtoul(given, NULL, 10) : (unsigned long)now.tv_nsec / 1000;
    thin_sweep sweep = {.every = every != NULL ? strtol(every, NULL, 10) : usual_every};
    sweep.every = sweep.every > 0 ? sweep.every : 1;
    sweep.skipped = (long)(start % (unsigned long)sweep.every);
    snprintf(sweep.text, sizeof(sweep.text), "RA_TEST_START=%lu", start);
    return sweep;
}

#endif
