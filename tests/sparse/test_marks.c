/* Marked rows, read off as ranges: exactly those, in few ranges, alike however often they repeat.
 */
#include "ringattn/slice.h"
#include "support/test_rng.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MOST = 1 << 20, RANGES_MOST = 1 << 16 };

typedef struct listing {
    int64_t count;
    ra_range ranges[RANGES_MOST];
} listing;

static uint64_t marks[ROWS_MOST / 64];
static listing listed;

static bool is_marked(int64_t row)
{
    return marks[row / 64] >> (row % 64) & 1;
}

static void mark(ra_range rows, ra_strides *strides)
{
    cr_assert_lt(ra_range_last(rows), ROWS_MOST);
    for (int64_t i = 0, at = rows.begin; i < rows.count; ++i, at += rows.stride)
        marks[at / 64] |= (uint64_t)1 << (at % 64);
    if (rows.count > 1)
        ra_strides_see(strides, rows.stride);
}

/* Rows begin, begin + stride, … before end. */
static ra_range rows_until(int64_t begin, int64_t stride, int64_t end)
{
    return (ra_range){begin, stride, (end - 1 - begin) / stride + 1};
}

static ra_status take(void *context, ra_range range)
{
    listing *list = context;
    cr_assert_lt(list->count, RANGES_MOST);
    list->ranges[list->count++] = range;
    return RA_OK;
}

