/*
 * wgmma: products that four warps begin together, and that read shared memory and registers until
 * they are waited for. Each warp computes its own 16 rows when it begins them, and sees them after
 * the wait; what it, or another, does to their registers or memory meanwhile ends the process.
 */
#include "ptx/ptx_access.h"
#include "sparse/cpu/dtype_bits.h"
#include "support/tensor_core.h"
#include "support/wgmma_operand.h"

#include <string.h>

enum { WARP_ROWS = 16, COLUMNS_MAX = 128 };

/* An operand in shared memory: `rows` of it, from `first` on, are this warp's. */
typedef struct operand {
    uint64_t descriptor;
    bool across;
    uint32_t first, rows;
} operand;

/* "{sums}, descriptor or {four registers}, descriptor, scale-d, imm-scale-a, imm-scale-b" and which
   operands lie across the depth. */
static bool left_is_shared(const ptx_instruction *in)
{
    return in->count == in->first + 7;
}

/* A lane has two rows of every fourth pair of columns. */
static uint32_t columns_of(const ptx_instruction *in)
{
    return 2 * (uint32_t)in->first;
}

static operand left_at(const ptx_warp *w, const ptx_instruction *in, uint64_t descriptor)
{
    uint32_t const first = (uint32_t)(w->index % PTX_GROUP_WARPS * WARP_ROWS);
    return (operand){descriptor, w->rows[in->operands[in->first + 5]][0] != 0, first, WARP_ROWS};
}

