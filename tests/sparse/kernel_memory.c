/* Memory that only a table's kernels and copies may touch. */
#include "sparse/kernel_case.h"

#include <criterion/criterion.h>
#include <stdlib.h>

void *kernel_zeros(int64_t bytes)
{
    void *memory = calloc((size_t)bytes + 1, 1);
    cr_assert_not_null(memory);
    return memory;
}

void *kernel_take(kernel_memory *memory, const void *from, int64_t bytes)
{
    size_t const taken = memory->memory.ops->round(&memory->memory, (size_t)bytes + 1);
    void *const zeros = from == NULL ? kernel_zeros(bytes) : NULL;
    void *data = NULL;
    cr_assert_lt(memory->count, KERNEL_BLOCKS_MAX);
    cr_assert_eq(memory->memory.ops->alloc(&memory->memory, taken, &data), RA_OK);
    memory->blocks[memory->count++] = (kernel_block){data, taken};
    cr_assert_eq(
        ra_memory_write(&memory->memory, NULL, data, from != NULL ? from : zeros, (size_t)bytes),
        RA_OK);
    free(zeros);
    return data;
}

void *kernel_read(const ra_kernel *kernel, const kernel_memory *memory, const void *from,
                  int64_t bytes)
{
    void *const to = kernel_zeros(bytes);
    cr_assert_eq(ra_memory_read(&memory->memory, kernel->stream, to, from, (size_t)bytes), RA_OK);
    return to;
}

void kernel_give_all(kernel_memory *memory)
{
    while (memory->count > 0) {
        kernel_block const b = memory->blocks[--memory->count];
        memory->memory.ops->free(&memory->memory, b.data, b.bytes);
    }
}
