/*
 * Rows that are marked in a bitmap, read off as a short list of strided ranges: stride by stride,
 * and what is left at the smallest stride at which it repeats.
 */
#include "ringattn/slice.h"

#include "internal.h"
#include "sparse/sparse_internal.h"

enum {
    PERIOD_MAX = 1024,         /* of strides none of which is a multiple of all others */
    NESTED_PERIOD_MAX = 65536, /* of others: that of the largest */
    STRIDES_MOST = 128,        /* that divide a period: up to 120, of 55440 */
    REPEATS_MOST = 4,          /* that are looked for */
    LONG_TIMES = 4,            /* the largest stride: such a run is taken whole */
    SAMPLE_ROWS = 65536
};

typedef struct reading {
    uint64_t *marks;
    int64_t begin, end;
    int64_t strides[STRIDES_MOST]; /* that are tried, ascending */
    int stride_count;
} reading;

static void list_stride(ra_strides *strides, int64_t stride)
{
    int at = 0;
    while (at < strides->count && strides->items[at] < stride)
        ++at;
    if (stride == 1 || (at < strides->count && strides->items[at] == stride))
        return;
    if (strides->count < RA_STRIDES_MAX) {
        int64_t *const place = &strides->items[at];
        memmove(place + 1, place, (size_t)(strides->count - at) * sizeof(*place));
        *place = stride;
    }
    ++strides->count;
}

void ra_strides_see(ra_strides *strides, int64_t stride)
{
    int64_t const known = ra_max_i64(strides->common, 1);
    if (strides->count <= RA_STRIDES_MAX)
        list_stride(strides, stride);
    strides->largest = ra_max_i64(strides->largest, stride);
    strides->common = known > NESTED_PERIOD_MAX    ? known
                      : stride > NESTED_PERIOD_MAX ? stride
                                                   : ra_lcm_i64(known, stride);
}

int64_t ra_strides_period(const ra_strides *strides)
{
    bool const nested = strides->common == strides->largest;
    return strides->common <= (nested ? NESTED_PERIOD_MAX : PERIOD_MAX) ? strides->common : 0;
}

static int divisors(int64_t number, int64_t *divisors_out)
{
    int count = 0;
    for (int64_t i = 1; i * i <= number; ++i)
        if (number % i == 0)
            divisors_out[count++] = i;
    for (int i = count - 1; i >= 0; --i)
        if (divisors_out[i] * divisors_out[i] != number)
            divisors_out[count++] = number / divisors_out[i];
    return count;
}

/* What is tried: all that divide the period, or what was seen. */
static int list_tried(const ra_strides *strides, int64_t *tried_out)
{
    int64_t const period = ra_strides_period(strides);
    int const listed = strides->count <= RA_STRIDES_MAX ? strides->count : 0;
    if (period > 0)
        return divisors(period, tried_out);
    tried_out[0] = 1;
    memcpy(&tried_out[1], strides->items, (size_t)listed * sizeof(*tried_out));
    return 1 + listed;
}

/* Each stride that is tried may take ranges that end up to a period further inside; whether one is
   long, or repeated, is seen within a few periods. */
int64_t ra_marks_reach(const ra_strides *strides)
{
    int64_t tried[STRIDES_MOST];
    int const count = list_tried(strides, tried);
    return (count + REPEATS_MOST + LONG_TIMES) * ra_strides_period(strides);
}

/* The first marked row from `at` on, or the end. */
static int64_t next_marked(const reading *r, int64_t at)
{
    while (at < r->end) {
        uint64_t const word = r->marks[at / 64] >> (at % 64);
        if (word != 0)
            return ra_min_i64(at + __builtin_ctzll(word), r->end);
        at = (at / 64 + 1) * 64;
    }
    return r->end;
}

/* Marked rows at, at + step, … until one is not, up to `most`; the step may be negative. */
static int64_t count_marked(const reading *r, int64_t at, int64_t step, int64_t most)
{
    int64_t count = 0;
    while (count < most && at >= r->begin && at < r->end && ra_is_marked(r->marks, at)) {
        at += step;
        ++count;
    }
    return count;
}

/* Whether a row of a run is in a range of a larger stride that ends or begins with it where the run
   is taken, with `times` more rows. */
