/* What a warpgroup does together (warpgroup.cuh), on a CPU: see cuda_emulator.h. Products are
   computed at once; whether anything touches them meanwhile is seen where PTX is run. C++ only. */
#ifndef RINGATTN_TESTS_CUDA_WARPGROUP_EMULATED_H
#define RINGATTN_TESTS_CUDA_WARPGROUP_EMULATED_H

#include "sparse/cuda_lanes_emulated.h"
#include "support/tensor_core.h"
#include "support/wgmma_operand.h"

inline uint32_t shared_address(const void *at)
{
    emulated::expect(emulated::is_shared(at), "beyond shared memory");
    return (uint32_t)((const char *)at - emulated::now->shared);
}

inline uint32_t warp_uniform(uint32_t x)
{
    emulated::offer mine = {};
    mine.mask = (int)x;
    auto const &offers = emulated::warp_together(emulated::OP_SHUFFLE, mine);
    emulated::expect(offers[0].mask == mine.mask, "lanes differ in what they should have alike");
    return x;
}

inline int warpgroup_index()
{
    return (int)warp_uniform((uint32_t)warp_index() / 4);
}

inline void shared_publish() {}

inline void warpgroup_begin()
{
    emulated::warp_together(emulated::OP_GROUP_BEGIN, {});
}

inline void warpgroup_commit() {}

template <int LATEST> inline void warpgroup_wait()
{
    emulated::warp_together(emulated::OP_GROUP_WAIT, {});
}

template <class Register, int TILES> void warpgroup_pin(Register (&)[TILES][4]) {}

/* What registers there are is seen where PTX is run. */
template <int REGISTERS> inline void registers_leave() {}

template <int REGISTERS> inline void registers_take() {}

inline void threads_barrier(int number, int threads)
{
    emulated::meet(number, threads);
}

inline void threads_arrive(int number, int threads)
{
    emulated::arrive(number, threads);
}

typedef uint64_t mbarrier;

inline void mbarrier_begin(mbarrier &m, int arrivals)
{
    emulated::mbarrier_made(&m, arrivals);
}

inline void mbarrier_arrive(mbarrier &m)
{
    emulated::mbarrier_arrived(&m, false);
}

inline void mbarrier_arrive_copied(mbarrier &m)
{
    emulated::mbarrier_arrived(&m, true);
}

inline void mbarrier_wait(mbarrier &m, uint32_t parity)
{
    emulated::mbarrier_awaited(&m, parity);
}

template <class Element> struct warpgroup {
    template <bool ACROSS = false, int TILES>
    static void product(float (&c)[TILES][4], uint64_t left, uint64_t right)
    {
        for (int n = 0; n < TILES; ++n)
            c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
        add_product<ACROSS>(c, left, right);
    }

    /* c[4 n + i] of lanes: row lane / 4 + 8 (i / 2), column 8 n + 2 (lane mod 4) + i mod 2. */
    template <bool ACROSS = false, int TILES>
    static void add_product(float (&c)[TILES][4], uint64_t left, uint64_t right)
    {
        uint32_t const first = (uint32_t)warp_index() % 4 * 16;
        float a[2][16]; /* the lane's rows */
        agree(left, right);
        for (uint32_t half = 0; half < 2; ++half)
            for (uint32_t k = 0; k < 16; ++k)
                a[half][k] =
                    element(left, ACROSS, first + 8 * half + (uint32_t)lane_index() / 4, k);
        add(c, TILES, a, right, ACROSS);
    }

    template <int TILES>
    static void add_product(float (&c)[TILES][4], const uint32_t own[4], uint64_t right)
    {
        using namespace emulated;
        float a[2][16];
        offer mine = {};
        agree(0, right);
        for (int i = 0; i < 4; ++i)
            Element::widen(own[i], mine.a[i]);
        auto const &offers = warp_together(OP_MULTIPLY, mine);
        for (int half = 0; half < 2; ++half)
            for (int k = 0; k < 16; ++k)
                a[half][k] = offers[(size_t)(lane_index() / 4 * 4 + k % 8 / 2)]
                                 .a[half + 2 * (k >= 8)][k % 2];
        add(c, TILES, a, right, true);
    }

  private:
    /* All lanes name the same operands. */
    static void agree(uint64_t left, uint64_t right)
    {
        using namespace emulated;
        offer mine = {};
        const char *const misfit = wgmma_misfit(right);
        expect(misfit == NULL, misfit);
        expect(left == 0 || wgmma_misfit(left) == NULL, "a left operand lies wrong");
        mine.row = now->shared + (right & 0x3fff) + (left & 0x3fff) * 0x4000;
        auto const &offers = warp_together(OP_GROUP_PRODUCT, mine);
        expect(offers[0].row == mine.row, "lanes multiply different tiles");
    }

    static float element(uint64_t descriptor, bool across, uint32_t r, uint32_t k,
                         bool notes = true)
    {
        using namespace emulated;
        const char *const at = now->shared + wgmma_element(descriptor, across, r, k);
        if (notes)
            note_read(at, 2);
        return Element::load(at, 0);
    }

    /* [depth][column]: who reads it first keeps it for the others. It stays as it is until some
       barrier is passed. */
    struct tile {
        uint64_t right;
        int64_t changes;
        bool across;
        uint32_t columns;
        float x[16][128];
    };

    static const tile &right_tile(uint64_t right, bool across, uint32_t columns)
    {
        static tile kept = {};
        int64_t const changes = emulated::now->changes;
        bool const is_kept = kept.right == right && kept.changes == changes &&
                             kept.across == across && kept.columns == columns;
        bool const notes = lane_index() == 0; /* for its warp */
        if (is_kept && !notes)
            return kept;
        kept.right = right, kept.changes = changes, kept.across = across;
        kept.columns = columns;
        for (uint32_t k = 0; k < 16; ++k)
            for (uint32_t column = 0; column < columns; ++column)
                kept.x[k][column] = element(right, across, column, k, notes);
        return kept;
    }

    static void add(float (*c)[4], int tiles, const float a[2][16], uint64_t right, bool across)
    {
        const tile &b = right_tile(right, across, 8 * (uint32_t)tiles);
        emulated::now->stats->group_columns += lane_index() == 0 ? 8 * tiles : 0;
        for (int i = 0; i < 4 * tiles; ++i) {
            int const column = i / 4 * 8 + lane_index() % 4 * 2 + i % 2;
            double sum = 0;
            for (int k = 0; k < 16; ++k)
                sum += (double)a[i / 2 % 2][k] * (double)b.x[k][column];
            c[i / 4][i % 4] = tensor_core_cut((double)c[i / 4][i % 4] + sum);
        }
    }
};

#endif
