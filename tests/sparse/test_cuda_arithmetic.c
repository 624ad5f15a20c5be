/* The way of the CUDA kernels through tile maps, held to definitions: no GPU is needed for it. */
#include "sparse/cuda/backward_args.h"
#include "sparse/cuda/key_cursor.h"
#include "sparse/cuda/rows_args.h"

#include <criterion/criterion.h>
#include <string.h>

/* ---- blocks of keys -------------------------------------------------------------------------- */

static uint32_t random_state;

static int32_t draw(int32_t least, int32_t most)
{
    random_state = random_state * 1664525u + 1013904223u;
    return least + (int32_t)((random_state >> 8) % (uint32_t)(most - least + 1));
}

/* As maps have them: with a live pair. */
static ra_run draw_run(int32_t q_count)
{
    for (;;) {
        ra_run run = {draw(0, 50), draw(1, 4), draw(1, 200), RA_RUN_NONE_LO, RA_RUN_NONE_HI};
        if (draw(0, 2) > 0)
            run.lo = draw(-q_count, run.k_count);
        if (draw(0, 2) > 0)
            run.hi = draw(-q_count, run.k_count);
        for (int32_t a = 0; a < q_count; ++a)
            for (int32_t b = 0; b < run.k_count; ++b)
                if (b - a >= run.lo && b - a <= run.hi)
                    return run;
    }
}

enum { QUERIES_MAX = 128, KEYS_MAX = 200, RUNS = 4 };

/* Rows of queries, as warps have them, that see a key of the block: some live pair says so. */
static void check_sees(const ra_key_cursor *c, int32_t rows, int32_t k_rows)
{
    for (int32_t first = 0; first < QUERIES_MAX; first += rows) {
        bool live = false;
        for (int32_t a = first; a < ra_hd_min(first + rows, c->q_count); ++a)
            for (int32_t b = c->b; b < c->b + k_rows; ++b)
                live = live || ra_key_cursor_live(c, a, b);
        cr_assert_eq(ra_key_cursor_sees(c, first, rows, k_rows), live, "rows from %d on", first);
    }
}

Test(cuda_key_cursor, visits_every_live_pair_once_and_masks_only_where_it_must, .timeout = 60)
{
    static char seen[RUNS][QUERIES_MAX][KEYS_MAX];
    random_state = 7;
    for (int i = 0; i < 500; ++i) {
        int32_t const k_rows = 16 * draw(1, 4);
        ra_tile const tile = {.q_count = draw(1, QUERIES_MAX), .run_begin = 3};
        ra_run runs[3 + RUNS] = {{0}};
        for (int r = 0; r < RUNS; ++r)
            runs[3 + r] = draw_run(tile.q_count);
        memset(seen, 0, sizeof(seen));
        ra_key_cursor c;
        int blocks = 0;
        for (ra_key_cursor_begin(&tile, 3 + RUNS, runs, &c); !ra_key_cursor_is_over(&c);
             ra_key_cursor_next(&c, k_rows)) {
            bool dead = false;
            int live = 0;
            const ra_run *run = &runs[c.run];
            cr_assert_lt(++blocks, 100);
            for (int32_t a = 0; a < tile.q_count; ++a)
                for (int32_t b = c.b; b < c.b + k_rows; ++b) {
                    bool const is_live = ra_key_cursor_live(&c, a, b);
                    ra_live_span const span = ra_key_cursor_span(&c, a, b - 5);
                    cr_assert_eq(ra_live_span_has(span, 5), is_live);
                    dead = dead || !is_live;
                    live += is_live;
                    if (is_live)
                        ++seen[c.run - 3][a][b];
                }
            cr_assert_eq(ra_key_cursor_masked(&c, k_rows), dead);
            check_sees(&c, 16, k_rows);
            check_sees(&c, 32, k_rows);
            cr_assert_eq(ra_key_cursor_row(&c, c.b), run->k_begin + run->k_stride * c.b);
            cr_assert(live > 0 || run->lo > run->hi - k_rows, "a block for nobody");
        }
        for (int r = 0; r < RUNS; ++r) {
            const ra_run *run = &runs[3 + r];
            for (int32_t a = 0; a < tile.q_count; ++a)
                for (int32_t b = 0; b < run->k_count; ++b)
                    cr_assert_eq(seen[r][a][b], b - a >= run->lo && b - a <= run->hi,
                                 "case %d run %d query %d key %d", i, r, a, b);
        }
    }
}

