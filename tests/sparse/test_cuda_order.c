/* The order in which thread blocks of the CUDA kernels draw tasks: the last ones end together. */
#include "internal.h"
#include "sparse/cuda/launch_args.h"
#include "sparse/list_schedule.h"
#include "sparse/mapped.h"

#include <criterion/criterion.h>
#include <stdlib.h>

enum { TASKS_MAX = 1 << 17 };

/* ---- a launch, played through ---------------------------------------------------------------- */

/* The longest way through over what it would be if all thread blocks were at work until the end, or
   over the longest task. */
static double wasted(const double *tasks, int64_t count)
{
    double sum = 0, longest = 0;
    for (int64_t i = 0; i < count; ++i) {
        sum += tasks[i];
        longest = tasks[i] > longest ? tasks[i] : longest;
    }
    double const even = sum / SCHEDULE_BLOCKS_MOST;
    return list_schedule_end(tasks, count, SCHEDULE_BLOCKS_MOST) /
           (even > longest ? even : longest);
}

typedef struct launch {
    mapped m;
    ra_cuda_forward forward;
    ra_cuda_backward backward;
} launch;

static uint32_t tickets[2];
static const ra_view view = {.dtype = RA_BF16};

static ra_kernel_shape shape_of(int32_t q_heads, int32_t kv_heads)
{
    return (ra_kernel_shape){
        .batch = 2, .q_heads = q_heads, .kv_heads = kv_heads, .dim = 128, .scale = 1};
}

static ra_cuda_backward backward_of(const ra_tilemap *map, ra_kernel_shape shape, bool ends_only)
{
    ra_backward_step const step = {
        .map = map, .shape = shape, .q = view, .k = view, .ends_only = ends_only};
    return ra_cuda_backward_args(&step, map->layers, false, tickets);
}

static void make_launch(const ra_pattern_config *config, int32_t tokens, int32_t q_heads,
                        int32_t kv_heads, bool ends_only, launch *l)
{
    ra_kernel_shape const shape = shape_of(q_heads, kv_heads);
    l->m = mapped_make(&(mapped_config){.pattern = config,
                                        .rows = tokens,
                                        .heads = q_heads,
                                        .tile_rows = ra_cuda_tile_of(RA_BF16, 128).q_rows,
                                        .by_keys = true});
    ra_forward_step const forward = {.map = &l->m.map,
                                     .shape = shape,
                                     .q = view,
                                     .k = view,
                                     .v = view,
                                     .first = true,
                                     .last = true,
                                     .ends_only = ends_only};
    l->forward = ra_cuda_forward_args(&forward, l->m.map.layers, NULL, tickets);
    l->backward = backward_of(&l->m.map, shape, ends_only);
}

/* ---- how long tasks take: the pairs of their rows, by definition ----------------------------- */

typedef struct scheme {
    const char *name;
    ra_pattern_config config;
    bool mirrored; /* keys are seen by as many queries as see their mirror image's; else by as many
                      as they see themselves */
} scheme;

static double pairs_of(const launch *l, int64_t begin, int64_t end)
{
    return (double)ra_pattern_area(l->m.pattern, (ra_range){begin, 1, end - begin});
}

static double *chunk_pairs(const launch *l)
{
    const ra_tilemap *map = &l->m.map;
    double *pairs = calloc((size_t)map->chunk_count, sizeof(*pairs));
    for (int64_t c = 0; c < map->chunk_count; ++c)
        pairs[c] =
            pairs_of(l, c * map->chunk_rows, ra_min_i64((c + 1) * map->chunk_rows, map->q_rows));
    return pairs;
}

static double queries_wasted(const launch *l, bool backward)
{
    double *const chunks = chunk_pairs(l), *const tasks = calloc(TASKS_MAX, sizeof(*tasks));
    int64_t const count = backward ? l->backward.q_tasks : l->forward.tasks;
    cr_assert_leq(count, TASKS_MAX);
    for (int64_t i = 0; i < count; ++i)
        tasks[i] = chunks[backward ? ra_cuda_query_task_of(&l->backward, i).chunk
                                   : ra_cuda_task_of(&l->forward, i).chunk];
    double const result = wasted(tasks, count);
    free(tasks);
    free(chunks);
    return result;
}

static double keys_wasted(const launch *l, bool mirrored)
{
    double *const tasks = calloc(TASKS_MAX, sizeof(*tasks));
    int64_t const n = l->m.map.k_rows;
    cr_assert_leq(l->backward.k_tasks, TASKS_MAX);
    for (int64_t i = 0; i < l->backward.k_tasks; ++i) {
        ra_cuda_key_task const task = ra_cuda_key_task_of(&l->backward, i);
        tasks[i] = mirrored ? pairs_of(l, n - task.row_end, n - task.row_begin)
                            : pairs_of(l, task.row_begin, task.row_end);
    }
    double const result = wasted(tasks, l->backward.k_tasks);
    free(tasks);
    return result;
}

/* ---- claims ---------------------------------------------------------------------------------- */

static scheme causal(void)
{
    scheme s = {"causal", ra_pattern_config_dense(), true};
    s.config.causal = true;
    return s;
}

static scheme global_local(void)
{
    scheme s = {"global_local", ra_pattern_config_dense(), false};
    s.config.blocks_kind = RA_BLOCKS_GLOBAL_LOCAL;
    s.config.block_size = 128;
    s.config.block_globals = 1;
    s.config.block_width = 1;
    return s;
}

