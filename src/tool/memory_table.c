#include "memory_table.h"

#include "bytes_text.h"

#include <stdio.h>
#include <string.h>

enum { NAME_WIDTH = 14, CELL_WIDTH = 12 };

ra_memory_column ra_memory_column_of(const char *name, const ra_report *report)
{
    ra_memory_column column = {.filled = report != NULL};
    snprintf(column.name, sizeof(column.name), "%s", name);
    if (report != NULL) {
        column.peak_bytes = report->peak_bytes;
        memcpy(column.memory_bytes, report->memory_bytes, sizeof(column.memory_bytes));
    }
    return column;
}

void ra_memory_table_begin(const char *name)
{
    printf("%-*s", NAME_WIDTH, name);
}

void ra_memory_table_cell(const char *text)
{
    printf(" %*s", CELL_WIDTH - 1, text);
}

void ra_memory_table_end(void)
{
    putchar('\n');
}

static void bytes_row(const char *name, const ra_memory_column *columns, int count, int category)
{
    char text[32];
    ra_memory_table_begin(name);
    for (int i = 0; i < count; i++) {
        int64_t const bytes =
            category < 0 ? columns[i].peak_bytes : columns[i].memory_bytes[category];
        ra_memory_table_cell(columns[i].filled ? ra_bytes_text(bytes, text) : "-");
    }
    ra_memory_table_end();
}

void ra_memory_table_print(const ra_memory_column *columns, int count)
{
    ra_memory_table_begin("memory");
    for (int i = 0; i < count; i++)
        ra_memory_table_cell(columns[i].name);
    ra_memory_table_end();
    for (int c = 0; c < RA_MEM_CATEGORY_COUNT; c++) {
        bool held = false;
        for (int i = 0; i < count; i++)
            held = held || columns[i].memory_bytes[c] != 0;
        if (held)
            bytes_row(ra_category_name((ra_category)c), columns, count, c);
    }
    bytes_row("peak", columns, count, -1);
}