static operand right_at(const ptx_warp *w, const ptx_instruction *in, uint64_t descriptor)
{
    return (operand){descriptor, w->rows[in->operands[in->count - 1]][0] != 0, 0, columns_of(in)};
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void for_pieces(ptx_warp *w, const ptx_instruction *in, const operand *o,
                       void (*touch)(ptx_warp *w, const ptx_instruction *in, ptx_word *word))
{
    uint32_t const step_r = o->across ? WGMMA_PIECE : 1, step_k = o->across ? 1 : WGMMA_PIECE;
    for (uint32_t r = o->first; r < o->first + o->rows; r += step_r)
        for (uint32_t k = 0; k < WGMMA_DEPTH; k += step_k) {
            uint32_t const at = wgmma_element(o->descriptor, o->across, r, k);
            ptx_word *const words = ptx_words_at(w, in, at, PTX_PIECE_BYTES);
            for (int i = 0; i < PTX_PIECE_BYTES / PTX_WORD_BYTES; ++i)
                touch(w, in, &words[i]);
        }
}

static float element(const ptx_warp *w, const ptx_instruction *in, const operand *o, uint32_t r,
                     uint32_t k)
{
    uint16_t bits;
    memcpy(&bits, w->block->shared + wgmma_element(o->descriptor, o->across, r, k), sizeof(bits));
    return in->half ? f32_of_f16(bits) : f32_of_bf16(bits);
}

/* ---- products -------------------------------------------------------------------------------- */

/* The group's warps begin the same products, in the same order. */
static void join(ptx_warp *w, const ptx_instruction *in, const ptx_group_product *mine)
{
    ptx_group_product *const of_group =
        &w->block->products[w->index / PTX_GROUP_WARPS][w->products % PTX_GROUP_PRODUCTS_KEPT];
    if (w->index % PTX_GROUP_WARPS + w->block->warp_count - w->index < PTX_GROUP_WARPS)
        ptx_fail(w, in, "the warpgroup has fewer than four warps");
    if (of_group->number < mine->number)
        *of_group = *mine;
    if (memcmp(of_group, mine, sizeof(*mine)) != 0)
        ptx_fail(w, in, "another warp of the group has begun another product");
    w->products++;
}

static ptx_pending *pending_of(ptx_warp *w, const ptx_instruction *in)
{
    if (w->pending_count == PTX_PENDING_MAX)
        ptx_fail(w, in, "more products under way than are kept");
    return &w->pending[w->pending_count++];
}

static bool is_pending(const ptx_warp *w, int row)
{
    for (int i = 0; i < w->pending_count; ++i)
        for (int s = 0; s < w->pending[i].in->first; ++s)
            if (w->pending[i].in->operands[s] == row)
                return true;
    return false;
}

/* "between register access by a thread in the warpgroup and any wgmma.mma_async instruction that
   accesses the same registers", reads too, a wgmma.fence must be; products need none between them.
 */
static void expect_fenced(const ptx_warp *w, const ptx_instruction *in, int row)
{
    if (w->touched[row] == w->fences)
        ptx_fail(w, in, "a register was read or written since wgmma.fence");
}

static void read_left(ptx_warp *w, const ptx_instruction *in, ptx_pending *p,
                      float a[WARP_ROWS][WGMMA_DEPTH])
{
    if (left_is_shared(in)) {
        operand const left = left_at(w, in, p->left_shared);
        for_pieces(w, in, &left, ptx_note_product_begin);
        for (uint32_t row = 0; row < WARP_ROWS; ++row)
            for (uint32_t k = 0; k < WGMMA_DEPTH; ++k)
                a[row][k] = element(w, in, &left, left.first + row, k);
        return;
    }
    for (int i = 0; i < 4; ++i) {
        int const row = in->operands[in->first + i];
        ptx_expect_known(w, in, row, UINT32_MAX);
        expect_fenced(w, in, row);
        memcpy(p->left[i], w->rows[row], sizeof(ptx_row));
        for (int lane = 0; lane < PTX_LANES; ++lane)
            for (int e = 0; e < 2; ++e) {
                uint16_t const bits = (uint16_t)(w->rows[row][lane] >> 16 * e);
                a[lane / 4 + 8 * (i & 1)][lane % 4 * 2 + e + 8 * (i >> 1)] =
                    in->half ? f32_of_f16(bits) : f32_of_bf16(bits);
            }
    }
}

/* A lane's register 4 n + i is of row lane / 4 + 8 (i / 2), column 8 n + 2 (lane mod 4) + i mod 2
   ("WGMMA .m64nNk16 register fragment layout for accumulator matrix D"). */
static void add_sums(ptx_warp *w, const ptx_instruction *in, bool adds,
                     double sums[WARP_ROWS][COLUMNS_MAX])
{
    for (int s = 0; s < in->first; ++s) {
        int const row = in->operands[s];
        if (adds && !is_pending(w, row))
            ptx_expect_known(w, in, row, UINT32_MAX);
        expect_fenced(w, in, row);
        for (int lane = 0; lane < PTX_LANES; ++lane) {
            double const sum =
                sums[lane / 4 + 8 * (s >> 1 & 1)][s / 4 * 8 + lane % 4 * 2 + (s & 1)];
            float const before = adds ? f32_of_bits((uint32_t)w->rows[row][lane]) : 0;
            w->rows[row][lane] = bits_of_f32(tensor_core_cut((double)before + sum));
        }
    }
}

void ptx_group_product_begin(ptx_warp *w, const ptx_instruction *in)
{
    bool const shared = left_is_shared(in);
    int const scale = shared ? in->first + 2 : in->first + 5;
    operand const right =
        right_at(w, in, ptx_uniform(w, in, shared ? in->first + 1 : in->first + 4));
    bool const adds = ptx_uniform(w, in, scale) != 0;
    float a[WARP_ROWS][WGMMA_DEPTH], b[WGMMA_DEPTH][COLUMNS_MAX];
    double sums[WARP_ROWS][COLUMNS_MAX] = {{0}};
    const char *misfit = wgmma_misfit(right.descriptor);
    ptx_group_product const mine = {.number = w->products + 1,
                                    .line = in->line,
                                    .right = right.descriptor,
                                    .left = shared ? ptx_uniform(w, in, in->first) : 0};
    if (misfit == NULL && shared)
        misfit = wgmma_misfit(mine.left);
    if (misfit != NULL)
        ptx_fail(w, in, misfit);
    if (w->rows[in->operands[scale + 1]][0] != 1 || w->rows[in->operands[scale + 2]][0] != 1)
        ptx_fail(w, in, "an operand is scaled");
    if (w->fences == 0)
        ptx_fail(w, in, "no wgmma.fence came before");
    join(w, in, &mine);
    ptx_pending next = {
        .in = in, .left_shared = mine.left, .right = mine.right, .group = w->commits + 1};
    read_left(w, in, &next, a);
    for_pieces(w, in, &right, ptx_note_product_begin);
    for (uint32_t column = 0; column < right.rows; ++column)
        for (uint32_t k = 0; k < WGMMA_DEPTH; ++k)
            b[k][column] = element(w, in, &right, column, k);
    for (int row = 0; row < WARP_ROWS; ++row)
        for (int k = 0; k < WGMMA_DEPTH; ++k)
            for (uint32_t column = 0; column < right.rows; ++column)
                sums[row][column] += (double)a[row][k] * (double)b[k][column];
    add_sums(w, in, adds, sums);
    for (int s = 0; s < in->first; ++s) /* nobody may read them yet */
        w->known[in->operands[s]] = (ptx_known){{0}};
    *pending_of(w, in) = next;
}

void ptx_group_fence(ptx_warp *w)
{
    w->fences++;
}

void ptx_group_commit(ptx_warp *w)
{
    w->commits++;
}

static void end_product(ptx_warp *w, const ptx_instruction *in, const ptx_pending *p)
{
    operand const right = right_at(w, p->in, p->right), left = left_at(w, p->in, p->left_shared);
    for_pieces(w, p->in, &right, ptx_note_product_end);
    if (left_is_shared(p->in))
        for_pieces(w, p->in, &left, ptx_note_product_end);
    for (int i = 0; i < 4 && !left_is_shared(p->in); ++i)
        if (memcmp(p->left[i], w->rows[p->in->operands[p->in->first + i]], sizeof(ptx_row)) != 0)
            ptx_fail(w, in, "a product's left operand was written before it was waited for");
}

static void expect_sums_unwritten(const ptx_warp *w, const ptx_instruction *in,
                                  const ptx_pending *p)
{
    for (int s = 0; s < p->in->first; ++s)
        if (memcmp(&w->known[p->in->operands[s]], &(ptx_known){{0}}, sizeof(ptx_known)) != 0)
            ptx_fail(w, in, "a product's sums were written before it was waited for");
}

/* Sums may be read, but for those that a later product adds to. */
static void give_sums(ptx_warp *w, const ptx_pending *p)
{
    for (int s = 0; s < p->in->first; ++s)
        if (!is_pending(w, p->in->operands[s]))
            ptx_know_all(w, p->in->operands[s], UINT32_MAX);
}

/* wgmma.wait_group: all that was committed is over, but for the latest so many groups. */
void ptx_group_wait(ptx_warp *w, const ptx_instruction *in)
{
    int64_t const last = w->commits - (int64_t)ptx_uniform(w, in, 0);
    int const count = w->pending_count;
    int over = 0;
    for (int i = 0; i < count; ++i) {
        if (w->pending[i].group > w->commits)
            ptx_fail(w, in, "waits while a product is not committed");
        expect_sums_unwritten(w, in, &w->pending[i]);
        over += w->pending[i].group <= last;
    }
    ptx_pending ended[PTX_PENDING_MAX];
    memcpy(ended, w->pending, sizeof(ended[0]) * (size_t)over);
    w->pending_count -= over;
    memmove(w->pending, w->pending + over, sizeof(ended[0]) * (size_t)w->pending_count);
    for (int i = 0; i < over; ++i)
        end_product(w, in, &ended[i]);
    for (int i = 0; i < over; ++i)
        give_sums(w, &ended[i]);
}

const char *ptx_group_end(const ptx_block *b)
{
    for (int i = 0; i < b->warp_count; ++i) {
        if (b->warps[i].products != b->warps[i / PTX_GROUP_WARPS * PTX_GROUP_WARPS].products)
            return "warps of a group began different numbers of products";
        if (b->warps[i].pending_count > 0)
            return "a product was never waited for";
        if (b->warps[i].register_steps !=
            b->warps[i / PTX_GROUP_WARPS * PTX_GROUP_WARPS].register_steps)
            return "warps of a group executed different numbers of setmaxnreg";
    }
    return NULL;
}
