#include "comm/contract_clock.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SECOND_NS = 1000000000 };

static _Atomic(atomic_llong *) followed;
static atomic_llong ahead_ns; /* of the machine's own clock */

static long long own_ns(void)
{
    struct timespec now = {0};
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * SECOND_NS + now.tv_nsec;
}

static long long shown_ns(void)
{
    atomic_llong *const now_ns = atomic_load(&followed);
    return now_ns != NULL ? atomic_load(now_ns) : own_ns() + atomic_load(&ahead_ns);
}

/* Weak: a test may have a clock of its own. */
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
__attribute__((weak)) int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    if (clock != CLOCK_MONOTONIC)
        return (int)syscall(SYS_clock_gettime, clock, time);
    long long const now_ns = shown_ns();
    *time = (struct timespec){.tv_sec = now_ns / SECOND_NS, .tv_nsec = now_ns % SECOND_NS};
    return 0;
}

void contract_clock_follow(atomic_llong *now_ns)
{
    long long const ahead = shown_ns() - own_ns();
    if (now_ns == NULL && ahead > atomic_load(&ahead_ns)) /* it does not go back */
        atomic_store(&ahead_ns, ahead);
    atomic_store(&followed, now_ns);
}
