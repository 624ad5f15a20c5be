#include "memory_table.h"

#include "bytes_text.h"
#include "config_yaml.h"

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

/* What a report says of a category, or of the peak (-1); -1: nothing. */
static int64_t bytes_of(const ra_report *report, bool of_host, int category)
{
    if (report == NULL || (of_host && report->host_peak_bytes == 0))
        return -1;
    if (category < 0)
        return of_host ? report->host_peak_bytes : report->peak_bytes;
    return of_host ? report->host_memory_bytes[category] : report->memory_bytes[category];
}

static void bytes_row(const char *name, const ra_memory_column *columns, int count, bool of_host,
                      int category)
{
    char text[32];
    ra_memory_table_begin(name);
    for (int i = 0; i < count; i++) {
        int64_t const bytes = bytes_of(columns[i].report, of_host, category);
        ra_memory_table_cell(bytes < 0 ? "-" : ra_bytes_text(bytes, text));
    }
    ra_memory_table_end();
}

/* Rows of the categories that some column has bytes in. */
static void category_rows(const ra_memory_column *columns, int count, bool of_host)
{
    for (int c = 0; c < RA_MEM_CATEGORY_COUNT; c++) {
        bool held = false;
        for (int i = 0; i < count; i++)
            held = held || bytes_of(columns[i].report, of_host, c) > 0;
        if (held)
            bytes_row(ra_category_name((ra_category)c), columns, count, of_host, c);
    }
}

void ra_memory_table_print(const ra_memory_column *columns, int count)
{
    ra_memory_table_begin("memory");
    for (int i = 0; i < count; i++) {
        char name[CELL_WIDTH];
        snprintf(name, sizeof(name), "%s", columns[i].name);
        ra_text_mend(name);
        ra_memory_table_cell(name);
    }
    ra_memory_table_end();
    category_rows(columns, count, false);
    bytes_row("peak", columns, count, false, -1);
}

bool ra_memory_table_print_host(const ra_memory_column *columns, int count)
{
    bool any = false;
    for (int i = 0; i < count; i++)
        any = any || bytes_of(columns[i].report, true, -1) > 0;
    if (!any)
        return false;
    printf("host memory\n");
    category_rows(columns, count, true);
    bytes_row("host peak", columns, count, true, -1);
    return true;
}
