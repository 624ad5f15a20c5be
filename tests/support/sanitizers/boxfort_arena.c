/*
 * Linked into programs of tests that run under ThreadSanitizer on x86-64.
 *
 * Criterion's sandbox (BoxFort) shares memory between its processes at a fixed address that it
 * draws from 0x200000000000 to 0x7f0000000000, most of which is ThreadSanitizer's shadow: mapping
 * is refused, and no test starts. Here those addresses are moved to where the sanitizer expects
 * position-independent programs, below the lowest address that the kernel gives one.
 */
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)

void *__interceptor_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset);

static void *move_arena(void *at)
{
    uintptr_t const address = (uintptr_t)at;
    uintptr_t const programs_begin = 0x550000000000, programs_end = 0x568000000000;
    if (address < 0x200000000000 || address >= 0x7a0000000000 ||
        (address >= programs_begin && address < programs_end))
        return at;
    return (void *)(programs_begin + (address & 0x003fffffffff));
}

int mincore(void *at, size_t bytes, unsigned char *residency)
{
    return (int)syscall(SYS_mincore, move_arena(at), bytes, residency);
}

void *mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    void *const moved = (flags & MAP_FIXED) != 0 ? move_arena(at) : at;
    return __interceptor_mmap(moved, bytes, prot, flags, fd, offset);
}

void *mmap64(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    return mmap(at, bytes, prot, flags, fd, offset);
}

#endif
