/* The contract's frame: kept lines, contents of messages, and the healthy cases in turn. */
#include "contract_internal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* ---- lines ----------------------------------------------------------------------------------- */

enum { LINES_MAX = 64 };

static pthread_mutex_t lines_mutex = PTHREAD_MUTEX_INITIALIZER;
static char lines[LINES_MAX][1024];
static int line_count, error_count;

static void keep_line(void *context, ra_log_level level, const char *line)
{
    (void)context;
    pthread_mutex_lock(&lines_mutex);
    error_count += level == RA_LOG_ERROR;
    if (line_count < LINES_MAX)
        snprintf(lines[line_count++], sizeof(lines[0]), "%s", line);
    pthread_mutex_unlock(&lines_mutex);
}

void contract_capture_log(void)
{
    ra_log_set_handler(keep_line, NULL);
}

static atomic_bool is_found;

static void raise_found(void)
{
    is_found = true;
}

static bool found_is_raised(void)
{
    return is_found;
}

contract_flag contract_found = {raise_found, found_is_raised};

void contract_clear_log(void)
{
    is_found = false;
    pthread_mutex_lock(&lines_mutex);
    line_count = error_count = 0;
    pthread_mutex_unlock(&lines_mutex);
}

int contract_count_lines(const char *text, const char *other_text)
{
    int count = 0;
    pthread_mutex_lock(&lines_mutex);
    for (int i = 0; i < line_count; i++)
        count += strstr(lines[i], text) != NULL && strstr(lines[i], other_text) != NULL;
    pthread_mutex_unlock(&lines_mutex);
    return count;
}

int contract_count_errors(void)
{
    pthread_mutex_lock(&lines_mutex);
    int const count = error_count;
    pthread_mutex_unlock(&lines_mutex);
    return count;
}

void contract_print_log(void)
{
    pthread_mutex_lock(&lines_mutex);
    for (int i = 0; i < line_count; i++)
        fprintf(stderr, "logged: %s\n", lines[i]);
    pthread_mutex_unlock(&lines_mutex);
}

/* ---- contents -------------------------------------------------------------------------------- */

void contract_fill(unsigned char *data, size_t bytes, int from, int to, int64_t number)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = contract_byte(from, to, number, i);
}

bool contract_matches(const unsigned char *data, size_t bytes, int from, int to, int64_t number)
{
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] != contract_byte(from, to, number, i))
            return false;
    }
    return true;
}

/* After a failure the ranks are not at the same place any more: nothing else is tried. */
int contract_run_healthy(ra_comm *comm, uint64_t seed)
{
    int failures = contract_run_collectives(comm);
    if (failures == 0)
        failures = contract_run_exchanges(comm, seed);
    if (failures == 0)
        failures = contract_run_scans(comm);
    if (failures == 0)
        failures = contract_run_windows(comm);
    if (failures == 0)
        failures = contract_run_beats(comm);
    if (failures > 0)
        fprintf(stderr, "contract: %d claims failed, seed %llu\n", failures,
                (unsigned long long)seed);
    return failures;
}
