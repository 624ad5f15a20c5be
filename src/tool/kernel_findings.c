/* `info --check`: comparing every kernel with the plain one, and what was found. */
#include "kernel_findings.h"

#include "internal.h"
#include "json_build.h"

#include <stdio.h>

/* Who checks: see ra_kernel_findings_make. */
typedef struct checker {
    ra_comm *comm;
    int threads;
} checker;

static double share(const ra_kernel_verdict *verdict)
{
    return verdict->error / verdict->allowed;
}

/* Compare for a use at every head_dim that the kernel serves in a way of its own, in the finding's
   dtype, and leave in the finding the worst result that it has met. verdict.tensor NULL: it has met
   none yet. */
static ra_status finding_widen(const ra_kernel_use *use, const checker *by,
                               ra_kernel_finding *finding)
{
    static const int32_t dims[] = {32, 64, 96, 128, 192, 256};
    const ra_kernel_ops *const ops = finding->ops;
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        ra_kernel_use one = *use;
        ra_kernel_verdict verdict;
        char why_not[240];
        one.dim = dims[i];
        one.dtype = finding->use.dtype;
        one.threads = ops->init != NULL ? by->threads : 1; /* which a GPU's table has */
        if (ops->serves != NULL && !ops->serves(&one, why_not, sizeof(why_not)))
            continue;
        if (ops->differs != NULL && !ops->differs(&one))
            continue;
        ra_comm_beat(by->comm);
        int64_t const begin_ns = ra_clock_ns();
        ra_status const status = ra_kernel_compare(ops, &one, by->comm, &verdict);
        if (status != RA_OK)
            return status;
        double const ms = 1e-6 * (double)(ra_clock_ns() - begin_ns);
        if (ms > finding->longest_ms) {
            finding->longest_ms = ms;
            finding->longest_use = one;
        }
        if (finding->verdict.tensor == NULL || share(&verdict) > share(&finding->verdict)) {
            finding->use = one;
            finding->verdict = verdict;
        }
    }
    return RA_OK;
}

/* Add one finding for softmax attention, the worst with and without dilated branches, and on a GPU
   in bfloat16 with the backward pass that repeats bit for bit; and one, the worst of all kinds, for
   linear attention. `standard` has that, too, but no job uses it. None for which nothing was
   compared. */
static ra_status findings_add(const ra_kernel_ops *ops, ra_dtype dtype, const checker *by,
                              ra_kernel_finding *findings, int *count)
{
    static const ra_kernel_use softmax = {.backward = true};
    static const ra_kernel_use dilated = {
        .backward = true, .shares_rows = true, .shares_keys = true, .dilated = true};
    static const ra_kernel_use repeatable = {.backward = true, .deterministic = true};
    static const ra_kernel_use linear[] = {
        {.linear = RA_LINEAR_BIDIRECTIONAL, .backward = true},
        {.linear = RA_LINEAR_CAUSAL, .backward = true},
        {.linear = RA_LINEAR_CAUSAL, .method = RA_LINEAR_RECURRENT},
        {.linear = RA_LINEAR_CAUSAL, .method = RA_LINEAR_CUMSUM}};
    ra_kernel_finding const none = {.ops = ops, .use = {.dtype = dtype}};
    ra_kernel_finding *finding = &findings[*count];
    *finding = none;
    ra_status status = finding_widen(&softmax, by, finding);
    if (status == RA_OK)
        status = finding_widen(&dilated, by, finding);
    if (status == RA_OK && ops == ra_kernel_cuda() && dtype == RA_BF16)
        status = finding_widen(&repeatable, by, finding);
    *count += finding->verdict.tensor != NULL;
    if (status != RA_OK || ops->linear == NULL || ops == ra_kernel_standard())
        return status;
    finding = &findings[*count];
    *finding = none;
    for (size_t i = 0; i < sizeof(linear) / sizeof(linear[0]) && status == RA_OK; i++)
        status = finding_widen(&linear[i], by, finding);
    *count += finding->verdict.tensor != NULL;
    return status;
}

/* Whoever first uses cuBLAS in a process waits for it to begin. A job of `standard` does so with or
   without a comparison: so that is no part of how long one takes. */
static ra_status begin_cublas(const checker *by)
{
    ra_kernel_use const use = {.dim = 32, .threads = by->threads};
    ra_kernel_verdict ignored;
    return ra_kernel_compare(ra_kernel_cuda_standard(), &use, by->comm, &ignored);
}

