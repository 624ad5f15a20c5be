/* Loads, stores, additions in memory, and matrices from shared memory. */
#include "ptx/ptx_access.h"
#include "sparse/cpu/dtype_bits.h"

#include <string.h>

/* ---- loads and stores ------------------------------------------------------------------------ */

static bool is_shared(const ptx_warp *w, uint64_t at)
{
    return at - (uint64_t)(uintptr_t)w->block->shared < w->block->launch->shared_bytes;
}

/* Where an access of the lanes goes: offsets in shared memory, or addresses. */
typedef struct place {
    bool shared;
    uint32_t offset[PTX_LANES];
    uintptr_t at[PTX_LANES];
} place;

static void place_of(ptx_warp *w, const ptx_instruction *in, int row, uint32_t lanes, place *p)
{
    const uint64_t *const base = w->rows[row];
    int const first = __builtin_ctz(lanes);
    ptx_expect_known(w, in, row, lanes);
    p->shared = in->space == PTX_SHARED ||
                (in->space == PTX_GENERIC && is_shared(w, base[first] + (uint64_t)in->offset));
    for (int i = 0; i < PTX_LANES; ++i) {
        uint64_t const at = base[i] + (uint64_t)in->offset;
        if (in->space == PTX_GENERIC && lanes >> i & 1 && is_shared(w, at) != p->shared)
            ptx_fail(w, in, "lanes go to shared and to device memory");
        uintptr_t const shared = in->space == PTX_GENERIC ? (uintptr_t)w->block->shared : 0;
        p->offset[i] = (uint32_t)(at - shared);
        p->at[i] = p->shared ? (uintptr_t)w->block->shared + p->offset[i] : (uintptr_t)at;
    }
}

/* The element at an address, as it fills a register. */
static inline uint64_t bits_at(const ptx_instruction *in, const char *at)
{
    uint8_t byte;
    uint16_t half;
    uint32_t word;
    uint64_t both;
    switch (in->bytes) {
    case 1:
        memcpy(&byte, at, sizeof(byte));
        return in->is_signed ? (uint64_t)(int8_t)byte : byte;
    case 2:
        memcpy(&half, at, sizeof(half));
        return in->is_signed ? (uint64_t)(int16_t)half : half;
    case 4:
        memcpy(&word, at, sizeof(word));
        return in->is_signed ? (uint64_t)(int32_t)word : word;
    default:
        memcpy(&both, at, sizeof(both));
        return both;
    }
}

static bool has(uint32_t filled, int first, int bytes)
{
    uint32_t const mask = ((UINT32_C(1) << bytes) - 1) << first;
    return (filled & mask) == mask;
}

/* A lane's register has these bytes of an element now, and with the last one those above. */
static uint8_t known_of(const ptx_instruction *in, uint32_t filled)
{
    uint32_t const all = (UINT32_C(1) << in->bytes) - 1;
    bool const extended = !in->is_signed || (filled >> (in->bytes - 1) & 1) != 0;
    return (uint8_t)((filled & all) | (extended ? ~all : 0));
}

static void check_param(ptx_warp *w, const ptx_instruction *in, uintptr_t at, int bytes)
{
    at -= (uintptr_t)w->block->launch->params;
    if (at + (uintptr_t)bytes > w->block->kernel->param_bytes || !ptx_is_aligned(at, bytes))
        ptx_fail(w, in, "an address is beyond the parameter, or not aligned");
}

/* Lanes that read one place, together; some of them, if they are far apart. @return how many sets
 */
static int lanes_together(const place *p, uint32_t lanes, uint32_t sets[PTX_LANES])
{
    enum { LOOKED_AT = 8 };
    uint32_t at[PTX_LANES];
    int count = 0;
    for (uint32_t left = lanes; left != 0; left &= left - 1) {
        uint32_t const offset = p->offset[__builtin_ctz(left)];
        int i = count - 1;
        while (i >= 0 && at[i] != offset)
            i = count - i < LOOKED_AT ? i - 1 : -1;
        if (i < 0) {
            i = count++;
            at[i] = offset;
            sets[i] = 0;
        }
        sets[i] |= left & -left;
    }
    return count;
}

static void load_shared(ptx_warp *w, const ptx_instruction *in, uint32_t lanes, const place *p)
{
    uint32_t sets[PTX_LANES];
    int const count = lanes_together(p, lanes, sets);
    for (int i = 0; i < count; ++i) {
        int const first = __builtin_ctz(sets[i]);
        uint32_t const filled =
            ptx_read_shared(w, in, sets[i], p->offset[first], in->bytes * in->vector);
        for (int v = 0; v < in->vector; ++v) {
            int const row = in->operands[v], at = v * in->bytes;
            uint64_t const bits = bits_at(in, (const char *)p->at[first] + at);
            uint8_t const known = known_of(in, filled >> at);
            for (uint32_t left = sets[i]; left != 0; left &= left - 1) {
                w->rows[row][__builtin_ctz(left)] = bits;
                w->known[row].lane[__builtin_ctz(left)] = known;
            }
        }
    }
}

static void load_other(ptx_warp *w, const ptx_instruction *in, uint32_t lanes, const place *p)
{
    for (uint32_t left = lanes; left != 0; left &= left - 1) {
        int const lane = __builtin_ctz(left);
        if (in->space == PTX_PARAM)
            check_param(w, in, p->at[lane], in->bytes * in->vector);
        else
            ptx_read_global(w, in, ptx_thread_of(w, lane), p->at[lane], in->bytes * in->vector);
        for (int v = 0; v < in->vector; ++v)
            w->rows[in->operands[v]][lane] =
                bits_at(in, (const char *)p->at[lane] + (ptrdiff_t)v * in->bytes);
    }
    for (int v = 0; v < in->vector; ++v)
        ptx_know_all(w, in->operands[v], lanes);
}

