/* The interpreter, by kernels written by hand (kernels.ptx, groups.ptx). */
#include "ptx/test_ptx_trial.h"

#include <criterion/criterion.h>
#include <stdbool.h>
#include <string.h>

Test(ptx, lanes_that_went_apart_meet_again)
{
    ptx_counts const counts = ptx_trial_run("meet", 1, 1);
    for (uint32_t thread = 0; thread < 64; ++thread) {
        uint32_t sum = 0;
        for (uint32_t other = thread / 32 * 32; other < thread / 32 * 32 + 32; ++other)
            sum += other % 2 == 0 ? 2 * other : 3 * other;
        cr_expect_eq(ptx_trial_memory[thread], sum);
    }
    /* Three instructions that half of the lanes take no part in, of two warps. */
    cr_expect_eq(counts.divergent, 6);
}

Test(ptx, lanes_that_never_meet_are_found)
{
    ptx_trial_expect_end("part", "lanes wait here for others, which wait elsewhere");
}

Test(ptx, a_barrier_orders_what_threads_do_to_shared_memory)
{
    for (uint64_t seed = 1; seed < 20; ++seed) {
        memset(ptx_trial_memory, 0, sizeof(ptx_trial_memory));
        ptx_counts const counts = ptx_trial_run("exchange", 1, seed);
        for (uint32_t thread = 0; thread < 64; ++thread)
            cr_expect_eq(ptx_trial_memory[thread], thread ^ 1);
        cr_expect_eq(counts.barriers, 2);
        /* A warp's 128 bytes: one pass of all banks, four sectors. */
        cr_expect_eq(counts.shared_passes, 4);
        cr_expect_eq(counts.global_sectors, 8);
    }
    ptx_trial_expect_end("race",
                         "reads shared memory that another thread wrote, without a barrier");
    ptx_trial_expect_end("warp_race", "shared memory that another thread");
}

Test(ptx, addresses_that_are_not_aligned_or_not_there_are_found)
{
    ptx_trial_expect_end("odd_address", "an address in device memory is not aligned");
    ptx_trial_expect_end("beyond", "an address is in no device memory");
    ptx_trial_expect_end("beyond_shared", "an address is beyond shared memory");
}

Test(ptx, what_was_not_written_is_found_where_it_is_used)
{
    ptx_trial_expect_end("no_value", "kernels.ptx:163: reads a register that was not written");
    ptx_trial_expect_end("no_shared_value",
                         "kernels.ptx:175: reads a register that was not written");
}

Test(ptx, structures_are_copied_with_the_holes_in_them)
{
    (void)ptx_trial_run("holes", 1, 1);
    for (uint32_t lane = 0; lane < 32; ++lane)
        cr_expect_eq(ptx_trial_memory[lane], lane);
    ptx_trial_expect_end("hole", "stores a register that was not written");
    ptx_trial_expect_end("hole_decides", "reads a register that was not written");
}

Test(ptx, a_copy_is_there_after_it_was_committed_and_waited_for)
{
    for (uint32_t i = 0; i < 32; ++i)
        ptx_trial_memory[i] = 1000 + i;
    (void)ptx_trial_run("copy", 1, 1);
    for (uint32_t i = 0; i < 32; ++i)
        cr_expect_eq(ptx_trial_memory[32 + i], 1000 + i);
    ptx_trial_expect_end("hasty_copy", "reads shared memory that a copy is on its way to");
}

Test(ptx, warpgroups_multiply_what_was_published_to_them)
{
    for (uint64_t seed = 1; seed < 20; ++seed) {
        memset(ptx_trial_memory, 0, sizeof(ptx_trial_memory));
        ptx_counts const counts = ptx_trial_run("group", 1, seed);
        for (int thread = 0; thread < 128; ++thread) {
            float sum;
            memcpy(&sum, &ptx_trial_memory[thread], sizeof(sum));
            cr_expect_eq(sum, 2 * (2 * 16 * 1 * 2), "thread %d: %g", thread, (double)sum);
        }
        cr_expect_eq(counts.group_products, 4 * 2);
    }
    ptx_trial_expect_end("group_unpublished", "not published by fence.proxy.async");
    ptx_trial_expect_end("group_hasty",
                         "multiplies shared memory that was written without a barrier");
    ptx_trial_expect_end("group_misplaced", "does not begin at a multiple of 1,024 bytes");
}

Test(ptx, what_products_use_is_left_alone_until_they_are_waited_for)
{
    ptx_trial_expect_end("group_unfenced", "no wgmma.fence came before");
    ptx_trial_expect_end("group_written", "a register was written since wgmma.fence");
    ptx_trial_expect_end("group_overwritten",
                         "writes shared memory that a product under way reads");
    ptx_trial_expect_end("group_touched", "reads a register that was not written");
    ptx_trial_expect_end("group_forgotten", "a product was never waited for");
    ptx_trial_expect_end("group_lonely", "different numbers of products");
}

Test(ptx, blocks_draw_tickets_in_an_order_of_the_seed)
{
    uint32_t orders[2][8];
    bool differ = false;
    for (uint64_t seed = 0; seed < 20; ++seed) {
        uint32_t seen = 0;
        memset(ptx_trial_memory, 0, sizeof(ptx_trial_memory));
        (void)ptx_trial_run("tickets", 8, seed);
        for (int i = 0; i < 8; ++i)
            seen |= 1u << ptx_trial_memory[i];
        cr_expect_eq(seen, 0xff);
        memcpy(orders[seed % 2], ptx_trial_memory, sizeof(orders[0]));
        differ = differ || (seed > 0 && memcmp(orders[0], orders[1], sizeof(orders[0])) != 0);
    }
    cr_expect(differ);
}

Test(ptx, an_instruction_that_is_not_known_is_named)
{
    ptx_trial_expect_end("unknown", "unknown instruction tanh.approx.f32");
}

Test(ptx, a_kernel_that_no_module_has_is_not_there)
{
    cr_expect_null(ptx_kernel_find(RA_TEST_PTX_FOLDER, 90, "nobody"));
    cr_expect_null(ptx_kernel_find(RA_TEST_PTX_FOLDER, 80, "meet"));
}
