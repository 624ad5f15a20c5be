/* The interpreter: what orders warps that do different things, by kernels written by hand
   (barriers.ptx, signals.ptx, device.ptx, group_waits.ptx). */
#include "ptx/test_ptx_trial.h"

#include <criterion/criterion.h>
#include <string.h>

enum { SEEDS = 20, LANES = 32 };

#define RACE "reads shared memory that another thread wrote, without a barrier"
/* Where it is not said which of two warps comes first. */
#define RACE_EITHER_WAY "shared memory that another thread"

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

#define ARRIVE "bar.arrive \t%r5, %r6;"
#define SYNC   "bar.sync \t1, 64;"

Test(ptx_order, who_arrives_tells_those_who_wait)
{
    expect_lanes("arrive", 1, 0);
    /* Who only arrives learns nothing. */
    ptx_trial_expect_end_edited("arrive", RACE_EITHER_WAY, ARRIVE,
                                ARRIVE "\nld.shared.u32 %r4, [%r3+2048];", SYNC,
                                "st.shared.u32 [%r3+2048], %r1;\n" SYNC, NULL);
    ptx_trial_expect_end_edited("arrive", RACE_EITHER_WAY, ARRIVE,
                                ARRIVE "\nst.shared.u32 [%r3+1024], %r1;", NULL);
}

Test(ptx_order, a_barrier_that_not_all_reach_is_found)
{
    ptx_trial_expect_end_edited("arrive", "all warps wait (arrive, block 0)", ARRIVE, "", NULL);
    ptx_trial_expect_end_edited("arrive", "at barrier 1 of 64 threads, which 32 have reached",
                                ARRIVE, "", NULL);
    ptx_trial_expect_end_edited(
        "arrive", "lanes wait here for others, which wait elsewhere", SYNC,
        "setp.gt.u32 %p3, %r2, 7;\n@%p3 bra $L__BB0_2;\n" SYNC "\n$L__BB0_2:\n" SYNC, NULL);
}

Test(ptx_order, a_barrier_is_of_one_number_of_whole_warps)
{
    ptx_trial_expect_end_edited("arrive", "reaches a barrier again before all others have", ARRIVE,
                                ARRIVE "\n" ARRIVE, SYNC, "bar.sync 0;", NULL);
    ptx_trial_expect_end_edited("arrive", "in use with another number of threads", ".maxntid 64",
                                ".maxntid 96", SYNC, "bar.sync 1, 96;", NULL);
    ptx_trial_expect_end_edited("arrive", "a barrier is of no whole warps", "%r6, 64;", "%r6, 48;",
                                NULL);
    ptx_trial_expect_end_edited("arrive", "a barrier has no number from 0 to 15", "%r5, 1;",
                                "%r5, 16;", NULL);
}

Test(ptx_order, registers_are_left_before_they_are_taken)
{
    for (uint64_t seed = 1; seed < SEEDS; ++seed)
        (void)ptx_trial_run("registers", 1, seed);
    ptx_trial_expect_end_edited("registers", "for 224 registers of each thread; it has 168", "216;",
                                "224;", NULL);
    ptx_trial_expect_end_edited("registers", "that is not 24, 32, ... 256", "72;", "100;", NULL);
    ptx_trial_expect_end_edited("registers", "to fewer registers than there were",
                                "dec.sync.aligned.u32 72;", "inc.sync.aligned.u32 160;", NULL);
    ptx_trial_expect_end_edited("registers", "to more registers than there were", "72;", "176;",
                                NULL);
    ptx_trial_expect_end_edited("registers", "different numbers of setmaxnreg", "127;", "95;",
                                "setmaxnreg.inc.sync.aligned.u32 216;", "", NULL);
}

/* ---- signals --------------------------------------------------------------------------------- */

#define WRITE "st.shared.u32 \t[%r3+1024], %r1;"
#define READ  "ld.shared.u32 \t%r4, [%r3+1024];"
#define TELL  "{.reg .b64 phase; mbarrier.arrive.shared.b64 phase, [%r9];}"
#define TRY_WAIT                                                                                   \
    "{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%r9], %r8; selp.u32 %r10, 1, 0, p;}"
