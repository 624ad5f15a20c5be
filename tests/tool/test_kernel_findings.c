/*
 * `info --check` where there is a GPU: when its context is made. Linked with --wrap of what is
 * played here: one usable GPU, what making its context says, and comparisons, which compare
 * nothing.
 */
#include "ringattn/device.h"
#include "tool/kernel_findings.h"

#include <criterion/criterion.h>

static int uses, contexts, checks, checks_of_cublas;
static ra_status context_status;
static const ra_kernel_ops *lost; /* the table with which the GPU is */

void __wrap_ra_devices_read(ra_devices *devices_out);
void __wrap_ra_devices_read(ra_devices *devices_out)
{
    *devices_out = (ra_devices){.count = 2, .usable_count = 1};
    devices_out->list[0] = (ra_device){.name = "old"};
    devices_out->list[1] =
        (ra_device){.name = "played", .major = 9, .shared_bytes = 1 << 20, .usable = true};
}

ra_status __wrap_ra_device_use(int index);
ra_status __wrap_ra_device_use(int index)
{
    cr_assert_eq(index, 1, "the first that is usable");
    uses++;
    return RA_OK;
}

ra_status __wrap_ra_device_taken(int64_t *bytes_out);
ra_status __wrap_ra_device_taken(int64_t *bytes_out)
{
    cr_assert_eq(uses, 1);
    contexts++;
    *bytes_out = 1;
    return context_status;
}

ra_status __wrap_ra_kernel_check(const ra_kernel_ops *ops, const ra_kernel_ops *plain,
                                 const ra_kernel_use *use, ra_kernel_poll *poll, void *poll_context,
                                 ra_kernel_verdict *verdict_out);
ra_status __wrap_ra_kernel_check(const ra_kernel_ops *ops, const ra_kernel_ops *plain,
                                 const ra_kernel_use *use, ra_kernel_poll *poll, void *poll_context,
                                 ra_kernel_verdict *verdict_out)
{
    (void)plain;
    bool const on_gpu = ops == ra_kernel_cuda() || ops == ra_kernel_cuda_sm90a() ||
                        ops == ra_kernel_cuda_sm90a_backward() || ops == ra_kernel_cuda_standard();
    cr_assert_eq(use->threads, on_gpu ? 2 : 1);
    (void)poll;
    (void)poll_context;
    cr_assert_eq(contexts, 1, "before the first that is timed");
    if (ops == lost)
        return RA_ERR_CUDA;
    checks++;
    checks_of_cublas += ops == ra_kernel_cuda_standard();
    *verdict_out = (ra_kernel_verdict){.agrees = true, .tensor = "o"};
    return RA_OK;
}

/* Whether a table was checked, or there is none: this machine, or this build, lacks it. */
static bool is_among(const ra_kernel_ops *ops, const ra_kernel_finding *found, int count)
{
    bool among = ops == NULL;
    for (int i = 0; i < count; i++)
        among = among || found[i].ops == ops;
    return among;
}

Test(kernel_findings, a_gpus_context_is_no_part_of_its_longest_comparison)
{
    ra_kernel_finding found[RA_KERNEL_FINDINGS_MAX];
    int count = 0;
    cr_assert_eq(ra_kernel_findings_make(NULL, 2, found, &count), RA_OK);
    cr_expect_eq(contexts, 1);
    cr_expect_gt(checks, 0);
}

/* Of sm_90a what it does not share with sm_80. */
Test(kernel_findings, are_of_both_instruction_sets_of_a_gpu_of_9_0)
{
    ra_kernel_finding found[RA_KERNEL_FINDINGS_MAX];
    int count = 0;
    cr_assert_eq(ra_kernel_findings_make(NULL, 2, found, &count), RA_OK);
    cr_expect(is_among(ra_kernel_cuda(), found, count));
    cr_expect(is_among(ra_kernel_cuda_sm90a(), found, count));
    cr_expect(is_among(ra_kernel_cuda_sm90a_backward(), found, count));
    for (int i = 0; i < count; i++)
        cr_expect(found[i].ops != ra_kernel_cuda_sm90a() ||
                  (found[i].use.dtype != RA_F32 && found[i].use.linear == RA_LINEAR_NONE));
}

/* Timed are six head_dims in three dtypes, with branches and without. */
Test(kernel_findings, cublas_begins_in_a_comparison_that_is_not_timed)
{
    ra_kernel_finding found[RA_KERNEL_FINDINGS_MAX];
    char text[240];
    int count = 0;
    cr_assert_eq(ra_kernel_findings_make(NULL, 2, found, &count), RA_OK);
    cr_expect_eq(checks_of_cublas, ra_cublas_describe(text, sizeof(text)) ? 1 + 6 * 3 * 2 : 0);
}

Test(kernel_findings, are_of_every_table_of_the_cpu)
{
    ra_kernel_finding found[RA_KERNEL_FINDINGS_MAX];
    int count = 0;
    cr_assert_eq(ra_kernel_findings_make(NULL, 2, found, &count), RA_OK);
    for (int isa = RA_ISA_AUTO; isa <= RA_ISA_NEON; isa++)
        cr_expect(is_among(ra_kernel_cpu((ra_isa)isa), found, count), "instruction set %d", isa);
    cr_expect(is_among(ra_kernel_standard(), found, count));
}

Test(kernel_findings, up_to_a_gpu_that_is_lost_are_kept)
{
    ra_kernel_finding found[RA_KERNEL_FINDINGS_MAX];
    int count = 0;
    lost = ra_kernel_standard();
    cr_assert_eq(ra_kernel_findings_make(NULL, 2, found, &count), RA_ERR_CUDA);
    cr_expect(is_among(ra_kernel_cpu(RA_ISA_PORTABLE), found, count));
    cr_expect_not(is_among(lost, found, count));
}

Test(kernel_findings, a_gpu_without_room_for_its_context_ends_the_check)
{
    ra_kernel_finding found[RA_KERNEL_FINDINGS_MAX];
    int count = 0;
    context_status = RA_ERR_NO_MEMORY;
    cr_expect_eq(ra_kernel_findings_make(NULL, 2, found, &count), RA_ERR_NO_MEMORY);
    cr_expect_eq(checks, 0);
}
