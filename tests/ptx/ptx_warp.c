/* Runs a warp: where its lanes are, and what they compute without touching memory. */
#include "ptx/ptx_internal.h"
#include "sparse/cpu/dtype_bits.h"
#include "support/tensor_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Noreturn void ptx_fail(const ptx_warp *warp, const ptx_instruction *in, const char *what)
{
    const ptx_kernel *const k = warp->block->kernel;
    fprintf(stderr, "ptx: %s:%d: %s (%s, block %u, warp %d)\n", k->file, in->line, what, k->name,
            warp->block->index, warp->index);
    abort();
}

/* ---- registers ------------------------------------------------------------------------------- */

static bool are_known(const ptx_known *known, uint32_t lanes)
{
    uint64_t parts[PTX_LANES / 8];
    memcpy(parts, known, sizeof(parts));
    if ((parts[0] & parts[1] & parts[2] & parts[3]) == UINT64_MAX)
        return true;
    for (int i = 0; i < PTX_LANES; ++i)
        if (lanes >> i & 1 && known->lane[i] != UINT8_MAX)
            return false;
    return true;
}

void ptx_expect_known(const ptx_warp *w, const ptx_instruction *in, int row, uint32_t lanes)
{
    if (!are_known(&w->known[row], lanes))
        ptx_fail(w, in, "reads a register that was not written");
}

void ptx_know_all(ptx_warp *w, int row, uint32_t lanes)
{
    for (int i = 0; i < PTX_LANES; ++i)
        w->known[row].lane[i] |= lanes >> i & 1 ? UINT8_MAX : 0;
}

uint64_t ptx_uniform(const ptx_warp *w, const ptx_instruction *in, int operand)
{
    const uint64_t *const values = w->rows[in->operands[operand]];
    int const first = __builtin_ctz(w->alive);
    ptx_expect_known(w, in, in->operands[operand], w->alive);
    for (int lane = first; lane < PTX_LANES; ++lane)
        if (w->alive >> lane & 1 && values[lane] != values[first])
            ptx_fail(w, in, "lanes disagree about what must be one for all of them");
    return values[first];
}

static void put(ptx_warp *w, int row, const uint64_t *values, uint32_t lanes,
                const ptx_known *known)
{
    uint64_t *const to = w->rows[row];
    if (lanes == UINT32_MAX) {
        memcpy(to, values, sizeof(ptx_row));
        w->known[row] = *known;
        return;
    }
    for (int i = 0; i < PTX_LANES; ++i) {
        to[i] = lanes >> i & 1 ? values[i] : to[i];
        w->known[row].lane[i] = lanes >> i & 1 ? known->lane[i] : w->known[row].lane[i];
    }
}

/* All of it is known. */
static void put_known(ptx_warp *w, int row, const uint64_t *values, uint32_t lanes)
{
    ptx_known all;
    memset(&all, UINT8_MAX, sizeof(all));
    put(w, row, values, lanes, &all);
}

/* Bits: bytes that are zero. */
static uint8_t zeros_of(uint64_t value)
{
    unsigned zeros = 0;
    for (int i = 0; i < 8; ++i)
        zeros |= (unsigned)((value >> 8 * i & 0xff) == 0) << i;
    return (uint8_t)zeros;
}

/* Which bytes of a result a lane has, if not all bytes of what it is computed from; `both`: those
   that all inputs have. */
