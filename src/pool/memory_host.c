#include "host_available.h"
#include "internal.h"
#include "ringattn/pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; the C library's headers may be older */
#endif

/*
 * Blocks below this come from the C library's heap, which keeps what is freed; larger ones are
 * mappings of their own, so that the resident set follows the ledger down as well as up.
 */
enum { SMALL_LIMIT_BYTES = 64 << 10, SMALL_ALIGN_BYTES = 64, HUGE_PAGE_BYTES = 2 << 20 };

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t host_round(const ra_memory *memory, size_t bytes)
{
    (void)memory;
    if (bytes < SMALL_LIMIT_BYTES)
        return ra_round_up(bytes, SMALL_ALIGN_BYTES);
    return ra_round_up(bytes, page_bytes());
}

/*
 * Populate every page. MAP_POPULATE would silently leave out what it cannot get; this advice
 * reports it. For systems that do not know it (EINVAL), write to each page instead.
 */
static ra_status populate(char *data, size_t bytes)
{
    int result;
    do {
        result = madvise(data, bytes, MADV_POPULATE_WRITE);
    } while (result != 0 && errno == EINTR);
    if (result == 0)
        return RA_OK;
    if (errno != EINVAL)
        return RA_ERR_NO_MEMORY;
    size_t const page = page_bytes();
    for (size_t i = 0; i < bytes; i += page)
        *(volatile char *)(data + i) = 0;
    return RA_OK;
}

/*
 * Kernels read rows that lie kilobytes apart, in the order of blocks, so small pages would cost TLB
 * misses. It is advice only, and adds no byte: pages beyond the mapping are never part of it.
 */
static void advise_huge_pages(void *data, size_t bytes)
{
    if (bytes >= HUGE_PAGE_BYTES)
        (void)madvise(data, bytes, MADV_HUGEPAGE);
}

static ra_status alloc_pages(size_t bytes, void **ptr_out)
{
    void *const data =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return RA_ERR_NO_MEMORY;
    advise_huge_pages(data, bytes);
    ra_status const status = populate(data, bytes);
    if (status != RA_OK) {
        munmap(data, bytes);
        return status;
    }
    *ptr_out = data;
    return RA_OK;
}

/* `bytes` is a result of round; one just below the limit rounds up to it, and is whole pages. */
static bool is_small(size_t bytes)
{
    return bytes < SMALL_LIMIT_BYTES;
}

static ra_status host_alloc(const ra_memory *memory, size_t bytes, void **ptr_out)
{
    (void)memory;
    RA_ASSERT(bytes > 0);
    if (!is_small(bytes))
        return alloc_pages(bytes, ptr_out);
    void *const data = aligned_alloc(SMALL_ALIGN_BYTES, bytes);
    if (data == NULL)
        return RA_ERR_NO_MEMORY;
    memset(data, 0, bytes);
    *ptr_out = data;
    return RA_OK;
}

static void host_free(const ra_memory *memory, void *ptr, size_t bytes)
{
    (void)memory;
    if (is_small(bytes))
        free(ptr);
    else if (munmap(ptr, bytes) != 0)
        ra_log(RA_LOG_WARNING, "%zu bytes could not be returned to the system: %s", bytes,
               strerror(errno));
}

static ra_status host_available(const ra_memory *memory, int64_t *bytes_out)
{
    (void)memory;
    return ra_host_available("", bytes_out);
}

static const ra_memory_ops host_ops = {
    .name = "host",
    .round = host_round,
    .alloc = host_alloc,
    .free = host_free,
    .available = host_available,
};

ra_memory ra_memory_host(void)
{
    return (ra_memory){.ops = &host_ops, .self = NULL};
}

int64_t ra_memory_host_limit(void)
{
    return ra_host_limit("");
}

/* ---- copies ---------------------------------------------------------------------------------- */

bool ra_memory_is_host(const ra_memory *memory)
{
    return memory->ops->write == NULL;
}

ra_status ra_memory_write(const ra_memory *memory, ra_stream *stream, void *to, const void *from,
                          size_t bytes)
{
    if (bytes == 0)
        return RA_OK;
    if (!ra_memory_is_host(memory))
        return memory->ops->write(memory, stream, to, from, bytes);
    memcpy(to, from, bytes);
    return RA_OK;
}

ra_status ra_memory_read(const ra_memory *memory, ra_stream *stream, void *to, const void *from,
                         size_t bytes)
{
    if (bytes == 0)
        return RA_OK;
    if (!ra_memory_is_host(memory))
        return memory->ops->read(memory, stream, to, from, bytes);
    memcpy(to, from, bytes);
    return RA_OK;
}
