/* Which tasks of a forward launch are cut into parts (forward_cuts.h), and what that saves. */
#include "internal.h"
#include "sparse/cuda/forward_cuts.h"
#include "sparse/cuda/key_cursor.h"
#include "sparse/list_schedule.h"
#include "sparse/mapped.h"

#include <criterion/criterion.h>
#include <stdlib.h>

enum { BLOCKS = MULTIPROCESSORS, K_ROWS = 128 /* of a step */, HEADS = 4, TOKENS = 131072 };

typedef struct launch {
    mapped m;
    ra_forward_step step;
    ra_cuda_cuts cuts;
    char *room;
} launch;

static ra_cuda_cuts cuts_of(launch *l, size_t bytes)
{
    l->step.map = &l->m.map; /* it has moved with the launch */
    return ra_cuda_cuts_of(&l->step, BLOCKS, K_ROWS, l->room, bytes);
}

static launch make(const ra_pattern_config *config, int32_t tokens, int32_t batch, size_t bytes)
{
    launch l = {.room = malloc(bytes > 0 ? bytes : 1)};
    l.m = mapped_make(&(mapped_config){
        .pattern = config, .rows = tokens, .heads = HEADS, .tile_rows = 128, .by_keys = false});
    l.step = (ra_forward_step){
        .shape = {.batch = batch, .q_heads = HEADS, .kv_heads = HEADS, .dim = 128, .scale = 1},
        .first = true,
        .last = true};
    l.cuts = cuts_of(&l, bytes);
    return l;
}

static void finish(launch *l)
{
    mapped_free(&l->m);
    free(l->room);
}

static ra_pattern_config global(void)
{
    ra_pattern_config config = ra_pattern_config_dense();
    config.blocks_kind = RA_BLOCKS_GLOBAL_LOCAL;
    config.block_size = 128;
    config.block_globals = 1;
    config.block_width = 4;
    return config;
}

/* Steps of a chunk from so many on, one by one. */
static int64_t steps_of(const ra_tilemap *map, int32_t chunk, int32_t skipped, int64_t most)
{
    ra_tile const *const tile = &map->tiles[map->layers[0].chunk_tile[chunk]];
    ra_key_cursor c;
    int64_t steps = 0;
    ra_key_cursor_begin(tile, tile[1].run_begin, map->runs, &c);
    ra_key_cursor_skip(&c, K_ROWS, skipped);
    for (; !ra_key_cursor_is_over(&c) && steps < most; ++steps)
        ra_key_cursor_next(&c, K_ROWS);
    return steps;
}

/* The share of the time until the last task's end that thread blocks are at work. */
static double busy(const double *tasks, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; ++i)
        sum += tasks[i];
    return sum / BLOCKS / list_schedule_end(tasks, count, BLOCKS);
}

Test(cuda_cuts, parts_of_long_tasks_let_thread_blocks_end_together)
{
    ra_pattern_config const config = global();
    launch l = make(&config, TOKENS, 1, ra_cuda_cuts_bytes(BLOCKS, 128));
    const ra_tilemap *const map = &l.m.map;
    int64_t const whole = HEADS * (int64_t)map->chunk_count;
    double *const tasks = calloc((size_t)(l.cuts.tasks + 2 * whole), sizeof(*tasks));
    int64_t count = 0, plain = l.cuts.tasks + whole;
    cr_assert_eq(l.cuts.count, 1, "%d", l.cuts.count);
    cr_assert_eq(l.cuts.of[0].chunk, 0);
    for (; count < l.cuts.tasks; ++count) {
        ra_cuda_part const part = ra_cuda_part_of(&l.cuts, count);
        tasks[count] = (double)steps_of(map, 0, part.part * l.cuts.part_steps, l.cuts.part_steps);
        cr_assert_gt(tasks[count], 0);
    }
    for (int64_t i = 0; i < whole; ++i) {
        int32_t const chunk = (int32_t)(i / HEADS);
        double const steps = (double)steps_of(map, chunk, 0, INT64_MAX);
        tasks[plain + i] = steps; /* the long one first, as it is without cuts */
        if (!ra_cuda_is_cut(&l.cuts, chunk))
            tasks[count++] = steps;
    }
    cr_expect_lt(busy(tasks + plain, whole), 0.72, "%g", busy(tasks + plain, whole));
    cr_expect_gt(busy(tasks, count), 0.97, "%g", busy(tasks, count));
    free(tasks);
    finish(&l);
}

