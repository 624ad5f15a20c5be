/* Where warps wait for each other: barriers of all threads or of some, and registers that other
 * warpgroups are to leave (setmaxnreg). */
#include "ptx/ptx_internal.h"

#include <stdio.h>
#include <stdlib.h>

enum { REGISTERS_OF_ALL = 65536, REGISTERS_MOST = 256, REGISTERS_LEAST = 24, POLLS_IDLE = 64 };

/* ---- barriers -------------------------------------------------------------------------------- */

static uint32_t warps_alive(const ptx_block *b)
{
    uint32_t alive = 0;
    for (int i = 0; i < b->warp_count; ++i)
        alive |= (uint32_t)(b->warps[i].alive != 0) << i;
    return alive;
}

/* If all are there, those that wait go on, and know what those that are there knew. */
static void end_barrier(ptx_block *b, ptx_barrier *of)
{
    bool const all = of->whole ? (warps_alive(b) & ~of->arrived) == 0
                               : __builtin_popcount(of->arrived) * PTX_LANES == of->threads;
    if (of->threads == 0 || !all)
        return;
    for (int i = 0; i < b->warp_count; ++i)
        if (of->waiting >> i & 1) {
            ptx_take(&b->warps[i], of->clock);
            b->warps[i].waits = PTX_NOTHING;
        }
    ptx_clock_clear(b, of->clock);
    *of = (ptx_barrier){.clock = of->clock};
}

/* bar.sync number, or bar.sync or bar.arrive number, threads */
void ptx_barrier_reach(ptx_warp *w, const ptx_instruction *in)
{
    ptx_block *const b = w->block;
    uint64_t const number = ptx_uniform(w, in, 0);
    uint64_t const threads = in->count > 1 ? ptx_uniform(w, in, 1) : b->launch->threads;
    uint32_t const bit = UINT32_C(1) << w->index;
    if (number >= PTX_BARRIERS)
        ptx_fail(w, in, "a barrier has no number from 0 to 15");
    if (threads == 0 || threads % PTX_LANES != 0 || threads > b->launch->threads)
        ptx_fail(w, in, "a barrier is of no whole warps, or of more than there are");
    ptx_barrier *const of = &b->barriers[number];
    bool const whole = in->count == 1;
    if (of->threads != 0 && (of->threads != (int)threads || of->whole != whole))
        ptx_fail(w, in, "a barrier is reached that is in use with another number of threads");
    if (of->arrived & bit)
        ptx_fail(w, in, "a warp reaches a barrier again before all others have");
    of->threads = (int)threads;
    of->whole = whole;
    of->arrived |= bit;
    ptx_give(w, w->alive, of->clock);
    if (!in->arrives) {
        of->waiting |= bit;
        w->waits = PTX_FOR_BARRIER;
        w->waits_in = in;
        w->waits_on = (int)number;
    }
    b->events++;
    end_barrier(b, of);
}

void ptx_barriers_go_on(ptx_block *b)
{
    for (int i = 0; i < PTX_BARRIERS; ++i)
        if (b->barriers[i].whole)
            end_barrier(b, &b->barriers[i]);
}

/* ---- registers ------------------------------------------------------------------------------- */

int ptx_registers_at_first(const ptx_block *b)
{
    int const blocks = b->kernel->blocks > 1 ? b->kernel->blocks : 1;
    int const registers = REGISTERS_OF_ALL / (int)b->launch->threads / blocks / 8 * 8;
    return registers < REGISTERS_MOST ? registers : REGISTERS_MOST;
}

/* Per thread, that no warp has, if each of a warp's threads has one. */
static int registers_free(const ptx_block *b)
{
    int left = ptx_registers_at_first(b) * b->warp_count;
    for (int i = 0; i < b->warp_count; ++i)
        left -= b->warps[i].registers;
    return left;
}

