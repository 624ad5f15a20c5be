/* Files may take long: the other ranks hear of every piece that is read, drawn, written, flushed.
 */
#include "tool/tensor_fixture.h"
#include "tool/tensors.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <sys/types.h>

/* q and o have rows of 64 KiB and 75 MiB in all, k and v have rows of 8 KiB. */
enum { SEQ = 1200, HEADS = 64, KV = 8, DIM = 256, Q_ROW = HEADS * DIM * 4, K_ROW = KV * DIM * 4 };

static ra_comm *comm;
static int beats;
/* Bytes that went through a call of the system, and those since the last beat, at most. */
static int64_t read_bytes, written_bytes, flushed_bytes, silent_bytes, silent_most;

static void pass(int64_t *counter, int64_t bytes)
{
    *counter += bytes;
    silent_bytes += bytes;
    silent_most = silent_bytes > silent_most ? silent_bytes : silent_most;
}

void __wrap_ra_comm_beat(ra_comm *told);
void __wrap_ra_comm_beat(ra_comm *told)
{
    cr_assert_eq(told, comm);
    beats++;
    silent_bytes = 0;
}

ssize_t __real_pread(int fd, void *data, size_t bytes, off_t offset);
ssize_t __wrap_pread(int fd, void *data, size_t bytes, off_t offset);
ssize_t __wrap_pread(int fd, void *data, size_t bytes, off_t offset)
{
    pass(&read_bytes, (int64_t)bytes);
    return __real_pread(fd, data, bytes, offset);
}

ssize_t __real_pwrite(int fd, const void *data, size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    pass(&written_bytes, (int64_t)bytes);
    return __real_pwrite(fd, data, bytes, offset);
}

int __wrap_sync_file_range(int fd, off_t offset, off_t bytes, unsigned flags);
int __wrap_sync_file_range(int fd, off_t offset, off_t bytes, unsigned flags)
{
    (void)fd;
    cr_expect_eq(offset, flushed_bytes, "a gap");
    cr_expect_neq(flags, 0);
    pass(&flushed_bytes, bytes);
    return 0;
}

/* What fsync has to do is what no piece was told of. */
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    (void)fd;
    cr_expect_eq(silent_bytes, 0);
    return 0;
}

static void count_anew(void)
{
    beats = 0;
    read_bytes = written_bytes = flushed_bytes = silent_bytes = silent_most = 0;
}

static void begin(void)
{
    fixture_begin();
    cr_assert_eq(ra_comm_create_self(1000, &comm), RA_OK);
}

static void end(void)
{
    ra_comm_destroy(comm);
    fixture_end();
}

TestSuite(file_beats, .init = begin, .fini = end);

/* A file of holes. */
static void make_inputs(void)
{
    int64_t const q[] = {1, SEQ, HEADS, DIM}, k[] = {1, SEQ, KV, DIM};
    ra_tensor_info infos[] = {describe("q", "F32", 4, q), describe("k", "F32", 4, k),
                              describe("v", "F32", 4, k)};
    ra_tensor_writer *writer;
    cr_assert_eq(ra_tensor_writer_open(in_folder("in"), "1", true, infos, 3, &writer), RA_OK, "%s",
                 said.line);
    count_anew(); /* its header was written in silence */
    cr_assert_eq(ra_tensor_writer_rename(writer), RA_OK, "%s", said.line);
    ra_tensor_writer_destroy(writer);
}

static ra_tensor_source *open_source(ra_config *config)
{
    ra_tensor_source *source;
    cr_assert_eq(ra_tensor_source_open(config, pool, 1, &source), RA_OK, "%s", said.line);
    cr_assert_eq(ra_tensor_source_agree(source, comm), RA_OK);
    count_anew();
    return source;
}

static void read_rows(const ra_tensor_source *source, const ra_config *config, ra_tensor_name name,
                      ra_range range)
{
    ra_rowset rows = rowset(&range, 1);
    void *const data = malloc((size_t)range.count * Q_ROW);
    count_anew();
    cr_assert_eq(
        ra_tensor_source_read(source, config, name, &rows, rows.row_count, NULL, data, NULL), RA_OK,
        "%s", said.line);
    free(data);
    ra_rowset_fini(pool, &rows);
}