/* ---- queries of a block of keys -------------------------------------------------------------- */

/* Every key row is in one block of the tasks' rows, whatever the stride. */
Test(cuda_query_cursor, blocks_of_keys_deal_out_every_row_once)
{
    static char seen[5000];
    random_state = 11;
    for (int i = 0; i < 300; ++i) {
        int32_t const rows = draw(1, 5000), keys = 16 * draw(1, 8);
        int32_t const stride = draw(1, RA_CUDA_KEY_STRIDE_MAX), task = keys * draw(1, 70);
        memset(seen, 0, sizeof(seen));
        for (int32_t begin = 0; begin < rows; begin += task) {
            int32_t const end = ra_hd_min(begin + task, rows);
            for (int32_t b = 0; b < ra_key_block_count(begin, end, stride, keys); ++b) {
                ra_key_block const block = ra_key_block_of(begin, end, stride, keys, b);
                cr_assert_leq(block.count, keys);
                for (int32_t slot = 0; slot < block.count; ++slot)
                    ++seen[block.row + stride * slot];
            }
        }
        for (int32_t row = 0; row < rows; ++row)
            cr_assert_eq(seen[row], 1, "row %d, stride %d", row, stride);
    }
}

/* A run against a block, both at strides of their own, by the definition of a live pair. */
static void check_visit(const ra_key_block *block, const ra_tile *tile, const ra_run *run,
                        int32_t q_rows)
{
    static char seen[QUERIES_MAX][128];
    ra_query_cursor c;
    bool const enters =
        ra_key_block_meets(block, run) && ra_query_cursor_enter(block, *tile, *run, &c);
    memset(seen, 0, sizeof(seen));
    for (; enters && c.a < c.a_end; c.a += q_rows) {
        bool dead = false;
        for (int32_t slot = 0; slot < block->count; ++slot) {
            int32_t const key = ra_query_cursor_key(&c, block, slot);
            for (int32_t a = c.a; a < ra_hd_min(c.a + q_rows, tile->q_count); ++a) {
                bool const live = ra_query_cursor_live(&c, a, key);
                ra_live_span const span = ra_query_cursor_span(&c, a - 5, key);
                cr_assert_eq(ra_live_span_has(span, 5), live);
                dead = dead || !live;
                seen[a][slot] = (char)(seen[a][slot] + live);
            }
        }
        cr_assert(!dead || ra_query_cursor_masked(&c, block, q_rows), "it must be masked");
        cr_assert(dead || c.shift == RA_SHIFT_NONE || !ra_query_cursor_masked(&c, block, q_rows),
                  "it need not be masked");
        cr_assert_eq(ra_query_cursor_key(&c, block, block->count), RA_KEY_NONE);
    }
    for (int32_t slot = 0; slot < block->count; ++slot) {
        int32_t const from = block->row + block->stride * slot - run->k_begin;
        int32_t const b = from / run->k_stride;
        bool const is_key = from >= 0 && from % run->k_stride == 0 && b < run->k_count;
        for (int32_t a = 0; a < tile->q_count; ++a)
            cr_assert_eq(seen[a][slot], is_key && b - a >= run->lo && b - a <= run->hi,
                         "query %d slot %d", a, slot);
    }
}

Test(cuda_query_cursor, visits_every_live_pair_once_and_masks_only_where_it_must, .timeout = 60)
{
    random_state = 13;
    for (int i = 0; i < 3000; ++i) {
        ra_tile const tile = {.q_count = draw(1, QUERIES_MAX), .q_stride = 1};
        ra_run run = draw_run(tile.q_count);
        ra_key_block const block = {draw(0, 120), draw(0, 2) > 0 ? run.k_stride : draw(1, 6),
                                    draw(1, 128)};
        if (run.k_count == 1)
            run.k_stride = 1; /* as maps have it */
        check_visit(&block, &tile, &run, 16 * draw(1, 4));
    }
}

