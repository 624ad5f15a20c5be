/*
 * Linked into the command in place of the system's memory functions: request number RA_FAIL_AT
 * (from 0) of rank RA_FAIL_RANK is refused, and when that process ends in order, it writes to the
 * file RA_FAIL_REPORT how many requests there were, whether one was refused, and how many blocks it
 * still has. Requests that libraries make inside are not ours to refuse, but jansson's are.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PLACES = 1 << 16 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uintptr_t live[PLACES]; /* addresses of blocks, by hash; 0: free, 1: was used */
static long requests, live_count, fail_at = -1;
static bool refused;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *block, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t most);
FILE *__real_open_memstream(char **text, size_t *bytes);
void *__real_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset);
int __real_munmap(void *block, size_t bytes);
void __real_free(void *block);

void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *block, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t most);
FILE *__wrap_open_memstream(char **text, size_t *bytes);
int __wrap_asprintf(char **text, const char *format, ...);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset);
int __wrap_munmap(void *block, size_t bytes);
void __wrap_free(void *block);

int ringattn_main(int count, char **arguments); /* src/tool/main.c */

/* Whether this request must fail. */
static bool is_refused(void)
{
    pthread_mutex_lock(&mutex);
    bool const hit = requests++ == fail_at;
    refused = refused || hit;
    pthread_mutex_unlock(&mutex);
    if (hit)
        errno = ENOMEM;
    return hit;
}

static size_t place_of(uintptr_t address)
{
    return (size_t)(address * 0x9E3779B97F4A7C15u >> 48) % PLACES;
}

static void *add(void *block)
{
    uintptr_t const address = (uintptr_t)block;
    if (block == NULL)
        return NULL;
    pthread_mutex_lock(&mutex);
    size_t at = place_of(address);
    while (live[at] > 1)
        at = (at + 1) % PLACES;
    live[at] = address;
    live_count++;
    pthread_mutex_unlock(&mutex);
    return block;
}

/* Nothing where it is a library's. */
static void drop(const void *block)
{
    uintptr_t const address = (uintptr_t)block;
    pthread_mutex_lock(&mutex);
    for (size_t at = place_of(address); block != NULL && live[at] != 0; at = (at + 1) % PLACES) {
        if (live[at] != address)
            continue;
        live[at] = 1;
        live_count--;
        break;
    }
    pthread_mutex_unlock(&mutex);
}

void *__wrap_malloc(size_t bytes)
{
    return is_refused() ? NULL : add(__real_malloc(bytes));
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return is_refused() ? NULL : add(__real_calloc(count, bytes));
}

void *__wrap_realloc(void *block, size_t bytes)
{
    if (is_refused())
        return NULL;
    drop(block);
    return add(__real_realloc(block, bytes));
}

void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
    return is_refused() ? NULL : add(__real_aligned_alloc(align, bytes));
}

char *__wrap_strdup(const char *text)
{
    return is_refused() ? NULL : add(__real_strdup(text));
}

char *__wrap_strndup(const char *text, size_t most)
{
    return is_refused() ? NULL : add(__real_strndup(text, most));
}

FILE *__wrap_open_memstream(char **text, size_t *bytes)
{
    return is_refused() ? NULL : __real_open_memstream(text, bytes);
}

int __wrap_asprintf(char **text, const char *format, ...)
{
    va_list arguments;
    if (is_refused())
        return -1;
    va_start(arguments, format);
    int const length = vasprintf(text, format, arguments);
    va_end(arguments);
    if (length >= 0)
        (void)add(*text);
    return length;
}

void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset)
{
    bool const is_memory = (flags & MAP_ANONYMOUS) != 0;
    if (is_memory && is_refused())
        return MAP_FAILED;
    void *const block = __real_mmap(at, bytes, protection, flags, file, offset);
    return is_memory && block != MAP_FAILED ? add(block) : block;
}

int __wrap_munmap(void *block, size_t bytes)
{
    drop(block);
    return __real_munmap(block, bytes);
}

void __wrap_free(void *block)
{
    drop(block);
    __real_free(block);
}

static bool is_the_one(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *wanted = getenv("RA_FAIL_RANK");
    return rank == NULL || wanted == NULL || strcmp(rank, wanted) == 0;
}

/* The command's own main; what libraries take before it is not ours to refuse. */
int main(int count, char **arguments)
{
    const char *at = getenv("RA_FAIL_AT");
    json_set_alloc_funcs(__wrap_malloc, __wrap_free);
    requests = live_count = 0;
    memset(live, 0, sizeof(live));
    if (at != NULL && is_the_one())
        fail_at = strtol(at, NULL, 10);
    return ringattn_main(count, arguments);
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("RA_FAIL_REPORT");
    if (path == NULL || !is_the_one())
        return;
    int const file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0)
        return;
    dprintf(file, "%ld %d %ld\n", requests, refused, live_count);
    close(file);
}
