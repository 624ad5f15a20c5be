/* Runs kernels written by hand, for the tests of the interpreter. */
#ifndef RINGATTN_TESTS_TEST_PTX_TRIAL_H
#define RINGATTN_TESTS_TEST_PTX_TRIAL_H

#include "ptx/ptx.h"

enum { PTX_TRIAL_WORDS = 128 };

/* Device memory, of which a kernel's parameter is the address. */
extern uint32_t ptx_trial_memory[PTX_TRIAL_WORDS];

/** Run a kernel. */
ptx_counts ptx_trial_run(const char *name, unsigned blocks, uint64_t seed);
/** Likewise, expecting that the process ends with a line that has this. */
void ptx_trial_expect_end(const char *name, const char *line);
/** Likewise, of the kernel with edits: pairs of a text that it has once, and what is there instead;
    NULL after the last. */
__attribute__((sentinel)) void ptx_trial_expect_end_edited(const char *name, const char *line, ...);

#endif
