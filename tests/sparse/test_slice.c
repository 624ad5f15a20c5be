/* Ranges and slices against enumeration. */
#include "ringattn/slice.h"
#include "support/poison_suite.h"
#include "support/random_pattern.h"

#include <criterion/criterion.h>

TestSuite(rowset, .init = poison_suite_begin, .fini = poison_suite_end);

static ra_range draw_range(test_rng *rng)
{
    return (ra_range){test_rng_between(rng, 0, 30), test_rng_between(rng, 1, 7),
                      test_rng_between(rng, 0, 12)};
}

static bool range_has(ra_range r, int64_t row)
{
    int64_t const at = row - r.begin;
    return at >= 0 && at % r.stride == 0 && at / r.stride < r.count;
}

static ra_slice draw_slice(test_rng *rng)
{
    ra_slice s = {.q_begin = test_rng_between(rng, 0, 9),
                  .q_count = test_rng_between(rng, 0, 14),
                  .k_begin = test_rng_between(rng, 0, 9),
                  .k_count = test_rng_between(rng, 0, 14),
                  .stride = test_rng_between(rng, 1, 5),
                  .lo = RA_BAND_NONE_LO,
                  .hi = RA_BAND_NONE_HI};
    if (test_rng_chance(rng, 0.6))
        s.lo = test_rng_between(rng, -16, 16);
    if (test_rng_chance(rng, 0.6))
        s.hi = test_rng_between(rng, -16, 16);
    return s;
}

static bool slice_has(const ra_slice *s, int64_t i, int64_t j)
{
    ra_range const q = {s->q_begin, s->stride, s->q_count}, k = {s->k_begin, s->stride, s->k_count};
    if (!range_has(q, i) || !range_has(k, j))
        return false;
    int64_t const distance = (j - s->k_begin) / s->stride - (i - s->q_begin) / s->stride;
    return distance >= s->lo && distance <= s->hi;
}

Test(range, intersection_holds_exactly_the_common_rows)
{
    test_rng rng = {1};
    for (int n = 0; n < 20000; ++n) {
        ra_range const a = draw_range(&rng), b = draw_range(&rng);
        ra_range both;
        bool const any = ra_range_intersect(a, b, &both);
        cr_assert_eq(any, both.count > 0);
        for (int64_t row = 0; row < 130; ++row)
            cr_assert_eq(range_has(both, row), range_has(a, row) && range_has(b, row),
                         "case %d row %lld", n, (long long)row);
    }
}

Test(range, intersection_of_huge_coprime_strides_does_not_overflow)
{
    int64_t const p = 2147483647, q = 2147483629; /* primes; rows 0 mod p and 5 mod q */
    ra_range both;
    cr_assert(ra_range_intersect((ra_range){0, p, p}, (ra_range){5, q, p}, &both));
    cr_assert_eq(both.begin % p, 0);
    cr_assert_eq(both.begin % q, 5);
    cr_assert_eq(both.count, 1);
}

enum { FAR_ROWS = 100 };
static const int64_t far_p = ((int64_t)1 << 33) - 9, far_q = ((int64_t)1 << 32) - 5; /* primes */

Test(range, intersection_where_no_common_multiple_fits_is_one_row)
{
    static const int64_t before[] = {0, 1, FAR_ROWS - 1, FAR_ROWS};
    int64_t const row = 200 * far_p;
    cr_assert_eq(ra_lcm_i64(far_p, far_q), INT64_MAX);
    for (int n = 0; n < 16; ++n) {
        int64_t const x = before[n / 4], y = before[n % 4];
        ra_range const a = {row - x * far_p, far_p, FAR_ROWS};
        ra_range const b = {row - y * far_q, far_q, FAR_ROWS};
        ra_range both;
        bool const any = ra_range_intersect(a, b, &both);
        cr_assert_eq(any, x < FAR_ROWS && y < FAR_ROWS, "case %d", n);
        cr_assert(!any || (both.begin == row && both.count == 1), "case %d", n);
    }
}

Test(rowset, a_slice_has_the_rows_of_its_local_numbers)
{
    for (uint64_t n = 0; n < 500; ++n) {
        test_rng rng = {n};
        ra_range ranges[4];
        ra_rowset set, slice;
        for (int i = 0; i < 4; ++i) {
            ranges[i] = draw_range(&rng);
            ranges[i].begin += 200 * (i % 2 == 0 ? i : 3 - i); /* disjoint, not in order */
        }
        cr_assert_eq(ra_rowset_init(pool, ranges, 4, &set), RA_OK);
        int64_t const begin = test_rng_between(&rng, 0, set.row_count);
        int64_t const end = test_rng_between(&rng, begin, set.row_count);
        cr_assert_eq(ra_rowset_slice(pool, &set, begin, end, &slice), RA_OK);
        cr_assert_eq(slice.row_count, end - begin, "case %d", (int)n);
        for (int64_t i = 0; i < slice.row_count; ++i)
            cr_assert_eq(ra_rowset_global(&slice, i), ra_rowset_global(&set, begin + i));
        ra_rowset_fini(pool, &slice);
        ra_rowset_fini(pool, &set);
    }
}

