/* Run a program, under mpirun or not, with a time limit, and keep what it prints. */
#ifndef RINGATTN_TEST_LAUNCH_H
#define RINGATTN_TEST_LAUNCH_H

#include <stdbool.h>

typedef struct launch_result {
    int exit_code;  /* 128 + signal where one ended it */
    bool timed_out; /* it was killed at the limit, with all its children */
    char *output;   /* stdout and stderr together; launch_fini frees it */
} launch_result;

/**
 * Run argv[0] (found on PATH) and wait for its end, `limit_s` seconds at most.
 * A failure to launch stops the test program.
 */
launch_result launch_run(const char *const *argv, int limit_s);
void launch_fini(launch_result *result);

#endif
