/* Whether an access to device memory may be made, and what it costs. */
#include "ptx/ptx_access.h"

#include <stdlib.h>
#include <string.h>

enum { SECTOR_BYTES = 32, HALF_BYTES = PTX_LINE_BYTES / PTX_LINE_HALVES, FEWEST_LINES = 256 };

/* ---- who wrote it ---------------------------------------------------------------------------- */

/* Where the number of a line is, plus one, or is to be: most slots are free, and have 0. */
static uint32_t *slot_of(const ptx_block *b, uintptr_t at)
{
    size_t const mask = 4 * b->line_room - 1;
    size_t i = (size_t)(at / PTX_LINE_BYTES * UINT64_C(0x9e3779b97f4a7c15) >> 32) & mask;
    while (b->line_slots[i] != 0 && b->lines[b->line_slots[i] - 1].at != at)
        i = (i + 1) & mask;
    return &b->line_slots[i];
}

static void make_room(ptx_block *b)
{
    ptx_line *const before = b->lines;
    b->line_room = b->line_room == 0 ? FEWEST_LINES : 2 * b->line_room;
    b->lines = ptx_zeros(b->line_room, sizeof(*b->lines));
    if (before != NULL)
        memcpy(b->lines, before, b->line_count * sizeof(*b->lines));
    free(before);
    free(b->line_slots);
    b->line_slots = ptx_zeros(4 * b->line_room, sizeof(*b->line_slots));
    for (size_t i = 0; i < b->line_count; ++i)
        *slot_of(b, b->lines[i].at) = (uint32_t)i + 1;
}

void ptx_device_begin(ptx_block *b)
{
    if (b->line_count > 0)
        memset(b->line_slots, 0, 4 * b->line_room * sizeof(*b->line_slots));
    b->line_count = 0;
    b->line_last = 0;
}

/* The number, plus one, of an address's line, most often the last one asked for; 0: nobody of the
   block wrote there. */
static uint32_t line_of(ptx_block *b, uintptr_t address)
{
    uintptr_t const at = address / PTX_LINE_BYTES * PTX_LINE_BYTES;
    if (at != b->line_last) {
        b->line_last = at;
        b->line_found = b->line_count > 0 ? *slot_of(b, at) : 0;
    }
    return b->line_found;
}

static void line_make(ptx_block *b, uintptr_t address)
{
    uintptr_t const at = address / PTX_LINE_BYTES * PTX_LINE_BYTES;
    if (b->line_count == b->line_room)
        make_room(b);
    ptx_line *const line = &b->lines[b->line_count++];
    *slot_of(b, at) = b->line_found = (uint32_t)b->line_count;
    b->line_last = line->at = at;
    memset(line->thread, 0xff, sizeof(line->thread));
}

/* Whether all that other threads of the block wrote there came before what the thread does now. */
static bool is_written(const ptx_warp *w, int thread, uintptr_t at, int bytes)
{
    uint32_t const number = line_of(w->block, at);
    if (number == 0)
        return true;
    const ptx_line *const line = &w->block->lines[number - 1];
    int const first = (int)(at % PTX_LINE_BYTES / HALF_BYTES);
    for (int i = first; i * HALF_BYTES < first * HALF_BYTES + bytes; ++i) {
        int const writer = line->thread[i];
        if (writer >= 0 && writer != thread && !ptx_has_heard(w, writer, line->epoch[i]))
            return false;
    }
    return true;
}

/* ---- accesses -------------------------------------------------------------------------------- */

static void check_place(ptx_warp *w, const ptx_instruction *in, uintptr_t at, int bytes)
{
    ptx_block *const b = w->block;
    if (!ptx_is_aligned(at, bytes))
        ptx_fail(w, in, "an address in device memory is not aligned");
    if (at >= b->found_begin && at + (uintptr_t)bytes <= b->found_end)
        return;
    if (!b->launch->find(at, &b->found_begin, &b->found_end) ||
        at + (uintptr_t)bytes > b->found_end)
        ptx_fail(w, in, "an address is in no device memory");
}

void ptx_read_global(ptx_warp *w, const ptx_instruction *in, int thread, uintptr_t at, int bytes)
{
    check_place(w, in, at, bytes);
    if (!is_written(w, thread, at, bytes))
        ptx_fail(w, in, "reads device memory that another thread wrote, without a barrier");
}

void ptx_write_global(ptx_warp *w, const ptx_instruction *in, int thread, uintptr_t at, int bytes)
{
    check_place(w, in, at, bytes);
    if (!is_written(w, thread, at, bytes))
        ptx_fail(w, in, "writes device memory that another thread wrote, without a barrier");
    if (line_of(w->block, at) == 0)
        line_make(w->block, at);
    ptx_line *const line = &w->block->lines[line_of(w->block, at) - 1];
    for (int i = 0; i < bytes; i += HALF_BYTES) {
        int const half = (int)(at % PTX_LINE_BYTES + (uintptr_t)i) / HALF_BYTES;
        line->thread[half] = (int16_t)thread;
        line->epoch[half] = w->epoch;
    }
}

void ptx_count_global(ptx_warp *w, const uintptr_t *at, uint32_t lanes, int bytes)
{
    uintptr_t seen[2 * PTX_LANES];
    int count = 0;
    if (w->block->counts == NULL)
        return;
    for (int lane = 0; lane < PTX_LANES; ++lane) {
        for (int i = 0; lanes >> lane & 1 && i < bytes; i += SECTOR_BYTES / 2) {
            uintptr_t const sector = (at[lane] + (uintptr_t)i) / SECTOR_BYTES;
            int known = count - 1; /* most often the last one */
            while (known >= 0 && seen[known] != sector)
                --known;
            if (known < 0)
                seen[count++] = sector;
        }
    }
    w->block->counts->global++;
    w->block->counts->global_sectors += count;
}