/* Pieces that are disjoint but interleave; mostly in the order of their first rows. */
static int64_t draw_pieces(test_rng *rng, ra_range pieces[], int64_t most)
{
    bool taken[120] = {false};
    int64_t count = 0;
    for (int64_t n = 0; n < most; ++n) {
        ra_range const range = draw_range(rng);
        bool free = range.count > 0;
        for (int64_t row = 0; row < 120 && free; ++row)
            free = !range_has(range, row) || !taken[row];
        if (!free)
            continue;
        for (int64_t row = 0; row < 120; ++row)
            taken[row] = taken[row] || range_has(range, row);
        int64_t at = count++;
        for (; at > 0 && pieces[at - 1].begin > range.begin && !test_rng_chance(rng, 0.05); --at)
            pieces[at] = pieces[at - 1];
        pieces[at] = range;
    }
    return count;
}

/* By the definition: how far before a piece there are rows from its first one on. */
static int64_t overlap_of(const ra_range pieces[], int64_t count)
{
    int64_t most = 0;
    for (int64_t i = 1; i < count; ++i)
        for (int64_t j = i - 1; j >= 0; --j) {
            if (j == i - 1 && pieces[j].begin > pieces[i].begin)
                return -1;
            if (ra_range_last(pieces[j]) >= pieces[i].begin && i - j > most)
                most = i - j;
        }
    return most;
}

Test(rowset, rows_are_found_whatever_the_order_of_pieces)
{
    enum { MOST = 12 };
    int seen[MOST + 1] = {0}; /* sets of each overlap; first, those in no order */
    for (uint64_t n = 0; n < 4000; ++n) {
        test_rng rng = {n};
        ra_range pieces[MOST];
        ra_rowset set;
        int64_t const count = draw_pieces(&rng, pieces, test_rng_between(&rng, 0, MOST));
        cr_assert_eq(ra_rowset_init(pool, pieces, count, &set), RA_OK);
        cr_assert_eq(set.overlap, overlap_of(pieces, count), "case %d", (int)n);
        ++seen[set.overlap + 1];
        for (int64_t row = 0; row < 130; ++row) {
            ra_range const rows = {row, 1 + row % 3, 1 + row % 5};
            ra_piece_walk walk = ra_rowset_walk(&set, rows);
            int64_t local = -1;
            for (int64_t i = 0; i < count; ++i) {
                if (ra_range_last(pieces[i]) >= row && pieces[i].begin <= ra_range_last(rows))
                    cr_assert_eq(ra_piece_walk_next(&walk), &set.pieces[i], "case %d row %d",
                                 (int)n, (int)row);
                if (range_has(pieces[i], row))
                    local = set.pieces[i].first + (row - pieces[i].begin) / pieces[i].stride;
            }
            cr_assert_null(ra_piece_walk_next(&walk), "case %d row %d", (int)n, (int)row);
            cr_assert_eq(ra_rowset_local(&set, row), local, "case %d row %d", (int)n, (int)row);
        }
        ra_rowset_fini(pool, &set);
    }
    for (int i = 0; i < 5; ++i)
        cr_expect_gt(seen[i], 100, "%d sets of overlap %d", seen[i], i - 1);
}

/* Of several owners, as a tile map's keys are: the same pieces, with their local numbers. */
Test(rowset, pieces_in_order_are_the_same_pieces)
{
    enum { MOST = 12 };
    int moved = 0;
    for (uint64_t n = 0; n < 500; ++n) {
        test_rng rng = {n};
        ra_range ranges[MOST];
        ra_row_piece before[MOST], after[MOST];
        int64_t const count = draw_pieces(&rng, ranges, MOST);
        for (int64_t i = 0; i < count; ++i)
            before[i] = after[i] = (ra_row_piece){ranges[i], 1000 + i};
        int64_t const overlap = ra_row_pieces_sort(after, count);
        int64_t most = 0; /* pieces back to one that reaches the piece at hand */
        for (int64_t i = 1; i < count; ++i) {
            cr_assert_leq(after[i - 1].rows.begin, after[i].rows.begin, "case %d", (int)n);
            for (int64_t j = 0; j < i; ++j)
                if (ra_range_last(after[j].rows) >= after[i].rows.begin && i - j > most)
                    most = i - j;
        }
        cr_assert_eq(overlap, most, "case %d", (int)n);
        for (int64_t i = 0; i < count; ++i) {
            int64_t const was = after[i].first - 1000;
            cr_assert(was >= 0 && was < count);
            cr_assert_eq(memcmp(&after[i], &before[was], sizeof(after[i])), 0, "case %d", (int)n);
            moved += was != i;
        }
    }
    cr_expect_gt(moved, 100);
}

