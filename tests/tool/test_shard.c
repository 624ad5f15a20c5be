/*
 * Tensors in memory that the host does not reach: whoever forgets to copy is ended by the system.
 */
#include "tool/shard.h"

#include "support/sealed_memory.h"
#include "tool/tensor_fixture.h"
#include "tool/verify.h"

#include <criterion/criterion.h>
#include <stdlib.h>

static sealed_memory sealed;
static ra_ledger *sealed_ledger;
static ra_pool *sealed_pool;
static ra_shard_memory shards;

static void begin(void)
{
    fixture_begin();
    sealed = (sealed_memory){0};
    cr_assert_eq(ra_ledger_create(INT64_MAX, &sealed_ledger), RA_OK);
    ra_pool_config const config = {.memory = ra_memory_sealed(&sealed), .ledger = sealed_ledger};
    cr_assert_eq(ra_pool_create(&config, &sealed_pool), RA_OK);
    shards = (ra_shard_memory){.memory = config.memory, .staging = pool};
}

static void end(void)
{
    ra_pool_destroy(sealed_pool);
    ra_ledger_destroy(sealed_ledger);
    fixture_end();
}

TestSuite(shard, .init = begin, .fini = end, .timeout = 100);

static ra_block take(int64_t bytes)
{
    ra_block block;
    cr_assert_eq(ra_pool_alloc(sealed_pool, RA_MEM_QKV, (size_t)bytes, NULL, &block), RA_OK);
    return block;
}

static void give(ra_block *block)
{
    ra_pool_free(sealed_pool, NULL, block);
}

/* A copy of host bytes in sealed memory. */
static ra_block seal(const void *data, int64_t bytes)
{
    ra_block const block = take(bytes);
    cr_assert_eq(ra_memory_write(&shards.memory, NULL, block.data, data, (size_t)bytes), RA_OK);
    return block;
}

/* ---- windows --------------------------------------------------------------------------------- */

Test(shard, reading_forward_copies_every_byte_once)
{
    enum { BYTES = 10000, WINDOW = 768, STEP = 50 };
    unsigned char data[BYTES];
    for (int i = 0; i < BYTES; ++i)
        data[i] = fixture_byte(1, i);
    ra_block block = seal(data, BYTES);
    sealed.copied_bytes = sealed.longest_bytes = 0;
    ra_shard_window window = ra_shard_window_open(&shards, block.data, BYTES, WINDOW);
    cr_assert_eq(ra_shard_window_most(&window), WINDOW);
    int64_t reread = 0; /* where a step does not fit what is left of the window */
    for (int at = 0; at < BYTES; at += STEP) {
        const void *bytes;
        cr_assert_eq(ra_shard_window_read(&window, at, STEP, &bytes), RA_OK);
        cr_assert_eq(memcmp(bytes, data + at, STEP), 0, "at %d", at);
        reread += WINDOW % STEP;
    }
    cr_expect_leq(sealed.copied_bytes, BYTES + reread);
    cr_expect_eq(sealed.longest_bytes, WINDOW);
    for (int at = BYTES - 1; at >= 0; at -= 997) { /* and in any order */
        const void *bytes;
        cr_assert_eq(ra_shard_window_read(&window, at, 1, &bytes), RA_OK);
        cr_assert_eq(*(const unsigned char *)bytes, data[at]);
    }
    ra_shard_window_close(&window);
    give(&block);
}

/* What a copy that failed has left is not taken for what was there before. */
Test(shard, what_was_read_before_a_failure_is_read_again)
{
    char bytes[64];
    const void *found;
    for (int i = 0; i < 64; ++i)
        bytes[i] = (char)i;
    ra_block block = seal(bytes, 64);
    ra_shard_window window = ra_shard_window_open(&shards, block.data, 64, 16);
    cr_assert_eq(ra_shard_window_read(&window, 0, 16, &found), RA_OK);
    long const before = sealed.copies;
    sealed.fail_copy = before + 1;
    cr_assert_eq(ra_shard_window_read(&window, 32, 16, &found), RA_ERR_CUDA);
    sealed.fail_copy = 0;
    cr_assert_eq(ra_shard_window_read(&window, 0, 16, &found), RA_OK);
    cr_assert_eq(sealed.copies, before + 2);
    cr_assert_arr_eq(found, bytes, 16);
    ra_shard_window_close(&window);
    give(&block);
}

