/* Peaks by category side by side: a column per variant, a row per category. */
#ifndef RINGATTN_TOOL_MEMORY_TABLE_H
#define RINGATTN_TOOL_MEMORY_TABLE_H

#include "report.h"

/* One variant, as the table needs it. */
typedef struct ra_memory_column {
    char name[16];
    bool filled; /* false: there is nothing but the name, shown as "-" */
    int64_t peak_bytes, memory_bytes[RA_MEM_CATEGORY_COUNT];
} ra_memory_column;

/** A column of a report's fullest rank; `name` is cut to 15 bytes. NULL report: not filled. */
ra_memory_column ra_memory_column_of(const char *name, const ra_report *report);
/** Categories that hold nothing in any column are left out. To standard output. */
void ra_memory_table_print(const ra_memory_column *columns, int count);
/** The start of a row, padded so that values of `ra_memory_table_cell` come below the columns. */
void ra_memory_table_begin(const char *name);
void ra_memory_table_cell(const char *text);
void ra_memory_table_end(void);

#endif
