/* Runs a launch: its thread blocks, as many at once as there is room, and their warps in turns. */
#include "ptx/ptx_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TURN_BITS = 12 }; /* a warp's turn has fewer than 2^12 instructions, often far fewer */

static uint64_t draw(uint64_t *seed, uint64_t below)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*seed >> 33) % below;
}

void *ptx_zeros(size_t count, size_t bytes)
{
    void *const memory = calloc(count > 0 ? count : 1, bytes);
    if (memory == NULL) {
        fputs("ptx: no memory\n", stderr);
        abort();
    }
    return memory;
}

static void block_init(const ptx_kernel *k, const ptx_launch *launch, ptx_counts *counts,
                       ptx_block *b)
{
    *b = (ptx_block){.kernel = k, .launch = launch, .counts = counts};
    b->warp_count = (int)(launch->threads / PTX_LANES);
    b->warps = ptx_zeros((size_t)b->warp_count, sizeof(ptx_warp));
    /* As aligned as shared memory is. */
    b->shared = aligned_alloc(1024, (launch->shared_bytes + 2047) / 1024 * 1024);
    b->words = ptx_zeros(launch->shared_bytes / 4 + 1, sizeof(ptx_word));
    b->readings =
        ptx_zeros((launch->shared_bytes / 4 + 1) * (size_t)b->warp_count, sizeof(ptx_reading));
    for (int i = 0; i < PTX_BARRIERS; ++i)
        b->barriers[i].clock = ptx_clock_new(b);
    if (b->shared == NULL)
        abort();
    for (int i = 0; i < b->warp_count; ++i) {
        b->warps[i] = (ptx_warp){.block = b, .index = i};
        b->warps[i].rows = ptx_zeros((size_t)k->registers, sizeof(ptx_row));
        b->warps[i].known = ptx_zeros((size_t)k->registers, sizeof(ptx_known));
        b->warps[i].touched = ptx_zeros((size_t)k->registers, sizeof(int32_t));
        b->warps[i].clock = ptx_clock_new(b);
    }
}

static void block_fini(ptx_block *b)
{
    for (int i = 0; i < b->warp_count; ++i) {
        free(b->warps[i].rows);
        free(b->warps[i].known);
        free(b->warps[i].touched);
        free(b->warps[i].clock);
    }
    for (int i = 0; i < PTX_BARRIERS; ++i)
        free(b->barriers[i].clock);
    for (int i = 0; i < PTX_SIGNALS_MAX; ++i) {
        free(b->signals[i].clock);
        free(b->signals[i].ended);
    }
    free(b->warps);
    free(b->shared);
    free(b->words);
    free(b->readings);
    free(b->pieces);
    free(b->lines);
    free(b->line_slots);
}

static void block_begin(ptx_block *b, unsigned index)
{
    b->is_there = true;
    b->index = index;
    b->done = 0;
    b->piece_count = 0;
    b->signal_count = 0;
    ptx_device_begin(b);
    b->events = b->events_idle = b->polls_idle = 0;
    memset(b->pieces_begun, 0, sizeof(b->pieces_begun));
    memset(b->pieces_committed, 0, sizeof(b->pieces_committed));
    memset(b->register_steps, 0, sizeof(b->register_steps));
    memset(b->products, 0, sizeof(b->products));
    memset(b->shared, 0xff, b->launch->shared_bytes);
    for (size_t i = 0; i < b->launch->shared_bytes / 4 + 1; ++i)
        b->words[i] = (ptx_word){.writer = -1};
    for (int i = 0; i < PTX_BARRIERS; ++i) {
        b->barriers[i] = (ptx_barrier){.clock = b->barriers[i].clock};
        ptx_clock_clear(b, b->barriers[i].clock);
    }
    for (int i = 0; i < b->warp_count; ++i)
        ptx_warp_begin(&b->warps[i]);
}

static bool can_go_on(const ptx_warp *w)
{
    return w->alive != 0 && w->waits == PTX_NOTHING;
}

/* One of the block's warps that can go on. */
static ptx_warp *draw_warp(ptx_block *b, uint64_t *seed)
{
    int ready = 0;
    for (int i = 0; i < b->warp_count; ++i)
        ready += can_go_on(&b->warps[i]);
    if (ready == 0) {
        ptx_all_wait(b);
        return draw_warp(b, seed);
    }
    int skip = (int)draw(seed, (uint64_t)ready);
    ptx_warp *w = b->warps;
    while (!can_go_on(w) || skip-- > 0)
        ++w;
    return w;
}

/* Some instructions of one warp. */
static void block_turn(ptx_block *b, uint64_t *seed)
{
    ptx_warp *const w = draw_warp(b, seed);
    uint64_t const turn = UINT64_C(1) << draw(seed, TURN_BITS);
    for (uint64_t i = 0; i < turn && can_go_on(w); ++i)
        ptx_step(w);
    if (w->alive == 0) {
        b->done++;
        b->events++;
        ptx_barriers_go_on(b);
    }
    b->is_there = b->done < b->warp_count;
    const char *const undone = b->is_there ? NULL : ptx_group_end(b);
    if (undone != NULL) {
        fprintf(stderr, "ptx: %s: %s (%s, block %u)\n", b->kernel->file, undone, b->kernel->name,
                b->index);
        abort();
    }
}

void ptx_run(const ptx_kernel *kernel, const ptx_launch *launch, ptx_counts *counts)
{
    unsigned const room = launch->blocks < launch->resident ? launch->blocks : launch->resident;
    ptx_block *const blocks = ptx_zeros(room, sizeof(*blocks));
    uint64_t seed = launch->seed;
    unsigned begun = 0, there = 0;
    for (unsigned i = 0; i < room; ++i)
        block_init(kernel, launch, counts, &blocks[i]);
    while (begun < launch->blocks || there > 0) {
        unsigned const at = (unsigned)draw(&seed, room);
        ptx_block *const b = &blocks[at];
        if (!b->is_there && begun == launch->blocks)
            continue;
        if (!b->is_there) {
            block_begin(b, begun++);
            ++there;
        }
        block_turn(b, &seed);
        there -= !b->is_there;
    }
    for (unsigned i = 0; i < room; ++i)
        block_fini(&blocks[i]);
    free(blocks);
}
