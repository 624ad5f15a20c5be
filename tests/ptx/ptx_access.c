/* Whether an access to shared memory may be made, and what it costs. */
#include "ptx/ptx_access.h"

enum { BANKS = 32 };

bool ptx_is_aligned(uintptr_t at, int bytes)
{
    return (at & (uintptr_t)(bytes - 1)) == 0;
}

/* ---- who touched shared memory --------------------------------------------------------------- */

static inline ptx_reading *reading_of(const ptx_block *b, const ptx_word *word, int warp)
{
    return &b->readings[(word - b->words) * b->warp_count + warp];
}

/* Whether the warp has heard of what some lanes of a warp read, but for its own thread. */
static bool has_heard_lanes(const ptx_warp *w, int warp, const ptx_reading *r, int thread)
{
    for (uint32_t left = r->lanes; left != 0; left &= left - 1) {
        int const other = warp * PTX_LANES + __builtin_ctz(left);
        if (other != thread && !ptx_has_heard(w, other, r->epoch))
            return false;
    }
    return true;
}

/* A product is over for all lanes once one has waited for it: any of them may say so. */
static bool has_heard_product(const ptx_warp *w, int warp, const ptx_reading *r)
{
    for (int lane = 0; lane < PTX_LANES; ++lane)
        if (warp == w->index || ptx_has_heard(w, warp * PTX_LANES + lane, r->epoch))
            return true;
    return false;
}

static bool is_read(const ptx_warp *w, const ptx_word *word, int thread)
{
    for (uint32_t left = word->readers; left != 0; left &= left - 1) {
        int const warp = __builtin_ctz(left);
        const ptx_reading *const r = reading_of(w->block, word, warp);
        if (r->lanes == 0 ? !has_heard_product(w, warp, r) : !has_heard_lanes(w, warp, r, thread))
            return false;
    }
    return true;
}

void ptx_note_write(ptx_warp *w, const ptx_instruction *in, int thread, ptx_word *word)
{
    if (word->awaited)
        ptx_fail(w, in, "writes shared memory that a copy is on its way to");
    if (word->is_signal)
        ptx_fail(w, in, "writes shared memory that is an mbarrier");
    if (!ptx_is_written(w, word, thread))
        ptx_fail(w, in, "writes shared memory that another thread wrote, without a barrier");
    if (!is_read(w, word, thread))
        ptx_fail(w, in, "writes shared memory that another thread read, without a barrier");
    if (word->in_use != 0)
        ptx_fail(w, in, "writes shared memory that a product under way reads");
    word->writer = (int16_t)thread;
    word->epoch = w->epoch;
    word->readers = 0;
}

/* Lanes of the warp, or none for a product, have read the word. What others read is kept where it
   is not known to be over. */
static inline void note_reading(const ptx_warp *w, ptx_word *word, uint32_t lanes)
{
    ptx_reading *const r = reading_of(w->block, word, w->index);
    bool const before = (word->readers >> w->index & 1) != 0;
    if (before && r->epoch == w->epoch) {
        r->lanes |= lanes;
        return;
    }
    word->readers |= UINT32_C(1) << w->index;
    if (before && r->lanes != 0 && !has_heard_lanes(w, w->index, r, -1))
        lanes |= r->lanes;
    *r = (ptx_reading){w->epoch, lanes};
}

static void note_read(ptx_warp *w, const ptx_instruction *in, uint32_t lanes, ptx_word *word)
{
    bool const alone = (lanes & (lanes - 1)) == 0; /* and may have written it itself */
    if (word->awaited)
        ptx_fail(w, in, "reads shared memory that a copy is on its way to");
    if (word->is_signal)
        ptx_fail(w, in, "reads shared memory that is an mbarrier");
    if (!ptx_is_written(w, word, alone ? ptx_thread_of(w, __builtin_ctz(lanes)) : -1))
        ptx_fail(w, in,
                 word->writer < ptx_agents(w->block) / 2
                     ? "reads shared memory that another thread wrote, without a barrier"
                     : "reads shared memory that a copy wrote, without a wait for it");
    note_reading(w, word, lanes);
}

/* Products read by a way of their own: what was written is there once somebody has said so who
   knows of it, and of whom the warp knows. */
void ptx_note_product_begin(ptx_warp *w, const ptx_instruction *in, ptx_word *word)
{
    if (word->awaited)
        ptx_fail(w, in, "multiplies shared memory that a copy is on its way to");
    if (word->filled != 0xf || word->is_signal)
        ptx_fail(w, in, "multiplies shared memory that was not written");
    if (!ptx_is_written(w, word, -1))
        ptx_fail(w, in,
                 word->writer < ptx_agents(w->block) / 2
                     ? "multiplies shared memory that was written without a barrier"
                     : "multiplies shared memory that a copy wrote, without a wait for it");
    if (!ptx_is_published(w, word->writer, word->epoch))
        ptx_fail(w, in, "multiplies what was not published by fence.proxy.async on its way here");
    word->in_use++;
}

/* From now on the warp's own lanes may write there; others once they know of it. */
void ptx_note_product_end(ptx_warp *w, const ptx_instruction *in, ptx_word *word)
{
    (void)in;
    note_reading(w, word, 0);
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

uint32_t ptx_read_shared(ptx_warp *w, const ptx_instruction *in, uint32_t lanes, uint32_t at,
                         int bytes)
{
    ptx_word *const words = ptx_words_at(w, in, at, bytes);
    uint32_t filled = 0;
    for (int i = 0; i < bytes; i += PTX_WORD_BYTES) {
        note_read(w, in, lanes, &words[i / PTX_WORD_BYTES]);
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
