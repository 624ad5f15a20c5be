#include "support/sealed_memory.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t sealed_round(const ra_memory *memory, size_t bytes)
{
    (void)memory;
    return (bytes + page() - 1) / page() * page();
}

static ra_status sealed_alloc(const ra_memory *memory, size_t bytes, void **ptr_out)
{
    (void)memory;
    void *const block = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED)
        return RA_ERR_NO_MEMORY;
    *ptr_out = block;
    return RA_OK;
}

static void sealed_free(const ra_memory *memory, void *ptr, size_t bytes)
{
    (void)memory;
    munmap(ptr, bytes);
}

static ra_status sealed_available(const ra_memory *memory, int64_t *bytes_out)
{
    (void)memory;
    *bytes_out = (int64_t)1 << 40;
    return RA_OK;
}

/* The pages around a part of a block, opened or sealed again. */
static ra_status pages_protect(const void *data, size_t bytes, int protection)
{
    uintptr_t const begin = (uintptr_t)data / page() * page();
    return mprotect((void *)begin, (uintptr_t)data + bytes - begin, protection) == 0 ? RA_OK
                                                                                     : RA_ERR_CUDA;
}

static ra_status copy(const ra_memory *memory, const void *sealed, void *to, const void *from,
                      size_t bytes)
{
    sealed_memory *self = memory->self;
    if (++self->copies == self->fail_copy) {
        ra_log(RA_LOG_ERROR, "copy %ld fails, as it was asked to", self->copies);
        return RA_ERR_CUDA;
    }
    self->copied_bytes += (int64_t)bytes;
    if (self->longest_bytes < (int64_t)bytes)
        self->longest_bytes = (int64_t)bytes;
    ra_status const status = pages_protect(sealed, bytes, PROT_READ | PROT_WRITE);
    if (status != RA_OK)
        return status;
    memcpy(to, from, bytes);
    return pages_protect(sealed, bytes, PROT_NONE);
}

static ra_status sealed_write(const ra_memory *memory, ra_stream *stream, void *to,
                              const void *from, size_t bytes)
{
    (void)stream;
    return copy(memory, to, to, from, bytes);
}

static ra_status sealed_read(const ra_memory *memory, ra_stream *stream, void *to, const void *from,
                             size_t bytes)
{
    (void)stream;
    return copy(memory, from, to, from, bytes);
}

ra_memory ra_memory_sealed(sealed_memory *self)
{
    static const ra_memory_ops ops = {.name = "sealed",
                                      .round = sealed_round,
                                      .alloc = sealed_alloc,
                                      .free = sealed_free,
                                      .available = sealed_available,
                                      .write = sealed_write,
                                      .read = sealed_read};
    return (ra_memory){&ops, self};
}
