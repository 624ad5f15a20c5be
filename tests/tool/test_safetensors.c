#include "tool/safetensors.h"

#include "tool/tensor_fixture.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

TestSuite(safetensors, .init = fixture_begin, .fini = fixture_end);

/* A file's beginning in memory: length prefix and header. */
static size_t build_header(const char *header, unsigned char *data)
{
    size_t const bytes = strlen(header);
    for (int i = 0; i < 8; ++i)
        data[i] = (unsigned char)((uint64_t)bytes >> (8 * i));
    memcpy(data + 8, header, bytes);
    return bytes + 8;
}

static ra_status parse(const char *header, int64_t data_bytes, ra_tensor_file **file_out)
{
    unsigned char *data = malloc(strlen(header) + 8);
    size_t const bytes = build_header(header, data);
    ra_status const status =
        ra_tensor_header_parse("some file", data, bytes, (int64_t)bytes + data_bytes, file_out);
    free(data);
    return status;
}

static void accepts(const char *header, int64_t data_bytes)
{
    ra_tensor_file *file;
    cr_assert_eq(parse(header, data_bytes, &file), RA_OK, "%s: %s", header, said.line);
    cr_assert_eq(said.count, 0);
    ra_tensor_file_close(file);
}

static void rejects(const char *header, int64_t data_bytes, const char *because)
{
    ra_tensor_file *file = NULL;
    said.count = 0;
    cr_assert_eq(parse(header, data_bytes, &file), RA_ERR_IO, "accepted: %s", header);
    cr_assert_null(file);
    cr_assert_eq(said.count, 1);
    cr_assert_not_null(strstr(said.line, because), "%s: said '%s'", header, said.line);
    cr_assert_not_null(strstr(said.line, "file 'some file'"), "said '%s'", said.line);
    for (const char *c = said.line; *c != '\0'; ++c)
        cr_assert(*c >= ' ' && *c <= '~', "said '%s'", said.line);
}

/* A file that others may write and read; the remedy is not to mend it. */
static void declines(const char *header, int64_t data_bytes, const char *because)
{
    rejects(header, data_bytes, because);
    cr_assert_not_null(strstr(said.line, "a file of their own"), "said '%s'", said.line);
}

#define F32(name, shape, begin, end)                                                               \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

Test(safetensors, reads_what_the_format_allows)
{
    accepts("{}", 0);
    accepts("{ }   ", 0);
    accepts("{" F32("a", "[2,3]", 0, 24) "}  \n", 24);
    accepts("{" F32("b", "[1]", 4, 8) "," F32("a", "[]", 0, 4) "}", 8);
    accepts("{\"__metadata__\":{\"format\":\"pt\",\"x\":\"\"}," F32("a", "[1]", 0, 4) "}", 4);
    accepts("{\"__metadata__\":{}}", 0);
    accepts("{" F32("none", "[0,7]", 4, 4) "," F32("a", "[1]", 0, 4) "}", 4);
    accepts("{" F32("x{,}\\\"[", "[1]", 0, 4) "}", 4);
    accepts("{" F32("a", "[1,1,1,1,1,1,1,1]", 0, 4) "}", 4);
    accepts("{\"a\":{\"data_offsets\":[0,1],\"shape\":[1],\"dtype\":\"F8_E4M3\"}}", 1);
}

Test(safetensors, finds_tensors_by_name_with_their_place)
{
    ra_tensor_file *file;
    const char *header = "{" F32("b", "[2]", 0, 8) "," F32("a", "[1,3]", 8, 20) "}";
    cr_assert_eq(parse(header, 20, &file), RA_OK);
    const ra_tensor_info *a = ra_tensor_file_find(file, "a");
    cr_assert_not_null(a);
    cr_assert_str_eq(a->dtype, "F32");
    cr_assert_eq(a->dims, 2);
    cr_assert_eq(a->shape[0], 1);
    cr_assert_eq(a->shape[1], 3);
    cr_assert_eq(a->offset, (int64_t)strlen(header) + 8 + 8);
    cr_assert_eq(a->bytes, 12);
    cr_assert_null(ra_tensor_file_find(file, "c"));
    cr_assert_str_eq(ra_tensor_file_path(file), "some file");
    ra_tensor_file_close(file);
}

