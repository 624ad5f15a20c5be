#include "tool/tensors.h"

#include "tool/tensor_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(tensors, .init = fixture_begin, .fini = fixture_end);

/* q [2,seq,heads,dim], k and v [2,seq,heads/2,dim], dout like q. */
static void write_inputs(const char *path, const char *dtype, int64_t seq, int64_t heads,
                         int64_t dim)
{
    int64_t const q[] = {2, seq, heads, dim}, k[] = {2, seq, heads / 2, dim};
    ra_tensor_info infos[4] = {describe("q", dtype, 4, q), describe("k", dtype, 4, k),
                               describe("v", dtype, 4, k), describe("do", dtype, 4, q)};
    write_tensors(path, infos, NULL, 4);
}

static ra_tensor_source *open_source(ra_config *config)
{
    ra_tensor_source *source;
    cr_assert_eq(ra_tensor_source_open(config, pool, 1, &source), RA_OK, "%s", said.line);
    return source;
}

/* Every byte of the shard must be the byte that the file has at that row's place. */
static void expect_rows(const ra_tensor_source *source, const ra_config *config,
                        ra_tensor_name name, const ra_rowset *rows)
{
    int32_t const heads =
        name == RA_TENSOR_Q || name == RA_TENSOR_DO ? config->heads : config->kv_heads;
    int64_t const row_bytes = heads * config->head_dim * (int64_t)ra_dtype_bytes(config->dtype);
    unsigned char *data = malloc((size_t)(config->batch * rows->row_count * row_bytes) + 1);
    data[config->batch * rows->row_count * row_bytes] = 0xa5;
    cr_assert_eq(
        ra_tensor_source_read(source, config, name, rows, rows->row_count, NULL, data, NULL), RA_OK,
        "%s", said.line);
    for (int64_t b = 0; b < config->batch; ++b)
        for (int64_t i = 0; i < rows->row_count; ++i) {
            int64_t const from = (b * config->seq + ra_rowset_global(rows, i)) * row_bytes;
            const unsigned char *row = data + (b * rows->row_count + i) * row_bytes;
            for (int64_t x = 0; x < row_bytes; ++x)
                if (row[x] != fixture_byte(name, from + x))
                    cr_assert_fail("batch %lld local row %lld byte %lld", (long long)b,
                                   (long long)i, (long long)x);
        }
    cr_assert_eq(data[config->batch * rows->row_count * row_bytes], 0xa5, "wrote past the end");
    free(data);
}

Test(tensors, every_kind_of_row_set_reads_its_rows)
{
    write_inputs(in_folder("in"), "BF16", 50, 4, 6);
    ra_config config = parse_config("job: {input: %s, backward: true}", in_folder("in"));
    ra_tensor_source *source = open_source(&config);
    cr_assert_eq(config.batch, 2);
    cr_assert_eq(config.seq, 50);
    cr_assert_eq(config.heads, 4);
    cr_assert_eq(config.kv_heads, 2);
    cr_assert_eq(config.head_dim, 6);
    cr_assert_eq(config.dtype, RA_BF16);
    static const ra_range sets[][4] = {
        {{0, 1, 50}},                                /* all */
        {{7, 1, 1}},                                 /* one */
        {{2, 3, 16}},                                /* strided */
        {{0, 1, 10}, {10, 1, 5}, {15, 1, 35}},       /* coalesced */
        {{40, 1, 10}, {0, 1, 10}},                   /* out of order */
        {{5, 1, 10}, {35, 1, 10}},                   /* with a gap, as of zigzag */
        {{1, 2, 10}, {21, 1, 4}, {25, 5, 5}},        /* mixed */
        {{3, 9, 1}, {4, 7, 1}, {5, 1, 3}, {8, 2, 3}} /* strides of single rows mean nothing */
    };
    for (size_t s = 0; s < sizeof(sets) / sizeof(sets[0]); ++s) {
        ra_rowset rows = rowset(sets[s], 4);
        for (int name = RA_TENSOR_Q; name <= RA_TENSOR_DO; ++name)
            expect_rows(source, &config, (ra_tensor_name)name, &rows);
        ra_rowset_fini(pool, &rows);
    }
    ra_rowset const none = {0};
    expect_rows(source, &config, RA_TENSOR_K, &none);
    ra_tensor_source_close(source);
    ra_config_fini(&config);
}