Test(shard, host_memory_is_read_where_it_lies)
{
    static const char data[] = "where it lies";
    ra_shard_memory const host = {.memory = ra_memory_host(), .staging = pool};
    const ra_shard_memory *const places[] = {NULL, &host};
    for (int i = 0; i < 2; ++i) {
        const void *bytes;
        ra_shard_window window = ra_shard_window_open(places[i], data, sizeof(data), 1);
        cr_expect_eq(ra_shard_window_most(&window), sizeof(data));
        cr_assert_eq(ra_shard_window_read(&window, 6, 7, &bytes), RA_OK);
        cr_expect_eq(bytes, data + 6);
        ra_shard_window_close(&window);
    }
    ra_ledger_snapshot now;
    ra_ledger_read(ra_pool_ledger(pool), &now);
    cr_expect_eq(now.alloc_count[RA_MEM_IO], 0);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static ra_tensor_source *open_source(ra_config *config)
{
    ra_tensor_source *source;
    cr_assert_eq(ra_tensor_source_open(config, pool, 1, &source), RA_OK, "%s", said.line);
    if (config->kv_heads == 0)
        config->kv_heads = config->heads;
    return source;
}

/* The same rows, read to host memory and to sealed memory, are the same bytes. */
static void expect_same(const ra_tensor_source *source, const ra_config *config,
                        const ra_range *ranges, int count)
{
    ra_rowset rows;
    ra_nonfinite found[2] = {{0, 0}, {0, 0}};
    cr_assert_eq(ra_rowset_init(pool, ranges, count, &rows), RA_OK);
    int64_t const batch_rows = rows.row_count + 3; /* batches lie apart */
    int64_t const row = config->heads * config->head_dim * (int64_t)ra_dtype_bytes(config->dtype);
    int64_t const bytes = config->batch * batch_rows * row;
    char *const host = calloc(1, (size_t)bytes), *const back = calloc(1, (size_t)bytes);
    ra_block block = seal(host, bytes);
    sealed.longest_bytes = 0;
    cr_assert_eq(ra_tensor_source_read(source, config, RA_TENSOR_Q, &rows, batch_rows, NULL, host,
                                       &found[0]),
                 RA_OK);
    cr_assert_eq(ra_tensor_source_read(source, config, RA_TENSOR_Q, &rows, batch_rows, &shards,
                                       block.data, &found[1]),
                 RA_OK);
    cr_expect_leq(sealed.longest_bytes, row > RA_SHARD_WINDOW_BYTES ? row : RA_SHARD_WINDOW_BYTES);
    cr_assert_eq(ra_memory_read(&shards.memory, NULL, back, block.data, (size_t)bytes), RA_OK);
    cr_expect_eq(memcmp(host, back, (size_t)bytes), 0);
    cr_expect_eq(memcmp(&found[0], &found[1], sizeof(found[0])), 0);
    give(&block);
    free(host);
    free(back);
    ra_rowset_fini(pool, &rows);
}

static void write_input(const char *path, int64_t seq, int64_t heads, int64_t dim)
{
    int64_t const shape[] = {2, seq, heads, dim};
    ra_tensor_info infos[] = {describe("q", "F16", 4, shape), describe("k", "F16", 4, shape),
                              describe("v", "F16", 4, shape)};
    write_tensors(path, infos, NULL, 3);
}

/* 9000 rows of 1 KiB are three windows a batch; pieces end within them and at their ends. */
Test(shard, inputs_come_through_windows_as_they_come_in_place)
{
    enum { SEQ = 20000 };
    static const ra_range sets[][3] = {{{0, 1, 9000}},
                                       {{1, 2, 9000}},
                                       {{9000, 1, 3000}, {0, 1, 4096}, {12000, 1, 2500}},
                                       {{19999, 1, 1}, {5, 3, 5000}, {19000, 1, 300}}};
    write_input(in_folder("in"), SEQ, 4, 128);
    for (int file = 0; file < 2; ++file) {
        ra_config config =
            file ? parse_config("job: {input: %s}", in_folder("in"))
                 : parse_config("shape: {batch: 2, seq: %d, heads: 2, head_dim: 128, dtype: f32}",
                                SEQ);
        ra_tensor_source *source = open_source(&config);
        for (size_t s = 0; s < sizeof(sets) / sizeof(sets[0]); ++s)
            expect_same(source, &config, sets[s], s < 2 ? 1 : 3);
        ra_tensor_source_close(source);
        ra_config_fini(&config);
    }
}

Test(shard, a_row_that_is_longer_than_a_window_comes_whole)
{
    static const ra_range all = {0, 1, 2};
    ra_config config = parse_config("shape: {seq: 2, heads: 4100, head_dim: 256, dtype: f32}");
    ra_tensor_source *source = open_source(&config);
    expect_same(source, &config, &all, 1);
    ra_tensor_source_close(source);
    ra_config_fini(&config);
}

/* ---- outputs and verification ---------------------------------------------------------------- */

enum { TENSORS = 5 };

/* Results of a job that are as good as any, in host memory and sealed. */
typedef struct job {
    ra_config config;
    ra_tensor_source *source;
    ra_pattern *pattern;
    ra_comm *comm;
    ra_rowset rows;
    void *host[TENSORS];
    ra_block blocks[TENSORS];
    ra_result_tensors in_host, in_sealed;
} job;

static void job_open(job *j, const ra_range *ranges, int count)
{
    const ra_config *c = &j->config;
    j->source = open_source(&j->config);
    cr_assert_eq(ra_pattern_create(&c->pattern, c->seq, c->heads, pool, &j->pattern), RA_OK);
    cr_assert_eq(ra_comm_create_self(10000, &j->comm), RA_OK);
    cr_assert_eq(ra_rowset_init(pool, ranges, count, &j->rows), RA_OK);
    int64_t const item = (int64_t)ra_dtype_bytes(c->dtype) * c->head_dim;
    int64_t const lines = c->batch * j->rows.row_count;
    int64_t const bytes[TENSORS] = {lines * c->heads * item, lines * c->heads * 4,
                                    lines * c->heads * item, lines * c->kv_heads * item,
                                    lines * c->kv_heads * item};
    for (int t = 0; t < TENSORS; ++t) {
        j->host[t] = malloc((size_t)bytes[t]);
        for (int64_t i = 0; i < bytes[t]; ++i) /* small finite numbers of any dtype */
            ((unsigned char *)j->host[t])[i] = fixture_byte(t, i) & 0x3b;
        j->blocks[t] = seal(j->host[t], bytes[t]);
    }
    j->in_host =
        (ra_result_tensors){j->host[0], j->host[1], j->host[2], j->host[3], j->host[4], NULL};
    j->in_sealed = (ra_result_tensors){j->blocks[0].data, j->blocks[1].data, j->blocks[2].data,
                                       j->blocks[3].data, j->blocks[4].data, &shards};
}

static void job_close(job *j)
{
    for (int t = 0; t < TENSORS; ++t) {
        free(j->host[t]);
        give(&j->blocks[t]);
    }
    ra_rowset_fini(pool, &j->rows);
    ra_comm_destroy(j->comm);
    ra_pattern_destroy(j->pattern);
    ra_tensor_source_close(j->source);
    ra_config_fini(&j->config);
}

static char *file_bytes(const char *path, long *count)
{
    FILE *file = fopen(path, "rb");
    cr_assert_not_null(file, "%s", path);
    cr_assert_eq(fseek(file, 0, SEEK_END), 0);
    *count = ftell(file);
    rewind(file);
    char *bytes = malloc((size_t)*count);
    cr_assert_eq(fread(bytes, 1, (size_t)*count, file), (size_t)*count);
    fclose(file);
    return bytes;
}

/* o of the one is 9 MiB, three windows; the rows of the other are written one by one. */
Test(shard, outputs_are_the_same_files)
{
    static const ra_range sets[] = {{0, 1, 4500}, {0, 2, 2250}};
    for (int s = 0; s < 2; ++s) {
        long counts[2];
        char *files[2];
        job j = {.config = parse_config("shape: {batch: 2, seq: 4500, heads: 4, kv_heads: 2,"
                                        " head_dim: 64, dtype: f32}\njob: {output: %s}",
                                        in_folder("out"))};
        job_open(&j, &sets[s], 1);
        const ra_result_tensors *const results[] = {&j.in_host, &j.in_sealed};
        for (int i = 0; i < 2; ++i) {
            ra_nonfinite found;
            cr_assert_eq(ra_result_write(&j.config, j.comm, &j.rows, results[i], &found), RA_OK,
                         "%s", said.line);
            files[i] = file_bytes(in_folder("out"), &counts[i]);
        }
        cr_assert_eq(counts[0], counts[1]);
        cr_expect_eq(memcmp(files[0], files[1], (size_t)counts[0]), 0);
        free(files[0]);
        free(files[1]);
        job_close(&j);
    }
}

static ra_status verify_in(const job *j, const ra_result_tensors *results, ra_errors *errors)
{
    ra_block work;
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_IO, (size_t)ra_verify_bytes(&j->config), NULL, &work),
                 RA_OK);
    ra_status const status = ra_verify(&j->config, j->pattern, j->comm, j->source, true, &j->rows,
                                       results, work.data, errors);
    ra_pool_free(pool, NULL, &work);
    return status;
}

