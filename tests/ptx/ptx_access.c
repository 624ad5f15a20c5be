/* Whether an access may be made, to shared memory or to a device's, and what it costs. */
#include "ptx/ptx_access.h"

enum { SECTOR_BYTES = 32, BANKS = 32 };

int ptx_thread_of(const ptx_warp *w, int lane)
{
    return w->index * PTX_LANES + lane;
}

bool ptx_is_aligned(uintptr_t at, int bytes)
{
    return (at & (uintptr_t)(bytes - 1)) == 0;
}

/* ---- who touched shared memory --------------------------------------------------------------- */

/* Whether nothing orders what happened then and what the thread does now. */
static bool may_meet(const ptx_touch *t, const ptx_warp *w, int thread)
{
    if (t->thread < 0 || t->thread == thread || t->block_barriers != w->block->barriers)
        return false;
    int const warp = t->thread >= PTX_MANY      ? -1
                     : t->thread >= PTX_SEVERAL ? t->thread - PTX_SEVERAL
                                                : t->thread / PTX_LANES;
    return warp != w->index || t->warp_barriers == w->barriers;
}

void ptx_note_write(ptx_warp *w, const ptx_instruction *in, int thread, ptx_word *word)
{
    if (word->awaited != 0)
        ptx_fail(w, in, "writes shared memory that a copy is on its way to");
    if (may_meet(&word->written, w, thread))
        ptx_fail(w, in, "writes shared memory that another thread wrote, without a barrier");
    if (may_meet(&word->read, w, thread))
        ptx_fail(w, in, "writes shared memory that another thread read, without a barrier");
    if (word->in_use != 0)
        ptx_fail(w, in, "writes shared memory that a product under way reads");
    word->written = (ptx_touch){thread, w->block->barriers, w->barriers};
    word->publishing = w->block->published[thread];
}

static void note_read(ptx_warp *w, const ptx_instruction *in, int thread, ptx_word *word)
{
    ptx_touch *const t = &word->read;
    if (word->awaited != 0)
        ptx_fail(w, in, "reads shared memory that a copy is on its way to");
    if (may_meet(&word->written, w, thread))
        ptx_fail(w, in, "reads shared memory that another thread wrote, without a barrier");
    if (t->thread != thread && may_meet(t, w, thread)) {
        int const several = PTX_SEVERAL + w->index;
        bool const alike =
            t->thread == several || (t->thread < PTX_SEVERAL && t->thread / PTX_LANES == w->index);
        t->thread = alike ? several : PTX_MANY;
    } else {
        t->thread = thread;
    }
    t->block_barriers = w->block->barriers;
    t->warp_barriers = w->barriers;
}

/* Products read by a way of their own: what was written is there once its writer has said so, and
   both have met at a barrier. */
void ptx_note_product_begin(ptx_warp *w, const ptx_instruction *in, ptx_word *word)
{
    int32_t const writer = word->written.thread;
    if (word->awaited != 0)
        ptx_fail(w, in, "multiplies shared memory that a copy is on its way to");
    if (word->filled != 0xf)
        ptx_fail(w, in, "multiplies shared memory that was not written");
    if (may_meet(&word->written, w, ptx_thread_of(w, 0)))
        ptx_fail(w, in, "multiplies shared memory that was written without a barrier");
    if (w->block->published_before[writer] == word->publishing)
        ptx_fail(
            w, in,
            "multiplies what its writer has not published by fence.proxy.async, before a barrier");
    word->in_use++;
}

/* From now on the warp's own lanes may write there; others after a barrier. */
void ptx_note_product_end(ptx_warp *w, const ptx_instruction *in, ptx_word *word)
{
    ptx_touch *const t = &word->read;
    int const several = PTX_SEVERAL + w->index;
    bool const is_new = t->block_barriers != w->block->barriers || t->thread < 0;
    bool const alike = is_new || t->thread == several ||
                       (t->thread < PTX_SEVERAL && t->thread / PTX_LANES == w->index);
    (void)in;
    *t = (ptx_touch){alike ? several : PTX_MANY, w->block->barriers,
                     is_new ? w->barriers - 1 : t->warp_barriers};
    word->in_use--;
}