static int by_begin(const void *a, const void *b)
{
    const ra_range *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Read off all marks; what is left there is an error. */
static void list(int64_t end, const ra_strides *strides)
{
    listed.count = 0;
    cr_assert_eq(ra_marks_take(marks, 0, end, strides, take, &listed), RA_OK);
    qsort(listed.ranges, (size_t)listed.count, sizeof(ra_range), by_begin);
    for (int64_t i = 0; i < ROWS_MOST / 64; ++i)
        cr_assert_eq(marks[i], 0, "rows from %lld on", (long long)(64 * i));
}

/* ---- what is listed --------------------------------------------------------------------------
 */

static ra_strides draw(test_rng *rng, int64_t rows)
{
    static const int64_t strides[] = {1, 2, 3, 4, 7, 8, 12, 31, 64, 81, 128, 512, 600, 1023};
    enum { STRIDES = sizeof(strides) / sizeof(strides[0]) };
    ra_strides seen = {0};
    for (int64_t n = test_rng_between(rng, 0, 8); n > 0; --n) {
        int64_t const begin = test_rng_between(rng, 0, rows - 1);
        int64_t const stride = strides[test_rng_between(rng, 0, STRIDES - 1)];
        int64_t const most = (rows - 1 - begin) / stride + 1;
        mark((ra_range){begin, stride, test_rng_between(rng, 1, most)}, &seen);
    }
    return seen;
}

Test(marks, are_listed_once_each_and_no_others)
{
    enum { CASES = 3000, ROWS = 5000 };
    static bool was[ROWS];
    test_rng rng = {21};
    for (int n = 0; n < CASES; ++n) {
        int64_t const rows = test_rng_between(&rng, 1, ROWS);
        ra_strides const strides = draw(&rng, rows);
        int64_t const begin = test_rng_between(&rng, 0, rows - 1);
        int64_t const end = test_rng_between(&rng, begin, rows);
        int64_t const period = ra_strides_period(&strides);
        for (int64_t i = 0; i < rows; ++i)
            was[i] = is_marked(i);
        listed.count = 0;
        cr_assert_eq(ra_marks_take(marks, begin, end, &strides, take, &listed), RA_OK);
        for (int64_t i = 0; i < listed.count; ++i) {
            ra_range const r = listed.ranges[i];
            cr_assert(r.count > 1 || r.stride == 1);
            cr_assert(period == 0 || period % r.stride == 0, "case %d: stride %lld of %lld", n,
                      (long long)r.stride, (long long)period);
            cr_assert(r.begin >= begin && ra_range_last(r) < end);
            for (int64_t x = 0, at = r.begin; x < r.count; ++x, at += r.stride) {
                cr_assert(was[at] && !is_marked(at), "case %d row %lld", n, (long long)at);
                was[at] = false;
            }
        }
        for (int64_t i = 0; i < rows; ++i) /* what is outside keeps its marks */
            cr_assert_eq(was[i], i < begin || i >= end ? is_marked(i) : false, "case %d row %lld",
                         n, (long long)i);
        memset(marks, 0, sizeof(marks));
    }
}

static ra_status refuse(void *context, ra_range range)
{
    int *left = context;
    (void)range;
    return (*left)-- > 0 ? RA_OK : RA_ERR_NO_MEMORY;
}

Test(marks, give_up_where_a_range_is_not_taken)
{
    ra_strides strides = {0};
    for (int64_t at = 0; at < 100; at += 10)
        mark((ra_range){at, 1, 3}, &strides);
    int left = 4;
    cr_expect_eq(ra_marks_take(marks, 0, 100, &strides, refuse, &left), RA_ERR_NO_MEMORY);
    cr_expect_eq(left, -1);
}

/* ---- in few ranges ----------------------------------------------------------------------------
 */

static void expect_ranges(int64_t end, const ra_strides *strides, int64_t most)
{
    list(end, strides);
    cr_expect_leq(listed.count, most, "%lld ranges, not %lld", (long long)listed.count,
                  (long long)most);
}

/* As in LongNet: each branch reaches farther back, at a rate that is a multiple of the last. Where
   one begins, a row may be left over. */
Test(marks, of_nested_strides_are_about_a_range_for_each)
{
    enum { END = 1 << 20, EACH = 16, RATE_MOST = 1 << 16 };
    for (int64_t ratio = 2; ratio <= 16; ratio *= 2) {
        ra_strides strides = {0};
        int64_t branches = 0;
        for (int64_t rate = 1; rate <= RATE_MOST; rate *= ratio, ++branches)
            mark((ra_range){END - EACH * rate, rate, EACH}, &strides);
        expect_ranges(END, &strides, branches + branches / 2);
    }
}

Test(marks, of_a_short_stretch_stay_a_stretch_beside_a_large_stride)
{
    enum { END = 200000 };
    ra_strides strides = {0};
    mark((ra_range){100000, 1, 1000}, &strides);
    mark(rows_until(7, 512, END), &strides);
    expect_ranges(END, &strides, 3); /* and what is before and behind it */
}

Test(marks, of_neighbouring_offsets_are_a_range_for_each)
{
    enum { END = 100000, OFFSETS = 8 };
    ra_strides strides = {0};
    for (int64_t offset = 0; offset < OFFSETS; ++offset)
        mark(rows_until(offset, 700, END), &strides);
    expect_ranges(END, &strides, OFFSETS);
    for (int64_t at = 0; at < 3 * 700; at += 700) /* few of them: a stretch for each place */
        mark((ra_range){at, 1, OFFSETS}, &strides);
    expect_ranges(END, &strides, 3);
}

Test(marks, beside_a_range_by_chance_do_not_break_it)
{
    enum { END = 100000, STRAYS = 20 };
    ra_strides strides = {0};
    mark(rows_until(3, 8, END), &strides);
    for (int64_t i = 0; i < STRAYS; ++i)
        mark((ra_range){4 + 8 * (i * i * 7 + 11 * i), 1, 1}, &strides);
    expect_ranges(END, &strides, 1 + STRAYS);
}

Test(marks, of_long_ranges_are_not_cut_at_their_ends)
{
    enum { END = 4000 };
    ra_strides strides = {0};
    mark(rows_until(5, 7, END), &strides);
    mark(rows_until(0, 12, END), &strides);
    mark(rows_until(9, 12, END), &strides);
    mark((ra_range){2360, 5, 22}, &strides);
    expect_ranges(END, &strides, 30); /* cut, three times as many */
}

/* Strides without a period that is worth it: each is listed all the same. */
Test(marks, of_strides_with_little_in_common_are_ranges)
{
    enum { END = 500000, OFFSETS = 8 };
    ra_strides strides = {0};
    for (int64_t offset = 0; offset < OFFSETS; ++offset) {
        mark(rows_until(offset, 81, END), &strides);
        mark((ra_range){END / 2 + offset, 31, 25}, &strides);
    }
    cr_expect_eq(ra_strides_period(&strides), 0);
    expect_ranges(END, &strides, 64); /* 16, some of them cut; in stretches 6,200 */
    strides = (ra_strides){0};
    mark(rows_until(0, 255, END), &strides);
    mark(rows_until(0, 257, END), &strides);
    expect_ranges(END, &strides, 1 + END / (255 * 257) + 1);
}

/* Ranges of one stride leave holes in those of the next; what lies side by side is fewer. */
Test(marks, of_many_rows_without_a_period_are_no_more_than_stretches)
{
    enum { END = 200000, OFFSETS = 16 };
    ra_strides strides = {0};
    for (int64_t offset = 0; offset < OFFSETS; ++offset) {
        mark(rows_until(offset, 20, END), &strides);
        mark(rows_until(offset, 24, END), &strides);
        mark(rows_until(offset, 31, END), &strides);
    }
    int64_t stretches = 0;
    for (int64_t i = 0; i < END; ++i)
        stretches += is_marked(i) && (i == 0 || !is_marked(i - 1));
    cr_assert_eq(ra_strides_period(&strides), 0);
    expect_ranges(END, &strides, stretches);
}

/* ---- however often they repeat ----------------------------------------------------------------
 */

/* A stretch of ranges that begin and end near its ends, but somewhere. */
static ra_strides mark_stretch(const int64_t *rates, const int64_t *first, const int64_t *left,
                               int64_t count, int64_t end)
{
    ra_strides strides = {0};
    for (int64_t i = 0; i < count; ++i)
        mark(rows_until(first[i], rates[i], end - left[i]), &strides);
    return strides;
}

Test(marks, that_repeat_more_often_are_listed_alike)
{
    enum { CASES = 300, RATES = 4, MORE = 3 };
    static const int64_t rates[] = {2, 3, 4, 5, 6, 8, 9, 12, 16, 20, 60, 128, 256, 300};
    static listing before;
    test_rng rng = {22};
    for (int n = 0; n < CASES; ++n) {
        int64_t drawn[RATES], first[RATES], left[RATES];
        int64_t const count = test_rng_between(&rng, 1, RATES);
        ra_strides strides = {0};
        for (int64_t i = 0; i < count; ++i) {
            drawn[i] = rates[test_rng_between(&rng, 0, sizeof(rates) / sizeof(rates[0]) - 1)];
            first[i] = test_rng_between(&rng, 0, drawn[i] - 1);
            left[i] = test_rng_between(&rng, 0, drawn[i] - 1);
            ra_strides_see(&strides, drawn[i]);
        }
        int64_t const period = ra_strides_period(&strides), reach = ra_marks_reach(&strides);
        if (period == 0)
            continue;
        cr_assert_eq(reach % period, 0);
        /* All begin and end within a period of the ends; the last row that is marked is kept. */
        int64_t const end = 2 * reach + 2 * period + test_rng_between(&rng, 0, period);
        cr_assert_lt(end + MORE * period, ROWS_MOST);
        mark_stretch(drawn, first, left, count, end);
        list(end, &strides);
        before = listed;
        mark_stretch(drawn, first, left, count, end + MORE * period);
        list(end + MORE * period, &strides);
        cr_assert_eq(listed.count, before.count, "case %d", n);
        for (int64_t i = 0; i < listed.count; ++i) {
            ra_range const a = before.ranges[i], b = listed.ranges[i];
            int64_t const moved = a.begin < end / 2 ? 0 : MORE * period;
            int64_t const grown = ra_range_last(a) < end / 2 ? 0 : MORE * period;
            cr_assert_eq(a.stride, b.stride, "case %d", n);
            cr_assert_eq(b.begin, a.begin + moved, "case %d", n);
            cr_assert_eq(ra_range_last(b), ra_range_last(a) + grown, "case %d", n);
        }
    }
}

/* ---- strides ----------------------------------------------------------------------------------
 */

static int64_t period_of(const int64_t *strides, int count)
{
    ra_strides up = {0}, down = {0};
    for (int i = 0; i < count; ++i) {
        ra_strides_see(&up, strides[i]);
        ra_strides_see(&down, strides[count - 1 - i]);
    }
    cr_expect_eq(ra_strides_period(&up), ra_strides_period(&down));
    cr_expect_eq(up.count, down.count);
    for (int i = 0; i < up.count && up.count <= RA_STRIDES_MAX; ++i)
        cr_expect_eq(up.items[i], down.items[i]);
    return ra_strides_period(&up);
}

Test(strides, repeat_together_after_their_least_common_multiple)
{
    cr_expect_eq(period_of((const int64_t[]){1}, 1), 1);
    cr_expect_eq(period_of((const int64_t[]){1, 4, 6, 4}, 4), 12);
    cr_expect_eq(period_of((const int64_t[]){31, 33}, 2), 1023);
    cr_expect_eq(period_of((const int64_t[]){25, 41}, 2), 0); /* 1,025 */
    cr_expect_eq(period_of((const int64_t[]){3, 2049, 9, 18441}, 4), 18441);
    cr_expect_eq(period_of((const int64_t[]){65536, 4}, 2), 65536);
    cr_expect_eq(period_of((const int64_t[]){65537, 1}, 2), 0);
    cr_expect_eq(period_of((const int64_t[]){INT64_MAX, 65521, 65519, 3, INT64_MAX - 1}, 5), 0);
}

Test(strides, are_too_many_in_any_order)
{
    enum { COUNT = RA_STRIDES_MAX + 2 };
    int64_t many[COUNT];
    for (int i = 0; i < COUNT; ++i)
        many[i] = 1000 + 7 * i;
    cr_expect_eq(period_of(many, COUNT), 0);
    ra_strides strides = {0};
    for (int i = 0; i < COUNT; ++i)
        mark(rows_until(i, many[i], 20000), &strides);
    list(20000, &strides); /* still all of them */
    cr_expect_gt(listed.count, 0);
}
