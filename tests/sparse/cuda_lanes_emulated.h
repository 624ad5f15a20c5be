/* What threads of a GPU can do beyond C, on a CPU: see cuda_emulator.h. C++ only. */
#ifndef RINGATTN_TESTS_CUDA_LANES_EMULATED_H
#define RINGATTN_TESTS_CUDA_LANES_EMULATED_H

#include "ringattn/kernel.h"
#include "sparse/cuda_block_emulated.h"

#include <math.h>

#define LANE_CODE inline

namespace emulated
{

/* 16 bytes of shared memory, which are asked for at once. */
inline void expect_piece(const char *at)
{
    expect(is_shared(at) && is_shared(at + PIECE_BYTES - 1), "beyond shared memory");
    expect((at - now->shared) % PIECE_BYTES == 0, "shared memory is not aligned to 16 bytes");
}

inline uint32_t word_at(const char *at)
{
    uint32_t word;
    memcpy(&word, at, sizeof(word));
    return word;
}

inline uint16_t half_at(const char *at)
{
    uint16_t half;
    memcpy(&half, at, sizeof(half));
    return half;
}

inline void note_rows(const std::vector<offer> &offers, int lane)
{
    if (lane != 0)
        return;
    ++now->stats->loads;
    for (int matrix = 0; matrix < 4; ++matrix) {
        unsigned banks = 0;
        for (int row = 0; row < 8; ++row)
            banks |= 1u << ((offers[(size_t)(matrix * 8 + row)].row - now->shared) / 16 % 8);
        now->stats->bank_conflicts += banks != 0xff;
    }
}

template <ra_dtype DTYPE> inline void unpack(uint32_t word, float pair[2])
{
    uint16_t const halves[2] = {(uint16_t)word, (uint16_t)(word >> 16)};
    pair[0] = ra_dtype_load(DTYPE, halves, 0);
    pair[1] = ra_dtype_load(DTYPE, halves, 1);
}

} // namespace emulated

/* ---- primitives ------------------------------------------------------------------------------ */

inline int thread_index()
{
    return emulated::now->current;
}

inline int thread_count()
{
    return (int)emulated::now->fibers.size();
}

inline int lane_index()
{
    return emulated::now->current % emulated::WARP;
}

inline int warp_index()
{
    return emulated::now->current / emulated::WARP;
}

inline int64_t block_index()
{
    return emulated::now->index;
}

inline int64_t block_count()
{
    return emulated::now->count;
}

inline void block_barrier()
{
    emulated::meet(0, thread_count());
}

inline float shuffle_xor(float x, int mask)
{
    emulated::offer mine = {};
    mine.x = x;
    mine.mask = mask;
    auto const &offers = emulated::warp_together(emulated::OP_SHUFFLE, mine);
    auto const &other = offers[(size_t)(lane_index() ^ mask)];
    emulated::expect(other.mask == mask, "lanes shuffle with different masks");
    return other.x;
}

inline void warp_barrier()
{
    emulated::warp_together(emulated::OP_WARP_BARRIER, {});
}

inline uint32_t warp_vote(bool holds)
{
    emulated::offer mine = {};
    mine.mask = holds;
    auto const &offers = emulated::warp_together(emulated::OP_VOTE, mine);
    uint32_t votes = 0;
    for (int lane = 0; lane < emulated::WARP; ++lane)
        votes |= (uint32_t)offers[(size_t)lane].mask << lane;
    return votes;
}

inline int count_bits(uint32_t x)
{
    return __builtin_popcount(x);
}

inline float exp2_fast(float x)
{
    return x < -126 ? 0 : exp2f(x);
}

inline void device_fence() {}

inline uint32_t count_arrival(uint32_t *arrived)
{
    emulated::expect_written(arrived);
    return (*arrived)++;
}

/* Tasks are dealt to blocks by number, so that all of them have some, as they would side by side.
 */