ra_status ra_kernel_findings_make(ra_comm *comm, int threads,
                                  ra_kernel_finding findings[RA_KERNEL_FINDINGS_MAX],
                                  int *count_out)
{
    checker const by = {.comm = comm, .threads = threads};
    /* auto, of softmax attention, has all instruction sets to choose from. */
    ra_config const any = {.isa = RA_ISA_AUTO, .attention_kind = RA_ATTENTION_FLASH};
    ra_kernel_list list;
    *count_out = 0;
    ra_status status = ra_kernel_list_make(&any, RA_BACKEND_CPU, NULL, &list);
    if (status != RA_OK)
        return status;
    ra_kernel_list_add(&list, ra_kernel_standard());
    ra_devices devices;
    ra_devices_read(&devices);
    if (devices.usable_count > 0) {
        char text[240];
        int64_t taken_bytes;
        /* A job has its context before it compares: so that is no part of how long one takes. */
        status = ra_device_use(ra_devices_first(&devices));
        if (status == RA_OK)
            status = ra_device_taken(&taken_bytes);
        if (status != RA_OK)
            return status;
        ra_kernel_list_add(&list, ra_kernel_cuda());
        ra_kernel_list_add(&list, ra_cublas_describe(text, sizeof(text)) ? ra_kernel_cuda_standard()
                                                                         : NULL);
        ra_kernel_list_add(&list, ra_kernel_cuda_sm90a());
        ra_kernel_list_add(&list, ra_kernel_cuda_sm90a_backward());
    }
    for (int i = 0; i < list.count; i++) {
        if (list.tables[i] == ra_kernel_cuda_standard())
            status = begin_cublas(&by);
        for (int dtype = RA_F32; dtype <= RA_BF16 && status == RA_OK; dtype++)
            status = findings_add(list.tables[i], (ra_dtype)dtype, &by, findings, count_out);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

bool ra_kernel_findings_agree(const ra_kernel_finding *findings, int count)
{
    bool agree = true;
    for (int i = 0; i < count; i++)
        agree = agree && findings[i].verdict.agrees;
    return agree;
}

static const char *attention_of(const ra_kernel_finding *finding)
{
    return finding->use.linear == RA_LINEAR_NONE ? "softmax" : "linear";
}

/* What tells comparisons of one finding apart, beside head_dim. */
static const char *form_of(const ra_kernel_use *use)
{
    switch (use->linear) {
    case RA_LINEAR_BIDIRECTIONAL:
        return "bidirectional";
    case RA_LINEAR_CAUSAL:
        return use->method == RA_LINEAR_RECURRENT ? "recurrent"
               : use->method == RA_LINEAR_CUMSUM  ? "cumsum"
                                                  : "chunked";
    default:
        return use->dilated ? "dilated" : use->deterministic ? "deterministic" : "plain";
    }
}

json_t *ra_kernel_findings_json(const ra_kernel_finding *findings, int count)
{
    json_t *list = json_array();
    for (int i = 0; list != NULL && i < count; i++) {
        const ra_kernel_finding *f = &findings[i];
        list = ra_json_append(
            list, json_pack("{s:s, s:s, s:s, s:i, s:b, s:s, s:o, s:f, s:f, s:i, s:s}", "kernel",
                            f->ops->name, "attention", attention_of(f), "dtype",
                            ra_dtype_name(f->use.dtype), "head_dim", f->use.dim, "agrees",
                            f->verdict.agrees, "tensor", f->verdict.tensor, "error",
                            ra_json_number(f->verdict.error), "allowed", f->verdict.allowed,
                            "longest_ms", f->longest_ms, "longest_head_dim", f->longest_use.dim,
                            "longest_form", form_of(&f->longest_use)));
    }
    return list;
}

void ra_kernel_findings_print(const ra_kernel_finding *findings, int count)
{
    printf("\n%-16s %-9s %-5s %8s  %-6s %10s  %10s  %10s %8s  %s\n", "check", "attention", "dtype",
           "head_dim", "worst", "error", "allowed", "longest ms", "head_dim", "form");
    for (int i = 0; i < count; i++) {
        const ra_kernel_finding *f = &findings[i];
        printf("%-16s %-9s %-5s %8d  %-6s %10.2e  %10.2e  %10.1f %8d  %-13s  %s\n", f->ops->name,
               attention_of(f), ra_dtype_name(f->use.dtype), f->use.dim, f->verdict.tensor,
               f->verdict.error, f->verdict.allowed, f->longest_ms, f->longest_use.dim,
               form_of(&f->longest_use), f->verdict.agrees ? "ok" : "WRONG");
    }
}
