#include "progress.h"

#include "console.h"
#include "internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TERMINAL_MS = 200, LOG_MS = 5000 };

struct ra_progress {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t woken;
    bool ending;
    char about[80];
    const char *what; /* NULL: nothing has begun */
    int index, count;
    int64_t begin_ns;
};

static void show(const ra_progress *progress)
{
    char line[240];
    const char *about = progress->about, *colon = about[0] != '\0' ? ": " : "";
    double const seconds = 1e-9 * (double)(ra_clock_ns() - progress->begin_ns);
    if (progress->what == NULL)
        return;
    if (progress->count > 0)
        snprintf(line, sizeof(line), "%s%s%s %d of %d, %.0f s", about, colon, progress->what,
                 progress->index, progress->count, seconds);
    else
        snprintf(line, sizeof(line), "%s%s%s, %.0f s", about, colon, progress->what, seconds);
    ra_console_show(line);
}

static void *watch(void *context)
{
    ra_progress *progress = context;
    int64_t const period_ms = ra_console_is_terminal() ? TERMINAL_MS : LOG_MS;
    pthread_mutex_lock(&progress->mutex);
    while (!progress->ending) {
        int64_t const until_ns = ra_clock_ns() + period_ms * 1000000;
        struct timespec const until = {until_ns / 1000000000, until_ns % 1000000000};
        while (!progress->ending && pthread_cond_clockwait(&progress->woken, &progress->mutex,
                                                           CLOCK_MONOTONIC, &until) == 0)
            continue;
        if (!progress->ending)
            show(progress);
    }
    pthread_mutex_unlock(&progress->mutex);
    return NULL;
}

ra_progress *ra_progress_create(void)
{
    ra_progress *progress = calloc(1, sizeof(*progress));
    if (progress == NULL)
        goto err;
    pthread_mutex_init(&progress->mutex, NULL);
    pthread_cond_init(&progress->woken, NULL);
    progress->begin_ns = ra_clock_ns();
    if (pthread_create(&progress->thread, NULL, watch, progress) == 0)
        return progress;
    pthread_cond_destroy(&progress->woken);
    pthread_mutex_destroy(&progress->mutex);
    free(progress);
err:
    ra_log(RA_LOG_WARNING, "out of memory for the thread that shows progress: none is shown");
    return NULL;
}

void ra_progress_set(ra_progress *progress, const char *what, int index, int count)
{
    if (progress == NULL)
        return;
    pthread_mutex_lock(&progress->mutex);
    progress->what = what;
    progress->index = index;
    progress->count = count;
    pthread_mutex_unlock(&progress->mutex);
}

void ra_progress_about(ra_progress *progress, const char *about)
{
    if (progress == NULL)
        return;
    pthread_mutex_lock(&progress->mutex);
    snprintf(progress->about, sizeof(progress->about), "%s", about);
    pthread_mutex_unlock(&progress->mutex);
}

void ra_progress_destroy(ra_progress *progress)
{
    if (progress == NULL)
        return;
    pthread_mutex_lock(&progress->mutex);
    progress->ending = true;
    pthread_cond_signal(&progress->woken);
    pthread_mutex_unlock(&progress->mutex);
    pthread_join(progress->thread, NULL);
    ra_console_show("");
    pthread_cond_destroy(&progress->woken);
    pthread_mutex_destroy(&progress->mutex);
    free(progress);
}
