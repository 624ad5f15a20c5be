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
    ptx_trial_expect_end_edited("exchange",
                                "reads shared memory that another thread wrote, without a barrier",
                                "bar.sync \t0;", "", NULL);
    /* Within a warp its own barrier orders; across warps it does not. */
    ptx_trial_expect_end_edited("exchange", "shared memory that another thread", "bar.sync \t0;",
                                "bar.warp.sync -1;", "%r2, 4;", "%r2, 128;",
                                "st.global.u32 \t[%rd3], %r7;", "", NULL);
}

Test(ptx, addresses_that_are_not_aligned_or_not_there_are_found)
{
    ptx_trial_expect_end("odd_address", "an address in device memory is not aligned");
    ptx_trial_expect_end("beyond", "an address is in no device memory");
    ptx_trial_expect_end("beyond_shared", "an address is beyond shared memory");
}

Test(ptx, what_was_not_written_is_found_where_it_is_used)
{
    ptx_trial_expect_end("no_value", "kernels.ptx:127: reads a register that was not written");
    ptx_trial_expect_end("no_shared_value",
                         "kernels.ptx:139: reads a register that was not written");
}

Test(ptx, structures_are_copied_with_the_holes_in_them)
{
    (void)ptx_trial_run("holes", 1, 1);
    for (uint32_t lane = 0; lane < 32; ++lane)
        cr_expect_eq(ptx_trial_memory[lane], lane);
    ptx_trial_expect_end_edited("holes", "stores a register that was not written", "%r7, 8;",
                                "%r7, 0;", NULL);
    ptx_trial_expect_end_edited("holes", "reads a register that was not written",
                                "setp.gt.u32 \t%p2, %r1, 31;", "setp.le.u32 %p2, %r1, 31;", NULL);
}

Test(ptx, a_copy_is_there_after_it_was_committed_and_waited_for)
{
    for (uint32_t i = 0; i < 32; ++i)
        ptx_trial_memory[i] = 1000 + i;
    (void)ptx_trial_run("copy", 1, 1);
    for (uint32_t i = 0; i < 32; ++i)
        cr_expect_eq(ptx_trial_memory[32 + i], 1000 + i);
    ptx_trial_expect_end_edited("copy", "reads shared memory that a copy is on its way to",
                                "cp.async.commit_group;", "", NULL);
}

#define SUMS                                                                                       \
    "{%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8, %f9, %f10, %f11, %f12, %f13, %f14, %f15, "      \
    "%f16, %f17, %f18, %f19, %f20, %f21, %f22, %f23, %f24, %f25, %f26, %f27, %f28, %f29, "         \
    "%f30, %f31}"
#define MULTIPLY                                                                                   \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " SUMS ", %rd3, %rd4, 1, 1, 1, 0, 0;\n"
#define FENCE  "wgmma.fence.sync.aligned;\n"
#define COMMIT "wgmma.commit_group.sync.aligned;\n"
#define WAIT   "wgmma.wait_group.sync.aligned 0;\n"

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
    ptx_trial_expect_end_edited("group", "not published by fence.proxy.async",
                                "fence.proxy.async.shared::cta;", "", NULL);
    ptx_trial_expect_end_edited("group",
                                "multiplies shared memory that was written without a barrier",
                                "bar.sync \t0;", "", NULL);
    ptx_trial_expect_end_edited("group", "does not begin at a multiple of 1,024 bytes",
                                "%rd3, 512;", "%rd3, 520;", NULL);
}

