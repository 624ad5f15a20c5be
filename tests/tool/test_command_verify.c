/* Right results of tensors as models have them, whose elements have a mean, pass verification. */
#include "tool/command_runner.h"

#include "internal.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(command_verify, .init = command_folder_make, .fini = command_folder_remove,
          .timeout = 200);

enum { SEQ = 512, DIM = 32, COUNT = SEQ * DIM };

/* Each element is the sum of four uniform numbers, of variance 1, and its tensor's mean. */
static float element(int tensor, int at, const double *means)
{
    double sum = 0;
    for (int u = 0; u < 4; u++)
        sum += (double)ra_mix64((uint64_t)((tensor * COUNT + at) * 4 + u)) / 0x1p64 - 0.5;
    return (float)(means[tensor] + sum * 1.7320508);
}

enum { ROWS_EQUAL = 16 };

/* Of tensors whose rows are equal; rows of do are at a right angle to those of v. */
static float element_of_row(int tensor, int d, const double *means)
{
    if (tensor < 3)
        return element(tensor, d, means);
    return d % 2 == 0 ? element(2, d + 1, means) : -element(2, d - 1, means);
}

/* `bytes` of each float are stored, the upper ones: 4, or 2 for bf16. `equal`: bits of tensors
   whose elements are their mean, or ROWS_EQUAL. */
static void write_input(size_t bytes, const double *means, unsigned equal)
{
    static const char *const names[] = {"q", "k", "v", "do"};
    static unsigned char file[8 + 512 + 4 * COUNT * sizeof(float)];
    char header[512 + 1] = "{";
    for (size_t t = 0; t < 4; t++)
        snprintf(header + strlen(header), sizeof(header) - strlen(header),
                 "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[1,%d,1,%d],\"data_offsets\":[%zu,%zu]}%s",
                 t > 0 ? "," : "", names[t], bytes == 2 ? "BF16" : "F32", SEQ, DIM,
                 t * COUNT * bytes, (t + 1) * COUNT * bytes, t == 3 ? "}" : "");
    size_t const length = strlen(header);
    memset(file, 0, 8);
    file[0] = (unsigned char)(length & 0xff);
    file[1] = (unsigned char)(length >> 8);
    memcpy(file + 8, header, length);
    unsigned char *to = file + 8 + length;
    for (int t = 0; t < 4; t++)
        for (int i = 0; i < COUNT; i++, to += bytes) {
            float const value = (equal >> t & 1) != 0 ? (float)means[t]
                                : equal == ROWS_EQUAL ? element_of_row(t, i % DIM, means)
                                                      : element(t, i, means);
            memcpy(to, (const char *)&value + sizeof(value) - bytes, bytes);
        }
    command_file_write("in.st", file, (size_t)(to - file));
}

/* float32 sums of linear attention are states, in which values with a mean add up. */
Test(command_verify, tensors_with_a_mean_pass)
{
    static const struct {
        size_t bytes;
        const char *more;
        double means[4];
    } cases[] = {{2, "", {0, 30, 0, 0}},
                 {2, "", {0, 0, 30, 0}},
                 {2, "", {0, 4, 10, 1}},
                 {4, "", {0, 30, 10, 1}},
                 {4, "--set attention.kind=linear", {0, 0, 3, 0}},
                 {4, "--set attention.kind=linear_causal", {0, 0, 3, 1}}};
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        char line[160];
        command_result result;
        write_input(cases[c].bytes, cases[c].means, 0);
        snprintf(line, sizeof(line), "run --backward --verify --input in.st %s", cases[c].more);
        command_run(&result, 0, line);
        cr_expect_eq(result.code, 0, "case %zu: %s%s", c, result.out, result.err);
    }
}

/* Eight times the usual scale: a weight's error is that of its score, and of its row's lse. */
Test(command_verify, large_scores_of_long_heads_pass)
{
    for (int i = 0; i < 6; i++) {
        char line[256];
        snprintf(line, sizeof(line),
                 "run --quiet --backward --verify --set shape.dtype=f32 --set shape.scale=0.5 "
                 "--set shape.heads=2 --set shape.seq=50 --set shape.head_dim=%d "
                 "--set pattern.causal=true --set job.seed=%d",
                 i < 3 ? 192 : 256, 1 + i % 3);
        command_result result;
        command_run(&result, 0, line);
        cr_expect_eq(result.code, 0, "%s\n%s\n%s", line, result.out, result.err);
    }
}

/* All terms of a sum are rounded in the same direction then, and dq and dk are 0 but for that. */
Test(command_verify, tensors_of_equal_elements_pass)
{
    enum { Q = 1, K = 2, V = 4, DO = 8 };
    static const unsigned equal[] = {Q | K | V | DO, Q | K | V,  Q | K | DO,
                                     K | V | DO,     Q | V | DO, Q | DO};
    static const double values[][4] = {{1, 1, 1, 1}, {0.3, 0.3, 0.3, 0.3}, {2, 3, 0.7, 0.1}};
    for (size_t e = 0; e < sizeof(equal) / sizeof(equal[0]); e++)
        for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
            command_result result;
            write_input(v == 2 ? 2 : 4, values[v], equal[e]);
            command_run(&result, 0,
                        e % 2 == 0 ? "run --backward --verify --input in.st"
                                   : "run --backward --verify --input in.st --set "
                                     "pattern.causal=true");
            cr_expect_eq(result.code, 0, "tensors %x of %g: %s%s", equal[e], values[v][0],
                         result.out, result.err);
        }
}

/* Each dim of an output is rounded in a direction of its own then, so delta is off though it is 0,
   and dq and dk are nothing but that. */
Test(command_verify, tensors_of_equal_rows_pass)
{
    static const char *const more[] = {"", "--set pattern.causal=true",
                                       "--set attention.kind=linear",
                                       "--set attention.kind=linear_causal"};
    static const double means[4] = {0};
    write_input(4, means, ROWS_EQUAL);
    for (size_t m = 0; m < sizeof(more) / sizeof(more[0]); m++) {
        char line[160];
        command_result result;
        snprintf(line, sizeof(line), "run --backward --verify --input in.st %s", more[m]);
        command_run(&result, 0, line);
        cr_expect_eq(result.code, 0, "%s: %s%s", line, result.out, result.err);
    }
}
