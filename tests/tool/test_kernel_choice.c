/* A kernel that computes wrong results does not compute a job: the next one does, or none. */
#include "support/captured_log.h"
#include "tool/kernel_findings.h"
#include "tool/options.h"

#include <criterion/criterion.h>

static captured_log said;

static void begin(void)
{
    captured_log_begin(&said);
}

TestSuite(kernel_choice, .init = begin, .timeout = 300);

static const ra_kernel_use use = {.dtype = RA_BF16, .dim = 64, .backward = true, .threads = 1};
static int broken_calls;

static ra_status broken_forward(ra_kernel *kernel, const ra_forward_step *step)
{
    ra_status const status = ra_kernel_cpu(RA_ISA_PORTABLE)->forward(kernel, step);
    broken_calls++;
    if (step->last)
        step->lse[0] += 1;
    return status;
}

static ra_kernel_ops broken_table(void)
{
    ra_kernel_ops ops = *ra_kernel_cpu(RA_ISA_PORTABLE);
    ops.name = "broken";
    ops.forward = broken_forward;
    return ops;
}

Test(kernel_choice, takes_the_fastest_that_is_right_and_says_nothing)
{
    ra_config const config = {.isa = RA_ISA_AUTO};
    ra_kernel_list list;
    const ra_kernel_ops *ops;
    char note[RA_KERNEL_NOTE_MAX];
    cr_assert_eq(ra_kernel_list_make(&config, RA_BACKEND_CPU, NULL, &list), RA_OK);
    cr_assert_eq(list.tables[0], ra_kernel_cpu(RA_ISA_AUTO));
    cr_assert_eq(list.tables[list.count - 1], ra_kernel_cpu(RA_ISA_PORTABLE));
    cr_assert_eq(ra_kernel_list_check(&list, &use, NULL, &ops, note), RA_OK);
    cr_expect_eq(ops, list.tables[0]);
    cr_expect_str_empty(note);
    cr_expect_eq(said.count, 0);
}

Test(kernel_choice, lists_one_instruction_set_where_it_was_asked_for)
{
    ra_config const config = {.isa = RA_ISA_PORTABLE};
    ra_kernel_list list;
    cr_assert_eq(ra_kernel_list_make(&config, RA_BACKEND_CPU, NULL, &list), RA_OK);
    cr_expect_eq(list.count, 1);
    cr_expect_eq(list.tables[0], ra_kernel_cpu(RA_ISA_PORTABLE));
}

/* What auto lists for a job on a GPU that is described, and what a set by name. */
static ra_kernel_list list_for(ra_config config, double compute_capability)
{
    ra_hardware const hardware = {.multiprocessors = 132, .compute_capability = compute_capability};
    ra_kernel_list list;
    cr_assert_eq(ra_kernel_list_make(&config, RA_BACKEND_CUDA, &hardware, &list), RA_OK);
    return list;
}

Test(kernel_choice, auto_prefers_what_a_gpu_alone_has_where_it_differs)
{
    static const struct {
        double capability;
        ra_config config;
        bool differs;
    } cases[] = {
        {9.0, {.dtype = RA_BF16, .head_dim = 128}, true},
        {9.0, {.dtype = RA_F16, .head_dim = 33}, true},
        {9.0, {.dtype = RA_BF16, .head_dim = 128, .backward = true}, true},
        {9.0, {.dtype = RA_BF16, .head_dim = 128, .isa = RA_ISA_SM80}, false},
        {9.0, {.dtype = RA_F32, .head_dim = 128}, false},
        {9.0, {.dtype = RA_BF16, .head_dim = 96}, false},
        {9.0, {.dtype = RA_BF16, .head_dim = 32}, false},
        {9.0, {.dtype = RA_BF16, .head_dim = 129}, false},
        {9.0, {.dtype = RA_BF16, .head_dim = 64, .attention_kind = RA_ATTENTION_LINEAR}, false},
        {8.0, {.dtype = RA_BF16, .head_dim = 128}, false},
        {8.9, {.dtype = RA_BF16, .head_dim = 128}, false},
        {10.0, {.dtype = RA_BF16, .head_dim = 128}, false},
        {0, {.dtype = RA_BF16, .head_dim = 128}, false}};
    if (ra_kernel_cuda() == NULL || ra_kernel_cuda_sm90a() == NULL)
        cr_skip_test("this build has no kernels for GPUs, or none for sm_90a");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ra_kernel_list const list = list_for(cases[i].config, cases[i].capability);
        cr_assert_eq(list.count, cases[i].differs ? 2 : 1, "case %zu", i);
        cr_expect_eq(list.tables[list.count - 1], ra_kernel_cuda(), "case %zu", i);
        cr_expect_eq(list.tables[0] == ra_kernel_cuda_sm90a(), cases[i].differs, "case %zu", i);
    }
    ra_kernel_list const named =
        list_for((ra_config){.dtype = RA_F32, .head_dim = 96, .isa = RA_ISA_SM90A}, 9.0);
    cr_expect_eq(named.count, 1);
    cr_expect_eq(named.tables[0], ra_kernel_cuda_sm90a());
    ra_kernel_list const backward =
        list_for((ra_config){.dtype = RA_BF16, .head_dim = 64, .isa = RA_ISA_SM90A_BACKWARD}, 9.0);
    cr_expect_eq(backward.count, 1);
    cr_expect_eq(backward.tables[0], ra_kernel_cuda_sm90a_backward());
}