/* The last rows there can be. */
Test(cuda_query_cursor, rows_at_the_end_of_int32_do_not_overflow)
{
    ra_key_block const block = ra_key_block_of(RA_CUDA_KEY_ROWS_MAX - 8, RA_CUDA_KEY_ROWS_MAX,
                                               RA_CUDA_KEY_STRIDE_MAX, 128, 7);
    ra_run const run = {0, 1, RA_CUDA_KEY_ROWS_MAX, RA_RUN_NONE_LO, RA_RUN_NONE_HI};
    ra_tile const tile = {.q_count = 128, .q_stride = 1};
    ra_query_cursor c;
    cr_assert_eq(block.row, RA_CUDA_KEY_ROWS_MAX - 1);
    cr_assert_eq(block.count, 1);
    cr_assert(ra_key_block_meets(&block, &run));
    cr_assert(ra_query_cursor_enter(&block, tile, run, &c));
    cr_assert_eq(c.a_end, 128);
    cr_assert_eq(ra_query_cursor_key(&c, &block, 0), RA_CUDA_KEY_ROWS_MAX - 1);
    cr_assert_eq(ra_query_cursor_key(&c, &block, 127), RA_KEY_NONE);
    cr_assert(ra_query_cursor_live(&c, 127, RA_CUDA_KEY_ROWS_MAX - 1));
    cr_assert(ra_live_span_has(ra_query_cursor_span(&c, 0, RA_CUDA_KEY_ROWS_MAX - 1), 127));
    cr_assert_not(ra_live_span_has(ra_query_cursor_span(&c, 0, RA_KEY_NONE), 127));
}

Test(cuda_query_cursor, a_layer_has_the_stride_of_its_first_run_with_two_keys)
{
    ra_run runs[40] = {{0, 1, 1, 0, 0}};
    for (int i = 1; i < 40; ++i)
        runs[i] = (ra_run){0, i == 3 ? 5 : i == 20 ? 1000 : 1, i == 3 || i == 20 ? 2 : 1, 0, 0};
    cr_assert_eq(ra_cuda_key_stride(runs, 0, 40), 5);
    cr_assert_eq(ra_cuda_key_stride(runs, 4, 40), RA_CUDA_KEY_STRIDE_MAX);
    cr_assert_eq(ra_cuda_key_stride(runs, 0, 3), 1);
    cr_assert_eq(ra_cuda_key_stride(runs, 7, 7), 1);
}

/* Bounds at the edge of int32, which maps use for none, overflow nowhere. */
Test(cuda_key_cursor, bounds_that_never_bind_do_not_overflow)
{
    ra_run const run = {0, 1, RA_CUDA_KEY_ROWS_MAX, RA_RUN_NONE_LO, RA_RUN_NONE_HI};
    ra_tile const tile = {.q_count = 128};
    ra_key_cursor c;
    ra_key_cursor_begin(&tile, 1, &run, &c);
    cr_assert_eq(c.b, 0);
    cr_assert_eq(c.end, RA_CUDA_KEY_ROWS_MAX);
    cr_assert_not(ra_key_cursor_masked(&c, 64));
    cr_assert(ra_key_cursor_live(&c, 127, 0));
    c.b = RA_CUDA_KEY_ROWS_MAX - 10;
    cr_assert(ra_key_cursor_masked(&c, 64));
    cr_assert(ra_live_span_has(ra_key_cursor_span(&c, 127, c.b), 9));
    cr_assert_not(ra_live_span_has(ra_key_cursor_span(&c, 127, c.b), 10));
    ra_key_cursor_next(&c, 64);
    cr_assert(ra_key_cursor_is_over(&c));
}

/* ---- tasks ----------------------------------------------------------------------------------- */

/* Around the multiples of each, and at the end. */
Test(cuda_tasks, quotients_are_exact)
{
    static const uint32_t few[] = {
        255,       256, 641, 65535, 65536, (1U << 31) - 1, 1U << 31, (1U << 31) + 1, UINT32_MAX - 1,
        UINT32_MAX};
    for (uint32_t i = 1; i < 200 + sizeof(few) / sizeof(few[0]); ++i) {
        uint32_t const by = i < 200 ? i : few[i - 200];
        ra_divisor const d = ra_divisor_of(by);
        for (uint32_t step = 0; step < 2000; ++step) {
            uint32_t const near = step * 2147483U / by * by;
            for (uint32_t x = near - 2; x != near + 3; ++x)
                cr_assert_eq(ra_divide(x, d), x / by, "%u / %u", x, by);
        }
        cr_assert_eq(ra_divide(UINT32_MAX, d), UINT32_MAX / by, "by %u", by);
    }
}