static uint8_t known_result(const ptx_warp *w, const ptx_instruction *in, int lane, uint8_t both)
{
    int const first = in->operands[1], second = in->operands[2];
    unsigned const x = w->known[first].lane[lane], y = w->known[second].lane[lane];
    uint64_t const value = w->rows[first][lane], other = w->rows[second][lane];
    int const bytes = (int)other / 8; /* of a shift */
    switch (in->use) {
    case PTX_MOVES:
        return both;
    case PTX_MOVES_LOW_4:
        return (uint8_t)(x | 0xf0);
    case PTX_MOVES_LOW_2:
        return (uint8_t)(x | 0xfc);
    case PTX_MOVES_UP:
        return y != UINT8_MAX || other > 16 || other % 8 != 0
                   ? 0
                   : (uint8_t)(x << bytes | ((1U << bytes) - 1) | 0xfc);
    case PTX_MOVES_DOWN:
        return y != UINT8_MAX || other > 64 || other % 8 != 0 ? 0
                                                              : (uint8_t)((x | 0xff00) >> bytes);
    case PTX_CLEARS:
        return (uint8_t)((x & y) | (x & zeros_of(value)) | (y & zeros_of(other)));
    case PTX_UNITES:
        return (x == UINT8_MAX && value == 1) || (y == UINT8_MAX && other == 1) ? UINT8_MAX : both;
    case PTX_TELLS:
        return 0;
    default:
        ptx_fail(w, in, "reads a register that was not written");
    }
}

static void compute(ptx_warp *w, const ptx_instruction *in, uint32_t lanes)
{
    const uint64_t *from[4];
    ptx_known known;
    ptx_row out;
    memset(&known, UINT8_MAX, sizeof(known));
    for (int i = 0; i < 4; ++i) {
        int const row = i + 1 < in->count ? in->operands[i + 1] : PTX_ZERO;
        from[i] = w->rows[row];
        for (int lane = 0; i + 1 < in->count && lane < PTX_LANES; ++lane)
            known.lane[lane] &= w->known[row].lane[lane];
    }
    if (!are_known(&known, lanes))
        for (int i = 0; i < PTX_LANES; ++i)
            if (lanes >> i & 1 && known.lane[i] != UINT8_MAX)
                known.lane[i] = known_result(w, in, i, known.lane[i]);
    in->compute(out, from[0], from[1], from[2], from[3]);
    put(w, in->operands[0], out, lanes, &known);
}

static void pack(ptx_warp *w, const ptx_instruction *in, uint32_t lanes)
{
    int const low = in->operands[1], high = in->operands[2];
    uint64_t const mask = in->bytes == 2 ? 0xffff : UINT32_MAX;
    unsigned const half = (1U << in->bytes) - 1, above = ~(half | half << in->bytes);
    ptx_known known;
    ptx_row out;
    for (int i = 0; i < PTX_LANES; ++i) {
        out[i] = (w->rows[low][i] & mask) | (w->rows[high][i] & mask) << 8 * in->bytes;
        known.lane[i] = (uint8_t)((w->known[low].lane[i] & half) |
                                  (w->known[high].lane[i] & half) << in->bytes | above);
    }
    put(w, in->operands[0], out, lanes, &known);
}

static void unpack(ptx_warp *w, const ptx_instruction *in, uint32_t lanes)
{
    int const from = in->operands[2];
    uint64_t const mask = in->bytes == 2 ? 0xffff : UINT32_MAX;
    unsigned const above = ~((1U << in->bytes) - 1);
    ptx_known known_low, known_high;
    ptx_row low, high;
    for (int i = 0; i < PTX_LANES; ++i) {
        low[i] = w->rows[from][i] & mask;
        high[i] = w->rows[from][i] >> 8 * in->bytes & mask;
        known_low.lane[i] = (uint8_t)(w->known[from].lane[i] | above);
        known_high.lane[i] = (uint8_t)(w->known[from].lane[i] >> in->bytes | above);
    }
    put(w, in->operands[0], low, lanes, &known_low);
    put(w, in->operands[1], high, lanes, &known_high);
}

/* ---- what a warp does together --------------------------------------------------------------- */

/* shfl.sync.bfly d|p, a, mask, clamp, members: a of lane (own lane XOR mask); .idx: of lane mask.
 */
static void shuffle(ptx_warp *w, const ptx_instruction *in)
{
    const int *const from = in->operands + in->first;
    const uint64_t *const value = w->rows[from[0]], *const mask = w->rows[from[1]];
    ptx_row out, valid;
    ptx_expect_known(w, in, from[0], w->alive);
    ptx_expect_known(w, in, from[1], w->alive);
    for (int i = 0; i < PTX_LANES; ++i) {
        out[i] = value[((in->indexed ? 0 : i) ^ (int)mask[i]) & (PTX_LANES - 1)];
        valid[i] = 1;
    }
    put_known(w, in->operands[0], out, w->alive);
    if (in->first == 2)
        put_known(w, in->operands[1], valid, w->alive);
}

