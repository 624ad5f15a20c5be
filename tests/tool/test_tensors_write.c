/* Results that ranks write into one file, each its own rows. */
#include "comm/local_ranks.h"
#include "tool/tensor_fixture.h"
#include "tool/tensors.h"

#include <criterion/criterion.h>
#include <stdlib.h>

TestSuite(tensors_write, .init = fixture_begin, .fini = fixture_end);

enum { BATCH = 2, SEQ = 23, HEADS = 4, KV = 2, DIM = 3 };

typedef struct write_job {
    ra_config config;
    ra_rowset rows[8];
    ra_status status[8];
} write_job;

/* Bytes of a shard as the whole tensor has them: [outer][row][row_bytes]. */
static void *make_shard(const ra_rowset *rows, int tensor, int64_t outer, int64_t row_bytes)
{
    unsigned char *data = malloc((size_t)(outer * rows->row_count * row_bytes) + 1);
    for (int64_t o = 0; o < outer; ++o)
        for (int64_t i = 0; i < rows->row_count; ++i)
            for (int64_t x = 0; x < row_bytes; ++x)
                data[(o * rows->row_count + i) * row_bytes + x] =
                    fixture_byte(tensor, (o * SEQ + ra_rowset_global(rows, i)) * row_bytes + x);
    return data;
}

static int write_rank(ra_comm *comm, void *context)
{
    write_job *job = context;
    int const rank = ra_comm_rank(comm);
    const ra_rowset *rows = &job->rows[rank];
    int64_t const item = (int64_t)ra_dtype_bytes(job->config.dtype);
    void *data[5] = {
        make_shard(rows, 0, BATCH, HEADS * DIM * item), make_shard(rows, 1, BATCH * HEADS, 4),
        make_shard(rows, 2, BATCH, HEADS * DIM * item), make_shard(rows, 3, BATCH, KV * DIM * item),
        make_shard(rows, 4, BATCH, KV * DIM * item)};
    ra_result_tensors results = {0}; /* a rank without rows has no memory for them */
    if (rows->row_count > 0) {
        results.o = data[0];
        results.lse = data[1];
    }
    if (rows->row_count > 0 && job->config.backward) {
        results.dq = data[2];
        results.dk = data[3];
        results.dv = data[4];
    }
    ra_nonfinite found;
    job->status[rank] = ra_result_write(&job->config, comm, rows, &results, &found);
    for (int i = 0; i < 5; ++i)
        free(data[i]);
    return job->status[rank] != RA_OK;
}

static void expect_written(const char *path, const char *dtype, bool backward)
{
    static const char *const names[] = {"o", "lse", "dq", "dk", "dv"};
    static const int64_t shapes[][4] = {{BATCH, SEQ, HEADS, DIM},
                                        {BATCH, HEADS, SEQ, 0},
                                        {BATCH, SEQ, HEADS, DIM},
                                        {BATCH, SEQ, KV, DIM},
                                        {BATCH, SEQ, KV, DIM}};
    ra_tensor_file *file;
    cr_assert_eq(ra_tensor_file_open(path, &file), RA_OK, "%s", said.line);
    for (int i = 0; i < 5; ++i) {
        const ra_tensor_info *info = ra_tensor_file_find(file, names[i]);
        if (i > 1 && !backward) {
            cr_assert_null(info, "%s is there", names[i]);
            continue;
        }
        cr_assert_not_null(info, "%s is not there", names[i]);
        cr_assert_eq(info->dims, i == 1 ? 3 : 4);
        cr_assert_str_eq(info->dtype, i == 1 ? "F32" : dtype);
        cr_assert_eq(memcmp(info->shape, shapes[i], (size_t)info->dims * 8), 0, "%s", names[i]);
        unsigned char *data = malloc((size_t)info->bytes);
        cr_assert_eq(ra_tensor_read(file, info, 0, data, (size_t)info->bytes), RA_OK);
        for (int64_t x = 0; x < info->bytes; ++x)
            cr_assert_eq(data[x], fixture_byte(i, x), "%s byte %lld", names[i], (long long)x);
        free(data);
    }
    ra_tensor_file_close(file);
}

/* Contiguous, strided and dealt rows; more ranks than some layouts have rows for. */
static void split(write_job *job, int ranks, int kind)
{
    for (int r = 0; r < ranks; ++r) {
        int64_t const begin = SEQ * r / ranks, end = SEQ * (r + 1) / ranks;
        ra_range const all = {0, 1, SEQ}; /* the others have no row */
        ra_range contiguous = {begin, 1, end - begin};
        ra_range strided = {r, ranks, (SEQ - r + ranks - 1) / ranks};
        ra_range dealt[2] = {{end - (end - begin) / 2, 1, (end - begin) / 2},
                             {begin, 1, end - begin - (end - begin) / 2}};
        if (kind == 0)
            job->rows[r] = rowset(&contiguous, 1);
        else if (kind == 1)
            job->rows[r] = rowset(&strided, 1);
        else if (kind == 2)
            job->rows[r] = rowset(dealt, 2);
        else
            job->rows[r] = rowset(&all, r == ranks - 1 ? 1 : 0);
    }
}

static void run_write(write_job *job, int ranks, int kind, int expected_failures)
{
    split(job, ranks, kind);
    said.count = 0;
    cr_assert_eq(local_ranks_run(ranks, 30000, write_rank, job), expected_failures, "%s",
                 said.line);
    for (int r = 0; r < ranks; ++r)
        ra_rowset_fini(pool, &job->rows[r]);
}

Test(tensors_write, results_of_all_ranks_make_one_whole_file)
{
    static const char *const texts[] = {"F32", "F16", "BF16"};
    for (int dtype = RA_F32; dtype <= RA_BF16; ++dtype)
        for (int ranks = 1; ranks <= 8; ranks += 3)
            for (int kind = 0; kind < 4; ++kind) {
                write_job job = {.status = {RA_OK}};
                bool const backward = (ranks + kind) % 2 == 0;
                job.config = parse_config(
                    "shape: {batch: %d, seq: %d, heads: %d, kv_heads: %d, head_dim: %d,"
                    " dtype: %s}\njob: {backward: %s, output: %s}",
                    BATCH, SEQ, HEADS, KV, DIM, ra_dtype_name((ra_dtype)dtype),
                    backward ? "true" : "false", in_folder("out"));
                run_write(&job, ranks, kind, 0);
                cr_assert_eq(said.count, 0);
                cr_assert_eq(entries_in_folder(), 1);
                expect_written(in_folder("out"), texts[dtype], backward);
                ra_config_fini(&job.config);
            }
}

Test(tensors_write, an_output_that_cannot_be_fails_all_ranks_with_one_line)
{
    write_job job = {0};
    job.config = parse_config("shape: {batch: %d, seq: %d, heads: %d, kv_heads: %d, head_dim: %d}\n"
                              "job: {output: %s}",
                              BATCH, SEQ, HEADS, KV, DIM, in_folder("missing/out"));
    run_write(&job, 4, 0, 4);
    for (int r = 0; r < 4; ++r)
        cr_assert_eq(job.status[r], RA_ERR_IO);
    cr_assert_eq(said.count, 1);
    cr_assert_not_null(strstr(said.line, "missing/out"), "%s", said.line);
    cr_assert_eq(entries_in_folder(), 0);
    ra_config_fini(&job.config);
}