/* Rows with gaps that pass the staging block's 8 MiB, and rows longer than are staged. */
Test(tensors, strided_rows_of_any_length_are_read_in_bounded_memory)
{
    static const int64_t shapes[][3] = {{20000, 2, 128}, {60, 64, 256}};
    for (int s = 0; s < 2; ++s) {
        write_inputs(in_folder("in"), "F32", shapes[s][0], shapes[s][1], shapes[s][2]);
        ra_config config = parse_config("job: {input: %s}", in_folder("in"));
        ra_tensor_source *source = open_source(&config);
        ra_range const range = {1, 3, shapes[s][0] / 3};
        ra_rowset rows = rowset(&range, 1);
        expect_rows(source, &config, RA_TENSOR_Q, &rows);
        ra_ledger_snapshot now;
        ra_ledger_read(ra_pool_ledger(pool), &now);
        cr_assert_leq(now.peak_bytes[RA_MEM_IO], (8 << 20) + 4096);
        ra_rowset_fini(pool, &rows);
        ra_tensor_source_close(source);
        ra_config_fini(&config);
    }
}

/* A file that has become shorter since it was opened. */
Test(tensors, rows_that_cannot_be_read_leave_no_memory_taken)
{
    static const ra_range sets[] = {{1, 3, 20}, {0, 1, 60}};
    for (int i = 0; i < 2; ++i) {
        write_inputs(in_folder("in"), "F32", 60, 4, 16);
        ra_config config = parse_config("job: {input: %s}", in_folder("in"));
        ra_tensor_source *source = open_source(&config);
        ra_rowset rows = rowset(&sets[i], 1);
        float data[2 * 60 * 4 * 16];
        cr_assert_eq(truncate(in_folder("in"), 1000), 0);
        cr_expect_eq(ra_tensor_source_read(source, &config, RA_TENSOR_Q, &rows, rows.row_count,
                                           NULL, data, NULL),
                     RA_ERR_IO);
        ra_ledger_snapshot now;
        ra_ledger_read(ra_pool_ledger(pool), &now);
        cr_expect_eq(now.current_bytes[RA_MEM_IO], 0);
        ra_rowset_fini(pool, &rows);
        ra_tensor_source_close(source);
        ra_config_fini(&config);
    }
}

/* The file's bytes are arbitrary bits, so NaN is compared as such. */
Test(tensors, rows_in_float64_are_the_stored_values)
{
    static const char *const dtypes[] = {"F32", "F16", "BF16"};
    for (int t = 0; t < 4; ++t) {
        bool const file = t < 3;
        if (file)
            write_inputs(in_folder("in"), dtypes[t], 40, 4, 5);
        ra_config config =
            file ? parse_config("job: {input: %s}", in_folder("in"))
                 : parse_config("shape: {batch: 2, seq: 40, heads: 4, kv_heads: 2, head_dim: 5,"
                                " dtype: f16}");
        ra_tensor_source *source = open_source(&config);
        ra_range const all = {0, 1, 40};
        ra_rowset rows = rowset(&all, 1);
        float data[2 * 40 * 2 * 5];
        double values[40 * 5];
        char staging[12 * 2 * 5 * 4];
        cr_assert_eq(ra_tensor_source_read(source, &config, RA_TENSOR_V, &rows, rows.row_count,
                                           NULL, data, NULL),
                     RA_OK);
        for (int64_t b = 0; b < 2; ++b)
            for (int32_t h = 0; h < 2; ++h)
                for (int64_t count = 1; count <= 37; count += 3) {
                    /* Room for no row up to 12 of them. */
                    ra_tensor_staging const some = {staging, count / 3 * 2 * 5 * 4};
                    cr_assert_eq(ra_tensor_source_rows(source, &config, RA_TENSOR_V, b, h, 3, count,
                                                       some, values),
                                 RA_OK);
                    for (int64_t x = 0; x < count * 5; ++x) {
                        int64_t const at = ((b * 40 + 3 + x / 5) * 2 + h) * 5 + x % 5;
                        double const want = (double)ra_dtype_load(config.dtype, data, at);
                        cr_assert(values[x] == want || (isnan(values[x]) && isnan(want)));
                    }
                }
        ra_rowset_fini(pool, &rows);
        ra_tensor_source_close(source);
        ra_config_fini(&config);
    }
}