Test(kernel_choice, materialised_scores_have_one_table_on_any_gpu)
{
    if (ra_kernel_cuda_standard() == NULL)
        cr_skip_test("this build has no kernels for GPUs, or no cuBLAS");
    ra_kernel_list const list = list_for(
        (ra_config){.dtype = RA_BF16, .head_dim = 128, .attention_kind = RA_ATTENTION_STANDARD},
        9.0);
    cr_expect_eq(list.count, 1);
    cr_expect_eq(list.tables[0], ra_kernel_cuda_standard());
}

/* Of the sets of two architectures no machine has both. */
Test(kernel_choice, says_which_instruction_set_is_missing_and_which_there_are)
{
    bool const is_arm = ra_kernel_cpu(RA_ISA_NEON) != NULL;
    ra_config const config = {.isa = is_arm ? RA_ISA_AVX2 : RA_ISA_NEON};
    ra_kernel_list list;
    char begin[64];
    snprintf(begin, sizeof(begin), "compute.isa: %s: ", is_arm ? "avx2" : "neon");
    cr_assert_eq(ra_kernel_list_make(&config, RA_BACKEND_CPU, NULL, &list), RA_ERR_UNSUPPORTED);
    cr_expect_eq(list.count, 0);
    cr_assert_eq(said.count, 1);
    cr_expect_eq(strncmp(said.line, begin, strlen(begin)), 0, "%s", said.line);
    cr_expect_not_null(strstr(said.line, "there is portable"), "%s", said.line);
    bool const has_avx2 = ra_kernel_cpu(RA_ISA_AVX2) != NULL;
    cr_expect_eq(strstr(said.line, ", avx2") != NULL, has_avx2, "%s", said.line);
}

Test(kernel_choice, the_next_one_stands_in_for_a_wrong_one_and_it_is_said)
{
    ra_kernel_ops const broken = broken_table();
    ra_kernel_list const list = {.count = 2, .tables = {&broken, ra_kernel_cpu(RA_ISA_PORTABLE)}};
    const ra_kernel_ops *ops = NULL;
    char note[RA_KERNEL_NOTE_MAX];
    cr_assert_eq(ra_kernel_list_check(&list, &use, NULL, &ops, note), RA_OK);
    cr_expect_eq(ops, ra_kernel_cpu(RA_ISA_PORTABLE));
    cr_expect_not_null(strstr(note, "kernel broken computes wrong results here (bf16, head_dim 64: "
                                    "lse is off by 1, allowed is 0.002)"),
                       "%s", note);
    cr_expect_not_null(strstr(note, "cpu-portable computes instead"), "%s", note);
    cr_expect_eq(said.count, 0);
}

Test(kernel_choice, without_a_right_one_nothing_is_computed)
{
    ra_kernel_ops const broken = broken_table();
    ra_kernel_list const list = {.count = 1, .tables = {&broken}};
    const ra_kernel_ops *ops = NULL;
    char note[RA_KERNEL_NOTE_MAX];
    ra_status const status = ra_kernel_list_check(&list, &use, NULL, &ops, note);
    cr_expect_eq(status, RA_ERR_INTERNAL);
    cr_expect_eq(ra_exit_code(status), 1);
    cr_expect_null(ops);
    cr_expect_str_empty(note);
    cr_assert_eq(said.count, 1);
    cr_expect_not_null(strstr(said.line, "broken computes wrong results"), "%s", said.line);
    cr_expect_not_null(strstr(said.line, "no other one is left"), "%s", said.line);
}

Test(kernel_choice, compares_once_per_use)
{
    ra_kernel_ops const broken = broken_table();
    ra_kernel_list const list = {.count = 2, .tables = {&broken, ra_kernel_cpu(RA_ISA_PORTABLE)}};
    const ra_kernel_ops *ops;
    char first[RA_KERNEL_NOTE_MAX], second[RA_KERNEL_NOTE_MAX];
    cr_assert_eq(ra_kernel_list_check(&list, &use, NULL, &ops, first), RA_OK);
    int const calls = broken_calls;
    cr_assert_gt(calls, 0);
    cr_assert_eq(ra_kernel_list_check(&list, &use, NULL, &ops, second), RA_OK);
    cr_expect_eq(broken_calls, calls);
    cr_expect_str_eq(first, second);
    ra_kernel_use other = use;
    other.dim = 32;
    cr_assert_eq(ra_kernel_list_check(&list, &other, NULL, &ops, second), RA_OK);
    cr_expect_gt(broken_calls, calls);
}

Test(kernel_choice, findings_tell_right_from_wrong)
{
    ra_kernel_finding findings[RA_KERNEL_FINDINGS_MAX];
    int count = 0;
    cr_assert_eq(ra_kernel_findings_make(NULL, 2, findings, &count), RA_OK);
    cr_assert_geq(count, 3);
    cr_expect(ra_kernel_findings_agree(findings, count));
    findings[count - 1].verdict.agrees = false;
    cr_expect_not(ra_kernel_findings_agree(findings, count));
}
