/*
 * Time of the forward and backward kernels on the first GPU by CUDA events, TFLOP/s of live pairs
 * (4 dim each forward, 10 dim backward), bf16. Forward without and with delta, for which tops have
 * no slack. Backward as `deterministic: false` has it, and where that is another kernel, as `true`
 * does: the kernels alone, as a job of one rank calls them, without zeroing gradients before or
 * rounding those that were summed up in float32 after. Not a test.
 *
 *     cuda_bench [--json] [--once] [--sm_80 | --sm_90a_backward] [TOKENS [HEADS [DIM
 * [PATTERN...]]]]
 *
 * --once: a single launch of each, for tools that look on. Kernels are as compute.isa: auto has
 * them, forward by warpgroups where the GPU can, or as with the compute.isa of that name. Where a
 * multiprocessor holds fewer thread blocks than a kernel is made for, both numbers are printed.
 *
 * Defaults are 16384 16 128 and all patterns: dense, causal, window (causal, 1,024 wide), dilated
 * (every fourth token of segments of 8,192), and of blocks of 128 tokens blocks (dilated_sparse),
 * random (2 % of them), global (global_local: the first, and four on each side).
 */
#include "pool/cuda_error.h"
#include "ringattn/device.h"
#include "sparse/cuda/attention_launch.h"
#include "sparse/cuda/forward_cuts.h"
#include "sparse/cuda/launch_args.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 20, WARMUP = 3 };

static void check(ra_status status)
{
    if (status != RA_OK)
        exit(1); /* it has been said why */
}

static void check_cuda(cudaError_t error, const char *what)
{
    check(ra_cuda_status(error, what));
}