/* The group's warps execute the same ones, all of them each before one the next. */
static void join_step(ptx_warp *w, const ptx_instruction *in)
{
    ptx_register_step *const of = &w->block->register_steps[w->index / PTX_GROUP_WARPS];
    int64_t const number = ++w->register_steps;
    if (w->block->warp_count - w->index / PTX_GROUP_WARPS * PTX_GROUP_WARPS < PTX_GROUP_WARPS)
        ptx_fail(w, in, "the warpgroup has fewer than four warps");
    if (of->number < number && of->number > 0 && of->warps < PTX_GROUP_WARPS)
        ptx_fail(w, in, "another warp of the group has not executed setmaxnreg before");
    if (of->number < number)
        *of = (ptx_register_step){number, in->line, 0};
    if (of->line != in->line)
        ptx_fail(w, in, "another warp of the group has executed another setmaxnreg");
    of->warps++;
}

bool ptx_set_registers(ptx_warp *w, const ptx_instruction *in)
{
    ptx_block *const b = w->block;
    int const registers = (int)ptx_uniform(w, in, 0);
    if (registers < REGISTERS_LEAST || registers > REGISTERS_MOST || registers % 8 != 0)
        ptx_fail(w, in, "setmaxnreg with a number that is not 24, 32, ... 256");
    if (in->takes ? registers < w->registers : registers > w->registers)
        ptx_fail(w, in,
                 in->takes ? "setmaxnreg.inc to fewer registers than there were"
                           : "setmaxnreg.dec to more registers than there were");
    if (registers - w->registers > registers_free(b)) {
        w->waits = PTX_FOR_REGISTERS;
        w->waits_in = in;
        w->waits_on = registers;
        return false;
    }
    join_step(w, in);
    w->registers = registers;
    b->events++;
    for (int i = 0; i < b->warp_count && !in->takes; ++i)
        if (b->warps[i].waits == PTX_FOR_REGISTERS)
            b->warps[i].waits = PTX_NOTHING;
    return true;
}

/* ---- waiting for ever ------------------------------------------------------------------------ */

static void say_wait(const ptx_block *b, const ptx_warp *w)
{
    fprintf(stderr, "  warp %d, line %d: ", w->index, w->waits_in->line);
    if (w->waits == PTX_FOR_BARRIER) {
        const ptx_barrier *const of = &b->barriers[w->waits_on];
        fprintf(stderr, "at barrier %d of %d threads, which %d have reached\n", w->waits_on,
                of->threads, PTX_LANES * __builtin_popcount(of->arrived));
    } else if (w->waits == PTX_FOR_SIGNAL) {
        const ptx_signal *const s = &b->signals[w->waits_on];
        fprintf(stderr, "for the mbarrier at %u, whose phase %lld lacks %d of %d arrivals\n", s->at,
                (long long)s->phase, s->lacks, s->count);
    } else {
        fprintf(stderr, "for %d registers of each thread; it has %d\n", w->waits_on, w->registers);
    }
}

_Noreturn static void fail_stuck(const ptx_block *b)
{
    fprintf(stderr, "ptx: %s: all warps wait (%s, block %u)\n", b->kernel->file, b->kernel->name,
            b->index);
    for (int i = 0; i < b->warp_count; ++i)
        if (b->warps[i].alive != 0)
            say_wait(b, &b->warps[i]);
    abort();
}

/* Between two polls a warp may do something else, for a while. */
void ptx_all_wait(ptx_block *b)
{
    bool polls = false;
    if (b->events != b->events_idle)
        b->polls_idle = 0;
    b->events_idle = b->events;
    for (int i = 0; i < b->warp_count; ++i)
        polls |= b->warps[i].alive != 0 && b->warps[i].waits == PTX_FOR_SIGNAL;
    if (!polls || ++b->polls_idle > POLLS_IDLE)
        fail_stuck(b);
    for (int i = 0; i < b->warp_count; ++i)
        if (b->warps[i].waits == PTX_FOR_SIGNAL)
            b->warps[i].waits = PTX_NOTHING;
}
