/* Points of reports, as `run` and `plan` write them. */
#ifndef RINGATTN_TESTS_PLAN_POINTS_H
#define RINGATTN_TESTS_PLAN_POINTS_H

#include <jansson.h>

/** The only point of the report that a command leaves in a file; the caller frees it. A command
 *  that fails, fails the test. `ranks`: 0 without mpirun. */
json_t *plan_point_of(int ranks, const char *arguments);

#endif
