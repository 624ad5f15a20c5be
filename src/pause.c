#include "pause.h"

#include "internal.h"

#include <sched.h>
#include <stdbool.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

static void sleep_exactly(void)
{
#ifdef __linux__
    static _Thread_local bool is_told;
    if (is_told)
        return;
    is_told = true;
    (void)prctl(PR_SET_TIMERSLACK, 1000UL); /* refused: sleeps are longer */
#endif
}

void ra_pause(int64_t waited_ns)
{
    int64_t const least_ns = 10000;
    int64_t const most_ns = 100000; /* what an answer may be late by */
    int64_t const nap_ns = ra_min_i64(waited_ns / 64, most_ns);
    if (nap_ns < least_ns) {
        sched_yield();
        return;
    }
    sleep_exactly();
    nanosleep(&(struct timespec){.tv_nsec = (long)nap_ns}, NULL);
}
