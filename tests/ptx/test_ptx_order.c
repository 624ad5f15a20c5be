/* The interpreter: what orders warps that do different things, by kernels written by hand
   (barriers.ptx, signals.ptx, device.ptx, group_waits.ptx). */
#include "ptx/test_ptx_trial.h"

#include <criterion/criterion.h>
#include <string.h>

enum { SEEDS = 20, LANES = 32 };

#define RACE "reads shared memory that another thread wrote, without a barrier"

/* out[lane] = factor lane + constant, in whatever order warps go. */
static void expect_lanes(const char *name, uint32_t factor, uint32_t constant)
{
    for (uint64_t seed = 1; seed < SEEDS; ++seed) {
        memset(ptx_trial_memory, 0, sizeof(ptx_trial_memory));
        (void)ptx_trial_run(name, 1, seed);
        for (uint32_t lane = 0; lane < LANES; ++lane)
            cr_expect_eq(ptx_trial_memory[lane], factor * lane + constant, "%s: lane %u: %u", name,
                         lane, ptx_trial_memory[lane]);
    }
}

/* out[thread] = that, where device memory has a pair of 2s per word at first. */
static void expect_sums(const char *name, float expected)
{
    for (uint64_t seed = 1; seed < SEEDS; ++seed) {
        for (int i = 0; i < PTX_TRIAL_WORDS; ++i)
            ptx_trial_memory[i] = 0x40004000;
        (void)ptx_trial_run(name, 1, seed);
        for (int thread = 0; thread < PTX_TRIAL_WORDS; ++thread) {
            float sum;
            memcpy(&sum, &ptx_trial_memory[thread], sizeof(sum));
            cr_expect_eq(sum, expected, "%s: thread %d: %g", name, thread, (double)sum);
        }
    }
}

/* ---- barriers of some warps ------------------------------------------------------------------ */

Test(ptx_order, who_arrives_tells_those_who_wait)
{
    expect_lanes("arrive", 1, 0);
    ptx_trial_expect_end("arrive_only", "shared memory that another thread");
    ptx_trial_expect_end("arrive_behind", "shared memory that another thread");
}

Test(ptx_order, a_barrier_that_not_all_reach_is_found)
{
    ptx_trial_expect_end("arrive_never", "all warps wait (arrive_never, block 0)");
    ptx_trial_expect_end("arrive_never", "at barrier 1 of 64 threads, which 32 have reached");
    ptx_trial_expect_end("barrier_apart", "lanes wait here for others, which wait elsewhere");
}

Test(ptx_order, a_barrier_is_of_one_number_of_whole_warps)
{
    ptx_trial_expect_end("arrive_twice", "reaches a barrier again before all others have");
    ptx_trial_expect_end("barrier_counts", "in use with another number of threads");
    ptx_trial_expect_end("barrier_parts", "a barrier is of no whole warps");
    ptx_trial_expect_end("barrier_number", "a barrier has no number from 0 to 15");
}

Test(ptx_order, registers_are_left_before_they_are_taken)
{
    for (uint64_t seed = 1; seed < SEEDS; ++seed)
        (void)ptx_trial_run("registers", 1, seed);
    ptx_trial_expect_end("registers_lacking", "for 224 registers of each thread; it has 168");
    ptx_trial_expect_end("registers_odd", "that is not 24, 32, ... 256");
    ptx_trial_expect_end("registers_fewer", "to fewer registers than there were");
    ptx_trial_expect_end("registers_more", "to more registers than there were");
    ptx_trial_expect_end("registers_part", "different numbers of setmaxnreg");
}

/* ---- signals --------------------------------------------------------------------------------- */

Test(ptx_order, a_signal_tells_what_was_done_before_it)
{
    expect_lanes("signal", 1, 0);
    expect_lanes("signal_again", 1, 0);
    ptx_trial_expect_end("signal_alone", "shared memory that another thread");
    ptx_trial_expect_end("signal_unheard", "shared memory that another thread");
    ptx_trial_expect_end("signal_parity", "shared memory that another thread");
}

Test(ptx_order, a_phase_that_does_not_end_is_found)
{
    ptx_trial_expect_end("signal_never", "for the mbarrier at 0, whose phase 0 lacks 1 of 1");
    ptx_trial_expect_end("signal_lacks", "for the mbarrier at 0, whose phase 0 lacks 1 of 2");
}

Test(ptx_order, a_signal_is_begun_first_and_touched_by_nothing_else)
{
    ptx_trial_expect_end("signal_unborn", "no mbarrier was begun here");
    ptx_trial_expect_end("signal_early", "mbarrier");
    ptx_trial_expect_end("signal_read", "reads shared memory that is an mbarrier");
    ptx_trial_expect_end("signal_written", "writes shared memory that is an mbarrier");
}

Test(ptx_order, copies_are_there_for_those_who_wait_for_their_signal)
{
    for (uint64_t seed = 1; seed < SEEDS; ++seed) {
        for (uint32_t i = 0; i < LANES; ++i)
            ptx_trial_memory[i] = 1000 + i;
        (void)ptx_trial_run("signal_copied", 1, seed);
        for (uint32_t i = 0; i < LANES; ++i)
            cr_expect_eq(ptx_trial_memory[LANES + i], 1000 + i);
    }
    ptx_trial_expect_end("signal_copies_unheard", "shared memory that");
    ptx_trial_expect_end("signal_copies_own", "reads shared memory that a copy wrote");
    ptx_trial_expect_end("signal_copies_only", RACE);
}

Test(ptx_order, a_slot_is_written_again_once_it_was_read)
{
    expect_lanes("slot", 4 * 8, 0 + 1 + 2 + 3);
    ptx_trial_expect_end("slot_hasty", "shared memory that another thread");
}

/* ---- device memory --------------------------------------------------------------------------- */

Test(ptx_order, device_memory_of_a_block_is_written_before_others_touch_it)
{
    expect_lanes("device_told", 1, 1);
    expect_lanes("device_halves", 1, 0);
    expect_lanes("device_sums", 1, 2 * (1 + 2));
    ptx_trial_expect_end("device_untold", "device memory that another thread wrote");
    ptx_trial_expect_end("device_overwritten", "writes device memory that another thread wrote");
    ptx_trial_expect_end("device_sums_hasty", "device memory that another thread wrote");
}

/* ---- products -------------------------------------------------------------------------------- */

Test(ptx_order, all_groups_of_products_but_the_latest_are_waited_for)
{
    expect_sums("group_two", 2 * (3 * 16 * 1 * 2));
    expect_sums("group_empty_last", 2 * (2 * 16 * 1 * 2));
    ptx_trial_expect_end("group_two_hasty", "reads a register that was not written");
    ptx_trial_expect_end("group_two_overwritten", "writes shared memory that a product under way");
    ptx_trial_expect_end("group_empty", "reads a register that was not written");
}

Test(ptx_order, tiles_are_published_on_their_way_from_who_writes_to_who_multiplies)
{
    expect_sums("group_behind", 2 * (2 * 16 * 1 * 2));
    expect_sums("group_agent", 2 * (2 * 16 * 1 * 2));
    ptx_trial_expect_end("group_stranger", "not published by fence.proxy.async");
}

Test(ptx_order, copied_tiles_are_waited_for_and_published)
{
    expect_sums("group_copied", 2 * (2 * 16 * 1 * 2));
    ptx_trial_expect_end("group_copied_unpublished", "not published by fence.proxy.async");
    ptx_trial_expect_end("group_copied_hasty", "multiplies shared memory that");
}
