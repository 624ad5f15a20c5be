/* Tile sizes of the CUDA kernels, and where elements lie in shared memory and across lanes: no GPU
   is needed for it. */
#include "sparse/cuda/backward_table.h"
#include "sparse/cuda/fragments.h"
#include "sparse/cuda/linear_args.h"
#include "sparse/cuda/wgmma_layout.h"
#include "support/wgmma_operand.h"

#include <criterion/criterion.h>
#include <string.h>

#define LISTED(DIM) DIM,

/* ---- tiles ----------------------------------------------------------------------------------- */

enum { REGISTERS_PER_SM = 65536, SHARED_SYSTEM = 1 << 10 };
enum { SHARED_PER_SM_A100 = 164 << 10, SHARED_PER_SM_H100 = 228 << 10 };
/* Of a thread block, on the GPUs from 8.0 on that have least: 8.6, 8.9 and 12.x. */
enum { SHARED_LEAST = 99 << 10 };

/* One thread block fits every GPU, and the H100, at least, holds as many as the table says. */
static void check_tile(ra_cuda_tile tile, int32_t dim, bool fits_a100)
{
    int32_t const threads = 32 * tile.warps;
    int32_t const there = fits_a100 ? SHARED_PER_SM_A100 : SHARED_PER_SM_H100;
    cr_assert_geq(tile.dim, dim);
    cr_assert_leq(tile.registers, 255);
    cr_assert_leq(threads * tile.registers * tile.blocks_per_sm, REGISTERS_PER_SM);
    cr_assert_leq(tile.shared_bytes, SHARED_LEAST, "dim %d", dim);
    cr_assert_leq(tile.blocks_per_sm * (tile.shared_bytes + SHARED_SYSTEM), there, "dim %d", dim);
    cr_assert_eq(tile.shared_bytes % 4, 0);
}

Test(cuda_tile_table, a_head_dim_has_the_least_compiled_one_that_holds_it)
{
    static const int32_t dims[] = {RA_CUDA_DIMS(LISTED)};
    for (int32_t dim = 1, at = 0; dim <= 256; ++dim) {
        at += dim > dims[at];
        cr_assert_eq(ra_cuda_dim_of(dim), dims[at]);
    }
}

/* And the forward kernels' tiles of queries are those of dq: both go by the same maps. */
Test(cuda_tile_table, backward_tiles_fit_them_too)
{
    for (int32_t dim = 1; dim <= 256; ++dim) {
        for (int t = 0; t < 3; ++t) {
            ra_cuda_tile const queries = ra_cuda_queries_of((ra_dtype)t, dim);
            ra_cuda_tile const keys = ra_cuda_keys_of((ra_dtype)t, dim);
            check_tile(queries, dim, dim <= (t == RA_F32 ? 256 : 128));
            check_tile(keys, dim, dim <= (t == RA_F32 ? 256 : 96));
            cr_assert_eq(queries.k_rows % 16, 0, "they come in pairs of n-tiles");
            cr_assert_eq(keys.q_rows % 16, 0);
            cr_assert_eq(queries.q_rows, ra_cuda_tile_of((ra_dtype)t, dim).q_rows);
            cr_assert_leq(keys.warps, 8, "a vote per warp has a place");
            if (t == RA_F32)
                continue;
            cr_assert_eq(queries.q_rows, 16 * queries.row_tiles * queries.warps);
            cr_assert_eq(keys.k_rows, 16 * keys.row_tiles * keys.warps);
            cr_assert_leq(keys.q_rows, 32 * keys.warps, "a thread copies the LSE of a query");
        }
    }
}

/* Those of up to 64 dims every GPU; above, those with less than an A100 go backward in two passes.
 */
