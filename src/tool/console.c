#include "console.h"

#include "config_yaml.h"
#include "internal.h"
#include "ranks.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct console {
    pthread_mutex_t mutex;
    int rank, size;
    char host[65]; /* as long as Linux has them */
    bool quiet, holding, deferring;
    char line[RA_CONSOLE_LINE_MAX];      /* the first error that was held back; empty: none */
    char kept_line[RA_CONSOLE_LINE_MAX]; /* the first that would have been said; empty: none */
    bool shown;                          /* a progress line stands on the terminal */
} console;

static console the_console = {.mutex = PTHREAD_MUTEX_INITIALIZER, .size = 1};

bool ra_console_is_terminal(void)
{
    return isatty(STDERR_FILENO) == 1;
}

static void wipe(void)
{
    if (the_console.shown)
        fputs("\r\033[K", stderr);
    the_console.shown = false;
}

/* With several ranks a line names its rank and host, unless it does already. */
static void say(ra_log_level level, const char *line, bool with_rank)
{
    static const char *const names[] = {"error", "warning", "info"};
    if (the_console.deferring && level == RA_LOG_ERROR) {
        if (the_console.kept_line[0] == '\0')
            snprintf(the_console.kept_line, sizeof(the_console.kept_line), "%.*s",
                     RA_CONSOLE_LINE_MAX - 1, line);
        return;
    }
    wipe();
    if (with_rank && the_console.size > 1 && strstr(line, " on host ") == NULL)
        fprintf(stderr, "ringattn: %s: %s (rank %d on host %s)\n", names[level], line,
                the_console.rank, the_console.host);
    else
        fprintf(stderr, "ringattn: %s: %s\n", names[level], line);
}

static void take_line(void *context, ra_log_level level, const char *line)
{
    (void)context;
    pthread_mutex_lock(&the_console.mutex);
    bool const dropped = (level == RA_LOG_INFO && the_console.quiet) ||
                         (level != RA_LOG_ERROR && the_console.holding && the_console.rank != 0);
    if (level == RA_LOG_ERROR && the_console.holding) {
        if (the_console.line[0] == '\0')
            snprintf(the_console.line, sizeof(the_console.line), "%s", line);
    } else if (!dropped) {
        say(level, line, !the_console.holding);
    }
    pthread_mutex_unlock(&the_console.mutex);
}

void ra_console_open(const ra_comm *comm)
{
    pthread_mutex_lock(&the_console.mutex);
    the_console.rank = comm != NULL ? ra_comm_rank(comm) : 0;
    the_console.size = ra_ranks_count(comm);
    snprintf(the_console.host, sizeof(the_console.host), "%s",
             comm != NULL ? ra_comm_host(comm) : "");
    pthread_mutex_unlock(&the_console.mutex);
    ra_log_set_handler(take_line, NULL);
}

void ra_console_set_quiet(bool quiet)
{
    the_console.quiet = quiet;
}

bool ra_console_is_quiet(void)
{
    return the_console.quiet;
}

void ra_console_hold(void)
{
    pthread_mutex_lock(&the_console.mutex);
    the_console.holding = true;
    the_console.line[0] = '\0';
    pthread_mutex_unlock(&the_console.mutex);
}

bool ra_console_forget(char *line_out, size_t bytes)
{
    pthread_mutex_lock(&the_console.mutex);
    bool const held = the_console.holding && the_console.line[0] != '\0';
    snprintf(line_out, bytes, "%s", held ? the_console.line : "");
    the_console.line[0] = '\0';
    pthread_mutex_unlock(&the_console.mutex);
    return held;
}

/* Stop holding lines back; failures of the agreement itself are printed at once. @return whether a
   line was held */
static bool release(bool speak, bool with_rank)
{
    pthread_mutex_lock(&the_console.mutex);
    bool const held = the_console.line[0] != '\0';
    the_console.holding = false;
    if (speak && held) {
        say(RA_LOG_ERROR, the_console.line, with_rank || the_console.rank != 0);
        the_console.line[0] = '\0'; /* an agreement around this one must not repeat it */
    }
    pthread_mutex_unlock(&the_console.mutex);
    return held;
}

void ra_console_release(void)
{
    release(true, true);
}

ra_status ra_console_agree(ra_comm *comm, const char *operation, ra_status status)
{
    if (ra_ranks_count(comm) == 1) {
        release(status != RA_OK, false);
        return status;
    }
    bool const held = release(false, false); /* other threads may log meanwhile */
    int const rank = ra_comm_rank(comm), size = ra_comm_size(comm);
    bool const of_one = status == RA_ERR_NO_MEMORY; /* others may have more memory */
    /* A rank that failed because another did may have no line: such ranks come after all others. */
    int64_t first = status == RA_OK ? 2 * size : held ? rank : size + rank;
    ra_status reduced = ra_comm_reduce_i64(comm, operation, RA_MIN, &first, 1);
    if (reduced != RA_OK && status != RA_OK)
        release(true, of_one); /* nobody else can say it any more */
    if (reduced != RA_OK)
        return status != RA_OK ? status : reduced;
    if (first == 2 * size)
        return RA_OK;
    first %= size;
    if (rank == first)
        release(true, of_one);
    /* The others leave only after the line is out: a launcher kills ranks when one has failed. */
    int64_t cause = rank == first ? (int64_t)status : 0;
    reduced = ra_comm_reduce_i64(comm, operation, RA_MAX, &cause, 1);
    return reduced == RA_OK ? (ra_status)cause : reduced;
}

void ra_console_defer(void)
{
    pthread_mutex_lock(&the_console.mutex);
    the_console.deferring = true;
    the_console.kept_line[0] = '\0';
    pthread_mutex_unlock(&the_console.mutex);
}

bool ra_console_take(char line[RA_CONSOLE_LINE_MAX])
{
    pthread_mutex_lock(&the_console.mutex);
    snprintf(line, RA_CONSOLE_LINE_MAX, "%s", the_console.kept_line);
    the_console.deferring = false;
    the_console.kept_line[0] = '\0';
    pthread_mutex_unlock(&the_console.mutex);
    ra_text_mend(line);
    return line[0] != '\0';
}

void ra_console_tell(ra_log_level level, const char *format, ...)
{
    char line[2 * RA_CONSOLE_LINE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    ra_controls_mask(line);
    pthread_mutex_lock(&the_console.mutex);
    if (level != RA_LOG_INFO || !the_console.quiet)
        say(level, line, false);
    pthread_mutex_unlock(&the_console.mutex);
}

void ra_console_show(const char *line)
{
    pthread_mutex_lock(&the_console.mutex);
    wipe();
    if (line[0] != '\0' && !the_console.quiet) {
        bool const terminal = ra_console_is_terminal();
        fprintf(stderr, terminal ? "%s" : "ringattn: %s\n", line);
        the_console.shown = terminal;
        fflush(stderr);
    }
    pthread_mutex_unlock(&the_console.mutex);
}