Test(cuda_order, thread_blocks_end_together)
{
    static const int32_t tokens[] = {4096, 16384, 65536};
    scheme const schemes[] = {causal(), global_local()};
    for (int i = 0; i < 6; ++i) {
        const scheme *s = &schemes[i % 2];
        launch l;
        make_launch(&s->config, tokens[i / 2], 8, 4, false, &l);
        double const ways[3] = {queries_wasted(&l, false), queries_wasted(&l, true),
                                keys_wasted(&l, s->mirrored)};
        for (int w = 0; w < 3; ++w)
            cr_expect_lt(ways[w], 1.03,
                         "%s over %d tokens, kernel %d: %g times as long as it could", s->name,
                         tokens[i / 2], w, ways[w]);
        mapped_free(&l.m);
    }
}

/* With a group per head the long tasks of the last head are drawn when others have ended. */
Test(cuda_order, head_by_head_would_waste_what_groups_do_not)
{
    scheme const s = causal();
    launch l;
    make_launch(&s.config, 16384, 8, 8, false, &l);
    cr_expect_float_eq(queries_wasted(&l, false), 1.01, 0.005, "%g", queries_wasted(&l, false));
    l.forward.order = ra_cuda_order_of(2, 8, 2 * 8, l.m.map.chunk_count);
    cr_expect_float_eq(queries_wasted(&l, false), 1.12, 0.005, "%g", queries_wasted(&l, false));
    mapped_free(&l.m);
}

static uint32_t groups_of(const ra_cuda_order *order)
{
    return (order->heads + order->group_heads.value - 1) / order->group_heads.value;
}

/* Heads that share keys go together; as many as the cache holds, and those of a window at once;
   also some of a map's heads. */
Test(cuda_order, heads_go_together_while_what_they_read_fits_the_cache)
{
    scheme dense = causal(), window = causal();
    launch l;
    dense.config.causal = false;
    window.config.window_left = 1023;
    make_launch(&dense.config, 16384, 8, 4, false, &l); /* of a kv head 8 MiB, 16 of its queries */
    cr_expect_eq(groups_of(&l.forward.order), 2);
    cr_expect_eq(groups_of(&l.backward.q_order), 2);
    cr_expect_eq(groups_of(&l.backward.k_order), 4);
    ra_cuda_backward const half = backward_of(&l.m.map, shape_of(4, 2), false);
    cr_expect_eq(groups_of(&half.k_order), 2);
    mapped_free(&l.m);
    make_launch(&dense.config, 131072, 8, 8, false, &l);
    cr_expect_eq(groups_of(&l.forward.order), 16, "heads of two batches, each for itself");
    cr_expect_eq(groups_of(&l.backward.k_order), 16);
    mapped_free(&l.m);
    make_launch(&window.config, 131072, 8, 8, false, &l);
    cr_expect_eq(groups_of(&l.forward.order), 1);
    cr_expect_eq(groups_of(&l.backward.k_order), 1);
    mapped_free(&l.m);
}

/* Blocks at a stride: chunks side by side see no key in common, but those a stride apart all. */
Test(cuda_order, a_head_whose_chunks_share_keys_from_afar_goes_alone)
{
    scheme strided = causal(), dilated = causal();
    launch l;
    strided.config.causal = false;
    strided.config.blocks_kind = RA_BLOCKS_DILATED_SPARSE;
    strided.config.block_size = 128;
    strided.config.block_density = 0.02;
    make_launch(&strided.config, 131072, 8, 8, false, &l);
    cr_expect_eq(groups_of(&l.forward.order), 16);
    mapped_free(&l.m);
    /* Of a segment's keys every fourth is read. */
    dilated.config.causal = false;
    dilated.config.segments = (int64_t[]){8192};
    dilated.config.rates = (int64_t[]){4};
    dilated.config.branch_count = 1;
    make_launch(&dilated.config, 131072, 8, 8, false, &l);
    cr_expect_eq(groups_of(&l.forward.order), 1);
    mapped_free(&l.m);
}

Test(cuda_order, ends_are_the_first_and_last_chunk_whichever_is_longer)
{
    scheme const schemes[] = {causal(), global_local()};
    for (int i = 0; i < 2; ++i) {
        launch l;
        make_launch(&schemes[i].config, 4096, 8, 4, true, &l);
        cr_assert_eq(l.forward.tasks, 2 * 8 * 2);
        int32_t const first = ra_cuda_task_of(&l.forward, 0).chunk;
        int32_t const last = ra_cuda_task_of(&l.forward, l.forward.tasks - 1).chunk;
        cr_expect_eq(first, i == 0 ? l.m.map.chunk_count - 1 : 0, "%s", schemes[i].name);
        cr_expect_eq(last, i == 0 ? 0 : l.m.map.chunk_count - 1);
        cr_expect_eq(ra_cuda_query_task_of(&l.backward, 0).chunk, first);
        mapped_free(&l.m);
    }
}

/* dq of which is summed in any order: in bf16, into float32, and not where it must repeat. */
Test(cuda_order, one_backward_kernel_serves_where_results_need_not_repeat)
{
    static const struct {
        ra_dtype dtype, dq;
        int32_t dim;
        bool deterministic, goes;
    } cases[] = {{RA_BF16, RA_F32, 64, false, true},   {RA_BF16, RA_F32, 64, true, false},
                 {RA_BF16, RA_F32, 128, false, true},  {RA_BF16, RA_F32, 129, false, false},
                 {RA_BF16, RA_BF16, 64, false, false}, {RA_F16, RA_F32, 64, false, false},
                 {RA_F32, RA_F32, 64, false, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
        ra_backward_step const step = {.q = {.dtype = cases[i].dtype},
                                       .dq = {.dtype = cases[i].dq},
                                       .shape = {.dim = cases[i].dim}};
        cr_expect_eq(ra_cuda_goes_single(&step, cases[i].deterministic, INT64_MAX), cases[i].goes,
                     "case %zu", i);
    }
}