Test(file_beats, come_with_every_piece_that_is_read)
{
    make_inputs();
    ra_config config = parse_config("job: {input: %s}", in_folder("in"));
    ra_tensor_source *const source = open_source(&config);
    read_rows(source, &config, RA_TENSOR_Q, (ra_range){0, 1, SEQ});
    cr_expect_eq(read_bytes, (int64_t)SEQ * Q_ROW);
    cr_expect_leq(silent_most, RA_TENSOR_PIECE_BYTES);
    read_rows(source, &config, RA_TENSOR_Q, (ra_range){0, 2, SEQ / 2}); /* row by row */
    cr_expect_eq(read_bytes, (int64_t)SEQ / 2 * Q_ROW);
    cr_expect_eq(silent_most, Q_ROW);
    read_rows(source, &config, RA_TENSOR_K, (ra_range){0, 2, SEQ / 2}); /* with the gaps */
    cr_expect_gt(read_bytes, RA_TENSOR_STAGING_BYTES);
    cr_expect_leq(silent_most, RA_TENSOR_STAGING_BYTES);
    ra_tensor_source_close(source);
    ra_config_fini(&config);
}

/* Verification asks for rows of a head, again and again. */
Test(file_beats, come_with_every_piece_that_is_verified)
{
    static double values[4 * DIM];
    static char room[4 * Q_ROW];
    make_inputs();
    for (int drawn = 0; drawn < 2; drawn++) {
        ra_config config =
            drawn ? parse_config("shape: {seq: %d, head_dim: %d, dtype: f32}", SEQ, DIM)
                  : parse_config("job: {input: %s}", in_folder("in"));
        ra_tensor_source *const source = open_source(&config);
        for (int i = 1; i <= 3; i++) {
            ra_tensor_staging const staging = {room, sizeof(room)};
            cr_assert_eq(ra_tensor_source_rows(source, &config, RA_TENSOR_Q, 0, 0, 4 * i, 4,
                                               staging, values),
                         RA_OK);
            cr_expect_eq(beats, i);
        }
        ra_tensor_source_close(source);
        ra_config_fini(&config);
    }
}

Test(file_beats, come_with_every_piece_that_is_drawn)
{
    enum { ROWS = 2 * (RA_TENSOR_PIECE_BYTES / Q_ROW) + 1 };
    ra_config config = parse_config("shape: {seq: %d, heads: %d, kv_heads: %d, head_dim: %d,"
                                    " dtype: f32}",
                                    SEQ, HEADS, KV, DIM);
    ra_tensor_source *const source = open_source(&config);
    read_rows(source, &config, RA_TENSOR_Q, (ra_range){0, 1, ROWS});
    cr_expect_eq(beats, 3);
    ra_tensor_source_close(source);
    ra_config_fini(&config);
}

Test(file_beats, come_with_every_piece_that_is_written_and_flushed)
{
    ra_config config = parse_config("shape: {seq: %d, heads: %d, kv_heads: %d, head_dim: %d,"
                                    " dtype: f32}\njob: {output: %s}",
                                    SEQ, HEADS, KV, DIM, in_folder("out"));
    ra_range const all = {0, 1, SEQ};
    ra_rowset rows = rowset(&all, 1);
    void *const o = calloc(SEQ, Q_ROW), *const lse = calloc(SEQ, HEADS * sizeof(float));
    ra_result_tensors const results = {.o = o, .lse = lse};
    ra_nonfinite found;
    cr_assert_eq(ra_result_write(&config, comm, &rows, &results, &found), RA_OK, "%s", said.line);
    cr_expect_gt(written_bytes, (int64_t)SEQ * Q_ROW);
    cr_expect_eq(flushed_bytes, written_bytes);
    cr_expect_leq(silent_most, RA_TENSOR_PIECE_BYTES + 4096, "a piece, and a header before it");
    free(o);
    free(lse);
    ra_rowset_fini(pool, &rows);
    ra_config_fini(&config);
}