/* jansson takes "[1\0]" for "[1]". */
Test(safetensors, refuses_nul_bytes_where_json_has_none)
{
    static const char text[] = "{" F32("a", "[1~]", 0, 4) "}";
    unsigned char data[128] = {sizeof(text) - 1};
    ra_tensor_file *file;
    memcpy(data + 8, text, sizeof(text) - 1);
    *(unsigned char *)memchr(data, '~', sizeof(data)) = '\0';
    ra_status const status =
        ra_tensor_header_parse("some file", data, 7 + sizeof(text), 11 + sizeof(text), &file);
    cr_assert_eq(status, RA_ERR_IO);
    cr_expect_not_null(strstr(said.line, "a NUL byte"), "%s", said.line);
}

Test(safetensors, refuses_json_that_is_broken)
{
    rejects("", 0, "begin with '{'");
    rejects("[]", 0, "begin with '{'");
    rejects("{", 0, "not valid JSON");
    rejects("{}x", 0, "follows");
    rejects("{},", 0, "follows");
    rejects("{,}", 0, "not valid JSON");
    rejects("{" F32("a", "[1]", 0, 4) ",}", 4, "not valid JSON");
    rejects("{\"a\":}", 0, "not valid JSON");
    rejects("{\"a\"}", 0, "not valid JSON");
    rejects("{\"a\":[[[[[[[[[[[[1]]]]]]]]]]]]}", 0, "not valid JSON");
    rejects("{\"a\":]}", 0, "not valid JSON");
    rejects("{\"a\":{\"dtype\":\"F32}", 0, "not valid JSON");
    rejects("{\"\xff\xfe\":{}}", 0, "not valid JSON");
    rejects("{\"a\":\"\\", 0, "not valid JSON");
    rejects("{\"a\\u0000b\":{}}", 0, "not valid JSON");
}

