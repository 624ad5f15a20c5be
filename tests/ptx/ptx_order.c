/*
 * What came before what. Each warp counts epochs, and keeps a clock of what it knows of others
 * (vector clocks). It learns as a warp, all lanes at once; but what a lane says tells only of what
 * that lane did since all of them last met, as at bar.warp.sync.
 */
#include "ptx/ptx_internal.h"

#include <string.h>

static size_t clock_length(const ptx_block *b)
{
    return 2 * (size_t)ptx_agents(b);
}

int32_t *ptx_clock_new(const ptx_block *b)
{
    return ptx_zeros(clock_length(b), sizeof(int32_t));
}

void ptx_clock_clear(const ptx_block *b, int32_t *clock)
{
    memset(clock, 0, sizeof(*clock) * clock_length(b));
}

static void join(int32_t *restrict to, const int32_t *restrict from, size_t length)
{
    for (size_t i = 0; i < length; ++i)
        to[i] = from[i] > to[i] ? from[i] : to[i];
}

/* What some lanes have done up to now. */
static void know_lanes(const ptx_warp *w, uint32_t lanes, int32_t *clock)
{
    for (int lane = 0; lane < PTX_LANES; ++lane)
        if (lanes >> lane & 1)
            clock[ptx_thread_of(w, lane)] = w->epoch;
}

void ptx_meet(ptx_warp *w)
{
    know_lanes(w, UINT32_MAX, w->clock);
    w->epoch++;
}

void ptx_give(ptx_warp *w, uint32_t lanes, int32_t *clock)
{
    join(clock, w->clock, clock_length(w->block));
    know_lanes(w, lanes, clock);
    w->epoch++;
}

void ptx_take(ptx_warp *w, const int32_t *clock)
{
    join(w->clock, clock, clock_length(w->block));
}

/* What others did is known to the warp as a whole: all lanes have to publish it. */
void ptx_publish(ptx_warp *w, uint32_t lanes)
{
    int const agents = ptx_agents(w->block), copies = agents / 2;
    int32_t *const published = w->clock + agents;
    if (lanes == w->alive)
        join(published, w->clock, (size_t)agents);
    know_lanes(w, lanes, published);
    for (int lane = 0; lane < PTX_LANES; ++lane)
        if (lanes >> lane & 1)
            published[copies + ptx_thread_of(w, lane)] = w->clock[copies + ptx_thread_of(w, lane)];
    w->epoch++;
}
