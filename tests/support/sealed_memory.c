#include "support/sealed_memory.h"

#include <stdlib.h>
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
    sealed_memory *self = memory->self;
    int i = 0;
    while (i < SEALED_BLOCKS_MAX && self->blocks[i].data != NULL)
        i++;
    int64_t const used_bytes = self->used_bytes + (int64_t)bytes;
    if (i == SEALED_BLOCKS_MAX || (self->limit_bytes > 0 && used_bytes > self->limit_bytes))
        return RA_ERR_NO_MEMORY;
    void *const block = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED)
        return RA_ERR_NO_MEMORY;
    self->blocks[i].data = *ptr_out = block;
    self->blocks[i].bytes = bytes;
    self->used_bytes = used_bytes;
    return RA_OK;
}

static void sealed_free(const ra_memory *memory, void *ptr, size_t bytes)
{
    sealed_memory *self = memory->self;
    for (int i = 0; i < SEALED_BLOCKS_MAX; i++)
        if (self->blocks[i].data == ptr)
            self->blocks[i].data = NULL;
    self->used_bytes -= (int64_t)bytes;
    munmap(ptr, bytes);
}

static ra_status sealed_available(const ra_memory *memory, int64_t *bytes_out)
{
    const sealed_memory *self = memory->self;
    int64_t const limit_bytes = self->limit_bytes > 0 ? self->limit_bytes : (int64_t)1 << 40;
    *bytes_out = limit_bytes - self->used_bytes;
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

static void all_protect(const sealed_memory *self, int protection)
{
    for (int i = 0; i < SEALED_BLOCKS_MAX; i++)
        if (self->blocks[i].data != NULL &&
            mprotect(self->blocks[i].data, self->blocks[i].bytes, protection) != 0)
            abort();
}

void sealed_memory_open(sealed_memory *self)
{
    all_protect(self, PROT_READ | PROT_WRITE);
}

void sealed_memory_seal(sealed_memory *self)
{
    all_protect(self, PROT_NONE);
}
