/*
 * The clock of a job one of whose kernels hangs (RA_STANDIN_HANG), for tests of what its ranks'
 * deadlines do: a file, RA_STANDIN_CLOCK, that has the time. Until the kernel hangs time hardly
 * passes, so that no deadline does. From then on its process tells it: the time in which that
 * process itself stands still, and cannot say that it is at work, is none, nor for the others.
 *
 * Linked with --wrap=clock_gettime and --wrap=pthread_cond_clockwait. Without the variable it is
 * the machine's own clock.
 */
#include "support/standin_cudart.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    SECOND_NS = 1000000000,
    LOOK_NS = 1000, /* that a look takes before: whoever waits for time to pass comes to an end */
    LEAP_NS = 20000000 /* most that passes between two looks of who tells the time */
};

typedef struct job_clock {
    atomic_llong now_ns;
    atomic_bool is_told;
} job_clock;

static job_clock *job;
static atomic_llong seen_ns; /* when this process last looked */

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __real_pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
                                  const struct timespec *until);
int __wrap_pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
                                  const struct timespec *until);

static long long ns_of(const struct timespec *time)
{
    return (long long)time->tv_sec * SECOND_NS + time->tv_nsec;
}

static struct timespec time_of(long long ns)
{
    return (struct timespec){.tv_sec = ns / SECOND_NS, .tv_nsec = ns % SECOND_NS};
}

static long long own_ns(void)
{
    struct timespec now;
    __real_clock_gettime(CLOCK_MONOTONIC, &now);
    return ns_of(&now);
}

static void join(void)
{
    const char *const path = getenv("RA_STANDIN_CLOCK");
    long long unset = 0;
    if (path == NULL)
        return;
    int const file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file >= 0 && ftruncate(file, sizeof(*job)) == 0)
        job = mmap(NULL, sizeof(*job), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (job == NULL || job == MAP_FAILED) {
        perror(path);
        abort();
    }
    close(file);
    atomic_compare_exchange_strong(&job->now_ns, &unset, own_ns());
}

static long long job_ns(void)
{
    long long step_ns = atomic_load(&job->is_told) ? 0 : LOOK_NS;
    if (standin.hangs) {
        long long const own = own_ns(), before = atomic_exchange(&seen_ns, own);
        step_ns = before == 0 || own < before ? 0 : own - before;
        step_ns = step_ns > LEAP_NS ? LEAP_NS : step_ns;
        atomic_store(&job->is_told, true);
    }
    return atomic_fetch_add(&job->now_ns, step_ns) + step_ns;
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, join);
    if (job == NULL || clock != CLOCK_MONOTONIC)
        return __real_clock_gettime(clock, time);
    *time = time_of(job_ns());
    return 0;
}

/* For as long as was asked for, by the machine's clock. */
int __wrap_pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
                                  const struct timespec *until)
{
    if (job == NULL || clock != CLOCK_MONOTONIC)
        return __real_pthread_cond_clockwait(cond, mutex, clock, until);
    long long const behind_ns = own_ns() - atomic_load(&job->now_ns);
    struct timespec const own = time_of(ns_of(until) + behind_ns);
    return __real_pthread_cond_clockwait(cond, mutex, clock, &own);
}
