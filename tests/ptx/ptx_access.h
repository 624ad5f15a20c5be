/* Accesses of one lane to memory: each ends the process if it is undefined (ptx.h). */
#ifndef RINGATTN_TESTS_PTX_ACCESS_H
#define RINGATTN_TESTS_PTX_ACCESS_H

#include "ptx/ptx_internal.h"

enum { PTX_WORD_BYTES = 4, PTX_PIECE_BYTES = 16 };

/** To a power of two. */
bool ptx_is_aligned(uintptr_t at, int bytes);

/** Words of shared memory from an offset on, aligned to `bytes`, a power of two. */
ptx_word *ptx_words_at(ptx_warp *w, const ptx_instruction *in, uint32_t at, int bytes);
/** Whether what was written came before what the thread, of the warp, does now. */
static inline bool ptx_is_written(const ptx_warp *w, const ptx_word *word, int thread)
{
    return word->writer < 0 || word->writer == thread ||
           ptx_has_heard(w, word->writer, word->epoch);
}

/** A thread of the warp writes a word. */
void ptx_note_write(ptx_warp *w, const ptx_instruction *in, int thread, ptx_word *word);
/** Some lanes read one place. @return a bit per byte: whether it was ever written */
uint32_t ptx_read_shared(ptx_warp *w, const ptx_instruction *in, uint32_t lanes, uint32_t at,
                         int bytes);
/** A lane writes; `filled`: as above, of what it writes. */
void ptx_write_shared(ptx_warp *w, const ptx_instruction *in, int lane, uint32_t at, int bytes,
                      uint32_t filled);

/** A product of the warp reads a word from now on; until now. */
void ptx_note_product_begin(ptx_warp *w, const ptx_instruction *in, ptx_word *word);
void ptx_note_product_end(ptx_warp *w, const ptx_instruction *in, ptx_word *word);

/** A thread of the warp reads `bytes` of device memory, aligned to as many, adds to them, or writes
    them. Additions may be done in any order, after what was written. */
void ptx_read_global(ptx_warp *w, const ptx_instruction *in, int thread, uintptr_t at, int bytes);
void ptx_write_global(ptx_warp *w, const ptx_instruction *in, int thread, uintptr_t at, int bytes);

/** Count an access of some lanes, if anybody counts. */
void ptx_count_shared(ptx_warp *w, const uint32_t *at, uint32_t lanes, int bytes);
void ptx_count_global(ptx_warp *w, const uintptr_t *at, uint32_t lanes, int bytes);

#endif