inline uint32_t draw_ticket(uint32_t *ticket)
{
    using emulated::now;
    emulated::expect(now->drawer < 0 || now->drawer == now->current, "two threads draw tickets");
    now->drawer = now->current;
    while (now->next_task < now->tasks && now->next_task % now->count != now->index)
        ++now->next_task;
    ++*ticket;
    return (uint32_t)now->next_task++;
}

inline int64_t take_ticket(uint32_t *ticket, char *shared)
{
    if (emulated::now->current == 0) {
        uint32_t const mine = draw_ticket(ticket);
        memcpy(shared, &mine, sizeof(mine));
    }
    block_barrier();
    uint32_t const mine = emulated::word_at(shared);
    block_barrier();
    return mine;
}

/* 16 or 8 bytes of device memory at once. */
inline void copy_piece(char *to, const char *from)
{
    emulated::expect(((uintptr_t)to | (uintptr_t)from) % 16 == 0, "16 bytes are not aligned");
    if (emulated::is_shared(from))
        emulated::note_read(from, 16);
    memcpy(to, from, 16);
}

inline void load_floats(const char *from, float values[4])
{
    emulated::expect((uintptr_t)from % 16 == 0, "four floats are not aligned");
    memcpy(values, from, 16);
}

inline void store_floats(char *to, const float values[4])
{
    emulated::expect((uintptr_t)to % 16 == 0, "four floats are not aligned");
    memcpy(to, values, 16);
}

inline void load_pair(const float *from, float values[2])
{
    emulated::expect((uintptr_t)from % 8 == 0, "two floats are not aligned");
    memcpy(values, from, 8);
}

inline void store_pair(float *to, const float values[2])
{
    emulated::expect((uintptr_t)to % 8 == 0, "two floats are not aligned");
    memcpy(to, values, 8);
}

inline void store_pairs(char *to, uint32_t first, uint32_t second)
{
    emulated::expect((uintptr_t)to % 8 == 0, "two pairs are not aligned");
    memcpy(to, &first, 4);
    memcpy(to + 4, &second, 4);
}

inline uint32_t load_elements(const char *from)
{
    emulated::expect((uintptr_t)from % 4 == 0, "two elements are not aligned");
    return emulated::word_at(from);
}

inline void store_elements(char *to, uint32_t pair)
{
    emulated::expect((uintptr_t)to % 4 == 0, "two elements are not aligned");
    emulated::expect(!emulated::is_shared(to), "device memory is expected");
    memcpy(to, &pair, 4);
}

/* Thread blocks run one after the other here, and threads of one in turns. */
inline void add_atomic(float *to, float x)
{
    *to += x;
}

inline void add_four_atomic(float *to, const float x[4])
{
    emulated::expect((uintptr_t)to % 16 == 0, "four floats are not aligned");
    for (int i = 0; i < 4; ++i)
        to[i] += x[i];
}

inline void copy_async(char *to, const char *from, bool there)
{
    using namespace emulated;
    expect((uintptr_t)from % 16 == 0, "a copy's source is not aligned to 16 bytes");
    expect_piece(to);
    memset(to, 0xff, PIECE_BYTES);
    note_copy(to, PIECE_BYTES);
    now->fibers[(size_t)now->current].begun.push_back(
        {to, from, there ? PIECE_BYTES : 0, PIECE_BYTES});
}

/* A NaN until it has arrived. */
inline void copy_float_async(float *to, const float *from, bool there)
{
    using namespace emulated;
    expect(is_shared(to), "beyond shared memory");
    expect((uintptr_t)to % sizeof(float) == 0 && (uintptr_t)from % sizeof(float) == 0,
           "a copy is not aligned to 4 bytes");
    float const value = *from; /* which must be there either way */
    (void)value;
    memset(to, 0xff, sizeof(float));
    note_copy(to, (int)sizeof(float));
    now->fibers[(size_t)now->current].begun.push_back(
        {(char *)to, (const char *)from, there ? (int)sizeof(float) : 0, (int)sizeof(float)});
}

inline void copies_commit()
{
    emulated::fiber &self = emulated::now->fibers[(size_t)emulated::now->current];
    self.committed.insert(self.committed.end(), self.begun.begin(), self.begun.end());
    self.begun.clear();
}