Test(slice, area_counts_the_live_pairs)
{
    test_rng rng = {2};
    for (int n = 0; n < 5000; ++n) {
        ra_slice const s = draw_slice(&rng);
        int64_t area = 0;
        for (int64_t i = 0; i < 90; ++i)
            for (int64_t j = 0; j < 90; ++j)
                area += slice_has(&s, i, j);
        cr_assert_eq(ra_slice_area(&s), area, "case %d", n);
    }
}

Test(slice, area_of_a_billion_causal_tokens_is_exact)
{
    int64_t const n = 1000000000;
    ra_slice const s = {0, n, 0, n, 1, RA_BAND_NONE_LO, 0};
    cr_assert_eq(ra_slice_area(&s), n / 2 * (n + 1));
}

Test(slice, area_of_some_queries_counts_their_live_pairs)
{
    test_rng rng = {8};
    for (int n = 0; n < 20000; ++n) {
        ra_slice const s = draw_slice(&rng);
        ra_range const queries = draw_range(&rng);
        int64_t expected = 0;
        for (int64_t i = 0; i < 120; ++i)
            for (int64_t j = 0; j < 80 && range_has(queries, i); ++j)
                expected += slice_has(&s, i, j);
        cr_assert_eq(ra_slice_area_of(&s, queries), expected, "case %d", n);
    }
}

Test(slice, area_of_stripes_of_a_billion_causal_tokens_is_exact)
{
    int64_t const n = 1000000000, ranks = 64;
    ra_slice const causal = {0, n, 0, n, 1, RA_BAND_NONE_LO, 0};
    int64_t sum = 0;
    for (int64_t r = 0; r < ranks; ++r) {
        int64_t const rows = n / ranks, last = r + ranks * (rows - 1);
        int64_t const area = ra_slice_area_of(&causal, (ra_range){r, ranks, rows});
        cr_expect_eq(area, rows / 2 * (r + 1 + last + 1));
        sum += area;
    }
    cr_expect_eq(sum, n / 2 * (n + 1));
}

/* Rows cut off in front leave the band the pairs that it had over the others. */
Test(band, shifted_to_what_is_left_it_keeps_the_pairs_of_that)
{
    test_rng rng = {6};
    for (int n = 0; n < 5000; ++n) {
        ra_slice const s = draw_slice(&rng);
        int64_t const q_cut = test_rng_between(&rng, 0, s.q_count);
        int64_t const k_cut = test_rng_between(&rng, 0, s.k_count);
        int64_t lo = s.lo, hi = s.hi, live = 0;
        ra_band_shift(q_cut, &lo, &hi);
        ra_band_shift(-k_cut, &lo, &hi);
        for (int64_t a = q_cut; a < s.q_count; ++a)
            for (int64_t b = k_cut; b < s.k_count; ++b)
                live += b - a >= s.lo && b - a <= s.hi;
        cr_assert_eq(ra_band_area(s.q_count - q_cut, s.k_count - k_cut, lo, hi), live, "case %d",
                     n);
    }
}

Test(band, bounds_that_never_bind_stay_so)
{
    int64_t lo = RA_BAND_NONE_LO, hi = RA_BAND_NONE_HI;
    ra_band_shift(INT64_C(1) << 40, &lo, &hi);
    cr_assert_eq(lo, RA_BAND_NONE_LO);
    cr_assert_eq(hi, RA_BAND_NONE_HI);
    ra_band_shift(-(INT64_C(1) << 40), &lo, &hi);
    cr_assert_eq(lo, RA_BAND_NONE_LO);
    cr_assert_eq(hi, RA_BAND_NONE_HI);
    cr_assert_eq(ra_band_area(7, 9, lo, hi), 63);
}

