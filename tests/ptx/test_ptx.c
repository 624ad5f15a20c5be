/* The interpreter, by kernels written by hand (kernels.ptx, groups.ptx). */
#include "ptx/ptx.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MEMORY_WORDS = 128, SHARED_BYTES = 16384 };

static _Alignas(512) uint32_t memory[MEMORY_WORDS];

static int find(uintptr_t address, uintptr_t *begin, uintptr_t *end)
{
    *begin = (uintptr_t)memory;
    *end = *begin + sizeof(memory);
    return address >= *begin && address <= *end;
}

static ptx_counts run(const char *name, unsigned blocks, uint64_t seed)
{
    const ptx_kernel *const kernel = ptx_kernel_find(RA_TEST_PTX_FOLDER, 90, name);
    uint64_t const param = (uint64_t)(uintptr_t)memory;
    ptx_counts counts = {0};
    cr_assert_not_null(kernel);
    ptx_launch const launch = {.blocks = blocks,
                               .threads = (unsigned)ptx_kernel_threads(kernel),
                               .shared_bytes = SHARED_BYTES,
                               .params = &param,
                               .resident = 3,
                               .seed = seed,
                               .find = find};
    ptx_run(kernel, &launch, &counts);
    return counts;
}

/* The process ends with a line that has this. */
static void expect_end(const char *name, const char *line)
{
    char said[1024];
    int channel[2], status;
    cr_assert_eq(pipe(channel), 0);
    pid_t const child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        (void)signal(SIGABRT, SIG_DFL);
        dup2(channel[1], STDERR_FILENO);
        (void)run(name, 1, 1);
        _exit(0);
    }
    close(channel[1]);
    FILE *const from = fdopen(channel[0], "r");
    size_t const bytes = fread(said, 1, sizeof(said) - 1, from);
    said[bytes] = '\0';
    fclose(from);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect(WIFSIGNALED(status), "%s ended as if all were right", name);
    cr_expect_not_null(strstr(said, line), "%s: \"%s\" is not in \"%s\"", name, line, said);
}

Test(ptx, lanes_that_went_apart_meet_again)
{
    ptx_counts const counts = run("meet", 1, 1);
    for (uint32_t thread = 0; thread < 64; ++thread) {
        uint32_t sum = 0;
        for (uint32_t other = thread / 32 * 32; other < thread / 32 * 32 + 32; ++other)
            sum += other % 2 == 0 ? 2 * other : 3 * other;
        cr_expect_eq(memory[thread], sum);
    }
    /* Three instructions that half of the lanes take no part in, of two warps. */
    cr_expect_eq(counts.divergent, 6);
}

Test(ptx, lanes_that_never_meet_are_found)
{
    expect_end("part", "lanes wait here for others, which wait elsewhere");
}

Test(ptx, a_barrier_orders_what_threads_do_to_shared_memory)
{
    for (uint64_t seed = 1; seed < 20; ++seed) {
        memset(memory, 0, sizeof(memory));
        ptx_counts const counts = run("exchange", 1, seed);
        for (uint32_t thread = 0; thread < 64; ++thread)
            cr_expect_eq(memory[thread], thread ^ 1);
        cr_expect_eq(counts.barriers, 2);
        /* A warp's 128 bytes: one pass of all banks, four sectors. */
        cr_expect_eq(counts.shared_passes, 4);
        cr_expect_eq(counts.global_sectors, 8);
    }
    expect_end("race", "reads shared memory that another thread wrote, without a barrier");
    expect_end("warp_race", "shared memory that another thread");
}

Test(ptx, addresses_that_are_not_aligned_or_not_there_are_found)
{
    expect_end("odd_address", "an address in device memory is not aligned");
    expect_end("beyond", "an address is in no device memory");
    expect_end("beyond_shared", "an address is beyond shared memory");
}

Test(ptx, what_was_not_written_is_found_where_it_is_used)
{
    expect_end("no_value", "kernels.ptx:163: reads a register that was not written");
    expect_end("no_shared_value", "kernels.ptx:175: reads a register that was not written");
}

Test(ptx, a_copy_is_there_after_it_was_committed_and_waited_for)
{
    for (uint32_t i = 0; i < 32; ++i)
        memory[i] = 1000 + i;
    (void)run("copy", 1, 1);
    for (uint32_t i = 0; i < 32; ++i)
        cr_expect_eq(memory[32 + i], 1000 + i);
    expect_end("hasty_copy", "reads shared memory that a copy is on its way to");
}

Test(ptx, warpgroups_multiply_what_was_published_to_them)
{
    for (uint64_t seed = 1; seed < 20; ++seed) {
        memset(memory, 0, sizeof(memory));
        ptx_counts const counts = run("group", 1, seed);
        for (int thread = 0; thread < 128; ++thread) {
            float sum;
            memcpy(&sum, &memory[thread], sizeof(sum));
            cr_expect_eq(sum, 2 * (2 * 16 * 1 * 2), "thread %d: %g", thread, (double)sum);
        }
        cr_expect_eq(counts.group_products, 4 * 2);
    }
    expect_end("group_unpublished", "not published by fence.proxy.async");
    expect_end("group_behind", "not published by fence.proxy.async, before a barrier");
    expect_end("group_hasty", "before a barrier");
    expect_end("group_misplaced", "does not begin at a multiple of 1,024 bytes");
}

Test(ptx, what_products_use_is_left_alone_until_they_are_waited_for)
{
    expect_end("group_unfenced", "no wgmma.fence came before");
    expect_end("group_written", "a register was written since wgmma.fence");
    expect_end("group_overwritten", "writes shared memory that a product under way reads");
    expect_end("group_touched", "reads a register that was not written");
    expect_end("group_forgotten", "a product was never waited for");
    expect_end("group_lonely", "different numbers of products");
}

Test(ptx, blocks_draw_tickets_in_an_order_of_the_seed)
{
    uint32_t orders[2][8];
    bool differ = false;
    for (uint64_t seed = 0; seed < 20; ++seed) {
        uint32_t seen = 0;
        memset(memory, 0, sizeof(memory));
        (void)run("tickets", 8, seed);
        for (int i = 0; i < 8; ++i)
            seen |= 1u << memory[i];
        cr_expect_eq(seen, 0xff);
        memcpy(orders[seed % 2], memory, sizeof(orders[0]));
        differ = differ || (seed > 0 && memcmp(orders[0], orders[1], sizeof(orders[0])) != 0);
    }
    cr_expect(differ);
}

Test(ptx, an_instruction_that_is_not_known_is_named)
{
    expect_end("unknown", "unknown instruction tanh.approx.f32");
}

Test(ptx, a_kernel_that_no_module_has_is_not_there)
{
    cr_expect_null(ptx_kernel_find(RA_TEST_PTX_FOLDER, 90, "nobody"));
    cr_expect_null(ptx_kernel_find(RA_TEST_PTX_FOLDER, 80, "meet"));
}
