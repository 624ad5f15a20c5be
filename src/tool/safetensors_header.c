/*
 * Checking a safetensors header. The header is cut into its members by hand and only one member at
 * a time becomes a JSON tree, so that memory stays small whatever a hostile header says.
 */
#include "safetensors_header.h"

#include "bytes_text.h"
#include "internal.h"
#include "json_text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REMEDY_REWRITE "the file is damaged or is not safetensors; write it again"
#define REMEDY_APART   "write the tensors of the job into a file of their own"

enum { MEMBER_MAX_DEPTH = 8 };

static const struct {
    const char *name;
    int64_t bytes;
} dtypes[] = {{"F64", 8},  {"F32", 4}, {"F16", 2},     {"BF16", 2},    {"I64", 8},    {"I32", 4},
              {"I16", 2},  {"I8", 1},  {"U64", 8},     {"U32", 4},     {"U16", 2},    {"U8", 1},
              {"BOOL", 1}, {"C64", 8}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}};

int64_t ra_tensor_dtype_bytes(const char *dtype)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); ++i)
        if (strcmp(dtypes[i].name, dtype) == 0)
            return dtypes[i].bytes;
    return 0;
}

bool ra_tensor_bytes(const ra_tensor_info *info, int64_t *bytes_out)
{
    int64_t bytes = ra_tensor_dtype_bytes(info->dtype);
    for (int i = 0; i < info->dims; ++i)
        if (__builtin_mul_overflow(bytes, info->shape[i], &bytes))
            return false;
    *bytes_out = bytes;
    return true;
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void make_printable(char *text)
{
    for (; *text != '\0'; ++text)
        if (*text < ' ' || *text > '~')
            *text = '?';
}

ra_status ra_file_refuse(const char *path, const char *tensor, const char *remedy,
                         const char *format, ...)
{
    char what[384], where[RA_TENSOR_NAME_MAX + 16] = "", line[768];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    if (tensor != NULL)
        snprintf(where, sizeof(where), ", tensor '%s'", tensor);
    snprintf(line, sizeof(line), "%s (file '%.200s'%s): %s", what, path, where, remedy);
    make_printable(line);
    ra_log(RA_LOG_ERROR, "%s", line);
    return RA_ERR_IO;
}

/* What is wrong with the file's contents. */
#define reject(file, tensor, ...) ra_file_refuse((file)->path, tensor, REMEDY_REWRITE, __VA_ARGS__)

/* What may be sound, but is more than is read here. */
#define decline(file, tensor, ...) ra_file_refuse((file)->path, tensor, REMEDY_APART, __VA_ARGS__)

/* ---- one tensor ------------------------------------------------------------------------------ */

static ra_status parse_shape(const ra_tensor_file *file, const json_t *shape, ra_tensor_info *info)
{
    if (!json_is_array(shape))
        return reject(file, info->name, "'shape' is missing or is not a list");
    size_t const dims = json_array_size(shape);
    if (dims > RA_TENSOR_MAX_DIMS)
        return decline(file, info->name, "'shape' has %zu dimensions, more than %d", dims,
                       RA_TENSOR_MAX_DIMS);
    for (size_t i = 0; i < dims; ++i) {
        const json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return reject(file, info->name, "'shape' holds something that is not a length");
        info->shape[i] = json_integer_value(dim);
    }
    info->dims = (int)dims;
    return RA_OK;
}

static ra_status parse_offsets(const ra_tensor_file *file, const json_t *offsets,
                               int64_t data_bytes, ra_tensor_info *info)
{
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return reject(file, info->name, "'data_offsets' is not a list of two integers");
    int64_t const begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || end < begin)
        return reject(file, info->name, "'data_offsets' [%" PRId64 ", %" PRId64 ") is no range",
                      begin, end);
    if (end > data_bytes)
        return reject(file, info->name,
                      "'data_offsets' [%" PRId64 ", %" PRId64
                      ") pass the end of the data at %" PRId64 " (truncated?)",
                      begin, end, data_bytes);
    int64_t bytes;
    if (!ra_tensor_bytes(info, &bytes))
        return reject(file, info->name, "'shape' has more elements than a file can hold");
    if (bytes != end - begin)
        return reject(file, info->name,
                      "'shape' and 'dtype' take %" PRId64 " bytes, 'data_offsets' give %" PRId64,
                      bytes, end - begin);
    info->offset = begin; /* from the data's begin until all are known to be sound */
    info->bytes = bytes;
    return RA_OK;
}

