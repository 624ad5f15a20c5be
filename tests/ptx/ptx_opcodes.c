/* What instructions are called and compute: those that nvcc makes of this project's kernels. */
#include "ptx/ptx_internal.h"
#include "sparse/cpu/dtype_bits.h"

#include <math.h>
#include <string.h>

/* ---- values of registers as types ------------------------------------------------------------ */

typedef uint64_t u64, b64, pred;
typedef uint32_t u32, b32;
typedef uint16_t u16, b16;
typedef int64_t s64;
typedef int32_t s32;
typedef int16_t s16;
typedef float f32;

#define INTEGER(type, bits_type)                                                                   \
    static inline type __attribute__((unused)) get_##type(uint64_t bits)                           \
    {                                                                                              \
        return (type)bits;                                                                         \
    }                                                                                              \
    static inline uint64_t __attribute__((unused)) put_##type(type value)                          \
    {                                                                                              \
        return (bits_type)value;                                                                   \
    }

INTEGER(u64, uint64_t)
INTEGER(u32, uint32_t)
INTEGER(u16, uint16_t)
INTEGER(s64, uint64_t)
INTEGER(s32, uint32_t)
INTEGER(s16, uint16_t)

static inline float get_f32(uint64_t bits)
{
    return f32_of_bits((uint32_t)bits);
}

static inline uint64_t put_f32(float value)
{
    return bits_of_f32(value);
}

/* In all that follows a, b, c and d are the inputs; the last one may be a predicate. */
#define COMPUTE(name, to, from, value)                                                             \
    static void name(uint64_t *restrict out, const uint64_t *x, const uint64_t *y,                 \
                     const uint64_t *z, const uint64_t *w)                                         \
    {                                                                                              \
        for (int i = 0; i < PTX_LANES; ++i) {                                                      \
            from const a = get_##from(x[i]), b = get_##from(y[i]), c = get_##from(z[i]);           \
            uint64_t const d = w[i];                                                               \
            out[i] = put_##to(value);                                                              \
            (void)a, (void)b, (void)c, (void)d;                                                    \
        }                                                                                          \
    }
#define COMPUTE_ALIKE(name, type, value) COMPUTE(name##_##type, type, type, value)

/* ---- integers -------------------------------------------------------------------------------- */

