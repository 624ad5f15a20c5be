/*
 * Every call that the file code makes to the system fails once: the n-th for n = 0, 1, … until a
 * job makes fewer calls than that. After each failure all ranks know, one has said why, the folder
 * is as it was, and nothing leaks.
 */
#include "comm/local_ranks.h"
#include "fault/faulty_files.h"
#include "tool/json_build.h"
#include "tool/json_text.h"
#include "tool/tensor_fixture.h"
#include "tool/tensors.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

TestSuite(files, .init = fixture_begin, .fini = fixture_end);

/* ---- writing --------------------------------------------------------------------------------- */

enum { RANKS = 3, SEQ = 12, HEADS = 2, DIM = 4 };

typedef struct write_job {
    ra_config config;
    ra_rowset rows[RANKS];
    ra_status status[RANKS];
} write_job;

static int write_rank(ra_comm *comm, void *context)
{
    write_job *job = context;
    int const rank = ra_comm_rank(comm);
    float o[SEQ * HEADS * DIM], lse[SEQ * HEADS];
    for (int i = 0; i < SEQ * HEADS * DIM; ++i)
        o[i] = (float)(rank + 1);
    for (int i = 0; i < SEQ * HEADS; ++i)
        lse[i] = -(float)(rank + 1);
    ra_result_tensors const results = {.o = o, .lse = lse};
    ra_nonfinite found;
    job->status[rank] = ra_result_write(&job->config, comm, &job->rows[rank], &results, &found);
    return job->status[rank] != RA_OK;
}

/* Row i belongs to rank i mod RANKS. */
static void expect_whole_file(void)
{
    ra_tensor_file *file;
    float o[SEQ * HEADS * DIM], lse[HEADS * SEQ];
    cr_assert_eq(ra_tensor_file_open(in_folder("out"), &file), RA_OK, "%s", said.line);
    cr_assert_eq(ra_tensor_read(file, ra_tensor_file_find(file, "o"), 0, o, sizeof(o)), RA_OK);
    cr_assert_eq(ra_tensor_read(file, ra_tensor_file_find(file, "lse"), 0, lse, sizeof(lse)),
                 RA_OK);
    for (int i = 0; i < SEQ * HEADS * DIM; ++i)
        cr_assert_eq(o[i], (float)(i / (HEADS * DIM) % RANKS + 1));
    for (int i = 0; i < HEADS * SEQ; ++i)
        cr_assert_eq(lse[i], -(float)(i % SEQ % RANKS + 1));
    ra_tensor_file_close(file);
}

static void write_old(void)
{
    FILE *file = fopen(in_folder("out"), "w");
    cr_assert_not_null(file);
    cr_assert_geq(fputs("old", file), 0);
    cr_assert_eq(fclose(file), 0);
}

static void expect_old(void)
{
    char text[8] = "";
    FILE *file = fopen(in_folder("out"), "r");
    cr_assert_not_null(file);
    cr_expect_eq(fread(text, 1, sizeof(text) - 1, file), 3);
    cr_expect_str_eq(text, "old");
    fclose(file);
}

/* After a failure: what was there before. When the folder is flushed, last, the file is whole and
   has its name, and stays. */
static void expect_kept(file_call kind, int first, bool replaces)
{
    bool const whole = kind == FSYNC && first == RANKS;
    cr_assert_eq(entries_in_folder(), whole || replaces, "call %d number %d", kind, first);
    if (whole)
        expect_whole_file();
    else if (replaces)
        expect_old();
    unlink(in_folder("out"));
}

/* Write the job under the fault, where there is a file or none; whether it was hit. */
static bool write_under_fault(file_call kind, int first, int count, int cause, bool succeeds,
                              bool replaces)
{
    write_job job = {.config = parse_config("shape: {seq: %d, heads: %d, kv_heads: %d,"
                                            " head_dim: %d, dtype: f32}\njob: {output: %s}",
                                            SEQ, HEADS, HEADS, DIM, in_folder("out"))};
    for (int r = 0; r < RANKS; ++r) {
        ra_range const rows = {r, RANKS, SEQ / RANKS};
        cr_assert_eq(ra_rowset_init(pool, &rows, 1, &job.rows[r]), RA_OK);
    }
    if (replaces)
        write_old();
    said.count = 0;
    fault_set(kind, first, count, cause);
    int const failures = local_ranks_run(RANKS, 30000, write_rank, &job);
    bool const hit = fault_was_hit();
    fault_set(NONE, 0, 0, 0);
    if (hit && !succeeds) {
        cr_assert_eq(failures, RANKS, "call %d number %d: %d ranks know", kind, first, failures);
        for (int r = 0; r < RANKS; ++r)
            cr_assert_eq(job.status[r], RA_ERR_IO);
        /* Who fails says why: of several processes the console prints one line (console.h). */
        cr_assert(said.count >= 1 && said.count <= (count > 1 ? RANKS : 1),
                  "call %d number %d: %d lines", kind, first, said.count);
        cr_assert_not_null(strstr(said.line, strerror(cause == ZERO ? ENOSPC : cause)), "%s",
                           said.line);
        cr_assert_not_null(strstr(said.line, in_folder("out")), "%s", said.line);
        expect_kept(kind, first, replaces);
    } else {
        cr_assert_eq(failures, 0, "%s", said.line);
        cr_assert_eq(said.count, 0, "%s", said.line);
        cr_assert_eq(entries_in_folder(), 1);
        expect_whole_file();
        unlink(in_folder("out"));
    }
    for (int r = 0; r < RANKS; ++r)
        ra_rowset_fini(pool, &job.rows[r]);
    ra_config_fini(&job.config);
    return hit;
}

