/* Words of random jobs, for plans and what they are held to. */
#ifndef RINGATTN_TESTS_PLAN_JOBS_H
#define RINGATTN_TESTS_PLAN_JOBS_H

#include "support/random_pattern.h"

enum { JOB_TEXT_BYTES = 1600 };

typedef struct job_text {
    char text[JOB_TEXT_BYTES];
    size_t used;
} job_text;

void job_add(job_text *job, const char *format, ...) __attribute__((format(printf, 2, 3)));

const char *job_one_of(test_rng *rng, const char *const *names);
#define ONE_OF(rng, ...) job_one_of(rng, (const char *const[]){__VA_ARGS__, NULL})
int job_between(test_rng *rng, int low, int high);

/** Keys of `pattern`, for a sequence of so many tokens. */
void job_draw_pattern(test_rng *rng, int seq, job_text *job);
/** Heads, for keys too, in as many head groups as such attention takes. */
void job_draw_heads(test_rng *rng, const char *attention, job_text *job);
/** Layout, buffers, and a schedule: not `shared`, where memory is not. */
void job_draw_ring(test_rng *rng, bool may_share, job_text *job);

#endif