Test(cuda_tile_table, tiles_of_the_single_pass_fit_the_a100)
{
    for (int32_t dim = 1; dim <= 256; ++dim) {
        bool const has = ra_cuda_has_single(RA_BF16, dim, INT64_MAX);
        cr_assert_eq(has, dim <= RA_CUDA_SINGLE_DIM_MOST);
        cr_assert(!ra_cuda_has_single(RA_F16, dim, INT64_MAX));
        cr_assert(!ra_cuda_has_single(RA_F32, dim, INT64_MAX));
        if (!has)
            continue;
        ra_cuda_tile const tile = ra_cuda_single_of(dim);
        cr_assert_eq(tile.dim, ra_cuda_dim_of(dim));
        cr_assert(ra_cuda_has_single(RA_BF16, dim, tile.shared_bytes));
        cr_assert(!ra_cuda_has_single(RA_BF16, dim, tile.shared_bytes - 1));
        cr_assert_leq(32 * tile.warps * tile.registers * tile.blocks_per_sm, REGISTERS_PER_SM);
        cr_assert_leq(tile.shared_bytes + SHARED_SYSTEM, SHARED_PER_SM_A100, "dim %d", dim);
        cr_assert_eq(tile.shared_bytes <= SHARED_LEAST, dim <= 64, "dim %d", dim);
        cr_assert_eq(tile.shared_bytes % 16, 0);
        cr_assert_leq(tile.warps, 8, "a vote per warp has a place");
        cr_assert_eq(tile.k_rows * RA_CUDA_SINGLE_ACROSS, 16 * tile.row_tiles * tile.warps);
        cr_assert_eq(tile.q_rows % (16 * RA_CUDA_SINGLE_ACROSS), 0);
    }
}

Test(cuda_tile_table, tiles_fit_registers_and_shared_memory_of_every_gpu)
{
    for (int32_t dim = 1; dim <= 256; ++dim) {
        for (int t = 0; t < 3; ++t) {
            ra_cuda_tile const tile = ra_cuda_tile_of((ra_dtype)t, dim);
            check_tile(tile, dim, dim <= 192);
            cr_assert_leq(tile.blocks_per_sm, ra_cuda_blocks_most(dim), "each has scratch");
            if (t == RA_F32)
                continue;
            cr_assert_eq(tile.k_rows % 16, 0, "keys come in pairs of n-tiles");
            cr_assert_eq(tile.q_rows, 16 * tile.row_tiles * tile.warps);
            /* Sums and scores of a lane leave some registers for all else; test_ptxas tells whether
               they suffice. */
            int32_t const held = tile.row_tiles * 16 * (tile.dim + tile.k_rows) / 32;
            cr_assert_lt(held, tile.registers - 32, "dim %d holds %d", dim, held);
        }
    }
}

/* Tile maps are made for both kernels alike. Of the warpgroups one brings what the others read. */
Test(cuda_tile_table, tiles_of_warpgroups_have_as_many_queries_as_the_others)
{
    for (int32_t dim = 1; dim <= 256; ++dim) {
        bool const has = ra_cuda_has_warpgroups(RA_BF16, dim);
        cr_assert_eq(has, (dim > 32 && dim <= 64) || (dim > 96 && dim <= 128), "dim %d", dim);
        cr_assert_eq(has, ra_cuda_has_warpgroups(RA_F16, dim));
        cr_assert(!ra_cuda_has_warpgroups(RA_F32, dim));
        if (!has)
            continue;
        ra_cuda_tile const tile = ra_cuda_warpgroup_tile_of(dim);
        cr_assert_eq(tile.dim, ra_cuda_dim_of(dim));
        cr_assert_eq(tile.q_rows, ra_cuda_tile_of(RA_BF16, dim).q_rows);
        int32_t const groups = tile.warps / 4, computing = tile.q_rows / 64;
        cr_assert_eq(tile.q_rows, 64 * computing);
        cr_assert_eq(groups, computing + 1);
        cr_assert_eq(tile.warps, 4 * groups);
        cr_assert_leq(computing * RA_CUDA_REGISTERS_COMPUTING + RA_CUDA_REGISTERS_BRINGING,
                      groups * tile.registers, "registers pass from one to the others");
        cr_assert_leq(tile.blocks_per_sm, ra_cuda_blocks_most(dim), "each has scratch");
        cr_assert_leq(32 * tile.warps * tile.registers * tile.blocks_per_sm, REGISTERS_PER_SM);
        cr_assert_leq(tile.blocks_per_sm * (tile.shared_bytes + SHARED_SYSTEM), SHARED_PER_SM_H100);
    }
}