static void vote(ptx_warp *w, const ptx_instruction *in)
{
    const uint64_t *const holds = w->rows[in->operands[1]];
    uint64_t votes = 0;
    ptx_row out;
    ptx_expect_known(w, in, in->operands[1], w->alive);
    for (int i = 0; i < PTX_LANES; ++i)
        votes |= (holds[i] & 1) << i;
    for (int i = 0; i < PTX_LANES; ++i)
        out[i] = votes & w->alive;
    put_known(w, in->operands[0], out, w->alive);
}

static void halves(bool is_half, uint64_t bits, float *low, float *high)
{
    *low = is_half ? f32_of_f16((uint16_t)bits) : f32_of_bf16((uint16_t)bits);
    *high = is_half ? f32_of_f16((uint16_t)(bits >> 16)) : f32_of_bf16((uint16_t)(bits >> 16));
}

/* mma.m16n8k16: D = A B + C. Which lane holds what is the PTX ISA's ("Matrix Fragments for
   mma.m16n8k16"). */
static void product(ptx_warp *w, const ptx_instruction *in)
{
    const int *const a_rows = in->operands + 4, *const b_rows = in->operands + 8;
    const int *const c_rows = in->operands + 10;
    float a[16][16], b[16][8];
    double sums[16][8] = {{0}};
    for (int i = 4; i < 14; ++i)
        ptx_expect_known(w, in, in->operands[i], UINT32_MAX);
    for (int lane = 0; lane < PTX_LANES; ++lane) {
        int const group = lane / 4, pair = lane % 4 * 2;
        for (int i = 0; i < 4; ++i) {
            float *const at = &a[group + 8 * (i & 1)][pair + 8 * (i >> 1)];
            halves(in->half, w->rows[a_rows[i]][lane], at, at + 1);
        }
        for (int i = 0; i < 2; ++i)
            halves(in->half, w->rows[b_rows[i]][lane], &b[pair + 8 * i][group],
                   &b[pair + 8 * i + 1][group]);
    }
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < 16; ++k)
            for (int column = 0; column < 8; ++column)
                sums[row][column] += (double)a[row][k] * (double)b[k][column];
    for (int i = 0; i < 4; ++i) {
        ptx_row out;
        for (int lane = 0; lane < PTX_LANES; ++lane) {
            double const sum = sums[lane / 4 + 8 * (i >> 1)][lane % 4 * 2 + (i & 1)];
            float const before = f32_of_bits((uint32_t)w->rows[c_rows[i]][lane]);
            out[lane] = bits_of_f32(tensor_core_cut((double)before + sum));
        }
        put_known(w, in->operands[i], out, UINT32_MAX);
    }
}

static void together(ptx_warp *w, const ptx_instruction *in)
{
    bool const whole = w->alive == UINT32_MAX;
    if (in->guard >= 0)
        ptx_fail(w, in, "what a warp does together is under a condition");
    if (!whole && in->kind != PTX_BARRIER && in->kind != PTX_WARP_BARRIER)
        ptx_fail(w, in, "lanes that have returned are missing");
    switch (in->kind) {
    case PTX_SHUFFLE:
        shuffle(w, in);
        break;
    case PTX_VOTE:
        vote(w, in);
        break;
    case PTX_WARP_BARRIER:
        ptx_meet(w);
        break;
    case PTX_MATRICES:
        ptx_matrices(w, in);
        break;
    case PTX_PRODUCT:
        product(w, in);
        break;
    case PTX_GROUP_FENCE:
        ptx_group_fence(w);
        break;
    case PTX_GROUP_PRODUCT:
        ptx_group_product_begin(w, in);
        break;
    case PTX_GROUP_COMMIT:
        ptx_group_commit(w);
        break;
    case PTX_GROUP_WAIT:
        ptx_group_wait(w, in);
        break;
    case PTX_SIGNAL_WAIT:
        ptx_signal_wait(w, in);
        break;
    case PTX_REGISTERS:
        if (!ptx_set_registers(w, in))
            return; /* it comes back */
        break;
    default:
        ptx_barrier_reach(w, in);
    }
    w->at++;
}