Test(cuda_tasks, every_chunk_of_every_head_is_one_task_and_the_longest_of_a_group_come_first)
{
    static char seen[3][5][7];
    for (int32_t groups = 1; groups <= 15; ++groups) {
        ra_cuda_forward f = {.q_heads = 5, .tasks = 3 * 5 * 7};
        f.order = ra_cuda_order_of(3, 5, groups, 7);
        f.map.chunk_count = 7;
        f.ascending = groups % 2 == 0;
        memset(seen, 0, sizeof(seen));
        int32_t turn = 0;
        for (int64_t i = 0; i < f.tasks; ++i) {
            ra_cuda_task const task = ra_cuda_task_of(&f, i);
            int32_t const head = task.batch * 5 + task.head;
            int32_t const group = head / ((15 + groups - 1) / groups);
            int32_t const now = group * 7 + (f.ascending ? task.chunk : 6 - task.chunk);
            cr_assert_eq(seen[task.batch][task.head][task.chunk]++, 0);
            cr_assert_geq(now, turn, "groups come one after another, and turns within them");
            turn = now;
        }
    }
}

Test(cuda_tasks, key_tasks_cover_the_rows_of_every_kv_head_in_every_part)
{
    ra_cuda_backward f = {.q = {.dtype = RA_BF16}, .dim = 256, .k_rows = 1000};
    int32_t const rows = ra_cuda_keys_of(RA_BF16, 256).k_rows * 2, blocks = (999 + rows) / rows;
    f.task_rows = rows;
    f.parts = ra_cuda_key_parts(RA_BF16, 256);
    f.k_tasks = 2 * 3 * blocks * f.parts;
    f.k_order = ra_cuda_order_of(2, 3, 6, blocks);
    cr_assert_eq(f.parts, 2);
    for (int64_t i = 0; i < f.k_tasks; ++i) {
        ra_cuda_key_task const task = ra_cuda_key_task_of(&f, i);
        int64_t const block = i / 2 % blocks, lane = i / 2 / blocks;
        cr_assert_eq(task.part, i % 2);
        cr_assert_eq(task.batch, lane / 3);
        cr_assert_eq(task.kv_head, lane % 3);
        cr_assert_eq(task.row_begin, block * rows);
        cr_assert_eq(task.row_end, ra_hd_min((int32_t)(block + 1) * rows, 1000));
    }
}

/* ---- units of rows --------------------------------------------------------------------------- */

/* The first and the last of `count`, and one between. */
static int64_t sample(int i, int64_t count)
{
    return i == 0 ? 0 : i == 1 ? count - 1 : count / 2;
}

/* Where the units of packed rows begin, of which the first, of this launch, is row 5. */
static void check_units(int32_t batch, int32_t heads, int32_t dim, int32_t elements)
{
    enum { ROWS = 5, LISTED = 40, PACKED = 12 };
    int64_t const line = (int64_t)heads * dim; /* of a row */
    ra_cuda_rows r = {.pieces = {{30, 1, 5}, {8, -2, 6}},
                      .piece_count = 2,
                      .lists_from = true,
                      .from = {.batch_stride = LISTED * line, .row_stride = line},
                      .to = {.batch_stride = PACKED * line, .row_stride = line},
                      .row_begin = 5,
                      .batch = batch,
                      .heads = heads,
                      .elements = elements,
                      .row_units = dim / elements};
    r.from.head_stride = r.to.head_stride = dim;
    for (int i = 0; i < 3 * 3 * 3 * ROWS; ++i) {
        int64_t const row = i % ROWS, listed = row == 0 ? 30 : 10 - 2 * row;
        int64_t const b = sample(i / ROWS % 3, batch), h = sample(i / ROWS / 3 % 3, heads);
        int64_t const u = sample(i / ROWS / 9, r.row_units), e = u * elements;
        ra_cuda_unit const unit =
            ra_cuda_unit_of(&r, ((row * batch + b) * heads + h) * r.row_units + u);
        cr_assert_eq(unit.from, ((b * LISTED + listed) * heads + h) * dim + e,
                     "batch %lld, head %lld", (long long)b, (long long)h);
        cr_assert_eq(unit.to, ((b * PACKED + 5 + row) * heads + h) * dim + e,
                     "batch %lld, head %lld", (long long)b, (long long)h);
    }
}

Test(cuda_rows, units_are_found_by_row_batch_head_and_element)
{
    check_units(2, 3, 19, 1);
    check_units(5, 4, 64, 4);
}

Test(cuda_rows, a_row_of_2_to_the_31_units_does_not_overflow)
{
    check_units(1 << 20, 32, 99, 1);
    check_units(1 << 20, 1 << 12, 256, 1);
}