static void sweep(file_call kind, int cause, int least)
{
    for (int replaces = 0; replaces < 2; replaces++) {
        int n = 0;
        while (write_under_fault(kind, n, 1, cause, false, replaces))
            ++n;
        cr_assert_geq(n, least, "only %d calls of kind %d were ever made", n, kind);
    }
}

Test(files, a_failing_open_leaves_nothing)
{
    sweep(OPEN, EMFILE, RANKS + 1); /* the file on every rank, then the folder */
}

Test(files, a_folder_that_may_be_written_but_not_read_will_do)
{
    cr_assert(write_under_fault(OPEN, RANKS, 1, EACCES, true, false));
}

Test(files, a_disk_found_full_when_space_is_reserved_leaves_nothing)
{
    sweep(FALLOCATE, ENOSPC, 1);
    sweep(FTRUNCATE, ENOSPC, 1);
}

Test(files, a_failing_write_leaves_nothing)
{
    sweep(PWRITE, ENOSPC, 1 + SEQ + SEQ * HEADS);
    sweep(PWRITE, ZERO, 1);
}

Test(files, a_failing_fsync_leaves_nothing_and_one_of_the_folder_a_whole_file)
{
    sweep(FSYNC, EIO, RANKS + 1);
}

/* An error of the disk that a piece has met is not in fsync's answer any more. */
Test(files, a_piece_that_cannot_be_flushed_leaves_nothing)
{
    sweep(SYNC_RANGE, EIO, RANKS);
    sweep(SYNC_RANGE, ENOSPC, RANKS);
}

Test(files, a_file_system_that_cannot_flush_pieces_will_do)
{
    static const int causes[] = {ENOSYS, EOPNOTSUPP, EINVAL, ESPIPE, EPERM};
    for (int i = 0; i < 5; ++i)
        cr_assert(write_under_fault(SYNC_RANGE, 0, 1000000, causes[i], true, false));
}

Test(files, a_failing_rename_leaves_nothing)
{
    sweep(RENAME, EXDEV, 1);
}

/* All ranks fail alike, as on a disk that fills up. */
Test(files, failures_on_all_ranks_leave_nothing)
{
    cr_assert(write_under_fault(PWRITE, 1, 1000000, ENOSPC, false, false));
    cr_assert(write_under_fault(FSYNC, 0, 1000000, EIO, false, false));
    cr_assert(write_under_fault(SYNC_RANGE, 0, 1000000, EIO, false, false));
}

Test(files, short_and_interrupted_calls_are_continued)
{
    for (int n = 0; write_under_fault(PWRITE, n, 1, SHORT, true, false); ++n)
        ;
    for (int n = 0; write_under_fault(PWRITE, n, 2, EINTR, true, false); n += 5)
        ;
    cr_assert(write_under_fault(FALLOCATE, 0, 3, EINTR, true, false));
    cr_assert(write_under_fault(SYNC_RANGE, 0, 2, EINTR, true, false));
    for (int n = 0; n <= RANKS; ++n) /* the last is the folder's */
        cr_assert(write_under_fault(FSYNC, n, 2, EINTR, true, false));
}

Test(files, a_file_system_without_fallocate_will_do)
{
    cr_assert(write_under_fault(FALLOCATE, 0, 1, EOPNOTSUPP, true, false));
    cr_assert(write_under_fault(FALLOCATE, 0, 1, ENOSYS, true, false));
}

