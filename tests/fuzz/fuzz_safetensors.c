/*
 * Any bytes may stand where a safetensors file should: the header parser must refuse them with one
 * line, or accept them; then every tensor must lie within the file.
 */
#include "tool/safetensors_header.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int lines;

static void count_line(void *context, ra_log_level level, const char *line)
{
    (void)context;
    (void)level;
    ++lines;
    for (; *line != '\0'; ++line)
        if (*line < ' ' || *line > '~')
            abort();
}

static void check(int condition)
{
    if (!condition)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    ra_tensor_file *file = NULL;
    ra_log_set_handler(count_line, NULL);
    lines = 0;
    ra_status const status = ra_tensor_header_parse("fuzz", data, bytes, (int64_t)bytes, &file);
    if (status != RA_OK) {
        check(lines == 1 && file == NULL);
        return 0;
    }
    check(lines == 0);
    int64_t total = 0;
    for (size_t i = 0; i < file->count; ++i) {
        const ra_tensor_info *tensor = &file->tensors[i];
        int64_t expected;
        check(memchr(tensor->name, '\0', sizeof(tensor->name)) != NULL);
        check(ra_tensor_file_find(file, tensor->name) == tensor);
        check(ra_tensor_bytes(tensor, &expected) && expected == tensor->bytes);
        check(tensor->offset >= 8 && tensor->bytes >= 0);
        check(tensor->offset + tensor->bytes <= (int64_t)bytes);
        total += tensor->bytes;
    }
    check(total <= (int64_t)bytes - 8);
    ra_tensor_file_close(file);
    return 0;
}
