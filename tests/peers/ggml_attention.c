/*
 * Dense attention by ggml, the library under llama.cpp, on the CPU: what docs/performance.md
 * compares `ringattn bench` with. Not part of the build, as ggml is not needed for anything else:
 *
 *   cmake -S ggml -B ggml/build -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF
 *   cmake --build ggml/build
 *   cc -O2 -Iggml/include tests/peers/ggml_attention.c -o ggml_attention \
 *      -Wl,--start-group ggml/build/src/libggml*.a -Wl,--end-group -fopenmp -lstdc++ -lm
 *   ./ggml_attention 8192 8 128 f16 2 5
 *
 * Queries are float32, as ggml takes them; keys and values in the dtype that is named.
 * SPDX-License-Identifier: BSD-3-Clause
 */
#include "ggml-cpu.h"
#include "ggml.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REPEATS_MAX = 100 };

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Uniform over [-1, 1). */
static void fill(struct ggml_tensor *tensor)
{
    int64_t const count = ggml_nelements(tensor);
    float *values = malloc(sizeof(float) * (size_t)count);
    uint32_t state = 1;
    if (values == NULL)
        exit(4);
    for (int64_t i = 0; i < count; ++i) {
        state = state * 1664525u + 1013904223u;
        values[i] = (float)(state >> 8) / (float)(1 << 23) - 1.0f;
    }
    if (tensor->type == GGML_TYPE_F32)
        memcpy(tensor->data, values, sizeof(float) * (size_t)count);
    else if (tensor->type == GGML_TYPE_F16)
        ggml_fp32_to_fp16_row(values, tensor->data, count);
    else
        ggml_fp32_to_bf16_row(values, tensor->data, count);
    free(values);
}

static int by_size(const void *a, const void *b)
{
    double const x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    if (argc != 7) {
        fprintf(stderr, "usage: %s SEQ HEADS HEAD_DIM f32|f16|bf16 THREADS REPEATS\n", argv[0]);
        return 2;
    }
    int64_t const seq = atoll(argv[1]), heads = atoll(argv[2]), dim = atoll(argv[3]);
    enum ggml_type const type = strcmp(argv[4], "f32") == 0   ? GGML_TYPE_F32
                                : strcmp(argv[4], "f16") == 0 ? GGML_TYPE_F16
                                                              : GGML_TYPE_BF16;
    int const threads = atoi(argv[5]), repeats = atoi(argv[6]);
    if (seq < 1 || heads < 1 || dim < 1 || threads < 1 || repeats < 1 || repeats > REPEATS_MAX)
        return 2;
    size_t const tensor_bytes = sizeof(float) * (size_t)(seq * heads * dim);
    struct ggml_context *context =
        ggml_init((struct ggml_init_params){.mem_size = 5 * tensor_bytes + ((size_t)256 << 20)});
    struct ggml_tensor *q = ggml_new_tensor_4d(context, GGML_TYPE_F32, dim, seq, heads, 1);
    struct ggml_tensor *k = ggml_new_tensor_4d(context, type, dim, seq, heads, 1);
    struct ggml_tensor *v = ggml_new_tensor_4d(context, type, dim, seq, heads, 1);
    fill(q);
    fill(k);
    fill(v);
    struct ggml_cgraph *graph = ggml_new_graph(context);
    ggml_build_forward_expand(
        graph, ggml_flash_attn_ext(context, q, k, v, NULL, 1.0f / sqrtf((float)dim), 0, 0));
    double ms[REPEATS_MAX];
    (void)ggml_graph_compute_with_ctx(context, graph, threads); /* warm-up */
    for (int i = 0; i < repeats; ++i) {
        double const begin = now_ms();
        if (ggml_graph_compute_with_ctx(context, graph, threads) != GGML_STATUS_SUCCESS)
            return 1;
        ms[i] = now_ms() - begin;
    }
    qsort(ms, (size_t)repeats, sizeof(*ms), by_size);
    double const median = ms[repeats / 2];
    double const flop = 4.0 * (double)seq * (double)seq * (double)(heads * dim);
    printf("%s: min %.0f, median %.0f ms, %.3f TFLOP/s\n", argv[4], ms[0], median,
           flop / median * 1e-9);
    ggml_free(context);
    return 0;
}