/* Who opens it in between may read what is written later. */
Test(files, what_replaces_a_private_file_is_private_from_the_beginning)
{
    cr_assert_not(write_under_fault(NONE, 0, 0, 0, true, false));
    cr_expect_eq(fault_created_mode(), 0666);
    cr_assert_not(write_under_fault(NONE, 0, 0, 0, true, true));
    cr_expect_eq(fault_created_mode(), 0600);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Open a source and read strided rows of it; the first failure. */
static ra_status read_inputs(void)
{
    ra_config config = parse_config("job: {input: %s, backward: true}", in_folder("in"));
    ra_range const range = {1, 2, SEQ / 2};
    ra_rowset rows;
    float data[SEQ * HEADS * DIM];
    double values[SEQ * DIM];
    char room[4 * HEADS * DIM * sizeof(float)];
    ra_tensor_staging const staging = {room, sizeof(room)};
    ra_tensor_source *source = NULL;
    cr_assert_eq(ra_rowset_init(pool, &range, 1, &rows), RA_OK);
    fault_count_anew();
    ra_status status = ra_tensor_source_open(&config, pool, 1, &source);
    for (int name = RA_TENSOR_Q; name <= RA_TENSOR_DO && status == RA_OK; ++name)
        status = ra_tensor_source_read(source, &config, (ra_tensor_name)name, &rows, rows.row_count,
                                       NULL, data, NULL);
    if (status == RA_OK)
        status = ra_tensor_source_rows(source, &config, RA_TENSOR_V, 0, 1, 0, SEQ, staging, values);
    if (status == RA_OK)
        status = ra_tensor_source_rows(source, &config, RA_TENSOR_V, 0, 1, 3, 1, staging, values);
    for (int row = 0; row < SEQ && status == RA_OK; ++row)
        cr_assert_eq(data[row / 2 * HEADS * DIM], (float)(row / 2 * 2 + 1));
    ra_tensor_source_close(source);
    ra_rowset_fini(pool, &rows);
    ra_config_fini(&config);
    return status;
}

static void write_inputs(void)
{
    static const char *const names[] = {"q", "k", "v", "do"};
    int64_t const shape[] = {1, SEQ, HEADS, DIM};
    ra_tensor_info infos[4];
    float data[SEQ * HEADS * DIM];
    const void *same[4];
    for (int i = 0; i < SEQ * HEADS * DIM; ++i)
        data[i] = (float)(i / (HEADS * DIM));
    for (int t = 0; t < 4; ++t) {
        infos[t] = describe(names[t], "F32", 4, shape);
        same[t] = data;
    }
    write_tensors(in_folder("in"), infos, same, 4);
}

static int sweep_reading(file_call kind, int cause, ra_status expected)
{
    write_inputs();
    for (int n = 0;; ++n) {
        said.count = 0;
        fault_set(kind, n, 1, cause);
        ra_status const status = read_inputs();
        bool const hit = fault_was_hit();
        fault_set(NONE, 0, 0, 0);
        if (!hit) {
            cr_assert_eq(status, RA_OK);
            return n;
        }
        cr_assert_eq(status, expected, "call %d number %d: %s", kind, n, said.line);
        cr_assert_eq(said.count, expected != RA_OK);
    }
}

Test(files, a_failing_read_is_said_once)
{
    cr_assert_geq(sweep_reading(OPEN, EACCES, RA_ERR_IO), 1);
    cr_assert_geq(sweep_reading(PREAD, EIO, RA_ERR_IO), 8);
    cr_assert_geq(sweep_reading(PREAD, ZERO, RA_ERR_IO), 8);
    cr_assert_geq(sweep_reading(PREAD, SHORT, RA_OK), 8);
    cr_assert_geq(sweep_reading(PREAD, EINTR, RA_OK), 8);
}

/* Nobody opens the pipe to write; somebody does, and stops within the report. */
Test(files, a_report_that_does_not_come_is_waited_for_no_longer_than_said, .timeout = 20)
{
    char path[128];
    json_t *root = NULL;
    snprintf(path, sizeof(path), "%s", in_folder("pipe"));
    cr_assert_eq(mkfifo(path, 0600), 0);
    for (int written = 0; written < 2; ++written) {
        int const writer = written ? open(path, O_RDWR | O_CLOEXEC) : -1;
        cr_assert(!written || write(writer, "{}", 2) == 2);
        said.count = 0;
        cr_expect_eq(ra_json_read(path, 50, &root), RA_ERR_IO);
        cr_expect_eq(said.count, 1);
        cr_expect_not_null(strstr(said.line, "not come to an end within 0.05 s"), "%s", said.line);
        if (written)
            close(writer);
    }
    unlink(path);
    /* A writer that never stops is not read for ever: what is there counts no longer, either. */
    FILE *file = fopen(path, "w");
    cr_assert(file != NULL && fputs("{}", file) >= 0 && fclose(file) == 0);
    said.count = 0;
    cr_expect_eq(ra_json_read(path, 0, &root), RA_ERR_IO);
    cr_expect_eq(said.count, 1);
    unlink(path);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Allocations of this program and of the JSON library fail; those of the fixture do not. */
static ra_status write_and_read(void)
{
    int64_t const shape[] = {2, 3};
    ra_tensor_info infos[2] = {describe("a", "F32", 2, shape), describe("b", "BF16", 1, shape)};
    float const values[6] = {0};
    ra_tensor_writer *writer = NULL;
    ra_tensor_file *file = NULL;
    char path[128];
    snprintf(path, sizeof(path), "%s", in_folder("out"));
    ra_status status = ra_tensor_writer_open(path, "1", true, infos, 2, &writer);
    if (status == RA_OK)
        status = ra_tensor_writer_put(writer, &infos[0], 0, values, sizeof(values));
    if (status == RA_OK)
        status = ra_tensor_writer_rename(writer);
    ra_tensor_writer_destroy(writer);
    if (status == RA_OK)
        status = ra_tensor_file_open(path, &file);
    if (status == RA_OK) {
        cr_assert_not_null(ra_tensor_file_find(file, "a"));
        cr_assert_eq(ra_tensor_file_find(file, "a")->dims, 2);
        cr_assert_not_null(ra_tensor_file_find(file, "b"));
    }
    ra_tensor_file_close(file);
    return status;
}

Test(files, a_failing_allocation_is_said_once_and_leaves_nothing)
{
    int n = 0;
    json_set_alloc_funcs(malloc, free); /* as this file is linked, the malloc that fails */
    for (bool hit = true; hit; ++n) {
        said.count = 0;
        fault_set(MEMORY, n, 1, ENOMEM);
        ra_status const status = write_and_read();
        hit = fault_was_hit();
        fault_set(NONE, 0, 0, 0);
        cr_assert_eq(status, hit ? RA_ERR_NO_MEMORY : RA_OK, "allocation %d: %s", n, said.line);
        cr_assert_eq(said.count, hit, "allocation %d: %d lines", n, said.count);
        if (access(in_folder("out"), F_OK) == 0) /* published; then reading failed */
            unlink(in_folder("out"));
        cr_assert_eq(entries_in_folder(), 0, "allocation %d left a file", n);
    }
    cr_assert_gt(n, 20, "some are of the JSON library");
}

typedef struct unread {
    const char *at;
    size_t bytes;
} unread;

static size_t read_little(void *buffer, size_t most, void *context)
{
    unread *left = context;
    size_t const bytes = left->bytes < most ? left->bytes : most;
    memcpy(buffer, left->at, bytes);
    left->at += bytes;
    left->bytes -= bytes;
    return bytes;
}

/* Tokens grow beyond what is first taken for them, and the text beyond what is taken for that. */
Test(files, json_is_parsed_and_printed_whole_or_not_at_all)
{
    static const char text[] =
        "{\"a key of more than thirty-two bytes, which is more than the first room for a token\": "
        "[1234567890123456, 0.1234567890123456789012345678901234567890, true, null, \"\\u00e9\"], "
        "\"another\": {\"within\": \"a value that is longer than its key, and than what is taken "
        "for it before anybody knows how long it is going to be\", \"last\": {}}}";
    int failed_loads = 0, failed_dumps = 0;
    json_set_alloc_funcs(malloc, free); /* as this file is linked, the malloc that fails */
    json_t *const whole = json_loads(text, 0, NULL);
    char *const printed = json_dumps(whole, JSON_INDENT(2));
    for (bool hit = true; hit; failed_loads += hit) {
        unread left = {text, sizeof(text) - 1};
        json_error_t error;
        bool lacked = false;
        fault_set(MEMORY, failed_loads, 1, ENOMEM);
        json_t *const root = ra_json_load(read_little, &left, &error, &lacked);
        hit = fault_was_hit();
        fault_set(NONE, 0, 0, 0);
        cr_assert_eq(lacked, hit, "request %d", failed_loads);
        cr_assert_eq(root == NULL, hit, "request %d", failed_loads);
        cr_assert(hit || json_equal(root, whole));
        json_decref(root);
    }
    for (bool hit = true; hit; failed_dumps += hit) {
        fault_set(MEMORY, failed_dumps, 1, ENOMEM);
        char *const text_now = ra_json_dump(whole, JSON_INDENT(2));
        hit = fault_was_hit();
        fault_set(NONE, 0, 0, 0);
        cr_assert_eq(text_now == NULL, hit, "request %d", failed_dumps);
        cr_assert(hit || strcmp(text_now, printed) == 0);
        free(text_now);
    }
    cr_expect_gt(failed_loads, 20);
    cr_expect_gt(failed_dumps, 4);
    free(printed);
    json_decref(whole);
}