Test(ptx, what_products_use_is_left_alone_until_they_are_waited_for)
{
    ptx_trial_expect_end_edited("group", "no wgmma.fence came before", FENCE, "", NULL);
    ptx_trial_expect_end_edited("group", "a register was read or written since wgmma.fence", FENCE,
                                FENCE "mov.f32 %f0, 0f00000000;\n", NULL);
    ptx_trial_expect_end_edited("group", "writes shared memory that a product under way reads",
                                COMMIT, "st.shared.u32 [%r3], %r7;\n" COMMIT, NULL);
    /* A while after its own is over, one warp writes what those of the others read. */
    ptx_trial_expect_end_edited(
        "group", "writes shared memory that another thread read, without a barrier", COMMIT,
        COMMIT "bar.sync 0;\n", WAIT,
        WAIT "setp.gt.u32 %p1, %r1, 31;\n@%p1 bra $L__BB0_1;\nmov.u32 %r9, 0;\n$L__BB0_2:\n"
             "add.s32 %r9, %r9, 1;\nsetp.lt.s32 %p2, %r9, 1000;\n@%p2 bra $L__BB0_2;\n"
             "st.shared.u32 [%r3+8192], %r7;\n$L__BB0_1:\n",
        NULL);
    ptx_trial_expect_end_edited("group", "reads a register that was not written", COMMIT,
                                "add.f32 %f33, %f0, %f1;\n" COMMIT, NULL);
    ptx_trial_expect_end_edited("group", "a product was never waited for", WAIT, "",
                                "add.f32 \t%f33, %f0, %f31;", "", "st.global.f32 \t[%rd6], %f33;",
                                "", NULL);
    ptx_trial_expect_end_edited("group", "different numbers of products", FENCE,
                                "setp.gt.u32 %p1, %r1, 95;\n@%p1 bra $L__BB0_1;\n" FENCE, "\tret;",
                                "$L__BB0_1:\n\tret;", NULL);
}

static void expect_sums(const char *name)
{
    (void)ptx_trial_run(name, 1, 1);
    for (int thread = 0; thread < 128; ++thread) {
        float sum;
        memcpy(&sum, &ptx_trial_memory[thread], sizeof(sum));
        cr_expect_eq(sum, 2 * (2 * 16 * 1 * 2), "%s: thread %d: %g", name, thread, (double)sum);
    }
}

Test(ptx, registers_of_products_are_fenced_and_left_alone)
{
    static const char fenced[] = "a register was read or written since wgmma.fence";
    expect_sums("group_registers");
    ptx_trial_expect_end_edited("group_registers", fenced, FENCE, FENCE "mov.u32 %r10, %r6;\n",
                                NULL);
    ptx_trial_expect_end_edited("group_registers", "left operand was written before", COMMIT,
                                COMMIT "mov.u32 %r10, %r7;\n", NULL);
    ptx_trial_expect_end_edited("group", "sums were written before it was waited for", COMMIT,
                                COMMIT "mov.f32 %f0, 0f00000000;\n", NULL);
    /* Sums are read, and then added to, with or without a fence. */
    ptx_trial_expect_end_edited("group", fenced, WAIT,
                                WAIT "add.f32 %f33, %f0, %f31;\n" MULTIPLY COMMIT WAIT, NULL);
    ptx_trial_expect_end_edited("group", "an address is in no device memory", WAIT,
                                WAIT "add.f32 %f33, %f0, %f31;\n" FENCE MULTIPLY COMMIT WAIT
                                     "add.s64 %rd1, %rd1, 512;\n",
                                NULL);
    /* The second product, of another group, still adds to them. */
    ptx_trial_expect_end_edited(
        "group", "reads a register that was not written", "%rd3, %rd4, 0, 1, 1, 0, 0;\n",
        "%rd3, %rd4, 0, 1, 1, 0, 0;\n" COMMIT, WAIT, "wgmma.wait_group.sync.aligned 1;\n", NULL);
    ptx_trial_expect_end_edited("group", "waits while a product is not committed", COMMIT, "",
                                NULL);
}

Test(ptx, products_are_of_whole_groups_and_the_same_for_all)
{
    static const char first[] = "%rd3, %rd4, 0, 1, 1, 0, 0;";
    ptx_trial_expect_end_edited("group", "fewer than four warps", ".maxntid 128", ".maxntid 96",
                                NULL);
    ptx_trial_expect_end_edited("group", "begun another product", FENCE,
                                "shr.u32 %r9, %r1, 5;\ncvt.u64.u32 %rd7, %r9;\n"
                                "shl.b64 %rd7, %rd7, 6;\nadd.s64 %rd4, %rd4, %rd7;\n" FENCE,
                                NULL);
    ptx_trial_expect_end_edited("group", "lanes disagree about", FENCE,
                                "cvt.u64.u32 %rd7, %r4;\nadd.s64 %rd4, %rd4, %rd7;\n" FENCE, NULL);
    ptx_trial_expect_end_edited("group", "an operand is scaled", first,
                                "%rd3, %rd4, 0, -1, 1, 0, 0;", NULL);
    ptx_trial_expect_end_edited("group", "reads a register that was not written", first,
                                "%rd3, %rd4, %p1, 1, 1, 0, 0;", NULL);
    ptx_trial_expect_end_edited("group", "lanes disagree about", FENCE,
                                "setp.eq.s32 %p1, %r4, 0;\n" FENCE, first,
                                "%rd3, %rd4, %p1, 1, 1, 0, 0;", NULL);
    ptx_trial_expect_end_edited("group", "multiplies shared memory that was not written",
                                "st.shared.v4.u32 \t[%r3+8192], {%r7, %r7, %r7, %r7};", "", NULL);
    /* Each lane for itself would do; what others wrote takes all of a warp. */
    ptx_trial_expect_end_edited("group_behind", "not published by fence.proxy.async", "fence.proxy",
                                "setp.eq.s32 %p1, %r4, 0;\n@%p1 fence.proxy", NULL);
}