/* A shard of any rank is a part of the whole, in every dtype. */
Test(tensors, random_rows_are_the_same_in_any_row_set)
{
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    for (int t = 0; t < 3; ++t) {
        ra_config config =
            parse_config("shape: {batch: 2, seq: 30, heads: 2, head_dim: 7, dtype: %s}", dtypes[t]);
        config.kv_heads = 2;
        ra_tensor_source *source = open_source(&config);
        size_t const item = ra_dtype_bytes(config.dtype), row_bytes = 2 * 7 * item;
        ra_range const all = {0, 1, 30}, part = {5, 4, 6};
        ra_rowset whole_rows = rowset(&all, 1), part_rows = rowset(&part, 1);
        char whole[2 * 30 * 2 * 7 * 4], some[2 * 6 * 2 * 7 * 4];
        cr_assert_eq(ra_tensor_source_read(source, &config, RA_TENSOR_Q, &whole_rows,
                                           whole_rows.row_count, NULL, whole, NULL),
                     RA_OK);
        cr_assert_eq(ra_tensor_source_read(source, &config, RA_TENSOR_Q, &part_rows,
                                           part_rows.row_count, NULL, some, NULL),
                     RA_OK);
        for (size_t b = 0; b < 2; ++b)
            for (size_t i = 0; i < 6; ++i)
                cr_assert_eq(memcmp(some + (b * 6 + i) * row_bytes,
                                    whole + (b * 30 + 5 + 4 * i) * row_bytes, row_bytes),
                             0);
        ra_rowset_fini(pool, &part_rows);
        ra_rowset_fini(pool, &whole_rows);
        ra_tensor_source_close(source);
        ra_config_fini(&config);
    }
}

/* Values half way between two are among so many. */
Test(tensors, random_rows_in_bf16_are_those_in_f32_rounded_to_the_nearest_even)
{
    enum { COUNT = 1 << 22 };
    static float exact[COUNT];
    static uint16_t rounded[COUNT];
    static const char shape[] = "shape: {seq: 16384, heads: 1, head_dim: 256, dtype: %s}";
    ra_config config = parse_config(shape, "f32"), narrow = parse_config(shape, "bf16");
    ra_tensor_source *source = open_source(&config), *narrow_source = open_source(&narrow);
    ra_range const all = {0, 1, COUNT / 256};
    ra_rowset rows = rowset(&all, 1);
    cr_assert_eq(ra_tensor_source_read(source, &config, RA_TENSOR_K, &rows, rows.row_count, NULL,
                                       exact, NULL),
                 RA_OK);
    cr_assert_eq(ra_tensor_source_read(narrow_source, &narrow, RA_TENSOR_K, &rows, rows.row_count,
                                       NULL, rounded, NULL),
                 RA_OK);
    int64_t to_even = 0;
    for (int64_t i = 0; i < COUNT; ++i) {
        uint16_t wanted;
        uint32_t bits;
        memcpy(&bits, &exact[i], sizeof(bits));
        to_even += (bits & 0x1ffffu) == 0x8000u;
        ra_dtype_store(RA_BF16, &wanted, 0, exact[i]);
        cr_assert_eq(rounded[i], wanted, "%a", (double)exact[i]);
    }
    cr_expect_gt(to_even, 0);
    ra_rowset_fini(pool, &rows);
    ra_tensor_source_close(narrow_source);
    ra_tensor_source_close(source);
    ra_config_fini(&narrow);
    ra_config_fini(&config);
}