/* Sums and products wrap around. */
COMPUTE_ALIKE(add, u32, a + b)
COMPUTE_ALIKE(add, u64, a + b)
COMPUTE_ALIKE(sub, u32, a - b)
COMPUTE_ALIKE(sub, u64, a - b)
COMPUTE_ALIKE(mul_lo, u32, a *b)
COMPUTE_ALIKE(mul_lo, u64, a *b)
COMPUTE_ALIKE(mad_lo, u32, a *b + c)
COMPUTE(mul_wide_s32, s64, s32, (int64_t)a *b)
COMPUTE(mul_wide_u32, u64, u32, (uint64_t)a *b)
COMPUTE(mul_wide_u16, u32, u16, (uint32_t)a *b)
COMPUTE_ALIKE(mul_hi, s32, (int32_t)((int64_t)a *b >> 32))
COMPUTE_ALIKE(mul_hi, u32, (uint32_t)((uint64_t)a *b >> 32))
/* Lanes that take no part may divide by anything. */
COMPUTE_ALIKE(div, s32, b == 0 ? -1 : (int32_t)((int64_t)a / b))
COMPUTE_ALIKE(div, u32, b == 0 ? UINT32_MAX : a / b)
COMPUTE_ALIKE(div, s64, b == 0 || b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b)
COMPUTE_ALIKE(div, u64, b == 0 ? UINT64_MAX : a / b)
COMPUTE_ALIKE(rem, s32, b == 0 ? a : (int32_t)((int64_t)a % b))
COMPUTE_ALIKE(rem, u32, b == 0 ? a : a % b)
COMPUTE_ALIKE(rem, s64, b == 0 || b == -1 ? 0 : a % b)
COMPUTE_ALIKE(rem, u64, b == 0 ? a : a % b)
COMPUTE_ALIKE(neg, u32, 0 - a)
COMPUTE_ALIKE(neg, u64, 0 - a)
COMPUTE_ALIKE(min, s32, a < b ? a : b)
COMPUTE_ALIKE(min, u32, a < b ? a : b)
COMPUTE_ALIKE(min, s64, a < b ? a : b)
COMPUTE_ALIKE(min, u64, a < b ? a : b)
COMPUTE_ALIKE(max, s32, a > b ? a : b)
COMPUTE_ALIKE(max, u32, a > b ? a : b)
COMPUTE_ALIKE(max, s64, a > b ? a : b)
COMPUTE_ALIKE(max, u64, a > b ? a : b)
COMPUTE_ALIKE(and, u64, a &b)
COMPUTE_ALIKE(or, u64, a | b)
COMPUTE_ALIKE(xor, u64, a ^ b)
COMPUTE_ALIKE(not, u16, (uint16_t)~a)
COMPUTE_ALIKE(not, u32, ~a)
COMPUTE_ALIKE(not, u64, ~a)
COMPUTE(not_pred, u64, u64, a ^ 1)
COMPUTE_ALIKE(popc, u32, (uint32_t)__builtin_popcount(a))
/* The distance is of 32 bits, and from the width on all bits are shifted out. */
COMPUTE(shl_b16, u16, u64, (uint16_t)((uint32_t)b > 15 ? 0 : a << b))
COMPUTE(shl_b32, u32, u64, (uint32_t)((uint32_t)b > 31 ? 0 : a << b))
COMPUTE(shl_b64, u64, u64, (uint32_t)b > 63 ? 0 : a << (uint32_t)b)
COMPUTE(shr_u16, u16, u64, (uint16_t)((uint32_t)b > 15 ? 0 : (uint16_t)a >> b))
COMPUTE(shr_u32, u32, u64, (uint32_t)b > 31 ? 0 : (uint32_t)a >> b)
COMPUTE(shr_u64, u64, u64, (uint32_t)b > 63 ? 0 : a >> (uint32_t)b)
COMPUTE(shr_s32, s32, u64, (int32_t)(uint32_t)a >> ((uint32_t)b > 31 ? 31 : b))
COMPUTE(shr_s64, s64, u64, (int64_t)a >> ((uint32_t)b > 63 ? 63 : (uint32_t)b))

/* d bits of a, laid over b from bit c on. */
static uint32_t insert_bits(uint32_t a, uint32_t b, uint32_t c, uint64_t d)
{
    uint64_t const ones = c > 31 ? 0 : ((d > 31 ? 0 : UINT64_C(1) << d) - 1) << c;
    return (uint32_t)((b & ~ones) | (((uint64_t)a << (c & 31)) & ones));
}
COMPUTE(bfi_b32, u32, u32, insert_bits(a, b, c, d))

/* ---- floats ---------------------------------------------------------------------------------- */

COMPUTE_ALIKE(add, f32, a + b)
COMPUTE_ALIKE(sub, f32, a - b)
COMPUTE_ALIKE(mul, f32, a *b)
COMPUTE_ALIKE(fma, f32, fmaf(a, b, c))
COMPUTE_ALIKE(div, f32, a / b)
COMPUTE_ALIKE(rcp, f32, 1.0f / a)
COMPUTE_ALIKE(neg, f32, -a)
COMPUTE_ALIKE(abs, f32, fabsf(a))
COMPUTE_ALIKE(min, f32, fminf(a, b)) /* of a number and a NaN: the number */
COMPUTE_ALIKE(max, f32, fmaxf(a, b))
COMPUTE_ALIKE(ex2, f32, exp2f(a))
/* Subnormal results are 0. */
COMPUTE(ex2_ftz, f32, f32, a < -126 ? 0 : exp2f(a))

/* Rounded down. */
static float fma_down(float a, float b, float c)
{
    double const product = (double)a * b; /* exact */
    double const sum = product + c, rest = sum - product;
    double const lost = (product - (sum - rest)) + (c - rest); /* TwoSum */
    float down = (float)sum;
    if ((double)down > sum || ((double)down == sum && lost < 0))
        down = nextafterf(down, -INFINITY);
    return down;
}
COMPUTE(fma_rm, f32, f32, fma_down(a, b, c))