static ra_status parse_tensor(ra_tensor_file *file, const char *name, const json_t *value,
                              int64_t data_bytes)
{
    ra_tensor_info info = {0};
    if (strlen(name) >= sizeof(info.name))
        return decline(file, NULL, "tensor name '%.40s...' has more than %zu bytes", name,
                       sizeof(info.name) - 1);
    memcpy(info.name, name, strlen(name) + 1);
    if (!json_is_object(value))
        return reject(file, name, "its entry is not an object");
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    if (dtype == NULL)
        return reject(file, name, "'dtype' is missing or is not a string");
    if (ra_tensor_dtype_bytes(dtype) == 0)
        return decline(file, name, "'dtype' is '%.32s', which is not known", dtype);
    memcpy(info.dtype, dtype, strlen(dtype) + 1); /* the names of known dtypes fit */
    ra_status status = parse_shape(file, json_object_get(value, "shape"), &info);
    if (status == RA_OK)
        status = parse_offsets(file, json_object_get(value, "data_offsets"), data_bytes, &info);
    if (status != RA_OK)
        return status;
    if (file->count == RA_TENSOR_MAX_COUNT)
        return decline(file, NULL, "the header lists more than %d tensors", RA_TENSOR_MAX_COUNT);
    if (file->count == file->capacity) {
        size_t const capacity = file->capacity == 0 ? 8 : 2 * file->capacity;
        ra_tensor_info *grown = realloc(file->tensors, capacity * sizeof(*grown));
        if (grown == NULL)
            return ra_refuse_memory(file->path);
        file->tensors = grown;
        file->capacity = capacity;
    }
    file->tensors[file->count++] = info;
    return RA_OK;
}

/* ---- members of the header ------------------------------------------------------------------- */

static ra_status check_metadata(const ra_tensor_file *file, json_t *value, bool *seen)
{
    if (*seen)
        return reject(file, "__metadata__", "the header names it twice");
    *seen = true;
    const char *key;
    json_t *text;
    if (!json_is_object(value))
        return reject(file, "__metadata__", "it is not an object");
    json_object_foreach(value, key, text)
    {
        if (!json_is_string(text))
            return reject(file, "__metadata__", "'%.32s' is not a string", key);
    }
    return RA_OK;
}

typedef struct text_left {
    const char *at;
    size_t bytes;
} text_left;

static size_t read_text(void *buffer, size_t most, void *context)
{
    text_left *left = context;
    size_t const bytes = left->bytes < most ? left->bytes : most;
    memcpy(buffer, left->at, bytes);
    left->at += bytes;
    left->bytes -= bytes;
    return bytes;
}

/* `text` is one member of so many bytes, between braces: "{"name": value}". */
static ra_status parse_member(ra_tensor_file *file, const char *text, size_t bytes,
                              int64_t data_bytes, bool *metadata_seen)
{
    json_error_t problem;
    text_left left = {text, bytes + 2};
    bool lacked_memory;
    if (memchr(text, '\0', bytes + 2) != NULL) /* jansson drops one that follows a number */
        return reject(file, NULL, "the header is not valid JSON, it holds a NUL byte");
    json_t *tree = ra_json_load(read_text, &left, &problem, &lacked_memory);
    if (lacked_memory)
        return ra_refuse_memory(file->path);
    if (tree == NULL)
        return reject(file, NULL, "the header is not valid JSON, %s", problem.text);
    ra_status status;
    const char *name = json_object_iter_key(json_object_iter(tree));
    json_t *value = json_object_iter_value(json_object_iter(tree));
    if (name == NULL)
        status = reject(file, NULL, "the header is not valid JSON, a comma stands alone");
    else if (strcmp(name, "__metadata__") == 0)
        status = check_metadata(file, value, metadata_seen);
    else if (bytes > RA_TENSOR_MEMBER_MAX_BYTES)
        status = decline(file, NULL, "a tensor's entry takes %zu bytes, more than %d", bytes,
                         RA_TENSOR_MEMBER_MAX_BYTES);
    else
        status = parse_tensor(file, name, value, data_bytes);
    json_decref(tree);
    return status;
}

/* Bytes up to the ',' or '}' that ends the member at `text`; SIZE_MAX when none does. */
static size_t member_bytes(const char *text, size_t bytes)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < bytes; ++i) {
        char const c = text[i];
        if (in_string) {
            if (c == '\\')
                ++i;
            else if (c == '"')
                in_string = false;
            continue;
        }
        if (depth == 0 && (c == ',' || c == '}'))
            return i;
        if (c == '"')
            in_string = true;
        else if (c == '{' || c == '[')
            ++depth;
        else if (c == '}' || c == ']')
            --depth;
        if (depth < 0 || depth > MEMBER_MAX_DEPTH)
            return SIZE_MAX;
    }
    return SIZE_MAX;
}

static bool only_spaces(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; ++i)
        if (strchr(" \t\r\n", text[i]) == NULL || text[i] == '\0')
            return false;
    return true;
}