/* FNV-1a. */
static uint64_t fingerprint(const unsigned char *data, size_t bytes)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; ++i)
        hash = (hash ^ data[i]) * 0x100000001b3u;
    return hash;
}

/* 101 rows in pieces, one of them of a single row, and fewer rows than threads: whatever is drawn
   by how many, a seed's values are the same; and, where the compiler rounds each product, those
   that it has always had. */
Test(tensors, random_rows_are_the_same_by_any_number_of_threads)
{
    static const struct {
        const char *dtype;
        unsigned long long seed;
        uint64_t fingerprint;
    } cases[] = {{"f32", 1, 0xffa5a7c085d1c28b},
                 {"f16", 1, 0x66a6fc3f18e6cfe0},
                 {"bf16", 1, 0xfe8c9a677c31ab9a},
                 {"bf16", 12345678901, 0x98b1cf6362a9a8c8}};
    static const ra_range pieces[] = {{3, 1, 40}, {900, 1, 1}, {50, 7, 60}};
    static const int threads[] = {1, 2, 3, 7, 202};
#if defined(__x86_64__) && !defined(__FMA__)
    bool const rounds = true;
#else
    bool const rounds = false;
#endif
    ra_rowset rows = rowset(pieces, 3);
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); ++c) {
        ra_config config = parse_config("shape: {batch: 2, seq: 1000, heads: 3, kv_heads: 1,"
                                        " head_dim: 17, dtype: %s}\njob: {seed: %llu}",
                                        cases[c].dtype, cases[c].seed);
        size_t const bytes = 2 * 101 * 3 * 17 * ra_dtype_bytes(config.dtype);
        unsigned char *data = malloc(bytes);
        uint64_t first = 0;
        for (size_t t = 0; t < sizeof(threads) / sizeof(threads[0]); ++t) {
            ra_tensor_source *source;
            cr_assert_eq(ra_tensor_source_open(&config, pool, threads[t], &source), RA_OK);
            memset(data, 0xff, bytes);
            cr_assert_eq(ra_tensor_source_read(source, &config, RA_TENSOR_DO, &rows, rows.row_count,
                                               NULL, data, NULL),
                         RA_OK);
            uint64_t const found = fingerprint(data, bytes);
            first = t == 0 ? found : first;
            cr_assert_eq(found, rounds ? cases[c].fingerprint : first, "%s, %d threads",
                         cases[c].dtype, threads[t]);
            ra_tensor_source_close(source);
        }
        free(data);
        ra_config_fini(&config);
    }
    ra_rowset_fini(pool, &rows);
}

/* ---- inputs that are refused ----------------------------------------------------------------- */

enum { Q, K, V, DO, BLOCKS, TENSORS };

/* Well-formed inputs of 10 tokens, one of which a test spoils. */
static void good_infos(ra_tensor_info infos[TENSORS])
{
    int64_t const q[] = {1, 10, 4, 8}, k[] = {1, 10, 2, 8}, pairs[] = {2, 2};
    infos[Q] = describe("q", "F32", 4, q);
    infos[K] = describe("k", "F32", 4, k);
    infos[V] = describe("v", "F32", 4, k);
    infos[DO] = describe("do", "F32", 4, q);
    infos[BLOCKS] = describe("blocks", "I32", 2, pairs);
}

static void opens(ra_tensor_info *infos, const int32_t *pairs, const char *yaml, ra_status expected,
                  const char *because, const char *tensor)
{
    int32_t padded[16] = {0}; /* a spoilt shape may ask for more */
    memcpy(padded, pairs, 4 * sizeof(*pairs));
    const void *const data[TENSORS] = {[BLOCKS] = padded};
    write_tensors(in_folder("in"), infos, data, TENSORS);
    ra_config config = parse_config("job: {input: %s, backward: true}\n"
                                    "pattern: {blocks: {size: 4, kind: list}}\n%s",
                                    in_folder("in"), yaml);
    ra_tensor_source *source = NULL;
    said.count = 0;
    ra_status const status = ra_tensor_source_open(&config, pool, 1, &source);
    cr_assert_eq(status, expected, "%s: %s", because, said.line);
    cr_assert_eq(said.count, expected != RA_OK);
    if (expected != RA_OK) {
        cr_assert_not_null(strstr(said.line, because), "%s: said '%s'", because, said.line);
        cr_assert_not_null(strstr(said.line, tensor), "%s: said '%s'", tensor, said.line);
        cr_assert_not_null(strstr(said.line, folder), "said '%s'", said.line);
    } else {
        cr_assert_eq(config.pattern.block_pair_count, infos[BLOCKS].shape[0]);
        cr_assert_eq(memcmp(config.pattern.block_pairs, pairs, 16), 0);
        ra_tensor_source_close(source);
    }
    ra_config_fini(&config);
}