/* ---- lanes ----------------------------------------------------------------------------------- */

/* Run the lanes that are furthest behind next: the others are where they meet again. */
static void choose_lanes(ptx_warp *w)
{
    uint32_t const ready = w->alive & ~w->waiting;
    int least = INT32_MAX;
    if (ready == 0 && w->alive != 0)
        ptx_fail(w, &w->block->kernel->code[w->pc[__builtin_ctz(w->alive)]],
                 "lanes wait here for others, which wait elsewhere");
    w->active = 0;
    for (int i = 0; i < PTX_LANES; ++i)
        if (ready >> i & 1 && w->pc[i] < least)
            least = w->pc[i];
    for (int i = 0; i < PTX_LANES; ++i)
        if (ready >> i & 1 && w->pc[i] == least)
            w->active |= UINT32_C(1) << i;
    w->at = least;
}

static void leave_lanes(ptx_warp *w, uint32_t lanes, int pc)
{
    for (int i = 0; i < PTX_LANES; ++i)
        if (lanes >> i & 1)
            w->pc[i] = pc;
}

/* Some lanes of the warp are elsewhere: whether they are here, or behind. */
static void meet(ptx_warp *w)
{
    uint32_t const others = w->alive & ~w->active & ~w->waiting;
    for (int i = 0; i < PTX_LANES; ++i)
        if (others >> i & 1 && w->pc[i] <= w->at) {
            leave_lanes(w, w->active, w->at);
            choose_lanes(w);
            return;
        }
}

static void branch(ptx_warp *w, const ptx_instruction *in, uint32_t lanes)
{
    if (lanes == w->active) {
        w->at = in->target;
    } else if (lanes == 0) {
        w->at++;
    } else {
        leave_lanes(w, lanes, in->target);
        leave_lanes(w, w->active & ~lanes, w->at + 1);
        choose_lanes(w);
    }
}

static void leave_kernel(ptx_warp *w, uint32_t lanes)
{
    leave_lanes(w, w->active & ~lanes, w->at + 1);
    w->alive &= ~lanes;
    if (w->alive != 0)
        choose_lanes(w);
}

/* Wait for the rest of the warp, at the same instruction. */
static bool warp_is_here(ptx_warp *w)
{
    if (w->active == w->alive)
        return true;
    leave_lanes(w, w->active, w->at);
    w->waiting |= w->active;
    if (w->waiting == w->alive) {
        int const at = w->at;
        uint32_t here = 0;
        for (int i = 0; i < PTX_LANES; ++i)
            here |= (uint32_t)(w->waiting >> i & 1 && w->pc[i] == at) << i;
        if (here == w->alive) {
            w->waiting = 0;
            w->active = w->alive;
            return true;
        }
    }
    choose_lanes(w);
    return false;
}

static uint32_t taking_part(const ptx_warp *w, const ptx_instruction *in)
{
    if (in->guard < 0)
        return w->active;
    const uint64_t *const holds = w->rows[in->guard];
    uint32_t lanes = 0;
    ptx_expect_known(w, in, in->guard, w->active);
    for (int i = 0; i < PTX_LANES; ++i)
        lanes |= (uint32_t)((holds[i] & 1) != in->unless) << i;
    return lanes & w->active;
}

static void count(ptx_warp *w, const ptx_instruction *in)
{
    ptx_counts *const counts = w->block->counts;
    if (counts == NULL)
        return;
    counts->instructions++;
    counts->divergent += w->active != w->alive;
    counts->products += in->kind == PTX_PRODUCT;
    counts->group_products += in->kind == PTX_GROUP_PRODUCT;
    counts->barriers += in->kind == PTX_BARRIER;
}

/* Those of products by a warpgroup go by rules of their own. */
static void touch_registers(ptx_warp *w, const ptx_instruction *in)
{
    for (int i = 0; i < in->count && in->kind != PTX_GROUP_PRODUCT; ++i)
        w->touched[in->operands[i]] = w->fences;
}