/* `scratch` has room for the longest member and two braces. */
static ra_status parse_members(ra_tensor_file *file, const char *text, size_t bytes,
                               int64_t data_bytes, char *scratch)
{
    bool metadata_seen = false, end = false;
    if (bytes == 0 || text[0] != '{')
        return reject(file, NULL, "the header does not begin with '{'");
    size_t at = 1;
    while (!end) {
        size_t const member = member_bytes(text + at, bytes - at);
        if (member == SIZE_MAX)
            return reject(file, NULL, "the header is not valid JSON, byte %zu begins no member",
                          at);
        if (member > RA_TENSOR_METADATA_MAX_BYTES)
            return decline(file, NULL,
                           "what the header has from byte %zu on takes %zu bytes, more than %d", at,
                           member, RA_TENSOR_METADATA_MAX_BYTES);
        end = text[at + member] == '}';
        if (!end || at > 1 || !only_spaces(text + at, member)) { /* "{}" lists no tensor */
            scratch[0] = '{';
            memcpy(scratch + 1, text + at, member);
            scratch[member + 1] = '}';
            ra_status const status =
                parse_member(file, scratch, member, data_bytes, &metadata_seen);
            if (status != RA_OK)
                return status;
        }
        at += member + 1;
    }
    if (!only_spaces(text + at, bytes - at))
        return reject(file, NULL, "something follows the header's last '}'");
    return RA_OK;
}

/* ---- all tensors together -------------------------------------------------------------------- */

static int compare_offsets(const void *a, const void *b)
{
    const ra_tensor_info *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const ra_tensor_info *)a)->name, ((const ra_tensor_info *)b)->name);
}

static void sort(ra_tensor_file *file, int (*compare)(const void *, const void *))
{
    if (file->count > 0)
        qsort(file->tensors, file->count, sizeof(file->tensors[0]), compare);
}

static ra_status check_names(ra_tensor_file *file)
{
    sort(file, compare_names);
    for (size_t i = 1; i < file->count; ++i)
        if (strcmp(file->tensors[i - 1].name, file->tensors[i].name) == 0)
            return reject(file, file->tensors[i].name, "the header names it twice");
    return RA_OK;
}

/* Data without overlap, hole or rest. Leaves tensors sorted by name. */
static ra_status check_data(ra_tensor_file *file, int64_t data_begin, int64_t data_bytes)
{
    int64_t at = 0;
    sort(file, compare_offsets);
    for (size_t i = 0; i < file->count; ++i) {
        ra_tensor_info *tensor = &file->tensors[i];
        if (tensor->offset < at)
            return reject(file, tensor->name, "its data overlap those of tensor '%s'",
                          file->tensors[i - 1].name);
        if (tensor->offset > at)
            return reject(file, tensor->name, "a hole of %" PRId64 " byte%s precedes its data",
                          tensor->offset - at, ra_plural(tensor->offset - at));
        at += tensor->bytes;
        tensor->offset += data_begin;
    }
    if (at != data_bytes)
        return reject(file, NULL, "%" PRId64 " byte%s the last tensor", data_bytes - at,
                      data_bytes - at == 1 ? " follows" : "s follow");
    sort(file, compare_names);
    return RA_OK;
}

static ra_status check_length(const ra_tensor_file *file, const unsigned char *data, size_t bytes,
                              int64_t file_bytes, size_t *header_bytes_out)
{
    if (file_bytes < 8 || bytes < 8)
        return reject(file, NULL, "%" PRId64 " bytes are too few for a header", file_bytes);
    uint64_t length = 0;
    for (int i = 7; i >= 0; --i)
        length = length << 8 | data[i];
    if (length > RA_TENSOR_HEADER_MAX_BYTES)
        return reject(file, NULL, "the header's length is %" PRIu64 " bytes, more than %d", length,
                      RA_TENSOR_HEADER_MAX_BYTES);
    if ((int64_t)length > file_bytes - 8 || length > bytes - 8)
        return reject(file, NULL,
                      "the header's length is %" PRIu64 " bytes, the file has %" PRId64
                      " (truncated?)",
                      length, file_bytes);
    *header_bytes_out = (size_t)length;
    return RA_OK;
}

ra_status ra_tensor_header_parse(const char *name, const void *data, size_t bytes,
                                 int64_t file_bytes, ra_tensor_file **file_out)
{
    ra_tensor_file *file = calloc(1, sizeof(*file));
    char *scratch = NULL;
    size_t header_bytes = 0;
    ra_status status = RA_OK;
    if (file == NULL)
        goto err_no_memory;
    file->fd = -1;
    file->path = strdup(name);
    if (file->path == NULL)
        goto err_no_memory;
    status = check_length(file, data, bytes, file_bytes, &header_bytes);
    if (status != RA_OK)
        goto err_close;
    size_t const member_max =
        header_bytes < RA_TENSOR_METADATA_MAX_BYTES ? header_bytes : RA_TENSOR_METADATA_MAX_BYTES;
    scratch = malloc(member_max + 2);
    if (scratch == NULL) {
        status = ra_refuse_memory(file->path);
        goto err_close;
    }
    int64_t const data_begin = 8 + (int64_t)header_bytes;
    status =
        parse_members(file, (const char *)data + 8, header_bytes, file_bytes - data_begin, scratch);
    if (status == RA_OK)
        status = check_names(file);
    if (status == RA_OK)
        status = check_data(file, data_begin, file_bytes - data_begin);
    free(scratch);
    if (status != RA_OK)
        goto err_close;
    *file_out = file;
    return RA_OK;

err_no_memory:
    status = ra_refuse_memory(name);
err_close:
    ra_tensor_file_close(file);
    return status;
}