static const int32_t good_pairs[4] = {0, 0, 2, 1};

#define SPOILED(because, tensor, spoil)                                                            \
    do {                                                                                           \
        ra_tensor_info infos[TENSORS];                                                             \
        good_infos(infos);                                                                         \
        spoil;                                                                                     \
        opens(infos, good_pairs, "", RA_ERR_IO, because, tensor);                                  \
    } while (0)

Test(tensors, refuses_inputs_that_do_not_fit_together)
{
    ra_tensor_info good[TENSORS];
    good_infos(good);
    opens(good, good_pairs, "", RA_OK, "good inputs", "");
    SPOILED("is missing", "'q'", infos[Q].name[0] = 'x');
    SPOILED("is missing", "'v'", infos[V].name[0] = 'x');
    SPOILED("is missing", "'do'", infos[DO].name[0] = 'x');
    SPOILED("is missing", "'blocks'", infos[BLOCKS].name[0] = 'x');
    SPOILED("its dtype is I32", "'k'", strcpy(infos[K].dtype, "I32"));
    SPOILED("its dtype is F16", "'v'", strcpy(infos[V].dtype, "F16"));
    SPOILED("3 dimensions", "'q'", infos[Q].dims = 3);
    SPOILED("no elements", "'q'", infos[Q].shape[1] = 0);
    SPOILED("its seq is 9, that of 'q' is 10", "'k'", infos[K].shape[1] = 9);
    SPOILED("its batch is 2", "'v'", infos[V].shape[0] = 2);
    SPOILED("its head_dim is 4", "'do'", infos[DO].shape[3] = 4);
    SPOILED("its heads is 4, that of 'k' is 2", "'v'", infos[V].shape[2] = 4);
    SPOILED("do not divide", "'k'", infos[K].shape[2] = infos[V].shape[2] = 3);
    SPOILED("do not divide", "'k'", infos[K].shape[2] = infos[V].shape[2] = 8);
    SPOILED("257, more than 256", "'q'", infos[Q].shape[3] = 257);
    SPOILED("its heads is 65537, more than 65536", "'q'", infos[Q].shape[2] = 65537);
    SPOILED("its batch is 1048577, more than 1048576", "'q'",
            (infos[Q].shape[0] = 1048577, infos[Q].shape[1] = 1));
    SPOILED("not I32 of shape [n, 2]", "'blocks'", infos[BLOCKS].shape[1] = 3);
    SPOILED("not I32 of shape [n, 2]", "'blocks'", strcpy(infos[BLOCKS].dtype, "I64"));
}

/* Most of the file is a hole, which takes nothing on the disk. */
Test(tensors, refuses_more_tokens_than_shape_seq_may_be)
{
    static const char head[] = "{\"q\":{\"dtype\":\"F16\",\"shape\":[1,2147483648,1,1],"
                               "\"data_offsets\":[0,4294967296]},"
                               "\"k\":{\"dtype\":\"F16\",\"shape\":[1,2147483648,1,1],"
                               "\"data_offsets\":[4294967296,8589934592]},"
                               "\"v\":{\"dtype\":\"F16\",\"shape\":[1,2147483648,1,1],"
                               "\"data_offsets\":[8589934592,12884901888]}}";
    uint64_t const length = sizeof(head) - 1;
    ra_tensor_source *source;
    FILE *file = fopen(in_folder("in"), "wb");
    cr_assert_not_null(file);
    fwrite(&length, sizeof(length), 1, file);
    fputs(head, file);
    fflush(file);
    cr_assert_eq(ftruncate(fileno(file), (off_t)(8 + length + INT64_C(12884901888))), 0);
    cr_assert_eq(fclose(file), 0);
    ra_config config = parse_config("job: {input: %s}", in_folder("in"));
    cr_assert_eq(ra_tensor_source_open(&config, pool, 1, &source), RA_ERR_IO);
    cr_assert_eq(said.count, 1);
    cr_assert_not_null(strstr(said.line, "its seq is 2147483648, more than 2147483647"),
                       "said '%s'", said.line);
    ra_config_fini(&config);
}