inline void copies_wait()
{
    using namespace emulated;
    fiber &self = now->fibers[(size_t)now->current];
    for (copy const &c : self.committed)
        take_copy(c);
    self.committed.clear();
}

inline void store_piece(char *to, const uint16_t values[8])
{
    emulated::expect_piece(to);
    emulated::note_write(to, emulated::PIECE_BYTES);
    memcpy(to, values, 16);
}

/* Which lanes meet in a bank is not looked at: ra_cuda_tile tests do. */
inline void store_pair_shared(char *to, uint32_t pair)
{
    emulated::expect((uintptr_t)to % 4 == 0, "a pair is not aligned");
    emulated::expect(emulated::is_shared(to), "beyond shared memory");
    emulated::note_write(to, (int)sizeof(pair));
    memcpy(to, &pair, sizeof(pair));
}

/* Matrix m's row r is at the address that lane 8 m + r gave. */
inline void load_matrices(const char *row, uint32_t r[4])
{
    using namespace emulated;
    offer mine = {};
    mine.row = row;
    expect_piece(row);
    note_read(row, PIECE_BYTES);
    auto const &offers = warp_together(OP_LOAD, mine);
    int const lane = lane_index();
    note_rows(offers, lane);
    for (int m = 0; m < 4; ++m)
        r[m] = word_at(offers[(size_t)(8 * m + lane / 4)].row + lane % 4 * 4);
}

inline void load_matrices_transposed(const char *row, uint32_t r[4])
{
    using namespace emulated;
    offer mine = {};
    mine.row = row;
    expect_piece(row);
    note_read(row, PIECE_BYTES);
    auto const &offers = warp_together(OP_LOAD_TRANSPOSED, mine);
    int const lane = lane_index();
    note_rows(offers, lane);
    for (int m = 0; m < 4; ++m) {
        uint32_t const low = half_at(offers[(size_t)(8 * m + lane % 4 * 2)].row + lane / 4 * 2);
        uint32_t const high =
            half_at(offers[(size_t)(8 * m + lane % 4 * 2 + 1)].row + lane / 4 * 2);
        r[m] = low | high << 16;
    }
}

template <ra_dtype DTYPE> struct emulated_element {
    static constexpr int bytes = DTYPE == RA_F32 ? 4 : 2;

    static float load(const char *data, int64_t i)
    {
        return ra_dtype_load(DTYPE, data, i);
    }

    static void store(char *data, int64_t i, float value)
    {
        ra_dtype_store(DTYPE, data, i, value);
    }

    static void store_four(char *to, const float values[4])
    {
        if (DTYPE == RA_F32)
            store_floats(to, values);
        else
            store_pairs(to, pack(values[0], values[1]), pack(values[2], values[3]));
    }

    static uint32_t pack(float low, float high)
    {
        uint16_t halves[2];
        ra_dtype_store(DTYPE, halves, 0, low);
        ra_dtype_store(DTYPE, halves, 1, high);
        return halves[0] | (uint32_t)halves[1] << 16;
    }

    static void widen(uint32_t pair, float values[2])
    {
        emulated::unpack<DTYPE>(pair, values);
    }

    /* C[row][column] += sum over k of A[row][k] B[k][column]; the layouts are the PTX ISA's. */
    static void multiply(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
    {
        using namespace emulated;
        offer mine = {};
        for (int i = 0; i < 4; ++i)
            unpack<DTYPE>(a[i], mine.a[i]);
        unpack<DTYPE>(b0, mine.b[0]);
        unpack<DTYPE>(b1, mine.b[1]);
        auto const &offers = warp_together(OP_MULTIPLY, mine);
        int const lane = lane_index();
        now->stats->products += lane == 0;
        add_products(offers, lane, c);
    }
};

typedef emulated_element<RA_F32> element_f32;
typedef emulated_element<RA_BF16> element_bf16;
typedef emulated_element<RA_F16> element_f16;

#endif