void ptx_step(ptx_warp *w)
{
    const ptx_kernel *const k = w->block->kernel;
    const ptx_instruction *const in = &k->code[w->at];
    if (w->at >= k->length)
        ptx_fail(w, &k->code[k->length - 1], "the kernel ends without a return");
    if (in->kind >= PTX_SHUFFLE) {
        if (warp_is_here(w)) {
            count(w, in);
            touch_registers(w, in);
            together(w, in);
        }
        return;
    }
    uint32_t const lanes = taking_part(w, in);
    count(w, in);
    if (lanes != 0)
        touch_registers(w, in);
    if (in->kind == PTX_BRANCH) {
        branch(w, in, lanes);
    } else if (in->kind == PTX_RETURN) {
        if (lanes != 0)
            leave_kernel(w, lanes);
        else
            w->at++;
    } else {
        if (lanes != 0)
            switch (in->kind) {
            case PTX_COMPUTE:
                compute(w, in, lanes);
                break;
            case PTX_PACK:
                pack(w, in, lanes);
                break;
            case PTX_UNPACK:
                unpack(w, in, lanes);
                break;
            case PTX_LOAD:
                ptx_load(w, in, lanes);
                break;
            case PTX_STORE:
                ptx_store(w, in, lanes);
                break;
            case PTX_ADD:
                ptx_add(w, in, lanes);
                break;
            case PTX_COPY:
                ptx_copy(w, in, lanes);
                break;
            case PTX_COMMIT:
                ptx_commit(w, lanes);
                break;
            case PTX_PUBLISH:
                ptx_publish(w, lanes);
                break;
            case PTX_FENCE:
                break;
            case PTX_SIGNAL_BEGIN:
                ptx_signal_begin(w, in, lanes);
                break;
            case PTX_SIGNAL_ARRIVE:
                ptx_signal_arrive(w, in, lanes);
                break;
            case PTX_SIGNAL_COPIED:
                ptx_signal_copied(w, in, lanes);
                break;
            default:
                ptx_wait(w, in, lanes);
            }
        w->at++;
    }
    if (w->active != w->alive && w->alive != 0)
        meet(w);
}

/* ---- the beginning --------------------------------------------------------------------------- */

static void fill(ptx_warp *w, int row, uint64_t value, uint64_t step_value)
{
    for (int i = 0; i < PTX_LANES; ++i)
        w->rows[row][i] = value + step_value * (uint64_t)i;
    ptx_know_all(w, row, UINT32_MAX);
}

void ptx_warp_begin(ptx_warp *w)
{
    const ptx_kernel *const k = w->block->kernel;
    const ptx_launch *const launch = w->block->launch;
    int const first = k->registers - k->constant_count;
    memset(w->known, 0, sizeof(*w->known) * (size_t)k->registers);
    fill(w, PTX_TID, (uint64_t)(w->index * PTX_LANES), 1);
    fill(w, PTX_NTID, launch->threads, 0);
    fill(w, PTX_CTAID, w->block->index, 0);
    fill(w, PTX_NCTAID, launch->blocks, 0);
    fill(w, PTX_PARAMS, (uint64_t)(uintptr_t)launch->params, 0);
    fill(w, PTX_SHARED_BASE, (uint64_t)(uintptr_t)w->block->shared, 0);
    fill(w, PTX_ZERO, 0, 0);
    for (int i = 0; i < k->constant_count; ++i)
        fill(w, first + i, k->constants[i], 0);
    w->alive = w->active = UINT32_MAX;
    w->waiting = 0;
    w->at = 0;
    w->waits = PTX_NOTHING;
    w->epoch = 1;
    ptx_clock_clear(w->block, w->clock);
    w->registers = ptx_registers_at_first(w->block);
    w->register_steps = 0;
    w->commits = w->products = 0;
    w->pending_count = 0;
    w->fences = 0;
    memset(w->touched, 0xff, sizeof(*w->touched) * (size_t)k->registers);
}