Test(tensors, refuses_block_pairs_that_name_no_block)
{
    ra_tensor_info infos[TENSORS];
    good_infos(infos); /* 10 tokens in blocks of 4: blocks 0 to 2 */
    static const int32_t bad[][4] = {
        {0, 0, 3, 0}, {0, 0, 0, 3}, {-1, 0, 0, 0}, {0, INT32_MIN, 0, 0}};
    for (int i = 0; i < 4; ++i)
        opens(infos, bad[i], "", RA_ERR_IO, "there are 3 blocks", "'blocks'");
    opens(infos, bad[0], "", RA_ERR_IO, "pair 1 is [3, 0]", "'blocks'");
}

Test(tensors, refuses_keys_that_contradict_the_file)
{
    ra_tensor_info infos[TENSORS];
    good_infos(infos);
    opens(infos, good_pairs,
          "shape: {batch: 1, seq: 10, heads: 4, kv_heads: 2, head_dim: 8, dtype: f32}", RA_OK,
          "agreeing keys", "");
    opens(infos, good_pairs, "shape: {kv_heads: auto}", RA_OK, "auto", "");
    opens(infos, good_pairs, "shape: {batch: 2}", RA_ERR_IO, "shape.batch is 2", "has 1");
    opens(infos, good_pairs, "shape: {seq: 11}", RA_ERR_IO, "shape.seq is 11", "'q'");
    opens(infos, good_pairs, "shape: {heads: 8}", RA_ERR_IO, "shape.heads is 8", "has 4");
    opens(infos, good_pairs, "shape: {kv_heads: 4}", RA_ERR_IO, "shape.kv_heads is 4", "'k'");
    opens(infos, good_pairs, "shape: {head_dim: 16}", RA_ERR_IO, "shape.head_dim is 16", "'q'");
    opens(infos, good_pairs, "shape: {dtype: bf16}", RA_ERR_IO, "shape.dtype is bf16", "f32");
}

/* ---- NaN and Inf ----------------------------------------------------------------------------- */

/* By more threads than there are elements, too, and none is counted twice. */
Test(tensors, counts_nan_and_inf_of_every_dtype)
{
    uint32_t const f32[] = {0x7f800000, 0xff800000, 0x7f800001, 0xffc00000, 0x7f7fffff, 0, 1};
    uint16_t const f16[] = {0x7c00, 0xfc00, 0x7c01, 0xfe00, 0x7bff, 0x8000, 1};
    uint16_t const bf16[] = {0x7f80, 0xff80, 0x7f81, 0xffc0, 0x7f7f, 0x8000, 0x7c01};
    const void *const data[] = {[RA_F32] = f32, [RA_F16] = f16, [RA_BF16] = bf16};
    for (int dtype = RA_F32; dtype <= RA_BF16; ++dtype)
        for (int threads = 1; threads <= 9; threads += 2) {
            ra_nonfinite found = {.nan_count = 3, .inf_count = 5}; /* of what came before */
            ra_tensor_count_nonfinite((ra_dtype)dtype, data[dtype], 7, threads, &found);
            cr_assert_eq(found.nan_count, 3 + 2);
            cr_assert_eq(found.inf_count, 5 + 2);
            ra_tensor_count_nonfinite((ra_dtype)dtype, data[dtype], 0, threads, &found);
            cr_assert_eq(found.nan_count + found.inf_count, 8 + 4);
        }
}
