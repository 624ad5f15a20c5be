#include "ringattn/slice.h"

#include "internal.h"
#include "sparse/sparse_internal.h"

__extension__ typedef __int128 wide_int;

/* Bounds at or beyond these never bind. */
static bool lo_binds(int64_t lo)
{
    return lo > RA_BAND_NONE_LO;
}

static bool hi_binds(int64_t hi)
{
    return hi < RA_BAND_NONE_HI;
}

int64_t ra_gcd_i64(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t const rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Most strides are equal, or one is 1: then no division is needed. */
int64_t ra_lcm_i64(int64_t a, int64_t b)
{
    int64_t multiple;
    if (a == b || b == 1)
        return a;
    if (a == 1)
        return b;
    return __builtin_mul_overflow(a / ra_gcd_i64(a, b), b, &multiple) ? INT64_MAX : multiple;
}

/* x with a * x == 1 (mod m), for gcd(a, m) == 1. Extended Euclid. */
static int64_t inverse_mod(int64_t a, int64_t m)
{
    int64_t r0 = m, r1 = a % m, t0 = 0, t1 = 1;
    while (r1 != 0) {
        int64_t const q = r0 / r1;
        int64_t const r2 = r0 - q * r1, t2 = t0 - q * t1;
        r0 = r1, r1 = r2, t0 = t1, t1 = t2;
    }
    return t0 < 0 ? t0 + m : t0;
}

/* The rows of a range in [first, last], which lies within its span. */
static bool range_clip(ra_range a, int64_t first, int64_t last, ra_range *out)
{
    if (a.stride == 1) {
        *out = (ra_range){first, 1, last - first + 1};
        return true;
    }
    int64_t const begin = a.begin + ra_div_ceil(first - a.begin, a.stride) * a.stride;
    if (begin > last)
        return false;
    *out = (ra_range){begin, a.stride, (last - begin) / a.stride + 1};
    return true;
}

bool ra_range_intersect(ra_range a, ra_range b, ra_range *out)
{
    *out = (ra_range){0, 1, 0};
    if (a.count <= 0 || b.count <= 0)
        return false;
    int64_t const a_last = ra_range_last(a);
    int64_t const b_last = ra_range_last(b);
    int64_t const first = ra_max_i64(a.begin, b.begin);
    int64_t const last = ra_min_i64(a_last, b_last);
    if (first > last)
        return false;
    if (a.stride == 1 || b.stride == 1)
        return range_clip(b.stride == 1 ? a : b, first, last, out);
    int64_t const g = ra_gcd_i64(a.stride, b.stride);
    if ((b.begin - a.begin) % g != 0)
        return false;
    /* The common row nearest after a.begin: a.begin + a.stride * x with
       a.stride * x == b.begin - a.begin (mod b.stride), then the first one not before `first`. */
    int64_t const m = b.stride / g; /* at least 1: g divides it */
    RA_ASSERT(m >= 1);
    int64_t delta = (b.begin - a.begin) / g % m;
    if (delta < 0)
        delta += m;
    int64_t const x =
        m == 1 ? 0 : (int64_t)((wide_int)delta * inverse_mod(a.stride / g % m, m) % m);
    int64_t stride;
    if (__builtin_mul_overflow(a.stride, m, &stride))
        stride = INT64_MAX; /* of one row at most */
    wide_int begin = a.begin + (wide_int)a.stride * x;
    if (begin < first)
        begin += (wide_int)stride * ra_div_ceil(first - (int64_t)begin, stride);
    if (begin > last)
        return false;
    *out = (ra_range){(int64_t)begin, stride, (last - (int64_t)begin) / stride + 1};
    return true;
}

int32_t ra_heads_common(ra_heads a, ra_heads b)
{
    ra_range both;
    (void)ra_range_intersect((ra_range){a.begin, a.stride, a.count},
                             (ra_range){b.begin, b.stride, b.count}, &both);
    return (int32_t)both.count;
}

/* Most steps are 1, and need no division. */
static int64_t steps_to(int64_t distance, int64_t step)
{
    return step == 1 ? distance : ra_div_ceil(distance, step);
}

/* Sum over a in [0, q) of clamp(step * a + x, 0, k). */
static int64_t clamped_sum(int64_t q, int64_t step, int64_t k, int64_t x)
{
    if (x <= -step * q)
        return 0;
    if (x >= k)
        return q * k;
    int64_t const from = x < 0 ? steps_to(-x, step) : 0; /* no term below 0 from here on, */
    int64_t const full =
        ra_min_i64(q, steps_to(k - x, step));     /* and every term is k from here on */
    int64_t const n = ra_max_i64(0, full - from); /* terms that grow by a step */
    int64_t const t0 = step * from + x, t1 = t0 + step * (n - 1); /* first and last of them */
    int64_t const even = n % 2 == 0 ? n / 2 : n, odd = n % 2 == 0 ? t0 + t1 : (t0 + t1) / 2;
    return even * odd + (q - ra_max_i64(full, from)) * k;
}

/* Of a band's queries, every step-th from the first on: q_count of them. */
static int64_t stepped_area(int64_t q_count, int64_t step, int64_t k_count, int64_t lo, int64_t hi)
{
    if (q_count <= 0 || k_count <= 0 || lo > hi)
        return 0;
    /* Pairs with b - a <= hi, less those with b - a <= lo - 1. */
    int64_t const upto_hi =
        hi_binds(hi) ? clamped_sum(q_count, step, k_count, hi + 1) : q_count * k_count;
    int64_t const below_lo = lo_binds(lo) ? clamped_sum(q_count, step, k_count, lo) : 0;
    return upto_hi - below_lo;
}

int64_t ra_band_area(int64_t q_count, int64_t k_count, int64_t lo, int64_t hi)
{
    return stepped_area(q_count, 1, k_count, lo, hi);
}

int64_t ra_slice_area(const ra_slice *s)
{
    return ra_band_area(s->q_count, s->k_count, s->lo, s->hi);
}

int64_t ra_slice_area_of(const ra_slice *s, ra_range queries)
{
    ra_range q;
    int64_t lo = s->lo, hi = s->hi;
    if (!ra_range_intersect(ra_slice_queries(s), queries, &q))
        return 0;
    ra_band_shift((q.begin - s->q_begin) / s->stride, &lo, &hi);
    return stepped_area(q.count, q.stride / s->stride, s->k_count, lo, hi);
}

bool ra_band_cut(int64_t at, int64_t count, int64_t *k_first, int64_t *k_count, int64_t *lo,
                 int64_t *hi)
{
    ra_band_shift(at, lo, hi);
    int64_t const first = ra_max_i64(0, *lo);
    int64_t const last = hi_binds(*hi) ? ra_min_i64(*k_count - 1, count - 1 + *hi) : *k_count - 1;
    ra_band_shift(-first, lo, hi);
    *k_first = first;
    *k_count = last - first + 1;
    return first <= last;
}

bool ra_band_trim(int64_t *q_cut, int64_t *q_count, int64_t *k_cut, int64_t *k_count, int64_t *lo,
                  int64_t *hi)
{
    *q_cut = *k_cut = 0;
    if (*q_count <= 0 || *k_count <= 0 || *lo > *hi)
        return false;
    /* Query a sees keys [a + lo, a + hi]: some key exists for a in [-hi, k_count - 1 - lo]. */
    int64_t const q_first = hi_binds(*hi) ? ra_max_i64(0, -*hi) : 0;
    int64_t const q_last =
        lo_binds(*lo) ? ra_min_i64(*q_count - 1, *k_count - 1 - *lo) : *q_count - 1;
    if (q_first > q_last)
        return false;
    *q_cut = q_first;
    *q_count = q_last - q_first + 1;
    (void)ra_band_cut(q_first, *q_count, k_cut, k_count, lo, hi);
    ra_band_loosen(*q_count, *k_count, lo, hi);
    return true;
}

bool ra_slice_trim(ra_slice *s)
{
    int64_t q_cut, k_cut;
    if (!ra_band_trim(&q_cut, &s->q_count, &k_cut, &s->k_count, &s->lo, &s->hi))
        return false;
    s->q_begin += q_cut * s->stride;
    s->k_begin += k_cut * s->stride;
    return true;
}

static bool is_unbounded(const ra_slice *s)
{
    return !lo_binds(s->lo) && !hi_binds(s->hi);
}

/* Residues of rows at a common stride, of which few rows have few. */
static int64_t phases_of(ra_range rows, int64_t common)
{
    return ra_min_i64(common / rows.stride, rows.count);
}

int64_t ra_slice_phases(const ra_slice *s, ra_range q, ra_range k)
{
    if (is_unbounded(s))
        return 1; /* without a band, queries and keys need no common stride */
    int64_t const q_stride = ra_lcm_i64(s->stride, q.stride);
    int64_t const k_stride = ra_lcm_i64(s->stride, k.stride);
    int64_t const common = ra_lcm_i64(q_stride, k_stride);
    ra_range qs, ks;
    if (q_stride == k_stride)
        return 1;
    if (!ra_range_intersect(ra_slice_queries(s), q, &qs) ||
        !ra_range_intersect(ra_slice_keys(s), k, &ks))
        return 0;
    return phases_of(qs, common) * phases_of(ks, common);
}

/* Every `ratio`-th row of a range, from the `phase`-th on. */
static ra_range range_phase(ra_range r, int64_t ratio, int64_t phase)
{
    int64_t const count = r.count > phase ? (r.count - phase - 1) / ratio + 1 : 0;
    return (ra_range){r.begin + r.stride * phase, r.stride * ratio, count};
}

bool ra_slice_restrict_loose(const ra_slice *s, ra_range q, ra_range k, int64_t phase,
                             ra_local_slice *out)
{
    ra_range qs, ks;
    if (!ra_range_intersect(ra_slice_queries(s), q, &qs) ||
        !ra_range_intersect(ra_slice_keys(s), k, &ks))
        return false;
    int64_t lo = s->lo, hi = s->hi;
    if (!is_unbounded(s)) {
        int64_t const common = ra_lcm_i64(qs.stride, ks.stride);
        int64_t const q_phases = phases_of(qs, common);
        qs = range_phase(qs, common / qs.stride, phase % q_phases);
        ks = range_phase(ks, common / ks.stride, phase / q_phases);
        /* Key b0 + ratio * w and query a0 + ratio * u: lo <= b0 - a0 + ratio * (w - u) <= hi. */
        int64_t const ratio = common / s->stride;
        int64_t const offset =
            (ks.begin - s->k_begin) / s->stride - (qs.begin - s->q_begin) / s->stride;
        if (lo_binds(lo))
            lo = ra_div_ceil(lo - offset, ratio);
        if (hi_binds(hi))
            hi = ra_div_floor(hi - offset, ratio);
    }
    out->q_stride = qs.stride / q.stride;
    out->k_stride = ks.stride / k.stride;
    out->q_begin = (qs.begin - q.begin) / q.stride;
    out->k_begin = (ks.begin - k.begin) / k.stride;
    out->q_count = qs.count;
    out->k_count = ks.count;
    out->lo = lo;
    out->hi = hi;
    return qs.count > 0 && ks.count > 0 && lo <= hi;
}

bool ra_slice_restrict(const ra_slice *s, ra_range q, ra_range k, int64_t phase,
                       ra_local_slice *out)
{
    int64_t q_cut, k_cut;
    if (!ra_slice_restrict_loose(s, q, k, phase, out) ||
        !ra_band_trim(&q_cut, &out->q_count, &k_cut, &out->k_count, &out->lo, &out->hi))
        return false;
    out->q_begin += q_cut * out->q_stride;
    out->k_begin += k_cut * out->k_stride;
    return true;
}
