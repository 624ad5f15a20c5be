/* What ptxas said of the kernels when they were compiled: registers as the tile table assumes, and
   nothing in local memory. */
#include "sparse/cuda/backward_table.h"
#include "sparse/cuda/linear_args.h"
#include "sparse/cuda/softmax_args.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ATTENTION_KINDS = 3, DTYPES = 3, DIMS = 6, LINEAR_DIMS = 3, ARCHITECTURES = 2 };
/* By warpgroups, for one architecture and two dims: forward in two dtypes, backward in one. */
enum { WARPGROUP_KERNELS = 3 * 2 };
#define COUNTED(DIM) +(DIM <= RA_CUDA_SINGLE_DIM_MOST)
enum { SINGLE_KERNELS = 0 RA_CUDA_DIMS(COUNTED) };
/* Kernels for rows: two that copy, one that adds, and those that round and sum, by dtype. */
enum { ROW_KERNELS = 3 + 2 * DTYPES };
/* Of linear attention: sums, forward, queries, keys; and one each by rows and of segments. */
enum { LINEAR_KERNELS = 4 * LINEAR_DIMS + 2 };
/* Of the table that materialises: softmax, its gradient, outputs by dtype, 16 bits widened. */
enum { SOFTMAX_KERNELS = 2 + DTYPES + 2 };
typedef enum kernel_kind {
    KERNEL_FORWARD,
    KERNEL_WARPGROUPS,
    KERNEL_QUERIES,
    KERNEL_KEYS,
    KERNEL_SINGLE,
    KERNEL_WARPGROUP_SINGLE,
    KERNEL_LINEAR,
    KERNEL_LINEAR_ROWWISE,
    KERNEL_SOFTMAX,
    KERNEL_ROWS
} kernel_kind;

typedef struct kernel_name {
    kernel_kind kind;
    ra_dtype dtype;
    int32_t dim;
} kernel_name;

/* "attention_kernelI12forward_passI10forward_16I12element_bf16Li128EEE..." */
static kernel_name parse_name(const char *line)
{
    static const struct {
        const char *text;
        kernel_kind kind;
    } names[] = {{"forward_pass", KERNEL_FORWARD},
                 {"forward_wgmma", KERNEL_WARPGROUPS},
                 {"queries_pass", KERNEL_QUERIES},
                 {"keys_pass", KERNEL_KEYS},
                 {"backward_single_16", KERNEL_SINGLE}, /* a pass for keys, too */
                 {"backward_single_wgmma", KERNEL_WARPGROUP_SINGLE},
                 {"linear_kernel", KERNEL_LINEAR},
                 {"linear_rowwise", KERNEL_LINEAR_ROWWISE},
                 {"softmax_kernel", KERNEL_SOFTMAX},
                 {"softgrad_kernel", KERNEL_SOFTMAX},
                 {"outputs_kernel", KERNEL_SOFTMAX},
                 {"widen_kernel", KERNEL_SOFTMAX}};
    kernel_name name = {.kind = KERNEL_ROWS};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i)
        if (strstr(line, names[i].text) != NULL)
            name.kind = names[i].kind;
    const char *const dim = strstr(line, "Li");
    if (name.kind == KERNEL_ROWS) {
        cr_assert(strstr(line, "rows_kernel") != NULL || strstr(line, "delta_kernel") != NULL ||
                      strstr(line, "segments_kernel") != NULL,
                  "%s", line);
    } else if (name.kind != KERNEL_LINEAR_ROWWISE && name.kind != KERNEL_SOFTMAX) {
        cr_assert_not_null(dim, "%s", line);
        name.dim = atoi(dim + 2);
    }
    name.dtype = strstr(line, "element_bf16") != NULL  ? RA_BF16
                 : strstr(line, "element_f16") != NULL ? RA_F16
                                                       : RA_F32;
    return name;
}

static int32_t registers_of(kernel_name name)
{
    switch (name.kind) {
    case KERNEL_ROWS:
        return 32; /* eight blocks of 256 threads */
    case KERNEL_SOFTMAX:
        return ra_cuda_registers(RA_CUDA_SOFTMAX_THREADS, RA_CUDA_SOFTMAX_BLOCKS);
    case KERNEL_WARPGROUPS:
        return ra_cuda_warpgroup_tile_of(name.dim).registers;
    case KERNEL_QUERIES:
        return ra_cuda_queries_of(name.dtype, name.dim).registers;
    case KERNEL_KEYS:
        return ra_cuda_keys_of(name.dtype, name.dim).registers;
    case KERNEL_SINGLE:
        return ra_cuda_single_of(name.dim).registers;
    case KERNEL_WARPGROUP_SINGLE:
        return ra_cuda_warpgroup_single_of(name.dim).registers;
    case KERNEL_LINEAR:
        return ra_cuda_linear_tile(name.dim).registers;
    case KERNEL_LINEAR_ROWWISE:
        return ra_cuda_linear_rowwise_tile().registers;
    default:
        return ra_cuda_tile_of(name.dtype, name.dim).registers;
    }
}

static void check_log(const char *path, int *kernels)
{
    char line[2048];
    kernel_name name = {0};
    FILE *const file = fopen(path, "r");
    cr_assert_not_null(file, "%s: there is no log of the compiler", path);
    while (fgets(line, sizeof(line), file) != NULL) {
        const char *const entry = strstr(line, "Compiling entry function '");
        const char *const used = strstr(line, "Used ");
        if (entry != NULL) {
            name = parse_name(entry);
            ++*kernels;
        }
        if (strstr(line, "bytes stack frame") != NULL)
            cr_expect_not_null(strstr(line, " 0 bytes stack frame, 0 bytes spill stores, "
                                            "0 bytes spill loads"),
                               "kernel %d dtype %d dim %d: %s", name.kind, name.dtype, name.dim,
                               line);
        if (used != NULL) {
            int const registers = atoi(used + 5), assumed = registers_of(name);
            /* Where warpgroups hand registers over, with fewer some would be waited for in vain. */
            cr_expect(name.kind == KERNEL_WARPGROUPS ? registers == assumed : registers <= assumed,
                      "kernel %d dtype %d dim %d: %s", name.kind, name.dtype, name.dim, line);
        }
        cr_expect_null(strstr(line, "serialized"), "%s", line);
        cr_expect_null(strstr(line, "setmaxnreg"), "%s", line); /* which it would ignore */
    }
    fclose(file);
}

Test(ptxas, kernels_keep_to_their_registers_and_out_of_local_memory)
{
    static const char *const logs[] = {RA_PTXAS_LOGS};
    int kernels = 0;
    for (size_t i = 0; i < sizeof(logs) / sizeof(logs[0]); ++i)
        check_log(logs[i], &kernels);
    cr_assert_eq(kernels, (ATTENTION_KINDS * DTYPES * DIMS + SINGLE_KERNELS + ROW_KERNELS +
                           LINEAR_KERNELS + SOFTMAX_KERNELS) *
                                  ARCHITECTURES +
                              WARPGROUP_KERNELS);
}