#define WAIT_NOT  "mov.u32 %r10, 1;"
#define BEGIN     "mbarrier.init.shared.b64 \t[%r9], %r7;"
#define WARP_SYNC "\n\tbar.warp.sync \t-1;"
#define USE       "st.global.u32 \t[%rd3], %r4;"

Test(ptx_order, a_signal_tells_what_was_done_before_it)
{
    expect_lanes("signal", 1, 0);
    expect_lanes("signal_again", 1, 0);
    ptx_trial_expect_end_edited("signal", RACE, WRITE WARP_SYNC, WRITE, NULL);
    ptx_trial_expect_end_edited("signal", RACE_EITHER_WAY, TRY_WAIT, WAIT_NOT, USE, "", NULL);
    /* An odd phase: the one before the first, which nobody waits for. */
    ptx_trial_expect_end_edited("signal", RACE_EITHER_WAY, "%r7, 1;", "%r7, 2;", "%r8, 0;",
                                "%r8, 1;", USE, "", NULL);
}

Test(ptx_order, a_phase_that_does_not_end_is_found)
{
    ptx_trial_expect_end_edited("signal", "for the mbarrier at 0, whose phase 0 lacks 1 of 1", TELL,
                                "", NULL);
    ptx_trial_expect_end_edited("signal", "for the mbarrier at 0, whose phase 0 lacks 1 of 2",
                                "%r7, 1;", "%r7, 2;", NULL);
}

Test(ptx_order, a_signal_is_begun_first_and_touched_by_nothing_else)
{
    ptx_trial_expect_end_edited("signal", "no mbarrier was begun here", BEGIN, "", NULL);
    ptx_trial_expect_end_edited("signal", "mbarrier", "bar.sync \t0;", "", NULL);
    ptx_trial_expect_end_edited("signal", "reads shared memory that is an mbarrier", WRITE,
                                "ld.shared.u32 %r4, [%r9+4];", NULL);
    ptx_trial_expect_end_edited("signal", "writes shared memory that is an mbarrier", WRITE,
                                "st.shared.u32 [%r9+4], %r1;", NULL);
}

#define COPIED        "cp.async.mbarrier.arrive.noinc.shared.b64 [%r9];"
#define COPIES_COMMIT "cp.async.commit_group;"
#define COPIES_WAIT   "cp.async.wait_group 0;"

Test(ptx_order, copies_are_there_for_those_who_wait_for_their_signal)
{
    for (uint64_t seed = 1; seed < SEEDS; ++seed) {
        for (uint32_t i = 0; i < LANES; ++i)
            ptx_trial_memory[i] = 1000 + i;
        (void)ptx_trial_run("signal_copied", 1, seed);
        for (uint32_t i = 0; i < LANES; ++i)
            cr_expect_eq(ptx_trial_memory[LANES + i], 1000 + i);
    }
    ptx_trial_expect_end_edited("signal_copied", "shared memory that", TRY_WAIT, WAIT_NOT,
                                "st.global.u32 \t[%rd3+128], %r4;", "", NULL);
    /* Who began the copies has to wait for them, too. */
    ptx_trial_expect_end_edited("signal_copied", "reads shared memory that a copy wrote", COPIED,
                                COPIED "\nld.shared.u32 %r4, [%r3+1024];", NULL);
    ptx_trial_expect_end_edited("signal_copied", "reads shared memory that a copy wrote", COPIED,
                                COPIED "\n" COPIES_WAIT "\nld.shared.u32 %r4, [%r3+1024];", NULL);
    ptx_trial_expect_end_edited("signal_copied", "reads shared memory that is an mbarrier", COPIED,
                                COPIED "\n" COPIES_COMMIT "\n" COPIES_WAIT
                                       "\nld.shared.u32 %r4, [%r3+1024];"
                                       "\nld.shared.u32 %r4, [%r9];",
                                NULL);
    /* Of what a thread wrote itself, the arrival of its copies does not tell. */
    ptx_trial_expect_end_edited("signal_copied", RACE, COPIED,
                                "st.shared.u32 [%r3+2048], %r1;\n" COPIED, READ,
                                "ld.shared.u32 %r4, [%r3+2048];", NULL);
}

