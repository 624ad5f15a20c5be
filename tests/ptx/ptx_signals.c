/*
 * mbarrier: signals in shared memory. A phase ends with as many arrivals as the signal was begun
 * with; that of a thread's copies (cp.async.mbarrier.arrive.noinc) is there once they are, which
 * here is as late as it may be: when nothing else is missing.
 */
#include "ptx/ptx_access.h"

enum { SIGNAL_BYTES = 8, COUNT_MAX = (1 << 20) - 1 };

static uint32_t offset_of(const ptx_warp *w, const ptx_instruction *in, int operand, int lane)
{
    ptx_expect_known(w, in, in->operands[operand], UINT32_C(1) << lane);
    return (uint32_t)(w->rows[in->operands[operand]][lane] + (uint64_t)in->offset);
}

/* A lane uses the signal that is there. */
static ptx_signal *signal_at(ptx_warp *w, const ptx_instruction *in, uint32_t at, int lane)
{
    ptx_block *const b = w->block;
    const ptx_word *const words = ptx_words_at(w, in, at, SIGNAL_BYTES);
    for (int i = 0; i < b->signal_count; ++i)
        if (b->signals[i].at == at) {
            if (!ptx_is_written(w, words, ptx_thread_of(w, lane)))
                ptx_fail(w, in, "an mbarrier is used that was begun without a barrier");
            return &b->signals[i];
        }
    ptx_fail(w, in, "no mbarrier was begun here");
}

/* mbarrier.init [at], count */
void ptx_signal_begin(ptx_warp *w, const ptx_instruction *in, uint32_t lanes)
{
    ptx_block *const b = w->block;
    ptx_expect_known(w, in, in->operands[1], lanes);
    for (int lane = 0; lane < PTX_LANES; ++lane) {
        if (!(lanes >> lane & 1))
            continue;
        uint32_t const at = offset_of(w, in, 0, lane);
        uint64_t const count = (uint32_t)w->rows[in->operands[1]][lane];
        if (count == 0 || count > COUNT_MAX)
            ptx_fail(w, in, "an mbarrier is of no arrivals, or of too many");
        ptx_write_shared(w, in, lane, at, SIGNAL_BYTES, 0xff);
        if (b->signal_count == PTX_SIGNALS_MAX)
            ptx_fail(w, in, "more mbarriers than are kept");
        ptx_signal *const s = &b->signals[b->signal_count++];
        *s = (ptx_signal){.at = at,
                          .count = (int)count,
                          .lacks = (int)count,
                          .clock = s->clock == NULL ? ptx_clock_new(b) : s->clock,
                          .ended = s->ended == NULL ? ptx_clock_new(b) : s->ended};
        ptx_clock_clear(b, s->clock);
        ptx_clock_clear(b, s->ended);
        for (int i = 0; i < SIGNAL_BYTES / PTX_WORD_BYTES; ++i)
            ptx_words_at(w, in, at, SIGNAL_BYTES)[i].is_signal = true;
    }
}

/* The last arrival may have been the last of a phase. */
static void end_arrival(ptx_block *b, ptx_signal *s)
{
    b->events++;
    if (--s->lacks > 0)
        return;
    int32_t *const ended = s->clock;
    ptx_pieces_arrive(b, ended);
    s->clock = s->ended;
    s->ended = ended;
    ptx_clock_clear(b, s->clock);
    s->lacks = s->count;
    s->phase++;
    for (int i = 0; i < b->warp_count; ++i)
        if (b->warps[i].waits == PTX_FOR_SIGNAL)
            b->warps[i].waits = PTX_NOTHING;
}

static void put(ptx_warp *w, int row, uint32_t lanes, uint64_t value)
{
    for (int lane = 0; lane < PTX_LANES; ++lane)
        if (lanes >> lane & 1)
            w->rows[row][lane] = value;
    ptx_know_all(w, row, lanes);
}

/* mbarrier.arrive phase, [at] */
void ptx_signal_arrive(ptx_warp *w, const ptx_instruction *in, uint32_t lanes)
{
    for (int lane = 0; lane < PTX_LANES; ++lane) {
        uint32_t const own = lanes & UINT32_C(1) << lane;
        if (own == 0)
            continue;
        ptx_signal *const s = signal_at(w, in, offset_of(w, in, 1, lane), lane);
        put(w, in->operands[0], own, (uint64_t)s->phase);
        ptx_give(w, own, s->clock);
        end_arrival(w->block, s);
    }
}

/* cp.async.mbarrier.arrive.noinc [at]: of the thread's copies it tells, but of nothing else that
   the thread did. */
void ptx_signal_copied(ptx_warp *w, const ptx_instruction *in, uint32_t lanes)
{
    ptx_block *const b = w->block;
    for (int lane = 0; lane < PTX_LANES; ++lane) {
        if (!(lanes >> lane & 1))
            continue;
        int const thread = ptx_thread_of(w, lane);
        ptx_signal *const s = signal_at(w, in, offset_of(w, in, 0, lane), lane);
        s->clock[ptx_agents(b) / 2 + thread] = b->pieces_begun[thread];
        end_arrival(b, s);
    }
}

/* mbarrier.try_wait.parity ended, [at], parity: of the phase before this one. A warp that has to
   come back does so once something has happened. */
void ptx_signal_wait(ptx_warp *w, const ptx_instruction *in)
{
    uint32_t const at = (uint32_t)(ptx_uniform(w, in, 1) + (uint64_t)in->offset);
    uint64_t const parity = (uint32_t)ptx_uniform(w, in, 2);
    ptx_signal *const s = signal_at(w, in, at, 0);
    if (parity > 1)
        ptx_fail(w, in, "a parity is neither 0 nor 1");
    bool const ended = (uint64_t)(s->phase & 1) != parity;
    put(w, in->operands[0], UINT32_MAX, ended);
    if (ended) {
        ptx_take(w, s->ended);
        return;
    }
    w->waits = PTX_FOR_SIGNAL;
    w->waits_in = in;
    w->waits_on = (int)(s - w->block->signals);
}