/* Two warpgroups have 64 keys each, and a panel of a step's queries with one of dims. */
Test(cuda_tile_table, tiles_of_the_single_pass_by_warpgroups_have_as_many_keys_as_the_others)
{
    for (int32_t dim = 1; dim <= 256; ++dim) {
        bool const has = ra_cuda_has_warpgroup_single(RA_BF16, dim);
        cr_assert_eq(has, ra_cuda_has_warpgroups(RA_BF16, dim));
        cr_assert(!ra_cuda_has_warpgroup_single(RA_F16, dim));
        cr_assert(!ra_cuda_has_warpgroup_single(RA_F32, dim));
        if (!has)
            continue;
        ra_cuda_tile const tile = ra_cuda_warpgroup_single_of(dim);
        cr_assert_eq(tile.dim, ra_cuda_dim_of(dim));
        cr_assert(ra_cuda_has_single(RA_BF16, dim, INT64_MAX));
        cr_assert_eq(tile.k_rows, ra_cuda_single_of(dim).k_rows, "tasks are of as many keys");
        cr_assert_eq(tile.warps % 4, 0);
        cr_assert_eq(tile.k_rows, 16 * tile.warps);
        cr_assert_leq(tile.warps, 8, "a vote per warp has a place");
        cr_assert_eq(tile.q_rows / RA_PANEL * (tile.dim / RA_PANEL), tile.warps / 4);
        cr_assert_eq(tile.q_rows % RA_PANEL, 0);
        cr_assert_leq(RA_CUDA_KEYS_HEAD_BYTES + RA_CUDA_LIST_BYTES + 16 * tile.q_rows,
                      RA_CUDA_SINGLE_PANELS, "tiles begin behind LSE and delta");
        cr_assert_eq(RA_CUDA_SINGLE_PANELS % RA_PANEL_BLOCK_BYTES, 0);
        cr_assert_leq(32 * tile.warps * tile.registers * tile.blocks_per_sm, REGISTERS_PER_SM);
        cr_assert_leq(tile.shared_bytes + SHARED_SYSTEM, SHARED_PER_SM_H100);
    }
}

/* Above 128 dims chunks of linear attention take more shared memory than some GPUs have. */
Test(cuda_tile_table, linear_attention_fits_every_gpu_up_to_128_dims)
{
    for (int32_t dim = 1; dim <= 256; ++dim)
        cr_assert_eq(ra_cuda_linear_tile(dim).shared_bytes <= SHARED_LEAST, dim <= 128);
}

/* ---- shared memory: tiles of 16-bit elements, in 32 banks of 4 bytes --------------------------
 */

/*
 * An access of 16 bytes per lane goes to shared memory 8 lanes at a time, and takes longer where
 * two of these need the same bank: the same eighth of 128 bytes at different addresses.
 */
enum { EIGHTHS = 8 };

static void check_eight(const int offsets[EIGHTHS], const char *what, int dim)
{
    unsigned eighths = 0;
    for (int i = 0; i < EIGHTHS; ++i)
        eighths |= 1u << offsets[i] / RA_PIECE_BYTES % EIGHTHS;
    cr_assert_eq(eighths, 0xff, "dim %d: %s meet in a bank", dim, what);
}

static const int32_t dims[] = {RA_CUDA_DIMS(LISTED)};
enum { DIMS = sizeof(dims) / sizeof(dims[0]), TILE_ROWS = 128 };

Test(cuda_fragments, pieces_of_a_tile_have_places_of_their_own)
{
    for (int d = 0; d < DIMS; ++d) {
        static char taken[TILE_ROWS * 256 / RA_PIECE];
        memset(taken, 0, sizeof(taken));
        for (int r = 0; r < TILE_ROWS; ++r)
            for (int p = 0; p < dims[d] / RA_PIECE; ++p) {
                int const at = ra_piece_offset(dims[d], r, p);
                cr_assert_eq(at % RA_PIECE_BYTES, 0);
                cr_assert(at >= 0 && at < TILE_ROWS * dims[d] * 2);
                cr_assert_eq(taken[at / RA_PIECE_BYTES]++, 0);
            }
    }
}