Test(ptx, copies_have_their_words_to_themselves)
{
    static const char copy[] = "cp.async.ca.shared.global [%r4], [%rd3], 4, %r5;";
    ptx_trial_expect_end_edited("copy", "that another thread wrote, without a barrier", copy,
                                "xor.b32 %r7, %r4, 4;\nst.shared.u32 [%r7], %r5;\n"
                                "cp.async.ca.shared.global [%r4], [%rd3], 4, %r5;",
                                NULL);
    ptx_trial_expect_end_edited("copy", "writes shared memory that a copy is on its way to", copy,
                                "cp.async.ca.shared.global [%r4], [%rd3], 4, %r5;\n"
                                "st.shared.u32 [%r4], %r5;",
                                NULL);
    ptx_trial_expect_end_edited("copy", "copies more than there is room for", "%r5, 4;", "%r5, 8;",
                                NULL);
    ptx_trial_expect_end_edited("copy", "some copies are to stay on their way", "wait_group 0",
                                "wait_group 1", NULL);
}

Test(ptx, what_lanes_of_one_warp_read_is_read_before_it_is_written)
{
    static const char read[] = "ld.shared.u32 \t%r7, [%r6];";
    static const char line[] = "writes shared memory that another thread read, without a barrier";
    ptx_trial_expect_end_edited("exchange", line, read,
                                "ld.shared.u32 %r7, [%r6];\nst.shared.u32 [%r4], %r1;", NULL);
    /* The word's own thread has read it since, too. */
    ptx_trial_expect_end_edited("exchange", line, read,
                                "ld.shared.u32 %r7, [%r6];\nfence.proxy.async.shared::cta;\n"
                                "ld.shared.u32 %r8, [%r4];\nst.shared.u32 [%r4], %r1;",
                                NULL);
    ptx_trial_expect_end_edited("exchange", "an address in shared memory is not aligned",
                                "st.shared.u32 \t[%r4]", "st.shared.u32 [%r4+2]", NULL);
    ptx_trial_expect_end_edited("exchange", "an address is beyond the parameter",
                                "[exchange_param_0]", "[exchange_param_0+8]", NULL);
}

Test(ptx, matrices_are_of_rows_that_were_written)
{
    (void)ptx_trial_run("matrices", 1, 1);
    for (uint32_t lane = 0; lane < 32; ++lane) {
        uint32_t const sum = 4 * (lane / 4) + 8 + 16 + 24;
        cr_expect_eq(ptx_trial_memory[lane], sum << 16 | sum);
    }
    /* One element is lacking: of a row, and of what each lane gets of that matrix. */
    ptx_trial_expect_end_edited("matrices", "reads a register that was not written",
                                "st.shared.v4.u32 \t[%r4], {%r5, %r5, %r5, %r5};",
                                "st.shared.v2.u32 [%r4], {%r5, %r5};\n"
                                "st.shared.u32 [%r4+8], %r5;\nst.shared.u16 [%r4+12], %r5;",
                                NULL);
    ptx_trial_expect_end_edited("matrices", "that another thread wrote, without a barrier",
                                "bar.warp.sync \t-1;", "xor.b32 %r4, %r4, 16;", NULL);
    ptx_trial_expect_end_edited("matrices", "an address in shared memory is not aligned", "[%r4];",
                                "[%r4+8];", NULL);
}

Test(ptx, what_a_warp_does_together_takes_all_of_it)
{
    ptx_trial_expect_end_edited("meet", "is under a condition", "shfl.sync", "@%p1 shfl.sync",
                                NULL);
    ptx_trial_expect_end_edited("meet", "lanes that have returned are missing", "$L__BB0_3:\n",
                                "$L__BB0_3:\n@%p1 ret;\n", NULL);
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
