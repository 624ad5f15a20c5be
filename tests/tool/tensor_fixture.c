#include "tool/tensor_fixture.h"
#include "support/poison_memory.h"

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdlib.h>

captured_log said;
char folder[64];
ra_pool *pool;
static ra_ledger *ledger;

void fixture_begin(void)
{
    captured_log_begin(&said);
    strcpy(folder, "/tmp/ra-tensors-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(ra_ledger_create(INT64_MAX, &ledger), RA_OK);
    ra_pool_config const config = {.memory = ra_memory_poison(), .ledger = ledger};
    cr_assert_eq(ra_pool_create(&config, &pool), RA_OK);
}

void fixture_end(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    cr_assert_eq(system(command), 0);
    ra_ledger_snapshot now;
    ra_ledger_read(ledger, &now);
    cr_assert_eq(now.reserved_bytes, 0, "%lld bytes were not given back",
                 (long long)now.reserved_bytes);
    ra_pool_destroy(pool);
    ra_ledger_destroy(ledger);
    ra_log_set_handler(NULL, NULL);
}

const char *in_folder(const char *name)
{
    static char path[2][128];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof(path[turn]), "%s/%s", folder, name);
    return path[turn];
}

int entries_in_folder(void)
{
    char command[160];
    snprintf(command, sizeof(command), "ls -A '%s' | wc -l", folder);
    FILE *pipe = popen(command, "r");
    int count = -1;
    cr_assert_not_null(pipe);
    cr_assert_eq(fscanf(pipe, "%d", &count), 1);
    pclose(pipe);
    return count;
}

ra_rowset rowset(const ra_range *ranges, int count)
{
    ra_rowset rows;
    cr_assert_eq(ra_rowset_init(pool, ranges, count, &rows), RA_OK);
    return rows;
}

ra_config parse_config(const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    ra_config_source const source = {0};
    ra_config config;
    cr_assert_eq(ra_config_parse("test.yaml", true, text, strlen(text), &source, &config), RA_OK,
                 "%s: %s", text, said.line);
    return config;
}

ra_tensor_info describe(const char *name, const char *dtype, int dims, const int64_t *shape)
{
    ra_tensor_info info = {.dims = dims};
    snprintf(info.name, sizeof(info.name), "%s", name);
    snprintf(info.dtype, sizeof(info.dtype), "%s", dtype);
    memcpy(info.shape, shape, (size_t)dims * sizeof(shape[0]));
    return info;
}

unsigned char fixture_byte(int tensor, int64_t at)
{
    uint64_t const x = ((uint64_t)at + (uint64_t)tensor * 977) * 0x9E3779B97F4A7C15u;
    return (unsigned char)(x >> 53);
}

void write_tensors(const char *path, ra_tensor_info *infos, const void *const *data, int count)
{
    ra_tensor_writer *writer;
    cr_assert_eq(ra_tensor_writer_open(path, "fixture", true, infos, count, &writer), RA_OK, "%s",
                 said.line);
    for (int i = 0; i < count; ++i) {
        unsigned char *bytes = NULL;
        if (data == NULL || data[i] == NULL) {
            bytes = malloc((size_t)infos[i].bytes + 1);
            for (int64_t x = 0; x < infos[i].bytes; ++x)
                bytes[x] = fixture_byte(i, x);
        }
        cr_assert_eq(ra_tensor_writer_put(writer, &infos[i], 0, bytes != NULL ? bytes : data[i],
                                          (size_t)infos[i].bytes),
                     RA_OK, "%s", said.line);
        free(bytes);
    }
    cr_assert_eq(ra_tensor_writer_rename(writer), RA_OK, "%s", said.line);
    ra_tensor_writer_destroy(writer);
}
