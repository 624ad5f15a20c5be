/* What `info --check` has found, for people and for programs. */
#include "json_build.h"
#include "kernel_choice.h"

#include <stdio.h>

static const char *attention_of(const ra_kernel_finding *finding)
{
    return finding->use.linear == RA_LINEAR_NONE ? "softmax" : "linear";
}

json_t *ra_kernel_findings_json(const ra_kernel_finding *findings, int count)
{
    json_t *list = json_array();
    for (int i = 0; list != NULL && i < count; i++) {
        const ra_kernel_finding *f = &findings[i];
        list = ra_json_append(
            list, json_pack("{s:s, s:s, s:s, s:i, s:b, s:s, s:o, s:f, s:f}", "kernel", f->ops->name,
                            "attention", attention_of(f), "dtype", ra_dtype_name(f->use.dtype),
                            "head_dim", f->use.dim, "agrees", f->verdict.agrees, "tensor",
                            f->verdict.tensor, "error", ra_json_number(f->verdict.error), "allowed",
                            f->verdict.allowed, "longest_ms", f->longest_ms));
    }
    return list;
}

void ra_kernel_findings_print(const ra_kernel_finding *findings, int count)
{
    printf("\n%-16s %-9s %-5s %8s  %-6s %10s  %10s  %10s\n", "check", "attention", "dtype",
           "head_dim", "worst", "error", "allowed", "longest ms");
    for (int i = 0; i < count; i++) {
        const ra_kernel_finding *f = &findings[i];
        printf("%-16s %-9s %-5s %8d  %-6s %10.2e  %10.2e  %10.1f  %s\n", f->ops->name,
               attention_of(f), ra_dtype_name(f->use.dtype), f->use.dim, f->verdict.tensor,
               f->verdict.error, f->verdict.allowed, f->longest_ms,
               f->verdict.agrees ? "ok" : "WRONG");
    }
}
