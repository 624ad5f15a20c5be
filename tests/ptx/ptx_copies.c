/* cp.async: copies from device memory to shared memory that arrive as late as they may. */
#include "ptx/ptx_access.h"

#include <stdlib.h>
#include <string.h>

static void add_piece(ptx_warp *w, const ptx_piece *piece)
{
    ptx_block *const b = w->block;
    if (b->piece_count == b->piece_room) {
        b->piece_room = 2 * b->piece_room + 1024;
        b->pieces = realloc(b->pieces, sizeof(*b->pieces) * (size_t)b->piece_room);
        if (b->pieces == NULL)
            abort();
    }
    b->pieces[b->piece_count++] = *piece;
}

/* cp.async [to], [from], room, bytes: what is there already is lost at once. */
void ptx_copy(ptx_warp *w, const ptx_instruction *in, uint32_t lanes)
{
    int const *const o = in->operands;
    uint32_t offsets[PTX_LANES], reading = 0;
    uintptr_t from[PTX_LANES];
    int const room = (int)w->rows[o[2]][0];
    for (int i = 0; i < 4; ++i)
        ptx_expect_known(w, in, o[i], lanes);
    for (int lane = 0; lane < PTX_LANES; ++lane) {
        offsets[lane] = (uint32_t)w->rows[o[0]][lane];
        from[lane] = (uintptr_t)w->rows[o[1]][lane];
        if (!(lanes >> lane & 1))
            continue;
        ptx_piece const piece = {.thread = ptx_thread_of(w, lane),
                                 .number = ++w->block->pieces_begun[ptx_thread_of(w, lane)],
                                 .to = offsets[lane],
                                 .room = (uint32_t)room,
                                 .bytes = (uint32_t)w->rows[o[3]][lane],
                                 .from = from[lane]};
        if (piece.bytes > piece.room)
            ptx_fail(w, in, "copies more than there is room for");
        if (piece.bytes > 0) {
            ptx_read_global(w, in, piece.thread, piece.from, room);
            reading |= UINT32_C(1) << lane;
        } else if (!ptx_is_aligned(piece.from, room)) {
            ptx_fail(w, in, "an address in device memory is not aligned");
        }
        ptx_word *const words = ptx_words_at(w, in, piece.to, room);
        for (int i = 0; i < room / PTX_WORD_BYTES; ++i) {
            ptx_note_write(w, in, piece.thread, &words[i]);
            words[i].awaited = true;
        }
        memset(w->block->shared + piece.to, 0xff, (size_t)room);
        add_piece(w, &piece);
    }
    ptx_count_shared(w, offsets, lanes, room);
    if (reading != 0)
        ptx_count_global(w, from, reading, room);
}

void ptx_commit(ptx_warp *w, uint32_t lanes)
{
    ptx_block *const b = w->block;
    for (int lane = 0; lane < PTX_LANES; ++lane)
        if (lanes >> lane & 1)
            b->pieces_committed[ptx_thread_of(w, lane)] = b->pieces_begun[ptx_thread_of(w, lane)];
}

static void fill(ptx_block *b, const ptx_piece *piece)
{
    memset(b->shared + piece->to, 0, piece->room);
    memcpy(b->shared + piece->to, (const void *)piece->from, piece->bytes);
}

/* Its thread waits for it, so that what it brings is as if the thread had written it now. */
static void arrive(ptx_warp *w, const ptx_instruction *in, const ptx_piece *piece)
{
    ptx_word *const words = ptx_words_at(w, in, piece->to, (int)piece->room);
    fill(w->block, piece);
    for (uint32_t i = 0; i < piece->room / PTX_WORD_BYTES; ++i) {
        words[i].awaited = false;
        words[i].filled = 0xf;
        ptx_note_write(w, in, piece->thread, &words[i]);
    }
}

/* Nobody waited for it but by a signal, of which not even its thread need know. */
void ptx_pieces_arrive(ptx_block *b, const int32_t *clock)
{
    int const copies = ptx_agents(b) / 2;
    int left = 0;
    for (int i = 0; i < b->piece_count; ++i) {
        ptx_piece const piece = b->pieces[i];
        ptx_word *const words = &b->words[piece.to / PTX_WORD_BYTES];
        if (piece.number > clock[copies + piece.thread]) {
            b->pieces[left++] = piece;
            continue;
        }
        fill(b, &piece);
        for (uint32_t w = 0; w < piece.room / PTX_WORD_BYTES; ++w) {
            words[w].awaited = false;
            words[w].filled = 0xf;
            words[w].writer = (int16_t)(copies + piece.thread);
            words[w].epoch = piece.number;
        }
    }
    b->piece_count = left;
}

/* All that the lanes' threads committed arrives as late as it may: now. Of what has arrived before,
   as a signal said, they know now, too. */
void ptx_wait(ptx_warp *w, const ptx_instruction *in, uint32_t lanes)
{
    ptx_block *const b = w->block;
    int left = 0;
    if (w->rows[in->operands[0]][0] != 0)
        ptx_fail(w, in, "some copies are to stay on their way: that is not known here");
    for (int i = 0; i < b->piece_count; ++i) {
        ptx_piece const piece = b->pieces[i];
        bool const ours =
            piece.thread / PTX_LANES == w->index && lanes >> piece.thread % PTX_LANES & 1;
        if (ours && piece.number <= b->pieces_committed[piece.thread])
            arrive(w, in, &piece);
        else
            b->pieces[left++] = piece;
    }
    b->piece_count = left;
    for (int lane = 0; lane < PTX_LANES; ++lane) {
        int const thread = ptx_thread_of(w, lane);
        int32_t *const heard = &w->clock[ptx_agents(b) / 2 + thread];
        if (lanes >> lane & 1 && *heard < b->pieces_committed[thread])
            *heard = b->pieces_committed[thread];
    }
}
