#include "pool_internal.h"

const char *ra_pool_figure_name(ra_pool_figure figure)
{
    static const char *const names[RA_POOL_FIGURE_COUNT] = {
        [RA_POOL_REQUESTED] = "requested",
        [RA_POOL_ALLOCATED] = "allocated",
        [RA_POOL_ACTIVE] = "active",
        [RA_POOL_RESERVED] = "reserved",
        [RA_POOL_INACTIVE_SPLIT] = "inactive_split",
    };
    RA_ASSERT((unsigned)figure < RA_POOL_FIGURE_COUNT);
    return names[figure];
}

static void counter_add(ra_pool_counter *counter, int64_t amount)
{
    counter->current += amount;
    counter->allocated += ra_max_i64(amount, 0);
    counter->peak = ra_max_i64(counter->peak, counter->current);
    RA_DASSERT(counter->current >= 0);
}

void ra_pool_count(ra_pool_stats *stats, ra_pool_figure figure, int64_t bytes, int64_t count)
{
    counter_add(&stats->bytes[figure], bytes);
    counter_add(&stats->count[figure], count);
}

/* ---- times ----------------------------------------------------------------------------------- */

/* Bin 8 (e - 2) + s holds [2^e (1 + s/8), 2^e (1 + (s+1)/8)); times below 8 ns have bins 0 to 7. */
static int bin_of(int64_t ns)
{
    if (ns < 8)
        return (int)ra_max_i64(ns, 0);
    int const exponent = 63 - __builtin_clzll((unsigned long long)ns);
    int const bin = 8 * (exponent - 2) + ((int)(ns >> (exponent - 3)) & 7);
    return bin < RA_POOL_TIME_BINS ? bin : RA_POOL_TIME_BINS - 1;
}

static int64_t upper_edge(int bin)
{
    if (bin < 8)
        return bin;
    return ((int64_t)(bin % 8 + 9) << (bin / 8 - 1)) - 1;
}

void ra_pool_times_add(ra_pool_times *times, int64_t ns)
{
    times->count[bin_of(ns)]++;
    times->total++;
}

int64_t ra_pool_times_quantile(const ra_pool_times *times, double share)
{
    int64_t const wanted = times->total - (int64_t)((1 - share) * (double)times->total);
    int64_t seen = 0;
    for (int bin = 0; bin < RA_POOL_TIME_BINS; bin++) {
        seen += times->count[bin];
        if (seen > 0 && seen >= wanted)
            return upper_edge(bin);
    }
    return -1;
}

/* ---- shares ---------------------------------------------------------------------------------- */

double ra_pool_utilisation(const ra_pool_stats *stats)
{
    int64_t const reserved = stats->bytes[RA_POOL_RESERVED].peak;
    int64_t const allocated = stats->bytes[RA_POOL_ALLOCATED].peak;
    return reserved > 0 ? (double)allocated / (double)reserved : 1;
}

double ra_pool_internal_fragmentation(const ra_pool_stats *stats)
{
    int64_t const allocated = stats->bytes[RA_POOL_ALLOCATED].peak;
    int64_t const requested = stats->bytes[RA_POOL_REQUESTED].peak;
    return allocated > 0 ? 1 - (double)requested / (double)allocated : 0;
}