ptx_word *ptx_words_at(ptx_warp *w, const ptx_instruction *in, uint32_t at, int bytes)
{
    if (!ptx_is_aligned(at, bytes))
        ptx_fail(w, in, "an address in shared memory is not aligned");
    if (at + (size_t)bytes > w->block->launch->shared_bytes)
        ptx_fail(w, in, "an address is beyond shared memory");
    return &w->block->words[at / PTX_WORD_BYTES];
}

/* The bits of `filled` for bytes of the first word. */
static uint8_t bytes_mask(uint32_t at, int bytes)
{
    int const count = bytes < PTX_WORD_BYTES ? bytes : PTX_WORD_BYTES;
    return (uint8_t)(((1 << count) - 1) << at % PTX_WORD_BYTES);
}

uint32_t ptx_read_shared(ptx_warp *w, const ptx_instruction *in, int lane, uint32_t at, int bytes)
{
    ptx_word *const words = ptx_words_at(w, in, at, bytes);
    uint32_t filled = 0;
    for (int i = 0; i < bytes; i += PTX_WORD_BYTES) {
        note_read(w, in, ptx_thread_of(w, lane), &words[i / PTX_WORD_BYTES]);
        filled |= (uint32_t)words[i / PTX_WORD_BYTES].filled << i;
    }
    return filled >> at % PTX_WORD_BYTES;
}

void ptx_write_shared(ptx_warp *w, const ptx_instruction *in, int lane, uint32_t at, int bytes,
                      uint32_t filled)
{
    ptx_word *const words = ptx_words_at(w, in, at, bytes);
    uint8_t const mask = bytes_mask(at, bytes);
    filled <<= at % PTX_WORD_BYTES;
    for (int i = 0; i < bytes; i += PTX_WORD_BYTES) {
        ptx_word *const word = &words[i / PTX_WORD_BYTES];
        ptx_note_write(w, in, ptx_thread_of(w, lane), word);
        word->filled = (uint8_t)((word->filled & ~mask) | (filled >> i & mask));
    }
}

/* How often banks are busy: in each round, as many lanes as ask for 128 bytes; a bank gives one of
   its words at a time, to all that want it. */
static int bank_passes(const uint32_t *at, uint32_t lanes, int bytes)
{
    int const round = bytes <= PTX_WORD_BYTES ? PTX_LANES : PTX_LANES * PTX_WORD_BYTES / bytes;
    int passes = 0;
    for (int first = 0; first < PTX_LANES; first += round) {
        uint32_t words[BANKS][PTX_LANES];
        int counts[BANKS] = {0}, most = 0;
        for (int lane = first; lane < first + round; ++lane)
            for (int i = 0; lanes >> lane & 1 && i < bytes; i += PTX_WORD_BYTES) {
                uint32_t const word = (at[lane] + (uint32_t)i) / PTX_WORD_BYTES,
                               bank = word % BANKS;
                int known = 0;
                while (known < counts[bank] && words[bank][known] != word)
                    ++known;
                if (known == counts[bank])
                    words[bank][counts[bank]++] = word;
                most = counts[bank] > most ? counts[bank] : most;
            }
        passes += most;
    }
    return passes;
}

void ptx_count_shared(ptx_warp *w, const uint32_t *at, uint32_t lanes, int bytes)
{
    if (w->block->counts == NULL)
        return;
    w->block->counts->shared++;
    w->block->counts->shared_passes += bank_passes(at, lanes, bytes);
}

/* ---- device memory --------------------------------------------------------------------------- */

void ptx_check_global(ptx_warp *w, const ptx_instruction *in, uintptr_t at, int bytes)
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
