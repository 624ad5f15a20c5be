/* What a step of the forward pass does with a chunk of queries; on CPUs and GPUs. */
#ifndef RINGATTN_CHUNK_TURN_H
#define RINGATTN_CHUNK_TURN_H

#include "ringattn/kernel.h"
#include "sparse/host_device.h"

typedef struct ra_chunk_turn {
    bool skipped;      /* the step has no part in the chunk */
    bool begins, ends; /* the state is started rather than read; it ends in output */
    bool carried;      /* the state lies in the pass's state, else nowhere, or in scratch */
    int64_t state_row; /* the map's row whose state comes first there */
} ra_chunk_turn;

/* `first`, `last`: as in ra_forward_step, where there are no `chunks`. */
RA_HD ra_chunk_turn ra_chunk_turn_of(const ra_chunk_steps *chunks, int32_t step, bool first,
                                     bool last, int32_t chunk, int32_t chunk_rows)
{
    int64_t const begin = (int64_t)chunk * chunk_rows;
    ra_chunk_turn turn = {false, first, last, !(first && last), 0};
    if (chunks != NULL) {
        ra_chunk_steps const of = chunks[chunk];
        turn.skipped = step < of.first || step > of.last;
        turn.begins = step == of.first;
        turn.ends = step == of.last;
        turn.carried = of.first < of.last;
        turn.state_row = begin - of.state_row;
    }
    if (!turn.carried)
        turn.state_row = begin;
    return turn;
}

#endif