/* Every step of a cut chunk is in one part, every part has a place of its own. */
Test(cuda_cuts, parts_divide_the_steps_and_the_memory)
{
    ra_pattern_config config = global();
    config.block_size = 256; /* two long chunks */
    config.block_width = 1;
    for (int32_t batch = 1; batch <= 2; ++batch) {
        size_t const bytes = ra_cuda_cuts_bytes(BLOCKS, 128);
        launch l = make(&config, TOKENS - 1000, batch, bytes);
        int64_t const heads = HEADS * batch;
        bool *const taken = calloc((size_t)l.cuts.tasks + 1, sizeof(*taken));
        int64_t steps[RA_CUDA_CUTS_MAX] = {0};
        cr_assert_eq(l.cuts.count, 2);
        cr_assert_eq(l.cuts.tasks, l.cuts.parts * heads);
        for (int64_t i = 0; i < l.cuts.tasks; ++i) {
            ra_cuda_part const part = ra_cuda_part_of(&l.cuts, i);
            int64_t const slot = ra_cuda_part_slot(&l.cuts, part);
            ra_cuda_part const first = {part.head, part.cut, 0};
            cr_assert(part.head < heads && part.cut < 2 && part.part < l.cuts.of[part.cut].parts);
            cr_assert(slot >= 0 && slot < l.cuts.tasks && !taken[slot]);
            cr_assert_eq(slot, ra_cuda_part_slot(&l.cuts, first) + part.part,
                         "parts of a chunk follow each other");
            taken[slot] = true;
            steps[part.cut] += steps_of(&l.m.map, l.cuts.of[part.cut].chunk,
                                        part.part * l.cuts.part_steps, l.cuts.part_steps);
        }
        for (int cut = 0; cut < 2; ++cut)
            cr_expect_eq(steps[cut],
                         heads * steps_of(&l.m.map, l.cuts.of[cut].chunk, 0, INT64_MAX));
        /* States, then arrivals, within the room. */
        const char *const end = (const char *)l.cuts.arrived + ra_cuda_arrived_bytes(&l.cuts);
        cr_expect_leq(l.cuts.tasks * ra_cuda_part_floats(128, 128) * (int64_t)sizeof(float),
                      (const char *)l.cuts.arrived - l.room);
        cr_expect_leq(end - l.room, (int64_t)bytes);
        free(taken);
        finish(&l);
    }
}

/* One thread block merges the parts, while it alone is at work. */
Test(cuda_cuts, of_few_heads_there_are_no_more_parts_than_steps_in_each)
{
    ra_pattern_config const config = global();
    size_t const bytes = ra_cuda_cuts_bytes(BLOCKS, 128);
    launch l = make(&config, TOKENS, 1, bytes);
    for (int32_t heads = 1; heads <= 4; heads *= 2) {
        l.step.shape.q_heads = l.step.shape.kv_heads = heads;
        ra_cuda_cuts const cuts = cuts_of(&l, bytes);
        cr_assert_eq(cuts.count, 1, "%d heads: %d cuts", heads, cuts.count);
        cr_expect_leq(cuts.parts, cuts.part_steps, "%d heads: %d parts of %d steps", heads,
                      cuts.parts, cuts.part_steps);
        cr_expect_gt(cuts.parts, 8, "%d heads: %d parts", heads, cuts.parts);
    }
    finish(&l);
}

Test(cuda_cuts, less_room_makes_longer_parts_and_none_no_cut)
{
    ra_pattern_config const config = global();
    launch all = make(&config, TOKENS, 1, ra_cuda_cuts_bytes(BLOCKS, 128));
    launch few = make(&config, TOKENS, 1, ra_cuda_cuts_bytes(3 * HEADS, 128));
    launch none = make(&config, TOKENS, 1, 0);
    cr_expect_leq(few.cuts.tasks, 3 * HEADS);
    cr_expect_eq(none.cuts.tasks, 0);
    cr_expect_gt(all.cuts.tasks, 3 * HEADS);
    finish(&all);
    finish(&few);
    finish(&none);
}

Test(cuda_cuts, tasks_alike_are_left_whole_and_those_that_carry_state)
{
    ra_pattern_config config = ra_pattern_config_dense();
    size_t const bytes = ra_cuda_cuts_bytes(BLOCKS, 128);
    launch dense = make(&config, 16384, 1, bytes);
    cr_expect_eq(dense.cuts.tasks, 0);
    finish(&dense);
    config = global();
    launch steps = make(&config, TOKENS, 1, bytes);
    cr_assert_gt(steps.cuts.tasks, 0);
    steps.step.last = false;
    cr_expect_eq(cuts_of(&steps, bytes).tasks, 0);
    steps.step.last = true;
    steps.step.ends_only = true;
    cr_expect_eq(cuts_of(&steps, bytes).tasks, 0);
    finish(&steps);
}
