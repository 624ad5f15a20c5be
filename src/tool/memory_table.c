#include "memory_table.h"

#include "bytes_text.h"

#include <stdio.h>

enum { NAME_WIDTH = 14, CELL_WIDTH = 12 };

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
        const ra_report *report = columns[i].report;
        if (report == NULL)
            ra_memory_table_cell("-");
        else
            ra_memory_table_cell(ra_bytes_text(
                category < 0 ? report->peak_bytes : report->memory_bytes[category], text));
    }
    ra_memory_table_end();
}

void ra_memory_table_print(const ra_memory_column *columns, int count)
{
    ra_memory_table_begin("memory");
    for (int i = 0; i < count; i++)
        printf(" %*.15s", CELL_WIDTH - 1, columns[i].name);
    ra_memory_table_end();
    for (int c = 0; c < RA_MEM_CATEGORY_COUNT; c++) {
        bool held = false;
        for (int i = 0; i < count; i++)
            held = held || (columns[i].report != NULL && columns[i].report->memory_bytes[c] != 0);
        if (held)
            bytes_row(ra_category_name((ra_category)c), columns, count, c);
    }
    bytes_row("peak", columns, count, -1);
}