Test(slice, trim_keeps_every_pair_and_leaves_no_idle_row)
{
    test_rng rng = {3};
    for (int n = 0; n < 5000; ++n) {
        ra_slice const s = draw_slice(&rng);
        ra_slice t = s;
        bool const any = ra_slice_trim(&t);
        cr_assert_eq(any, ra_slice_area(&s) > 0, "case %d", n);
        if (!any)
            continue;
        cr_assert_eq(ra_slice_area(&t), ra_slice_area(&s), "case %d", n);
        for (int64_t a = 0; a < t.q_count; ++a) {
            bool seen = false;
            for (int64_t b = 0; b < t.k_count; ++b) {
                int64_t const i = t.q_begin + a * t.stride, j = t.k_begin + b * t.stride;
                cr_assert_eq(slice_has(&t, i, j), slice_has(&s, i, j), "case %d", n);
                seen = seen || slice_has(&t, i, j);
            }
            cr_assert(seen, "case %d: query %lld sees nothing", n, (long long)a);
        }
    }
}

typedef bool restriction(const ra_slice *slice, ra_range q, ra_range k, int64_t phase,
                         ra_local_slice *out);

static void expect_sum_of_phases(restriction *restrict_to)
{
    test_rng rng = {4};
    for (int n = 0; n < 5000; ++n) {
        ra_slice const s = draw_slice(&rng);
        ra_range const q = draw_range(&rng), k = draw_range(&rng);
        int64_t const phases = ra_slice_phases(&s, q, k);
        int counts[12][12] = {{0}};
        cr_assert_leq(phases, 1 + q.count * k.count, "case %d: few rows have few phases", n);
        for (int64_t phase = 0; phase < phases; ++phase) {
            ra_local_slice l;
            if (!restrict_to(&s, q, k, phase, &l))
                continue;
            for (int64_t a = 0; a < l.q_count; ++a)
                for (int64_t b = 0; b < l.k_count; ++b)
                    if (b - a >= l.lo && b - a <= l.hi)
                        ++counts[l.q_begin + a * l.q_stride][l.k_begin + b * l.k_stride];
        }
        for (int64_t x = 0; x < q.count; ++x)
            for (int64_t y = 0; y < k.count; ++y)
                cr_assert_eq(counts[x][y],
                             slice_has(&s, q.begin + x * q.stride, k.begin + y * k.stride),
                             "case %d query %lld key %lld", n, (long long)x, (long long)y);
    }
}

Test(slice, phases_of_a_restriction_add_up_to_it)
{
    expect_sum_of_phases(ra_slice_restrict);
    expect_sum_of_phases(ra_slice_restrict_loose);
}

/* What a band leaves out is no reason to leave out a query or a key. */
/* Of a causal slice's keys the range has the first alone, which all of its queries see. */
Test(slice, restriction_where_no_common_multiple_fits_keeps_every_pair)
{
    ra_slice const slice = {0, FAR_ROWS, 0, FAR_ROWS, far_p, RA_BAND_NONE_LO, 0};
    ra_range const q = {0, far_p, FAR_ROWS}, k = {0, far_q, FAR_ROWS};
    int64_t pairs = 0;
    for (int64_t phase = 0; phase < ra_slice_phases(&slice, q, k); ++phase) {
        ra_local_slice local;
        if (!ra_slice_restrict(&slice, q, k, phase, &local))
            continue;
        cr_assert(local.k_begin == 0 && local.k_count == 1);
        pairs += ra_band_area(local.q_count, local.k_count, local.lo, local.hi);
    }
    cr_assert_eq(pairs, FAR_ROWS);
}

Test(slice, a_loose_restriction_does_not_depend_on_the_band)
{
    test_rng rng = {5};
    for (int n = 0; n < 5000; ++n) {
        ra_slice const banded = draw_slice(&rng);
        ra_slice wide = banded;
        ra_range const q = draw_range(&rng), k = draw_range(&rng);
        ra_local_slice of_band, of_all;
        bool const has_band = banded.lo > RA_BAND_NONE_LO || banded.hi < RA_BAND_NONE_HI;
        wide.lo = -1000;
        wide.hi = 1000; /* beyond all that is drawn, and a band: it has the same phases */
        if (!has_band || !ra_slice_restrict_loose(&banded, q, k, 0, &of_band))
            continue;
        cr_assert(ra_slice_restrict_loose(&wide, q, k, 0, &of_all), "case %d", n);
        cr_assert_eq(of_band.q_begin, of_all.q_begin, "case %d", n);
        cr_assert_eq(of_band.q_count, of_all.q_count, "case %d", n);
        cr_assert_eq(of_band.k_begin, of_all.k_begin, "case %d", n);
        cr_assert_eq(of_band.k_count, of_all.k_count, "case %d", n);
    }
}