/* The first with everything from inputs, the second with lse and o of the run. */
Test(shard, verification_finds_the_same_errors)
{
    static const char *const texts[] = {
        "shape: {batch: 2, seq: 300, heads: 4, kv_heads: 2, head_dim: 16, dtype: f16}",
        "shape: {seq: 4096, heads: 2, kv_heads: 1, head_dim: 32, dtype: f32}"};
    for (int t = 0; t < 2; ++t) {
        ra_errors errors[2];
        job j = {.config = parse_config("%s\njob: {backward: true}", texts[t])};
        ra_range const all = {0, 1, j.config.seq};
        job_open(&j, &all, 1);
        cr_assert_eq(verify_in(&j, &j.in_host, &errors[0]), RA_OK);
        cr_assert_eq(verify_in(&j, &j.in_sealed, &errors[1]), RA_OK);
        cr_expect_eq(errors[0].lse_from_run, t == 1);
        cr_expect(errors[0].o > 0 && errors[0].o == errors[1].o);
        cr_expect(errors[0].lse > 0 && errors[0].lse == errors[1].lse);
        cr_expect(errors[0].dq > 0 && errors[0].dq == errors[1].dq);
        cr_expect(errors[0].dk > 0 && errors[0].dk == errors[1].dk);
        cr_expect(errors[0].dv > 0 && errors[0].dv == errors[1].dv);
        job_close(&j);
    }
}