Test(safetensors, refuses_entries_that_make_no_tensor)
{
    rejects("{\"a\":1}", 0, "not an object");
    rejects("{\"a\":{}}", 0, "'dtype' is missing");
    rejects("{\"a\":{\"dtype\":7}}", 0, "'dtype' is missing");
    declines("{\"a\":{\"dtype\":\"F31\"}}", 0, "'F31', which is not known");
    rejects("{\"a\":{\"dtype\":\"F32\"}}", 0, "'shape' is missing");
    rejects("{" F32("a", "7", 0, 4) "}", 4, "'shape' is missing");
    rejects("{" F32("a", "[1.5]", 0, 4) "}", 4, "not a length");
    rejects("{" F32("a", "[-1]", 0, 4) "}", 4, "not a length");
    rejects("{" F32("a", "[1e0]", 0, 4) "}", 4, "not a length");
    rejects("{" F32("a", "[99999999999999999999]", 0, 4) "}", 4, "not valid JSON");
    declines("{" F32("a", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, "9 dimensions");
    rejects("{" F32("a", "[4611686018427387904,4]", 0, 4) "}", 4, "more elements");
    rejects("{" F32("a", "[2]", 0, 4) "}", 4, "take 8 bytes, 'data_offsets' give 4");
    rejects("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "'data_offsets' is not");
    rejects("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "'data_offsets'");
    rejects("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}}", 4,
            "two integers");
}

Test(safetensors, refuses_offsets_that_lie)
{
    rejects("{" F32("a", "[1]", 4, 0) "}", 4, "no range");
    rejects("{" F32("a", "[1]", -4, 0) "}", 4, "no range");
    rejects("{" F32("a", "[1]", 0, 4) "}", 3, "truncated");
    rejects("{" F32("a", "[1]", 0, 4) "}", 5, "1 byte follows");
    rejects("{" F32("a", "[1]", 9223372036854775803, 9223372036854775807) "}", 8, "truncated");
    rejects("{" F32("a", "[1]", 4, 8) "}", 8, "hole of 4 bytes precedes");
    rejects("{" F32("a", "[1]", 1, 5) "}", 5, "hole of 1 byte precedes");
    rejects("{" F32("a", "[2]", 0, 8) "," F32("b", "[1]", 4, 8) "}", 8, "overlap");
    rejects("{" F32("a", "[2]", 0, 8) "," F32("b", "[0]", 4, 4) "}", 8, "overlap");
    rejects("{" F32("a", "[1]", 0, 4) "," F32("b", "[1]", 0, 4) "}", 4, "overlap");
    rejects("{}", 1, "1 byte follows");
}

Test(safetensors, refuses_names_given_twice)
{
    rejects("{" F32("a", "[1]", 0, 4) "," F32("a", "[1]", 4, 8) "}", 8, "names it twice");
    rejects("{" F32("a", "[1]", 0, 4) "," F32("a", "[1]", 0, 4) "}", 4, "names it twice");
    rejects("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
            "duplicate");
    rejects("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "names it twice");
    rejects("{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}", 0, "duplicate");
    rejects("{\"__metadata__\":{\"a\":1}}", 0, "not a string");
    rejects("{\"__metadata__\":[]}", 0, "not an object");
}

/* Which may be sound otherwise. */
Test(safetensors, refuses_metadata_that_take_more_memory_than_any_should)
{
    static const char begin[] = "{\"__metadata__\":{\"a\":\"", end[] = "\"}}";
    size_t const length = 4 << 20;
    char *header = malloc(sizeof(begin) + length + sizeof(end));
    ra_tensor_file *file;
    memset(header, 'x', sizeof(begin) + length);
    memcpy(header, begin, sizeof(begin) - 1);
    memcpy(header + sizeof(begin) - 1 + length, end, sizeof(end));
    cr_assert_eq(parse(header, 0, &file), RA_ERR_IO);
    cr_assert_eq(said.count, 1);
    cr_assert_not_null(strstr(said.line, "more than 4194304"), "said '%s'", said.line);
    cr_assert_not_null(strstr(said.line, "a file of their own"), "said '%s'", said.line);
    memcpy(header + length - 8, end, sizeof(end));
    cr_assert_eq(parse(header, 0, &file), RA_OK);
    ra_tensor_file_close(file);
    free(header);
}

/* Spaces count; braces and commas around it do not. */
Test(safetensors, refuses_entries_that_take_more_than_4096_bytes)
{
    char header[4096 + 4];
    for (int bytes = 4096; bytes <= 4097; ++bytes) {
        snprintf(header, sizeof(header), "{%*s}", bytes, F32("a", "[1]", 0, 4));
        if (bytes == 4096)
            accepts(header, 4);
        else
            declines(header, 4, "a tensor's entry takes 4097 bytes, more than 4096");
    }
}

Test(safetensors, refuses_names_that_are_too_long_or_would_break_the_line)
{
    char header[512];
    snprintf(header, sizeof(header), "{\"%0127d\":%s}", 7,
             "{\"dtype\":\"F32\",\"shape\":[1],"
             "\"data_offsets\":[0,4]}");
    accepts(header, 4);
    snprintf(header, sizeof(header), "{\"%0128d\":1}", 7);
    declines(header, 0, "more than 127 bytes");
    rejects("{\"a\\nb\\u001b[31m\":1}", 0, "tensor 'a?b?[31m'");
}

Test(safetensors, refuses_lengths_that_cannot_be)
{
    unsigned char data[16] = {0};
    ra_tensor_file *file;
    cr_assert_eq(ra_tensor_header_parse("f", data, 0, 0, &file), RA_ERR_IO);
    cr_assert_not_null(strstr(said.line, "0 bytes are too few"));
    cr_assert_eq(ra_tensor_header_parse("f", data, 7, 7, &file), RA_ERR_IO);
    cr_assert_eq(ra_tensor_header_parse("f", data, 8, 8, &file), RA_ERR_IO);
    data[7] = 0x80; /* 2^63 */
    cr_assert_eq(ra_tensor_header_parse("f", data, 16, 16, &file), RA_ERR_IO);
    cr_assert_not_null(strstr(said.line, "9223372036854775808"), "%s", said.line);
    memset(data, 0xff, 8);
    cr_assert_eq(ra_tensor_header_parse("f", data, 16, 16, &file), RA_ERR_IO);
    memset(data, 0, 8);
    data[0] = 9; /* one more than there is */
    cr_assert_eq(ra_tensor_header_parse("f", data, 16, 16, &file), RA_ERR_IO);
    cr_assert_not_null(strstr(said.line, "truncated"));
    /* Nor is anything read that was not given, however much the file has. */
    cr_assert_eq(ra_tensor_header_parse("f", data, 16, 1000, &file), RA_ERR_IO);
    cr_assert_not_null(strstr(said.line, "truncated"), "%s", said.line);
    cr_assert_eq(ra_tensor_header_parse("f", data, 7, 1000, &file), RA_ERR_IO);
    cr_assert_not_null(strstr(said.line, "too few"), "%s", said.line);
}

/* 100 MB that go on promising: they must end soon and take little memory on the way. */
Test(safetensors, refuses_huge_garbage_in_bounded_time, .timeout = 600)
{
    size_t const bytes = 100000000;
    unsigned char *data = malloc(bytes + 8);
    static const char *const fills[] = {"[", "0,", "\"a\":0,", "\"", "\\", " ", "{\"a\":"};
    for (size_t f = 0; f < sizeof(fills) / sizeof(fills[0]); ++f) {
        size_t const step = strlen(fills[f]);
        for (int i = 0; i < 8; ++i)
            data[i] = (unsigned char)((uint64_t)bytes >> (8 * i));
        data[8] = '{';
        for (size_t at = 9; at < bytes + 8; ++at)
            data[at] = (unsigned char)fills[f][(at - 9) % step];
        ra_tensor_file *file;
        cr_assert_eq(ra_tensor_header_parse("f", data, bytes + 8, (int64_t)bytes + 8, &file),
                     RA_ERR_IO);
    }
    /* Valid, but more tensors than anyone has: the count is what stops it. */
    size_t at = 9;
    for (int i = 0; at < bytes - 100; ++i)
        at += (size_t)sprintf((char *)data + at,
                              "\"%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},", i);
    ra_tensor_file *file;
    cr_assert_eq(ra_tensor_header_parse("f", data, bytes + 8, (int64_t)bytes + 8, &file),
                 RA_ERR_IO);
    cr_assert_not_null(strstr(said.line, "more than 100000 tensors"), "%s", said.line);
    cr_assert_not_null(strstr(said.line, "a file of their own"), "%s", said.line);
    free(data);
}

/* ---- files ----------------------------------------------------------------------------------- */

static ra_tensor_info matrix(const char *name, const char *dtype, int64_t rows, int64_t columns)
{
    return describe(name, dtype, 2, (int64_t[]){rows, columns});
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    cr_assert(fputs(text, file) >= 0);
    cr_assert_eq(fclose(file), 0);
}

Test(safetensors, gives_back_what_two_writers_wrote)
{
    const char *path = in_folder("out");
    ra_tensor_info mine[2] = {matrix("a", "F32", 2, 3), matrix("b", "BF16", 1, 5)};
    ra_tensor_info theirs[2] = {mine[0], mine[1]};
    ra_tensor_writer *first, *second;
    cr_assert_eq(ra_tensor_writer_open(path, "7", true, mine, 2, &first), RA_OK, "%s", said.line);
    cr_assert_eq(ra_tensor_writer_open(path, "7", false, theirs, 2, &second), RA_OK, "%s",
                 said.line);
    cr_assert_eq(memcmp(mine, theirs, sizeof(mine)), 0);
    cr_assert_eq(mine[0].offset % 8, 0, "data are not aligned");
    cr_assert_neq(access(path, F_OK), 0, "visible before it is complete");
    float const values[6] = {1, 2, 3, 4, 5, 6};
    uint16_t const bits[5] = {10, 20, 30, 40, 50};
    cr_assert_eq(ra_tensor_writer_put(first, &mine[0], 0, values, 12), RA_OK);
    cr_assert_eq(ra_tensor_writer_put(second, &theirs[0], 12, values + 3, 12), RA_OK);
    cr_assert_eq(ra_tensor_writer_put(second, &theirs[1], 0, bits, sizeof(bits)), RA_OK);
    cr_assert_eq(ra_tensor_writer_flush(first, NULL), RA_OK);
    cr_assert_eq(ra_tensor_writer_flush(second, NULL), RA_OK);
    cr_assert_eq(ra_tensor_writer_rename(first), RA_OK);
    ra_tensor_writer_destroy(second);
    ra_tensor_writer_destroy(first);
    cr_assert_eq(entries_in_folder(), 1);

    ra_tensor_file *file;
    cr_assert_eq(ra_tensor_file_open(path, &file), RA_OK, "%s", said.line);
    float back[6];
    uint16_t bits_back[3];
    cr_assert_eq(ra_tensor_read(file, ra_tensor_file_find(file, "a"), 0, back, sizeof(back)),
                 RA_OK);
    cr_assert_eq(ra_tensor_read(file, ra_tensor_file_find(file, "b"), 4, bits_back, 6), RA_OK);
    cr_assert_eq(memcmp(back, values, sizeof(back)), 0);
    cr_assert_eq(memcmp(bits_back, bits + 2, 6), 0);
    cr_assert_eq(said.count, 0);
    ra_tensor_file_close(file);
}

Test(safetensors, leaves_nothing_when_not_published)
{
    ra_tensor_info info = matrix("a", "F32", 2, 3);
    ra_tensor_writer *writer;
    cr_assert_eq(ra_tensor_writer_open(in_folder("out"), "7", true, &info, 1, &writer), RA_OK);
    cr_assert_eq(entries_in_folder(), 1);
    ra_tensor_writer_destroy(writer);
    cr_assert_eq(entries_in_folder(), 0);
}

Test(safetensors, replaces_a_file_and_keeps_its_permissions)
{
    const char *path = in_folder("out");
    write_text(path, "old");
    cr_assert_eq(chmod(path, 0640), 0);
    ra_tensor_info info = matrix("a", "F32", 1, 1);
    write_tensors(path, &info, NULL, 1);
    struct stat now;
    cr_assert_eq(stat(path, &now), 0);
    cr_assert_eq(now.st_mode & 07777, 0640);
    ra_tensor_file *file;
    cr_assert_eq(ra_tensor_file_open(path, &file), RA_OK);
    ra_tensor_file_close(file);
}

Test(safetensors, writes_through_a_symbolic_link)
{
    char target[128];
    snprintf(target, sizeof(target), "%s", in_folder("target"));
    write_text(target, "old");
    const char *link = in_folder("link");
    cr_assert_eq(symlink("target", link), 0);
    ra_tensor_info info = matrix("a", "F32", 1, 1);
    write_tensors(link, &info, NULL, 1);
    struct stat now;
    cr_assert_eq(lstat(link, &now), 0);
    cr_assert(S_ISLNK(now.st_mode), "the link was replaced");
    ra_tensor_file *file;
    cr_assert_eq(ra_tensor_file_open(target, &file), RA_OK);
    ra_tensor_file_close(file);
}

static void cannot_create(const char *path, const char *because)
{
    ra_tensor_info info = matrix("a", "F32", 1, 1);
    ra_tensor_writer *writer;
    int const before = entries_in_folder();
    cr_assert_eq(ra_tensor_writer_open(path, "7", true, &info, 1, &writer), RA_ERR_IO, "%s", path);
    cr_assert_not_null(strstr(said.line, because), "%s", said.line);
    cr_assert_eq(entries_in_folder(), before);
}

Test(safetensors, refuses_outputs_that_cannot_be)
{
    cannot_create(in_folder("missing/out"), "No such file");
    cannot_create(folder, "Is a directory");
    cannot_create("/dev/null", "not a regular file");
    cr_assert_eq(symlink("nowhere", in_folder("dangling")), 0);
    cannot_create(in_folder("dangling"), "symbolic link");
}

Test(safetensors, joins_only_what_was_created_alike)
{
    ra_tensor_info info = matrix("a", "F32", 1, 1), longer = matrix("a", "F32", 2, 1);
    ra_tensor_writer *writer, *other;
    const char *path = in_folder("out");
    cr_assert_eq(ra_tensor_writer_open(path, "7", false, &info, 1, &other), RA_ERR_IO);
    cr_assert_not_null(strstr(said.line, "cannot open what another rank created"), "%s", said.line);
    cr_assert_eq(ra_tensor_writer_open(path, "7", true, &info, 1, &writer), RA_OK);
    cr_assert_eq(ra_tensor_writer_open(path, "7", false, &longer, 1, &other), RA_ERR_IO);
    cr_assert_not_null(strstr(said.line, "different length"), "%s", said.line);
    ra_tensor_writer_destroy(writer);
}

Test(safetensors, refuses_inputs_that_are_no_files)
{
    ra_tensor_file *file;
    cr_assert_eq(ra_tensor_file_open(in_folder("missing"), &file), RA_ERR_IO);
    cr_assert_not_null(strstr(said.line, "No such file"), "%s", said.line);
    cr_assert_eq(ra_tensor_file_open(folder, &file), RA_ERR_IO);
    cr_assert_eq(mkfifo(in_folder("pipe"), 0600), 0);
    cr_assert_eq(ra_tensor_file_open(in_folder("pipe"), &file), RA_ERR_IO);
    cr_assert_not_null(strstr(said.line, "not a regular file"), "%s", said.line);
    write_text(in_folder("empty"), "");
    cr_assert_eq(ra_tensor_file_open(in_folder("empty"), &file), RA_ERR_IO);
    cr_assert_not_null(strstr(said.line, "0 bytes are too few"), "%s", said.line);
    cr_assert_eq(said.count, 4);
}

Test(safetensors, says_when_a_file_shrinks_after_it_was_opened)
{
    const char *path = in_folder("out");
    ra_tensor_info info = matrix("a", "F32", 4, 4);
    write_tensors(path, &info, NULL, 1);
    ra_tensor_file *file;
    cr_assert_eq(ra_tensor_file_open(path, &file), RA_OK);
    cr_assert_eq(truncate(path, 80), 0);
    float values[16];
    cr_assert_eq(ra_tensor_read(file, ra_tensor_file_find(file, "a"), 0, values, sizeof(values)),
                 RA_ERR_IO);
    cr_assert_not_null(strstr(said.line, "shorter"), "%s", said.line);
    ra_tensor_file_close(file);
}
