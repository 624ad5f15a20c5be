/*
 * What compilers call before every access to memory where they are asked to look for races of
 * threads (-fsanitize=thread): here in place of their library, which knows nothing of fibers. Only
 * kernels are compiled so, and only what is in shared memory is noted.
 */
#include "sparse/cuda_block_emulated.h"

using namespace emulated;

#define RA_NOTE(NAME, NOTE, BYTES)                                                                 \
    void NAME(void *at)                                                                            \
    {                                                                                              \
        if (is_shared(at))                                                                         \
            NOTE(at, BYTES);                                                                       \
    }
#define RA_NOTES(BYTES)                                                                            \
    RA_NOTE(__tsan_read##BYTES, note_read, BYTES)                                                  \
    RA_NOTE(__tsan_write##BYTES, note_write, BYTES)                                                \
    RA_NOTE(__tsan_unaligned_read##BYTES, note_read, BYTES)                                        \
    RA_NOTE(__tsan_unaligned_write##BYTES, note_write, BYTES)

extern "C" {

void __tsan_init(void) {}

void __tsan_func_entry(void *) {}

void __tsan_func_exit(void) {}

RA_NOTES(1)
RA_NOTES(2)
RA_NOTES(4)
RA_NOTES(8)
RA_NOTES(16)

void __tsan_read_range(void *at, size_t bytes)
{
    if (is_shared(at))
        note_read(at, (int)bytes);
}

void __tsan_write_range(void *at, size_t bytes)
{
    if (is_shared(at))
        note_write(at, (int)bytes);
}
}