/* What kernels add to a lane's first offset, instead of computing another. */
Test(cuda_fragments, steps_along_the_dim_and_16_rows_are_where_the_pieces_lie)
{
    for (int d = 0; d < DIMS; ++d)
        for (int r = 0; r < 16; ++r)
            for (int p = 0; p < 2; ++p)
                for (int step = 0; step < dims[d] / 16; ++step) {
                    int const at = ra_piece_step(dims[d], ra_piece_offset(dims[d], r, p), step);
                    cr_assert_eq(at, ra_piece_offset(dims[d], r, p + 2 * step));
                    cr_assert_eq(at + 16 * dims[d] * 2,
                                 ra_piece_offset(dims[d], r + 16, p + 2 * step));
                }
}

/* As the PTX ISA places them: see wgmma_operand.h, which has it from there. */
Test(cuda_fragments, operands_of_warpgroups_are_where_panels_have_them)
{
    enum { ROWS = 128, AT = 3072 };
    for (int32_t dim = 64; dim <= 128; dim += 64)
        for (int row = 0; row < ROWS; ++row)
            for (int d = 0; d < dim; ++d) {
                uint32_t const at =
                    (uint32_t)(AT + ra_panel_offset(RA_PANEL, ROWS, row, d / RA_PIECE) +
                               d % RA_PIECE * 2);
                int const panel = d / RA_PANEL * ROWS * RA_PANEL_ROW_BYTES;
                /* Rows along the depth: 64 rows, 16 columns. */
                uint64_t const along = ra_wgmma_descriptor(
                    ra_wgmma_at(AT) + ra_wgmma_at((uint32_t)(panel + row / 64 * 64 * 128 +
                                                             d % RA_PANEL / 16 * 32)),
                    0);
                cr_assert_null(wgmma_misfit(along));
                cr_assert_eq(wgmma_element(along, false, (uint32_t)row % 64, (uint32_t)d % 16), at);
                /* And across it: 16 rows, all columns. */
                uint64_t const across = ra_wgmma_descriptor(
                    ra_wgmma_at(AT) + ra_wgmma_at((uint32_t)(row / 16 * 16 * 128)), ROWS);
                cr_assert_null(wgmma_misfit(across));
                cr_assert_eq(wgmma_element(across, true, (uint32_t)d, (uint32_t)row % 16), at);
            }
}

/* Warps that take turns of 16 columns: the same from a first piece of their own. */
Test(cuda_fragments, steps_of_warps_that_take_turns_are_where_their_pieces_lie)
{
    for (int d = 0; d < DIMS && dims[d] <= RA_CUDA_SINGLE_DIM_MOST; ++d) {
        int const dim = dims[d];
        for (int across = 1; across <= (dim % 64 == 0 ? 4 : 2); across *= 2)
            for (int warp = 0; warp < across; ++warp)
                for (int i = 0; i < dim / 16 / across; ++i)
                    for (int r = 0; r < 16; ++r) {
                        int const from = ra_piece_offset(dim, r, 2 * warp);
                        int const column = 16 * warp + ra_sum_column(across, 2 * i);
                        cr_assert_eq(ra_piece_step(dim, from, across * i),
                                     ra_piece_offset(dim, r, column / RA_PIECE));
                        cr_assert_eq(ra_sum_column(across, 2 * i + 1),
                                     ra_sum_column(across, 2 * i) + RA_PIECE);
                    }
    }
}

/* Lanes 4 r to 4 r + 3 write the pairs of a piece of row r: of scores, or of rows of output. */
static void check_stores(int width, const char *what)
{
    for (int piece = 0; piece < width / RA_PIECE; ++piece) {
        int offsets[EIGHTHS];
        for (int row = 0; row < EIGHTHS; ++row)
            offsets[row] = ra_piece_offset(width, row, piece);
        check_eight(offsets, what, width);
    }
}

Test(cuda_fragments, scores_and_outputs_are_stored_into_different_banks)
{
    check_stores(ra_cuda_single_of(128).q_rows, "scores");
    for (int d = 0; d < DIMS; ++d)
        check_stores(dims[d], "outputs");
}

static void check_ldmatrix(ra_piece_at (*at)(int lane), const char *what, int dim)
{
    for (int step = 0; step < dim / 16; ++step)
        for (int matrix = 0; matrix < 4; ++matrix) {
            int offsets[EIGHTHS];
            for (int row = 0; row < EIGHTHS; ++row) {
                ra_piece_at const first = at(8 * matrix + row);
                offsets[row] =
                    ra_piece_step(dim, ra_piece_offset(dim, first.row, first.piece), step);
            }
            check_eight(offsets, what, dim);
        }
}