/* ---- copies that fail ------------------------------------------------------------------------ */

static ra_status read_it(const job *j)
{
    ra_status status = RA_OK;
    for (int t = 0; t < 2 && status == RA_OK; ++t)
        status = ra_tensor_source_read(j->source, &j->config, RA_TENSOR_Q, &j->rows,
                                       j->rows.row_count, &shards, j->blocks[0].data, NULL);
    return status;
}

static ra_status write_it(const job *j)
{
    ra_nonfinite found;
    return ra_result_write(&j->config, j->comm, &j->rows, &j->in_sealed, &found);
}

static ra_status verify_it(const job *j)
{
    ra_errors errors;
    return verify_in(j, &j->in_sealed, &errors);
}

Test(shard, any_copy_that_fails_ends_it_with_one_line)
{
    static ra_status (*const tries[])(const job *) = {read_it, write_it, verify_it};
    static const ra_range all = {0, 1, 40};
    job j = {.config = parse_config("shape: {seq: 40, heads: 2, kv_heads: 1, head_dim: 8,"
                                    " dtype: f32}\njob: {output: %s, backward: true}",
                                    in_folder("out"))};
    job_open(&j, &all, 1);
    for (int t = 0; t < 3; ++t) {
        long n = 1;
        for (ra_status status = RA_ERR_CUDA; status != RA_OK; ++n) {
            sealed.copies = 0;
            sealed.fail_copy = n;
            said.count = 0;
            status = tries[t](&j);
            bool const failed = sealed.copies >= n;
            cr_assert_eq(status, failed ? RA_ERR_CUDA : RA_OK, "copy %ld", n);
            cr_assert_eq(said.count, failed ? 1 : 0, "copy %ld: %s", n, said.line);
            cr_assert_eq(entries_in_folder(), t == 1 && !failed ? 1 : t == 2 ? 1 : 0);
        }
        cr_expect_geq(n, t == 0 ? 3 : 6); /* each tensor was copied */
        sealed.fail_copy = 0;
    }
    job_close(&j);
}