Test(ptx_order, a_slot_is_written_again_once_it_was_read)
{
    expect_lanes("slot", 4 * 8, 0 + 1 + 2 + 3);
    /* It is said to be free before it was read. */
    ptx_trial_expect_end_edited("slot", RACE_EITHER_WAY, READ, "", "add.s32 \t%r14, %r14, %r4;", "",
                                "$L__BB24_7:", "$L__BB24_7:\n" READ "\nadd.s32 %r14, %r14, %r4;",
                                NULL);
}

/* ---- device memory --------------------------------------------------------------------------- */

#define ARRIVE_FIRST "bar.arrive \t1, 64;"
#define WRITE_AGAIN  "\nst.global.u32 [%rd3], %r1;"

Test(ptx_order, device_memory_of_a_block_is_written_before_others_touch_it)
{
    expect_lanes("device_told", 1, 1);
    expect_lanes("device_halves", 1, 0);
    expect_lanes("device_sums", 1, 2 * (1 + 2));
    ptx_trial_expect_end_edited("device_told", "reads device memory that another thread wrote",
                                ARRIVE_FIRST, ARRIVE_FIRST WRITE_AGAIN, NULL);
    ptx_trial_expect_end_edited("device_told", "writes device memory that another thread wrote",
                                ARRIVE_FIRST, ARRIVE_FIRST WRITE_AGAIN,
                                "ld.global.u32 \t%r4, [%rd3];", "mov.u32 %r4, %r1;", NULL);
    ptx_trial_expect_end_edited("device_sums", "device memory that another thread wrote",
                                "bar.sync \t0;", "", NULL);
}

/* ---- products -------------------------------------------------------------------------------- */

#define FIRST_SUM "add.f32 \t%f64, %f0, %f31;"

Test(ptx_order, all_groups_of_products_but_the_latest_are_waited_for)
{
    expect_sums("group_two", 2 * (3 * 16 * 1 * 2));
    expect_sums("group_empty_last", 2 * (2 * 16 * 1 * 2));
    ptx_trial_expect_end_edited("group_two", "reads a register that was not written", FIRST_SUM,
                                "add.f32 %f64, %f32, %f63;", NULL);
    ptx_trial_expect_end_edited("group_two", "writes shared memory that a product under way",
                                FIRST_SUM, "st.shared.u32 [%r3], %r7;\n" FIRST_SUM, NULL);
    /* A group without products counts: the one before it is not over. */
    ptx_trial_expect_end_edited("group_empty_last", "reads a register that was not written",
                                "wait_group.sync.aligned 1;", "wait_group.sync.aligned 2;", NULL);
}

Test(ptx_order, tiles_are_published_on_their_way_from_who_writes_to_who_multiplies)
{
    expect_sums("group_behind", 2 * (2 * 16 * 1 * 2));
    expect_sums("group_agent", 2 * (2 * 16 * 1 * 2));
    /* One warp publishes, and nobody waits for that. */
    ptx_trial_expect_end_edited("group_agent", "not published by fence.proxy.async",
                                "$L__BB21_1:\n\tbar.sync \t0;", "$L__BB21_1:", NULL);
}

Test(ptx_order, copied_tiles_are_waited_for_and_published)
{
    expect_sums("group_copied", 2 * (2 * 16 * 1 * 2));
    /* Copies are not published by those who publish what they wrote before. */
    ptx_trial_expect_end_edited("group_copied", "not published by fence.proxy.async",
                                "$L__BB22_2;\n\tfence.proxy.async.shared::cta;", "$L__BB22_2;",
                                NULL);
    ptx_trial_expect_end_edited("group_copied", "multiplies shared memory that",
                                "@%p2 bra \t$L__BB22_2;", "", NULL);
}
