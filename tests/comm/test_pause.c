/* What a wait does between two looks. */
#include "pause.h"

#include <criterion/criterion.h>
#include <sys/prctl.h>
#include <time.h>

static int yields;
static int64_t slept_ns;

int __wrap_sched_yield(void);
int __wrap_sched_yield(void)
{
    yields++;
    return 0;
}

int __wrap_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    (void)left;
    slept_ns += time->tv_sec * INT64_C(1000000000) + time->tv_nsec;
    return 0;
}

Test(pause, yields_where_the_wait_is_young_or_has_not_begun)
{
    static int64_t const waits_ns[] = {-INT64_MAX / 2, 0, 100, 600000};
    for (int i = 0; i < 4; i++)
        ra_pause(waits_ns[i]);
    cr_expect_eq(yields, 4);
    cr_expect_eq(slept_ns, 0);
}

Test(pause, sleeps_for_a_64th_of_the_wait_and_never_long)
{
    ra_pause(64 * 20000);
    cr_expect_eq(slept_ns, 20000);
    ra_pause(INT64_C(3600000000000));
    cr_expect_eq(slept_ns, 20000 + 100000);
    cr_expect_eq(yields, 0);
}

/* Linux would add up to 50 us to each sleep. */
Test(pause, sleeps_exactly)
{
    cr_assert_eq(prctl(PR_SET_TIMERSLACK, 50000UL), 0);
    ra_pause(1000000);
    cr_expect_eq(prctl(PR_GET_TIMERSLACK), 1000);
}