void ptx_load(ptx_warp *w, const ptx_instruction *in, uint32_t lanes)
{
    int const bytes = in->bytes * in->vector;
    place p;
    place_of(w, in, in->operands[in->vector], lanes, &p);
    if (p.shared)
        load_shared(w, in, lanes, &p);
    else
        load_other(w, in, lanes, &p);
    if (p.shared)
        ptx_count_shared(w, p.offset, lanes, bytes);
    else if (in->space != PTX_PARAM)
        ptx_count_global(w, p.at, lanes, bytes);
}

/* A bit per byte that a lane is about to store: whether its register has it. */
static uint32_t filled_of(const ptx_warp *w, const ptx_instruction *in, int lane)
{
    uint32_t filled = 0;
    for (int v = 0; v < in->vector; ++v)
        filled |= (w->known[in->operands[1 + v]].lane[lane] & ((UINT32_C(1) << in->bytes) - 1))
                  << v * in->bytes;
    return filled;
}

void ptx_store(ptx_warp *w, const ptx_instruction *in, uint32_t lanes)
{
    int const bytes = in->bytes * in->vector;
    place p;
    place_of(w, in, in->operands[0], lanes, &p);
    for (int lane = 0; lane < PTX_LANES; ++lane) {
        if (!(lanes >> lane & 1))
            continue;
        uint32_t const filled = filled_of(w, in, lane);
        if (p.shared)
            ptx_write_shared(w, in, lane, p.offset[lane], bytes, filled);
        else if (has(filled, 0, bytes))
            ptx_write_global(w, in, ptx_thread_of(w, lane), p.at[lane], bytes);
        else
            ptx_fail(w, in, "stores a register that was not written");
        for (int v = 0; v < in->vector; ++v)
            memcpy((char *)p.at[lane] + (ptrdiff_t)v * in->bytes,
                   &w->rows[in->operands[1 + v]][lane], (size_t)in->bytes);
    }
    if (p.shared)
        ptx_count_shared(w, p.offset, lanes, bytes);
    else
        ptx_count_global(w, p.at, lanes, bytes);
}

/* atom d, [a], b; red [a], {b, ...} */
void ptx_add(ptx_warp *w, const ptx_instruction *in, uint32_t lanes)
{
    int const *const from = in->operands + in->returns;
    int const bytes = in->bytes * in->vector;
    place p;
    place_of(w, in, from[0], lanes, &p);
    for (int v = 0; v < in->vector; ++v)
        ptx_expect_known(w, in, from[1 + v], lanes);
    for (int lane = 0; lane < PTX_LANES; ++lane) {
        if (!(lanes >> lane & 1))
            continue;
        ptx_read_global(w, in, ptx_thread_of(w, lane), p.at[lane], bytes);
        for (int v = 0; v < in->vector; ++v) {
            char *const at = (char *)p.at[lane] + (ptrdiff_t)v * in->bytes;
            uint32_t before, more = (uint32_t)w->rows[from[1 + v]][lane];
            memcpy(&before, at, sizeof(before));
            more =
                in->is_float ? bits_of_f32(f32_of_bits(before) + f32_of_bits(more)) : before + more;
            memcpy(at, &more, sizeof(more));
            if (in->returns)
                w->rows[in->operands[0]][lane] = before;
        }
    }
    if (in->returns) {
        ptx_know_all(w, in->operands[0], lanes);
    }
    ptx_count_global(w, p.at, lanes, bytes);
}

/* ---- matrices -------------------------------------------------------------------------------- */

/* ldmatrix.x4: row r of matrix m is at the address that lane 8 m + r gives; each lane gets a pair
   of elements of each matrix, of a row or, turned, of a column. */
void ptx_matrices(ptx_warp *w, const ptx_instruction *in)
{
    uint32_t at[PTX_LANES], filled = 0;
    ptx_expect_known(w, in, in->operands[4], UINT32_MAX);
    for (int lane = 0; lane < PTX_LANES; ++lane) {
        at[lane] = (uint32_t)(w->rows[in->operands[4]][lane] + (uint64_t)in->offset);
        bool const whole =
            ptx_read_shared(w, in, UINT32_C(1) << lane, at[lane], PTX_PIECE_BYTES) == 0xffff;
        filled |= (uint32_t)whole << lane;
    }
    for (int m = 0; m < 4; ++m) {
        bool const known = (filled >> 8 * m & 0xff) == 0xff;
        for (int lane = 0; lane < PTX_LANES; ++lane) {
            uint16_t pair[2];
            for (int e = 0; e < 2; ++e) {
                int const row = in->turned ? lane % 4 * 2 + e : lane / 4;
                int const column = in->turned ? lane / 4 : lane % 4 * 2 + e;
                memcpy(&pair[e], w->block->shared + at[8 * m + row] + 2 * column, 2);
            }
            w->rows[in->operands[m]][lane] = pair[0] | (uint32_t)pair[1] << 16;
        }
        memset(&w->known[in->operands[m]], known ? UINT8_MAX : 0, sizeof(ptx_known));
    }
    ptx_count_shared(w, at, UINT32_MAX, PTX_PIECE_BYTES);
}