/* Further 16 rows, and warps' own, are multiples of 128 bytes away: 16 rows have at least 1 KiB. */
Test(cuda_fragments, rows_that_ldmatrix_reads_together_lie_in_different_banks)
{
    for (int d = 0; d < DIMS; ++d) {
        check_ldmatrix(ra_ldmatrix_query, "queries", dims[d]);
        check_ldmatrix(ra_ldmatrix_key, "keys", dims[d]);
        check_ldmatrix(ra_ldmatrix_value, "values", dims[d]);
    }
}

static void check_copies(int32_t dim, int threads, int rows)
{
    static char copied[TILE_ROWS][256 / RA_PIECE];
    int const columns = ra_copy_columns(dim), at_once = threads / columns;
    memset(copied, 0, sizeof(copied));
    cr_assert_eq(rows % at_once, 0, "dim %d: threads copy as much as each other", dim);
    cr_assert_eq(at_once % 8, 0, "dim %d: a thread's pieces have one place in their groups", dim);
    for (int round = 0; round < dim / RA_PIECE / columns; ++round)
        for (int turn = 0; turn < rows / at_once; ++turn)
            for (int thread = 0; thread < threads; thread += EIGHTHS) {
                int offsets[EIGHTHS];
                for (int i = 0; i < EIGHTHS; ++i) {
                    ra_piece_at const at = ra_copy_at(dim, thread + i);
                    int const row = at.row + turn * at_once, piece = at.piece + round * columns;
                    offsets[i] = ra_piece_offset(dim, at.row, piece) + turn * at_once * dim * 2;
                    cr_assert_eq(offsets[i], ra_piece_offset(dim, row, piece));
                    cr_assert_eq(copied[row][piece]++, 0);
                }
                check_eight(offsets, "copies", dim);
            }
    for (int row = 0; row < rows; ++row)
        for (int piece = 0; piece < dim / RA_PIECE; ++piece)
            cr_assert_eq(copied[row][piece], 1);
}

/* Of every tile that some kernel copies. */
Test(cuda_fragments, threads_copy_every_piece_once_into_different_banks)
{
    for (int d = 0; d < DIMS; ++d) {
        ra_cuda_tile const tiles[] = {
            ra_cuda_tile_of(RA_BF16, dims[d]), ra_cuda_queries_of(RA_BF16, dims[d]),
            ra_cuda_keys_of(RA_BF16, dims[d]), ra_cuda_single_of(ra_hd_min(dims[d], 128))};
        for (int i = 0; i < (ra_cuda_has_single(RA_BF16, dims[d], INT64_MAX) ? 4 : 3); ++i) {
            check_copies(dims[d], 32 * tiles[i].warps, tiles[i].q_rows);
            check_copies(dims[d], 32 * tiles[i].warps, tiles[i].k_rows);
        }
    }
}

/* ---- fragments: against the tables of the PTX ISA -------------------------------------------- */

/* Matrix m of four, row r: lane 8 m + r gives its address. */
Test(cuda_fragments, lanes_give_the_rows_that_each_register_wants)
{
    for (int m = 0; m < 4; ++m)
        for (int r = 0; r < 8; ++r) {
            int const lane = 8 * m + r;
            /* a0: rows 0-7, elements 0-7; a1: rows 8-15; a2, a3: elements 8-15. */
            ra_piece_at const q = ra_ldmatrix_query(lane);
            cr_assert_eq(q.row, r + m % 2 * 8);
            cr_assert_eq(q.piece, m / 2);
            /* b0: keys 0-7, elements 0-7; b1: elements 8-15; then keys 8-15. */
            ra_piece_at const k = ra_ldmatrix_key(lane);
            cr_assert_eq(k.row, r + m / 2 * 8);
            cr_assert_eq(k.piece, m % 2);
            /* Transposed: b0: keys 0-7 of 8 dims, b1: keys 8-15; then the next 8 dims. */
            ra_piece_at const v = ra_ldmatrix_value(lane);
            cr_assert_eq(v.row, r + m % 2 * 8);
            cr_assert_eq(v.piece, m / 2);
        }
}
