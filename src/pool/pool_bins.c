/* Idle chunks by size. Nothing here knows about segments or memory. */
#include "pool_internal.h"

enum { UNIT_SHIFT = 6, LINEAR_SHIFT = 12, FINE_SUBS_SHIFT = 6, COARSE_SUBS_SHIFT = 3 };
enum { FINE_BINS = 64 + (RA_POOL_FINE_SHIFT - LINEAR_SHIFT) * 64, SMALL_SHIFT = 16 };

_Static_assert(1 << UNIT_SHIFT == RA_POOL_UNIT_BYTES, "bins of the smallest sizes are one unit");
_Static_assert(RA_POOL_BINS == FINE_BINS + (62 - RA_POOL_FINE_SHIFT) * 8, "up to 2^62");

static int log2_floor(size_t bytes)
{
    return 63 - __builtin_clzll((unsigned long long)bytes);
}

size_t ra_pool_class_bytes(size_t bytes)
{
    if (bytes <= (size_t)1 << LINEAR_SHIFT)
        return ra_round_up(bytes, RA_POOL_UNIT_BYTES);
    int const shift = log2_floor(bytes);
    if (shift >= RA_POOL_FINE_SHIFT)
        return ra_round_up(bytes, RA_POOL_PAGE_BYTES);
    size_t const step = (size_t)1 << (shift - FINE_SUBS_SHIFT);
    bool const whole_pages = shift >= SMALL_SHIFT && step < RA_POOL_PAGE_BYTES;
    return ra_round_up(bytes, whole_pages ? RA_POOL_PAGE_BYTES : step);
}

int ra_pool_bin(size_t bytes)
{
    if (bytes < (size_t)1 << LINEAR_SHIFT)
        return (int)(bytes >> UNIT_SHIFT);
    int const shift = log2_floor(bytes);
    if (shift < RA_POOL_FINE_SHIFT) {
        int const sub = (int)(bytes >> (shift - FINE_SUBS_SHIFT)) & 63;
        return 64 + (shift - LINEAR_SHIFT) * 64 + sub;
    }
    int const sub = (int)(bytes >> (shift - COARSE_SUBS_SHIFT)) & 7;
    return FINE_BINS + (shift - RA_POOL_FINE_SHIFT) * 8 + sub;
}

/* Last freed, first used: it is likely still in the caches. */
void ra_bins_add(ra_bins *bins, ra_chunk *chunk)
{
    int const bin = ra_pool_bin(chunk->bytes);
    chunk->bin_prev = NULL;
    chunk->bin_next = bins->first[bin];
    if (chunk->bin_next != NULL)
        chunk->bin_next->bin_prev = chunk;
    bins->first[bin] = chunk;
    bins->filled[bin / 64] |= (uint64_t)1 << (bin % 64);
}

void ra_bins_remove(ra_bins *bins, ra_chunk *chunk)
{
    int const bin = ra_pool_bin(chunk->bytes);
    if (chunk->bin_prev != NULL)
        chunk->bin_prev->bin_next = chunk->bin_next;
    else
        bins->first[bin] = chunk->bin_next;
    if (chunk->bin_next != NULL)
        chunk->bin_next->bin_prev = chunk->bin_prev;
    if (bins->first[bin] == NULL)
        bins->filled[bin / 64] &= ~((uint64_t)1 << (bin % 64));
}

/* The first bin from `bin` on that holds anything; RA_POOL_BINS: none. */
static int next_filled(const ra_bins *bins, int bin)
{
    for (int word = bin / 64; word < RA_POOL_BIN_WORDS; word++) {
        uint64_t bits = bins->filled[word];
        if (word == bin / 64)
            bits &= ~(uint64_t)0 << (bin % 64);
        if (bits != 0)
            return word * 64 + __builtin_ctzll(bits);
    }
    return RA_POOL_BINS;
}

/* Looking longer would find little: sizes in a bin differ by 1/64, above 1 MiB by 1/8. */
enum { LOOKS_MAX = 64 };

ra_chunk *ra_bins_find(const ra_bins *bins, size_t bytes,
                       bool (*fits)(void *context, ra_chunk *chunk), void *context)
{
    ra_chunk *best = NULL;
    for (int bin = next_filled(bins, ra_pool_bin(bytes)); bin < RA_POOL_BINS && best == NULL;
         bin = bin + 1 < RA_POOL_BINS ? next_filled(bins, bin + 1) : RA_POOL_BINS) {
        ra_chunk *chunk = bins->first[bin];
        for (int i = 0; chunk != NULL && i < LOOKS_MAX; i++, chunk = chunk->bin_next) {
            bool const better =
                chunk->bytes >= bytes && (best == NULL || chunk->bytes < best->bytes);
            if (!better || !fits(context, chunk))
                continue;
            best = chunk;
            if (chunk->bytes == bytes)
                break;
        }
    }
    return best;
}