static bool repeats(const reading *r, const ra_range *run, int64_t row, int64_t times)
{
    int64_t const last = ra_range_last(*run);
    for (int i = r->stride_count - 1; i >= 0 && r->strides[i] > run->stride; --i) {
        int64_t const stride = r->strides[i];
        int64_t found = 0;
        if (row - stride < run->begin)
            found += count_marked(r, row - stride, -stride, times);
        if (row + stride > last)
            found += count_marked(r, row + stride, stride, times - found);
        if (found >= times)
            return true;
    }
    return false;
}

/* Where ranges of several strides meet, rows of theirs follow one another by chance, again and
   again. Rows at the ends of a run, or all of it, are left to larger strides if they are repeated
   there as often as there are rows in the run. */
static ra_range without_chance(const reading *r, const ra_range *run)
{
    ra_range kept = *run;
    int64_t count;
    if (run->count * run->stride >= LONG_TIMES * r->strides[r->stride_count - 1])
        return kept;
    do {
        int64_t const times = ra_min_i64(kept.count, REPEATS_MOST);
        count = kept.count;
        while (kept.count > 0 && repeats(r, run, kept.begin, times)) {
            kept.begin += kept.stride;
            --kept.count;
        }
        while (kept.count > 0 && repeats(r, run, ra_range_last(kept), times))
            --kept.count;
    } while (kept.count > 0 && kept.count < count);
    return kept;
}

static void unmark(const reading *r, const ra_range *run)
{
    for (int64_t i = 0, at = run->begin; i < run->count; ++i, at += run->stride)
        r->marks[at / 64] &= ~((uint64_t)1 << (at % 64));
}

/* Take runs at one stride. */
static ra_status take_runs(const reading *r, int64_t stride, ra_range_visitor *take, void *context)
{
    for (int64_t at = next_marked(r, r->begin); at < r->end; at = next_marked(r, at + 1)) {
        if (at - stride >= r->begin && ra_is_marked(r->marks, at - stride))
            continue; /* of a run that was left */
        ra_range const whole = {at, stride, count_marked(r, at, stride, r->end - at)};
        ra_range run = without_chance(r, &whole);
        if (run.count == 0)
            continue;
        unmark(r, &run);
        run.stride = run.count > 1 ? stride : 1;
        ra_status const status = take(context, run);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

static ra_status take_all(const reading *r, ra_range_visitor *take, void *context)
{
    ra_status status = RA_OK;
    for (int i = 0; i < r->stride_count && status == RA_OK; ++i)
        status = take_runs(r, r->strides[i], take, context);
    return status;
}

static ra_status count_range(void *count, ra_range range)
{
    (void)range;
    ++*(int64_t *)count;
    return RA_OK;
}

/* How many ranges the first so many strides make of up to SAMPLE_ROWS rows in the middle. */
static int64_t count_sampled(const reading *r, int stride_count)
{
    uint64_t marks[SAMPLE_ROWS / 64];
    int64_t const middle = r->begin + ra_max_i64(0, r->end - r->begin - SAMPLE_ROWS) / 2;
    int64_t const first = middle - middle % 64;
    reading sample = *r;
    sample.marks = marks;
    sample.begin = middle - first;
    sample.end = ra_min_i64(r->end - first, SAMPLE_ROWS);
    sample.stride_count = stride_count;
    memcpy(marks, &r->marks[first / 64], (size_t)ra_div_ceil(sample.end, 64) * sizeof(*marks));
    int64_t count = 0;
    ra_status const status = take_all(&sample, count_range, &count);
    RA_ASSERT(status == RA_OK);
    return count;
}

/* Without a period, ranges of one stride leave holes in those of the next: where most rows are
   marked, stretches of them are fewer. */
ra_status ra_marks_take(uint64_t *marks, int64_t begin, int64_t end, const ra_strides *strides,
                        ra_range_visitor *take, void *context)
{
    reading r = {.marks = marks, .begin = begin, .end = end};
    r.stride_count = list_tried(strides, r.strides);
    if (begin < end && ra_strides_period(strides) == 0 &&
        count_sampled(&r, 1) <= count_sampled(&r, r.stride_count))
        r.stride_count = 1;
    return take_all(&r, take, context);
}
