/* Random patterns over all keys, for property tests. */
#ifndef TESTS_SUPPORT_RANDOM_PATTERN_H
#define TESTS_SUPPORT_RANDOM_PATTERN_H

#include "support/test_rng.h"

#include "ringattn/pattern.h"

/* A configuration with the arrays it points to. */
typedef struct test_pattern {
    ra_pattern_config config;
    int64_t documents[256];
    int64_t block_rates[8];
    int32_t pairs[64][2];
    int64_t segments[4], rates[4];
} test_pattern;

/* Any combination of keys, for `seq` tokens; seq <= 256. */
void test_pattern_draw(test_rng *rng, int64_t seq, test_pattern *pattern);
/* One line, for the message of a failing case. */
void test_pattern_print(const ra_pattern_config *config, char *text, size_t bytes);

#endif