/* ---- comparisons and choices ----------------------------------------------------------------- */

#define COMPARE(type)                                                                              \
    COMPUTE(setp_lt_##type, u64, type, a < b)                                                      \
    COMPUTE(setp_le_##type, u64, type, a <= b)                                                     \
    COMPUTE(setp_gt_##type, u64, type, a > b)                                                      \
    COMPUTE(setp_ge_##type, u64, type, a >= b)                                                     \
    COMPUTE(setp_eq_##type, u64, type, a == b)                                                     \
    COMPUTE(setp_ne_##type, u64, type, a != b)

COMPARE(s16)
COMPARE(u16)
COMPARE(s32)
COMPARE(u32)
COMPARE(s64)
COMPARE(u64)
/* Of floats `ne` too is false where one is NaN; with a u, all are true there. */
COMPUTE(setp_lt_f32, u64, f32, a < b)
COMPUTE(setp_le_f32, u64, f32, a <= b)
COMPUTE(setp_gt_f32, u64, f32, a > b)
COMPUTE(setp_ge_f32, u64, f32, a >= b)
COMPUTE(setp_eq_f32, u64, f32, a == b)
COMPUTE(setp_ne_f32, u64, f32, (uint64_t)(a<b || a> b))
COMPUTE(setp_ltu_f32, u64, f32, !(a >= b))
COMPUTE(setp_leu_f32, u64, f32, !(a > b))
COMPUTE(setp_gtu_f32, u64, f32, !(a <= b))
COMPUTE(setp_geu_f32, u64, f32, !(a < b))
COMPUTE(setp_equ_f32, u64, f32, !(a < b || a > b))
COMPUTE(setp_neu_f32, u64, f32, a != b)
COMPUTE(setp_nan_f32, u64, f32, a != a || b != b)
COMPUTE(setp_num_f32, u64, f32, a == a && b == b)
COMPUTE(mov, u64, u64, a)
COMPUTE(selp, u64, u64, c != 0 ? a : b)

/* ---- conversions ----------------------------------------------------------------------------- */

COMPUTE(cvt_s64_s32, s64, s32, a)
COMPUTE(cvt_u64_u32, u64, u32, a)
COMPUTE(cvt_u32_u64, u32, u64, (uint32_t)a)
COMPUTE(cvt_u32_u16, u32, u16, a)
COMPUTE(cvt_s32_s16, s32, s16, a)
COMPUTE(cvt_s64_s16, s64, s16, a)
COMPUTE(cvt_u16_u32, u16, u32, (uint16_t)a)
COMPUTE(cvt_f32_s32, f32, s32, (float)a)
COMPUTE(cvt_f32_u32, f32, u32, (float)a)
COMPUTE(cvt_sat_f32, f32, f32, a > 0 ? (a < 1 ? a : 1.0f) : 0.0f) /* of NaN: 0 */
COMPUTE(cvt_f32_bf16, f32, u16, f32_of_bf16(a))
COMPUTE(cvt_f32_f16, f32, u16, f32_of_f16(a))
COMPUTE(cvt_bf16_f32, u16, f32, bf16_of_f32(a))
COMPUTE(cvt_f16_f32, u16, f32, f16_of_f32(a))
/* The first one becomes the high half. */
COMPUTE(cvt_bf16x2_f32, u32, f32, (uint32_t)bf16_of_f32(a) << 16 | bf16_of_f32(b))
COMPUTE(cvt_f16x2_f32, u32, f32, (uint32_t)f16_of_f32(a) << 16 | f16_of_f32(b))

/* ---- their names ----------------------------------------------------------------------------- */

#define IS(name, compute)                                                                          \
    {                                                                                              \
        name, PTX_COMPUTE, compute, PTX_WHOLE                                                      \
    }
#define LAX(name, compute, use)                                                                    \
    {                                                                                              \
        name, PTX_COMPUTE, compute, use                                                            \
    }
#define COMPARED(type)                                                                             \
    LAX("setp.lt." #type, setp_lt_##type, PTX_TELLS),                                              \
        LAX("setp.le." #type, setp_le_##type, PTX_TELLS),                                          \
        LAX("setp.gt." #type, setp_gt_##type, PTX_TELLS),                                          \
        LAX("setp.ge." #type, setp_ge_##type, PTX_TELLS),                                          \
        LAX("setp.eq." #type, setp_eq_##type, PTX_TELLS),                                          \
        LAX("setp.ne." #type, setp_ne_##type, PTX_TELLS)

static const ptx_opcode opcodes[] = {
    IS("add.s32", add_u32),
    IS("add.u32", add_u32),
    IS("add.s64", add_u64),
    IS("add.u64", add_u64),
    IS("sub.s32", sub_u32),
    IS("sub.u32", sub_u32),
    IS("sub.s64", sub_u64),
    IS("sub.u64", sub_u64),
    IS("mul.lo.s32", mul_lo_u32),
    IS("mul.lo.u32", mul_lo_u32),
    IS("mul.lo.s64", mul_lo_u64),
    IS("mul.lo.u64", mul_lo_u64),
    IS("mad.lo.s32", mad_lo_u32),
    IS("mul.wide.s32", mul_wide_s32),
    IS("mul.wide.u32", mul_wide_u32),
    IS("mul.wide.u16", mul_wide_u16),
    IS("mul.hi.s32", mul_hi_s32),
    IS("mul.hi.u32", mul_hi_u32),
    IS("div.s32", div_s32),
    IS("div.u32", div_u32),
    IS("div.s64", div_s64),
    IS("div.u64", div_u64),
    IS("rem.s32", rem_s32),
    IS("rem.u32", rem_u32),
    IS("rem.s64", rem_s64),
    IS("rem.u64", rem_u64),
    IS("neg.s32", neg_u32),
    IS("neg.s64", neg_u64),
    IS("min.s32", min_s32),
    IS("min.u32", min_u32),
    IS("min.s64", min_s64),
    IS("min.u64", min_u64),
    IS("max.s32", max_s32),
    IS("max.u32", max_u32),
    IS("max.s64", max_s64),
    IS("max.u64", max_u64),
    LAX("and.b16", and_u64, PTX_CLEARS),
    LAX("and.b32", and_u64, PTX_CLEARS),
    LAX("and.b64", and_u64, PTX_CLEARS),
    LAX("and.pred", and_u64, PTX_CLEARS),
    LAX("or.b16", or_u64, PTX_MOVES),
    LAX("or.b32", or_u64, PTX_MOVES),
    LAX("or.b64", or_u64, PTX_MOVES),
    LAX("or.pred", or_u64, PTX_UNITES),
    IS("xor.b16", xor_u64),
    IS("xor.b32", xor_u64),
    IS("xor.b64", xor_u64),
    IS("xor.pred", xor_u64),
    LAX("not.b16", not_u16, PTX_MOVES),
    IS("not.b32", not_u32),
    IS("not.b64", not_u64),
    LAX("not.pred", not_pred, PTX_MOVES),
    IS("popc.b32", popc_u32),
    LAX("shl.b16", shl_b16, PTX_MOVES_UP),
    IS("shl.b32", shl_b32),
    IS("shl.b64", shl_b64),
    LAX("shr.u16", shr_u16, PTX_MOVES_DOWN),
    LAX("shr.u32", shr_u32, PTX_MOVES_DOWN),
    LAX("shr.b32", shr_u32, PTX_MOVES_DOWN),
    LAX("shr.u64", shr_u64, PTX_MOVES_DOWN),
    LAX("shr.b64", shr_u64, PTX_MOVES_DOWN),
    IS("shr.s32", shr_s32),
    IS("shr.s64", shr_s64),
    IS("bfi.b32", bfi_b32),
    IS("add.f32", add_f32),
    IS("add.rn.f32", add_f32),
    IS("sub.f32", sub_f32),
    IS("sub.rn.f32", sub_f32),
    IS("mul.f32", mul_f32),
    IS("mul.rn.f32", mul_f32),
    IS("fma.rn.f32", fma_f32),
    IS("fma.rm.f32", fma_rm),
    IS("div.rn.f32", div_f32),
    IS("rcp.rn.f32", rcp_f32),
    IS("neg.f32", neg_f32),
    IS("abs.f32", abs_f32),
    IS("min.f32", min_f32),
    IS("max.f32", max_f32),
    IS("ex2.approx.f32", ex2_f32),
    IS("ex2.approx.ftz.f32", ex2_ftz),
    COMPARED(s16),
    COMPARED(u16),
    COMPARED(s32),
    COMPARED(u32),
    COMPARED(s64),
    COMPARED(u64),
    COMPARED(f32),
    IS("setp.eq.b32", setp_eq_u32),
    IS("setp.ne.b32", setp_ne_u32),
    IS("setp.ltu.f32", setp_ltu_f32),
    IS("setp.leu.f32", setp_leu_f32),
    IS("setp.gtu.f32", setp_gtu_f32),
    IS("setp.geu.f32", setp_geu_f32),
    IS("setp.equ.f32", setp_equ_f32),
    IS("setp.neu.f32", setp_neu_f32),
    IS("setp.nan.f32", setp_nan_f32),
    IS("setp.num.f32", setp_num_f32),
    LAX("mov.u16", mov, PTX_MOVES),
    LAX("mov.b16", mov, PTX_MOVES),
    LAX("mov.u32", mov, PTX_MOVES),
    LAX("mov.s32", mov, PTX_MOVES),
    LAX("mov.b32", mov, PTX_MOVES),
    LAX("mov.u64", mov, PTX_MOVES),
    LAX("mov.s64", mov, PTX_MOVES),
    LAX("mov.b64", mov, PTX_MOVES),
    LAX("mov.f32", mov, PTX_MOVES),
    LAX("mov.pred", mov, PTX_MOVES),
    LAX("cvta.to.global.u64", mov, PTX_MOVES),
    IS("cvta.shared.u64", add_u64),
    LAX("selp.b16", selp, PTX_MOVES),
    LAX("selp.u16", selp, PTX_MOVES),
    LAX("selp.b32", selp, PTX_MOVES),
    LAX("selp.u32", selp, PTX_MOVES),
    LAX("selp.s32", selp, PTX_MOVES),
    LAX("selp.b64", selp, PTX_MOVES),
    LAX("selp.u64", selp, PTX_MOVES),
    LAX("selp.s64", selp, PTX_MOVES),
    LAX("selp.f32", selp, PTX_MOVES),
    IS("cvt.s64.s32", cvt_s64_s32),
    IS("cvt.u64.u32", cvt_u64_u32),
    LAX("cvt.u32.u64", cvt_u32_u64, PTX_MOVES_LOW_4),
    IS("cvt.u32.u16", cvt_u32_u16),
    IS("cvt.s32.s16", cvt_s32_s16),
    IS("cvt.s64.s16", cvt_s64_s16),
    LAX("cvt.u16.u32", cvt_u16_u32, PTX_MOVES_LOW_2),
    IS("cvt.rn.f32.s32", cvt_f32_s32),
    IS("cvt.rn.f32.u32", cvt_f32_u32),
    IS("cvt.sat.f32.f32", cvt_sat_f32),
    IS("cvt.f32.bf16", cvt_f32_bf16),
    IS("cvt.f32.f16", cvt_f32_f16),
    IS("cvt.rn.bf16.f32", cvt_bf16_f32),
    IS("cvt.rn.f16.f32", cvt_f16_f32),
    IS("cvt.rn.bf16x2.f32", cvt_bf16x2_f32),
    IS("cvt.rn.f16x2.f32", cvt_f16x2_f32),
    {"bra", PTX_BRANCH, NULL, PTX_WHOLE},
    {"bra.uni", PTX_BRANCH, NULL, PTX_WHOLE},
    {"ret", PTX_RETURN, NULL, PTX_WHOLE},
    {"bar.sync", PTX_BARRIER, NULL, PTX_WHOLE},
    {"barrier.sync", PTX_BARRIER, NULL, PTX_WHOLE},
    {"bar.arrive", PTX_BARRIER, NULL, PTX_WHOLE},
    {"mbarrier.init.shared.b64", PTX_SIGNAL_BEGIN, NULL, PTX_WHOLE},
    {"mbarrier.arrive.shared.b64", PTX_SIGNAL_ARRIVE, NULL, PTX_WHOLE},
    {"mbarrier.try_wait.parity.shared.b64", PTX_SIGNAL_WAIT, NULL, PTX_WHOLE},
    {"cp.async.mbarrier.arrive.noinc.shared.b64", PTX_SIGNAL_COPIED, NULL, PTX_WHOLE},
    {"setmaxnreg.inc.sync.aligned.u32", PTX_REGISTERS, NULL, PTX_WHOLE},
    {"setmaxnreg.dec.sync.aligned.u32", PTX_REGISTERS, NULL, PTX_WHOLE},
    {"bar.warp.sync", PTX_WARP_BARRIER, NULL, PTX_WHOLE},
    {"shfl.sync.bfly.b32", PTX_SHUFFLE, NULL, PTX_WHOLE},
    {"shfl.sync.idx.b32", PTX_SHUFFLE, NULL, PTX_WHOLE},
    {"vote.sync.ballot.b32", PTX_VOTE, NULL, PTX_WHOLE},
    {"cp.async.commit_group", PTX_COMMIT, NULL, PTX_WHOLE},
    {"cp.async.wait_group", PTX_WAIT, NULL, PTX_WHOLE},
    {"cp.async.ca.shared.global", PTX_COPY, NULL, PTX_WHOLE},
    {"cp.async.cg.shared.global.L2::128B", PTX_COPY, NULL, PTX_WHOLE},
    {"ldmatrix.sync.aligned.m8n8.x4.shared.b16", PTX_MATRICES, NULL, PTX_WHOLE},
    {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", PTX_MATRICES, NULL, PTX_WHOLE},
    {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", PTX_PRODUCT, NULL, PTX_WHOLE},
    {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", PTX_PRODUCT, NULL, PTX_WHOLE},
    {"membar.gl", PTX_FENCE, NULL, PTX_WHOLE},
    {"fence.proxy.async.shared::cta", PTX_PUBLISH, NULL, PTX_WHOLE},
    {"wgmma.fence.sync.aligned", PTX_GROUP_FENCE, NULL, PTX_WHOLE},
    {"wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16", PTX_GROUP_PRODUCT, NULL, PTX_WHOLE},
    {"wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16", PTX_GROUP_PRODUCT, NULL, PTX_WHOLE},
    {"wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16", PTX_GROUP_PRODUCT, NULL, PTX_WHOLE},
    {"wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16", PTX_GROUP_PRODUCT, NULL, PTX_WHOLE},
    {"wgmma.commit_group.sync.aligned", PTX_GROUP_COMMIT, NULL, PTX_WHOLE},
    {"wgmma.wait_group.sync.aligned", PTX_GROUP_WAIT, NULL, PTX_WHOLE},
    {"atom.global.add.u32", PTX_ADD, NULL, PTX_WHOLE},
    {"atom.global.add.f32", PTX_ADD, NULL, PTX_WHOLE},
    {"red.global.add.f32", PTX_ADD, NULL, PTX_WHOLE},
    {"red.global.add.v4.f32", PTX_ADD, NULL, PTX_WHOLE},
};

/* Loads and stores have too many names to list. */
static const ptx_opcode load = {"ld.", PTX_LOAD, NULL, PTX_WHOLE},
                        store = {"st.", PTX_STORE, NULL, PTX_WHOLE};

const ptx_opcode *ptx_opcode_find(const char *name, size_t length)
{
    if (strncmp(name, "ld.", 3) == 0)
        return &load;
    if (strncmp(name, "st.", 3) == 0)
        return &store;
    for (size_t i = 0; i < sizeof(opcodes) / sizeof(opcodes[0]); ++i)
        if (strlen(opcodes[i].name) == length && strncmp(opcodes[i].name, name, length) == 0)
            return &opcodes[i];
    return NULL;
}