static int compare(const void *a, const void *b)
{
    float const x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void *take(ra_pool *pool, ra_category category, size_t bytes, ra_block *block)
{
    check(ra_pool_alloc(pool, category, bytes, NULL, block));
    return block->data;
}

/*
 * Normal values, because hardware is faster on zeros. A few million of them, over and over, which
 * takes the host a part of a second; so odd a number that no two rows nearby are alike.
 */
static void fill(char *device, int64_t count)
{
    enum { DRAWN = 4194301 };
    int64_t const drawn = count < DRAWN ? count : DRAWN;
    uint16_t *const host = malloc((size_t)drawn * 2);
    uint64_t state = 1;
    if (host == NULL)
        exit(1);
    for (int64_t i = 0; i < drawn; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        double const u = ((double)(state >> 40) + 0.5) / (1 << 24);
        state = state * 6364136223846793005u + 1442695040888963407u;
        double const v = (double)(state >> 40) / (1 << 24);
        ra_dtype_store(RA_BF16, host, i, (float)(sqrt(-2 * log(u)) * cos(6.283185307 * v)));
    }
    check_cuda(cudaMemcpy(device, host, (size_t)drawn * 2, cudaMemcpyHostToDevice), "filling");
    free(host);
    for (int64_t done = drawn; done < count; done *= 2) {
        int64_t const more = done < count - done ? done : count - done;
        check_cuda(
            cudaMemcpy(device + done * 2, device, (size_t)more * 2, cudaMemcpyDeviceToDevice),
            "filling");
    }
}

typedef struct bench {
    ra_pool *host, *gpu;
    int64_t tokens;
    int32_t heads, dim;
    int64_t shared_bytes; /* most of a thread block */
    int multiprocessors;
    bool json, warpgroups, backward_warpgroups;
    int warmup, repeats;
    int points; /* so far */
    ra_view q, k, v, out, dout, dq, dk, dv;
    ra_view dq_sums; /* float32: of many thread blocks */
    float *lse, *delta;
    uint32_t *tickets; /* no pattern shares rows, which would take scratch */
    void *parts;       /* of long tasks, by warpgroups */
    size_t parts_bytes;
} bench;

/* One launch; the other is NULL. */
typedef struct pass {
    const ra_cuda_forward *forward;
    const ra_cuda_backward *backward;
} pass;

static void launch(const pass *p, ra_cuda_grid *grid)
{
    if (p->forward != NULL)
        check_cuda(ra_cuda_launch_forward(p->forward, grid), "launching");
    else
        check_cuda(ra_cuda_launch_backward(p->backward, grid), "launching");
}

/* Milliseconds of launches, in order of size; what came of them. */
static ra_cuda_grid time_launches(const bench *b, const pass *p, float times[REPEATS])
{
    ra_cuda_grid grid = {.multiprocessors = b->multiprocessors};
    cudaEvent_t begin, end;
    uint32_t *const tickets = p->forward != NULL ? p->forward->ticket : p->backward->tickets;
    check_cuda(cudaEventCreate(&begin), "making an event");
    check_cuda(cudaEventCreate(&end), "making an event");
    for (int i = -b->warmup; i < b->repeats; i++) {
        float ms = 0;
        check_cuda(cudaMemsetAsync(tickets, 0, RA_CUDA_TICKETS_BYTES, NULL), "resetting tickets");
        if (p->forward != NULL && p->forward->cuts.tasks > 0)
            check_cuda(cudaMemsetAsync(p->forward->cuts.arrived, 0,
                                       ra_cuda_arrived_bytes(&p->forward->cuts), NULL),
                       "resetting arrivals");
        check_cuda(cudaEventRecord(begin, NULL), "recording an event");
        launch(p, &grid);
        check_cuda(cudaEventRecord(end, NULL), "recording an event");
        check_cuda(cudaEventSynchronize(end), "computing");
        check_cuda(cudaEventElapsedTime(&ms, begin, end), "reading an event");
        if (i >= 0)
            times[i] = ms;
    }
    check_cuda(cudaEventDestroy(begin), "giving an event back");
    check_cuda(cudaEventDestroy(end), "giving an event back");
    qsort(times, (size_t)b->repeats, sizeof(times[0]), compare);
    return grid;
}

/* Time it and print it; of `flops` per live pair and dim. Its name is out before it begins: what
   hangs says no more. */
static void run_pass(const bench *b, const char *name, const char *direction, double flops,
                     const pass *p, int64_t live_pairs)
{
    float times[REPEATS];
    if (b->json)
        printf(", \"tflops_%s\": ", direction);
    else
        printf("%-10s %-22s ", name, direction);
    fflush(stdout);
    ra_cuda_grid const grid = time_launches(b, p, times);
    double const ms = (double)times[b->repeats / 2];
    double const tflops = flops * b->dim * (double)live_pairs / (ms * 1e9);
    if (b->json)
        printf("%.6g, \"%s_ms\": {\"min\": %.6g, \"median\": %.6g, \"max\": %.6g}", tflops,
               direction, (double)times[0], ms, (double)times[b->repeats - 1]);
    else
        printf("%10.3f ms %8.1f TFLOP/s  (%lld live pairs)\n", ms, tflops, (long long)live_pairs);
    if (grid.assumed > 0)
        printf(b->json
                   ? ", \"%s_blocks\": {\"held\": %d, \"assumed\": %d}"
                   : "           %s: slower, as a multiprocessor holds %d thread blocks of %d\n",
               direction, grid.held, grid.assumed);
    fflush(stdout); /* whatever the next one does */
}

static void run_passes(bench *b, const char *name, const ra_tilemap *map, const void *copy)
{
    ra_kernel_shape const shape = {.batch = 1,
                                   .q_heads = b->heads,
                                   .kv_heads = b->heads,
                                   .dim = b->dim,
                                   .scale = 1 / sqrtf((float)b->dim)};
    ra_forward_step const forward = {.map = map,
                                     .shape = shape,
                                     .q = b->q,
                                     .k = b->k,
                                     .v = b->v,
                                     .out = b->out,
                                     .lse = b->lse,
                                     .lse_batch_stride = b->heads * b->tokens,
                                     .first = true,
                                     .last = true};
    ra_forward_step with_delta = forward;
    with_delta.dout = b->dout;
    with_delta.delta = b->delta;
    ra_backward_step backward = {.map = map,
                                 .shape = shape,
                                 .q = b->q,
                                 .k = b->k,
                                 .v = b->v,
                                 .dout = b->dout,
                                 .lse = b->lse,
                                 .lse_batch_stride = b->heads * b->tokens,
                                 .delta = b->delta,
                                 .dq = b->dq,
                                 .dk = b->dk,
                                 .dv = b->dv};
    check(ra_cuda_step_check(&with_delta.shape, with_delta.map, with_delta.q.dtype));
    check(ra_cuda_backward_check(&backward));
    ra_cuda_forward f = ra_cuda_forward_args(&forward, copy, NULL, b->tickets);
    ra_cuda_forward d = ra_cuda_forward_args(&with_delta, copy, NULL, b->tickets);
    f.warpgroups = d.warpgroups = b->warpgroups;
    if (b->warpgroups) {
        ra_cuda_tile const tile = ra_cuda_warpgroup_tile_of(b->dim);
        f.cuts = d.cuts = ra_cuda_cuts_of(&forward, b->multiprocessors * tile.blocks_per_sm,
                                          tile.k_rows, b->parts, b->parts_bytes);
    }
    bool const single = ra_cuda_has_single(RA_BF16, b->dim, b->shared_bytes);
    if (b->json)
        printf("%s\n  {\"pattern\": \"%s\", \"live_pairs\": %lld", b->points > 0 ? "," : "", name,
               (long long)map->live_pairs);
    run_pass(b, name, "forward", 4, &(pass){.forward = &f}, map->live_pairs);
    run_pass(b, name, "forward_delta", 4, &(pass){.forward = &d}, map->live_pairs);
    for (int way = single ? 0 : 1; way < 2; way++) {
        backward.dq = way == 0 ? b->dq_sums : b->dq;
        ra_cuda_backward g = ra_cuda_backward_args(&backward, copy, way == 0, f.ticket);
        g.warpgroups = b->backward_warpgroups && way == 0;
        run_pass(b, name, single && way == 1 ? "backward_deterministic" : "backward", 10,
                 &(pass){.backward = &g}, map->live_pairs);
    }
    printf(b->json ? "}" : "");
    b->points++;
}

static void run(bench *b, const char *name, const ra_pattern_config *config)
{
    ra_pattern *pattern;
    ra_rowset rows;
    ra_tilemap map;
    ra_block copy;
    ra_range const all = {0, 1, b->tokens};
    check(ra_pattern_create(config, b->tokens, b->heads, b->host, &pattern));
    check(ra_rowset_init(b->host, &all, 1, &rows));
    check(ra_tilemap_init(&(ra_map_request){pattern, (ra_heads){0, 1, b->heads}, &rows, &rows,
                                            ra_cuda_tile_of(RA_BF16, b->dim).q_rows, true},
                          b->host, &map));
    take(b->gpu, RA_MEM_TILEMAP, (size_t)ra_tilemap_array_bytes(&map), &copy);
    check_cuda(cudaMemcpy(copy.data, map.layers, (size_t)ra_tilemap_array_bytes(&map),
                          cudaMemcpyHostToDevice),
               "copying the tile map");
    run_passes(b, name, &map, copy.data);
    ra_pool_free(b->gpu, NULL, &copy);
    ra_tilemap_fini(b->host, &map);
    ra_rowset_fini(b->host, &rows);
    ra_pattern_destroy(pattern);
}

typedef struct named_pattern {
    const char *name;
    ra_pattern_config config;
} named_pattern;

static const int64_t segments[] = {8192}, rates[] = {4};

/* The same patterns as those of tests/gpu/peers.py, and of what gpu-check.sh runs as jobs. */
static const named_pattern patterns[] = {
    {"dense", {.window_left = -1, .window_right = -1}},
    {"causal", {.window_left = -1, .window_right = -1, .causal = true}},
    {"window", {.window_left = 1023, .window_right = -1, .causal = true}},
    {"blocks",
     {.window_left = -1,
      .window_right = -1,
      .blocks_kind = RA_BLOCKS_DILATED_SPARSE,
      .block_size = 128,
      .block_density = 0.02}},
    {"random",
     {.window_left = -1,
      .window_right = -1,
      .blocks_kind = RA_BLOCKS_RANDOM,
      .block_size = 128,
      .block_density = 0.02}},
    {"global",
     {.window_left = -1,
      .window_right = -1,
      .blocks_kind = RA_BLOCKS_GLOBAL_LOCAL,
      .block_size = 128,
      .block_globals = 1,
      .block_width = 4}},
    {"dilated",
     {.window_left = -1,
      .window_right = -1,
      .segments = segments,
      .rates = rates,
      .branch_count = 1}},
};

enum { PATTERNS = sizeof(patterns) / sizeof(patterns[0]) };

static void run_named(bench *b, const char *name)
{
    for (int i = 0; i < PATTERNS; i++)
        if (strcmp(name, patterns[i].name) == 0) {
            run(b, name, &patterns[i].config);
            return;
        }
    fprintf(stderr, "cuda_bench: %s: the patterns are", name);
    for (int i = 0; i < PATTERNS; i++)
        fprintf(stderr, "%s %s", i > 0 ? "," : "", patterns[i].name);
    fprintf(stderr, "\n");
    exit(2);
}

/* A number of at least 1, or the end. */
static int64_t number(const char *text)
{
    char *end;
    long long const value = strtoll(text, &end, 10);
    if (*end != '\0' || value < 1 || value > INT32_MAX) {
        fprintf(stderr, "cuda_bench: %s: a whole number from 1 on is wanted\n", text);
        exit(2);
    }
    return value;
}

/* Code for sm_90a runs on 9.0 alone, and is not of every build; head_dims of it serve both passes.
 */
static bool has_warpgroups(const ra_device *device, int32_t dim)
{
#ifdef RA_CUDA_SM90A
    return device->major == 9 && device->minor == 0 && ra_cuda_has_warpgroups(RA_BF16, dim);
#else
    (void)device;
    (void)dim;
    return false;
#endif
}

enum { TENSORS_16 = 8, TENSORS_32 = 1, BLOCKS = TENSORS_16 + TENSORS_32 + 4 };

/* Elements, sums of dq, lse, delta, tickets and parts. */
static void take_all(bench *b, ra_block blocks[BLOCKS])
{
    int64_t const count = b->tokens * b->heads * b->dim, rows = b->tokens * b->heads;
    ra_view *const views[] = {&b->q,  &b->k,  &b->v,  &b->out,    &b->dout,
                              &b->dq, &b->dk, &b->dv, &b->dq_sums};
    ra_block *block = blocks;
    for (int i = 0; i < TENSORS_16 + TENSORS_32; i++, block++) {
        ra_dtype const dtype = i < TENSORS_16 ? RA_BF16 : RA_F32;
        size_t const bytes = (size_t)count * ra_dtype_bytes(dtype);
        void *const data =
            take(b->gpu, dtype == RA_F32 ? RA_MEM_ACCUMULATOR : RA_MEM_QKV, bytes, block);
        if (dtype == RA_F32)
            check_cuda(cudaMemset(data, 0, bytes), "zeroing sums");
        else
            fill(data, count);
        *views[i] = ra_view_dense(data, dtype, b->tokens, b->heads, b->dim, 0);
    }
    b->lse = take(b->gpu, RA_MEM_LSE, (size_t)rows * sizeof(float), block++);
    b->delta = take(b->gpu, RA_MEM_ACCUMULATOR, (size_t)rows * sizeof(float), block++);
    b->tickets = take(b->gpu, RA_MEM_WORKSPACE, RA_CUDA_TICKETS_BYTES, block++);
    if (b->warpgroups) {
        b->parts_bytes = ra_cuda_cuts_bytes(
            b->multiprocessors * ra_cuda_warpgroup_tile_of(b->dim).blocks_per_sm, b->dim);
        b->parts = take(b->gpu, RA_MEM_WORKSPACE, b->parts_bytes, block);
    }
}

int main(int argc, char **argv)
{
    bool json = false, once = false, is_sm80 = false, is_backward = false;
    int at = 1;
    for (; at < argc; at++)
        if (strcmp(argv[at], "--json") == 0)
            json = true;
        else if (strcmp(argv[at], "--once") == 0)
            once = true;
        else if (strcmp(argv[at], "--sm_80") == 0)
            is_sm80 = true;
        else if (strcmp(argv[at], "--sm_90a_backward") == 0)
            is_backward = true;
        else
            break;
    bench b = {.json = json,
               .warmup = once ? 0 : WARMUP,
               .repeats = once ? 1 : REPEATS,
               .tokens = argc > at ? number(argv[at]) : 16384,
               .heads = argc > at + 1 ? (int32_t)number(argv[at + 1]) : 16,
               .dim = argc > at + 2 ? (int32_t)number(argv[at + 2]) : 128};
    ra_devices devices;
    ra_memory memory;
    ra_ledger *ledger;
    ra_block blocks[BLOCKS] = {0};
    check(ra_memory_device(0, &memory));
    ra_devices_read(&devices);
    check(ra_ledger_create(INT64_MAX, &ledger));
    check(ra_pool_create(&(ra_pool_config){.memory = memory, .ledger = ledger}, &b.gpu));
    check(ra_pool_create(&(ra_pool_config){.memory = ra_memory_host(), .ledger = ledger}, &b.host));
    b.shared_bytes = devices.list[0].shared_bytes;
    b.multiprocessors = devices.list[0].multiprocessors;
    b.warpgroups = !is_sm80 && has_warpgroups(&devices.list[0], b.dim);
    b.backward_warpgroups = is_backward && b.warpgroups;
    if (is_backward && !b.warpgroups) {
        fprintf(stderr,
                "cuda_bench: --sm_90a_backward: not on this GPU, in this build, of this dim\n");
        return 2;
    }
    take_all(&b, blocks);
    printf(b.json ? "{\"device\": \"%s\", \"isa\": \"%s\", \"dtype\": \"bf16\", \"tokens\": %lld, "
                    "\"heads\": %d, \"head_dim\": %d, \"repeats\": %d, \"points\": ["
                  : "%s, %s, bf16, %lld tokens, %d heads of %d; median of %d\n",
           devices.list[0].name,
           b.backward_warpgroups ? "sm_90a_backward"
           : b.warpgroups        ? "sm_90a"
                                 : "sm_80",
           (long long)b.tokens, b.heads, b.dim, b.repeats);
    for (int i = 0; i < PATTERNS && argc <= at + 3; i++)
        run_named(&b, patterns[i].name);
    for (int i = at + 3; i < argc; i++)
        run_named(&b, argv[i]);
    printf(b.json ? "]}\n" : "");
    for (int i = 0; i < BLOCKS; i++)
        ra_pool_free(b.gpu, NULL, &blocks[i]);
    ra_pool_destroy(b.host);
    ra_pool_destroy(b.gpu);
    ra_ledger_destroy(ledger);
    return 0;
}
